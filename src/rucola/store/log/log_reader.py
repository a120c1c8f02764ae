"""Reads single records of a commit log. The log's writer and the offline reader build on this module."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from rucola.common.columns import RecordColumn, new_table
from rucola.formats.checksum import crc32
from rucola.formats.light_queue import light_queue_offsets
from rucola.formats.message import (
    CHECK_ALL,
    CHECK_PHYSICAL_OFFSET,
    CHECK_RECORD_CRC,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_NAME,
    walk_records,
)
from rucola.formats.record_search import find_record
from rucola.store.log.segment_list import SegmentList

_I32 = Struct(">i")
_I64 = Struct(">q")
_SYS_FLAG_AT = 36
_STORE_TIMESTAMP_AT = 56
_BORN_HOST_V6 = 16
_HOST_V6_MORE = 12
_RECORD_MIN = 64
HEAD_BYTES = _RECORD_MIN + _HOST_V6_MORE
"""Number of bytes of a record that ``stored_ms`` reads."""


def stored_ms(head: bytes | memoryview) -> int:
    """Returns the store time in ms that a record states.

    Args:
        head: its first ``HEAD_BYTES`` bytes.
    """
    wide = _I32.unpack_from(head, _SYS_FLAG_AT)[0] & _BORN_HOST_V6
    timestamp: int = _I64.unpack_from(head, _STORE_TIMESTAMP_AT + (_HOST_V6_MORE if wide else 0))[0]
    return timestamp


class Gap(NamedTuple):
    """A part of the log without messages, from physical offset ``start`` up to ``end``."""

    start: int
    end: int


class RecordIdentity(NamedTuple):
    """Fields by which a record identifies itself.

    Attributes:
        protected: True if the record has a checksum of the whole record (``__CRC32#``) and this checksum is right.
    """

    physical_offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    protected: bool


class LogReader:
    """The readable part of a commit log: ``segments`` up to ``max_offset``.

    Attributes:
        segments: the segments of the log.
        max_offset: physical offset after the last record.
        gaps: parts of the log whose messages were lost; queue entries that point into a gap count as valid.
        stretches: start and end of each range of physical offsets in which every record was written with a checksum;
            None if none is known (``recovery.checksum_stretches``).
    """

    def __init__(self, segments: SegmentList) -> None:
        self.segments = segments
        self.max_offset = 0
        self.gaps: list[Gap] = []
        self.stretches: array[int] | None = None
        self._one_row = new_table(1)

    def know_stretches(self, stretches: array[int] | None) -> None:
        """Sets ``stretches``."""
        self.stretches = stretches

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that has not expired."""
        return self.segments.start

    def view(self, physical_offset: int, size: int) -> memoryview | None:
        """Returns ``size`` bytes from ``physical_offset``; None if they do not lie in the same segment of the log."""
        file = self.segments.find(physical_offset)
        if file is None or size <= 0:
            return None
        end = physical_offset + size
        if end > self.max_offset or end > file.end:
            return None
        position = physical_offset - file.start
        return file.map.view[position : position + size]

    def message_at(self, physical_offset: int) -> memoryview | None:
        """Returns the record that starts at ``physical_offset``, or None. The record's offset field and checksums are
        checked.
        """
        row = self.row_at(physical_offset, CHECK_ALL)
        return None if row is None else self.view(physical_offset, row[RecordColumn.RECORD_SIZE])

    def row_at(self, physical_offset: int, check: int = CHECK_PHYSICAL_OFFSET) -> array[int] | None:
        """Returns the columns of the record at ``physical_offset``, with positions within its segment; None if there is
        no record.

        The next call overwrites the row.
        """
        file = self.segments.find(physical_offset)
        if file is None or not self.min_offset <= physical_offset < self.max_offset:
            return None
        limit = min(self.max_offset - file.start, file.size)
        segment = file.map
        rows, _, _ = walk_records(
            segment.buffer,
            segment.view,
            physical_offset - file.start,
            limit,
            file.start,
            self._one_row,
            1,
            crc32,
            check,
            self.stretches if check & CHECK_RECORD_CRC else None,
        )
        return self._one_row if rows else None

    def record_starts(self, physical_offset: int, end: int) -> Iterator[int]:
        """Yields the physical offsets from ``physical_offset`` up to ``end`` (excluded) at which intact records seem to
        start; searches only the segment of ``physical_offset``.

        A body can contain the bytes of a record, so the caller must check whether the queue that is named in the record
        has an entry for this offset.
        """
        file = self.segments.find(physical_offset)
        if file is None:
            return
        position, last = physical_offset - file.start, min(end, self.max_offset, file.end) - file.start
        while (position := find_record(file.map.buffer, position, last)) >= 0:
            if self.row_at(file.start + position, CHECK_ALL) is not None:
                yield file.start + position
            position += 1

    def store_timestamp(self, physical_offset: int) -> int:
        """Returns the store time in ms of the record at ``physical_offset``; -1 outside of the log. The record is not
        checked.
        """
        view = self.view(physical_offset, HEAD_BYTES)
        return -1 if view is None else stored_ms(view)

    def holds(self, physical_offset: int, size: int, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """True if the record at ``physical_offset`` has ``size`` bytes and these queue values, or lies in a gap.

        The entries of a light queue point to records of other topics. The properties of such a record name the light
        queue and the record's offset in it.
        """
        if self.in_gap(physical_offset):
            return True
        row = self.row_at(physical_offset)
        if row is None or row[RecordColumn.RECORD_SIZE] != size:
            return False
        if topic.startswith(b"%LMQ%") and (topic, queue_offset) in light_queue_offsets(
            self.properties_of(physical_offset, row)
        ):
            return True
        return (
            row[RecordColumn.QUEUE_OFFSET] == queue_offset
            and row[RecordColumn.QUEUE_ID] == queue_id
            and self.topic_of(physical_offset, row) == topic
        )

    def identity(self, physical_offset: int) -> RecordIdentity | None:
        """Returns the fields by which the record at ``physical_offset`` identifies itself; None if there is no record.

        The record's physical offset field and body checksum are not checked. The checksum of the whole record is
        checked if there is one; ``protected`` gives the result.
        """
        row = self.row_at(physical_offset, 0)
        if row is None:
            return None
        topic = self.topic_of(physical_offset, row)
        crc = self.properties_of(physical_offset, row)[-CRC_PROPERTY_BYTES:]
        identity = RecordIdentity(
            row[RecordColumn.PHYSICAL_OFFSET],
            row[RecordColumn.RECORD_SIZE],
            topic,
            row[RecordColumn.QUEUE_ID],
            row[RecordColumn.QUEUE_OFFSET],
            False,
        )
        if not crc.startswith(CRC_PROPERTY_NAME) or self.row_at(physical_offset, CHECK_RECORD_CRC) is None:
            return identity
        return identity._replace(protected=True)

    def properties_of(self, physical_offset: int, row: array[int]) -> bytes:
        """Returns the property text of a row whose record lies in the segment with ``physical_offset``."""
        file = self.segments.find(physical_offset)
        assert file is not None
        position = row[RecordColumn.PROPERTIES_POS]
        return bytes(file.map.view[position : position + row[RecordColumn.PROPERTIES_LEN]])

    def in_gap(self, physical_offset: int) -> bool:
        """Whether messages were lost at ``physical_offset``."""
        return any(gap.start <= physical_offset < gap.end for gap in self.gaps)

    def boundary(self, physical_offset: int) -> int:
        """Returns the start of the gap that contains ``physical_offset``; outside of gaps, ``physical_offset``
        itself.
        """
        for gap in self.gaps:
            if gap.start < physical_offset < gap.end:
                return gap.start
        return physical_offset

    def topic_of(self, physical_offset: int, row: array[int]) -> bytes:
        """Returns the topic bytes of a row whose record lies in the segment with ``physical_offset``."""
        file = self.segments.find(physical_offset)
        assert file is not None
        position = row[RecordColumn.TOPIC_POS]
        return bytes(file.map.view[position : position + row[RecordColumn.TOPIC_LEN]])
