"""When delayed messages are delivered: as soon as one is due, and with the newest arrival. Event loop only."""

from __future__ import annotations

import asyncio
import logging

from rucola.broker.longpolling.cold_reads import ColdReads
from rucola.broker.paced_work import PacedWork
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.errors import DiskError
from rucola.runtime.logs import event

_log = logging.getLogger(__name__)

_PERSIST_INTERVAL_S = 10.0
"""``flushDelayOffsetInterval``."""


class DelayedDelivery:
    """Calls ``service`` when there is something to do. Life: ``start``, ``stop``, ``persist`` for the last time."""

    def __init__(self, service: ScheduleMessageService, loop: asyncio.AbstractEventLoop, cold_reads: ColdReads) -> None:
        self._service = service
        self._loop = loop
        self._work = PacedWork("delivery of delayed messages", service.deliver, loop, cold_reads)
        self._persisting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with whatever became due while nobody delivered."""
        self._persisting = self._loop.create_task(self._persist_periodically())
        self._work.start()

    def arrived(self) -> None:
        """A message came into the schedule topic; it may be the first that is due."""
        self._work.soon()

    async def stop(self) -> None:
        """Deliver nothing more."""
        self._work.stop()
        if self._persisting is not None:
            self._persisting.cancel()
            await asyncio.gather(self._persisting, return_exceptions=True)

    def persist(self) -> None:
        """Write how far delivery came, as far as the disk has it; at a stop when the store has synced everything."""
        try:
            self._service.persist()
        except DiskError as error:
            event(_log, logging.ERROR, "delay progress not written, tried again later", error=error)

    async def _persist_periodically(self) -> None:
        while True:
            await asyncio.sleep(_PERSIST_INTERVAL_S)
            self.persist()
