"""Creates, configures and deletes consumer groups."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rucola.client.admin import AdminClient
from rucola.client.instance import GROUP_CHARACTERS_MAX
from rucola.common.key_builder import dlq_topic, retry_topic
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.console.changes.plan import ChangePlan, ChangeStep, PlanError
from rucola.console.changes.topics import NAME
from rucola.console.cluster.asking import Unknown, by_deadline
from rucola.console.cluster.seen import is_system_group
from rucola.console.visit import BadQueryError, Visit

RETRIES_MAX: Final = 1000
_DEADLINE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """A group that is created or configured.

    Attributes:
        name: its name.
        retries: how often a message is delivered again before it is a dead letter.
        enabled: whether the group may consume.
        broadcast: whether it may broadcast.
        orderly: whether its messages are consumed in order.
    """

    name: str = ""
    retries: int = -1
    enabled: bool = False
    broadcast: bool = False
    orderly: bool = False


@dataclass(frozen=True, slots=True)
class DeleteGroupQuery:
    """A group that is deleted.

    Attributes:
        name: its name.
        offsets: whether its offsets, retry topic and dead letters go, too.
    """

    name: str = ""
    offsets: bool = False


async def plan_group(visit: Visit, query: GroupQuery) -> ChangePlan:
    """Plans to create or configure a group on all masters."""
    if not NAME.fullmatch(query.name) or len(query.name) > GROUP_CHARACTERS_MAX:
        raise BadQueryError("name", query.name, f"1 to {GROUP_CHARACTERS_MAX} of the characters a-z A-Z 0-9 _ - % |")
    if not 0 <= query.retries <= RETRIES_MAX:
        raise BadQueryError("retries", str(query.retries), f"0 to {RETRIES_MAX}")
    _check_not_system(query.name)
    snapshot = await visit.watch.fresh()
    admin, masters = visit.watch.admin, snapshot.masters
    if not masters:
        raise PlanError("No master is known.")
    tables = await by_deadline([(one.address, admin.api.all_groups(one.address)) for one in masters], _DEADLINE_S)
    steps = []
    exists = False
    for broker, table in zip(masters, tables, strict=True):
        if isinstance(table, Unknown):
            raise PlanError("{server} does not answer: {why}", server=broker.address, why=table.text)
        config = table.get(query.name)
        exists = exists or config is not None
        wanted = replace(
            config or SubscriptionGroupConfig(query.name),
            retry_max_times=query.retries,
            consume_enable=query.enabled,
            consume_broadcast_enable=query.broadcast,
            consume_message_orderly=query.orderly,
        )
        run = None if config == wanted else partial(admin.api.change_group, broker.address, wanted)
        steps.append(ChangeStep(broker.name, broker.address, _shown(config), _shown(wanted), "", {}, run))
    return ChangePlan(
        query.name,
        "Change group {name}" if exists else "Create group {name}",
        {"name": query.name},
        tuple(steps),
        tuple((step.target, step.before, step.after) for step in steps),
        command=f"updateSubGroup -g {shlex.quote(query.name)} -r {query.retries} -c {shlex.quote(masters[0].cluster)}",
    )


async def plan_delete(visit: Visit, query: DeleteGroupQuery) -> ChangePlan:
    """Plans to delete a group on all masters."""
    _check_not_system(query.name)
    snapshot = await visit.watch.fresh()
    group = snapshot.groups.get(query.name)
    if group is None:
        raise PlanError("There is no group {name}.", name=query.name)
    admin = visit.watch.admin
    brokers = [one for one in snapshot.brokers if one.is_listed]
    steps = [
        ChangeStep(
            one.name,
            one.address,
            "",
            "-",
            "is deleted",
            {},
            partial(admin.api.delete_group, one.address, query.name, query.offsets),
        )
        for one in brokers
    ]
    notes: list[tuple[str, dict[str, str]]] = []
    members = tuple(one.client_id for one in group.members or ())
    if members:
        notes.append(
            (
                "{count} members are connected; their next heartbeat may create the group again.",
                {"count": str(len(members))},
            )
        )
    if group.members is None:
        notes.append(
            ("Whether the group has members is not known. Members may write their own offsets afterwards.", {})
        )
    if group.lag:
        notes.append(("{lag} messages are waiting for it.", {"lag": f"{group.lag:,}"}))
    if query.offsets:
        for topic in (retry_topic(query.name), dlq_topic(query.name)):
            if topic in snapshot.topics:
                count = snapshot.topics[topic].messages
                text = "Topic {topic} is deleted, too, with {count} messages."
                notes.append((text, {"topic": topic, "count": "?" if count is None else f"{count:,}"}))
                steps += [
                    ChangeStep(
                        f"{topic} {one.name}",
                        one.address,
                        "",
                        "-",
                        "is deleted",
                        {},
                        partial(admin.api.delete_topic, one.address, topic),
                    )
                    for one in brokers
                ]
                steps += [
                    ChangeStep(
                        f"{topic} {address}", address, "", "-", "forgets the topic", {}, _forget(admin, address, topic)
                    )
                    for address in admin.namesrv_addresses
                ]
        notes.append(("Its offsets are lost: a new group of this name begins as its consumers decide.", {}))
    else:
        notes.append(("Its offsets, retries and dead letters stay: a new group of this name goes on from there.", {}))
    return ChangePlan(
        query.name,
        "Delete group {name}",
        {"name": query.name},
        tuple(steps),
        (tuple(step.target for step in steps), members),
        tuple(notes),
        must_type=True,
        command=f"deleteSubGroup -g {shlex.quote(query.name)} -r {str(query.offsets).lower()} "
        f"-c {shlex.quote(brokers[0].cluster if brokers else 'CLUSTER')}",
    )


def _check_not_system(name: str) -> None:
    if is_system_group(name):
        raise PlanError("{name} belongs to the brokers and cannot be changed here.", name=name)


def _forget(admin: AdminClient, address: str, topic: str) -> Callable[[], Awaitable[object]]:
    return lambda: admin.api.delete_topic_in_namesrv(address, topic, None)


def _shown(config: SubscriptionGroupConfig | None) -> str:
    if config is None:
        return "-"
    words = [f"{config.retry_max_times} retries"]
    words += ["consumes" if config.consume_enable else "may not consume"]
    words += ["may broadcast"] if config.consume_broadcast_enable else []
    words += ["in order"] if config.consume_message_orderly else []
    return ", ".join(words)
