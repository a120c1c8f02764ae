"""The log of a plain Parquet table: numbered JSON files in ``_log``, one for each commit.

A commit writes its file under a temporary name, syncs it, and creates a hard link whose name is the next number. A
hard link never replaces a file: if two writers commit at once, one gets the number, and the other gets a conflict.
After a crash, a commit is either complete or missing; a temporary file may be left. After every 16 commits, a
checkpoint stores the whole state, so that a reader need not read all commits.

The directory must be on a file system with hard links. Creating a hard link is atomic on NFS as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from rucola.arrow.offsets import StreamOffsets
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, FormatError, TableConflictError
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import Files
from rucola.spark.archive.table_files import hold_table, table_root
from rucola.spark.archive.table_log import STALE_S, Change, DataFile, Snapshot, TableKind, changed

LOG = "_log"
FORMAT = 1
CHECKPOINT_EVERY = 16
DIGITS = 20
FORGET_MS = int(7 * STALE_S * 1000)
"""Time for which checkpoints list a removed file, in milliseconds."""
_COMMIT = re.compile(rf"(\d{{{DIGITS}}})\.json")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
_CHECKPOINT = re.compile(rf"(\d{{{DIGITS}}})\.checkpoint")


class ManifestLog:
    """``TableLog`` of a plain Parquet table.

    Args:
        root: directory of the table; the first commit creates it.
        kind: kind of a new table, or the required kind of an existing one; None accepts an existing table of any kind.
        files: access to the disk.
        clock: source of time.
    """

    def __init__(
        self,
        root: str,
        kind: TableKind | None = TableKind.MESSAGES,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._files = files or Files()
        self._clock = clock or SystemClock()
        self.root = table_root(root)
        self._log = f"{self.root}/{LOG}"
        self._kind = kind
        hold_table(self.root, self._files)

    def snapshot(self, queues: Iterable[MessageQueue] = ()) -> Snapshot:
        """The state after the newest commit.

        Raises:
            ConfigError: the table has a different kind, or a newer version of this package wrote it.
            FormatError: a commit is missing or is not valid JSON.
        """
        names = self._files.list_files(self._log)
        commits = _versions(_COMMIT, names)
        newest = max(commits, default=-1)
        start = max(_versions(_CHECKPOINT, names), default=-1)
        now = self._clock.wall_ms()
        state = Snapshot(-1, now, self._kind or TableKind.MESSAGES, None, {}, StreamOffsets({}))
        if start >= 0:
            name = f"{start:0{DIGITS}}.checkpoint"
            with self._understood(name):
                state = self._from_checkpoint(self._read(name), now)
        for version in range(start + 1, newest + 1):
            name = _commit_name(version)
            with self._understood(name):
                state = self._with_commit(state, version, self._read(name))
        if self._kind not in (None, state.kind):
            raise ConfigError("table", self.root, f"a table of kind {self._kind}; this one is of kind {state.kind}")
        return state

    def commit(self, base: Snapshot, change: Change) -> int:
        """Publishes the commit as a hard link to its file; the link's name is the next number.

        Raises:
            ConfigError: the plan is older than a day.
            DiskError: the commit could not be written; the table is unchanged.
            TableConflictError: the number is taken.
        """
        now = self._clock.wall_ms()
        if now - base.time_ms > STALE_S * 1000:
            raise ConfigError("commit", f"planned {(now - base.time_ms) // 3_600_000} h ago", "less than a day ago")
        self._files.make_directory(self.root)
        hold_table(self.root, self._files)
        self._files.make_directory(self._log)
        version = base.version + 1
        content = {
            "format": FORMAT,
            "kind": base.kind,
            "time_ms": now,
            "action": change.action,
            "schema": change.schema,
            "add": [one.to_json() for one in change.added],
            "remove": [one.path for one in change.removed],
            "offsets": change.offsets.to_document(),
        }
        temporary = f"{self._log}/.{uuid4().hex}.tmp"
        try:
            self._files.write_file(temporary, _text(content))
            if not self._files.link(temporary, f"{self._log}/{_commit_name(version)}"):
                raise TableConflictError(self.root, version)
        finally:
            if self._files.exists(temporary):
                self._files.remove(temporary)
        self._files.sync_directory(self._log)
        if version % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            self._write_checkpoint(version)
        return version

    def clean(self) -> int:
        """Deletes old files; returns the number of deleted data files.

        Deletes data files that left the table more than a day ago, data files of killed runs that are more than a day
        old, and old files of the log.
        """
        snapshot = self.snapshot()
        oldest = self._clock.wall_ms() - STALE_S * 1000
        count = 0
        for path in self._data_files():
            name = f"{self.root}/{path}"
            if path not in snapshot.files and snapshot.removed.get(path, self._files.modified_ms(name)) < oldest:
                self._files.remove(name)
                count += 1
        self._clean_log()
        return count

    def _data_files(self, below: str = "") -> Iterator[str]:
        """Paths of all Parquet files in the table's directory, including those that were never completed."""
        directory = f"{self.root}/{below}".rstrip("/")
        for name in self._files.list_files(directory):
            if name.endswith(".parquet"):
                yield below + name
        for name in self._files.list_directories(directory):
            if below or name != LOG:
                yield from self._data_files(f"{below}{name}/")

    def _clean_log(self) -> None:
        """Deletes files older than a day: commits and checkpoints before the last checkpoint, and temporary files."""
        names = self._files.list_files(self._log)
        last = max(_versions(_CHECKPOINT, names), default=-1)
        old = []
        for name in names:
            match = _COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name)
            covered = _TEMPORARY.fullmatch(name) is not None if match is None else int(match[1]) < last
            if covered and self._clock.wall_ms() - self._files.modified_ms(f"{self._log}/{name}") > STALE_S * 1000:
                old.append(name)
        # The oldest files are removed first: even after a crash the rest forms a chain up to the newest commit.
        for name in old:
            self._files.remove(f"{self._log}/{name}")

    def _write_checkpoint(self, version: int) -> None:
        """Writes the state after commit ``version``; several writers of one checkpoint write the same content."""
        state = self.snapshot()
        if state.version != version:  # other writers have committed since; they write a later checkpoint
            return
        content = {
            "format": FORMAT,
            "kind": state.kind,
            "version": state.version,
            "schema": state.schema,
            "files": [one.to_json() for one in state.files.values()],
            # If a removed file is no longer in this list, ``clean`` decides by the time of the file's last write.
            "removed": {path: at for path, at in state.removed.items() if state.time_ms - at < FORGET_MS},
            "offsets": state.offsets.to_document(),
        }
        temporary = f"{self._log}/.{uuid4().hex}.tmp"
        self._files.write_file(temporary, _text(content))
        self._files.rename(temporary, f"{self._log}/{version:0{DIGITS}}.checkpoint")
        self._files.sync_directory(self._log)

    def _from_checkpoint(self, content: Mapping[str, Any], now: int) -> Snapshot:
        files = [DataFile.from_json(one) for one in content["files"]]
        return Snapshot(
            content["version"],
            now,
            TableKind(content["kind"]),
            content["schema"],
            {one.path: one for one in files},
            StreamOffsets.from_document(content["offsets"]),
            content["removed"],
        )

    def _with_commit(self, state: Snapshot, version: int, content: Mapping[str, Any]) -> Snapshot:
        files, removed = dict(state.files), dict(state.removed)
        for one in content["add"]:
            files[one["path"]] = DataFile.from_json(one)
        for path in content["remove"]:
            files.pop(path, None)
            removed[path] = content["time_ms"]
        return Snapshot(
            version,
            state.time_ms,
            TableKind(content["kind"]),
            content["schema"] or state.schema,
            files,
            changed(state.offsets, StreamOffsets.from_document(content["offsets"])),
            removed,
        )

    @contextmanager
    def _understood(self, name: str) -> Iterator[None]:
        """Turns what is wrong with the content of a file into ``FormatError``: it is JSON, but may say anything."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FormatError(
                "commit of a table", 0, "fields of a commit", repr(error), f"{self._log}/{name}"
            ) from error

    def _read(self, name: str) -> dict[str, Any]:
        path = f"{self._log}/{name}"
        content = self._files.read_file(path)
        if content is None:
            raise FormatError("commit of a table", 0, "a file", "none", path)
        try:
            value: dict[str, Any] = json.loads(content)
            newer = value["format"] > FORMAT
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError("commit of a table", 0, "JSON of a commit", str(error), path) from error
        if newer:
            raise ConfigError("table", path, f"format {FORMAT} or older; a newer version of Rucola wrote this table")
        return value


def _versions(pattern: re.Pattern[str], names: Iterable[str]) -> Iterator[int]:
    return (int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def _commit_name(version: int) -> str:
    return f"{version:0{DIGITS}}.json"


def _text(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode() + b"\n"
