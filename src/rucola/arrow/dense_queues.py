"""Decides whether the entries of queues alone show which messages a scan would return: one for each queue offset. Then
a query of topics, queues and offsets need not read the log; counts are such queries.

A scan in queue order reads the records that the entries point to. A scan in log order finds every record of a queue,
also records that no entry points to: those of an earlier life of the queue, for example. Both find the same if the
entries of all queues together cover the part of the log that holds the wanted records: each byte belongs to one entry.

The records themselves are not read, except the first and the last of each queue: a scan may find damage in others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rucola.arrow.ranges import QueueRange
from rucola.arrow.store_scan import PHYSICAL_OFFSET_AT, PREFILL_SIZE, UNIT
from rucola.common.columns import RecordColumn
from rucola.common.key_builder import is_light_queue
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.message import MAGIC_BLANK
from rucola.runtime.files import Files
from rucola.store.offline.offline_store import OfflineStore

CHUNK_UNITS = 1 << 16
QUEUES_MAX = 1024
"""Largest number of queues whose entries are read: opening a queue takes half a millisecond."""
OTHERS_MAX = 32
"""Largest number of entries that are read for each wanted one: a scan takes about 32 times as long for a message."""
BLANK_BYTES = 8
"""Length of the beginning of the record that ends a segment: size and magic code."""

Numbers = npt.NDArray[np.int64]


def are_dense(store: OfflineStore, ranges: Sequence[QueueRange], log_span: tuple[int, int]) -> bool:
    """Whether a scan of ``ranges`` finds exactly one message at each queue offset, unless it finds damage.

    Args:
        store: the store.
        ranges: not empty; of queues that are neither light nor of type BatchCQ.
        log_span: physical offsets of the part of the log that holds the records.
    """
    try:
        entries_max = OTHERS_MAX * sum(one.count for one in ranges) + CHUNK_UNITS
        return all(_is_dense(store, one) for one in ranges) and _is_covered(store, *log_span, entries_max)
    except (DiskError, StoreDamagedError):  # a broker has removed a file meanwhile, or another queue is damaged
        return False


def _is_dense(store: OfflineStore, wanted: QueueRange) -> bool:
    """Whether the entries of a queue point to as many different records, one behind the other."""
    queue = wanted.queue
    count, end, first, last = 0, -1, -1, -1
    for positions, sizes in _entries(store, queue.topic, queue.queue_id, wanted.start, wanted.end):
        ends = positions + sizes
        if positions[0] < end or np.any(sizes <= PHYSICAL_OFFSET_AT + 8) or np.any(sizes == PREFILL_SIZE):
            return False
        if np.any(positions[1:] < ends[:-1]):
            return False
        count, end, last = count + len(positions), int(ends[-1]), int(positions[-1])
        first = int(positions[0]) if first < 0 else first
    if count != wanted.count:
        return False
    places = ((first, wanted.start), (last, wanted.end - 1))
    return all(_is_record(store, wanted, at, queue_offset) for at, queue_offset in places)


def _is_record(store: OfflineStore, wanted: QueueRange, physical_offset: int, queue_offset: int) -> bool:
    """Whether the record says that it has this place in the queue."""
    log, topic = store.log, wanted.queue.topic.encode("utf-8", "surrogateescape")
    row = log.row_at(physical_offset)
    return (
        row is not None
        and row[RecordColumn.QUEUE_ID] == wanted.queue.queue_id
        and row[RecordColumn.QUEUE_OFFSET] == queue_offset
        and log.topic_of(physical_offset, row) == topic
    )


def _is_covered(store: OfflineStore, start: int, end: int, entries_max: int) -> bool:
    """Whether the entries of all queues cover the log from ``start`` to ``end``, except for the ends of segments; False
    if that takes more than ``entries_max`` entries.
    """
    names = [queue for queue in store.queue_names() if not is_light_queue(queue[0])]
    if len(names) > QUEUES_MAX:
        return False
    queues = [(*name, _entry_from(store, *name, start), _entry_from(store, *name, end)) for name in names]
    if sum(last - first for _, _, first, last in queues) > entries_max:
        return False
    segments = [(first, size) for _, first, size in store.log_segments() if first < end and first + size > start]
    starts = np.array([first for first, _ in segments], dtype=np.int64)
    held, ends = np.zeros((2, len(starts)), dtype=np.int64), np.zeros_like(starts)
    for queue in queues:
        for positions, sizes in _entries(store, *queue):
            inside = (positions >= start) & (positions < end) & (sizes != PREFILL_SIZE)
            if inside.any():
                _add(held, ends, starts, positions[inside], sizes[inside])
    for number, (first, size) in enumerate(segments):
        begin, held_to = max(first, start) - first, int(ends[number])
        if held[:, number].tolist() != [held_to - begin, held_to**2 - begin**2]:
            return False
        if first + held_to < end and not _is_blank(store, first + held_to, size - held_to):
            return False
    return int(starts[-1] + ends[-1]) == end


def _add(held: Numbers, ends: Numbers, starts: Numbers, positions: Numbers, sizes: Numbers) -> None:
    """Adds entries to what the entries of each segment hold. The second sum weighs each byte with its place: a gap and
    an overlap of the same length do not cancel each other.

    Args:
        held: two sums for each segment. Entries from place a to place b add b - a to the first, b**2 - a**2 to the
            second; a segment has less than 2**31 bytes, so the sums of a segment that is covered fit into 64 bits.
        ends: where the last entry of each segment ends, from the segment's start.
        starts: physical offsets of the segments.
        positions, sizes: the entries.
    """
    places = np.searchsorted(starts, positions, side="right") - 1
    runs = np.append(0, np.flatnonzero(np.diff(places)) + 1)
    positions = positions - starts[places]
    for row, values in zip(held, (sizes, sizes * (2 * positions + sizes)), strict=True):
        np.add.at(row, places[runs], np.add.reduceat(values, runs))
    np.maximum.at(ends, places[runs], np.maximum.reduceat(positions + sizes, runs))


def _is_blank(store: OfflineStore, physical_offset: int, size: int) -> bool:
    """Whether the rest of a segment, of ``size`` bytes, holds no record."""
    head = store.log.view(physical_offset, BLANK_BYTES) if size > 0 else None
    return size == 0 or (head is not None and int.from_bytes(head[4:], "big", signed=True) == MAGIC_BLANK)


def _entry_from(store: OfflineStore, topic: str, queue_id: int, physical_offset: int) -> int:
    """The queue offset of a queue's first entry for a record at or after ``physical_offset``. If the entries are not in
    order, it is any entry.
    """

    def position(queue_offset: int) -> int:
        return next((unit[1] for unit in store.units(topic, queue_id, queue_offset, queue_offset + 1)), -1)

    held = store.queue_range(topic, queue_id)
    return bisect_left(range(held.max_offset), physical_offset, held.min_offset, key=position)


def _entries(
    store: OfflineStore, topic: str, queue_id: int, first: int, last: int
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yields physical offsets and sizes of the entries from queue offset ``first`` to ``last`` (excluded), in chunks;
    fewer if files are missing.
    """
    files = Files()
    for path, start, count in store.queue_files(topic, queue_id):
        begin, end = max(first, start), min(last, start + count)
        if begin >= end:
            continue
        segment = files.map_file(path, count * UNIT.itemsize, writable=False)
        try:
            for at in range(begin, end, CHUNK_UNITS):
                place = (at - start) * UNIT.itemsize
                yield _columns(np.frombuffer(segment.buffer, UNIT, min(CHUNK_UNITS, end - at), place))
        finally:
            segment.close()


def _columns(units: npt.NDArray[np.void]) -> tuple[Numbers, Numbers]:
    """Copies of the columns, which do not need the file."""
    return units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
