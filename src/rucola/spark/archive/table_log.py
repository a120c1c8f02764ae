"""Commits of an archived table, and the interface of the logs that hold them.

A commit is one atomic step: it adds and removes data files and moves the archived offsets. A table therefore holds
exactly the messages from the first archived offset of each queue up to its archived offset, whatever was killed and
however many drivers ran. Plain Parquet, Delta and Iceberg tables have a log each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rucola.arrow.offsets import Mark, QueueOffsets, StreamOffsets
from rucola.common.message_queue import MessageQueue

STALE_S = 24 * 3600.0
"""A commit whose plan is older is refused, and no younger file is ever deleted. So a cleaner never removes a file that
a running writer will commit, or that a running query reads.
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
        path: relative to the table.
        rows: number of rows.
        size: length in bytes.
        partition: values of the partition columns, by name, as text.
    """

    path: str
    rows: int
    size: int
    partition: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The file as an object of JSON."""
        return {"path": self.path, "rows": self.rows, "size": self.size, "partition": dict(self.partition)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DataFile:
        """Raises ``KeyError`` for a missing field."""
        return DataFile(value["path"], value["rows"], value["size"], value["partition"])


@dataclass(frozen=True)
class Change:
    """The changes of one commit.

    Attributes:
        action: what it is for, such as ``archive`` or ``compact``.
        added: files that become part of the table.
        removed: files that leave it; they are deleted later.
        offsets: of the queues that advance: their new archived offsets, the marks of their last records, and the first
            archived offset of new queues.
        schema: the columns from now on, as Spark writes a schema; None if they stay the same.
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
        kind: what its rows are.
        schema: the columns, as Spark writes a schema; None without commits.
        files: the data files, by path.
        offsets: archived offsets, first archived offsets and marks of all queues.
        removed: files that left the table and are not deleted yet, with the time of that commit.
    """

    version: int
    time_ms: int
    kind: TableKind
    schema: dict[str, Any] | None
    files: Mapping[str, DataFile]
    offsets: StreamOffsets
    removed: Mapping[str, int] = field(default_factory=dict)

    def end_of(self, queue: MessageQueue) -> int | None:
        """The archived offset of a queue; None if nothing of it was archived."""
        return self.offsets.offsets.get(queue)

    def mark_of(self, queue: MessageQueue) -> Mark | None:
        """The mark of the last archived record of a queue, if it is known."""
        return self.offsets.marks.get(queue)

    def allows(self, base: Snapshot, change: Change) -> bool:
        """Whether ``change``, which was planned with ``base``, is still right for this newer snapshot: the queues that
        advance have not advanced, and the files that it removes are still there.
        """
        same_offsets = all(self.end_of(queue) == base.end_of(queue) for queue in change.offsets.offsets)
        return same_offsets and all(one.path in self.files for one in change.removed) and self.schema == base.schema


def changed(offsets: StreamOffsets, more: StreamOffsets) -> StreamOffsets:
    """``offsets`` after a commit with ``more``. First archived offsets never change."""
    known = {queue: mark for queue, mark in offsets.marks.items() if queue not in more.offsets}
    return StreamOffsets(
        {**offsets.offsets, **more.offsets}, {**more.starts, **offsets.starts}, {**known, **more.marks}
    )


def lag(offsets: QueueOffsets, ends: Mapping[MessageQueue, int]) -> int:
    """Number of messages between archived offsets and the ends of the queues."""
    return sum(max(0, end - offsets.get(queue, end)) for queue, end in ends.items())


class TableLog(Protocol):
    """The commits of one table.

    Attributes:
        root: directory of the table; paths of data files are relative to it.
    """

    root: str

    def snapshot(self, queues: Iterable[MessageQueue] = ()) -> Snapshot:
        """The newest state.

        Args:
            queues: queues whose archived offsets must be in the snapshot; others may be missing.
        """
        ...

    def commit(self, base: Snapshot, change: Change) -> int:
        """Makes ``change`` the commit after ``base``, durably, or changes nothing; returns its number.

        Raises:
            TableConflictError: there is a newer commit that contradicts the change, or any newer commit.
        """
        ...

    def clean(self) -> int:
        """Deletes files that neither a commit of the last day names nor a run of the last day has written; returns
        their number.
        """
        ...
