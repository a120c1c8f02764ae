"""Chooses which of the records that a salvage found become the new log.

Of two records with the same offset, the newer one counts: it was written after the log had been truncated. A file
without the name of a segment, such as a disk image, does not say where its records belong, so the offset that a record
states is used. A body may hold the bytes of a record, too, and whoever sent it chose what that record states. Such
bytes are found if their message is damaged. They lie in a hole of the image where the log goes on behind with the same
distance between position and offset as before. What lies in such a hole and states another distance never takes the
place of another record, and is left out if there is no room for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from rucola.formats.message import BLANK
from rucola.store.recovery.repair import FILLER_BYTES_MIN

_SEGMENTS_MAX = 4096
"""Largest number of segments between two records; if there are more, one of the two offsets is wrong."""
_HOLE_BYTES_MAX = 32 << 20
"""Largest length of a hole that one damaged record makes: larger than the largest record."""


class FoundRecord(NamedTuple):
    """A record that a search found.

    Attributes:
        file: index of the file among the searched files.
        position: position of the record in that file.
    """

    physical_offset: int
    size: int
    store_timestamp_ms: int
    file: int
    position: int


def chosen_records(found: Sequence[FoundRecord], segment_bytes: int) -> tuple[list[FoundRecord], int, int]:
    """Returns the records of the new log in order, the number of duplicates, and the number of records that do not fit
    into the log.

    Args:
        found: the records of each file together, in the order of their positions.
    """
    chosen: list[FoundRecord] = []
    copies = misplaced = 0
    doubtful = _in_holes(found)
    for one in sorted(found, key=lambda one: (one.physical_offset, -one.store_timestamp_ms)):
        if (one.file, one.position) in doubtful:
            continue
        last = chosen[-1] if chosen else None
        if last is not None and one[:3] == last[:3]:
            copies += 1
        elif _has_place(one, last, segment_bytes):
            chosen.append(one)
        else:
            misplaced += 1
    if doubtful:
        chosen, more_copies, more_misplaced = _with_doubtful(chosen, sorted(doubtful.values()), segment_bytes)
        copies, misplaced = copies + more_copies, misplaced + more_misplaced
    return chosen, copies, misplaced


def _in_holes(found: Sequence[FoundRecord]) -> dict[tuple[int, int], FoundRecord]:
    """Returns the records in holes that state another distance between offset and position than the records before and
    behind the hole; by file and position.
    """
    doubtful: dict[tuple[int, int], FoundRecord] = {}
    for _, group in groupby(found, key=lambda one: one.file):
        records = list(group)
        positions: dict[int, list[int]] = {}
        for one in records:
            positions.setdefault(one.physical_offset - one.position, []).append(one.position)
        if len(positions) == 1:
            continue
        before = records[0]
        for one in records:
            distance = before.physical_offset - before.position
            if one.physical_offset - one.position != distance:
                behind = positions[distance]
                at = bisect_left(behind, one.position)
                end = before.position + before.size
                if at < len(behind) and behind[at] - end <= _HOLE_BYTES_MAX:
                    doubtful[one.file, one.position] = one
                    continue
            before = one
    return doubtful


def _with_doubtful(
    chosen: Sequence[FoundRecord], doubtful: Sequence[FoundRecord], segment_bytes: int
) -> tuple[list[FoundRecord], int, int]:
    """Adds those doubtful records for which there is room between the chosen ones; returns the same as
    ``chosen_records``.
    """
    result: list[FoundRecord] = []
    taken = copies = misplaced = 0
    for one in doubtful:
        while taken < len(chosen) and chosen[taken].physical_offset <= one.physical_offset:
            result.append(chosen[taken])
            taken += 1
        last, following = result[-1] if result else None, chosen[taken] if taken < len(chosen) else None
        if last is not None and one[:3] == last[:3]:
            copies += 1
        elif _has_place(one, last, segment_bytes) and (following is None or _has_place(following, one, segment_bytes)):
            result.append(one)
        else:
            misplaced += 1
    return [*result, *chosen[taken:]], copies, misplaced


def _has_place(one: FoundRecord, last: FoundRecord | None, segment_bytes: int) -> bool:
    """Whether a record fits into a segment and can follow the last record. There must be no space between the two, or
    enough space for a filler record.
    """
    position = one.physical_offset % segment_bytes
    if position + one.size + BLANK.size > segment_bytes:
        return False
    end = one.physical_offset - position
    if last is not None:
        end = max(last.physical_offset + last.size, end)
        if one.physical_offset - last.physical_offset > _SEGMENTS_MAX * segment_bytes:
            return False
    return one.physical_offset == end or one.physical_offset - end >= FILLER_BYTES_MIN
