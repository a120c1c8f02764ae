"""Brokers that copy each other's log, on simulated disks and a simulated network: the production code of both sides,
with a process, an event loop and a disk each. Nothing happens but what a test does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, cast

from tests.crash.workloads import config

from rucola.broker.config import BrokerConfig
from rucola.broker.dispatch_scheduler import DispatchScheduler
from rucola.broker.flush_waiters import Confirmation, FlushWaiters
from rucola.broker.ha.acting_config import IN_SYNC_BYTES
from rucola.broker.ha.copying import Copying
from rucola.broker.ha.master import HaServer, HaServerOptions
from rucola.broker.ha.master_broker import LogBounds, MasterTables
from rucola.broker.ha.replica import Replica, ReplicaOptions
from rucola.broker.ha.replication import ReplicaRule, Replication
from rucola.broker.ha.slave import Slave
from rucola.broker.ha.slave_access import SlaveAccess
from rucola.broker.processor.send_response import flush_not_confirmed
from rucola.common.hosts import join_address
from rucola.common.message import StoreMessage
from rucola.errors import CopyRefusedError, DiskError, RucolaError, StoreDamagedError
from rucola.formats.ha import SLAVE_REPORT
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand, decode_frame
from rucola.runtime.supervision import Supervisor
from rucola.store.config import MessageStoreConfig
from rucola.store.ha.slave_link import SlaveLink
from rucola.store.ha.slave_log import SlaveLog
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.testing.clock import ManualClock
from rucola.testing.manual_worker import ManualWorker, manual_workers
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_loop import SimulatedLoop
from rucola.testing.simulated_network import SimulatedNetwork
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT

SEGMENT = 8192
SLAVE_TIMEOUT_MS = 3000
_FETCH_S = 11.0
"""Time that a disk takes which has not broken yet; slaves get two heartbeats in it if the master is not careful."""
MASTER = ("10.0.0.1", 10912)
_WORKERS = ("rucola.store.log.allocate", "rucola.store.log.flush", "rucola.store.keeper")


@dataclass(frozen=True)
class PairOptions:
    """How a pair is configured.

    Attributes:
        replicas: ``inSyncReplicas`` of a SYNC_MASTER; 1 for an ASYNC_MASTER.
        sync_flush: whether the master has SYNC_FLUSH.
        slaves: number of slaves.
        at_once: whether slaves sync, and report, at once.
        are_brokers: whether slaves are brokers with SYNC_FLUSH, and not replicas.
    """

    replicas: int = 2
    sync_flush: bool = True
    slaves: int = 1
    at_once: bool = True
    are_brokers: bool = False


class Sender:
    """The connection of a producer to the master; stands for ``Channel``.

    Args:
        answered: called with number and code of each response.
    """

    remote_address = "10.0.0.9:1"

    def __init__(self, answered: Callable[[int, int], None]) -> None:
        self.owed = 0
        self._answered = answered

    def send(self, data: bytes | bytearray) -> None:
        """See ``Channel``."""
        rest = bytes(data)
        while rest:
            size = 4 + int.from_bytes(rest[:4], "big")
            answer = decode_frame(rest[:size])
            self._answered(answer.opaque, answer.code)
            rest = rest[size:]

    def owe(self, size: int) -> None:
        """See ``Channel``."""
        self.owed += size

    def settle(self, size: int) -> None:
        """See ``Channel``."""
        self.owed -= size


class MasterProcess:
    """A process of the master: its store, the port for slaves, and what lets senders wait, wired as in a broker.

    Attributes:
        loop: its event loop.
        store: its store.
        server: the port for slaves.
        closed: address of each connection that it has closed, and why.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        options: PairOptions,
        clock: ManualClock,
        network: SimulatedNetwork,
        answered: Callable[[int, int], None],
    ) -> None:
        self.disk = disk
        self.loop = loop = SimulatedLoop("master", clock, network)
        with manual_workers(*_WORKERS):
            self.store = store = MessageStore(store_config(options.sync_flush), files_on(disk), clock)
        try:
            store.load()
        except (DiskError, StoreDamagedError):
            loop.kill()
            raise
        self.supervisor = supervisor = Supervisor()
        self.replication = copies = Replication(
            ReplicaRule(options.replicas, 1, IN_SYNC_BYTES), clock.monotonic, SLAVE_TIMEOUT_MS, loop.call_later
        )
        self.server = copies.server = HaServer(
            store.sent_log(), HaServerOptions(*MASTER, SlaveAccess("", True)), self._fetch, copies, supervisor
        )
        self.closed: list[tuple[str, str]] = []
        self.server._log = cast(Any, SimpleNamespace(closed=lambda peer, why: self.closed.append((peer, why))))
        then = copies if copies.needed else None
        self.waiters: FlushWaiters | None = None
        if options.sync_flush:
            self.waiters = FlushWaiters(
                clock.monotonic,
                store.config.sync_flush_timeout_ms,
                flush_not_confirmed,
                loop.call_later,
                lambda: store.flushed_offset,
                then=then,
            )
        self.confirmation: Confirmation | None = then if self.waiters is None else self.waiters
        self.sender = Sender(answered)
        services = SimpleNamespace(store=store, supervisor=supervisor, pops=SimpleNamespace(waiting=0))
        running = SimpleNamespace(
            services=services, loop=loop, replication=copies, slave=None, waiters=self.waiters, hold=(), lite=None
        )
        scheduler = DispatchScheduler(cast(Any, running), [])
        store.listen(on_append=scheduler.appended, on_flushed=scheduler.flushed_in_thread)
        try:
            store.start()
        except DiskError:
            store.shutdown()
            loop.kill()
            raise
        loop.complete(self.server.start())

    def put(self, message: StoreMessage) -> tuple[int, ResponseCode]:
        """Appends a message; returns the end of its record, or -1 if its sender is refused, and the response."""
        try:
            [result] = self.store.put_messages([message])
        except DiskError:  # a queue cannot be opened; the broker's request handler answers so
            return -1, ResponseCode.SYSTEM_ERROR
        if result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            return -1, ResponseCode.SERVICE_NOT_AVAILABLE
        assert result.status is PutMessageStatus.PUT_OK, result.status
        return result.physical_offset + result.size, ResponseCode.SUCCESS

    def answer(self, number: int, end: int) -> None:
        """Answers a send, now or later."""
        answer = RemotingCommand(0, number, FLAG_RESPONSE).encode()
        if self.confirmation is not None and not self.confirmation.passed(end):
            self.confirmation.add(end, cast(Any, self.sender), answer)
        else:
            self.sender.send(answer)

    def stop(self) -> None:
        """Stops it cleanly, as a broker does that no longer waits for slaves."""
        self.loop.complete(self.replication.close())
        self.store.shutdown()
        if self.waiters is not None:
            self.waiters.release(self.store.flushed_offset)
            self.waiters.fail_all("the broker stopped")
        self.loop.kill()

    def workers(self) -> list[ManualWorker]:
        """The threads that allocate, flush and keep."""
        return store_workers(self.store)

    def _fetch(self, work: Callable[[], None]) -> Any:
        """Fetches from a disk that is slow."""

        def fetched() -> None:
            work()
            done.set_result(None)

        done = self.loop.create_future()
        self.loop.call_later(_FETCH_S, fetched)
        return done


class SlaveBroker:
    """What a slave asks its master's broker port; stands for ``MasterBroker``."""

    async def store_options(self) -> dict[str, str]:
        """See ``MasterBroker``."""
        return {
            "mappedFileSizeCommitLog": str(SEGMENT),
            "mappedFileSizeConsumeQueue": "200",
            "messageIndexEnable": "false",
            "flushConsumeQueueThoroughInterval": "1",
        }

    async def log_bounds(self) -> LogBounds:
        """See ``MasterBroker``. No segment expires."""
        return LogBounds(0, 1)

    async def tables(self) -> MasterTables:
        """See ``MasterBroker``."""
        return MasterTables({}, {})

    async def close(self) -> None:
        """See ``MasterBroker``."""


class SlaveProcess:
    """A process of a slave: ``rucola replica``, which ends when the copy must not or cannot go on.

    Attributes:
        refused: why the copy must not go on with this master; None as long as it may.
        failed: the error of the disk with which it has ended by itself; None as long as it has not.
    """

    def __init__(
        self, name: str, disk: SimulatedDisk, options: PairOptions, clock: ManualClock, network: SimulatedNetwork
    ) -> None:
        self.name, self.disk = name, disk
        self.refused: CopyRefusedError | None = None
        self.failed: DiskError | None = None
        self.loop = SimulatedLoop(name, clock, network)
        try:
            self._start(options, clock)
        except (DiskError, StoreDamagedError):
            self.loop.kill()
            raise

    def _start(self, options: PairOptions, clock: ManualClock) -> None:
        what = ReplicaOptions(join_address(*MASTER), ROOT, flush_at_once=options.at_once)
        self._replica = Replica(what, cast(Any, SlaveBroker()), files_on(self.disk), clock)
        with manual_workers(*_WORKERS):
            self.loop.complete(self._replica.start())
        self._running = self.loop.create_task(self._replica.run())

    @property
    def store(self) -> MessageStore:
        """Its store."""
        return self._replica.store

    @property
    def copying(self) -> Copying:
        """Its copy."""
        return self._replica._copying

    @property
    def log(self) -> SlaveLog:
        """Its log."""
        return self.copying._log

    @property
    def link(self) -> SlaveLink | None:
        """Its connection; None if it has none."""
        connection = self.copying.client._connection
        return None if connection is None else connection.link

    @property
    def trouble(self) -> str:
        """Why it says that it does not copy; empty if it does not say so."""
        return "" if self.failed is None else str(self.failed)

    def look(self) -> None:
        """Notes that it has ended.

        Raises:
            Exception: what has ended the process otherwise.
        """
        if self._running.done() and self.refused is None and self.failed is None and self.loop.alive:
            error = self._running.exception()
            if isinstance(error, CopyRefusedError):
                self.refused = error
            elif isinstance(error, DiskError):
                self.failed = error
            else:
                raise error or AssertionError("the slave has ended")

    def stop(self) -> None:
        """Stops it cleanly."""
        self._running.cancel()
        self.loop.run_due()
        self.loop.complete(self._replica.stop())
        self.loop.kill()

    def workers(self) -> list[ManualWorker]:
        """The threads that allocate, flush and keep."""
        return store_workers(self.store)


class SlaveBrokerProcess(SlaveProcess):
    """A process of a slave: a broker with ``brokerRole=SLAVE``, which stays, and tries again."""

    def _start(self, options: PairOptions, clock: ManualClock) -> None:
        loop, files = self.loop, files_on(self.disk)
        with manual_workers(*_WORKERS):
            self._store = store = MessageStore(store_config(True), files, clock, is_copy=True)
        store.load()
        self._supervisor = Supervisor()
        writer = SimpleNamespace(table=lambda *_: None)
        services = SimpleNamespace(
            config=BrokerConfig(ha_master_address=join_address(*MASTER)),
            store=store,
            files=files,
            clock=clock,
            supervisor=self._supervisor,
            writer=writer,
            pops=SimpleNamespace(waiting=0),
            clamp_offsets=lambda: None,
        )
        self._slave = slave = loop.complete(_made(partial(_CopyingSlave, cast(Any, services), loop)))
        running = SimpleNamespace(
            services=services, loop=loop, replication=None, slave=slave, waiters=None, hold=(), lite=None
        )
        scheduler = DispatchScheduler(cast(Any, running), [])
        store.listen(scheduler.appended, scheduler.flushed_in_thread)
        slave.appended = scheduler.appended
        try:
            if not slave.is_empty:
                store.start()
        except DiskError:
            store.shutdown()
            raise
        slave.start()

    @property
    def store(self) -> MessageStore:
        """Its store."""
        return self._store

    @property
    def copying(self) -> Copying:
        """Its copy."""
        return self._slave._copying

    @property
    def trouble(self) -> str:
        """See ``SlaveProcess``."""
        return self._slave._trouble

    def look(self) -> None:
        """Notes why the copy does not go on.

        Raises:
            AssertionError: it does not say so.
        """
        failures, slave = {work: count for work, count in self._supervisor.failures.items() if count}, self._slave
        assert not failures, f"failures of {self.name}: {failures}"
        error = slave.error if slave._trouble else None
        assert not slave._trouble or slave.not_in_sync.endswith(slave._trouble)
        self.refused = error if isinstance(error, CopyRefusedError) else None

    def stop(self) -> None:
        """Stops it cleanly."""
        self.loop.complete(self._slave.stop())
        self._store.shutdown()
        self.loop.kill()


class _CopyingSlave(Slave):
    """A slave that copies the log, and no tables.

    Attributes:
        error: why the copy was refused last.
    """

    error: RucolaError | None = None

    def start(self) -> None:
        """Begins to copy."""
        self._master = cast(Any, SlaveBroker())
        self._run(self._copy())

    def _note(self, error: RucolaError) -> None:
        self.error = error
        super()._note(error)


async def _made(make: Callable[[], _CopyingSlave]) -> _CopyingSlave:
    """Makes it while the loop runs."""
    return make()


class Liar(asyncio.BufferedProtocol):
    """Somebody who connects to the port for slaves and has no log.

    Attributes:
        loop: its event loop.
        lied: whether it has said what no slave says. Whoever begins with too much is only told where the log ends.
    """

    def __init__(self, clock: ManualClock, network: SimulatedNetwork) -> None:
        self.loop = SimulatedLoop("liar", clock, network)
        self.lied = False
        self._has_begun = False
        self._buffer = bytearray(4096)
        self._transport = self.loop.complete(self.loop.create_connection(lambda: self, *MASTER))[0]

    def get_buffer(self, sizehint: int) -> bytearray:
        """See ``asyncio.BufferedProtocol``."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Ignores what it gets."""

    def report(self, value: int) -> None:
        """Reports any number; above 1, it is a lie."""
        self.lied = value < 0 or (value > 1 and self._has_begun)
        self._has_begun = True
        self._transport.write(SLAVE_REPORT.pack(value))

    @property
    def is_believed(self) -> bool:
        """Whether the master has heard a lie, and keeps the connection."""
        out = self._transport.out
        is_heard = not out.waiting and not out.is_ended  # what is written after a cut reaches nobody
        return self.lied and is_heard and not out.target.is_closing()


@cache
def store_config(sync_flush: bool) -> MessageStoreConfig:
    """The options of both stores."""
    return replace(config(sync_flush, SEGMENT), message_index_enable=False)


def store_workers(store: MessageStore) -> list[ManualWorker]:
    """The threads of a store: allocation, flush, keeper."""
    found = (store._log._allocator._worker, store._flush._worker, store._keeper._worker)
    return [worker for worker in found if isinstance(worker, ManualWorker)]
