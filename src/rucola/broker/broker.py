"""Starts and stops a broker, and connects its parts (RocketMQ 5.3.3, ``BrokerController``).

Start: listen, open the store, load the tables, register. The port is opened first, so that nothing is changed if the
port is in use. No request is served before the store is open: until then, the event loop accepts no connection.
Stop: refuse requests, unregister, release held pulls, close the store, answer sends that wait for a sync, close
connections.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from rucola.broker import lazy_processors
from rucola.broker.broker_stats import SAMPLE_INTERVAL_S
from rucola.broker.client.client_channel import SCAN_INTERVAL_S
from rucola.broker.config import BrokerConfig
from rucola.broker.dispatching import Dispatching
from rucola.broker.flush_waiters import FlushWaiters
from rucola.broker.lazy_pop_services import Pops
from rucola.broker.longpolling.pull_request_hold import RECHECK_INTERVAL_S, PullRequestHold
from rucola.broker.outer_api import BrokerOuterApi
from rucola.broker.processor.pull import PullMessageProcessor
from rucola.broker.processor.send import SendMessageProcessor
from rucola.broker.processor.send_response import flush_not_confirmed
from rucola.broker.processor.send_rewrite import Rewriter
from rucola.broker.registration import REGISTER_AGAIN_S, Registration
from rucola.broker.request_handler import RequestHandler
from rucola.broker.requests import register_requests
from rucola.broker.schedule.delivery import DelayedDelivery
from rucola.broker.services import BrokerServices
from rucola.broker.transaction.check_service import TransactionCheckService
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService, TransactionRules
from rucola.client.unique_id import UniqueIds
from rucola.common.hosts import host_bytes, join_address
from rucola.common.key_builder import TRANS_CHECK_MAX_TIME_TOPIC
from rucola.errors import ConfigError
from rucola.formats.properties import encode_properties
from rucola.protocol.frame import FrameBatch
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel, RemotingServer, ServerOptions, server_tls
from rucola.remoting.turn import in_turns
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.extras import SERVER, require
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.runtime.machine import process_id
from rucola.runtime.supervision import Pause, PeriodicWork
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState

logger = logging.getLogger(__name__)
IDLE_LOOK_S, IDLE_SHARES = 5.0, 12
"""Seconds between two checks for unused queues, and number of checks that together cover all queues. The files of a
queue are closed after one to two minutes without use. Checking all queues at once would block the event loop.
"""


class Broker:
    """One broker over one store directory. Each object is started and stopped once, on an event loop.

    Args:
        config: names, address, name servers.
        store_config: options of the store.
        peers_clock: the clock that the clients are assumed to use; None = ``clock``.

    Attributes:
        services: its parts.

    Raises:
        MissingExtraError: the extra ``server`` is not installed.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        files: Files | None = None,
        clock: Clock | None = None,
        peers_clock: Clock | None = None,
    ) -> None:
        require(SERVER, "a broker")
        self.config = config
        files, clock = files or Files(), clock or SystemClock()
        self._dispatching = Dispatching(store_config.sync_flush)
        self.store = MessageStore(
            store_config,
            files,
            clock,
            on_append=self._dispatching.appended,
            on_flushed=self._dispatching.flushed_in_thread,
            is_batch_topic=self._is_batch_topic,
        )
        services = self.services = BrokerServices(config, self.store, files, clock, peers_clock or clock, _pops)
        self.topics, self.groups, self.offsets = services.topics, services.groups, services.offsets
        self._server = RemotingServer(
            self,
            config.bind_address,
            config.listen_port,
            ServerOptions(
                idle_timeout_ms=config.server_channel_max_idle_time_s * 1000,
                connections_max=config.connections_max,
                connections_per_address_max=config.connections_per_address_max,
                outbound_total_max=config.unsent_bytes_max,
                tls=server_tls(config),
            ),
            services.supervisor,
        )
        self._processors = ProcessorTable(config.admin_broker_thread_pool_queue_capacity)
        self._periodic: list[PeriodicWork] = []
        self._delivery: DelayedDelivery
        self._checks: TransactionCheckService
        self._registration: Registration
        self._handler: RequestHandler

    @property
    def address(self) -> str:
        """The address that clients are given, ``host:port``."""
        return join_address(self.config.client_host, self._server.port)

    @property
    def ready(self) -> bool:
        """Whether messages are accepted and delivered."""
        return self.store.state is StoreState.RUNNING and not self._dispatching.failed

    @property
    def connections(self) -> int:
        """Number of open client connections."""
        return len(self._server.channels)

    @property
    def refused_connections(self) -> int:
        """Number of connections that were closed as soon as they were accepted, because there were too many."""
        return self._server.refused_connections

    @property
    def pulls_held(self) -> int:
        """Number of pulls that wait for messages."""
        return len(self.services.hold)

    @property
    def sends_waiting(self) -> int:
        """Number of batches of responses that wait for a sync of the log."""
        return self.services.sends_waiting

    def on_dispatch(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` each time stored messages have reached their queues."""
        self._dispatching.listeners.append(listener)

    def drop_connections(self) -> None:
        """Closes the port and cuts every connection at once, as if the process had ended; ``shutdown`` must follow."""
        self._server.drop()

    async def catch_up(self) -> None:
        """Does everything that became due because the wall clock was moved forward. For tests.

        When this returns, delayed and timed messages are in their topics, unacknowledged ones are in their retry
        topics, and producers were asked about their transactions. Expired files are removed soon afterwards.
        """
        services = self.services
        self.store.clock_moved()
        await self._delivery.catch_up()
        await services.timers.catch_up()
        await self._checks.catch_up()
        await services.pops.catch_up()
        self.store.dispatch()

    async def start(self) -> None:
        """Starts to serve.

        Raises:
            AddressInUseError: the port is taken; nothing was touched.
            ConfigError: an address cannot be used, or other users may change the store directory.
            StoreLockedError: another process has the store; nothing was touched.
            StoreDamagedError: a file of the store is damaged.
            DiskError: the operating system refused an operation.
        """
        services, loop = self.services, asyncio.get_running_loop()
        foreign = "" if self.config.insecure else services.files.foreign_entry(self.store.root)
        if foreign:
            raise ConfigError(
                "storePathRootDir",
                self.store.root,
                f"a directory that only the broker's user may change, but {foreign}",
            )
        if services.access is not None:
            services.access.load()
        await self._server.start()
        try:
            self.open(loop)
        except BaseException:
            services.timers.close()
            self.store.shutdown()
            await self._server.close()
            raise
        await self._registration.begin()
        services.loop_watch.start(loop)
        self._work_periodically(loop)
        self._delivery.start()
        services.timers.start(loop, services.cold_reads)
        self._checks.start(services.transactions, services.cold_reads)
        services.pops.start()
        services.imports.begin(lazy_processors.IMPORTED_FIRST)
        services.imports.begin(lazy.module for lazy in lazy_processors.IMPORTED_EARLY)
        event(logger, logging.INFO, "broker serves", name=self.config.broker_name, address=self.address)

    def import_filters(self) -> None:
        """Starts importing the SQL92 parser in a thread; otherwise the first SQL92 filter holds up all clients for a
        tenth of a second.

        Call this only in a process without pytest. Lark and pytest both use Python's module ``ast``, which fails if two
        threads parse at the same time (in Python 3.11 up to 3.11.7, and in 3.12 up to 3.12.1).
        """
        if self.config.enable_property_filter:
            self.services.imports.begin((lazy_processors.SQL_GRAMMAR,))

    async def shutdown(self) -> None:
        """Stops the broker: syncs all messages and answers every waiting sender, with FLUSH_DISK_TIMEOUT if the sync
        fails.
        """
        services = self.services
        self._handler.stopping = True
        services.loop_watch.stop()
        await asyncio.gather(*[work.stop() for work in self._periodic])
        services.writer.stop()
        services.topics.on_register(None)
        services.writer.write()
        await self._registration.close()
        services.hold.release_all()
        await services.pops.stop()
        await self._delivery.stop()
        await services.timers.stop()
        await self._checks.stop()
        await services.cold_reads.close()
        await services.expressions.close()
        self._checks.write_ops()
        services.persist_now()
        self.store.shutdown()
        self._delivery.persist()
        services.timers.close()
        services.halves.settle()
        services.persist_now()
        if services.waiters is not None:
            services.waiters.release(self.store.flushed_offset)
            services.waiters.fail_all("the broker stopped")
        await self._processors.close()
        await self._server.close()

    # -- the remoting server's handler ---------------------------------------------------------------------------------

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        """Serves the frames of one socket read, as many as fit into one iteration of the event loop."""
        self._handler.rest_received(channel, batch, 0)

    def rest_received(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        """Continues at row ``first`` with frames that did not fit into an earlier iteration."""
        self._handler.rest_received(channel, batch, first)

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the client of a closed connection."""
        services = self.services
        for part in (services.producers, services.consumers, services.hold, services.pops):
            services.supervisor.call("end of a connection", part.channel_closed, channel)

    # -- wiring --------------------------------------------------------------------------------------------------------

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Opens the store and connects the parts. ``start`` calls this after it has opened the port.

        Raises the same errors as ``start``.
        """
        self._open_store()
        self._wire(loop)
        self.store.start()
        self.services.stats.start()

    def _open_store(self) -> None:
        config, store = self.config, self.store
        host, _, port = self.address.rpartition(":")
        try:
            store.store_host = host_bytes(host.strip("[]"), int(port))
        except ValueError:
            raise ConfigError("brokerIP1", host, "an IP address that clients can reach") from None
        store.property_suffix = encode_properties(
            {
                "MSG_REGION": config.region_id,
                "TRACE_ON": "true" if config.trace_on else "false",
                "CLUSTER": config.broker_cluster_name,
            }
        )
        self.services.load()

    def _is_batch_topic(self, topic: bytes) -> bool | None:
        return self.services.is_batch_topic(topic)

    def _wire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Creates the parts that need the event loop or the broker's address."""
        config, store, services = self.config, self.store, self.services
        services.address, services.loop = self.address, loop
        services.writer.start(loop)
        if store.config.sync_flush:
            services.waiters = FlushWaiters(
                services.clock.monotonic, store.config.sync_flush_timeout_ms, flush_not_confirmed, loop.call_later
            )
        services.outer_api = BrokerOuterApi(config, self.address, services.clock.wall_ms)
        self._registration = Registration(config, loop, services.outer_api, services.topics, services.supervisor)
        self._wire_transactions(loop)
        pull = PullMessageProcessor(services)
        services.cold_reads = pull.cold_reads
        self._delivery = DelayedDelivery(services.schedule, loop, services.cold_reads, services.supervisor)
        services.hold = pull.hold = PullRequestHold(
            store.max_queue_offset,
            pull.resume,
            services.clock.monotonic,
            loop.call_later,
            services.senders.account_on,
        )
        sends = SendMessageProcessor(services, self._rewriter())
        register_requests(services, self._processors)
        self._dispatching.wire(loop, services, self._delivery)
        for holder in (services.timers, services.schedule, self._checks, services.pops):
            store.add_holder(holder)
        self._handler = RequestHandler(
            store,
            sends,
            pull,
            self._processors,
            self._dispatching.pending,
            services.waiters,
            config.send_thread_pool_queue_capacity,
            services.clock.monotonic,
            services.access.guard.admit if services.access is not None else None,
        )
        if services.access is not None:
            services.access.freshness.begin()
            services.access.guard.wire(services.cold_reads, self._processors.json_bodies, self._handler.process)

    def _rewriter(self) -> Rewriter:
        store, services = self.store, self.services
        unique_ids = UniqueIds(store.store_host[:-4], process_id(), random.SystemRandom().randbytes(4), services.clock)
        return Rewriter(
            store.property_suffix,
            unique_ids.next,
            len(services.delay_levels_ms),
            not self.config.reject_transaction_message,
            self.config.client_host,
            services.timers.rewriter,
            services.senders.mark,
        )

    def _wire_transactions(self, loop: asyncio.AbstractEventLoop) -> None:
        config, services = self.config, self.services
        self._checks = services.transaction_checks = TransactionCheckService(
            services.halves,
            loop,
            config.transaction_check_interval_ms,
            config.transaction_op_batch_interval_ms,
            services.supervisor,
        )
        services.transactions = TransactionalMessageService(
            self.store,
            services.halves,
            services.producers,
            TransactionRules(
                config.transaction_timeout_ms, config.transaction_check_max, len(services.delay_levels_ms)
            ),
            config.broker_name,
            self.store.now_ms,
            lambda: services.topics.create_for_group(TRANS_CHECK_MAX_TIME_TOPIC, 1),
            self._checks.finished,
            services.timers.rewriter,
            services.senders,
            services.topics.read_queue,
        )

    # -- at intervals --------------------------------------------------------------------------------------------------

    def _work_periodically(self, loop: asyncio.AbstractEventLoop) -> None:
        config, services = self.config, self.services

        def every(
            name: str,
            pause_s: Callable[[], float],
            work: Callable[[], Coroutine[Any, Any, None] | None],
            first_s: Pause = None,
        ) -> None:
            self._periodic.append(services.supervisor.every(name, pause_s, work, loop, first_s))

        every(
            "registration with the name servers",
            lambda: config.register_name_server_period_ms / 1000,
            self._registration.register,
            REGISTER_AGAIN_S,
        )
        every("writing of consumer offsets", lambda: config.flush_consumer_offset_interval_ms / 1000, services.persist)
        every("search for silent clients", lambda: SCAN_INTERVAL_S, self._close_silent_clients)
        every("recheck of held pulls", lambda: RECHECK_INTERVAL_S, services.hold.recheck)
        every("sampling of rates", lambda: SAMPLE_INTERVAL_S, lambda: in_turns(services.stats.sample()))
        every("closing of idle queues", lambda: IDLE_LOOK_S, lambda: self.store.park_idle_queues(IDLE_SHARES))
        if services.access is not None and services.access.users is None:
            every("reload of accounts", services.access.reload_interval_s, services.access.reload)
        if services.access is not None:
            members = services.access.former_members(services.consumers)
            every("removal of former members", services.access.reload_interval_s, lambda: in_turns(members.remove()))

    def _close_silent_clients(self) -> None:
        services = self.services
        limit = services.clock.monotonic() - self.config.channel_expired_timeout_ms / 1000
        for channel in {*services.producers.silent_since(limit), *services.consumers.silent_since(limit)}:
            channel.close()


def _pops(services: BrokerServices) -> Pops:
    # This import is deferred, because a broker whose clients do not pop does not need the module.
    from rucola.broker.pop_services import PopServices

    return PopServices(services)
