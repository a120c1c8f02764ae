"""Packs rows into the bodies of batch requests, column by column, without an object for each row.

Rows are packed only if option ``topic`` is set and no row has a queue, sharding key, lite topic, flag or delay. In
addition, no body may be null, empty, or so large that it needs compression. All other rows become messages one by one
(``sink_rows``). This module imports no Spark, and is imported only inside ``write()``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rucola.arrow.buffers import from_bytes, mask_of
from rucola.client.unique_id import UniqueIds
from rucola.common import message_const
from rucola.common.message import Message
from rucola.errors import ClientError, ConfigError
from rucola.protocol.batch_members import (
    ID_BYTES,
    PACKED_PROPERTIES_BYTES_MAX,
    append_property,
    members_of,
    pack_members,
)
from rucola.protocol.send_request import properties_text
from rucola.runtime.clock import SystemClock
from rucola.spark.repeats import OFFSET_DIGITS, OFFSET_MAX, position_id, value_id
from rucola.spark.sink_options import POSITION, SinkLayout, SinkOptions

BATCH_MESSAGES_MAX = 1_000
"""Largest number of messages in a request, so that even small messages are spread over the queues."""
_NOT_PACKED = frozenset({"queueId", "shardingKey", "liteTopic", "flag", "delayLevel", "delayMs", "deliverAt"})
_ALONE = frozenset({message_const.SHARDING_KEY, message_const.LITE_TOPIC})
_TEXTS = (("tags", message_const.TAGS), ("keys", message_const.KEYS))
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]


class PackedBatch(NamedTuple):
    """The body of one batch request.

    Attributes:
        first: index of its first row.
        rows: number of its rows, which are consecutive.
        body: the encoded messages.
    """

    first: int
    rows: int
    body: bytes

    def messages(self, topic: str) -> list[Message]:
        """Decodes the messages, with the ids that they have in the body."""
        made = []
        for body, flag, properties in members_of(self.body):
            message = Message(topic, body, flag=flag)
            message.properties = properties
            made.append(message)
        return made


class RowPacker:
    """Packs the rows of one task.

    Args:
        options: options of the sink.
        layout: the assignment of a row's fields to the parts of a message.
        scope: text that is part of every id.
        has_id: whether ids are made from the rows.

    Attributes:
        can_pack: whether rows with this layout can be packed at all.
    """

    def __init__(self, options: SinkOptions, layout: SinkLayout, scope: str, *, has_id: bool) -> None:
        self._fields = layout.fields
        self._id_field = layout.id_field
        self._scope = scope
        self._has_id = has_id
        self._batch_bytes_max = options.batch_bytes_max
        self._body_bytes_max = min(options.compress_over_bytes, options.message_bytes_max, options.batch_bytes_max)
        own = _NOT_PACKED - {"queueId"} if layout.has_position else _NOT_PACKED
        self.can_pack = bool(options.topic) and layout.queue_field is None and own.isdisjoint(layout.fields)
        self._new_ids = UniqueIds(bytes(4), os.getpid(), os.urandom(4), SystemClock())

    def pack(self, rows: pa.RecordBatch, properties: Sequence[dict[str, str]] | None) -> list[PackedBatch] | None:
        """Packs ``rows`` into requests, in order.

        Args:
            rows: the rows, of a layout that can be packed.
            properties: the properties of each row; None if only text columns contribute to them.

        Returns:
            The requests; None if the rows must become messages one by one.

        Raises:
            ConfigError: two rows have the same source position.
        """
        if not rows.num_rows:
            return None
        body = rows.column(self._fields["body"]).cast(pa.binary())
        if body.null_count:
            return None
        offsets, bodies = _parts(body)
        sizes = np.diff(offsets)
        if not sizes.min() > 0 or sizes.max() > self._body_bytes_max:
            return None
        found = self._texts(rows) if properties is None else _given_texts(properties)
        if found is None or np.diff(found[0]).max() > PACKED_PROPERTIES_BYTES_MAX:
            return None
        ids = self._ids(rows)
        if ids is None:
            return None
        packed, first = [], 0
        while first < rows.num_rows:
            last, request = pack_members(offsets, bodies, *found, ids, first, self._batch_bytes_max, BATCH_MESSAGES_MAX)
            packed.append(PackedBatch(first, last - first, request))
            first = last
        return packed

    def _texts(self, rows: pa.RecordBatch) -> tuple[Offsets, Bytes] | None:
        """Encodes the properties of each row from its text columns."""
        offsets, texts = np.zeros(rows.num_rows + 1, np.int32), np.empty(0, np.uint8)
        for field, name in _TEXTS:
            if field not in self._fields:
                continue
            column = rows.column(self._fields[field])
            given = mask_of(column.is_valid()).view(np.uint8) if column.null_count else np.empty(0, np.uint8)
            after = np.empty_like(offsets)
            written = append_property(offsets, texts, name.encode(), *_parts(column.cast(pa.binary())), given, after)
            if written is None:
                return None
            offsets, texts = after, np.frombuffer(written, np.uint8)
        return offsets, texts

    def _ids(self, rows: pa.RecordBatch) -> Bytes | None:
        if self._id_field is not None:
            values = rows.column(self._id_field).to_pylist()
            if None in values:
                return None
            return _joined([value_id(self._scope, value) for value in values])
        if self._has_id:
            return self._position_ids(rows)
        return _joined([self._new_ids.next() for _ in range(rows.num_rows)])

    def _position_ids(self, rows: pa.RecordBatch) -> Bytes | None:
        """The ``position_id`` of each row; rows of one queue share the first digits."""
        columns = [rows.column(self._fields[name]) for name in POSITION]
        if any(column.null_count for column in columns):
            return None
        topics, brokers = (column.dictionary_encode() for column in columns[:2])
        queue_ids, places = (_numbers(column) for column in columns[2:])
        if places.min() < 0 or places.max() >= OFFSET_MAX or queue_ids.min() < 0:
            return None
        group = _numbers(topics.indices) * len(brokers.dictionary) + _numbers(brokers.indices)
        _, firsts, queues = np.unique(
            group * (int(queue_ids.max()) + 1) + queue_ids, return_index=True, return_inverse=True
        )
        if len(np.unique(queues * OFFSET_MAX + places)) < len(places):
            raise same_position()
        heads = [
            position_id(self._scope, columns[0][at].as_py(), columns[1][at].as_py(), int(queue_ids[at]), 0)
            for at in firsts.tolist()
        ]
        ids = _joined(heads).reshape(-1, ID_BYTES)[queues]
        for place, shift in OFFSET_DIGITS:
            ids[:, place] = _HEX[(places >> shift) & 0xF]
        return ids.reshape(-1)


def same_position() -> ConfigError:
    """The error for two rows with the same source position; consumers would drop one of their messages as a repeat."""
    return ConfigError(
        "idColumn", "", "a column that distinguishes rows, because several rows have the same source position"
    )


def _given_texts(properties: Sequence[dict[str, str]]) -> tuple[Offsets, Bytes] | None:
    if any(not _ALONE.isdisjoint(own) for own in properties):
        return None
    try:
        return _parts(from_bytes([properties_text(own).encode() for own in properties], pa.binary()))
    except (ClientError, UnicodeEncodeError):
        return None


def _parts(column: pa.Array) -> tuple[Offsets, Bytes]:
    """Offsets and values of a binary array."""
    _, offsets, values = column.buffers()
    return (
        np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset),
        np.frombuffer(values, np.uint8) if values is not None and values.size else np.empty(0, np.uint8),
    )


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    """The numbers of an integer array without nulls."""
    kind: Any = column.type.to_pandas_dtype()
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * column.type.bit_width // 8).astype(
        np.int64
    )


def _joined(ids: list[str]) -> Bytes:
    return np.frombuffer("".join(ids).encode(), np.uint8)
