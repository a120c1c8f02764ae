"""The stretches of the log in which every record was written with a checksum (``__CRC32#``).

A record that lost its end, for instance a sector, looks like one that never had a checksum. Inside such a stretch it
counts as damaged; outside, nothing is known. The watermark file keeps the stretches as marks, each with an offset and
the writer from there on (``watermark.WriterMark``). While Rucola writes checksums, the last mark is open: its stretch
ends at ``flushed_offset``, so that appends and syncs need no further mark.

Each start decides anew how far the open stretch reaches. Records behind the mark belong to it as long as each has a
checksum. The first one without closes it, because somebody else has written. If RocketMQ has cut the log below the mark
before it wrote, records without checksum reach across the mark; the stretch then ends at the first of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from rucola.common.columns import WalkStop, new_table
from rucola.common.numbers import INT64_MAX
from rucola.formats.message import CHECK_PHYSICAL_OFFSET, ROWS_MAX
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.mapped_file import MappedFile
from rucola.store.recovery.watermark import WRITER_MARKS_MAX, Watermark, Writer, WriterMark

_HEAD_BYTES = 8


class ChecksumStretch(NamedTuple):
    """Physical offsets from ``start`` up to ``end`` (excluded), both at the border of a record."""

    start: int
    end: int


def known_stretches(segments: Sequence[MappedFile], watermark: Watermark | None) -> list[ChecksumStretch]:
    """Returns the stretches that the last run noted, oldest first.

    Args:
        segments: the segments of the log, oldest first; its end need not be known.
        watermark: the watermark of the last run; None if there is none.
    """
    closed, last = _noted(segments, watermark)
    return [stretch for stretch in (*closed, last) if stretch is not None and stretch.start < stretch.end]


def follow_on(
    segments: Sequence[MappedFile], watermark: Watermark | None, end_offset: int, with_checksums: bool
) -> tuple[tuple[WriterMark, ...], list[ChecksumStretch]]:
    """Returns the marks for the run that now begins, and its stretches; the last one has no end if this run writes
    checksums.

    Args:
        segments, watermark: see ``known_stretches``.
        end_offset: physical offset at which this run begins to append.
        with_checksums: whether this run appends a checksum to each record.
    """
    stretches, last = _noted(segments, watermark)
    open_from = end_offset
    if last is not None:
        end = _first_without(segments, last.end, end_offset)
        if end >= end_offset and with_checksums:
            open_from = last.start
        else:
            stretches.append(ChecksumStretch(last.start, end))
    floor = segments[0].start if segments else end_offset
    stretches = [
        ChecksumStretch(start, min(end, end_offset))
        for start, end in stretches
        if min(end, end_offset) > max(start, floor)
    ]
    stretches = stretches[-(WRITER_MARKS_MAX // 2 - 1) :]
    marks = [
        mark
        for one in stretches
        for mark in (WriterMark(one.start, Writer.RUCOLA), WriterMark(one.end, Writer.UNKNOWN))
    ]
    if with_checksums:
        marks.append(WriterMark(open_from, Writer.RUCOLA))
        stretches.append(ChecksumStretch(open_from, INT64_MAX))
    return tuple(marks), stretches


def as_pairs(stretches: Sequence[ChecksumStretch]) -> array[int] | None:
    """Returns the stretches in the form that ``walk_records`` takes."""
    return array("q", [offset for stretch in stretches for offset in stretch]) if stretches else None


def _noted(
    segments: Sequence[MappedFile], watermark: Watermark | None
) -> tuple[list[ChecksumStretch], ChecksumStretch | None]:
    """Returns the closed stretches that the watermark names, and the open one with the end known so far; None if nobody
    can have continued it.
    """
    if watermark is None or not watermark.writers:
        return [], None
    marks, mark = watermark.writers, watermark.flushed_offset
    ends = [following.physical_offset for following in marks[1:]] + [mark]
    stretches = [
        ChecksumStretch(begin.physical_offset, end)
        for begin, end in zip(marks, ends, strict=True)
        if begin.writer == Writer.RUCOLA
    ]
    if marks[-1].writer != Writer.RUCOLA:
        return stretches, None
    start, _ = stretches.pop()
    end = _end_before_foreign(segments, start, mark)
    if end < mark:
        return [*stretches, ChecksumStretch(start, end)], None
    return stretches, ChecksumStretch(start, mark)


def _end_before_foreign(segments: Sequence[MappedFile], start: int, mark: int) -> int:
    """Returns where the open stretch from ``start`` to ``mark`` ends: at ``mark``, unless somebody else has cut the log
    below the mark and has written on. Then records without checksum reach across the mark, and the stretch ends at the
    first of them.
    """
    end = mark
    if not _foreign_at(segments, mark):
        return end
    for file in reversed(segments):
        if file.start < end and file.end > start:
            first = max(file.start, start)
            begin = _run_without(segments, first, min(file.end, end))
            if begin > first:
                return min(begin, end)
            end = first
    return end


def _foreign_at(segments: Sequence[MappedFile], offset: int) -> bool:
    """Whether bytes at ``offset`` show that Rucola did not write them: neither zeros nor a record with checksum."""
    while (file := _find(segments, offset)) is not None:
        position, walk = offset - file.start, CheckedWalk(new_table(1), _from(offset))
        rows, _, stop = walk.walk(file, position, CHECK_PHYSICAL_OFFSET)
        if rows or walk.unreadable:
            return False
        if stop != WalkStop.BLANK:
            return any(file.map.view[position : min(position + _HEAD_BYTES, walk.read_to(file, position))])
        offset = file.end
    return False


def _run_without(segments: Sequence[MappedFile], offset: int, end: int) -> int:
    """Returns where the records without checksum begin that reach from there to ``end`` or beyond; ``end`` if there are
    none. ``offset`` and ``end`` lie in the same segment.
    """
    begin = _first_without(segments, offset, end)
    while begin < end and (file := _find(segments, begin)) is not None:
        reached = _first_with(file, begin, end)
        if reached >= end:
            return begin
        if reached == begin:
            return end  # no record at all: recovery judges the damage
        begin = _first_without(segments, reached, end)
    return end


def _first_with(file: MappedFile, offset: int, end: int) -> int:
    """Returns the physical offset of the first record from ``offset`` on that has a checksum or is unreadable. If there
    is none in the segment below ``end``, the result is at least ``end``.
    """
    any_walk, walk = CheckedWalk(new_table(1)), CheckedWalk(new_table(1), _from(offset))
    while offset < end:
        rows, position, stop = any_walk.walk(file, offset - file.start, CHECK_PHYSICAL_OFFSET)
        if stop == WalkStop.BLANK:
            return file.end
        if not rows or walk.walk(file, offset - file.start, CHECK_PHYSICAL_OFFSET)[0]:
            return offset
        offset = file.start + position
    return offset


def _first_without(segments: Sequence[MappedFile], offset: int, end: int) -> int:
    """Returns the physical offset of the first record from ``offset`` on that has no checksum or cannot be read; at
    least ``end`` if there is none below ``end``.
    """
    walk = CheckedWalk(new_table(ROWS_MAX), _from(offset))
    while offset < end and (file := _find(segments, offset)) is not None:
        _, position, stop = walk.walk(file, offset - file.start, CHECK_PHYSICAL_OFFSET)
        offset = file.start + position
        if stop == WalkStop.TORN:
            return offset
        if stop != WalkStop.TABLE_FULL:
            offset = file.end
    return offset


def _from(offset: int) -> array[int]:
    return array("q", (offset, INT64_MAX))


def _find(segments: Sequence[MappedFile], offset: int) -> MappedFile | None:
    at = bisect_right(segments, offset, key=lambda file: file.start) - 1
    return segments[at] if at >= 0 and offset < segments[at].end else None
