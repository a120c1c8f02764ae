"""Schedules the checks of half messages and the writing of op messages (RocketMQ 5.3.3,
``TransactionalMessageCheckService``).
"""

from __future__ import annotations

import asyncio
from functools import partial

from rucola.broker.cold_reads import ColdReads
from rucola.broker.transaction.half_messages import HalfMessages
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService
from rucola.runtime.supervision import PeriodicWork, Supervisor

_SCANNED_AT_ONCE = 64
"""Number of half messages that one iteration of the event loop scans, in about 2 ms."""
_CHECK_S = 0.005
"""Limit on the time for checks in one iteration of the event loop, in seconds."""


class TransactionCheckService:
    """Checks half messages at intervals. Event loop only. Call ``start``, then ``stop``, and ``write_ops`` last.

    Args:
        interval_ms: pause between two rounds of checks.
        op_interval_ms: longest time from an outcome to its op message; later outcomes in this time go into the same op
            message.
    """

    def __init__(
        self,
        halves: HalfMessages,
        loop: asyncio.AbstractEventLoop,
        interval_ms: int,
        op_interval_ms: int,
        supervisor: Supervisor,
    ) -> None:
        self._halves = halves
        self._loop = loop
        self._interval_ms = interval_ms
        self._op_interval_ms = op_interval_ms
        self._op_call: asyncio.Handle | None = None
        self._scanning: asyncio.Task[None] | None = None
        self._supervisor = supervisor
        self._checking: PeriodicWork | None = None
        self._move_below = 0

    def start(self, service: TransactionalMessageService, cold_reads: ColdReads) -> None:
        """Starts; the first round comes after one interval."""
        self._checking = self._supervisor.every(
            "check of half messages",
            lambda: self._interval_ms / 1000,
            partial(self._check, service, cold_reads),
            self._loop,
        )

    @property
    def is_behind(self) -> bool:
        """Whether requests that need all half messages must wait for ``scan``, because too many are not scanned yet."""
        return self._halves.behind > _SCANNED_AT_ONCE

    async def scan(self, cold_reads: ColdReads) -> None:
        """Scans the visible half messages, a few in each iteration of the event loop. One task scans, however many
        callers wait for it.
        """
        if self._scanning is None or self._scanning.done():
            self._scanning = self._loop.create_task(self._scan(cold_reads))
        await asyncio.shield(self._scanning)

    def finished(self) -> None:
        """Schedules the op message, because a half message was committed, rolled back or given up."""
        if self._op_call is None:
            self._op_call = self._loop.call_later(
                self._op_interval_ms / 1000, self._supervisor.call, "outcomes of transactions", self.write_ops
            )

    async def catch_up(self) -> None:
        """Begins a round now, because the clock was moved forward."""
        if self._checking is not None:
            await self._checking.catch_up()

    def needed_from(self) -> int | None:
        """Physical offset of the oldest half message that waits for its producer's decision; see ``LogHolder``."""
        return self._halves.needed_from()

    def move_on(self, physical_offset: int) -> None:
        """Makes the next round store half messages below ``physical_offset`` again, because space is short."""
        self._move_below = max(self._move_below, physical_offset)

    async def stop(self) -> None:
        """Stops the checks; producers may still commit or roll back."""
        if self._checking is not None:
            await self._checking.stop()
        if self._scanning is not None:
            self._scanning.cancel()
            await asyncio.gather(self._scanning, return_exceptions=True)

    def write_ops(self) -> None:
        """Writes the op message for the ended transactions."""
        if self._op_call is not None:
            self._op_call.cancel()
            self._op_call = None
        self._halves.write_ops()

    async def _scan(self, cold_reads: ColdReads) -> None:
        while self.is_behind:
            await cold_reads.done(partial(self._halves.scan, count_max=_SCANNED_AT_ONCE))
            await asyncio.sleep(0)
        await cold_reads.done(self._halves.scan)

    async def _check(self, service: TransactionalMessageService, cold_reads: ColdReads) -> None:
        await self.scan(cold_reads)
        ends_s = self._loop.time() + _CHECK_S
        move_below, self._move_below = self._move_below, 0
        for half in self._halves.undecided():
            if service.is_due(half):
                await cold_reads.done(partial(service.check, half))
            if half.physical_offset < move_below:
                await cold_reads.done(partial(service.renew, half))
            if self._loop.time() >= ends_s:
                await asyncio.sleep(0)
                ends_s = self._loop.time() + _CHECK_S
        self._halves.write_ops()
