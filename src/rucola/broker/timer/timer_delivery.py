"""Schedules the work on messages with a delivery time: moving them into the wheel, delivering them, and writing the
progress. Event loop only; threads wait for the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rucola.broker.cold_reads import ColdReads
from rucola.broker.paced_work import PacedWork
from rucola.broker.timer.timer_message_service import TimerMessageService
from rucola.broker.timer.timer_rewrite import TimerRewriter
from rucola.errors import DiskError
from rucola.formats.timer import TimerCheckpoint
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import Channel
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor
from rucola.store.message_store import MessageStore
from rucola.store.timer.timer_store import TimerGeometry, TimerStore

logger = logging.getLogger(__name__)

_EXPIRE_INTERVAL_S = 30.0
_FLUSH_PAUSE_S = 0.05
"""Seconds for which a write of the progress waits for a sync of the commit log. Progress that is not synced by then is
left to the next write.
"""


class TimerDelivery:
    """The parts that handle timed messages. Call ``load``, ``start``, ``stop`` and ``close`` in this order.

    Attributes:
        rewriter: handles new messages that name a delivery time.
        service: moves messages into the wheel and delivers them.
    """

    def __init__(
        self,
        store: MessageStore,
        files: Files,
        broker_name: str,
        random_below: Callable[[int], int],
        supervisor: Supervisor,
        read_queue: Callable[[str, int], int],
    ) -> None:
        config = store.config
        step_ms = config.timer_precision_ms
        self._store = store
        self._timers = TimerStore(files, store.root, TimerGeometry(config.mapped_file_size_timer_log, step_ms))
        self.service = TimerMessageService(
            store, self._timers, config.timer_roll_window_slot * step_ms, store.now_ms, read_queue
        )
        self.rewriter = TimerRewriter(config, broker_name, store.now_ms, self._timers.count, random_below)
        self._interval_s = config.timer_flush_interval_ms / 1000
        self._loop: asyncio.AbstractEventLoop
        self._work: PacedWork | None = None
        self._writing: PeriodicWork | None = None
        self._expire_at = 0.0
        self._supervisor = supervisor

    def load(self) -> None:
        """Loads the timer files. The store must be loaded already.

        Raises:
            StoreDamagedError: the timer files do not match the configuration.
            DiskError: the operating system refused an operation.
        """
        self.service.load()

    def follow(self, checkpoint: TimerCheckpoint) -> None:
        """See ``TimerStore.follow``."""
        self._timers.follow(checkpoint)

    def forget(self) -> None:
        """See ``TimerStore.forget``. Call it instead of ``load``."""
        self._timers.forget()

    def start(self, loop: asyncio.AbstractEventLoop, cold_reads: ColdReads) -> None:
        """Starts the work. The messages that became due while the broker was down are delivered first."""
        self._loop = loop
        self._expire_at = loop.time() + _EXPIRE_INTERVAL_S
        self._writing = self._supervisor.every(
            "writing of timers", lambda: self._interval_s, self._write, loop, interruptible=False
        )
        self._work = PacedWork("delivery of timed messages", self.service.work, loop, cold_reads, self._supervisor)
        self._work.start()

    def arrived(self) -> None:
        """Looks for work, because a message has arrived in the timer topic."""
        if self._work is not None:
            self._work.soon()

    async def catch_up(self) -> None:
        """Delivers the messages that became due because the clock was moved forward."""
        if self._work is not None:
            await self._work.catch_up()

    def needed_from(self) -> int | None:
        """Physical offset of the oldest message that waits for its time; see ``LogHolder``."""
        return self.service.needed_from()

    def move_on(self, physical_offset: int) -> None:
        """Stores the waiting messages below ``physical_offset`` again, because space is short."""
        self.service.move_on(physical_offset)
        self.arrived()

    def checkpoint(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 60, which slaves send."""
        return command.answer(ResponseCode.SUCCESS, body=self._timers.checkpoint.encode_fields())

    def metrics(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 61, which slaves send."""
        return command.answer(ResponseCode.SUCCESS, body=self._timers.metrics.encode())

    async def stop(self) -> None:
        """Stops the work; ``close`` writes the remaining progress."""
        if self._work is not None:
            self._work.stop()
        if self._writing is not None:
            await self._writing.stop()

    def close(self) -> None:
        """Writes the progress of delivery, if delivery was started. Call it after the store has synced everything."""
        if self._writing is None:
            self._timers.close()
            return
        try:
            changes = self._timers.changes(self._store.flushed_offset, self.service.now_ms())
            if changes is not None:
                self._timers.write(changes)
        except DiskError as error:
            event(logger, logging.ERROR, "timers not written, the next start repairs them", error=error)
        finally:
            self._timers.close()

    async def _write(self) -> None:
        now = self._loop.time()
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_INTERVAL_S
            self._timers.remove_expired(self._store.min_offset)
        if self._timers.is_behind(self._store.flushed_offset):
            self._store.flush_soon()
            await asyncio.sleep(_FLUSH_PAUSE_S)
        self._timers.first_needed(self._store.min_offset)  # so that expiry need not pass many units at once
        changes = self._timers.changes(self._store.flushed_offset, self.service.now_ms())
        if changes is not None:
            await asyncio.to_thread(self._timers.write, changes)
