"""Writes the Parquet files of a table, in the task that has read the rows.

Rows go to one file for each topic and day. In a row group, rows are sorted by broker, queue, life and offset, so that
readers skip pages by their statistics of offset and time. Keys and ids are spread over all row groups in any order, so
their minimum and maximum select nothing; these columns have Bloom filters instead. A file gets its name only when it is
complete and synced; no reader sees it before a commit names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rucola.arrow.buffers import from_mask, from_numbers, mask_of, numbers_of
from rucola.errors import ConfigError
from rucola.lake.columns import DAY, LIFE
from rucola.lake.statistics import file_statistics
from rucola.lake.table_log import DataFile
from rucola.places.place import NewFile, Place

ORDER = ("brokerName", "queueId", LIFE, "queueOffset")
BLOOM_COLUMNS = ("keys", "msgId")
BLOOM_ERRORS = 0.01
HAS_BLOOM_FILTERS = int(pa.__version__.partition(".")[0]) >= 26
"""Whether PyArrow writes Bloom filters. Without them, a lookup of a key reads whole columns."""
REPETITIVE = ("topic", DAY, "brokerName", "tags", "bornHost", "storeHost")
"""Columns for which dictionary encoding is tried."""
GROUP_ROWS = 131_072
GROUP_BYTES = 32 << 20
HELD_BYTES = 96 << 20
"""The rows for the next row groups of all files wait in memory. When they reach this size in bytes, the largest of
these row groups is written.
"""
_DAY_US = 86_400_000_000
_NAME_BYTES = 255
"""Longest name of a directory on local disks, in bytes."""
_NO_DAY = -1 << 31
"""Stands for the day of a store time that is null."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Hive's and Spark's name of null in the name of a directory."""
_EPOCH = date(1970, 1, 1)
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""Characters that Hive and Spark escape in the name of a directory."""


@dataclass
class _Part:
    """A file that is being written, and the rows for its next row group."""

    partition: dict[str, str]
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    held: int = 0
    path: str = ""
    file: NewFile | None = None
    writer: pq.ParquetWriter | None = None
    metadata: list[pq.FileMetaData] = field(default_factory=list)
    written: int = 0


class PartitionedWriter:
    """Writes rows into new files of a table.

    Args:
        place: where the table is.
        schema: the columns of the files, in order.
        fixed: the partition of all rows, which are then not sorted; None partitions the rows by topic and day.
    """

    def __init__(
        self,
        place: Place,
        schema: pa.Schema,
        fixed: Mapping[str, str] | None = None,
    ) -> None:
        self._place = place
        self._schema = schema
        self._fixed = fixed
        self._bloom = [name for name in BLOOM_COLUMNS if name in schema.names]
        self._order = [name for name in ORDER if name in schema.names] if fixed is None else []
        self._parts: dict[tuple[str, int], _Part] = {}
        self._held = 0
        self._done: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows. The batch has the columns of the schema, in order, except the day."""
        if not batch.num_rows:
            return
        if self._fixed is not None:
            self._add(("", 0), self._with_fixed(batch, self._fixed))
            return
        times = batch.column("storeTimestamp")
        days = numbers_of(times, np.int64) // _DAY_US
        if times.null_count:
            days[mask_of(times.is_null())] = _NO_DAY
        topics = batch.column("topic").dictionary_encode()
        codes = numbers_of(topics.indices, np.int32).astype(np.int64)
        names = topics.dictionary.to_pylist()
        at = self._schema.names.index(DAY)
        for code, day in np.unique(np.stack([codes, days], axis=1), axis=0).tolist():
            chosen = (codes == code) & (days == day)
            part = batch if chosen.all() else batch.filter(from_mask(chosen))
            column = from_numbers(np.full(part.num_rows, day, np.int32), pa.date32())
            if day == _NO_DAY:
                column = pa.nulls(part.num_rows, pa.date32())
            self._add((names[code], day), part.add_column(at, self._schema.field(at), column))

    def finish(self) -> list[DataFile]:
        """Completes all files and makes them durable; returns every file that this writer has written."""
        for part in self._parts.values():
            self._flush(part)
            self._complete(part)
        self._parts.clear()
        return self._done

    def abandon(self) -> None:
        """Deletes all files that this writer has written."""
        for part in self._parts.values():
            if part.file is not None:
                part.file.abandon()
        for one in self._done:
            self._place.remove(one.path)
        self._parts.clear()
        self._done.clear()

    def _add(self, key: tuple[str, int], batch: pa.RecordBatch) -> None:
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = _Part(self._partition(*key))
        part.batches.append(batch)
        part.rows += batch.num_rows
        size = batch.nbytes
        part.held += size
        self._held += size
        if part.rows >= GROUP_ROWS or part.held >= GROUP_BYTES:
            self._flush(part)
        elif self._held >= HELD_BYTES:
            self._flush(max(self._parts.values(), key=lambda one: one.held))

    def _with_fixed(self, batch: pa.RecordBatch, fixed: Mapping[str, str]) -> pa.RecordBatch:
        """The batch, and the columns of the partition that it lacks."""
        for field_ in self._schema:
            if field_.name not in batch.schema.names:
                value = pa.scalar(fixed.get(field_.name)).cast(field_.type)
                batch = batch.append_column(field_, pa.repeat(value, batch.num_rows))
        return batch

    def _partition(self, topic: str, day: int) -> dict[str, str]:
        if self._fixed is not None:
            return dict(self._fixed)
        return {"topic": topic} | ({} if day == _NO_DAY else {DAY: (_EPOCH + timedelta(days=day)).isoformat()})

    def _flush(self, part: _Part) -> None:
        """Writes the rows that wait for ``part`` as one row group."""
        if not part.rows:
            return
        table = pa.Table.from_batches(part.batches)
        if self._order and not _is_sorted(table, self._order):
            table = table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in self._order]))
        if part.writer is None:
            self._open(part, table.num_rows)
        assert part.writer is not None
        part.writer.write_table(table.cast(self._schema), row_group_size=table.num_rows)
        part.written += part.rows
        self._held -= part.held
        part.batches, part.rows, part.held = [], 0, 0

    def _open(self, part: _Part, rows: int) -> None:
        folder = "/".join(f"{name}={escaped(value)}" for name, value in part.partition.items())
        if self._fixed is None and DAY not in part.partition:
            folder += f"/{DAY}={_NULL}"
        if self._place.is_local and (long := [name for name in folder.split("/") if len(name.encode()) > _NAME_BYTES]):
            name, _, value = long[0].partition("=")
            raise ConfigError(
                name, value, f"a name that takes at most {_NAME_BYTES - len(name) - 1} bytes as written here"
            )
        part.path = f"{folder}/{uuid4().hex}.parquet"
        part.file = self._place.new_file(part.path)
        part.writer = pq.ParquetWriter(
            part.file.stream,
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in REPETITIVE if name in self._schema.names],
            write_page_index=True,
            write_page_checksum=True,
            metadata_collector=part.metadata,
            **self._bloom_options(rows),
        )

    def _bloom_options(self, rows: int) -> dict[str, Any]:
        """Arguments for the Bloom filters of a file whose first row group has ``rows`` rows."""
        if not HAS_BLOOM_FILTERS or not self._bloom:
            return {}
        return {"bloom_filter_options": {name: {"ndv": rows, "fpp": BLOOM_ERRORS} for name in self._bloom}}

    def _complete(self, part: _Part) -> None:
        if part.writer is None or part.file is None:
            return
        part.writer.close()
        size, part.file = part.file.complete(), None
        statistics = file_statistics(part.metadata[0])
        self._done.append(DataFile(part.path, part.written, size, part.partition, statistics))


def escaped(value: str) -> str:
    """A partition value escaped for the name of a directory, by the rules of Hive and Spark."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value)


def _is_sorted(table: pa.Table, order: Sequence[str]) -> bool:
    """Whether all rows are from the same queue and in queue order, as in a queue scan."""
    *same, last = order
    for name in same:
        column = table.column(name)
        if pc.any(pc.not_equal(column, column[0])).as_py():
            return False
    numbers = table.column(last).combine_chunks()
    return bool((np.diff(numbers_of(numbers, np.int64)) >= 0).all())
