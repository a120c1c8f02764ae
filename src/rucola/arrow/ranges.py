"""Plans the queue offsets or the bytes of the log that each task reads. Pure functions over numbers.

A store directory can be scanned in queue order or in log order. In queue order, a task reads a *queue range*: an
interval of offsets of one queue. In log order, a task reads a *log range*: an interval of the commit log, from which it
keeps the records in the wanted queue ranges. Log order is faster if enough bytes are wanted (``LOG_SCAN_PERCENT``).
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

from rucola.common.message_queue import MessageQueue

LOG_SCAN_PERCENT = 15
"""A log scan is chosen if at least this percentage of the bytes from the first to the last wanted record is wanted."""


@dataclass(frozen=True)
class QueueRange:
    """The queue offsets of one queue from ``start`` up to, but not including, ``end``."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def broker_name(self) -> str:
        """The broker of the queue."""
        return self.queue.broker_name

    @property
    def count(self) -> int:
        """Number of queue offsets in the range."""
        return self.end - self.start


@dataclass(frozen=True)
class FileSpan:
    """A file of the commit log or of a consume queue. It begins at byte ``start`` of the log or queue.

    Attributes:
        stretches: start and end of each range of physical offsets in the file in which a record without checksum has
            lost its end; empty for a file of a consume queue.
    """

    path: str
    start: int
    size: int
    stretches: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The position after the last byte of the file."""
        return self.start + self.size


class WantedRanges(tuple[QueueRange, ...]):
    """Queue ranges with a small pickle, because every task of a log scan gets them; there may be thousands of queues.

    The pickle holds all numbers in one compressed array, and is created only once for all tasks.

    Attributes:
        begins: for each range, the physical offset of its first record, -1 if it has none; empty if they are not known.
            Earlier records with these queue offsets belong to a deleted topic of the same name.
    """

    begins: tuple[int, ...]

    def __new__(cls, ranges: Iterable[QueueRange] = (), begins: Iterable[int] = ()) -> Self:
        """Makes the tuple of ``ranges``."""
        made = super().__new__(cls, ranges)
        made.begins = tuple(begins)
        return made

    def __reduce__(self) -> tuple[Callable[[bytes], WantedRanges], tuple[bytes]]:
        return _unpacked, (self._packed,)

    @cached_property
    def _packed(self) -> bytes:
        names = sorted({(one.queue.topic, one.queue.broker_name) for one in self})
        places = {name: place for place, name in enumerate(names)}
        numbers = array("q")
        numbers.extend(places[one.queue.topic, one.queue.broker_name] for one in self)
        numbers.extend(one.queue.queue_id for one in self)
        numbers.extend(one.start for one in self)
        numbers.extend(one.end for one in self)
        numbers.extend(self.begins or (-2 for _ in self))
        return zlib.compress(json.dumps(names).encode() + b"\n" + numbers.tobytes())


def _unpacked(packed: bytes) -> WantedRanges:
    head, _, content = zlib.decompress(packed).partition(b"\n")
    names = json.loads(head)
    numbers = array("q")
    numbers.frombytes(content)
    count = len(numbers) // 5
    *columns, begins = (numbers[at * count : (at + 1) * count] for at in range(5))
    ranges = (
        QueueRange(MessageQueue(names[place][0], names[place][1], queue_id), start, end)
        for place, queue_id, start, end in zip(*columns, strict=True)
    )
    return WantedRanges(ranges, () if -2 in begins else begins)


@dataclass(frozen=True)
class LogRange:
    """An interval of the commit log between two record starts, the queue ranges wanted from it, and its files."""

    start_physical_offset: int
    end_physical_offset: int
    wanted: WantedRanges
    segments: tuple[FileSpan, ...]

    @property
    def broker_name(self) -> str:
        """The broker of all queues in the range."""
        return self.wanted[0].broker_name


@dataclass(frozen=True)
class UnitRange:
    """A queue range of a store directory, with the consume-queue files and the segments that hold its records."""

    wanted: QueueRange
    units: tuple[FileSpan, ...]
    segments: tuple[FileSpan, ...]

    @property
    def broker_name(self) -> str:
        """The broker of the queue."""
        return self.wanted.broker_name


@dataclass(frozen=True)
class RecordRange:
    """Single records of a store directory: physical offsets and sizes, the wanted queue ranges, and the files."""

    physical_offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    wanted: WantedRanges
    segments: tuple[FileSpan, ...]

    @property
    def broker_name(self) -> str:
        """The broker of all queues in the range."""
        return self.wanted[0].broker_name


SourceRange = QueueRange | LogRange | UnitRange | RecordRange


def split_queue_ranges(
    ranges: Sequence[QueueRange], partitions_min: int | None, records_max: int | None
) -> list[QueueRange]:
    """Cuts the ranges into about ``partitions_min`` pieces, or more if a piece would exceed ``records_max`` offsets.

    The result depends only on the arguments, so a replayed micro-batch has the same pieces. Empty ranges are dropped.
    """
    pieces = [piece for one in ranges if one.count > 0 for piece in _split_evenly(one, _parts(one.count, records_max))]
    if partitions_min is None or len(pieces) >= partitions_min:
        return pieces
    total = sum(piece.count for piece in pieces)
    return [
        part
        for piece in pieces
        for part in _split_evenly(piece, max(1, (piece.count * partitions_min + total // 2) // total))
    ]


def prefers_log_scan(wanted_bytes: int, span_bytes: int) -> bool:
    """Whether reading all ``span_bytes`` of the log is faster than reading only ``wanted_bytes``, record by record."""
    return wanted_bytes * 100 >= span_bytes * LOG_SCAN_PERCENT


def split_log_span(
    start_physical_offset: int,
    end_physical_offset: int,
    bytes_max: int,
    partitions_min: int | None,
    record_start_from: Callable[[int], int],
) -> list[tuple[int, int]]:
    """Cuts the span at record starts into pieces of about equal size, none much larger than ``bytes_max``.

    Args:
        start_physical_offset: a record start.
        end_physical_offset: the end of a record.
        bytes_max: desired size of a piece; a piece may be larger by the distance to the next known record start.
        partitions_min: smallest number of pieces, if there are enough record starts.
        record_start_from: returns a record start at or after a physical offset.
    """
    span = end_physical_offset - start_physical_offset
    if span <= 0:
        return []
    parts = max(_parts(span, bytes_max), partitions_min or 1)
    cuts = [start_physical_offset]
    for number in range(1, parts):
        cut = min(record_start_from(start_physical_offset + span * number // parts), end_physical_offset)
        if cuts[-1] < cut < end_physical_offset:
            cuts.append(cut)
    return list(pairwise([*cuts, end_physical_offset]))


def _parts(count: int, most: int | None) -> int:
    return 1 if most is None else -(-count // most)


def _split_evenly(one: QueueRange, parts: int) -> list[QueueRange]:
    parts = min(parts, one.count)
    cuts = [one.start + one.count * number // parts for number in range(parts + 1)]
    return [QueueRange(one.queue, start, end) for start, end in pairwise(cuts)]
