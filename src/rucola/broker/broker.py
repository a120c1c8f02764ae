"""Starts and stops a broker, and connects its parts (RocketMQ 5.3.3, ``BrokerController``).

Start: listen, open the store, load the tables, register. The port is opened first, so that nothing is changed if the
port is in use. No request is served before the store is open: until then, the event loop accepts no connection.
Stop: refuse requests, unregister, release held pulls, close the store, answer sends that wait for a sync, close
connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from rucola.broker import lazy_processors
from rucola.broker.config import BrokerConfig
from rucola.broker.lazy_pop_services import Pops
from rucola.broker.running import RunningBroker
from rucola.broker.running_services import RunningServices
from rucola.broker.services import BrokerServices
from rucola.common.hosts import host_bytes, join_address
from rucola.errors import AddressInUseError, ConfigError
from rucola.formats.properties import encode_properties
from rucola.protocol.frame import FrameBatch
from rucola.remoting.server import Channel, RemotingServer, ServerOptions, server_tls
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.extras import SERVER, require
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState

if TYPE_CHECKING:
    from rucola.broker.pop.pop_offsets import PoppedQueue
    from rucola.broker.pop.receipt import Receipt

logger = logging.getLogger(__name__)
_LESS_IN_MEMORY = 10
"""Percent of the memory by which a slave assumes a smaller part of the log to be there, as in RocketMQ."""
FAST_PORT_BELOW = 2
"""The fast ("VIP") port of RocketMQ's brokers is so far below the port for clients."""


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
        if config.is_slave:
            store_config = _of_slave(store_config)
        self.store = MessageStore(
            store_config,
            files,
            clock,
            is_batch_topic=self._is_batch_topic,
            is_copy=config.is_slave,
        )
        services = self.services = BrokerServices(config, self.store, files, clock, peers_clock or clock, self._pops)
        self.topics, self.groups, self.offsets = services.topics, services.groups, services.offsets
        options = ServerOptions(
            idle_timeout_ms=config.server_channel_max_idle_time_s * 1000,
            connections_max=config.connections_max,
            connections_per_address_max=config.connections_per_address_max,
            outbound_total_max=config.unsent_bytes_max,
            tls=server_tls(config),
        )
        self._server = RemotingServer(self, config.bind_address, config.listen_port, options, services.supervisor)
        self._fast: RemotingServer | None = None
        """The port of RocketMQ at which its slaves ask for topics and timers; only for them."""
        if config.feeds_slaves:
            self._fast = RemotingServer(self, config.bind_address, 0, options, services.supervisor)
        self._listeners: list[Callable[[], None]] = []
        self._running: RunningBroker | None = None

    @property
    def running(self) -> RunningServices:
        """The services of the running broker; they exist as soon as ``start`` has opened the store."""
        return self._serving.running

    @property
    def _serving(self) -> RunningBroker:
        assert self._running is not None, "the broker was not started"
        return self._running

    @property
    def address(self) -> str:
        """The address that clients are given, ``host:port``."""
        return join_address(self.config.client_host, self._server.port)

    @property
    def ha_address(self) -> str | None:
        """The address for slaves, ``host:port``; None if the broker does not listen for slaves."""
        replication = self.running.replication
        return None if replication is None else join_address(self.config.client_host, replication.server.port)

    @property
    def role_text(self) -> str:
        """What the broker is among those of its name, for people: a slave with its number and its master."""
        slave = self.running.slave
        if slave is None:
            return ""
        acts = ", acts for it" if self.running.acts() else ""
        return f"{self.config.broker_id} of {slave.master or 'a master not found yet'}{acts}"

    @property
    def ready(self) -> bool:
        """Whether messages are accepted and delivered, and clients find the broker; on a slave, whether messages are
        taken from the master.
        """
        return not (self._closed or self._refusal or self._offline)

    @property
    def trouble(self) -> str:
        """Why messages are not accepted or not delivered, or why a slave is not in sync; empty if nothing is wrong."""
        return self._closed or self._refusal or self._offline or ("" if self.running.acts() else self.not_in_sync)

    @property
    def _closed(self) -> str:
        """Why messages are not accepted or not delivered, if the store is the reason."""
        slave, state = self.running.slave, self.store.state
        is_open = state is StoreState.RUNNING or (slave is not None and slave.is_empty and state is StoreState.STOPPED)
        return "" if is_open and not self._serving.scheduler.failed else f"store {state.value}"

    @property
    def _refusal(self) -> str:
        """Why messages are refused, if too few slaves are the reason."""
        replication = self.running.replication
        return "" if replication is None else replication.trouble

    @property
    def _offline(self) -> str:
        """Why the broker has not registered yet, if it asks its slaves first; else empty."""
        return "" if self.running.pre_online is None else self.running.pre_online.waits_for

    @property
    def remark(self) -> str:
        """What is wrong although messages are accepted and delivered; empty if nothing is."""
        if self.running.acts():
            return f"acts for its master, {self.not_in_sync or 'in sync'}"
        replication = self.running.replication
        return "" if replication is None else replication.remark

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
        return len(self.running.hold)

    @property
    def sends_waiting(self) -> int:
        """Number of batches of responses that wait for a sync of the log, or for slaves."""
        return self.running.sends_waiting()

    @property
    def slaves(self) -> int:
        """Number of connected slaves."""
        replication = self.running.replication
        return 0 if replication is None else len(replication.server.slaves)

    @property
    def slave_behind_bytes(self) -> int:
        """Bytes of the log that the slave lacks that lacks most; 0 without slaves."""
        replication = self.running.replication
        return 0 if replication is None else replication.behind_bytes

    @property
    def slave_behind_seconds(self) -> float:
        """Seconds of store time that the slave lacks that lacks most; 0 without slaves, NaN if that is not known."""
        replication = self.running.replication
        return 0.0 if replication is None else replication.behind_seconds

    @property
    def slave_connections(self) -> int:
        """Number of connections of slaves since the start."""
        replication = self.running.replication
        return 0 if replication is None else replication.server.connections

    @property
    def in_sync_replicas(self) -> int:
        """Number of brokers that are in sync, this one included."""
        replication = self.running.replication
        return 1 if replication is None else replication.in_sync_count

    @property
    def master_behind_bytes(self) -> int:
        """Bytes of the master's log that this slave lacks, as far as it knows; 0 on a master."""
        return 0 if self.running.slave is None else self.running.slave.behind_bytes

    @property
    def not_in_sync(self) -> str:
        """Why this slave is not in sync with its master; empty if it is, and on a master."""
        return "" if self.running.slave is None else self.running.slave.not_in_sync

    @property
    def acks_buffered(self) -> int:
        """Number of pops with acknowledgements that are not in the log yet."""
        return self.services.pops.acks_buffered

    def on_dispatch(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` each time stored messages have reached their queues."""
        self._listeners.append(listener)

    def join(self, transport: asyncio.Transport) -> Channel:
        """See ``RemotingServer.join``."""
        return self._server.join(transport)

    def drop_connections(self) -> None:
        """Closes the port and cuts every connection at once, as if the process had ended; ``shutdown`` must follow."""
        self._server.drop()
        if self._fast is not None:
            self._fast.drop()

    def withdraw(self, channel: Channel, opaque: int) -> bool:
        """Takes out the waiting pop of ``channel`` with the number ``opaque``, because its client no longer wants the
        response: it pops nothing and gets no response. Messages then go to the next waiting pop. Event loop only.

        Returns:
            Whether such a pop waited. False for a pop that is answered or whose service has not begun.
        """
        lite = self.running.lite
        return self.services.pops.withdraw(channel, opaque) or (lite is not None and lite.withdraw(channel, opaque))

    def acknowledge(self, channel: Channel, queue: PoppedQueue, receipt: Receipt, queue_offset: int) -> bool:
        """Acknowledges a popped message for the client of ``channel``, without a request. Event loop only.

        Returns:
            Whether it is done. If not, the client must send request 200051: it may have to wait for its turn, for the
            disk or for access control, or there is something wrong.
        """
        if self.config.guarded or channel.inbound.reasons or channel.is_turn_over():
            return False
        return self.services.pops.acknowledge(queue, receipt, queue_offset)

    async def catch_up(self) -> None:
        """Does everything that became due because the wall clock was moved forward. For tests.

        When this returns, delayed and timed messages are in their topics, unacknowledged ones are in their retry
        topics, and producers were asked about their transactions. Expired files are removed soon afterwards.
        """
        self.store.clock_moved()
        await self._serving.catch_up()
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
            if (replication := self.running.replication) is not None:
                await replication.server.start()
                await self._start_fast()
        except BaseException:
            if self._running is not None and self.running.replication is not None:
                await self.running.replication.close()
            services.timers.close()
            self.store.shutdown()
            await self._server.close()
            raise
        if self.running.pre_online is None:
            await self.running.registration.begin()
        services.loop_watch.start(loop)
        self._server.turn.on_reads(services.loop_watch.expect_work)
        self._serving.start()
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
        services, running, serving = self.services, self.running, self._serving
        serving.handler.stopping = True
        if running.replication is not None:
            await running.replication.settle(running.sends_waiting)
        services.loop_watch.stop()
        await serving.stop_periodic()
        if running.slave is not None:
            await running.slave.stop()
        services.writer.stop()
        services.topics.on_register(None)
        services.writer.write()
        await running.registration.close()
        running.hold.release_all()
        await services.pops.stop()
        if running.lite is not None:
            await running.lite.stop()
        await running.delivery.stop()
        await services.timers.stop()
        await running.transaction_checks.stop()
        if running.replication is not None:
            await running.replication.close()
        await services.cold_reads.close()
        await services.expressions.close()
        if running.slave is None:
            running.transaction_checks.write_ops()
        services.persist_now()
        self.store.shutdown()
        services.timers.close()
        if running.slave is None:  # on a slave, progress is the master's
            running.delivery.persist()
            services.halves.settle()
        services.finish_offsets()
        services.persist_now()
        if running.waiters is not None:
            running.waiters.release(self.store.flushed_offset)
            running.waiters.fail_all("the broker stopped")
        await serving.processors.close()
        if self._fast is not None:
            await self._fast.close()
        await self._server.close()

    # -- the remoting server's handler ---------------------------------------------------------------------------------

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        """Serves the frames of one socket read, as many as fit into one iteration of the event loop."""
        running = self._running
        assert running is not None
        running.handler.serve_rows(channel, batch, 0)

    def serve_rows(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        """Continues at row ``first`` with frames that did not fit into an earlier iteration."""
        running = self._running
        assert running is not None
        running.handler.serve_rows(channel, batch, first)

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the client of a closed connection."""
        if self._running is None:  # the store could not be opened, and a client had just connected
            return
        services = self.services
        for part in (services.producers, services.consumers, self.running.hold, services.pops, self.running.lite):
            if part is not None:
                services.supervisor.call("end of a connection", part.channel_closed, channel)

    # -- start --------------------------------------------------------------------------------------------------------

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Opens the store and creates the parts that need it, the loop or the address. ``start`` calls this when the
        port is open.

        Raises the same errors as ``start``.
        """
        services = self.services
        self._open_store()
        self._running = RunningBroker(RunningServices(services, loop, self.address), self._listeners)
        slave = self.running.slave
        if slave is None:
            services.pops.load()
        services.writer.start(loop)
        if services.access is not None:
            services.access.freshness.begin()
        if slave is None or not slave.is_empty:
            self.store.start()
        services.stats.start()

    async def _start_fast(self) -> None:
        assert self._fast is not None
        self._fast.port = max(self._server.port - FAST_PORT_BELOW, 0)
        try:
            await self._fast.start()
        except (AddressInUseError, ConfigError) as error:
            # Of a port that the system has chosen, nobody can know that the one below is free.
            level = logging.WARNING if self.config.listen_port else logging.INFO
            event(logger, level, "slaves of RocketMQ get no topics and timers", error=error)

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

    # -- what the parts call; they were created before the running broker ---------------------------------------------

    def _is_batch_topic(self, topic: bytes) -> bool | None:
        return self.services.is_batch_topic(topic)

    def _pops(self) -> Pops:
        # This import is deferred, because a broker whose clients do not pop does not need the module.
        from rucola.broker.pop_services import PopServices

        return PopServices(self.running)


def _of_slave(config: MessageStoreConfig) -> MessageStoreConfig:
    """Returns the options of a slave's store."""
    return replace(
        config,
        enabled_append_prop_crc=False,  # the records are the master's, with a checksum or without
        transient_store_pool_enable=False,
        access_message_in_memory_max_ratio=max(config.access_message_in_memory_max_ratio - _LESS_IN_MEMORY, 1),
    )
