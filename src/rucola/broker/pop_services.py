"""The services of POP consumption: how they start, serve and stop. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from rucola.broker.lazy_pop_services import MODES, ORDERS
from rucola.broker.pop.ack_buffer import AckBuffer
from rucola.broker.pop.ack_journal import AckJournal
from rucola.broker.pop.ack_processor import PopAckProcessor
from rucola.broker.pop.hold import PopHold
from rucola.broker.pop.look_processor import Peeker, PopLookProcessor
from rucola.broker.pop.order_info import OrderInfoManager
from rucola.broker.pop.order_locks import OrderLocks
from rucola.broker.pop.pop_offsets import PopOffsets, PoppedQueue
from rucola.broker.pop.processor import PopMessageProcessor
from rucola.broker.pop.queue_walk import QueueWalk
from rucola.broker.pop.read import PopReader
from rucola.broker.pop.request_age import RequestAges
from rucola.broker.pop.request_mode import RequestModeManager
from rucola.broker.pop.revive_log import ReviveLog
from rucola.broker.pop.revive_service import ReviveService
from rucola.broker.processor.assignment import AssignmentProcessor
from rucola.broker.running_services import RunningServices
from rucola.broker.topic_queues import TopicQueues
from rucola.errors import BrokerError
from rucola.remoting.channel import Channel
from rucola.runtime.supervision import PeriodicWork

_REVIVE_QUEUES = 8
_UNNOTED_INTERVALS = 12
"""Consumer offsets on the disk are assumed to be at most this many writing intervals old."""
_AFTER_ERROR_S = 10.0
_CLOCK_MARGIN_MS = 10_000
"""By so much, the clock may be set back while an acknowledgement waits for the log."""


class PopServices:
    """Call ``load`` after the store is loaded, ``start`` on the event loop, then ``stop``, and ``persist`` last.

    Attributes:
        hold: pops that wait.
        messages, looks, acks, assignments: the processors.
    """

    def __init__(self, running: RunningServices) -> None:
        services = running.services
        config, store, clock = services.config, services.store, services.clock
        self._running = running
        self._services = services
        self._config = config
        self._store = store
        self._log = ReviveLog(
            store,
            services.topics.revive_topic,
            _REVIVE_QUEUES,
            services.timers.rewriter,
            store.now_ms,
        )
        self._acks = AckBuffer(
            self._log,
            AckJournal(services.files, store.root),
            store.now_ms,
            clock.monotonic,
            store.config.timer_max_delay_sec * 1000 - _CLOCK_MARGIN_MS,
            enabled=not store.config.sync_flush,
        )
        self._popped = PopOffsets(store, services.offsets)
        self._orders = OrderInfoManager(services.keep(ORDERS), store.now_ms, self._exists)
        self._modes = RequestModeManager(services.keep(MODES))
        self._walk = QueueWalk(config, services.topics, services.groups)
        self._ages = RequestAges(clock.monotonic, services.peers_clock.wall_ms)
        self._revive: ReviveService
        self._reviving: PeriodicWork | None = None
        self.hold = PopHold(
            clock.monotonic,
            self._call_later,
            config.max_pop_polling_size,
            config.pop_polling_size,
            services.senders.account_on,
            self._is_same_client,
        )
        self._locks = OrderLocks(self._orders, self.hold, store.now_ms, self._call_later)

    def load(self, after_pops: bool) -> None:
        """Loads POP data. The store and the consumer offsets must be loaded before.

        Args:
            after_pops: whether messages may have been popped before.

        Raises:
            StoreDamagedError: a table cannot be read.
        """
        services, store = self._services, self._store
        services.tables.load(ORDERS, self._orders.load)
        services.tables.load(MODES, self._modes.load)
        since_ms: int | None = None
        if store.recovered and after_pops:
            since_ms = self._newest_ms() - _UNNOTED_INTERVALS * self._config.flush_consumer_offset_interval_ms
            self._popped.recover(self._log, since_ms)
        self._revive = ReviveService(
            store,
            self._log,
            services.offsets,
            services.topics,
            services.groups,
            self._dispatch,
            services.timers.service.delivered_until_ms,
            self._config.enable_retry_topic_v2,
            names_origins=self._config.guarded,
        )
        self._revive.load(since_ms)

    @property
    def acks_buffered(self) -> int:
        """Number of pops with acknowledgements that are not in the log yet."""
        return len(self._acks)

    @cached_property
    def messages(self) -> PopMessageProcessor:
        """Serves pops."""
        services = self._services
        reader = PopReader(
            self._config.broker_name,
            self._store,
            self._log,
            services.resets,
            self._popped,
            self._orders,
            self._locks,
            services.clock.monotonic,
        )
        return PopMessageProcessor(services, reader, self.hold, self._locks, self._walk, self._log.queues, self._ages)

    @cached_property
    def looks(self) -> PopLookProcessor:
        """Serves requests that read or look for messages without popping them."""
        peeker = Peeker(self._store, self._popped)
        return PopLookProcessor(self._services, peeker, self._orders, self.hold, self._locks, self._walk, self._ages)

    @cached_property
    def acks(self) -> PopAckProcessor:
        """Serves acknowledgements and changes of invisible times."""
        return PopAckProcessor(
            self._services,
            self._orders,
            self._log,
            self._acks,
            self._locks,
            self._running.when_safe,
            self._running.lite_delivery,
        )

    @cached_property
    def assignments(self) -> AssignmentProcessor:
        """Serves queue assignments."""
        services = self._services
        queues = TopicQueues(
            self._running.outer_api.readable_queues, services.topics, self._config.broker_name, services.clock.monotonic
        )
        return AssignmentProcessor(
            self._config, services.topics, services.groups, services.consumers, self._modes, queues
        )

    def start(self) -> None:
        """Starts to revive messages, beginning with those that became due while the broker was down; but first, stores
        the acknowledgements that a killed process has left.
        """
        self._acks.start(self._running.loop, self._services.cold_reads, self._services.supervisor, self._start_reviving)

    def _start_reviving(self) -> None:
        self._reviving = self._services.supervisor.every(
            "revival of popped messages",
            lambda: self._config.revive_interval_ms / 1000,
            self._revive_some,
            self._running.loop,
            first_s=0,
            after_error_s=_AFTER_ERROR_S,
        )

    async def catch_up(self) -> None:
        """Revives the messages that became due because the clock was moved forward."""
        with suppress(BrokerError):  # they are stored later; then some of their messages may come again
            await self._acks.store_all()
        if self._reviving is not None:
            self._revive.look_again()
            await self._reviving.catch_up()
        self._locks.clock_moved()

    def forget(self, concerned: Callable[[PoppedQueue], bool]) -> asyncio.Future[None] | None:
        """Forgets the pops of a deleted topic or group: those for which ``concerned`` returns True. A new topic or
        group with the same name then starts without them, also after a crash once the returned future is done.
        """
        self._popped.forget_all(concerned)
        self._orders.forget_all(concerned)
        return self._orders.persist()

    def follow_modes(self, text: bytes) -> None:
        """Replaces the modes in which groups read topics by those of a master.

        Raises:
            FormatError: the text is not a table of modes.
        """
        self._modes.follow(text)

    def needed_from(self) -> int | None:
        """Physical offset of the oldest record of the revive topic that is not worked off; see ``LogHolder``."""
        return self._revive.needed_from()

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the waiting pops of a closed connection."""
        self.hold.channel_closed(channel)
        self._ages.channel_closed(channel)

    def settle(self) -> None:
        """Notes which pops are synced, before the consumer offsets are written."""
        self._popped.settle()
        self._revive.settle()

    def persist(self) -> None:
        """Requests a write of the table of messages popped in order, if this table has changed."""
        self._orders.persist()

    async def stop(self) -> None:
        """Stops reviving messages and releases the waiting pops."""
        self.hold.release_all()
        if self._reviving is not None:
            await self._reviving.stop()
        await self._acks.stop()

    async def _revive_some(self) -> float | None:
        """Revives messages for a while; returns the pause until the next call: 0 if there is more to do, None for the
        usual pause.
        """
        more = await self._services.cold_reads.done(self._revive.work)
        registration = self._revive.registration
        if registration is not None and not registration.done():
            await asyncio.wait([registration])
            more = True
        return 0 if more else None

    def _dispatch(self) -> None:
        self._store.dispatch()

    def _newest_ms(self) -> int:
        """Store time of the newest message of any queue."""
        store = self._store
        ends = [(topic, queue_id, store.max_queue_offset(topic, queue_id)) for topic, queue_id in store.queue_names()]
        return max((store.store_time_at(topic, queue_id, end - 1) for topic, queue_id, end in ends if end), default=0)

    def _exists(self, queue: PoppedQueue) -> bool:
        config = self._services.topics.get(queue.topic)
        return (
            config is not None
            and queue.queue_id < config.read_queue_nums
            and queue.group in self._services.groups.table
        )

    def _is_same_client(self, one: Channel, other: Channel, group: str) -> bool:
        """Whether two connections may belong to the same client of a group. A client registers on its new connection
        after its first pop there, or never, so an unknown client id differs from none.
        """
        info = self._services.consumers.group(group)
        known = () if info is None else (info.clients.get(one), info.clients.get(other))
        return len({client.client_id for client in known if client is not None}) < 2

    def _call_later(self, delay_s: float, callback: Any, *arguments: Any) -> asyncio.TimerHandle:
        return self._running.loop.call_later(delay_s, callback, *arguments)
