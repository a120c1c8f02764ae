"""Sends a message, written or copied and edited; gives a stored one to a member now; recalls one that waits for its
time.
"""

from __future__ import annotations

import base64
import binascii
import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rucola.common.json_library import orjson
from rucola.common.key_builder import TIMER_TOPIC
from rucola.common.message import Message, MessageExt
from rucola.common.message_const import KEYS, REAL_TOPIC, TAGS, TIMER_OUT_MS
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.recall_handle import RecallHandle
from rucola.common.system_properties import forwarded, refuse_reserved
from rucola.console.changes.plan import ChangePlan, ChangeStep, PlanError, StepFailedError
from rucola.console.changes.sending import PRODUCER_GROUP, MessageSender, doubt_of
from rucola.console.cluster.snapshot import ClusterSnapshot, kind_of
from rucola.console.messages.search import by_key, by_offset
from rucola.console.visit import BadQueryError, Visit
from rucola.errors import ClientError
from rucola.protocol.headers.admin import ConsumeMessageDirectlyRequestHeader
from rucola.protocol.headers.recall import RecallMessageRequestHeader

ENCODINGS: Final = ("text", "base64", "hex")
COPIED_FROM: Final = "COPIED_FROM"
EDITED_BYTES_MAX: Final = 64 * 1024
"""Longest body that a form shows for editing."""
DELAY_S_MAX: Final = 3 * 24 * 3600
_CONSUMED: Final = frozenset({"CR_SUCCESS", "CR_COMMIT"})


@dataclass(frozen=True, slots=True)
class SendQuery:
    """A message that is sent.

    Attributes:
        topic: its topic.
        body: its body.
        encoding: how ``body`` is written: ``text`` (UTF-8), ``base64`` or ``hex``.
        tag: its tag.
        keys: its keys, separated by spaces.
        properties: further properties, a JSON object of texts.
        delay: seconds until it is delivered; 0 for at once.
        source: topic of a message whose copy fills in the form.
        copy: the place of this message, ``broker:queue:offset``.
    """

    topic: str = ""
    body: str = ""
    encoding: str = "text"
    tag: str = ""
    keys: str = ""
    properties: str = ""
    delay: int = 0
    source: str = ""
    copy: str = ""


@dataclass(frozen=True, slots=True)
class ConsumeQuery:
    """A stored message that a member consumes now.

    Attributes:
        topic: the topic in which it is stored.
        place: its place there, ``broker:queue:offset``.
        group: the group that consumes it.
        client: the member; empty for the first one.
    """

    topic: str = ""
    place: str = ""
    group: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """A message that waits for its time and is not wanted any more.

    Attributes:
        topic: the topic that it goes to.
        broker: name of the broker where it waits.
        key: its unique key.
        due: the due time of its handle, in ms since 1970.
    """

    topic: str = ""
    broker: str = ""
    key: str = ""
    due: str = ""


async def plan_send(visit: Visit, query: SendQuery) -> ChangePlan:
    """Plans to send a message."""
    message = _message(query)
    snapshot = await visit.watch.fresh()
    _check_topic(snapshot, query.topic)
    sender = MessageSender(visit)

    async def run() -> str:
        result = await sender.send(message)
        queue = result.message_queue
        place = f"{result.msg_id} {queue.broker_name} {queue.queue_id} {result.queue_offset}"
        return " ".join(filter(None, (place, doubt_of(result))))

    state = snapshot.topics.get(query.topic)
    notes: list[tuple[str, dict[str, str]]] = []
    if state is not None and state.groups:
        count, names = len(state.groups), ", ".join(state.groups[:5])
        notes.append(("{count} groups read the topic: {names}.", {"count": str(count), "names": names}))
    if query.delay:
        notes.append(("It is delivered {seconds} seconds after it was sent.", {"seconds": f"{query.delay:,}"}))
    step = ChangeStep(
        query.topic, "", "", f"{len(message.body):,} B", "a message of {size} bytes is stored",
        {"size": f"{len(message.body):,}"}, run,
    )  # fmt: skip
    command = f"sendMessage -t {shlex.quote(query.topic)} -p {shlex.quote(query.body)}" if _is_short(query) else ""
    return ChangePlan(
        query.topic, "Send a message to {topic}", {"topic": query.topic}, (step,),
        (query.topic, message.body, tuple(sorted(message.properties.items()))), tuple(notes), command=command,
        finish=sender.close,
    )  # fmt: skip


async def fill_send(visit: Visit, query: SendQuery) -> SendQuery:
    """The form, filled in from the message whose copy is wanted."""
    if not (query.copy and query.source):
        return query
    if not visit.may_see_bodies:
        raise PlanError("This account may not see bodies and properties.")
    found = await _stored(visit, query.source, query.copy)
    if len(found.body) > EDITED_BYTES_MAX:
        raise PlanError("A body of {size} bytes is too long to be edited here.", size=f"{len(found.body):,}")
    try:
        body, encoding = found.body.decode(), "text"
        if "\r" in body or "\0" in body:  # a form would change them
            raise ValueError
    except ValueError:
        body, encoding = base64.b64encode(found.body).decode(), "base64"
    kept = forwarded(found.properties)
    tag, keys = kept.pop(TAGS, ""), kept.pop(KEYS, "")
    properties = orjson.dumps({**kept, COPIED_FROM: found.offset_msg_id}).decode()
    return SendQuery(query.topic or query.source, body, encoding, tag, keys, properties)


async def plan_consume(visit: Visit, query: ConsumeQuery) -> ChangePlan:
    """Plans to give a stored message to a member of a group now."""
    snapshot = await visit.watch.fresh()
    group = snapshot.groups.get(query.group)
    if group is None:
        raise PlanError("There is no group {name}.", name=query.group)
    members = {member.client_id: member for member in group.members or ()}
    if not members:
        raise PlanError("No member of group {name} is connected.", name=query.group)
    client = query.client or next(iter(members))
    if client not in members:
        raise PlanError("{client} is no member of group {name}.", client=client, name=query.group)
    found = await _stored(visit, query.topic, query.place)
    # The broker that stores the message passes it on, so the member must be connected to this one.
    broker = snapshot.master_of(found.broker_name)
    if broker is None:
        raise PlanError("Broker {name} has no master.", name=found.broker_name)
    header = ConsumeMessageDirectlyRequestHeader(
        query.group, client, found.offset_msg_id, found.broker_name, found.topic
    )

    async def run() -> str:
        result = await visit.watch.admin.api.consume_directly(broker.address, header)
        told = f"{result.consume_result}, {result.spent_time_mills} ms"
        if result.consume_result not in _CONSUMED:
            raise StepFailedError(f"{told}: {result.remark or ''}")
        return told

    step = ChangeStep(
        query.place, broker.address, found.uniq_key or found.offset_msg_id, client, "is consumed by {client}",
        {"client": client}, run,
    )  # fmt: skip
    notes: list[tuple[str, dict[str, str]]] = [
        ("The offsets of the group stay: the message may be consumed twice.", {}),
        ("The member gets it whether or not it reads this queue or subscribes to the topic.", {}),
    ]
    return ChangePlan(
        query.group, "Give the message to {client} now", {"client": client}, (step,),
        (found.offset_msg_id, client),
        tuple(notes),
        command=f"queryMsgById -i {found.offset_msg_id} -g {shlex.quote(query.group)} -d {shlex.quote(client)} "
        f"-t {shlex.quote(query.topic)}",
    )  # fmt: skip


async def plan_recall(visit: Visit, query: RecallQuery) -> ChangePlan:
    """Plans to recall a message that waits for its time."""
    due_ms = number_in(query.due, 1, INT64_MAX)
    if due_ms is None:
        raise BadQueryError("due", query.due, "a time in ms since 1970")
    if any(" " in word for word in (query.topic, query.broker, query.key)):
        raise BadQueryError("key", query.key, "a topic, a broker and a unique key without spaces")
    snapshot = await visit.watch.fresh()
    broker = snapshot.master_of(query.broker)
    if broker is None:
        raise PlanError("Broker {name} has no master.", name=query.broker)
    result = await by_key(visit.watch.admin, snapshot, TIMER_TOPIC, query.key, unique=True)
    waits = [one for one in result.messages if one.broker_name == query.broker and _is_waiting(one, query, due_ms)]
    if not waits or due_ms <= visit.now_ms():
        raise PlanError("No message with this key waits for this time.")
    handle = RecallHandle(query.topic, query.broker, due_ms, query.key).encode()
    header = RecallMessageRequestHeader(query.topic, handle, PRODUCER_GROUP, query.broker)
    step = ChangeStep(
        query.key, broker.address, query.topic, "-", "is not delivered", {},
        partial(visit.watch.admin.api.recall_message, broker.address, header),
    )  # fmt: skip
    notes: list[tuple[str, dict[str, str]]] = [("Brokers refuse it unless recallMessageEnable=true.", {})]
    return ChangePlan(query.key, "Cancel the message", {}, (step,), (handle,), tuple(notes))


def _is_waiting(message: MessageExt, query: RecallQuery, due_ms: int) -> bool:
    properties = message.properties
    return properties.get(REAL_TOPIC) == query.topic and properties.get(TIMER_OUT_MS) == str(due_ms - 1)


def _message(query: SendQuery) -> Message:
    """The message of a form.

    Raises:
        BadQueryError: a field is not allowed.
    """
    if query.encoding not in ENCODINGS:
        raise BadQueryError("encoding", query.encoding, ", ".join(ENCODINGS))
    if not 0 <= query.delay <= DELAY_S_MAX:
        raise BadQueryError("delay", str(query.delay), f"0 to {DELAY_S_MAX} seconds")
    try:
        properties = _properties(query.properties)
        refuse_reserved(properties)
        message = Message(query.topic, _body(query), query.tag or None, query.keys or None, properties=properties)
    except ClientError as error:
        raise BadQueryError("properties", query.properties, str(error)) from None
    if query.delay:
        message.properties["TIMER_DELAY_SEC"] = str(query.delay)
    return message


def _body(query: SendQuery) -> bytes:
    try:
        if query.encoding == "text":
            return query.body.replace("\r\n", "\n").encode()
        if query.encoding == "hex":
            return bytes.fromhex(query.body)
        return base64.b64decode("".join(query.body.split()), validate=True)
    except (ValueError, binascii.Error):
        raise BadQueryError("body", query.body[:40], f"{query.encoding}") from None


def _properties(text: str) -> dict[str, str]:
    found: Any = None
    with suppress(ValueError):
        found = orjson.loads(text or "{}")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadQueryError("properties", text, 'a JSON object of texts, such as {"color": "green"}')
    return found


def _check_topic(snapshot: ClusterSnapshot, topic: str) -> None:
    state = snapshot.topics.get(topic)
    if (state.kind if state is not None else kind_of(topic)) == "system":
        raise PlanError("{name} belongs to the brokers and cannot be changed here.", name=topic)
    if state is None and snapshot.topics:
        raise PlanError("There is no topic {name}.", name=topic)


async def _stored(visit: Visit, topic: str, place: str) -> MessageExt:
    """The message at a place ``broker:queue:offset`` of a topic.

    Raises:
        BadQueryError: it is no such place.
        PlanError: there is none.
    """
    broker, _, rest = place.strip().partition(":")
    number, _, position = rest.partition(":")
    queue, offset = number_in(number, 0, (1 << 31) - 1), number_in(position, 0, INT64_MAX)
    if not broker or queue is None or offset is None:
        raise BadQueryError("place", place, "broker:queue:offset")
    snapshot = await visit.watch.fresh()
    found = await by_offset(visit.watch.admin, snapshot, MessageQueue(topic, broker, queue), offset)
    if not found.messages:
        raise PlanError("There is no message at {place} of {topic}.", place=place, topic=topic)
    return found.messages[0]


def _is_short(query: SendQuery) -> bool:
    return query.encoding == "text" and len(query.body) < 200 and not (query.properties or query.delay)
