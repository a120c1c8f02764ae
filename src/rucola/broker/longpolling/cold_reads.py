"""Requests for messages that are not in memory: threads wait for the disk, the event loop serves everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_THREADS = 4
"""Reads the disk is asked for at once. Consumers far behind read on in their files, which the system reads ahead."""


class ColdReads:
    """The reads under way, of pulls, pops and queries. Event loop only.

    Args:
        waiting_max: how many may be under way or wait for a thread; asked each time.
    """

    def __init__(self, waiting_max: Callable[[], int]) -> None:
        self._waiting_max = waiting_max
        self._threads = ThreadPoolExecutor(_THREADS, "rucola-cold-read")
        self._running: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, channel: Any, fetch: Callable[[], None], resume: Callable[[], None]) -> bool:
        """Call ``fetch`` in a thread for a request of ``channel``, then ``resume`` here; False when too many wait."""
        if len(self._running) >= self._waiting_max():
            return False
        future = asyncio.get_running_loop().run_in_executor(self._threads, fetch)
        self._running.add(future)
        channel.owe(0)

        def fetched(done: asyncio.Future[None]) -> None:
            self._running.discard(done)
            channel.settle(0)
            resume()

        future.add_done_callback(fetched)
        return True

    async def close(self) -> None:
        """Returns when every read has ended and its request was answered."""
        while self._running:
            await asyncio.wait(self._running)
        self._threads.shutdown(wait=False)
