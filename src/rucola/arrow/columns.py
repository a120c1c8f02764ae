"""Builds columns from the rows of a record table, and record batches from the requested columns.

Imported inside ``read()`` only, like ``rucola.arrow.rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rucola.arrow.bodies import compressed_rows, decompressed
from rucola.arrow.buffers import Mask, bits, from_bytes, from_mask, from_numbers, numbers_of
from rucola.arrow.column_block import BlockColumn, ColumnBlock, FilledColumns, no_text
from rucola.arrow.read_options import BodyForm, ReadOptions, SchemaStyle
from rucola.arrow.rows import HOST_BYTES_V4, Rows, host_texts, message_ids, text, text_of_host, validity
from rucola.arrow.schema import LITE_COLUMNS, Column
from rucola.common.columns import RecordColumn
from rucola.common.sysflag import MessageSysFlag
from rucola.formats.column_plan import TIMES_MS, PlanKind, Planned

TIMESTAMP = pa.timestamp("us", tz="UTC")
MICROS = 1000
ARROW_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": TIMESTAMP,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<struct<key:string,value:binary>>": pa.list_(
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    ),
}
"""The Arrow type for each type name in Spark's DDL."""
BODY_COLUMNS = frozenset(("body", "value"))
PLAIN_BYTES = 16 << 20
"""Largest total size in bytes of the decompressed bodies in a batch; only a single body may exceed it. A limit is
needed, because a body of 10 KiB can become 64 MiB.
"""
LITE_NAMES = frozenset(column.name.lower() for column in LITE_COLUMNS)
LOG_APPEND_TIME = 1
"""Kafka's timestampType for times set by the broker."""
PAIR_END = b"\x02"
NAME_END = b"\x01"

Builder = Callable[[FilledColumns, int, Rows], pa.Array]
"""Builds a column of the rows. The number is the column's number in the block, if kernels write it."""
Readiness = Callable[[FilledColumns, int, Rows], bool]
"""Whether the column that kernels wrote is the column of the rows; if not, it must be built."""


def micros_of(time_ms: int) -> int | None:
    """A time in milliseconds as the value of a column of times; None if no such column can have it."""
    return time_ms * MICROS if TIMES_MS[0] <= time_ms <= TIMES_MS[1] else None


class ColumnWay(NamedTuple):
    """How a column gets its values."""

    planned: tuple[Planned, ...]
    """What kernels do for the column while the batch is collected. Only the last of them makes a column."""
    build: Builder
    is_ready: Readiness | None = None
    """None: always, if kernels write the column."""
    repeated: Callable[[Rows], bytes] = no_text
    """Returns the text of all rows, for the kind ``REPEATED``."""


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of ``columns``; Spark translates their types in the same way."""
    return pa.schema([pa.field(column.name, ARROW_TYPES[column.ddl_type]) for column in columns])


class BatchBuilder:
    """Builds the record batches of one query.

    Args:
        options: style of the columns.
        names: columns to build, in order.
        schema: the query's Arrow schema; Spark refuses a batch with any other schema.
        broker_name: value of column ``brokerName``.

    Attributes:
        needs_lite: whether the rows must have their lite topics.
    """

    def __init__(self, options: ReadOptions, names: Iterable[str], schema: pa.Schema, broker_name: str) -> None:
        ways = {name.lower(): way for name, way in _ways(options, broker_name).items()}
        self.schema = schema
        chosen = tuple(name.lower() for name in names)
        self._builders: list[tuple[Builder, int]] = []
        self._doubtful: list[tuple[Readiness, int]] = []
        block: list[BlockColumn] = []
        for name, field in zip(chosen, schema, strict=True):
            way = ways[name]
            self._builders.append((way.build, len(block)))
            if way.is_ready is not None:
                self._doubtful.append((way.is_ready, len(block)))
            block.extend(BlockColumn(entry, field, way.repeated) for entry in way.planned)
        self._block = ColumnBlock(block)
        self._decompresses = options.body is BodyForm.DECOMPRESSED and not BODY_COLUMNS.isdisjoint(chosen)
        self._splits_properties = any(ways[name].build in SPLITTERS for name in chosen)
        self.needs_lite = not LITE_NAMES.isdisjoint(chosen)
        self._skips_damaged = options.null_bodies or not options.fail_on_data_loss

    def begin(self) -> None:
        """Begins a scan; drops what a scan that failed has left."""
        self._block.begin()

    def collect(self, rows: Rows, rows_max: int, bytes_max: int) -> None:
        """Copies what can be copied early from the rows that the batch has got since the last call.

        Args:
            rows: all rows of the batch so far.
            rows_max: number of rows that the batch may get in the end.
            bytes_max: largest size in bytes of the part of the log that the batch comes from.
        """
        self._block.fill(rows, rows_max, bytes_max)

    def batches(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Yields all ``rows`` as one batch, or as several if their decompressed bodies exceed ``PLAIN_BYTES``.

        Args:
            rows: all rows of the batch; either all or none of them were given to ``collect``.

        Raises:
            FormatError: a compressed body is damaged, and ``failOnDataLoss`` is set.
        """
        filled = self._block.take(rows)
        if self._splits_properties:
            rows.leave_out_checksums()
        compressed = compressed_rows(rows) if self._decompresses else None
        if compressed is None:
            yield self._build(rows, filled)
            return
        plain: list[bytes | None] = []
        first, size = 0, 0
        for number, body in decompressed(rows, compressed, self._skips_damaged):
            size += len(body or b"")
            if size > PLAIN_BYTES and number > first:
                yield self._build_plain(rows.part(first, number), filled, plain)
                first, size, plain = number, len(body or b""), []
            plain.append(body)
        yield self._build_plain(rows.part(first, rows.count) if first else rows, filled, plain)

    def _build_plain(self, rows: Rows, filled: FilledColumns, plain: list[bytes | None]) -> pa.RecordBatch:
        """Builds one batch; ``plain`` has the decompressed bodies of the compressed rows, None for a damaged body."""
        made = from_bytes([body or b"" for body in plain], pa.binary())
        if None in plain:
            kept = np.array([body is not None for body in plain], np.bool_)
            made = pa.Array.from_buffers(pa.binary(), len(plain), [bits(kept), *made.buffers()[1:]])
        return self._build(rows.with_plain(made), filled)

    def _build(self, rows: Rows, filled: FilledColumns) -> pa.RecordBatch:
        if self._is_complete(rows, filled):
            return filled.batch
        columns = [build(filled, number, rows) for build, number in self._builders]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _is_complete(self, rows: Rows, filled: FilledColumns) -> bool:
        """Whether kernels wrote all columns as they must be. A part of a batch has decompressed bodies, so it is never
        complete.
        """
        return all(is_ready(filled, number, rows) for is_ready, number in self._doubtful)


def _ways(options: ReadOptions, broker_name: str) -> dict[str, ColumnWay]:
    """How to build every column of the chosen style, by column name."""
    if options.schema_style is SchemaStyle.KAFKA:
        return {
            "key": _bytes(RecordColumn.KEYS_POS, RecordColumn.KEYS_LEN),
            "value": _body(),
            "topic": _topic(),
            "partition": _int32(RecordColumn.QUEUE_ID),
            "offset": _int64(RecordColumn.QUEUE_OFFSET),
            "timestamp": _timestamp(RecordColumn.STORE_TIMESTAMP),
            "timestampType": _built(_log_append_time),
            "headers": _built(properties_as_headers),
        }
    return {
        "topic": _topic(),
        "flag": _int32(RecordColumn.MESSAGE_FLAG),
        "body": _body(),
        "properties": _built(properties_as_map) if options.properties_as_map else _json(),
        "brokerName": _same(broker_name),
        "queueId": _int32(RecordColumn.QUEUE_ID),
        "queueOffset": _int64(RecordColumn.QUEUE_OFFSET),
        "bornTimestamp": _timestamp(RecordColumn.BORN_TIMESTAMP),
        "storeTimestamp": _timestamp(RecordColumn.STORE_TIMESTAMP),
        "msgId": _message_id(),
        "tags": _text(RecordColumn.TAGS_POS, RecordColumn.TAGS_LEN),
        "keys": _text(RecordColumn.KEYS_POS, RecordColumn.KEYS_LEN),
        "sysFlag": _int32(RecordColumn.SYS_FLAG),
        "reconsumeTimes": _int32(RecordColumn.RECONSUME_TIMES),
        "bornHost": _host(RecordColumn.BORN_HOST_POS, MessageSysFlag.BORN_HOST_V6),
        "storeHost": _host(RecordColumn.STORE_HOST_POS, MessageSysFlag.STORE_HOST_V6),
        "bodyCrc": _int32(RecordColumn.BODY_CRC),
        "physicalOffset": _int64(RecordColumn.PHYSICAL_OFFSET),
        "storeSize": _int32(RecordColumn.RECORD_SIZE),
        "preparedTransactionOffset": _int64(RecordColumn.PREPARED_TRANSACTION_OFFSET),
        "liteTopic": _text(RecordColumn.LITE_POS, RecordColumn.LITE_LEN),
        "liteOffset": _built(lite_offsets),
        "record": _bytes(RecordColumn.RECORD_POS, RecordColumn.RECORD_SIZE),
    }


def bodies(filled: FilledColumns, number: int, rows: Rows) -> pa.Array:
    """The bodies; if ``plain_bodies`` is set, its entries replace the compressed bodies."""
    stored = filled.array(number, rows)
    mask = None if rows.plain_bodies is None else compressed_rows(rows)
    return stored if mask is None else pc.replace_with_mask(stored, from_mask(mask), rows.plain_bodies)


def properties_as_map(_filled: FilledColumns, _number: int, rows: Rows) -> pa.Array:
    """The properties as map<string,string>."""
    offsets, names, values = split_properties(rows)
    return pa.MapArray.from_arrays(offsets, text(names), text(values))


def properties_as_headers(_filled: FilledColumns, _number: int, rows: Rows) -> pa.Array:
    """The properties as Kafka's headers."""
    offsets, names, values = split_properties(rows)
    kind = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    pairs = pa.StructArray.from_arrays([text(names), values], fields=list(kind))
    return pa.ListArray.from_arrays(offsets, pairs)


def lite_offsets(_filled: FilledColumns, _number: int, rows: Rows) -> pa.Array:
    """The offsets in lite topics; null for a message in none."""
    offsets = np.ascontiguousarray(rows.numbers(RecordColumn.LITE_OFFSET))
    return pa.Array.from_buffers(pa.int64(), rows.count, [validity(offsets >= 0), pa.py_buffer(offsets)])


SPLITTERS = (properties_as_map, properties_as_headers)
"""The builders that use the stored text of the properties."""


def split_properties(rows: Rows) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Returns the list offsets, the names and the values of all properties, by RocketMQ's rules.

    A pair counts only if it has a name and a value. If a name occurs twice in a message, the last value counts
    (RocketMQ 5.3.3, MessageDecoder#string2messageProperties).
    """
    pieces = pc.split_pattern(rows.properties_text, PAIR_END)
    texts = pieces.flatten()
    name_lengths = numbers_of(pc.find_substring(texts, NAME_END), np.int32)
    lengths = numbers_of(pc.binary_length(texts), np.int32)
    keep = (name_lengths >= 1) & (lengths > name_lengths + 1)
    pairs = pc.split_pattern(texts.filter(from_mask(keep)), NAME_END, max_splits=1).flatten()
    numbers = np.arange(len(pairs), dtype=np.int32)
    names, values = (pairs.take(from_numbers(numbers[first::2], pa.int32())) for first in (0, 1))
    owner = np.repeat(np.arange(rows.count), np.diff(numbers_of(pieces.offsets, np.int32)))[keep]
    last = _last_of_each(owner, names)
    if not last.all():
        names, values, owner = names.filter(from_mask(last)), values.filter(from_mask(last)), owner[last]
    offsets = np.zeros(rows.count + 1, dtype=np.int32)
    np.cumsum(np.bincount(owner, minlength=rows.count), out=offsets[1:])
    return from_numbers(offsets, pa.int32()), names, values


def _last_of_each(owner: npt.NDArray[np.int64], names: pa.Array) -> Mask:
    """Marks the pairs whose name does not occur again later in the same message."""
    codes = numbers_of(names.dictionary_encode().indices, np.int32).astype(np.int64)
    pair = owner * (int(codes.max(initial=0)) + 1) + codes
    _, from_behind = np.unique(pair[::-1], return_index=True)
    last = np.zeros(len(pair), dtype=np.bool_)
    last[len(pair) - 1 - from_behind] = True
    return last


def _built(build: Builder) -> ColumnWay:
    return ColumnWay((), build, lambda _filled, _number, _rows: False)


def _bytes(pos_column: RecordColumn, len_column: RecordColumn) -> ColumnWay:
    return ColumnWay((Planned(PlanKind.BYTES, pos_column, len_column),), FilledColumns.array)


def _text(pos_column: RecordColumn, len_column: RecordColumn) -> ColumnWay:
    return ColumnWay((Planned(PlanKind.TEXT, pos_column, len_column),), FilledColumns.array, _is_ascii)


def _is_ascii(filled: FilledColumns, number: int, _rows: Rows) -> bool:
    return filled.is_ascii(number)


def _int32(column: RecordColumn) -> ColumnWay:
    return ColumnWay((Planned(PlanKind.INT32, column),), FilledColumns.array)


def _int64(column: RecordColumn) -> ColumnWay:
    return ColumnWay((Planned(PlanKind.INT64, column),), FilledColumns.array)


def _timestamp(column: RecordColumn) -> ColumnWay:
    """Converts the store's milliseconds to Spark's microseconds, with integers only. What is no time of the years 1 to
    9999 becomes null: a sender may have any clock.
    """

    def build(filled: FilledColumns, number: int, rows: Rows) -> pa.Array:
        values = filled.array(number, rows)
        if not filled.is_odd(number):
            return values
        times = rows.numbers(column)
        fits = bits((times >= TIMES_MS[0]) & (times <= TIMES_MS[1]))
        return pa.Array.from_buffers(TIMESTAMP, len(values), [fits, pa.py_buffer(numbers_of(values, np.int64))])

    planned = Planned(PlanKind.INT64, column, MICROS)
    return ColumnWay((planned,), build, lambda filled, number, _rows: not filled.is_odd(number))


def _json() -> ColumnWay:
    planned = Planned(PlanKind.JSON, RecordColumn.PROPERTIES_POS, RecordColumn.PROPERTIES_LEN)
    return ColumnWay((planned,), FilledColumns.array)


def _body() -> ColumnWay:
    planned = Planned(PlanKind.BYTES, RecordColumn.BODY_POS, RecordColumn.BODY_LEN)
    return ColumnWay((planned,), bodies, lambda _filled, _number, rows: rows.plain_bodies is None)


def _message_id() -> ColumnWay:
    def build(filled: FilledColumns, number: int, rows: Rows) -> pa.Array:
        return message_ids(rows, filled.array(number, rows))

    def is_ready(filled: FilledColumns, number: int, _rows: Rows) -> bool:
        return filled.is_ascii(number) and not filled.has_nulls(number)

    planned = Planned(PlanKind.TEXT, RecordColumn.UNIQ_KEY_POS, RecordColumn.UNIQ_KEY_LEN)
    return ColumnWay((planned,), build, is_ready)


def _topic() -> ColumnWay:
    def build(filled: FilledColumns, number: int, rows: Rows) -> pa.Array:
        if rows.facts.only_topic is None:
            return rows.text_of(RecordColumn.TOPIC_POS, RecordColumn.TOPIC_LEN)
        return filled.array(number, rows)

    return ColumnWay(
        (Planned(PlanKind.REPEATED),),
        build,
        lambda _filled, _number, rows: rows.facts.only_topic is not None,
        lambda rows: (rows.facts.only_topic or b"").decode("utf-8", "replace").encode(),
    )


def _host(pos_column: RecordColumn, v6: MessageSysFlag) -> ColumnWay:
    def is_ready(filled: FilledColumns, number: int, rows: Rows) -> bool:
        return filled.is_same(number) and not rows.facts.sys_flags & int(v6)

    def build(filled: FilledColumns, number: int, rows: Rows) -> pa.Array:
        return filled.array(number + 1, rows) if is_ready(filled, number, rows) else host_texts(rows, pos_column, v6)

    def first_host(rows: Rows) -> bytes:
        start = rows.table[pos_column]
        return text_of_host(bytes(memoryview(rows.source)[start : start + HOST_BYTES_V4])).encode()

    planned = (Planned(PlanKind.SAME, pos_column, HOST_BYTES_V4), Planned(PlanKind.REPEATED))
    return ColumnWay(planned, build, is_ready, first_host)


def _same(value: str) -> ColumnWay:
    return ColumnWay((Planned(PlanKind.REPEATED),), FilledColumns.array, repeated=lambda _rows: value.encode())


def _log_append_time(_filled: FilledColumns, _number: int, rows: Rows) -> pa.Array:
    return from_numbers(np.full(rows.count, LOG_APPEND_TIME, np.int32), pa.int32())
