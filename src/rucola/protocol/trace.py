"""What a trace message carries: one line of text for each thing that happened to a message.

Fields are joined by U+0001, every record ends with U+0002; a value that is missing is ``null``. Which fields a kind of
record has, in which order, stands in ``_FIELDS``.

Source: protocol.md 4.11; RocketMQ 5.3.3, TraceDataEncoder. A trace comes from whoever may write the topic: what cannot
be read is passed over, as nothing but the record itself is lost with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum

CONTENT_SEPARATOR = "\x01"
FIELD_SEPARATOR = "\x02"
_ABSENT = "null"


class TraceType(Enum):
    """What happened."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class MessageType(Enum):
    """Kind of a message, by its number on the wire."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One thing that happened to one message; which fields matter depends on ``trace_type``.

    Attributes:
        trace_type: what happened.
        msg_id: unique id of the message.
        timestamp_ms: when it began, ms since the epoch.
        region: of the broker.
        group: of the producer or consumer.
        topic: of the message.
        tags: of the message.
        keys: of the message, separated by spaces.
        store_host: address of the broker.
        body_length: bytes of the body as the application gave it.
        cost_ms: how long it took.
        msg_type: number of a ``MessageType``.
        offset_msg_id: where the broker put the message.
        success: whether it went well.
        request_id: joins what a consumer began and ended.
        retry_times: how often the message was consumed before.
        context_code: 0 consumed, 1 too late, 2 exception, 3 nothing returned, 4 failed.
        transaction_id: of the transaction.
        transaction_state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        from_transaction_check: whether the broker had asked.
    """

    trace_type: TraceType
    msg_id: str = ""
    timestamp_ms: int = 0
    region: str = ""
    group: str = ""
    topic: str = ""
    tags: str | None = None
    keys: str | None = None
    store_host: str = ""
    body_length: int = 0
    cost_ms: int = 0
    msg_type: int = MessageType.NORMAL.value
    offset_msg_id: str | None = None
    success: bool = True
    request_id: str = ""
    retry_times: int = 0
    context_code: int = 0
    transaction_id: str | None = None
    transaction_state: str = ""
    from_transaction_check: bool = False


_FIELDS = {
    TraceType.PUB: "timestamp_ms region group topic msg_id tags keys store_host body_length cost_ms msg_type "
    "offset_msg_id success",
    TraceType.SUB_BEFORE: "timestamp_ms region group request_id msg_id retry_times keys",
    TraceType.SUB_AFTER: "request_id msg_id cost_ms success keys context_code timestamp_ms group",
    TraceType.END_TRANSACTION: "timestamp_ms region group topic msg_id tags keys store_host msg_type transaction_id "
    "transaction_state from_transaction_check",
    TraceType.RECALL: "timestamp_ms region group topic msg_id success",
}
_NAMES = {kind: tuple(names.split()) for kind, names in _FIELDS.items()}
_PUB_BEFORE_4_4 = tuple(name for name in _NAMES[TraceType.PUB] if name != "offset_msg_id")
_TYPES = {kind.value: kind for kind in TraceType}
_KINDS = {field.name: field.type for field in fields(TraceRecord)}
_NEEDED = {TraceType.SUB_AFTER: 5}
"""Old clients end such a record early: without context code, time and group."""


def encode_trace(records: Iterable[TraceRecord]) -> str:
    """The text of ``records``."""
    return "".join(map(_encode, records))


def decode_trace(text: str) -> list[TraceRecord]:
    """The records of a trace message."""
    return [record for line in text.split(FIELD_SEPARATOR) if (record := _decode(line)) is not None]


def trace_keys(records: Iterable[TraceRecord]) -> list[str]:
    """Under which keys ``records`` are found: the ids and keys of their messages, each once."""
    found: dict[str, None] = {}
    for record in records:
        found[record.msg_id] = None
        found.update(dict.fromkeys((record.keys or "").split()))
    return list(found)


def _encode(record: TraceRecord) -> str:
    values = [record.trace_type.value]
    values += [_text(getattr(record, name)) for name in _NAMES[record.trace_type]]
    return CONTENT_SEPARATOR.join(values) + FIELD_SEPARATOR


def _decode(line: str) -> TraceRecord | None:
    parts = line.split(CONTENT_SEPARATOR)
    kind = _TYPES.get(parts[0])
    if kind is None:
        return None
    values = parts[1:]
    names = _NAMES[kind]
    if kind is TraceType.PUB and len(values) == len(_PUB_BEFORE_4_4):
        names = _PUB_BEFORE_4_4
    if len(values) < _NEEDED.get(kind, len(names)):
        return None
    try:
        given = {name: _value(name, value) for name, value in zip(names, values, strict=False)}
    except ValueError:
        return None
    return TraceRecord(trace_type=kind, **given)  # type: ignore[arg-type]  # each by its own type


def _text(value: object) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace(CONTENT_SEPARATOR, " ").replace(FIELD_SEPARATOR, " ")


def _value(name: str, text: str) -> object:
    kind = _KINDS[name]
    if kind == "int":
        return int(text)
    if kind == "bool":
        return text == "true"
    return None if text == _ABSENT and kind == "str | None" else text
