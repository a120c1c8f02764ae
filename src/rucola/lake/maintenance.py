"""Maintains tables: joins small files and removes old days.

Every change is a commit like those of the archiver, and maintenance may run while the archiver runs. Files that a
commit removes stay on the disk for at least a day, for queries that began earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

from rucola.errors import ConfigError, TableConflictError
from rucola.lake.archiver import commit_rebased, files_of, write_all
from rucola.lake.columns import DAY, arrow_of
from rucola.lake.file_rows import joined_rows
from rucola.lake.table_log import Change, DataFile, Snapshot, TableKind, TableLog
from rucola.lake.workers import Task, Workers, run_here
from rucola.places.place import Place

if TYPE_CHECKING:
    import pyarrow as pa

TARGET_BYTES = 128 << 20
"""Desired size of a data file in bytes."""


class Compacted(NamedTuple):
    """The number of files that were joined, and the number of files that replaced them."""

    before: int
    after: int


def compact(table: TableLog, workers: Workers = run_here, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Joins the files of each topic and day that are smaller than half of ``target_bytes``.

    If another commit has meanwhile removed some of these files or added columns, the table stays unchanged, and both
    counts are 0.
    """
    base = table.snapshot()
    groups = small_files(base, target_bytes)
    if not groups:
        return Compacted(0, 0)
    assert base.schema is not None
    task = _joining_task(table.place, arrow_of(base.schema), groups, base.kind)
    added = files_of(workers(task, len(groups)))
    removed = tuple(one for group in groups for one in group)
    try:
        commit_rebased(table, base, Change("compact", tuple(added), removed, only_moves=True))
    except TableConflictError:
        for one in added:
            table.place.remove(one.path)
        return Compacted(0, 0)
    return Compacted(len(removed), len(added))


def small_files(snapshot: Snapshot, target_bytes: int) -> list[list[DataFile]]:
    """Groups of files to join: each has at least two small files of one partition, in the order of their commits."""
    partitions: dict[tuple[tuple[str, str], ...], list[list[DataFile]]] = {}
    for one in snapshot.files.values():
        if one.size * 2 >= target_bytes:
            continue
        groups = partitions.setdefault(tuple(sorted(one.partition.items())), [[]])
        if sum(other.size for other in groups[-1]) >= target_bytes:
            groups.append([])
        groups[-1].append(one)
    return [group for groups in partitions.values() for group in groups if len(group) > 1]


def expire(table: TableLog, before: date) -> int:
    """Removes from the table all messages stored before day ``before`` (UTC); returns the number of removed files.
    Messages without a day stay.

    The archived offsets stay, so the messages are not archived again.

    Raises:
        ConfigError: the table is a raw table.
    """
    while True:
        base = table.snapshot()
        if base.kind is not TableKind.MESSAGES:
            raise ConfigError("table", table.place.root, "a table of messages; a raw table has no days")
        removed = tuple(
            one for one in base.files.values() if DAY in one.partition and one.partition[DAY] < before.isoformat()
        )
        if not removed:
            return 0
        try:
            commit_rebased(table, base, Change("expire", (), removed))
        except TableConflictError:
            continue  # a compaction has joined some of these files; the new snapshot has the joined files
        return len(removed)


def _joining_task(place: Place, schema: pa.Schema, groups: Sequence[Sequence[DataFile]], kind: TableKind) -> Task:
    rows = schema.remove(schema.get_field_index(DAY)) if DAY in schema.names else schema  # the writer adds the day

    def join(number: int) -> str:
        group = groups[number]
        fixed = group[0].partition if kind is TableKind.RAW else None
        return write_all(place, schema, joined_rows(place, rows, group), fixed)

    return join
