"""Resends dead letters of a group: chosen ones, or those of a time range.

A dead letter stays where it is, because logs only grow. A copy goes to the group's retry topic, so that only this group
reads it again, or to the topic from which it came, for all its groups. The copy has the property ``RESENT_FROM`` with
the id of the dead letter, and its retries are counted anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from rucola.common import message_const
from rucola.common.key_builder import RETRY_GROUP_TOPIC_PREFIX, dlq_topic, retry_topic
from rucola.common.message import MessageExt, SystemMessage
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.system_properties import forwarded
from rucola.console.changes.plan import ChangePlan, ChangeStep, PlanError
from rucola.console.changes.sending import MessageSender, doubt_of
from rucola.console.cluster.snapshot import ClusterSnapshot, GroupState
from rucola.console.messages.search import ScanQuery, Stop, by_offset, scan
from rucola.console.times import time_ms
from rucola.console.visit import BadQueryError, Visit

LETTERS_MAX: Final = 500
RESENT_FROM: Final = "RESENT_FROM"
TARGETS: Final = ("group", "topic")


@dataclass(frozen=True, slots=True)
class ResendQuery:
    """Which dead letters are sent again.

    Attributes:
        group: the group that gave them up.
        chosen: places ``broker:queue:offset`` in its dead-letter topic, separated by commas; empty for a time range.
        begin: store time of the dead letter from which on: ms since 1970, or ISO 8601 (UTC without a zone).
        end: store time up to which; empty for no limit.
        cursor: where an earlier round over the same range stopped.
        to: ``group`` (only this group reads them again) or ``topic`` (all groups of the topic do).
    """

    group: str = ""
    chosen: str = ""
    begin: str = ""
    end: str = ""
    cursor: str = ""
    to: str = "group"


def is_complete(query: ResendQuery) -> bool:
    """Whether the parameters are enough for a plan."""
    return bool(query.group and (query.chosen or query.begin))


async def plan_resend(visit: Visit, query: ResendQuery) -> ChangePlan:
    """Plans to resend dead letters; after about ``LETTERS_MAX``, the rest needs another round."""
    if query.to not in TARGETS:
        raise BadQueryError("to", query.to, ", ".join(TARGETS))
    snapshot = await visit.watch.fresh()
    group = snapshot.groups.get(query.group)
    if group is None:
        raise PlanError("There is no group {name}.", name=query.group)
    if not query.chosen and dlq_topic(query.group) not in snapshot.topics:
        raise PlanError("There are no dead letters of {name} in this range.", name=query.group)
    letters, cursor = await _letters(visit, snapshot, query)
    if not letters:
        raise PlanError("There are no dead letters of {name} in this range.", name=query.group)
    sender = MessageSender(visit)
    steps = []
    for letter in letters:
        topic = _target(snapshot, group, letter, query.to)
        copy = _copy(letter, topic, group.name)
        place = f"{letter.broker_name}:{letter.queue_id}:{letter.queue_offset}"
        steps.append(
            ChangeStep(
                place, "", letter.msg_id, topic, "is sent to {topic}", {"topic": topic}, partial(_send, sender, copy)
            )
        )
    notes: list[tuple[str, dict[str, str]]] = [("The dead letters stay in {topic}.", {"topic": dlq_topic(group.name)})]
    if query.to == "topic":
        notes.append(("All groups of the topic read them again, not only this one.", {}))
    if not group.members:
        notes.append(("No member is known to be connected: they wait until one is.", {}))
    resent = sum(RESENT_FROM in letter.properties for letter in letters)
    if resent:
        notes.append(("{count} of them were resent before and failed again.", {"count": str(resent)}))
    rest = {}
    if cursor:
        notes.append(("Only the first {count}: the rest needs another round.", {"count": str(len(letters))}))
        given = {"group": query.group, "begin": query.begin, "end": query.end, "to": query.to}
        rest = {name: value for name, value in given.items() if value} | {"cursor": cursor}
    return ChangePlan(
        group.name,
        "Resend one dead letter" if len(letters) == 1 else "Resend {count} dead letters",
        {"count": f"{len(letters):,}"},
        tuple(steps),
        tuple((step.target, step.after) for step in steps),
        tuple(notes),
        rest=rest,
        finish=sender.close,
    )


async def _letters(visit: Visit, snapshot: ClusterSnapshot, query: ResendQuery) -> tuple[list[MessageExt], str]:
    """The dead letters, and where the next round goes on; empty if there are no more."""
    admin, topic = visit.watch.admin, dlq_topic(query.group)
    if query.chosen:
        places = [_place(topic, text) for text in query.chosen.split(",") if text]
        if len(places) > LETTERS_MAX:
            raise BadQueryError("chosen", f"{len(places)} places", f"at most {LETTERS_MAX}")
        found: list[MessageExt] = []
        for queue, offset in places:
            answer = await by_offset(admin, snapshot, queue, offset)
            if not answer.messages:
                raise PlanError(
                    "There is no dead letter at {place}.", place=f"{queue.broker_name}:{queue.queue_id}:{offset}"
                )
            found += answer.messages
        return found, ""
    begin, end = time_ms("begin", query.begin), time_ms("end", query.end)
    try:
        scanned = await scan(admin, snapshot, ScanQuery(topic, begin, end, count=LETTERS_MAX, cursor=query.cursor))
    except ValueError:
        raise BadQueryError("cursor", query.cursor, "the cursor of an earlier round") from None
    if scanned.stop is Stop.SERVER:
        raise PlanError(
            "{server} does not answer: {why}", server=scanned.unknown[0].server, why=scanned.unknown[0].text
        )
    return list(scanned.messages), scanned.cursor


def _place(topic: str, text: str) -> tuple[MessageQueue, int]:
    broker, _, rest = text.strip().partition(":")
    number, _, position = rest.partition(":")
    queue, offset = number_in(number, 0, (1 << 31) - 1), number_in(position, 0, INT64_MAX)
    if not broker or queue is None or offset is None:
        raise BadQueryError("chosen", text, "broker:queue:offset")
    return MessageQueue(topic, broker, queue), offset


def _origin(letter: MessageExt) -> str:
    """The topic to which a dead letter was sent at first."""
    properties = letter.properties
    found = properties.get(message_const.RETRY_TOPIC) or properties.get(message_const.DLQ_ORIGIN_TOPIC, "")
    return "" if found.startswith(RETRY_GROUP_TOPIC_PREFIX) else found


def _target(snapshot: ClusterSnapshot, group: GroupState, letter: MessageExt, to: str) -> str:
    """The topic to which a copy goes.

    Raises:
        PlanError: there is no such topic.
    """
    origin = _origin(letter)
    if to == "topic":
        if origin not in snapshot.topics:
            raise PlanError("The topic of dead letter {id} is not known.", id=letter.msg_id)
        return origin
    plain = retry_topic(group.name)
    of_pop = [f"{plain}+{origin}", f"{plain}_{origin}"]
    wanted = [*of_pop, plain] if group.consume_type == "CONSUME_POP" else [plain, *of_pop]
    for topic in wanted:
        if topic in snapshot.topics:
            return topic
    raise PlanError("Group {name} has no retry topic yet; resend to the topic instead.", name=group.name)


def _copy(letter: MessageExt, topic: str, group: str) -> SystemMessage:
    properties = forwarded(letter.properties)
    properties[RESENT_FROM] = letter.offset_msg_id
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        properties[message_const.RETRY_TOPIC] = _origin(letter) or dlq_topic(group)
        properties[message_const.ORIGIN_MESSAGE_ID] = letter.properties.get(
            message_const.ORIGIN_MESSAGE_ID, letter.msg_id
        )
    return SystemMessage(topic, letter.body, flag=letter.flag, properties=properties)


async def _send(sender: MessageSender, copy: SystemMessage) -> str:
    return doubt_of(await sender.send(copy))
