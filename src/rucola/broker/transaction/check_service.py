"""Schedules the checks of half messages and the writing of op messages (RocketMQ 5.3.3,
``TransactionalMessageCheckService``).
"""

from __future__ import annotations

import asyncio
from functools import partial

from rucola.broker.longpolling.cold_reads import ColdReads
from rucola.broker.transaction.half_messages import HalfMessages
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService
from rucola.runtime.supervision import PeriodicWork, Supervisor

_BATCH = 64
"""Number of checks at a time; in between, the loop serves its sockets."""


class TransactionCheckService:
    """Calls ``service`` at intervals. Event loop only. Life: ``start``, ``stop``, and a last ``write_ops``.

    Args:
        interval_ms: between two rounds of checks.
        op_interval_ms: time after an outcome until the op message with it, and all others since then, is written.
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
        self._supervisor = supervisor
        self._checking: PeriodicWork | None = None

    def start(self, service: TransactionalMessageService, cold_reads: ColdReads) -> None:
        """Starts; the first round comes after one interval."""
        self._checking = self._supervisor.every(
            "check of half messages",
            lambda: self._interval_ms / 1000,
            partial(self._check, service, cold_reads),
            self._loop,
        )

    def finished(self) -> None:
        """A half message has been committed or rolled back."""
        if self._op_call is None:
            self._op_call = self._loop.call_later(
                self._op_interval_ms / 1000, self._supervisor.call, "outcomes of transactions", self.write_ops
            )

    async def catch_up(self) -> None:
        """Begin a round now: the clock was moved on."""
        if self._checking is not None:
            await self._checking.catch_up()

    async def stop(self) -> None:
        """Stops the checks; transactions may still end."""
        if self._checking is not None:
            await self._checking.stop()

    def write_ops(self) -> None:
        """Writes the op message for the ended transactions."""
        if self._op_call is not None:
            self._op_call.cancel()
            self._op_call = None
        self._halves.write_ops()

    async def _check(self, service: TransactionalMessageService, cold_reads: ColdReads) -> None:
        for count, half in enumerate(await cold_reads.done(service.due), 1):
            await cold_reads.done(partial(service.check, half))
            if count % _BATCH == 0:
                await asyncio.sleep(0)
        self._halves.write_ops()
