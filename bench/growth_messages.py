"""Curves of the message itself: its size and its properties."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.growth_curves import Growth, Point
from bench.growth_live import running, sends

WINDOW = 4
"""Number of messages written at once; more would be more bytes than a read takes."""


def sizes(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Sends messages with bodies of different sizes."""
    yield from _points(growth, server, sizes, "body")


def properties(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Sends messages with different numbers of properties, of 25 bytes each."""
    yield from _points(growth, server, sizes, "properties")


def _points(growth: Growth, server: str, sizes: Sequence[int], field: str) -> Iterator[Point]:
    with running(growth, server) as (pair, program):
        for size in (*sizes, sizes[0]):
            growth.show(f"{field}: {server}, {size:,}")

            def work(messages: int, size: int = size) -> str:
                return sends(messages, window=WINDOW, **{field: size})

            yield growth.point(pair, program, size, work, pilot=max(16, min(1_000, (32 << 20) // (size + 1))))
