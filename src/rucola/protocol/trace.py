"""The content of trace messages: one record, as text, for each event of a message.

U+0001 separates the fields of a record, and U+0002 ends the record. A missing value is ``null``. ``_FIELDS`` lists the
fields of each kind of record in order.

Source: protocol.md 4.11; RocketMQ 5.3.3, TraceDataEncoder. Any client with access to the trace topic can send trace
messages, so a record may be unreadable. ``decode_trace`` skips such a record; the other records stay usable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum

CONTENT_SEPARATOR = "\x01"
FIELD_SEPARATOR = "\x02"
_ABSENT = "null"


class TraceType(Enum):
    """Kind of event."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class MessageType(Enum):
    """Kinds of messages, with their numbers in trace messages."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One event of one message; ``trace_type`` decides which fields are used.

    Attributes:
        trace_type: kind of event.
        msg_id: unique id of the message.
        timestamp_ms: start of the event, ms since the epoch.
        region: the broker's region.
        group: producer or consumer group.
        topic: topic of the message.
        tags: tags of the message.
        keys: keys of the message, separated by spaces.
        store_host: address of the broker.
        body_length: length in bytes of the application's body.
        cost_ms: duration of the event.
        msg_type: number of a ``MessageType``.
        offset_msg_id: offset message id given by the broker.
        success: whether the operation succeeded.
        request_id: id of one delivery to the application, the same in its SUB_BEFORE and SUB_AFTER records.
        retry_times: number of earlier attempts to consume the message.
        context_code: 0 consumed, 1 timed out, 2 exception, 3 returned nothing, 4 failed.
        transaction_id: id of the transaction.
        transaction_state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        from_transaction_check: whether the state answers a check by the broker.
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
"""Smallest number of fields of a SUB_AFTER record; old clients leave out context code, time and group."""


def encode_trace(records: Iterable[TraceRecord]) -> str:
    """Encodes ``records`` as text."""
    return "".join(map(_encode, records))


def decode_trace(text: str) -> list[TraceRecord]:
    """Decodes the records of a trace message."""
    return [record for line in text.split(FIELD_SEPARATOR) if (record := _decode(line)) is not None]


def trace_keys(records: Iterable[TraceRecord]) -> list[str]:
    """Returns the keys of the trace message: the ids and keys of the messages in ``records``, each once."""
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
    return TraceRecord(trace_type=kind, **given)  # type: ignore[arg-type]  # each value converted by its field's type


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
