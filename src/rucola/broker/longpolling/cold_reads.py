"""Pulls of messages that are not in memory: threads wait for the disk while the event loop serves everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rucola.broker.longpolling.pull_request_hold import PullRequest

_THREADS = 4
"""Reads the disk is asked for at once. Consumers far behind read on in their files, which the system reads ahead."""


class ColdReads:
    """The reads under way. Event loop only.

    Args:
        resume: ``(request, may_wait)``; runs the pull again once its messages are in memory.
    """

    def __init__(self, resume: Callable[[PullRequest, bool], None]) -> None:
        self._resume = resume
        self._threads = ThreadPoolExecutor(_THREADS, "rucola-cold-read")
        self._running: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, request: PullRequest, fetch: Callable[[], None], may_wait: bool) -> None:
        """Call ``fetch`` for what ``request`` needs, then resume it."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, fetch)
        self._running.add(future)

        def fetched(done: asyncio.Future[None]) -> None:
            self._running.discard(done)
            self._resume(request, may_wait)

        future.add_done_callback(fetched)

    async def close(self) -> None:
        """Returns when every read has ended and its request was answered."""
        while self._running:
            await asyncio.wait(self._running)
        self._threads.shutdown(wait=False)
