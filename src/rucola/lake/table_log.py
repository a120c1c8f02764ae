"""Commits of an archived table, and the interface of the logs that hold them.

A commit is one atomic step: it adds and removes data files and advances the archived offsets of queues. The next run
continues at the archived offsets. Therefore, a table never holds a message twice, even if runs are killed or several
drivers run at once. The table holds the messages of each queue before the archived offset, beginning with the first
archived offset. It lacks only messages that ``expire`` removed, or that expired in the store before they were archived.
Delta and Iceberg each have their own kind of log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rucola.arrow.offsets import Mark, QueueOffsets, StreamOffsets
from rucola.common.message_queue import MessageQueue
from rucola.common.names import is_path_below
from rucola.errors import ConfigError, FormatError
from rucola.lake.columns import DAY
from rucola.lake.lives import Lives
from rucola.places.place import Place

STALE_S = 24 * 3600.0
"""Seconds after which the plan of a commit is stale, and files may be deleted.

A stale plan cannot be committed. ``clean`` keeps a file for this time after the file was written, and after the file
left the table. So ``clean`` never deletes a file that a writer can still commit, or that is needed by a query that
began less than a day ago.
"""


class TableKind(StrEnum):
    """The content of a table's rows: messages, or parts of a log."""

    MESSAGES = "messages"
    RAW = "raw"
    """Parts of a commit log, for a restore."""


PARTITIONS = {
    TableKind.MESSAGES: ("topic", DAY),
    TableKind.RAW: ("part", "broker", "segment", "segmentBytes", "sha256"),
}
"""The columns that have one value in each data file."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table.

    Attributes:
        path: path relative to the table's directory; it cannot lead out of it.
        rows: number of rows.
        size: length in bytes.
        partition: values of the partition columns, by name, as text; a column that is null is missing.
        statistics: minimum, maximum and number of nulls of some columns, in Delta's JSON form; known only for a file
            that is not in the table yet.
    """

    path: str
    rows: int
    size: int
    partition: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        # A table may come from somebody else: its files are read, moved, deleted and restored by these paths.
        if not is_path_below(self.path):
            raise FormatError("table", 0, "paths of data files below the table's directory", repr(self.path))

    def to_json(self) -> dict[str, Any]:
        """The file as a JSON object."""
        return {
            "path": self.path,
            "rows": self.rows,
            "size": self.size,
            "partition": dict(self.partition),
            "statistics": dict(self.statistics),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DataFile:
        """Makes a file from a JSON object; raises ``KeyError`` for a missing field."""
        return DataFile(value["path"], value["rows"], value["size"], value["partition"], value["statistics"])


@dataclass(frozen=True)
class Change:
    """The changes of one commit.

    Attributes:
        action: what the commit does, such as ``archive`` or ``compact``.
        added: files that become part of the table.
        removed: files that leave the table; they are deleted later.
        offsets: for each queue that advances, its new archived offset and the ``Mark`` of its last archived record; for
            each new queue, also its first archived offset.
        schema: all columns of the table after the commit, as a schema in JSON; None if they stay the same.
        only_moves: whether rows only move from the removed files to the added ones.
        begun: the queues among ``offsets`` that begin a new life.
    """

    action: str
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    offsets: StreamOffsets = field(default_factory=lambda: StreamOffsets({}))
    schema: dict[str, Any] | None = None
    only_moves: bool = False
    begun: frozenset[MessageQueue] = frozenset()


@dataclass(frozen=True)
class Snapshot:
    """A table after one of its commits.

    Attributes:
        version: number of the commit; -1 for a table without commits.
        time_ms: when the snapshot was taken, in milliseconds since the epoch.
        kind: what a row is.
        schema: the columns, as a schema in JSON; None without commits.
        files: the data files, by path, in the order in which they were added.
        offsets: archived offset, first archived offset and ``Mark`` of each queue.
        lives: the lives of queues before these.
    """

    version: int
    time_ms: int
    kind: TableKind
    schema: dict[str, Any] | None
    files: Mapping[str, DataFile]
    offsets: StreamOffsets
    lives: Lives = field(default_factory=dict)

    def end_of(self, queue: MessageQueue) -> int | None:
        """The archived offset of a queue; None if none of its messages were archived."""
        return self.offsets.offsets.get(queue)

    def life_of(self, queue: MessageQueue) -> int:
        """The number of the life to which the archived offset of a queue belongs."""
        return len(self.lives.get(queue, ()))

    def end_in(self, queue: MessageQueue, life: int) -> int | None:
        """The archived offset of a life of a queue; None if none of its messages were archived."""
        ended = self.lives.get(queue, ())
        if life < len(ended):
            return ended[life].end
        return self.end_of(queue) if life == len(ended) else None

    def mark_of(self, queue: MessageQueue) -> Mark | None:
        """Store time and physical offset of a queue's last archived record; None if they are not known."""
        return self.offsets.marks.get(queue)

    def allows(self, base: Snapshot, change: Change) -> bool:
        """Whether ``change``, which was planned on ``base``, can follow this newer snapshot.

        It can if no other commit advanced the same queues, removed the same files, or changed the schema.
        """
        same_offsets = all(
            self.end_of(queue) == base.end_of(queue) and self.life_of(queue) == base.life_of(queue)
            for queue in change.offsets.offsets
        )
        return same_offsets and all(one.path in self.files for one in change.removed) and self.schema == base.schema


def lag(offsets: QueueOffsets, ends: Mapping[MessageQueue, int]) -> int:
    """Number of messages between the archived offsets and the ends of the queues, over all queues."""
    return sum(max(0, end - offsets.get(queue, end)) for queue, end in ends.items())


_OWN = re.compile(r"\.?(?:[0-9a-f]{32}-)?[0-9a-f]{32}\.parquet")


def is_own_file(path: str, kind: TableKind) -> bool:
    """Whether Rucola may have written a data file: by its name, in directories of the partitions and nowhere else.
    There may be other files, and other tables, in a table's directory.
    """
    *folders, name = path.split("/")
    names = [folder.partition("=")[0] for folder in folders]
    every = PARTITIONS[kind]
    needed = every[: 2 if kind is TableKind.MESSAGES else 3]  # others may be null
    is_there = names == [one for one in every if one in names or one in needed]
    return is_there and _OWN.fullmatch(name) is not None


def check_age(base: Snapshot, now_ms: int) -> None:
    """Checks that a plan is younger than a day: ``clean`` may have deleted its files otherwise.

    Raises:
        ConfigError: it is older.
    """
    if now_ms - base.time_ms > STALE_S * 1000:
        raise ConfigError("commit", f"planned {(now_ms - base.time_ms) // 3_600_000} h ago", "less than a day ago")


class TableLog(Protocol):
    """The commits of one table.

    Attributes:
        place: where the table is; paths of data files are relative to it.
    """

    place: Place

    def snapshot(self) -> Snapshot:
        """The newest state of the table.

        Raises:
            ConfigError: the table has a different kind, or other programs changed it in a way that readers of its
                files do not see.
            FormatError: the log is damaged.
        """
        ...

    def commit(self, base: Snapshot, change: Change) -> int:
        """Durably commits the files and offsets of ``change`` after ``base``; returns the number of the commit.

        A failed commit changes nothing.

        Raises:
            ConfigError: the plan is older than a day.
            DiskError: the commit could not be written.
            TableConflictError: a commit newer than ``base`` exists.
        """
        ...

    def clean(self, retention_s: float = STALE_S) -> int:
        """Deletes old files; returns the number of deleted data files.

        A data file is kept while it is in the table, for ``retention_s`` seconds after it left the table, and for as
        long after it was written.
        """
        ...
