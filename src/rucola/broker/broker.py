"""The broker's life and the wiring of its parts (RocketMQ 5.3.3, ``BrokerController``).

Start: listen, open the store, load the tables, register. The port is taken first, so that a start that finds it taken
has touched nothing; nobody is served before the store is open, since all of that happens in one turn of the loop.
Stop: refuse sends, say goodbye, release held pulls, close the store, answer who waited for the disk, close connections.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from typing import TYPE_CHECKING

from rucola.broker.broker_stats import SAMPLE_INTERVAL_S, BrokerStats
from rucola.broker.client.client_channel import SCAN_INTERVAL_S
from rucola.broker.client.consumer_manager import BROADCASTING, ConsumerGroup, ConsumerManager
from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.config import BrokerConfig
from rucola.broker.config_files import ConfigFiles
from rucola.broker.filter.consumer_filter_manager import ConsumerFilterManager
from rucola.broker.flush_waiters import FlushWaiters
from rucola.broker.longpolling.cold_reads import ColdReads
from rucola.broker.longpolling.pull_request_hold import RECHECK_INTERVAL_S, PullRequestHold
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.popping import Popping
from rucola.broker.processor.admin import Administration
from rucola.broker.processor.client_manage import ClientManageProcessor
from rucola.broker.processor.consumer_manage import ConsumerManageProcessor
from rucola.broker.processor.dead_letter import DeadLetterRule
from rucola.broker.processor.end_transaction import EndTransactionProcessor
from rucola.broker.processor.offset_reset import OffsetResetProcessor
from rucola.broker.processor.pull import PullMessageProcessor
from rucola.broker.processor.query import QueryProcessor
from rucola.broker.processor.recall import RecallMessageProcessor
from rucola.broker.processor.reply import ReplyMessageProcessor
from rucola.broker.processor.send import SendMessageProcessor
from rucola.broker.processor.send_back import SendBackProcessor
from rucola.broker.processor.send_response import SendResponses, flush_not_confirmed
from rucola.broker.processor.send_rewrite import Rewriter
from rucola.broker.request_handler import RequestHandler
from rucola.broker.schedule.delivery import DelayedDelivery
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.timer.timer_delivery import TimerDelivery
from rucola.broker.timer.timer_rewrite import TIMER
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.broker.transaction.check_service import TransactionCheckService
from rucola.broker.transaction.half_messages import HalfMessages
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService, TransactionRules
from rucola.client.unique_id import UniqueIds
from rucola.common.hosts import host_bytes, join_address
from rucola.common.key_builder import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError, DiskError, StoreError
from rucola.formats.properties import encode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.headers.client import NotifyConsumerIdsChangedRequestHeader
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel, RemotingServer, ServerOptions, server_tls
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.runtime.machine import process_id
from rucola.store.config import MessageStoreConfig, delay_levels_ms
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState

if TYPE_CHECKING:
    from rucola.broker.acl.access import BrokerAccess

_log = logging.getLogger(__name__)
_DISPATCH_DELAY_S = 0.001
"""The reference's dispatcher sleeps as long between its rounds."""
_REGISTER_AGAIN_S = 10.0
"""The second registration comes early (protocol.md 7.2)."""
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


class Broker:
    """One broker over one store directory. Started and stopped on an event loop, once each.

    Args:
        config: names, address, name servers.
        store_config: the store.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._files = files or Files()
        self.store = MessageStore(
            store_config,
            self._files,
            self._clock,
            on_append=self._appended,
            on_flushed=self._flushed_in_thread,
            on_arrival=self._arrived,
            is_batch_topic=self._is_batch_topic,
        )
        tables = ConfigFiles(self._files, self.store.root)
        self._tables = tables
        wall_ms = self._clock.wall_ms
        self.topics = TopicConfigManager(config, tables.replacer("topics.json"), wall_ms)
        self.groups = SubscriptionGroupManager(
            config.auto_create_subscription_group, tables.replacer("subscriptionGroup.json"), wall_ms
        )
        self.offsets = ConsumerOffsetManager(tables.replacer("consumerOffset.json"), wall_ms)
        self._levels_ms = delay_levels_ms(store_config.message_delay_level)
        delay_offsets = tables.replacer("delayOffset.json")
        self.schedule = ScheduleMessageService(self.store, self._levels_ms, wall_ms, delay_offsets)
        self.timers = TimerDelivery(self.store, self._files, self._clock, config.broker_name, random.randrange)
        self.halves = HalfMessages(self.store, self.offsets, wall_ms)
        self.filters = ConsumerFilterManager(tables.replacer("consumerFilter.json"), wall_ms)
        self.stats = BrokerStats(self.store, self.offsets, self._clock)
        self.producers = ProducerManager()
        self.consumers = ConsumerManager(self._group_changed)
        self.pops = Popping(
            config,
            self.store,
            self._clock,
            tables,
            self.topics,
            self.groups,
            self.consumers,
            self.offsets,
            self.timers,
        )
        self._server = RemotingServer(
            self,
            config.bind_address,
            config.listen_port,
            ServerOptions(
                idle_timeout_ms=config.server_channel_max_idle_time_s * 1000,
                connections_max=config.connections_max,
                connections_per_address_max=config.connections_per_address_max,
                tls=server_tls(config),
            ),
        )
        self.access: BrokerAccess | None = None
        if config.guarded:
            # Imported by who needs it: with its YAML reader it costs a tenth of the start.
            from rucola.broker.acl.access import BrokerAccess

            home = self._files.expand(config.rocketmq_home or store_config.store_path_root_dir)
            self.access = BrokerAccess(config, self._files, self._clock, self.store, home)
        self._processors = ProcessorTable(config.admin_broker_thread_pool_queue_capacity)
        self._sync_flush = store_config.sync_flush
        self._topics_loaded = False
        self._dispatch_call: asyncio.Handle | None = None
        self._dispatch_failed = False
        self._timers: list[asyncio.Task[None]] = []
        self._registrations: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._delivery: DelayedDelivery
        self._checks: TransactionCheckService
        self._transactions: TransactionalMessageService
        self._handler: RequestHandler
        self._hold: PullRequestHold
        self._cold_reads: ColdReads
        self._waiters: FlushWaiters | None = None
        self._outer_api: BrokerOuterApi | None = None

    @property
    def address(self) -> str:
        """What clients are told, ``host:port``."""
        return join_address(self.config.broker_ip1 or self.config.bind_address, self._server.port)

    @property
    def ready(self) -> bool:
        """Whether messages are taken and delivered."""
        return self.store.state is StoreState.RUNNING and not self._dispatch_failed

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._server.channels)

    @property
    def pulls_held(self) -> int:
        """Pulls that wait for messages."""
        return len(self._hold)

    @property
    def sends_waiting(self) -> int:
        """Groups of answers that wait for the disk."""
        return len(self._waiters) if self._waiters is not None else 0

    async def start(self) -> None:
        """Serve.

        Raises:
            AddressInUseError: the port is taken; nothing was touched.
            ConfigError: an address cannot be used.
            StoreLockedError: another process has the store; nothing was touched.
            StoreDamagedError: a file of the store is not what it must be.
            DiskError: the operating system refused something.
        """
        self._loop = asyncio.get_running_loop()
        foreign = "" if self.config.insecure else self._files.foreign_entry(self.store.root)
        if foreign:
            raise ConfigError("storePathRootDir", self.store.root, f"a directory of this user alone, but {foreign}")
        if self.access is not None:
            self.access.load()
        await self._server.start()
        try:
            self._open_store()
            self.stats.start()
            self._wire()
        except BaseException:
            self.timers.close()
            self.store.shutdown()
            await self._server.close()
            raise
        assert self._outer_api is not None
        await self._outer_api.register_all(self.topics.table, self.topics.data_version)
        self._timers = [
            asyncio.create_task(self._register_periodically()),
            asyncio.create_task(self._persist_periodically()),
            asyncio.create_task(self._look_for_silent_clients()),
            asyncio.create_task(self._recheck_held()),
            asyncio.create_task(self._sample_stats()),
        ]
        if self.access is not None:
            self._timers.append(asyncio.create_task(self.access.reload_periodically()))
        self._delivery.start()
        self.timers.start(self._loop)
        self._checks.start(self._transactions)
        self.pops.start()
        event(_log, logging.INFO, "broker serves", name=self.config.broker_name, address=self.address)

    async def shutdown(self) -> None:
        """Stop; every message that was answered is on its way to the disk or there, every waiting sender hears."""
        self._handler.stopping = True
        for task in [*self._timers, *self._registrations]:
            task.cancel()
        await asyncio.gather(*self._timers, *self._registrations, return_exceptions=True)
        assert self._outer_api is not None
        await self._outer_api.unregister()
        await self._outer_api.close()
        self._hold.release_all()
        await self.pops.stop()
        await self._cold_reads.close()
        self._persist_offsets()
        await self._delivery.stop()
        await self.timers.stop()
        await self._checks.stop()
        self.store.shutdown()
        self._delivery.persist()
        self.timers.close()
        self.halves.settle()
        self.pops.settle()
        self._persist_offsets()
        if self._waiters is not None:
            self._waiters.release(self.store.flushed_offset)
            self._waiters.fail_all("the broker stopped")
        await self._processors.close()
        await self._server.close()

    # -- the remoting server's handler --------------------------------------------------------------------------------

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        """Serve all frames of one read."""
        self._handler.frames_received(channel, batch)

    def channel_closed(self, channel: Channel) -> None:
        """Forget the client at the other end."""
        self.producers.channel_closed(channel)
        self.consumers.channel_closed(channel)
        self._hold.channel_closed(channel)
        self.pops.hold.channel_closed(channel)

    # -- start --------------------------------------------------------------------------------------------------------

    def _open_store(self) -> None:
        host, _, port = self.address.rpartition(":")
        try:
            self.store.store_host = host_bytes(host.strip("[]"), int(port))
        except ValueError:
            raise ConfigError("brokerIP1", host, "an IP address that clients can reach") from None
        config = self.config
        self.store.property_suffix = encode_properties(
            {
                "MSG_REGION": config.region_id,
                "TRACE_ON": "true" if config.trace_on else "false",
                "CLUSTER": config.broker_cluster_name,
            }
        )
        self.store.load()
        if self.access is not None:
            self.access.load_users()
        self._load_topics()
        self._tables.load("subscriptionGroup.json", self.groups.load)
        self._tables.load("consumerOffset.json", self.offsets.load)
        if self.store.recovered:
            self.offsets.clamp(self._queue_range)
        self._tables.load("delayOffset.json", self.schedule.load)
        self._tables.load("consumerFilter.json", self.filters.load)
        self.timers.load()
        self.halves.load()
        self.pops.load()
        self.store.start()

    def _queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        name = topic.encode("utf-8", "surrogateescape")
        return self.store.min_queue_offset(name, queue_id), self.store.max_queue_offset(name, queue_id)

    def _wire(self) -> None:
        """Make the parts that need the loop or the address."""
        config, store, table = self.config, self.store, self._processors
        monotonic = self._clock.monotonic
        if self._sync_flush:
            timeout_ms = store.config.sync_flush_timeout_ms
            self._waiters = FlushWaiters(monotonic, timeout_ms, flush_not_confirmed, self._loop.call_later)
        self._outer_api = BrokerOuterApi(config, self.address)
        self.topics.on_register(self._register_topic)
        self._delivery = DelayedDelivery(self.schedule, self._loop)
        unique_ids = UniqueIds(store.store_host[:-4], process_id(), secrets.token_bytes(4), self._clock)
        locks = RebalanceLockManager(monotonic)
        send = SendMessageProcessor(
            config,
            store,
            self.topics,
            self.groups,
            DeadLetterRule(self.topics, self.groups, locks),
            SendResponses(config, store.store_host),
            self._waiters,
            Rewriter(
                store.property_suffix,
                unique_ids.next,
                len(self._levels_ms),
                not config.reject_transaction_message,
                self.timers.rewriter,
            ),
            random.randrange,
        )
        pull = PullMessageProcessor(config, store, self.topics, self.groups, self.consumers, self.offsets, self.filters)
        self._cold_reads = pull.cold_reads
        self._hold = pull.hold = PullRequestHold(store.max_queue_offset, pull.resume, self._loop.call_later)
        ClientManageProcessor(
            config, self.topics, self.groups, self.producers, self.consumers, self.filters, monotonic
        ).register_to(table)
        ConsumerManageProcessor(store, self.topics, self.groups, self.consumers, self.offsets).register_to(table)
        QueryProcessor(store).register_to(table)
        self._wire_transactions()
        self.timers.register_to(table)
        self.pops.wire(table, self._waiters, self._outer_api, self._cold_reads)
        RecallMessageProcessor(config, store, self.topics, self.timers.rewriter, self._clock.wall_ms).register_to(table)
        consumers, offsets = self.consumers, self.offsets
        resets = OffsetResetProcessor(config, store, self.topics, self.groups, consumers, offsets, self._hold.wake)
        resets.register_to(table)
        ReplyMessageProcessor(config, store, send, self.producers, self._clock.wall_ms).register_to(table)
        SendBackProcessor(config, store, self.topics, self.groups, random.randrange).register_to(table)
        self._administration(locks).register_to(table)
        guard = None
        if self.access is not None:
            guard = self.access.guard.refuse
            self.access.register_to(table, config, self.address)
            self.topics.before_create = self.groups.before_create = self.access.quota.take
        self._handler = RequestHandler(
            send, pull, table, self._dispatch_pending, self._waiters, config.send_thread_pool_queue_capacity, guard
        )

    def _administration(self, locks: RebalanceLockManager) -> Administration:
        return Administration(
            self.config,
            self.address,
            self.store,
            self.topics,
            self.groups,
            self.producers,
            self.consumers,
            self.offsets,
            locks,
            self.schedule,
            self.stats,
            lambda: self.sends_waiting,
            self._files,
            self._clock,
        )

    def _wire_transactions(self) -> None:
        config = self.config
        self._checks = TransactionCheckService(
            self.halves,
            self._loop,
            config.transaction_check_interval_ms,
            config.transaction_op_batch_interval_ms,
        )
        self._transactions = TransactionalMessageService(
            self.store,
            self.halves,
            self.producers,
            TransactionRules(config.transaction_timeout_ms, config.transaction_check_max, len(self._levels_ms)),
            config.broker_name,
            self._clock.wall_ms,
            lambda: self.topics.create_for_group(TRANS_CHECK_MAX_TIME_TOPIC, 1),
            self._checks.finished,
            self.timers.rewriter,
        )
        EndTransactionProcessor(self.store, self._transactions).register_to(self._processors)

    # -- between store and clients ------------------------------------------------------------------------------------

    def _appended(self) -> None:
        """Under SYNC_FLUSH there is nothing to see before the sync."""
        if not self._sync_flush:
            self._schedule_dispatch()

    def _flushed_in_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._flushed)

    def _flushed(self) -> None:
        if self._waiters is not None:
            self._waiters.release(self.store.flushed_offset)
            if self.store.state is StoreState.IO_ERROR:
                self._waiters.fail_all("a sync of the disk failed")
        self._schedule_dispatch()

    def _schedule_dispatch(self) -> None:
        """Within this turn of the loop when a pull waits; else so late that the sends of a few reads share it."""
        if self._dispatch_call is None:
            if len(self._hold) or len(self.pops.hold):
                self._dispatch_call = self._loop.call_soon(self._dispatch)
            else:
                self._dispatch_call = self._loop.call_later(_DISPATCH_DELAY_S, self._dispatch)

    def _dispatch_pending(self) -> None:
        """Whoever asks sees all that was answered before."""
        if self._dispatch_call is not None:
            self._dispatch_call.cancel()
            self._dispatch()

    def _dispatch(self) -> None:
        self._dispatch_call = None
        if self.store.state is StoreState.STOPPED:
            return
        try:
            self.store.dispatch()
            self._dispatch_failed = False
        except StoreError as error:
            if not self._dispatch_failed:
                self._dispatch_failed = True
                event(_log, logging.CRITICAL, "messages are stored but not delivered", error=error)

    def _load_topics(self) -> None:
        """Reads the topics, once; the store's lock is held by then."""
        if not self._topics_loaded:
            self._topics_loaded = True
            self._tables.load("topics.json", self.topics.load)

    def _is_batch_topic(self, topic: bytes) -> bool | None:
        """Whether a topic is of type BatchCQ; the store asks while it recovers already."""
        self._load_topics()
        config = self.topics.get(topic.decode("utf-8", "replace"))
        return None if config is None else config.is_batch_queue

    def _arrived(self, topic: bytes, queue_id: int, max_queue_offset: int, tags_code: int | None) -> None:
        self._hold.arrived(topic, queue_id, max_queue_offset, tags_code)
        if len(self.pops.hold):
            self.pops.hold.arrived(topic, queue_id, tags_code)
        if topic == _SCHEDULE_TOPIC:
            self._delivery.arrived()
        elif topic == TIMER:
            self.timers.arrived()

    # -- name servers and clients -------------------------------------------------------------------------------------

    def _register_topic(self, topic: TopicConfig) -> asyncio.Future[None]:
        assert self._outer_api is not None
        task = self._loop.create_task(
            self._outer_api.register_topic(topic, self.topics.table, self.topics.data_version)
        )
        self._registrations.add(task)
        task.add_done_callback(self._registrations.discard)
        return task

    def _group_changed(self, info: ConsumerGroup) -> None:
        """Tell every member of the group to rebalance (40)."""
        if not info.clients:
            self.filters.unregister(info.group)
        group = self.groups.table.get(info.group)
        if (
            not self.config.notify_consumer_ids_changed_enable
            or info.message_model == BROADCASTING
            or (group is not None and not group.notify_consumer_ids_changed_enable)
        ):
            return
        fields = NotifyConsumerIdsChangedRequestHeader(info.group).to_ext_fields()
        for client in info.clients.values():
            client.channel.invoke_oneway(
                RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=dict(fields))
            )

    # -- at intervals -------------------------------------------------------------------------------------------------

    async def _register_periodically(self) -> None:
        assert self._outer_api is not None
        pause_s = _REGISTER_AGAIN_S
        while True:
            await asyncio.sleep(pause_s)
            await self._outer_api.register_all(self.topics.table, self.topics.data_version)
            pause_s = self.config.register_name_server_period_ms / 1000

    async def _persist_periodically(self) -> None:
        while True:
            await asyncio.sleep(self.config.flush_consumer_offset_interval_ms / 1000)
            self._persist_offsets()

    def _persist_offsets(self) -> None:
        self.pops.settle()
        self.pops.persist()
        try:
            self.offsets.persist()
            self.filters.persist()
        except DiskError as error:
            event(_log, logging.ERROR, "consumer offsets or filters not written, tried again later", error=error)

    async def _sample_stats(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            self.stats.sample()

    async def _recheck_held(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_INTERVAL_S)
            self._hold.recheck()

    async def _look_for_silent_clients(self) -> None:
        timeout_s = self.config.channel_expired_timeout_ms / 1000
        while True:
            await asyncio.sleep(SCAN_INTERVAL_S)
            limit = self._clock.monotonic() - timeout_s
            for channel in {*self.producers.silent_since(limit), *self.consumers.silent_since(limit)}:
                channel.close()
