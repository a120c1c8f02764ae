"""Compares two store directories: whether they are copies of one log, and what each of them lacks. Changes nothing.

A broker may use the directories, and their logs may grow meanwhile: they are compared up to the ends that they had when
the comparison began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rucola.errors import FormatError
from rucola.formats.config_json import loads_object
from rucola.runtime.files import Files
from rucola.store.inspect.compare_logs import LogComparison, Part, RecordThere, part_of, record_at
from rucola.store.log.log_reader import Gap
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.recovery.quarantine import Quarantine

_TABLES = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
    "delayOffset.json": "offsetTable",
}
"""The compared tables, each with the member that has its entries."""
_NAMED_MAX = 5


@dataclass(frozen=True)
class ComparedCopy:
    """One of the two directories.

    Attributes:
        min_offset, end_offset: physical offsets where its log began and ended when the comparison began.
        segment_bytes: length of a segment; 0 if there is none.
        lacks_before: what only the other log has before ``min_offset``: segments that have expired here.
        lacks_behind: what only the other log has behind the part that both have.
        gaps: parts of its log whose messages are lost, and known to be.
        in_use: whether a process uses the directory.
    """

    path: str
    min_offset: int
    end_offset: int
    segment_bytes: int
    lacks_before: Part
    lacks_behind: Part
    gaps: list[Gap]
    in_use: bool


@dataclass(frozen=True)
class Difference:
    """The first difference of two logs: physical offset of the first byte that differs, and the record there in each
    log.
    """

    physical_offset: int
    first: RecordThere
    second: RecordThere


@dataclass(frozen=True)
class TableDifference:
    """A table that differs.

    Attributes:
        only_first, only_second, different: numbers of entries that only one table has, and of those that differ.
        names: some of these entries; or why the tables cannot be compared.
    """

    name: str
    only_first: int
    only_second: int
    different: int
    names: list[str]


@dataclass(frozen=True)
class StoreComparison:
    """The result of ``compare``.

    Attributes:
        equal_from, equal_to: physical offsets of the part that both logs have, and in which they are equal.
        difference: None if the logs are equal wherever both have bytes.
        meaningless: number of blank records behind which bytes differ; they mean nothing.
    """

    first: ComparedCopy
    second: ComparedCopy
    equal_from: int
    equal_to: int
    difference: Difference | None
    meaningless: int
    tables: list[TableDifference]

    @property
    def same(self) -> bool:
        """Whether both are copies of one log: they have a part in common, and no difference in it. One may lack
        messages at its beginning or end. Tables do not count.
        """
        empty = all(copy.min_offset == copy.end_offset for copy in (self.first, self.second))
        return self.difference is None and (empty or self.equal_from < self.equal_to)


def compare(
    paths: tuple[str, str], files: Files, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> StoreComparison:
    """Compares the stores in ``paths``.

    Args:
        progress: called with the number of bytes looked at and their total.

    Raises:
        StoreDamagedError: a directory has no store, a file of its log is no segment, or the list of its gaps cannot be
            read.
        DiskError: a file cannot be read.
    """
    stores: list[OfflineStore] = []
    try:
        for path in paths:
            stores.append(OfflineStore(path, files))
            stores[-1].log.gaps = Quarantine(files, stores[-1].path).gaps()
        return _compare(stores[0], stores[1], files, progress)
    finally:
        for store in stores:
            store.close()


def _compare(
    first: OfflineStore, second: OfflineStore, files: Files, progress: Callable[[int, int], None]
) -> StoreComparison:
    logs = first.log, second.log
    total = max(log.max_offset for log in logs) - min(log.min_offset for log in logs)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, max(done, total))

    found = LogComparison(logs, advance)
    found.run()
    different_at = found.different_at
    difference = None
    if different_at >= 0:
        difference = Difference(different_at, *(record_at(log, different_at) for log in logs))

    def copy(own: OfflineStore, other: OfflineStore) -> ComparedCopy:
        log, theirs = own.log, other.log
        before = part_of(theirs, theirs.min_offset, min(log.min_offset, theirs.max_offset), advance)
        start = max(log.max_offset if difference is None else found.end, theirs.min_offset)
        behind = part_of(theirs, start, theirs.max_offset, advance)
        segment_bytes = log.segments.segment_bytes if log.segments.files else 0
        in_use = files.lock_held(own.path)
        return ComparedCopy(own.path, log.min_offset, log.max_offset, segment_bytes, before, behind, log.gaps, in_use)

    return StoreComparison(
        copy(first, second),
        copy(second, first),
        found.start,
        max(found.end, found.start),
        difference,
        found.rests,
        _compare_tables(files, (first.path, second.path)),
    )


def _compare_tables(files: Files, roots: tuple[str, str]) -> list[TableDifference]:
    found = []
    for name, member in _TABLES.items():
        try:
            tables = [_entries(files.read_file(f"{root}/config/{name}"), name, member) for root in roots]
        except FormatError as error:
            found.append(TableDifference(name, 0, 0, 0, [str(error)]))
            continue
        first, second = tables
        different = [key for key in first.keys() & second.keys() if first[key] != second[key]]
        only_first, only_second = sorted(first.keys() - second.keys()), sorted(second.keys() - first.keys())
        named = [*only_first, *only_second, *sorted(different)]
        if named:
            counts = len(only_first), len(only_second), len(different)
            found.append(TableDifference(name, *counts, named[:_NAMED_MAX]))
    return found


def _entries(text: bytes | None, name: str, member: str) -> Mapping[str, Any]:
    """Returns the entries of a table; of an absent file, none.

    Raises:
        FormatError: it is no table.
    """
    if text is None:
        return {}
    entries = loads_object(text, name).get(member) or {}
    if not isinstance(entries, dict):
        raise FormatError(name, 0, f"an object as {member}", type(entries).__name__)
    return entries
