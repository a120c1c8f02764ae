"""The rows of a raw table.

A row covers a stretch of a segment: a record of any topic (including system topics, such as that of half messages), the
blank record at the end of a segment, or bytes that are not a record. A blank record, and bytes that are not a record,
are stored without the zeros at their end. Other rows are files of ``config``, the list of deleted
topics, or the sizes of files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rucola.arrow.ranges import FileSpan
from rucola.arrow.read_options import ReadOptions, Subscription
from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.formats.checksum import crc32
from rucola.formats.message import walk_records
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files

if TYPE_CHECKING:
    import pyarrow as pa

RECORD, BLANK, BYTES = "record", "blank", "bytes"
"""Kinds of rows that cover bytes of the log."""
LOG_PART, TAIL_PART, CONFIG_PART, DELETED_PART = "log", "tail", "config", "deleted"
"""Kinds of data files; another is ``SIZES``. All but the first kind are replaced when their content changes."""
CHUNK_BYTES = 4 << 20
"""Largest number of bytes that one row of kind ``BYTES`` covers."""
BATCH_ROWS = 4096
BATCH_BYTES = 8 << 20
CHECK_PHYSICAL_OFFSET = 4
RECORD_COLUMNS = ("topic", "queueId", "queueOffset", "storeTimestamp", "physicalOffset", "storeSize", "record")
_LOG = "#log"


@dataclass(frozen=True)
class Stretch:
    """Bytes of one segment.

    Attributes:
        part: kind of the data file that gets the bytes.
        segment: the file of the log.
        start: physical offset of the first byte.
        end: physical offset after the last byte.
        digest: SHA-256 of the bytes of a tail; empty for other stretches.
    """

    part: str
    segment: FileSpan
    start: int
    end: int
    digest: str = ""

    def partition(self, broker_name: str) -> dict[str, str]:
        """The partition of the data file that gets the bytes."""
        found = {"part": self.part, "broker": broker_name, "segment": str(self.segment.start)}
        found["segmentBytes"] = str(self.segment.size)
        return found | ({"sha256": self.digest} if self.digest else {})


def row_schema() -> pa.Schema:
    """The columns of the rows."""
    import pyarrow as pa

    return pa.schema(
        {
            "kind": pa.string(),
            "segment": pa.int64(),
            "physicalOffset": pa.int64(),
            "size": pa.int64(),
            "topic": pa.string(),
            "queueId": pa.int32(),
            "queueOffset": pa.int64(),
            "storeTimestamp": pa.timestamp("us", tz="UTC"),
            "record": pa.binary(),
            "name": pa.string(),
        }
    )


def raw_schema() -> pa.Schema:
    """The columns of a raw table: those of the rows, and those that have one value in each file."""
    import pyarrow as pa

    schema = row_schema()
    for name, kind in {
        "part": pa.string(),
        "broker": pa.string(),
        "segmentBytes": pa.int64(),
        "sha256": pa.string(),
    }.items():
        schema = schema.append(pa.field(name, kind))
    return schema


def stretch_rows(stretch: Stretch, broker_name: str) -> Iterator[pa.RecordBatch]:
    """All bytes of a stretch as rows. Runs in tasks.

    Raises:
        DiskError: the file is gone, or cannot be read.
    """
    span = stretch.segment
    if not span.size:
        yield _bytes_row(BYTES, span.start, span.start, 0, b"")
        return
    files = Files()
    files.hold(span.path.rpartition("/")[0])
    segment = files.map_file(span.path, span.size, writable=False)
    try:
        position, limit = stretch.start - span.start, stretch.end - span.start
        kind = BYTES
        if stretch.part == LOG_PART:
            walk = _Walk(segment, span, broker_name)
            yield from walk.batches(position, limit)
            position, kind = walk.position, BLANK if walk.is_blank else BYTES
        while position < limit:
            end = limit if kind == BLANK else min(limit, position + CHUNK_BYTES)
            content = bytes(segment.view[position:end]).rstrip(b"\0")
            yield _bytes_row(kind, span.start, span.start + position, end - position, content)
            position = end
    finally:
        segment.close()


class _Walk:
    """Walks the records of a segment.

    Attributes:
        position: end of the records read so far, relative to the start of the segment.
        is_blank: whether a blank record begins at ``position``.
    """

    def __init__(self, segment: FileMap, span: FileSpan, broker_name: str) -> None:
        from rucola.arrow.columns import BatchBuilder, arrow_schema
        from rucola.arrow.schema import all_columns

        options = ReadOptions(store_path=span.path, subscription=Subscription(topics=(_LOG,)), include_record=True)
        columns = {column.name: column for column in all_columns(options)}
        schema = arrow_schema(columns[name] for name in RECORD_COLUMNS)
        self._builder = BatchBuilder(options, RECORD_COLUMNS, schema, broker_name)
        self._segment, self._span = segment, span
        self._table = new_table(BATCH_ROWS)
        self.position = 0
        self.is_blank = False

    def batches(self, position: int, limit: int) -> Iterator[pa.RecordBatch]:
        """Yields the records from ``position`` up to ``limit``, or up to the first bytes that are not a record."""
        from rucola.arrow.rows import Rows

        segment, self.position = self._segment, position
        stop = int(WalkStop.TABLE_FULL)
        while stop == WalkStop.TABLE_FULL and self.position < limit:
            count, end, stop = walk_records(
                segment.buffer, segment.view, self.position, limit, self._span.start,
                self._table, BATCH_ROWS, crc32, CHECK_PHYSICAL_OFFSET,
            )  # fmt: skip
            if end - self.position > BATCH_BYTES and count > 1:
                count, end = self._within_bytes(count)
                stop = int(WalkStop.TABLE_FULL)
            if count:
                rows = Rows(segment.buffer, self._table, count, walked=True)
                for batch in self._builder.batches(rows):
                    yield self._as_raw(batch)
            self.position = end
        self.is_blank = stop == WalkStop.BLANK

    def _within_bytes(self, count: int) -> tuple[int, int]:
        """Returns how many of ``count`` rows fit in about ``BATCH_BYTES``, at least 1, and the position after them."""
        starts = self._table[int(RecordColumn.RECORD_POS) :: ROW_WIDTH][:count]
        kept = max(1, bisect_right(starts, self.position + BATCH_BYTES) - 1)
        return kept, starts[kept]

    def _as_raw(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        count = batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns["size"] = columns.pop("storeSize")
        columns["kind"] = pa.repeat(pa.scalar(RECORD), count)
        columns["segment"] = pa.repeat(pa.scalar(self._span.start), count)
        columns["name"] = pa.nulls(count, pa.string())
        schema = row_schema()
        return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _bytes_row(
    kind: str, segment: int, physical_offset: int, size: int, content: bytes, name: str = ""
) -> pa.RecordBatch:
    import pyarrow as pa

    known = {
        "kind": kind,
        "segment": segment,
        "physicalOffset": physical_offset,
        "size": size,
        "record": content,
        "name": name,
    }
    return pa.RecordBatch.from_pylist([known], schema=row_schema())


def content_rows(kind: str, contents: Mapping[str, bytes]) -> Iterator[pa.RecordBatch]:
    """Rows with whole contents, by name."""
    for name, content in contents.items():
        yield _bytes_row(kind, 0, 0, len(content), content, name)


def digest_of(stretch: Stretch) -> str:
    """SHA-256 of the bytes of a tail, which is read in chunks."""
    digest, files = hashlib.sha256(), Files()
    files.hold(stretch.segment.path.rpartition("/")[0])
    for at in range(stretch.start, stretch.end, CHUNK_BYTES):
        length = min(CHUNK_BYTES, stretch.end - at)
        digest.update(files.read_at(stretch.segment.path, at - stretch.segment.start, length))
    return digest.hexdigest()
