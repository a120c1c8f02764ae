"""When delayed messages are delivered: as soon as one is due, and with the newest arrival. Event loop only."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from rucola.broker.longpolling.cold_reads import ColdReads
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.errors import DiskError
from rucola.runtime.logs import event
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError

_log = logging.getLogger(__name__)

_PERSIST_INTERVAL_S = 10.0
"""``flushDelayOffsetInterval``."""
_AFTER_ERROR_MS = 10_000


class DelayedDelivery:
    """Calls ``service`` when there is something to do. Life: ``start``, ``stop``, ``persist`` for the last time."""

    def __init__(self, service: ScheduleMessageService, loop: asyncio.AbstractEventLoop, cold_reads: ColdReads) -> None:
        self._service = service
        self._loop = loop
        self._cold_reads = cold_reads
        self._fetching = False
        self._call: asyncio.Handle | None = None
        self._persisting: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin with whatever became due while nobody delivered."""
        self._persisting = self._loop.create_task(self._persist_periodically())
        self._deliver(ColdRecords())

    def arrived(self) -> None:
        """A message came into the schedule topic; it may be the first that is due."""
        self._schedule(0)

    async def stop(self) -> None:
        """Deliver nothing more."""
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
        if self._persisting is not None:
            self._persisting.cancel()
            await asyncio.gather(self._persisting, return_exceptions=True)

    def persist(self) -> None:
        """Write how far delivery came, as far as the disk has it; at a stop when the store has synced everything."""
        try:
            self._service.persist()
        except DiskError as error:
            event(_log, logging.ERROR, "delay progress not written, tried again later", error=error)

    def _schedule(self, pause_ms: int) -> None:
        if self._stopped or self._fetching:
            return
        if self._call is not None:
            self._call.cancel()
        self._call = self._loop.call_later(pause_ms / 1000, self._deliver, ColdRecords())

    def _fetched(self, cold: ColdRecords, _future: asyncio.Future[None]) -> None:
        self._fetching = False
        if not self._stopped:
            self._deliver(cold)

    def _deliver(self, cold: ColdRecords) -> None:
        self._call = None
        try:
            pause_ms = self._service.deliver(cold)
        except NotInMemoryError:
            self._fetching = True
            self._cold_reads.fetch(cold.fetch).add_done_callback(partial(self._fetched, cold))
            return
        except Exception:  # noqa: BLE001 - whatever one message holds, the others must come
            _log.exception("delivery of delayed messages failed, tried again later")
            pause_ms = _AFTER_ERROR_MS
        if pause_ms is not None:
            self._schedule(pause_ms)

    async def _persist_periodically(self) -> None:
        while True:
            await asyncio.sleep(_PERSIST_INTERVAL_S)
            self.persist()
