"""Commits of an archived table, and the interface of the logs that hold them.

A commit is one atomic step: it adds and removes data files and advances the archived offsets of queues. The next run
continues at the archived offsets. Therefore, a table never holds a message twice, even if runs are killed or several
drivers run at once. The table holds the messages of each queue before the archived offset, beginning with the first
archived offset. It lacks only messages that ``expire`` removed, or that expired in the store before they were archived.
Plain Parquet, Delta and Iceberg each have their own kind of log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rucola.arrow.offsets import Mark, QueueOffsets, StreamOffsets
from rucola.common.message_queue import MessageQueue
from rucola.common.names import is_path_below
from rucola.errors import FormatError

STALE_S = 24 * 3600.0
"""Seconds after which the plan of a commit is stale, and files may be deleted (plain Parquet tables only).

A stale plan cannot be committed. ``clean`` keeps a file for this time after the file was written, and after the file
left the table. So ``clean`` never deletes a file that a writer can still commit, or that is needed by a query that
began less than a day ago.
"""


class TableKind(StrEnum):
    """The content of a table's rows: messages, or parts of a log."""

    MESSAGES = "messages"
    RAW = "raw"
    """Parts of a commit log, for a restore."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table.

    Attributes:
        path: path relative to the table's directory; it cannot lead out of it.
        rows: number of rows.
        size: length in bytes.
        partition: values of the partition columns, by name, as text.
    """

    path: str
    rows: int
    size: int
    partition: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A table may come from somebody else: its files are read, moved, deleted and restored by these paths.
        if not is_path_below(self.path):
            raise FormatError("table", 0, "paths of data files below the table's directory", repr(self.path))

    def to_json(self) -> dict[str, Any]:
        """The file as a JSON object."""
        return {"path": self.path, "rows": self.rows, "size": self.size, "partition": dict(self.partition)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DataFile:
        """Makes a file from a JSON object; raises ``KeyError`` for a missing field."""
        return DataFile(value["path"], value["rows"], value["size"], value["partition"])


@dataclass(frozen=True)
class Change:
    """The changes of one commit.

    Attributes:
        action: what the commit does, such as ``archive`` or ``compact``.
        added: files that become part of the table.
        removed: files that leave the table; they are deleted later.
        offsets: for each queue that advances, its new archived offset and the ``Mark`` of its last archived record; for
            each new queue, also its first archived offset.
        schema: all columns of the table after the commit, as a schema in Spark's JSON form; None if they stay the same.
    """

    action: str
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    offsets: StreamOffsets = field(default_factory=lambda: StreamOffsets({}))
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Snapshot:
    """A table after one of its commits.

    Attributes:
        version: number of the commit; -1 for a table without commits.
        time_ms: when the snapshot was taken, in milliseconds since the epoch.
        kind: what a row is.
        schema: the columns, as a schema in Spark's JSON form; None without commits.
        files: the data files, by path.
        offsets: archived offset, first archived offset (not in Delta tables) and ``Mark`` of each queue.
        removed: paths of files that left the table and are not deleted yet, with the time when they left, in
            milliseconds since the epoch.
    """

    version: int
    time_ms: int
    kind: TableKind
    schema: dict[str, Any] | None
    files: Mapping[str, DataFile]
    offsets: StreamOffsets
    removed: Mapping[str, int] = field(default_factory=dict)

    def end_of(self, queue: MessageQueue) -> int | None:
        """The archived offset of a queue; None if none of its messages were archived."""
        return self.offsets.offsets.get(queue)

    def mark_of(self, queue: MessageQueue) -> Mark | None:
        """Store time and physical offset of a queue's last archived record; None if they are not known."""
        return self.offsets.marks.get(queue)

    def allows(self, base: Snapshot, change: Change) -> bool:
        """Whether ``change``, which was planned on ``base``, can follow this newer snapshot.

        It can if no other commit advanced the same queues, removed the same files, or changed the schema.
        """
        same_offsets = all(self.end_of(queue) == base.end_of(queue) for queue in change.offsets.offsets)
        return same_offsets and all(one.path in self.files for one in change.removed) and self.schema == base.schema


def changed(offsets: StreamOffsets, more: StreamOffsets) -> StreamOffsets:
    """The offsets of a table after a commit that adds ``more`` to ``offsets``. First archived offsets never change."""
    known = {queue: mark for queue, mark in offsets.marks.items() if queue not in more.offsets}
    return StreamOffsets(
        {**offsets.offsets, **more.offsets}, {**more.starts, **offsets.starts}, {**known, **more.marks}
    )


def lag(offsets: QueueOffsets, ends: Mapping[MessageQueue, int]) -> int:
    """Number of messages between the archived offsets and the ends of the queues, over all queues."""
    return sum(max(0, end - offsets.get(queue, end)) for queue, end in ends.items())


class TableLog(Protocol):
    """The commits of one table.

    Attributes:
        root: directory of the table; paths of data files are relative to it.
    """

    root: str

    def snapshot(self, queues: Iterable[MessageQueue] = ()) -> Snapshot:
        """The newest state of the table.

        Args:
            queues: queues whose archived offsets must be in the snapshot; other queues may be missing.
        """
        ...

    def commit(self, base: Snapshot, change: Change) -> int:
        """Durably commits the files and offsets of ``change`` after ``base``; returns the number of the commit.

        A failed commit changes neither the table's files nor its archived offsets. But it may have created the table,
        and in a Delta table it may have added columns.

        Raises:
            TableConflictError: a commit newer than ``base`` exists; in a Delta table, only if it conflicts with
                ``change``.
        """
        ...

    def clean(self) -> int:
        """Deletes old files; returns the number of deleted data files.

        A data file is kept while it is in the table, for a day after it left the table, and for a day after it was
        written.
        """
        ...
