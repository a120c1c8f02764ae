"""A real broker over a simulated disk; only sockets, threads and intervals are replaced by calls.

Requests go in as bytes and responses come out as bytes, so a response counts only if a client would have seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

from tests.brokers import due_halves
from tests.crash.workloads import HOST, config

from rucola.broker import Broker, BrokerConfig, lazy_processors
from rucola.broker.client.client_channel import ClientChannel
from rucola.common.message import MessageExt
from rucola.formats.message import decode_messages
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.shared_reader import ReadSpace, SharedFrameReader
from rucola.remoting.channel import Channel
from rucola.store.timer.timer_store import TimerGeometry
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop
from rucola.testing.manual_worker import ManualWorker, manual_workers
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT

SUCCESS = 0
STEP_MS = 1000
LEVELS_MS = (1000, 2000, 4000)
CHECK_MAX = 2
TRANSACTION_TIMEOUT_MS = 3000
GROUP, PRODUCERS = "cg", "pg"
POPPED, ORDERED, PLAIN = "T", "O", "D"
"""Topics of messages that are popped, popped in order, and read by offset."""
BROKER = BrokerConfig(
    broker_ip1="127.0.0.1",
    broker_name="b",
    listen_port=10911,
    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    transaction_check_max=CHECK_MAX,
)
_LEVELS = " ".join(f"{delay_ms // 1000}s" for delay_ms in LEVELS_MS)
_WORKERS = (
    "rucola.store.log.allocate",
    "rucola.store.log.commit",
    "rucola.store.log.flush",
    "rucola.store.keeper",
    "rucola.runtime.table_writer",
)


class Connection(Channel):
    """The connection of a client: the broker's channel, without a socket.

    Attributes:
        answers: responses by number of the request.
        questions: requests that the broker sent.
    """

    def __init__(self, broker: Broker, loop: ManualLoop) -> None:
        super().__init__(broker._server, cast(Any, loop), SharedFrameReader(ReadSpace(4096)))
        self.host = HOST
        self.remote_address = "127.0.0.1:12345"
        self.answers: dict[int, RemotingCommand] = {}
        self.questions: list[RemotingCommand] = []

    def receive(self, frame: bytes) -> None:
        """Passes bytes from the client to the broker."""
        reader = self.inbound._reader
        reader.buffer()[: len(frame)] = frame
        batch = reader.received(len(frame))
        assert batch is not None
        self.inbound._frames_received(self, batch)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """See ``Channel``."""
        rest = bytes(data)
        while rest:
            size = 4 + int.from_bytes(rest[:4], "big")
            answer = decode_frame(rest[:size])
            self.answers[answer.opaque] = answer
            rest = rest[size:]

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """See ``Channel``."""
        self.questions.append(command)

    def send_oneway(self, frame: bytes) -> None:
        """See ``Channel``."""
        self.questions.append(decode_frame(frame))


class BrokerLife:
    """Broker processes that run one after another on the same simulated disk."""

    def __init__(self, disk: SimulatedDisk, sync: bool, clock: ManualClock) -> None:
        self.disk = disk
        self.clock = clock
        self.config = replace(
            config(sync, 65536), message_delay_level=_LEVELS, mapped_file_size_timer_log=1040, max_message_size=8192
        )
        self.options = BROKER
        self.broker: Broker
        self.loop: ManualLoop
        self.connection: Connection
        self._threads_of: Broker | None = None
        self._threads: list[ManualWorker] = []
        self._opaque = 0

    def open(self) -> None:
        """Starts a new broker on the directory; it serves requests, but none of its regular work has run yet."""
        self.loop = ManualLoop(self.clock)
        geometry = "rucola.broker.timer.timer_delivery.TimerGeometry"
        with manual_workers(*_WORKERS), patch(geometry, lambda size, step: TimerGeometry(size, step, 256)):
            broker = self.broker = Broker(self.options, self.config, files_on(self.disk), self.clock)
        self.connection = Connection(broker, self.loop)
        lazy_processors.import_all()
        loop = cast(Any, self.loop)
        broker.open(loop)
        for topic in (POPPED, ORDERED, PLAIN):
            broker.topics.create_for_group(topic, 1)
        self.write_tables()
        broker.running.delivery.start()
        broker.services.timers.start(loop, broker.services.cold_reads)
        broker.running.transaction_checks.start(broker.running.transactions, broker.services.cold_reads)
        broker.services.pops.start()

    def online(self) -> None:
        """Connects the producers of the transactions."""
        client = ClientChannel(self.connection, "me", "JAVA", 0, 0.0)
        self.broker.services.producers.register(PRODUCERS, client)

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, code: int, fields: Mapping[str, object], body: bytes = b"", oneway: bool = False) -> int:
        """Sends a request; returns its number, by which ``answer`` finds the response."""
        self._opaque += 1
        texts = {name: str(value) for name, value in fields.items()}
        frame = RemotingCommand(code, self._opaque, 2 * oneway, ext_fields=texts, body=body).encode()
        self.connection.receive(frame)
        return self._opaque

    def answer(self, number: int) -> RemotingCommand | None:
        """Returns the response to a request; None if there is none yet."""
        return self.connection.answers.get(number)

    # -- regular work -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Runs the allocation and flush threads; responds to requests that waited for the disk."""
        for worker in self._workers()[:2]:
            worker.run()
        self.loop.run()
        self.write_tables()
        self.disk.step("flushed", ROOT)

    def write_tables(self) -> None:
        """Runs the table-writing thread, then the event loop, which responds to requests that waited for a table."""
        self.loop.run()
        worker = self._workers()[2]
        if worker.wanted:
            worker.run()
        self.loop.run()

    def _workers(self) -> list[ManualWorker]:
        """The threads that allocate, flush and write tables."""
        if self._threads_of is not self.broker:
            self._threads_of, self._threads = self.broker, self._found_workers()
        return self._threads

    def _found_workers(self) -> list[ManualWorker]:
        store = self.broker.store
        threads = (store._log._allocator._worker, store._flush._worker, self.broker.services.writer._worker)
        workers = [worker for worker in threads if isinstance(worker, ManualWorker)]
        assert len(workers) == len(threads)
        return workers

    def keep(self) -> None:
        """Runs the work of the store's maintenance thread once."""
        worker = self.broker.store._keeper._worker
        assert isinstance(worker, ManualWorker)
        worker.run()

    def deliver(self) -> None:
        """Delivers due messages."""
        self.loop.run()
        self.broker.store.dispatch()
        while self.broker.services.timers.service.work() == 0:
            self.broker.store.dispatch()

    def work(self) -> None:
        """Delivers due messages, and makes popped messages visible again if they were not acknowledged in time."""
        self.deliver()
        popping = self.broker.services.pops.started
        while popping is not None and popping._revive.work():
            pass
        self.loop.run()
        self.broker.store.dispatch()

    def check_transactions(self) -> None:
        """Runs one round of transaction checks."""
        broker = self.broker
        for half in due_halves(broker.services.halves, broker.running.transactions):
            broker.running.transactions.check(half)
        broker.services.halves.write_ops()
        broker.store.dispatch()

    def turn(self, milliseconds: int = 0) -> None:
        """Lets time pass, then runs all work once."""
        self.clock.advance(milliseconds)
        self.flush()
        self.work()
        self.flush()
        self.work()

    def persist(self) -> None:
        """Writes the progress of all services, but only for messages that are on the disk."""
        broker = self.broker
        broker.running.delivery.persist()
        broker.services.persist_now()
        timers = broker.services.timers._timers
        changes = timers.changes(broker.store.flushed_offset, self.clock.wall_ms())
        if changes is not None:
            timers.write(changes)
        self.disk.step("persisted", ROOT)

    def stop(self) -> None:
        """Stops the broker cleanly."""
        asyncio.run(self.broker.shutdown())
        self.disk.step("stopped", ROOT)

    # -- content ------------------------------------------------------------------------------------------------------

    def messages(self, topic: bytes) -> list[MessageExt]:
        """Returns all messages that consumers see in the first queue of a topic."""
        store, found = self.broker.store, list[MessageExt]()
        queue_offset = store.min_queue_offset(topic, 0)
        while queue_offset < store.max_queue_offset(topic, 0):
            result = store.get_message(topic, 0, queue_offset, 32, 1 << 20)
            queue_offset = result.next_offset
            found += [message for view in result.views for message in decode_messages(view)]
        return found
