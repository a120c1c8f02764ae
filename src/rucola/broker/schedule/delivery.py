"""Calls the delivery of delayed messages whenever a message becomes due. A new message may be the first to become due,
so its arrival also causes a call. Event loop only.
"""

from __future__ import annotations

import asyncio

from rucola.broker.cold_reads import ColdReads
from rucola.broker.paced_work import PacedWork
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.runtime.supervision import PeriodicWork, Supervisor

_PROGRESS = "writing the progress of delayed messages"
_PERSIST_INTERVAL_S = 10.0
"""``flushDelayOffsetInterval``."""


class DelayedDelivery:
    """Calls ``service`` when there is work. Call ``start``, then ``stop``, and ``persist`` last."""

    def __init__(
        self,
        service: ScheduleMessageService,
        loop: asyncio.AbstractEventLoop,
        cold_reads: ColdReads,
        supervisor: Supervisor,
    ) -> None:
        self._service = service
        self._loop = loop
        self._supervisor = supervisor
        self._work = PacedWork("delivery of delayed messages", service.deliver, loop, cold_reads, supervisor)
        self._persisting: PeriodicWork | None = None

    def start(self) -> None:
        """Starts the deliveries, beginning with the messages that became due while the broker was down."""
        self._persisting = self._supervisor.every(
            _PROGRESS, lambda: _PERSIST_INTERVAL_S, self._service.persist, self._loop
        )
        self._work.start()

    def arrived(self) -> None:
        """Looks for due messages, because a message has arrived in the schedule topic; it may be the first to become
        due.
        """
        self._work.soon()

    async def catch_up(self) -> None:
        """Delivers the messages that became due because the clock was moved forward."""
        await self._work.catch_up()

    async def stop(self) -> None:
        """Stops delivering."""
        self._work.stop()
        if self._persisting is not None:
            await self._persisting.stop()

    def persist(self) -> None:
        """Requests a write of the progress of the synced deliveries. When the broker stops, it calls this method after
        the store has synced everything.
        """
        self._supervisor.call(_PROGRESS, self._service.persist)
