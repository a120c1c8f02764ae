"""The log of an Iceberg table, through PyIceberg, with a catalog in a SQLite file beside the data.

The summary of each snapshot holds the archived offsets of all queues, so files and offsets change in one step. A commit
requires that the table is still at the snapshot for which the commit was planned. Because of SQLite, all writers must
be on one host; readers elsewhere use the metadata files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rucola.arrow.offsets import StreamOffsets
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, TableConflictError
from rucola.runtime.clock import Clock, SystemClock
from rucola.spark.archive.columns import DAY, arrow_of
from rucola.spark.archive.table_files import table_root
from rucola.spark.archive.table_log import Change, DataFile, Snapshot, TableKind, changed

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table, Transaction

CATALOG = "catalog.db"
NAMESPACE = "rucola"
IDENTIFIER = (NAMESPACE, "messages")
OFFSETS, SCHEMA = "rucola.offsets", "rucola.schema"
NO_RETRIES = {"commit.retry.num-retries": "0"}
"""PyIceberg must not retry a commit, because a retry would add messages that another commit has already archived."""


class IcebergLog:
    """``TableLog`` of an Iceberg table.

    Args:
        root: directory of the table; the first commit creates it.
        clock: source of time.
    """

    def __init__(self, root: str, clock: Clock | None = None) -> None:
        self.root = table_root(root)
        self._clock = clock or SystemClock()

    def snapshot(self, queues: Iterable[MessageQueue] = ()) -> Snapshot:
        """The newest state of the table, always with the archived offsets of all queues."""
        from pyiceberg.exceptions import NoSuchTableError

        now = self._clock.wall_ms()
        none = Snapshot(-1, now, TableKind.MESSAGES, None, {}, StreamOffsets({}))
        if not Path(self.root, CATALOG).exists():
            return none
        try:
            table = self._catalog().load_table(IDENTIFIER)
        except NoSuchTableError:
            return none
        files = {one.path: one for one in self._files(table)}
        schema = json.loads(table.properties[SCHEMA])
        version = _number(table)
        return Snapshot(version, now, TableKind.MESSAGES, schema, files, _offsets(table))

    def commit(self, base: Snapshot, change: Change) -> int:
        """Makes a snapshot with the files and the archived offsets.

        Raises:
            TableConflictError: there is a newer snapshot.
        """
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        table = self._loaded(base, change)
        if _number(table) != max(0, base.version):
            raise TableConflictError(self.root, _number(table))
        summary = {
            OFFSETS: json.dumps(changed(base.offsets, change.offsets).to_document()),
            "rucola.action": change.action,
        }
        removed = {f"file://{self.root}/{one.path}" for one in change.removed}
        old = [task.file for task in table.scan().plan_files() if task.file.file_path in removed]
        new = (f"file://{self.root}/{one.path}" for one in change.added)
        try:
            with table.transaction() as transaction:
                _prepare(transaction, change)
                with transaction.update_snapshot(summary).overwrite() as snapshot:
                    for one in parquet_files_to_data_files(table.io, transaction.table_metadata, new):
                        snapshot.append_data_file(one)
                    for one in old:
                        snapshot.delete_data_file(one)
        except CommitFailedException as error:
            raise TableConflictError(self.root, base.version + 1) from error
        return _number(table)

    def clean(self) -> int:
        """Deletes nothing: snapshots of an Iceberg table stay readable until Iceberg's own tools expire them."""
        return 0

    def _catalog(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog

        Path(self.root).mkdir(parents=True, exist_ok=True)
        place = f"sqlite:///{self.root}/{CATALOG}"
        return SqlCatalog("rucola", uri=place, warehouse=f"file://{self.root}", init_catalog_tables="true")

    def _loaded(self, base: Snapshot, change: Change) -> Table:
        """Loads the table; creates it at the first commit."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError

        catalog = self._catalog()
        try:
            return catalog.load_table(IDENTIFIER)
        except NoSuchTableError:
            pass
        assert change.schema is not None
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(NAMESPACE)
        try:
            return catalog.create_table(
                IDENTIFIER,
                arrow_of(change.schema),
                location=f"file://{self.root}",
                properties={**NO_RETRIES, SCHEMA: json.dumps(change.schema)},
            )
        except TableAlreadyExistsError as error:
            raise TableConflictError(self.root, 0) from error

    def _files(self, table: Table) -> Iterator[DataFile]:
        prefix = f"file://{self.root}/"
        for task in table.scan().plan_files():
            if task.delete_files:
                raise ConfigError("table", self.root, "a table without delete files; rewrite its data files first")
            one = task.file
            day = date(1970, 1, 1) + timedelta(days=one.partition[1])
            partition = {"topic": str(one.partition[0]), DAY: day.isoformat()}
            yield DataFile(one.file_path.removeprefix(prefix), one.record_count, one.file_size_in_bytes, partition)


def _number(table: Table) -> int:
    """Sequence number of the newest snapshot; 0 if there is none."""
    snapshot = table.current_snapshot()
    return 0 if snapshot is None or snapshot.sequence_number is None else snapshot.sequence_number


def _prepare(transaction: Transaction, change: Change) -> None:
    """Adds partitions and new columns to the table, in the same transaction as the first files that use them."""
    from pyiceberg.table import TableProperties

    metadata = transaction.table_metadata
    if metadata.spec().is_unpartitioned():
        with transaction.update_spec() as spec:
            for name in ("topic", DAY):
                spec.add_identity(name)
    if change.schema is not None and transaction.table_metadata.current_snapshot() is not None:
        with transaction.update_schema() as update:
            update.union_by_name(arrow_of(change.schema))
        transaction.set_properties({SCHEMA: json.dumps(change.schema)})
    if metadata.name_mapping() is None:
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})


def _offsets(table: Table) -> StreamOffsets:
    """The archived offsets from the newest snapshot that has them; snapshots by other writers have none."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and (text := snapshot.summary.additional_properties.get(OFFSETS)):
            return StreamOffsets.from_document(json.loads(text))
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return StreamOffsets({})
