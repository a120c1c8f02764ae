"""The services of a broker that need neither its event loop nor its address. ``running_services`` has the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rucola.broker.broker_stats import BrokerStats
from rucola.broker.checked_topics import CheckedTopics
from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.client.registrations import (
    REGISTRATIONS_KEPT,
    REGISTRATIONS_MAX,
    REGISTRATIONS_SHARE,
    Registrations,
)
from rucola.broker.cold_data_flow import ColdDataFlow
from rucola.broker.cold_reads import ColdReads
from rucola.broker.config import BrokerConfig
from rucola.broker.config_files import ConfigFiles
from rucola.broker.filter.consumer_filter_manager import ConsumerFilterManager
from rucola.broker.filter.sql_expressions import SqlExpressions
from rucola.broker.lazy_pop_services import LazyPopServices, Pops
from rucola.broker.offset import offset_resets
from rucola.broker.offset.consumer_offset_manager import VERSION_STEP, ConsumerOffsetManager
from rucola.broker.offset.offset_resets import OffsetResets
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.broker.senders import Senders
from rucola.broker.shares import Shares
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.timer.timer_delivery import TimerDelivery
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.broker.transaction.half_messages import HalfMessages
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
    from rucola.broker.lite.offsets import LiteOffsets

_CONSUMER_OFFSETS = "consumerOffset.json"
SIGNED_TIMES = "rucolaSignatures.json"
"""See ``acl.freshness``, which is imported only for a broker with accounts."""


class BrokerServices:
    """The parts of a broker, created with the broker. At start-up the broker calls ``load``, afterwards ``persist`` at
    intervals.

    Args:
        config: the broker's options.
        store: the broker's store.
        files: the file system.
        clock: the broker's clock.
        peers_clock: the clock that the clients are assumed to use for the times in their requests.
        make_pops: creates the POP services of a running broker.

    Attributes:
        access: access control; None if it is off.
        cold_reads: runs requests for messages that are not in memory.
        lite_offsets: consumer offsets in lite topics; None if the store has none.
        imports: imports the request processors in a thread.
        senders: says who sent a request, and for whom a client may act.
        supervisor: supervises all periodic work.
        checked_topics: the checked topics of sends and replies.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        files: Files,
        clock: Clock,
        peers_clock: Clock,
        make_pops: Callable[[], Pops],
    ) -> None:
        self.config = config
        self.store = store
        self.files = files
        self.clock = clock
        self.peers_clock = peers_clock
        self.random_below = random.randrange
        self.loop_watch = LoopWatch(clock.monotonic)
        self.supervisor = Supervisor(self.loop_watch)
        self.imports = BackgroundImports()
        self.tables = ConfigFiles(files, store.root)
        self._topics_loaded = False
        wall_ms = clock.wall_ms
        self.writer = TableWriter(self.supervisor, clock.monotonic)
        self.access: BrokerAccess | None = None
        self.senders = Senders()
        registrations = Shares(REGISTRATIONS_MAX, REGISTRATIONS_MAX, 0)
        before_create: Callable[[str], None] | None = None
        if config.guarded:
            # These imports are deferred, because with the YAML reader they take a tenth of the start-up time.
            from rucola.broker.acl.access import BrokerAccess

            home = files.expand(config.rocketmq_home or store.config.store_path_root_dir)
            self.access = BrokerAccess(config, files, clock, store, home)
            self.senders = self.access.senders
            self.access.freshness.keep(self.keep(SIGNED_TIMES))
            before_create = self.access.quota.take
            registrations = Shares(REGISTRATIONS_MAX, REGISTRATIONS_SHARE, REGISTRATIONS_KEPT)
        self.topics = TopicConfigManager(config, self.keep("topics.json"), wall_ms, before_create)
        makes_groups = config.auto_create_subscription_group and not config.is_slave
        self.groups = SubscriptionGroupManager(
            makes_groups, self.keep("subscriptionGroup.json"), wall_ms, before_create
        )
        self.checked_topics = CheckedTopics(config, self.topics, self.groups, self.random_below)
        light = store.config.enable_lmq
        self._offsets_name = "lmqConsumerOffset.json" if light else _CONSUMER_OFFSETS
        version_step = 0 if config.enable_slave_acting_master and not config.is_slave else VERSION_STEP
        self.lite_offsets: LiteOffsets | None = None
        if store.lite is not None:
            # Imported only here, because few brokers have lite topics.
            from rucola.broker.lite.offsets import LiteOffsets

            self.lite_offsets = LiteOffsets(files, store.root, store.lite, self.writer)
        self.offsets = ConsumerOffsetManager(
            self.keep(self._offsets_name),
            wall_ms,
            light,
            version_step,
            self.lite_offsets,
            self.keep(_CONSUMER_OFFSETS) if light else None,
        )
        self.resets = OffsetResets(self.keep(offset_resets.FILE_NAME))
        self.expressions = SqlExpressions(lambda: self.senders)
        self.filters = ConsumerFilterManager(
            self.keep("consumerFilter.json"),
            wall_ms,
            lambda topic: self.topics.get(topic) is not None,
            self.expressions.compile,
        )
        self.registrations = Registrations(self.senders.check_holder, registrations)
        self.producers = ProducerManager(self.registrations)
        self.cold_reads = ColdReads(lambda: config.pull_thread_pool_queue_capacity)
        self.cold_flow = ColdDataFlow(config, clock.monotonic, wall_ms)
        self.consumers = ConsumerManager(self.registrations)
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
        self.pops = LazyPopServices(store, self.tables, lambda: self.topics.revive_topic, make_pops)

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
        if self.lite_offsets is not None:
            self.lite_offsets.load()
        self.tables.load(name, self.offsets.load)
        if name != _CONSUMER_OFFSETS:
            self.tables.load(_CONSUMER_OFFSETS, self.offsets.load_plain)
        if self.store.recovered:
            self.clamp_offsets()
        self.tables.load(offset_resets.FILE_NAME, self.resets.load)
        self.tables.load("delayOffset.json", self.schedule.load)
        self.tables.load("consumerFilter.json", self.filters.load)
        if self.config.is_slave:
            self.timers.forget()
        else:
            self.timers.load()
            self.halves.load()

    def is_batch_topic(self, topic: bytes) -> bool | None:
        """Whether a topic is of type BatchCQ; None for an unknown topic. The store first calls this during recovery."""
        self._load_topics()
        config = self.topics.get(topic.decode("utf-8", "replace"))
        return None if config is None else config.is_batch_queue

    @property
    def control(self) -> BrokerAccess:
        """Access control, for requests that exist only with it."""
        assert self.access is not None
        return self.access

    def persist(self) -> None:
        """Requests writes of the consumers' progress, their filters, and the table of messages popped in order."""
        call = self.supervisor.call
        call("settling of pops", self.pops.settle)
        call("settling of transactions", self.halves.settle)
        call("writing of orderly pops", self.pops.persist)
        call("writing of consumer offsets", self.offsets.persist)
        if self.lite_offsets is not None:
            call("writing of offsets in lite topics", self.lite_offsets.persist)
        call("writing of offset resets", self.resets.persist)
        call("writing of consumer filters", self.filters.persist)
        if self.access is not None:
            call("writing of signed times", self.access.freshness.persist)
        self.writer.write_failed_again()

    def take_lite_name(self) -> None:
        """Counts a new lite topic of the account whose request is being served.

        Raises:
            BrokerError: LMQ_QUOTA_EXCEEDED, the account makes too many.
        """
        if self.access is not None:
            self.access.lite_quota.take(self.access.quota.account)

    def finish_offsets(self) -> None:
        """Prepares the last write of the offsets in lite topics, before a clean stop."""
        if self.lite_offsets is not None:
            self.lite_offsets.finish()
            self.offsets.export_lite()

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

    def clamp_offsets(self) -> None:
        """Moves consumer offsets outside of their queues to the nearer end."""
        topics = self.store.topics_with_queues()

        def range_of(topic: str, queue_id: int) -> tuple[int, int]:
            name = topic.encode("utf-8", "surrogateescape")
            if name not in topics:  # a look-up for each queue of 20,000 groups would take seconds
                return 0, 0
            return self.store.queue_range(name, queue_id)

        self.offsets.clamp(range_of)
