"""Resets a group's offsets in a topic: to a time, an offset, the beginning or the end, in all queues or in one."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from rucola.client.admin import AdminClient, unless
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT64_MAX, number_in
from rucola.console.changes.plan import ChangePlan, ChangeStep, PlanError
from rucola.console.cluster.asking import Unknown, by_deadline
from rucola.console.cluster.snapshot import ClusterSnapshot, GroupState
from rucola.console.times import time_ms
from rucola.console.visit import BadQueryError, Visit
from rucola.protocol.bodies.statistics import OffsetWrapper
from rucola.protocol.codes import ResponseCode

TARGETS: Final = ("end", "begin", "time", "offset")
_DEADLINE_S: Final = 3.0
_V5 = "5."


@dataclass(frozen=True, slots=True)
class ResetQuery:
    """Which offsets are reset, and to what.

    Attributes:
        group: the group.
        topic: the topic.
        to: ``end`` (skip everything), ``begin``, ``time`` or ``offset``.
        at: the time: ms since 1970, or ISO 8601 (UTC without a zone).
        offset: the offset.
        queue: one queue as ``broker:number``; empty for all.
    """

    group: str = ""
    topic: str = ""
    to: str = ""
    at: str = ""
    offset: str = ""
    queue: str = ""


def is_complete(query: ResetQuery) -> bool:
    """Whether the parameters are enough for a plan."""
    needs = {"time": query.at, "offset": query.offset}.get(query.to, query.to)
    return bool(query.group and query.topic and needs)


async def plan_reset(visit: Visit, query: ResetQuery) -> ChangePlan:
    """Plans a reset: for each queue, how many messages are read again or skipped."""
    if query.to not in TARGETS:
        raise BadQueryError("to", query.to, ", ".join(TARGETS))
    moment_ms = time_ms("at", query.at) if query.to == "time" else None
    offset = number_in(query.offset.strip(), 0, INT64_MAX) if query.to == "offset" else None
    if query.to == "offset" and offset is None:
        raise BadQueryError("offset", query.offset, "a queue offset, 0 or more")
    snapshot = await visit.watch.fresh()
    group = snapshot.groups.get(query.group)
    if group is None:
        raise PlanError("There is no group {name}.", name=query.group)
    if query.topic not in snapshot.topics:
        raise PlanError("There is no topic {name}.", name=query.topic)
    queues = await _queues(visit.watch.admin, snapshot, query)
    starts = await _targets(visit.watch.admin, queues, query.to, moment_ms, offset)
    steps, again, skipped = [], 0, 0
    for (queue, address, low, high, wrapper), start in zip(queues, starts, strict=True):
        target = min(max(start, low), high)
        before = wrapper.consumer_offset if wrapper is not None else None
        change = target - before if before is not None else 0
        again, skipped = again + max(-change, 0), skipped + max(change, 0)
        run = None if before == target else _reset(visit.watch.admin, group, query.group, queue, address, target)
        effect = "reads {count} again" if change < 0 else "skips {count}" if change > 0 else "begins here"
        effect = "stays" if run is None else effect
        steps.append(
            ChangeStep(
                f"{queue.broker_name}:{queue.queue_id}", address, "-" if before is None else str(before), str(target),
                effect, {"count": f"{abs(change):,}"}, run,
            )
        )  # fmt: skip
    if not steps:
        raise PlanError("No queue of {name} can be asked now.", name=query.topic)
    members = tuple(one.client_id for one in group.members or ())
    return ChangePlan(
        query.group,
        _button(again, skipped),
        {"again": f"{again:,}", "skipped": f"{skipped:,}"},
        tuple(steps),
        _fingerprint(members, steps, is_end=query.to == "end"),
        tuple(_notes(snapshot, group)),
        command=_command(query),
    )


def _fingerprint(members: tuple[str, ...], steps: list[ChangeStep], is_end: bool) -> tuple[object, ...]:
    """What must not have moved. The end of a queue moves with each message: the offsets that were shown are set. The
    offsets of a group with members move as well.
    """
    after = () if is_end else tuple((step.target, step.after) for step in steps)
    before = () if members else tuple(step.before for step in steps)
    return members, tuple(step.target for step in steps), after, before


def _button(again: int, skipped: int) -> str:
    if again and skipped:
        return "Read {again} messages again and skip {skipped}"
    if again:
        return "Read {again} messages again"
    return "Skip {skipped} messages" if skipped else "Set the offsets"


def _notes(snapshot: ClusterSnapshot, group: GroupState) -> list[tuple[str, dict[str, str]]]:
    notes: list[tuple[str, dict[str, str]]] = []
    if group.members:
        notes.append(
            ("{count} members are told (request 222): each drops what it has fetched and goes on from the new offset.",
             {"count": str(len(group.members))})
        )  # fmt: skip
        notes.append(("Messages that members work on now come again (also those of POP and gRPC clients).", {}))
    elif group.members is None:
        notes.append(
            ("Whether the group has members is not known. Members may write their own offsets afterwards.", {})
        )
    else:
        notes.append(("The group has no members: its stored offsets are changed (request 15).", {}))
    old = sorted({broker.name for broker in snapshot.masters if broker.version and not broker.version.startswith(_V5)})
    if old and group.members:
        notes.append(
            ("Members on {brokers}, which is older than 5.0, may overwrite the offset.", {"brokers": ", ".join(old)})
        )
    return notes


_Place = tuple[MessageQueue, str, int, int, OffsetWrapper | None]
"""Queue, address of its broker, minimum and maximum offset, and the group's progress; None if it has none."""


async def _queues(admin: AdminClient, snapshot: ClusterSnapshot, query: ResetQuery) -> list[_Place]:
    parts = snapshot.topics[query.topic].brokers or ()
    brokers = [broker for part in parts if (broker := snapshot.master_of(part.broker)) is not None]
    calls: list[tuple[str, Awaitable[object]]] = [
        (one.address, admin.api.topic_stats(one.address, query.topic)) for one in brokers
    ]
    calls += [(one.address, admin.api.consume_stats(one.address, query.group, query.topic)) for one in brokers]
    answers = await by_deadline(calls, _DEADLINE_S)
    for answer in answers:
        if isinstance(answer, Unknown):
            raise PlanError("{server} does not tell its offsets: {why}", server=answer.server, why=answer.text)
    found: list[_Place] = []
    for broker, stats, moved in zip(brokers, answers[: len(brokers)], answers[len(brokers) :], strict=True):
        for queue, span in sorted(stats.offset_table.items()):  # type: ignore[attr-defined]
            if query.queue in ("", f"{queue.broker_name}:{queue.queue_id}"):
                wrapper = moved.offset_table.get(queue)  # type: ignore[attr-defined]
                found.append((queue, broker.address, span.min_offset, span.max_offset, wrapper))
    return found


async def _targets(
    admin: AdminClient, queues: list[_Place], to: str, moment_ms: int | None, offset: int | None
) -> list[int]:
    if to == "begin":
        return [low for _, _, low, _, _ in queues]
    if to == "end":
        return [high for _, _, _, high, _ in queues]
    if moment_ms is None:
        return [offset or 0 for _ in queues]
    answers = await by_deadline(
        [(address, admin.api.search_offset(address, queue, moment_ms)) for queue, address, _, _, _ in queues],
        _DEADLINE_S,
    )
    found = []
    for answer in answers:
        if isinstance(answer, Unknown):
            raise PlanError("{server} does not tell its offsets: {why}", server=answer.server, why=answer.text)
        found.append(answer)
    return found


def _reset(
    admin: AdminClient, state: GroupState, group: str, queue: MessageQueue, address: str, target: int
) -> Callable[[], Awaitable[object]]:
    return partial(_set_offset, admin, address, group, queue, target, bool(state.members) or state.members is None)


async def _set_offset(
    admin: AdminClient, address: str, group: str, queue: MessageQueue, target: int, is_online: bool
) -> None:
    """Sets the stored offset and, if there may be members, has the broker tell them."""
    if not is_online:
        await admin.api.update_consumer_offset(address, group, queue, target)
        return
    await unless(ResponseCode.CONSUMER_NOT_ONLINE, admin.reset_queue_offset(address, group, queue, target))


def _command(query: ResetQuery) -> str:
    names = f"-g {shlex.quote(query.group)} -t {shlex.quote(query.topic)}"
    if query.to == "end":
        return f"skipAccumulatedMessage {names}"
    if query.to == "time":
        return f"resetOffsetByTime {names} -s {shlex.quote(query.at)}"
    if query.to == "begin":
        return f"resetOffsetByTime {names} -s 0"
    return f"resetOffsetByTime {names} -s 0 -b BROKER -q QUEUE -o {query.offset}"
