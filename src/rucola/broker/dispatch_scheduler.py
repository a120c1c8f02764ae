"""Connects the store with waiting requests: decides when to dispatch, and resumes the requests. Event loop only.

The store's ``dispatch`` records which queues got messages. Afterwards the waiting requests are notified, and an error
in one of them does not affect the others. If a pull or pop cannot be resumed, the function that resumes it sends an
error as the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf

from rucola.broker.running_services import RunningServices
from rucola.broker.timer.timer_rewrite import TIMER
from rucola.common.key_builder import SCHEDULE_TOPIC
from rucola.runtime.logs import event
from rucola.store.results import StoreState

logger = logging.getLogger(__name__)
_DELAY_S = 0.005
"""Longest delay of a dispatch in seconds while no request waits for messages. RocketMQ's dispatcher pauses for 1 ms
between two rounds. Clients do not notice the delay, because a dispatch precedes each request that may read. One
dispatch of many messages costs much less than many dispatches of one message.
"""
_BYTES_MAX = 256 * 1024
"""Number of bytes of the log after which a dispatch is no longer delayed."""
MAPS_A_TURN = 4
"""Number of queue segments that a dispatch maps before it pauses until the next iteration of the event loop. Mapping a
segment takes several system calls and up to 0.4 ms; making its file takes 1 ms, and the disk must sync directories.
"""
ROWS_A_TURN = 8192
"""Number of messages that a dispatch makes visible before it pauses; each takes up to 2 µs."""
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_DELAYING = frozenset((_SCHEDULE_TOPIC, TIMER))
_ANSWERS = "answers that waited for the disk"


class DispatchScheduler:
    """The functions that the store calls after appends and syncs. They decide when the store's ``Dispatcher`` makes
    messages visible.

    Args:
        listeners: called after each dispatch.

    Attributes:
        failed: whether the last dispatch failed; if so, messages are stored but not delivered to their queues.
    """

    def __init__(self, running: RunningServices, listeners: list[Callable[[], None]]) -> None:
        self.failed = False
        self._running = running
        self._services = running.services
        self._listeners = listeners
        self._loop = running.loop
        self._sync_flush = running.services.store.config.sync_flush
        self._grew = None if running.replication is None else running.replication.server.grew
        self._slave = running.slave
        self._call: asyncio.Handle | None = None
        self._delayed_to: float = inf
        """Physical offset up to which the scheduled dispatch may be delayed; infinite if it is not delayed."""
        self._is_stuck = False
        """Whether the last dispatch left messages over that it could not put into their queues."""

    def appended(self) -> None:
        """Schedules a dispatch, and sends the log to slaves, after messages were appended. With SYNC_FLUSH, ``flushed``
        does so after the sync, because messages are invisible until then.
        """
        if not self._sync_flush:
            self._schedule()
            if self._grew is not None:
                self._grew()

    def flushed_in_thread(self) -> None:
        """Calls ``flushed`` on the event loop. Any thread may call this method."""
        self._loop.call_soon_threadsafe(self.flushed)

    def flushed(self) -> None:
        """Sends responses whose messages are synced, and schedules a dispatch; called after a sync, or after the disk
        has failed.
        """
        services = self._services
        waiters, call = self._running.waiters, services.supervisor.call
        if waiters is not None:
            call(_ANSWERS, waiters.release, services.store.flushed_offset)
            if services.store.state is StoreState.IO_ERROR:
                call(_ANSWERS, waiters.fail_all, "a sync of the disk failed")
        if self._slave is not None:
            self._slave.grew()
        self._schedule()
        if self._grew is not None:
            self._grew()

    def dispatch_scheduled(self) -> None:
        """Runs a scheduled dispatch now, so that the next read sees every confirmed message. If the dispatch must map
        more than ``MAPS_A_TURN`` segments, or concerns more than ``ROWS_A_TURN`` messages, the remaining messages
        become visible in later iterations.
        """
        if self._call is not None:
            self._call.cancel()
            self._dispatch()

    def _schedule(self) -> None:
        """Schedules a dispatch: in the next iteration of the event loop if a pull or pop waits, otherwise after
        ``_DELAY_S`` or ``_BYTES_MAX``. This delay lets messages from several socket reads share one dispatch.
        """
        store = self._services.store
        if self._call is None:
            left = _BYTES_MAX - store.dispatch_behind_bytes
            if (left < 0 and not self._is_stuck) or self._somebody_waits():
                self._call = self._loop.call_soon(self._dispatch)
            else:
                self._delayed_to = inf if self._is_stuck else store.max_offset + left
                self._call = self._loop.call_later(_DELAY_S, self._dispatch)
        elif store.max_offset > self._delayed_to:
            self._delayed_to = inf
            self._call.cancel()
            self._call = self._loop.call_soon(self._dispatch)

    def _somebody_waits(self) -> bool:
        lite = self._running.lite
        return bool(len(self._running.hold) or self._services.pops.waiting or (lite is not None and len(lite.hold)))

    def _dispatch(self) -> None:
        self._call = None
        self._delayed_to = inf
        services = self._services
        store = services.store
        if store.state is StoreState.STOPPED:
            return
        try:
            store.dispatch(MAPS_A_TURN, ROWS_A_TURN)
            self.failed = False
            if store.dispatch_paused:
                self._call = self._loop.call_soon(self._dispatch)
        except Exception as error:  # noqa: BLE001 - even a defect must not end dispatch unnoticed
            if not self.failed:
                self.failed = True
                event(logger, logging.CRITICAL, "messages are stored but not delivered", error=error)
            services.supervisor.failures["dispatch"] += 1
        self._is_stuck = self._call is None and store.dispatch_behind_bytes > _BYTES_MAX
        self._wake()

    def _wake(self) -> None:
        """Notifies the waiting requests after the store has dispatched. An error in one request does not affect the
        others.
        """
        services = self._services
        call, hold, lite = services.supervisor.call, self._running.hold, self._running.lite
        if lite is not None and services.store.lite is not None:
            arrived = services.store.lite.arrived()
            if arrived:
                call("waking of pops of lite topics", lite.arrived, arrived)
        somebody_waits = len(hold) or services.pops.waiting
        for topic, queue_id, max_queue_offset, tags_code in services.store.take_arrivals():
            if not somebody_waits and topic not in _DELAYING:
                continue
            if len(hold):
                call("waking of pulls", hold.arrived, topic, queue_id, max_queue_offset, tags_code)
            if services.pops.waiting:
                call("waking of pops", services.pops.arrived, topic, queue_id, tags_code)
            if topic == _SCHEDULE_TOPIC:
                call("waking of delayed messages", self._running.delivery.arrived)
            elif topic == TIMER:
                call("waking of timed messages", services.timers.arrived)
        for listener in self._listeners:
            call("telling of a dispatch", listener)
