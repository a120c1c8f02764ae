"""The log of an Iceberg table, through PyIceberg.

The summary of each snapshot holds the archived offsets of all queues, so files and offsets change in one step. A commit
requires that the table is still at the snapshot for which the commit was planned.

The catalog is the user's, or a SQLite file beside the data. All writers must then be on one host, and readers elsewhere
use the metadata files.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from rucola.arrow.offsets import StreamOffsets
from rucola.errors import ConfigError, DiskError, TableConflictError
from rucola.lake.columns import DAY, arrow_of
from rucola.lake.format_claim import claim
from rucola.lake.iceberg_catalog import IcebergCatalog
from rucola.lake.table_demands import check_columns, check_not_null
from rucola.lake.table_log import PARTITIONS, STALE_S, Change, DataFile, Snapshot, TableKind, check_age, is_own_file
from rucola.lake.table_state import TableState, state_after
from rucola.places.place import Place
from rucola.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

FORMAT = "iceberg"
STATE, COMMIT, SCHEMA = "rucola.state", "rucola.commit", "rucola.schema"
RETRIES = "commit.retry.num-retries"
NO_RETRIES = {RETRIES: "0"}
"""PyIceberg must not retry a commit, because a retry would add messages that another commit has already archived."""


class IcebergLog:
    """``TableLog`` of an Iceberg table.

    Args:
        place: where the table is; the first commit creates it.
        catalog: knows the table.
        kind: kind of a new table, or the required kind of an existing one; None accepts an existing table of any kind.
        clock: source of time.
    """

    def __init__(
        self,
        place: Place,
        catalog: IcebergCatalog,
        kind: TableKind | None = TableKind.MESSAGES,
        clock: Clock | None = None,
    ) -> None:
        self.place = place
        self._catalog = catalog
        self._kind = kind
        self._clock = clock or SystemClock()
        self._url = place.root if "://" in place.root else f"file://{place.root}"

    def snapshot(self) -> Snapshot:
        """The newest state of the table; see ``TableLog``."""
        now = self._clock.wall_ms()
        self.place.check()
        table = self._catalog.load()
        if table is None:
            return Snapshot(-1, now, self._kind or TableKind.MESSAGES, None, {}, StreamOffsets({}))
        with self._understood():
            return self._read(table, now)

    def _read(self, table: Table, now: int) -> Snapshot:
        state = self._state(table)
        if self._kind not in (None, state.kind):
            raise ConfigError(
                "table", self.place.root, f"a table of kind {self._kind}; this one is of kind {state.kind}"
            )
        tasks = list(table.scan().plan_files())
        if table.current_snapshot() is not None:
            self._check(table, state.kind, tasks)
        files = {one.path: one for one in self._files(tasks, state.kind)}
        return Snapshot(
            _number(table), now, state.kind, json.loads(table.properties[SCHEMA]), files, state.offsets, state.lives
        )

    def commit(self, base: Snapshot, change: Change) -> int:
        """Makes a snapshot with the files and the archived offsets; see ``TableLog``."""
        check_age(base, self._clock.wall_ms())
        self.place.check()
        table = self._catalog.load()
        if table is None:
            table = self._created(change)
        if _number(table) != max(0, base.version):
            raise TableConflictError(self.place.root, _number(table))
        self._check_retries(table)
        commit = str(secrets.randbits(62))
        state = state_after(base, change)
        summary = {STATE: state.to_json().decode(), COMMIT: commit, "rucola.action": change.action}
        try:
            self._write_snapshot(table, base, change, summary)
        except Exception as error:
            newer = self._catalog.load()
            if newer is None or not _has(newer, commit):
                raise self._failure(newer, base, error) from error
            table = newer
        return _number(table)

    def clean(self, retention_s: float = STALE_S) -> int:
        """Deletes old data files of killed runs; see ``TableLog``.

        Files of older snapshots stay until Iceberg's own tools expire the snapshots.
        """
        table = self._catalog.load()
        if table is None:
            return 0
        state = self._state(table)
        known = {self._path(path) for path in table.inspect.all_files().column("file_path").to_pylist()}
        before, count = self._clock.wall_ms() - retention_s * 1000, 0
        for path, modified_ms in list(self.place.list_files()):
            inside = path.removeprefix("data/")
            if is_own_file(inside, state.kind) and path not in known and modified_ms < before:
                self.place.remove(path)
                count += 1
        return count

    def _write_snapshot(self, table: Table, base: Snapshot, change: Change, summary: Mapping[str, str]) -> None:
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        removed = {f"{self._url}/{one.path}" for one in change.removed}
        old = [task.file for task in table.scan().plan_files() if task.file.file_path in removed] if removed else []
        new = (f"{self._url}/{one.path}" for one in change.added)
        with table.transaction() as transaction:
            _prepare(transaction, base.kind, change)
            # Other programs may expire all snapshots that we made.
            transaction.set_properties({STATE: summary[STATE]})
            with transaction.update_snapshot(dict(summary)).overwrite() as snapshot:
                for one in parquet_files_to_data_files(table.io, transaction.table_metadata, new):
                    snapshot.append_data_file(one)
                for one in old:
                    snapshot.delete_data_file(one)

    def _failure(self, newer: Table | None, base: Snapshot, error: Exception) -> Exception:
        """What the failure of a commit means."""
        from pyiceberg.exceptions import CommitFailedException

        if isinstance(error, CommitFailedException) or (newer is not None and _number(newer) > max(0, base.version)):
            return TableConflictError(self.place.root, base.version + 1)
        if isinstance(error, OSError):
            return DiskError(self.place.root, "commit", self.place.told(error))
        return error

    def _check_retries(self, table: Table) -> None:
        if table.properties.get(RETRIES) != "0":
            raise ConfigError("table", self.place.root, f"a table with the property {RETRIES} 0, as rucola made it")

    def _created(self, change: Change) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError

        assert change.schema is not None
        # Of two tables in one directory, each would delete the files of the other as those of killed runs.
        claim(self.place, f"{FORMAT} {self._catalog.name}")
        try:
            return self._catalog.create(
                arrow_of(change.schema), self._url, {**NO_RETRIES, SCHEMA: json.dumps(change.schema)}
            )
        except TableAlreadyExistsError as error:
            raise TableConflictError(self.place.root, 0) from error

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Says which table has files of its log missing, or unreadable ones."""
        try:
            yield
        except OSError as error:
            raise DiskError(self.place.root, "read the metadata", self.place.told(error)) from error

    def _state(self, table: Table) -> TableState:
        """The state in the newest snapshot that has one, since a table may be rolled back; snapshots by other writers
        have none.
        """
        texts = [_summary(snapshot).get(STATE) for snapshot in _snapshots(table)]
        for text in (*texts, table.properties.get(STATE)):
            if text:
                return TableState.from_json(text, self.place.root)
        if table.current_snapshot() is not None or SCHEMA not in table.properties:
            raise ConfigError("table", self.place.root, "a table that rucola made, or a directory without one")
        return TableState(self._kind or TableKind.MESSAGES, StreamOffsets({}))

    def _check(self, table: Table, kind: TableKind, tasks: Iterable[FileScanTask]) -> None:
        """Checks that other programs have left what Rucola's commits need."""
        fields = table.schema().fields
        for spec in {table.spec().spec_id, *(task.file.spec_id for task in tasks)}:
            partitions = [field.name for field in table.specs()[spec].fields]
            check_columns(self.place.root, kind, partitions, (field.name for field in fields))
        check_not_null(self.place.root, [field.name for field in fields if field.required])

    def _files(self, tasks: Iterable[FileScanTask], kind: TableKind) -> Iterator[DataFile]:
        for task in tasks:
            if task.delete_files:
                raise ConfigError(
                    "table", self.place.root, "a table without delete files; rewrite its data files first"
                )
            one = task.file
            values = ((name, one.partition[at]) for at, name in enumerate(PARTITIONS[kind]))
            partition = {name: _text(name, value) for name, value in values if value is not None}
            yield DataFile(self._path(one.file_path), one.record_count, one.file_size_in_bytes, partition)

    def _path(self, url: str) -> str:
        return url.removeprefix(f"{self._url}/")


def _number(table: Table) -> int:
    """Sequence number of the newest snapshot; 0 if there is none."""
    snapshot = table.current_snapshot()
    return 0 if snapshot is None or snapshot.sequence_number is None else snapshot.sequence_number


def _snapshots(table: Table) -> Iterator[IcebergSnapshot]:
    """The newest snapshot, and those before it."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _summary(snapshot: IcebergSnapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _has(table: Table, commit: str) -> bool:
    """Whether a commit is in the table: its answer may have been lost on the way."""
    return any(_summary(one).get(COMMIT) == commit for one in _snapshots(table))


def _text(name: str, value: Any) -> str:
    return (date(1970, 1, 1) + timedelta(days=value)).isoformat() if name == DAY else str(value)


def _prepare(transaction: Transaction, kind: TableKind, change: Change) -> None:
    """Adds partitions and new columns to the table, in the same transaction as the first files that use them."""
    from pyiceberg.table import TableProperties

    metadata = transaction.table_metadata
    if metadata.spec().is_unpartitioned():
        with transaction.update_spec() as spec:
            for name in PARTITIONS[kind]:
                spec.add_identity(name)
    if change.schema is not None and transaction.table_metadata.current_snapshot() is not None:
        with transaction.update_schema() as update:
            update.union_by_name(arrow_of(change.schema))
        transaction.set_properties({SCHEMA: json.dumps(change.schema)})
    if metadata.name_mapping() is None:
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
