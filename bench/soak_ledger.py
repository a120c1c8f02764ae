"""The data that the processes of a soak share, in a file that all of them map.

Each message has a number: the start of its producer's part of the file, plus its position in that part. The file has
two bytes for each message: whether it was acknowledged, and how many times it was received. These counts survive if a
process is killed. In addition, each process has a row of counters that only this process changes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path

_WORD_BYTES = 8
_HEAD_WORDS = 4
SUB_BITS = 5
LATENCY_BUCKETS = 768
"""Number of buckets for latencies up to 33 s; longer latencies are in the last one."""


class Count(IntEnum):
    """Indices of the counters in a process's row; two tables of latencies follow them."""

    SENT = 0
    ACKNOWLEDGED = 1
    REPEATED = 2
    FLUSH_LATE = 3
    RECEIVED = 4
    RECEIVED_FIRST = 5
    PULLS = 6
    MEMBERS = 7
    JOINED = 8
    LEFT = 9
    DIED = 10
    RETRIED = 11
    ERRORS = 12


STEADY = len(Count)
"""Index of the first latency bucket for messages that were sent when a consumer already had their queue."""
TAKEN_OVER = STEADY + LATENCY_BUCKETS
"""Index of the first latency bucket for messages that waited until a consumer took over their queue."""
ROW_WORDS = TAKEN_OVER + LATENCY_BUCKETS


class Ledger:
    """The shared file: counters of the processes, and two bytes for each message.

    Args:
        path: the file.
        create: number of counter rows, of producers, and of messages per producer; None to open an existing file.
    """

    def __init__(self, path: Path, create: tuple[int, int, int] | None = None) -> None:
        with path.open("r+b" if create is None else "w+b") as file:
            if create is not None:
                rows, producers, capacity = create
                file.truncate(_WORD_BYTES * (_HEAD_WORDS + rows * ROW_WORDS) + 2 * producers * capacity)
            self._map = mmap.mmap(file.fileno(), 0)
        head = memoryview(self._map)[: _WORD_BYTES * _HEAD_WORDS].cast("q")
        if create is not None:
            head[0], head[1], head[2] = create
        self.rows, self.producers, self.capacity = head[0], head[1], head[2]
        words = _HEAD_WORDS + self.rows * ROW_WORDS
        self._counters = memoryview(self._map)[_WORD_BYTES * _HEAD_WORDS : _WORD_BYTES * words].cast("q")
        self._acknowledged_from = _WORD_BYTES * words
        self._received_from = self._acknowledged_from + self.producers * self.capacity
        self.acknowledged = memoryview(self._map)[self._acknowledged_from : self._received_from]
        self.received = memoryview(self._map)[self._received_from :]

    def row(self, number: int) -> memoryview:
        """Returns the counters of one process."""
        return self._counters[number * ROW_WORDS : (number + 1) * ROW_WORDS]

    def total(self, count: Count) -> int:
        """Returns the sum of a counter over all processes."""
        return sum(self._counters[row * ROW_WORDS + count] for row in range(self.rows))

    def latencies(self, first: int) -> list[int]:
        """Returns a table of latencies (``STEADY`` or ``TAKEN_OVER``), summed over all processes."""
        rows = (self._counters[row * ROW_WORDS :][first : first + LATENCY_BUCKETS] for row in range(self.rows))
        return [sum(values) for values in zip(*rows, strict=True)]

    def missing(self, most: int) -> tuple[int, list[int]]:
        """Returns how many messages were acknowledged but never received, and the numbers of the first ``most`` of
        them.
        """
        count = 0
        numbers: list[int] = []
        for start in self._parts():
            acknowledged, received = (int.from_bytes(part, "little") for part in self._part(start))
            lost = (acknowledged & ~received).to_bytes(self.capacity, "little")
            count += lost.count(1)
            place = lost.find(1)
            while place >= 0 and len(numbers) < most:
                numbers.append(start + place)
                place = lost.find(1, place + 1)
        return count, numbers

    def different(self) -> tuple[int, int]:
        """Returns how many messages were acknowledged, and how many were received; each message counts once."""
        acknowledged = received = 0
        for start in self._parts():
            sent, got = self._part(start)
            acknowledged += self.capacity - sent.count(0)
            received += self.capacity - got.count(0)
        return acknowledged, received

    def _parts(self) -> Iterator[int]:
        return iter(range(0, self.producers * self.capacity, self.capacity))

    def _part(self, start: int) -> tuple[bytes, bytes]:
        end = start + self.capacity
        return bytes(self.acknowledged[start:end]), bytes(self.received[start:end]).translate(_ONCE)


_ONCE = bytes([0]) + bytes([1]) * 255


def bucket(latency_us: int) -> int:
    """Returns the bucket of a latency; a bucket is at most 1/32 of its latency wide."""
    shift = max(0, latency_us.bit_length() - SUB_BITS - 1)
    return min((shift << SUB_BITS) + (latency_us >> shift), LATENCY_BUCKETS - 1)


def bucket_end_us(number: int) -> int:
    """Returns the upper limit of a bucket in microseconds (exclusive)."""
    shift = max(0, (number >> SUB_BITS) - 1)
    return (number - (shift << SUB_BITS) + 1) << shift


def quantile_ms(latencies: Sequence[int], share: float) -> float:
    """Returns the latency in milliseconds that a fraction ``share`` of the messages does not exceed; 0 without
    messages.
    """
    wanted = share * sum(latencies)
    seen = 0
    for number, count in enumerate(latencies):
        seen += count
        if count and seen >= wanted:
            return bucket_end_us(number) / 1000
    return 0.0
