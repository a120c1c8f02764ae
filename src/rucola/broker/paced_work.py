"""Repeats a piece of the broker's work after pauses that the work itself chooses. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from rucola.broker.cold_reads import ColdReads
from rucola.runtime.supervision import Supervisor
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError

NEW_QUEUES = 4
"""A step ends after it has stored messages in this many new queues. The files of these queues are created
before the next step, and each file takes milliseconds.
"""
_AFTER_ERROR_MS = 10_000


class PacedWork:
    """Calls ``step`` whenever there is work. Call ``start``, and ``stop`` at the end.

    Args:
        name: name of the work, for log and metrics.
        step: does some of the due work, and returns the milliseconds until the next call; if it returns None, the next
            call is made when ``soon`` is called. If ``step`` raises ``NotInMemoryError``, the progress so far is kept,
            and ``step`` is called again after the missing messages were fetched.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[ColdRecords], int | None],
        loop: asyncio.AbstractEventLoop,
        cold_reads: ColdReads,
        supervisor: Supervisor,
    ) -> None:
        self._name = name
        self._step = step
        self._loop = loop
        self._cold_reads = cold_reads
        self._supervisor = supervisor
        supervisor.failures[name] += 0
        self._works = False
        self._fetching = False
        self._call: asyncio.Handle | None = None

    def start(self) -> None:
        """Starts the calls. The first call, made at once, does the work that is already pending."""
        self._works = True
        self._work(ColdRecords())

    def soon(self) -> None:
        """Calls ``step`` as soon as possible, because there is new work."""
        self._schedule(0)

    async def catch_up(self) -> None:
        """Does the work that is due now: calls ``step`` until it returns a pause or None, then continues as usual."""
        while self._works and await self._cold_reads.done(self._step) == 0:
            await asyncio.sleep(0)
        self.soon()

    def stop(self) -> None:
        """Makes no further calls."""
        self._works = False
        if self._call is not None:
            self._call.cancel()

    def _schedule(self, pause_ms: int) -> None:
        if not self._works or self._fetching:
            return
        if self._call is not None:
            self._call.cancel()
        self._call = self._loop.call_later(pause_ms / 1000, self._work, ColdRecords())

    def _work(self, cold: ColdRecords) -> None:
        self._call = None
        try:
            pause_ms = self._step(cold)
        except NotInMemoryError:
            self._fetching = True
            self._cold_reads.fetch(cold.fetch).add_done_callback(partial(self._fetched, cold))
            return
        except Exception as error:  # noqa: BLE001 - an error in one message must not stop the others
            self._supervisor.failed(self._name, error)
            pause_ms = _AFTER_ERROR_MS
        else:
            self._supervisor.succeeded(self._name)
        if pause_ms is not None:
            self._schedule(pause_ms)

    def _fetched(self, cold: ColdRecords, _future: asyncio.Future[None]) -> None:
        self._fetching = False
        if self._works:
            self._work(cold)
