"""The log of a Delta table, through delta-rs: any engine that reads Delta reads the table.

Archived offsets are stored as the versions of Delta's application transactions. Each queue has one transaction for its
archived offset, and two for store time and physical offset of its last archived record. Delta commits the transactions
in one step with the files. Of two concurrent commits with the same application transaction, Delta refuses the second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from rucola.arrow.offsets import Mark, StreamOffsets, queue_text
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, TableConflictError
from rucola.runtime.clock import Clock, SystemClock
from rucola.spark.archive.columns import DAY
from rucola.spark.archive.table_files import parquet_file, table_root
from rucola.spark.archive.table_log import Change, DataFile, Snapshot, TableKind

PARTITIONS = ["topic", DAY]
STATISTICS = ("queueId", "queueOffset", "physicalOffset", "storeTimestamp", "tags")
"""For each file, the log has the minimum and maximum of these columns, so that engines can skip files."""
RETENTION_HOURS = 24
REMOVALS = "rucola#removals"
"""Application id of the commits that remove files."""


class DeltaLog:
    """``TableLog`` of a Delta table.

    Args:
        root: directory of the table; the first commit creates it.
        clock: source of time.
    """

    def __init__(self, root: str, clock: Clock | None = None) -> None:
        self.root = table_root(root)
        self._clock = clock or SystemClock()

    def snapshot(self, queues: Iterable[MessageQueue] = ()) -> Snapshot:
        """The newest version, with the archived offsets of ``queues``.

        Raises:
            ConfigError: another writer has marked single rows as deleted (deletion vectors). Rucola and Spark's Parquet
                reader read the data files directly and would still return these rows.
        """
        from deltalake import DeltaTable

        now = self._clock.wall_ms()
        if not DeltaTable.is_deltatable(self.root):
            return Snapshot(-1, now, TableKind.MESSAGES, None, {}, StreamOffsets({}))
        table = DeltaTable(self.root)
        found = StreamOffsets({})
        for queue in queues:
            offset, time, place = (table.transaction_version(name) for name in _applications(queue))
            if offset is not None:
                found.offsets[queue] = offset
                if time is not None and place is not None:
                    found.marks[queue] = Mark(time, place)
        files = {one.path: one for one in _files(table.get_add_actions(flatten=True))}
        if table.deletion_vectors().read_all().num_rows:
            raise ConfigError("table", self.root, "a table without deletion vectors; purge the vectors first")
        schema: dict[str, Any] = json.loads(table.schema().to_json())
        return Snapshot(table.version(), now, TableKind.MESSAGES, schema, files, found)

    def commit(self, base: Snapshot, change: Change) -> int:
        """Commits the files and the application transactions as one version. A new schema is committed first, in a
        version of its own.

        Raises:
            TableConflictError: another commit has advanced the same queues, removed the same files, or changed the
                schema.
        """
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        if change.schema is not None and base.version < 0:
            try:
                DeltaTable.create(
                    self.root, Schema.from_json(json.dumps(change.schema)), mode="error", partition_by=PARTITIONS
                )
            except DeltaError as error:
                raise TableConflictError(self.root, 0) from error
        table = DeltaTable(self.root, version=max(0, base.version))
        if change.schema is not None and base.version >= 0:
            assert base.schema is not None
            known = {field["name"] for field in base.schema["fields"]}
            new = [field for field in change.schema["fields"] if field["name"] not in known]
            wanted = Schema.from_json(json.dumps({"type": "struct", "fields": new}))
            try:
                table.alter.add_columns(list(wanted.fields))
            except DeltaError as error:
                raise TableConflictError(self.root, base.version + 1) from error
        transactions = [Transaction(*one) for one in _transactions(change.offsets)]
        if change.removed:
            # delta-rs accepts two commits that remove the same file, but not two with the same application transaction.
            transactions.append(Transaction(REMOVALS, base.version + 1))
        try:
            table.create_write_transaction(
                [*self._added(change.added), *self._removed(change.removed)],
                "append",
                table.schema(),
                PARTITIONS,
                commit_properties=CommitProperties({"rucola.action": change.action}, None, transactions),
            )
        except CommitFailedError as error:
            raise TableConflictError(self.root, base.version + 1) from error
        return int(DeltaTable(self.root).version())

    def clean(self) -> int:
        """Deletes files that left the table at least a day ago, and files of killed runs that are at least a day old;
        returns the number of deleted files.
        """
        from deltalake import DeltaTable

        table = DeltaTable(self.root)
        return len(table.vacuum(RETENTION_HOURS, dry_run=False, enforce_retention_duration=False, full=True))

    def _added(self, files: Iterable[DataFile]) -> Iterator[Any]:
        from deltalake.transaction import AddAction

        for one in files:
            stats = json.dumps(file_statistics(self.root, one.path))
            yield AddAction(one.path, one.size, dict(one.partition), self._clock.wall_ms(), True, stats)

    def _removed(self, files: Iterable[DataFile]) -> Iterator[Any]:
        from deltalake.transaction import RemoveAction

        for one in files:
            yield RemoveAction(one.path, False, self._clock.wall_ms(), one.size, dict(one.partition))


def _applications(queue: MessageQueue) -> tuple[str, str, str]:
    """Application ids of a queue: for its archived offset, and for store time and physical offset of its last archived
    record.
    """
    name = f"rucola/{queue_text(queue)}"
    return name, f"{name}#time", f"{name}#place"


def _transactions(offsets: StreamOffsets) -> Iterator[tuple[str, int]]:
    for queue, offset in offsets.offsets.items():
        name, time, place = _applications(queue)
        yield name, offset
        if mark := offsets.marks.get(queue):
            yield time, mark.store_timestamp_ms
            yield place, mark.physical_offset


def _files(actions: Any) -> Iterator[DataFile]:
    import pyarrow as pa

    for row in pa.table(actions).to_pylist():
        partition = {"topic": row["partition.topic"], DAY: str(row[f"partition.{DAY}"])}
        yield DataFile(unquote(row["path"]), row["num_records"], row["size_bytes"], partition)


def file_statistics(root: str, path: str) -> dict[str, Any]:
    """The statistics of a data file in Delta's form."""
    with parquet_file(root, path) as file:
        metadata = file.metadata
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        columns = metadata.row_group(group)
        for number in range(columns.num_columns):
            column = columns.column(number)
            name, known = column.path_in_schema, column.statistics
            if name not in STATISTICS or known is None:
                continue
            nulls[name] = nulls.get(name, 0) + known.null_count
            if known.has_min_max:
                least[name] = min(least.get(name, known.min), known.min)
                greatest[name] = max(greatest.get(name, known.max), known.max)
    shown = ({name: _shown(value) for name, value in values.items()} for values in (least, greatest))
    return dict(zip(("minValues", "maxValues"), shown, strict=True)) | {
        "numRecords": metadata.num_rows,
        "nullCount": nulls,
    }


def _shown(value: Any) -> Any:
    """A value in its JSON form; a store time is written to the millisecond."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
