"""The log of a Delta table, through delta-rs: any engine that reads Delta reads the table.

A commit writes one version, and only the version after the one that it was planned on: delta-rs makes the file of a
version only if there is none. Files, new columns and archived offsets are in the same version. The offsets of all
queues are a file in ``_rucola``. Its name is a random number, and the version has this number as that of its
application transaction ``rucola``, which Delta keeps in its checkpoints. Other programs may commit in between, such as
``OPTIMIZE``: the transaction stays.

A local disk may lose what delta-rs has written, because delta-rs does not sync it. Therefore the log is synced before a
commit, and after it. So all versions but the newest are on the disk, and the newest one is, once ``commit`` returns.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

from rucola.arrow.offsets import StreamOffsets
from rucola.errors import ConfigError, DiskError, FormatError, TableConflictError
from rucola.lake.delta_damage import check_newest, damage
from rucola.lake.delta_probe import prove_conditional_puts
from rucola.lake.format_claim import claim
from rucola.lake.table_demands import APPEND_ONLY, check_columns, check_demands, check_not_null, not_null
from rucola.lake.table_log import PARTITIONS, STALE_S, Change, DataFile, Snapshot, TableKind, check_age, is_own_file
from rucola.lake.table_state import TableState, state_after
from rucola.places.place import Place
from rucola.runtime.clock import Clock, SystemClock

FORMAT = "delta"
LOG = "_delta_log"
STATES = "_rucola"
STATE = "rucola.state"
APPLICATION = "rucola"
"""Application id of the transaction whose version is the number of the state."""
SETTINGS = {"delta.checkpointInterval": "16"}
"""Opening a table reads the commits since the last checkpoint one by one."""
ID_BITS = 62
_STATE = re.compile(rf"{STATES}/(?:\.[0-9a-f]{{32}}-)?(?:[1-9][0-9]{{9,18}}\.json|probe-[0-9a-f]{{32}})")
"""Files in ``STATES`` that Rucola has made."""


class _Seen(NamedTuple):
    """An open table, and its state."""

    table: Any
    state_id: int
    state: TableState


class DeltaLog:
    """``TableLog`` of a Delta table.

    Args:
        place: where the table is; the first commit creates it.
        kind: kind of a new table, or the required kind of an existing one; None accepts an existing table of any kind.
        clock: source of time.
    """

    def __init__(self, place: Place, kind: TableKind | None = TableKind.MESSAGES, clock: Clock | None = None) -> None:
        self.place = place
        self._kind = kind
        self._clock = clock or SystemClock()
        self._seen: _Seen | None = None
        self._is_proved = place.is_local

    def __reduce__(self) -> tuple[type[DeltaLog], tuple[Place, TableKind | None, Clock]]:
        return DeltaLog, (self.place, self._kind, self._clock)

    def snapshot(self) -> Snapshot:
        """The newest version.

        Raises:
            ConfigError: the table has a different kind, or is not one of Rucola's. Or another writer has marked single
                rows as deleted (deletion vectors): Rucola and Spark's Parquet reader read the data files directly and
                would still return these rows.
            FormatError: the log is damaged.
        """
        now = self._clock.wall_ms()
        self._seen = self._newest()
        if self._seen is None:
            return Snapshot(-1, now, self._kind or TableKind.MESSAGES, None, {}, StreamOffsets({}))
        with self._understood():
            return self._read(self._seen, now)

    def _read(self, seen: _Seen, now: int) -> Snapshot:
        """The state of an open table; delta-rs reads parts of the log only now."""
        table, state = seen.table, seen.state
        if self._kind not in (None, state.kind):
            raise ConfigError(
                "table", self.place.root, f"a table of kind {self._kind}; this one is of kind {state.kind}"
            )
        fields, metadata = json.loads(table.schema().to_json())["fields"], table.metadata()
        check_columns(self.place.root, state.kind, metadata.partition_columns, (one["name"] for one in fields))
        check_demands(self.place.root, table.protocol(), metadata.configuration, fields)
        check_not_null(self.place.root, not_null(fields))
        if table.deletion_vectors().read_all().num_rows:
            raise ConfigError("table", self.place.root, "a table without deletion vectors; purge the vectors first")
        files = {one.path: one for one in _files(table.get_add_actions(flatten=True), PARTITIONS[state.kind])}
        schema: dict[str, Any] = json.loads(table.schema().to_json())
        return Snapshot(table.version(), now, state.kind, schema, files, state.offsets, state.lives)

    def commit(self, base: Snapshot, change: Change) -> int:
        """Writes the version after ``base``; see ``TableLog``."""
        from deltalake.exceptions import DeltaError

        check_age(base, self._clock.wall_ms())
        version, before = base.version + 1, self._at(base.version)
        if not self._is_proved:
            prove_conditional_puts(self.place)
            self._is_proved = True
        if before is None:
            claim(self.place, FORMAT)
        elif change.removed and not change.only_moves and _is_set(before.table, APPEND_ONLY):
            raise ConfigError("table", self.place.root, f"a table without {APPEND_ONLY}, which forbids to remove rows")
        self._sync(base.version)
        parent = 0 if before is None else before.state_id
        state_id = secrets.randbits(ID_BITS) | 1
        state = state_after(base, change, parent)
        self.place.write(_state_path(state_id), state.to_json())
        try:
            self._write_version(None if before is None else before.table, base, change, state_id)
        except (DeltaError, OSError) as error:
            if not self._has(state_id, parent):
                self._refuse(version, state_id, error)
        self._sync(version)
        return version

    def clean(self, retention_s: float = STALE_S) -> int:
        """Deletes old data files and states, also those of killed runs; see ``TableLog``."""
        seen = self._opened()
        if seen is None:
            return 0
        current, hours = _state_path(seen.state_id), int(retention_s // 3600)
        with self._understood():
            old = set(seen.table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True))
        before, count = self._clock.wall_ms() - retention_s * 1000, 0
        for path, modified_ms in list(self.place.list_files()):
            is_data = path in old and is_own_file(path, seen.state.kind)
            is_state = _STATE.fullmatch(path) is not None and path != current
            if (is_data or is_state) and modified_ms < before:
                self.place.remove(path)
                count += is_data
        return count

    def _at(self, version: int) -> _Seen | None:
        """The table at a version, from which a commit is made; None for no table.

        Raises:
            TableConflictError: there is a newer version.
        """
        seen = self._seen
        if version < 0 or seen is None or seen.table.version() != version:
            seen = self._opened()
        else:
            self.place.check(LOG)
        if (-1 if seen is None else seen.table.version()) != version:
            raise TableConflictError(self.place.root, version + 1)
        return seen

    def _newest(self) -> _Seen | None:
        """The newest version; None for no table. Only commits that this log has not seen are read."""
        from deltalake.exceptions import DeltaError

        last, self._seen = self._seen, None
        if last is None:
            return self._opened()
        self.place.check(LOG)
        try:
            last.table.update_incremental()
            found = self._with_state(last.table)
            # Somebody may have removed the table, and made another one.
            if self._follows(found, last.state_id):
                return found
        except (DeltaError, OSError, FormatError):
            pass  # the new opening says what is wrong, if it still is
        return self._opened()

    def _follows(self, found: _Seen, last: int) -> bool:
        """Whether a state comes after another one, or is this one."""
        at, state = found.state_id, found.state
        while at not in (0, last):
            at = state.parent
            if at not in (0, last):
                state = self._state(at)
        return at == last

    def _opened(self) -> _Seen | None:
        """Opens the table; None if there is none."""
        from deltalake import DeltaTable

        self.place.check(LOG)
        options = dict(self.place.library_options)
        with self._understood():
            if not DeltaTable.is_deltatable(self.place.root, options):
                return None
            return self._with_state(DeltaTable(self.place.root, storage_options=options))

    def _with_state(self, table: Any) -> _Seen:
        """An open table, and the state of exactly its version: others may commit meanwhile."""
        if self.place.is_local:
            check_newest(self.place, LOG, table.version())
        state_id = self._state_id(table)
        return _Seen(table, state_id, self._state(state_id))

    def _state_id(self, table: Any) -> int:
        """The number of the state: that of the newest commit which is not another program's. It is also the version of
        the transaction, but to find this, all commits since the last checkpoint are read.

        Raises:
            ConfigError: Rucola did not make the table, or another program has set it back to an older version: its
                archived offsets then promise rows that are gone.
        """
        for version in range(table.version(), -1, -1):
            content = self.place.read(f"{LOG}/{version:020}.json")
            if content is None:
                break  # the commit is only in a checkpoint
            for line in content.splitlines():
                found = json.loads(line).get("commitInfo", {})
                if STATE in found:
                    return int(found[STATE])
                if found.get("operation") == "RESTORE":
                    raise ConfigError(
                        "table",
                        self.place.root,
                        "a table that no program has set back to an older version; archive into another table",
                    )
        number = table.transaction_version(APPLICATION)
        if number is None:
            raise ConfigError("table", self.place.root, "a table that rucola made, or a directory without one")
        return int(number)

    def _write_version(self, before: Any, base: Snapshot, change: Change, state_id: int) -> None:
        """Writes the version after ``base``, only if there is none."""
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.transaction import create_table_with_add_actions

        partition_by = list(PARTITIONS[base.kind])
        properties = CommitProperties(
            {"rucola.action": change.action, STATE: str(state_id)},
            max_commit_retries=0,
            app_transactions=[Transaction(APPLICATION, state_id)],
        )
        schema = Schema.from_json(json.dumps(change.schema or base.schema))
        actions = list(self._actions(base, change))
        if before is None:
            create_table_with_add_actions(
                self.place.root, schema, actions, "error", partition_by,
                configuration=SETTINGS, storage_options=dict(self.place.library_options), commit_properties=properties,
            )  # fmt: skip
            return
        # A new schema can be committed only as an overwrite; it overwrites a topic that no table has.
        mode, filters = "append", None
        if change.schema is not None:
            mode, filters = "overwrite", [(partition_by[0], "=", "\0")]
        before.create_write_transaction(actions, mode, schema, partition_by, filters, commit_properties=properties)

    def _has(self, state_id: int, parent: int) -> bool:
        """Whether the commit with this state is in the table: its answer may have been lost on the way."""
        seen = self._opened()
        at, state = (0, None) if seen is None else (seen.state_id, seen.state)
        while at not in (0, parent):
            if at == state_id:
                return True
            at = (state or self._state(at)).parent
            state = None
        return False

    def _refuse(self, version: int, state_id: int, error: Exception) -> None:
        """Raises what the failure of a commit means."""
        seen = self._opened()
        if seen is None or seen.table.version() < version:
            # An object store may still receive the commit, so nothing is removed that it names.
            raise DiskError(self.place.root, "commit", self.place.told(error)) from error
        self.place.remove(_state_path(state_id))
        raise TableConflictError(self.place.root, version) from error

    def _actions(self, base: Snapshot, change: Change) -> Iterator[Any]:
        """The changes of files. If rows only move to other files, readers of streams are told that nothing is new."""
        from deltalake.transaction import AddAction, RemoveAction

        now, names, is_news = self._clock.wall_ms(), PARTITIONS[base.kind], not change.only_moves
        for one in change.added:
            values = {name: one.partition.get(name) for name in names}
            yield AddAction(one.path, one.size, values, now, is_news, json.dumps(dict(one.statistics)))
        for one in change.removed:
            values = {name: one.partition.get(name) for name in names}
            yield RemoveAction(one.path, is_news, now, one.size, values)

    def _state(self, state_id: int) -> TableState:
        path = _state_path(state_id)
        text = self.place.read(path)
        if text is None:
            raise FormatError("table", 0, "the file with the archived offsets", "none", f"{self.place.root}/{path}")
        return TableState.from_json(text, f"{self.place.root}/{path}")

    def _sync(self, version: int) -> None:
        """Makes the file of a version durable, and what delta-rs writes with it."""
        if version >= 0:
            name = f"{version:020}"
            self.place.sync(LOG, (f"{name}.json", f"{name}.checkpoint.parquet", "_last_checkpoint"))

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Says what is wrong with a log that delta-rs cannot read."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError, ValueError) as error:
            if not self.place.is_local or isinstance(error, OSError):
                raise DiskError(self.place.root, "read the log", self.place.told(error)) from error
            raise damage(self.place, LOG) or FormatError(
                "Delta table", 0, "a log that can be read", self.place.told(error), f"{self.place.root}/{LOG}"
            ) from error


def _is_set(table: Any, name: str) -> bool:
    return bool(table.metadata().configuration.get(name, "").lower() == "true")


def _state_path(state_id: int) -> str:
    return f"{STATES}/{state_id}.json"


def _files(actions: Any, names: Iterable[str]) -> Iterator[DataFile]:
    """The files of a version, in the order in which they were added."""
    import pyarrow as pa

    for row in sorted(pa.table(actions).to_pylist(), key=lambda row: (row["modification_time"], row["path"])):
        values = {name: row.get(f"partition.{name}") for name in names}
        partition = {name: str(value) for name, value in values.items() if value is not None}
        yield DataFile(unquote(row["path"]), row["num_records"], row["size_bytes"], partition)
