"""Long work in steps: between the steps, the event loop serves other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps: other requests may be served at each ``yield``. Such a request may change what the next step reads."""

PIECE_S = 0.005
"""Seconds in each turn for work that is done in steps (``in_turns``)."""


def at_once(steps: Steps[T]) -> T:
    """Runs ``steps`` without a pause between them; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def in_turns(steps: Steps[T]) -> T:
    """Runs ``steps`` for ``PIECE_S`` in each turn of the event loop; returns their result."""
    time = asyncio.get_running_loop().time
    ends_s = time() + PIECE_S
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if time() >= ends_s:
            await asyncio.sleep(0)
            ends_s = time() + PIECE_S
