"""The services of a broker: one object with everything that its request processors read and change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rucola.broker.broker_stats import BrokerStats
from rucola.broker.checked_topics import CheckedTopics
from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.client.group_changes import GroupChanges
from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.client.registrations import (
    REGISTRATIONS_KEPT,
    REGISTRATIONS_MAX,
    REGISTRATIONS_SHARE,
    Registrations,
)
from rucola.broker.cold_data_flow import ColdDataFlow
from rucola.broker.config import BrokerConfig
from rucola.broker.config_files import ConfigFiles
from rucola.broker.filter.consumer_filter_manager import ConsumerFilterManager
from rucola.broker.filter.sql_expressions import SqlExpressions
from rucola.broker.lazy_pop_services import LazyPopServices, Pops
from rucola.broker.offset import offset_resets
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.offset.offset_resets import OffsetResets
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.broker.senders import Senders
from rucola.broker.shares import Shares
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.timer.timer_delivery import TimerDelivery
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.broker.transaction.half_messages import HalfMessages
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.runtime.background_imports import BackgroundImports
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.runtime.loop_watch import LoopWatch
from rucola.runtime.supervision import Supervisor
from rucola.runtime.table_writer import Keep, TableWriter
from rucola.store.config import delay_levels_ms
from rucola.store.message_store import MessageStore

if TYPE_CHECKING:
    from rucola.broker.acl.access import BrokerAccess
    from rucola.broker.flush_waiters import FlushWaiters
    from rucola.broker.longpolling.cold_reads import ColdReads
    from rucola.broker.longpolling.pull_request_hold import PullRequestHold
    from rucola.broker.outer_api import BrokerOuterApi
    from rucola.broker.transaction.check_service import TransactionCheckService
    from rucola.broker.transaction.transactional_message_service import TransactionalMessageService

_CONSUMER_OFFSETS = "consumerOffset.json"
SIGNED_TIMES = "rucolaSignatures.json"
"""See ``acl.freshness``, which is imported only for a broker with accounts."""


class BrokerServices:
    """The parts of a broker, created with the broker. At start-up the broker calls ``load`` and sets the attributes
    that the constructor does not set; afterwards the broker calls ``persist`` at intervals.

    Args:
        config: the broker's options.
        store: the broker's store.
        files: the file system.
        clock: the broker's clock.
        peers_clock: the clock that the clients are assumed to use for the times in their requests.
        make_pops: creates the POP services.

    Attributes:
        access: access control; None if it is off.
        address: the address that clients are given, ``host:port``.
        checked_topics: the checked topics of sends and replies.
        cold_reads: runs requests for messages that are not in memory.
        imports: imports the request processors in a thread.
        loop: the event loop on which the whole broker runs.
        hold: the pulls that wait for messages.
        senders: says who sent a request, and for whom a client may act.
        outer_api: calls the name servers.
        supervisor: supervises all periodic work.
        waiters: the responses that wait for a sync; None without SYNC_FLUSH.
    """

    address: str
    loop: asyncio.AbstractEventLoop
    cold_reads: ColdReads
    hold: PullRequestHold
    outer_api: BrokerOuterApi
    transactions: TransactionalMessageService
    transaction_checks: TransactionCheckService
    waiters: FlushWaiters | None = None

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        files: Files,
        clock: Clock,
        peers_clock: Clock,
        make_pops: Callable[[BrokerServices], Pops],
    ) -> None:
        self.config = config
        self.store = store
        self.files = files
        self.clock = clock
        self.peers_clock = peers_clock
        self.random_below = random.randrange
        self.supervisor = Supervisor()
        self.loop_watch = LoopWatch(clock.monotonic)
        self.imports = BackgroundImports()
        self.tables = ConfigFiles(files, store.root)
        self._topics_loaded = False
        wall_ms = clock.wall_ms
        self.writer = TableWriter(self.supervisor, clock.monotonic)
        self.topics = TopicConfigManager(config, self.keep("topics.json"), wall_ms)
        self.groups = SubscriptionGroupManager(
            config.auto_create_subscription_group, self.keep("subscriptionGroup.json"), wall_ms
        )
        self.checked_topics = CheckedTopics(config, self.topics, self.groups, self.random_below)
        light = store.config.enable_lmq
        self._offsets_name = "lmqConsumerOffset.json" if light else _CONSUMER_OFFSETS
        self.offsets = ConsumerOffsetManager(self.keep(self._offsets_name), wall_ms, light)
        self.resets = OffsetResets(self.keep(offset_resets.FILE_NAME))
        self.expressions = SqlExpressions(lambda: self.senders)
        self.filters = ConsumerFilterManager(
            self.keep("consumerFilter.json"),
            wall_ms,
            lambda topic: self.topics.get(topic) is not None,
            self.expressions.compile,
        )
        self.access: BrokerAccess | None = None
        self.senders = Senders()
        registrations = Shares(REGISTRATIONS_MAX, REGISTRATIONS_MAX, 0)
        if config.guarded:
            # These imports are deferred, because with the YAML reader they take a tenth of the start-up time.
            from rucola.broker.acl.access import BrokerAccess

            home = files.expand(config.rocketmq_home or store.config.store_path_root_dir)
            self.access = BrokerAccess(config, files, clock, store, home)
            self.senders = self.access.senders
            self.access.freshness.keep(self.keep(SIGNED_TIMES))
            self.topics.before_create = self.groups.before_create = self.access.quota.take
            registrations = Shares(REGISTRATIONS_MAX, REGISTRATIONS_SHARE, REGISTRATIONS_KEPT)
        self.registrations = Registrations(self.senders.check_holder, registrations)
        self.producers = ProducerManager(self.registrations)
        self.cold_flow = ColdDataFlow(config, clock.monotonic, wall_ms)
        self.consumers = ConsumerManager(
            GroupChanges(config, self.topics, self.groups, self.filters, lambda: self.loop).tell, self.registrations
        )
        self.locks = RebalanceLockManager(clock.monotonic)
        self.stats = BrokerStats(store, self.offsets, clock)
        self.delay_levels_ms = delay_levels_ms(store.config.message_delay_level)
        self.schedule = ScheduleMessageService(
            store, self.delay_levels_ms, wall_ms, self.keep("delayOffset.json"), self.topics.read_queue
        )
        self.timers = TimerDelivery(
            store, files, config.broker_name, self.random_below, self.supervisor, self.topics.read_queue
        )
        self.halves = HalfMessages(store, self.offsets, store.now_ms)
        self.pops = LazyPopServices(store, self.tables, lambda: self.topics.revive_topic, partial(make_pops, self))

    def load(self) -> None:
        """Opens the store and reads the tables in it.

        Raises:
            StoreLockedError: another process has the store; nothing was touched.
            StoreDamagedError: a file of the store is damaged.
            DiskError: the operating system refused an operation.
            ConfigError: access control is on and there are no valid accounts.
        """
        self.store.load()
        if self.access is not None:
            self.access.load_users()
            self.tables.load(SIGNED_TIMES, self.access.freshness.load)
        self._load_topics()
        self.tables.load("subscriptionGroup.json", self.groups.load)
        # If ``enableLmq`` has been switched on since the last run, the progress is still in ``consumerOffset.json``.
        name = self._offsets_name if self.tables.exist(self._offsets_name) else _CONSUMER_OFFSETS
        self.tables.load(name, self.offsets.load)
        if self.store.recovered:
            self._clamp_offsets()
        self.tables.load(offset_resets.FILE_NAME, self.resets.load)
        self.tables.load("delayOffset.json", self.schedule.load)
        self.tables.load("consumerFilter.json", self.filters.load)
        self.timers.load()
        self.halves.load()
        self.pops.load()

    def is_batch_topic(self, topic: bytes) -> bool | None:
        """Whether a topic is of type BatchCQ; None for an unknown topic. The store first calls this during recovery."""
        self._load_topics()
        config = self.topics.get(topic.decode("utf-8", "replace"))
        return None if config is None else config.is_batch_queue

    @property
    def sends_waiting(self) -> int:
        """Number of batches of responses that wait for a sync of the log."""
        return len(self.waiters) if self.waiters is not None else 0

    def when_safe(self, channel: Channel, command: RemotingCommand, answer: RemotingCommand, end: int) -> Answer:
        """Returns ``answer``, or None if it is sent later: when the log is synced up to ``end``, or when the sync has
        failed.
        """
        if self.waiters is None or command.is_oneway or end <= self.store.flushed_offset:
            return answer
        self.waiters.add(end, channel, answer.encode())
        return None

    def persist(self) -> None:
        """Requests writes of the consumers' progress, their filters, and the table of messages popped in order."""
        call = self.supervisor.call
        call("settling of pops", self.pops.settle)
        call("settling of transactions", self.halves.settle)
        call("writing of orderly pops", self.pops.persist)
        call("writing of consumer offsets", self.offsets.persist)
        call("writing of offset resets", self.resets.persist)
        call("writing of consumer filters", self.filters.persist)
        if self.access is not None:
            call("writing of signed times", self.access.freshness.persist)
        self.writer.write_failed_again()

    def persist_now(self) -> None:
        """Writes all tables in this thread; call it only while no other thread writes a table."""
        self.persist()
        self.writer.write()

    def keep(self, name: str) -> Keep:
        """Returns a function that creates the writer of the table file ``name``. The thread of ``self.writer`` writes
        the file.
        """
        return partial(self.writer.table, name, self.tables.replacer(name))

    def _load_topics(self) -> None:
        """Reads the topics, at the first call only. The store must already be locked."""
        if not self._topics_loaded:
            self._topics_loaded = True
            self.tables.load("topics.json", self.topics.load)

    def _clamp_offsets(self) -> None:
        topics = self.store.topics_with_queues()

        def range_of(topic: str, queue_id: int) -> tuple[int, int]:
            name = topic.encode("utf-8", "surrogateescape")
            if name not in topics:  # a look-up for each queue of 20,000 groups would take seconds
                return 0, 0
            return self.store.min_queue_offset(name, queue_id), self.store.max_queue_offset(name, queue_id)

        self.offsets.clamp(range_of)
