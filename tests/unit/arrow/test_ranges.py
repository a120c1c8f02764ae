"""Planning of tasks: no message is lost, none is read twice, limits hold."""

from __future__ import annotations

import bisect
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.arrow.ranges import (
    FileSpan,
    LogRange,
    QueueRange,
    WantedRanges,
    prefers_log_scan,
    split_log_span,
    split_queue_ranges,
)
from rucola.common.message_queue import MessageQueue


def queue_range(queue_id: int, start: int, end: int) -> QueueRange:
    return QueueRange(MessageQueue("t", "b", queue_id), start, end)


@pytest.mark.parametrize(
    ("partitions_min", "records_max", "expected"),
    [
        (None, None, [(0, 0, 10), (1, 5, 35)]),
        (None, 10, [(0, 0, 10), (1, 5, 15), (1, 15, 25), (1, 25, 35)]),
        (2, None, [(0, 0, 10), (1, 5, 35)]),
        (4, None, [(0, 0, 10), (1, 5, 15), (1, 15, 25), (1, 25, 35)]),
        (None, 100, [(0, 0, 10), (1, 5, 35)]),
    ],
)
def test_split_queue_ranges(partitions_min: int | None, records_max: int | None, expected: list[object]) -> None:
    ranges = [queue_range(0, 0, 10), queue_range(1, 5, 35), queue_range(2, 8, 8)]
    pieces = split_queue_ranges(ranges, partitions_min, records_max)
    assert [(piece.queue.queue_id, piece.start, piece.end) for piece in pieces] == expected


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), max_size=8),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 100),
)
def test_pieces_tile_the_ranges(
    spans: list[tuple[int, int]], partitions_min: int | None, records_max: int | None
) -> None:
    ranges = [queue_range(number, start, start + count) for number, (start, count) in enumerate(spans)]
    pieces = split_queue_ranges(ranges, partitions_min, records_max)
    assert all(piece.count > 0 for piece in pieces)
    assert records_max is None or all(piece.count <= records_max for piece in pieces)
    for one in ranges:
        own = [piece for piece in pieces if piece.queue == one.queue]
        assert [offset for piece in own for offset in range(piece.start, piece.end)] == list(range(one.start, one.end))


def test_no_ranges_give_no_pieces() -> None:
    assert split_queue_ranges([], 8, 10) == []
    assert split_queue_ranges([queue_range(0, 3, 3)], 8, 10) == []


@pytest.mark.parametrize(
    ("wanted", "span", "log"), [(15, 100, True), (14, 100, False), (100, 100, True), (0, 1, False)]
)
def test_scan_order(wanted: int, span: int, log: bool) -> None:
    assert prefers_log_scan(wanted, span) is log


@given(st.lists(st.integers(91, 400), min_size=1, max_size=60), st.integers(1, 5000), st.none() | st.integers(1, 9))
def test_log_spans_are_cut_at_record_starts(sizes: list[int], bytes_max: int, partitions_min: int | None) -> None:
    starts = [1000 + sum(sizes[:number]) for number in range(len(sizes))]
    end = starts[-1] + sizes[-1]

    def record_start_from(position: int) -> int:
        at = bisect.bisect_left(starts, position)
        return starts[at] if at < len(starts) else end

    pieces = split_log_span(1000, end, bytes_max, partitions_min, record_start_from)
    assert [piece[0] for piece in pieces[1:]] == [piece[1] for piece in pieces[:-1]]
    assert (pieces[0][0], pieces[-1][1]) == (1000, end)
    assert all(start < stop for start, stop in pieces)
    assert all(start in starts for start, _ in pieces)
    assert all(stop - start <= bytes_max + max(sizes) for start, stop in pieces)


def test_an_empty_span_gives_no_pieces() -> None:
    assert split_log_span(5, 5, 10, 4, lambda position: position) == []


def test_thousands_of_wanted_queues_are_a_small_pickle() -> None:
    numbers = random.Random(7)
    wanted = WantedRanges(
        QueueRange(MessageQueue(f"orders-of-region-{number // 8}", "broker-a", number % 8), 0, numbers.randrange(10**6))
        for number in range(4000)
    )
    segments = tuple(FileSpan(f"/data/commitlog/{number:020d}", number << 30, 1 << 30) for number in range(2))
    piece = LogRange(0, 10**12, wanted, segments)
    stored = pickle.dumps(piece)
    assert len(stored) < 64 << 10
    assert pickle.loads(stored) == piece
    assert isinstance(pickle.loads(stored).wanted, WantedRanges)
