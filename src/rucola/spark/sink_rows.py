"""Converts rows to messages, in a task. Imports PyArrow but not Spark; is itself imported only in ``write()``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rucola.common import message_const
from rucola.common.json_library import orjson
from rucola.common.message import Message
from rucola.common.system_properties import NOT_FORWARDED
from rucola.errors import ClientError, RucolaError
from rucola.spark.repeats import position_id, value_id
from rucola.spark.sink_options import POSITION, SinkLayout, SinkOptions
from rucola.spark.sink_pack import PackedBatch, RowPacker, same_position

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_ROWS = 4096
CHUNK_BYTES = 4 << 20
"""Approximate size in bytes of the messages that are sent together."""


@dataclass
class Chunk:
    """Messages that are sent together, each with its row.

    Attributes:
        rows: the rows, from which dead letters are made.
        messages: one message for each row, even for an invalid row; empty while ``packed`` holds the messages.
        queues: broker name (empty for any broker) and queue id of each row that names a queue, by row index.
        invalid: for each invalid row, by row index, the reason why its message cannot be sent.
        size: total size in bytes of the messages' bodies or, for packed rows, of the requests' bodies.
        topic: the topic of packed rows.
        packed: the requests that hold all rows, if the rows could be packed.
    """

    rows: pa.RecordBatch
    messages: list[Message]
    queues: dict[int, tuple[str, int]] = field(default_factory=dict)
    invalid: dict[int, RucolaError] = field(default_factory=dict)
    size: int = 0
    topic: str = ""
    packed: list[PackedBatch] = field(default_factory=list)

    def unpack(self) -> None:
        """Replaces the packed requests with single messages."""
        for batch in self.packed:
            self.messages += batch.messages(self.topic)
        self.packed = []


class RowReader:
    """Creates messages from the rows of one task.

    Args:
        options: options of the sink.
        layout: the assignment of a row's fields to the parts of a message.
        query_id: id of the streaming query; empty in a batch.
    """

    def __init__(self, options: SinkOptions, layout: SinkLayout, query_id: str) -> None:
        self._topic = options.topic
        self._layout = layout
        by_position = layout.has_position and layout.id_field is None
        self._scope = options.id_scope or (query_id if by_position else "")
        self._has_id = by_position or layout.id_field is not None
        self._packer = RowPacker(options, layout, self._scope, has_id=self._has_id)

    def chunks(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Yields the messages for the rows of ``batch`` in chunks, in order.

        Raises:
            ConfigError: two rows have the same source position, so consumers would drop one message as a duplicate.
        """
        start = 0
        mean = max(1, batch.nbytes // max(1, batch.num_rows))
        step = max(1, min(CHUNK_ROWS, CHUNK_BYTES // mean))
        while start < batch.num_rows:
            yield self._chunk(batch.slice(start, step))
            start += step

    def _chunk(self, rows: pa.RecordBatch) -> Chunk:
        if self._packer.can_pack:
            chunk = Chunk(rows, [], topic=self._topic)
            given = self._properties(rows, chunk) if self._has_objects(rows) else None
            if not chunk.invalid:
                chunk.packed = self._packer.pack(rows, given) or []
            if chunk.packed:
                chunk.size = sum(len(batch.body) for batch in chunk.packed)
                return chunk
        return self._row_by_row(rows)

    def _has_objects(self, rows: pa.RecordBatch) -> bool:
        """Whether there is a column that ``RowPacker`` cannot read: ``properties``, or ``keys`` if it is not text."""
        keys = self._layout.fields.get("keys")
        return "properties" in self._layout.fields or (
            keys is not None and not pa.types.is_string(rows.column(keys).type)
        )

    def _row_by_row(self, rows: pa.RecordBatch) -> Chunk:
        bodies = self._bytes(rows, "body")
        topics: Sequence[str | None]
        topics = [self._topic] * rows.num_rows if self._topic else self._values(rows, "topic")
        chunk = Chunk(rows, [], size=sum(map(len, filter(None, bodies))))
        properties = self._properties(rows, chunk)
        if self._has_id:
            self._put_ids(rows, properties, chunk)
        flags = self._values(rows, "flag") if "flag" in self._layout.fields else None
        for number, body in enumerate(bodies):
            topic = topics[number]
            if not body or not topic:
                what = "the topic is null or empty" if body else "the body is null or empty"
                chunk.invalid.setdefault(number, ClientError(what))
            message = Message(topic or "", body or b"", flag=(flags[number] or 0) if flags else 0)
            message.properties = properties[number]
            chunk.messages.append(message)
        if self._layout.queue_field is not None:
            self._put_queues(rows, chunk)
        return chunk

    def _properties(self, rows: pa.RecordBatch, chunk: Chunk) -> list[dict[str, str]]:
        """The properties of each row, including its tags, keys, sharding key, lite topic and delay."""
        fields = self._layout.fields
        made: list[dict[str, str]] = [{} for _ in range(rows.num_rows)]
        if "properties" in fields:
            for number, value in enumerate(self._values(rows, "properties")):
                try:
                    made[number] = _carried(value)
                except (ValueError, AttributeError):
                    chunk.invalid[number] = ClientError("the properties are not a JSON object of strings")
        for name, key, text in _PROPERTY_COLUMNS:
            if name in fields:
                for own, value in zip(made, self._values(rows, name), strict=True):
                    if value is None or (key in message_const.DELAYING and value == 0):
                        continue
                    if shown := text(value):
                        own[key] = shown
        for number, own in enumerate(made):
            if len(own) > 1 and len(message_const.DELAYING.intersection(own)) > 1:
                chunk.invalid[number] = ClientError("a row may have only one of delayLevel, delayMs and deliverAt")
            elif message_const.LITE_TOPIC in own and not _NOT_LITE.isdisjoint(own):
                chunk.invalid[number] = ClientError("a row with a liteTopic may have neither shardingKey nor delay")
        return made

    def _put_ids(self, rows: pa.RecordBatch, properties: list[dict[str, str]], chunk: Chunk) -> None:
        scope = self._scope
        ids: list[str] = []
        if self._layout.id_field is not None:
            values = rows.column(self._layout.id_field).to_pylist()
            for number, value in enumerate(values):
                if value is None:
                    chunk.invalid[number] = ClientError("the id is null")
                ids.append(value_id(scope, value))
        else:
            places = zip(*(self._values(rows, name) for name in POSITION), strict=True)
            for number, (topic, broker, queue, offset) in enumerate(places):
                if topic is None or broker is None or queue is None or offset is None:
                    chunk.invalid[number] = ClientError("the source position is not complete")
                ids.append(position_id(scope, topic or "", broker or "", queue or 0, offset or 0))
            if len(set(ids)) < len(ids) - len(chunk.invalid):
                raise same_position()
        for own, msg_id in zip(properties, ids, strict=True):
            own[message_const.UNIQ_KEY] = msg_id

    def _put_queues(self, rows: pa.RecordBatch, chunk: Chunk) -> None:
        assert self._layout.queue_field is not None
        names: Sequence[str | None] = [None] * rows.num_rows
        if "brokerName" in self._layout.fields and "queueOffset" not in self._layout.fields:
            names = self._values(rows, "brokerName")
        for number, queue_id in enumerate(rows.column(self._layout.queue_field).to_pylist()):
            if queue_id is not None:
                chunk.queues[number] = (names[number] or "", queue_id)

    def _values(self, rows: pa.RecordBatch, name: str) -> list[Any]:
        values: list[Any] = rows.column(self._layout.fields[name]).to_pylist()
        return values

    def _bytes(self, rows: pa.RecordBatch, name: str) -> list[bytes | None]:
        column = rows.column(self._layout.fields[name])
        values: list[bytes | None] = column.cast(pa.binary()).to_pylist()
        return values


_NOT_CARRIED = NOT_FORWARDED - {message_const.LITE_TOPIC}
"""A new message goes to the lite topic of the one that it repeats."""


def _carried(value: str | list[tuple[str, str | None]] | None) -> dict[str, str]:
    """The properties of a message, from the text of a JSON object or from a map."""
    if not value:
        return {}
    pairs = orjson.loads(value).items() if isinstance(value, str) else value
    carried = {
        name: text if isinstance(text, str) else orjson.dumps(text).decode()
        for name, text in pairs
        if name not in _NOT_CARRIED and text is not None and text != ""  # readers ignore what has no value
    }
    if message_const.SHARDING_KEY in carried:
        carried.pop(message_const.LITE_TOPIC, None)  # to a broker, such a message is of type FIFO
    return carried


def _keys(value: object) -> str:
    if isinstance(value, list):
        return message_const.KEY_SEPARATOR.join(filter(None, value))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _milliseconds(value: datetime) -> str:
    return str(round(value.timestamp() * 1000))


_NOT_LITE = message_const.DELAYING | {message_const.SHARDING_KEY}
_PROPERTY_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("tags", message_const.TAGS, str),
    ("keys", message_const.KEYS, _keys),
    ("shardingKey", message_const.SHARDING_KEY, str),
    ("liteTopic", message_const.LITE_TOPIC, str),
    ("delayLevel", message_const.DELAY, str),
    ("delayMs", message_const.TIMER_DELAY_MS, str),
    ("deliverAt", message_const.TIMER_DELIVER_MS, _milliseconds),
)
