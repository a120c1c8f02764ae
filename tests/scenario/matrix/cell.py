"""Runs one cell: the servers, the application of the row, the event of the column, and the judgement."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tests.scenario.matrix import events, transactions
from tests.scenario.matrix.desk import Desk, Member
from tests.scenario.matrix.faces import (
    AsyncFace,
    SyncFace,
    VirtualLoopThread,
    blocking_hands,
    blocking_sending,
    blocking_transactions,
)
from tests.scenario.matrix.hands import Hands
from tests.scenario.matrix.ledger import Given, Ledger
from tests.scenario.matrix.main_thread import MainThread
from tests.scenario.matrix.residue import left
from tests.scenario.matrix.responder import Responder
from tests.scenario.matrix.sending import Sender
from tests.scenario.matrix.sweep import sweep
from tests.scenario.matrix.table import Column, Row, Use, Word, promise
from tests.scenario.matrix.world import World, quiet_watch

from rucola.client import loop_thread
from rucola.errors import RucolaError
from rucola.testing.queue_checker import Commit, Outcome
from rucola.testing.virtual_loop import VirtualEventLoop, virtual_time

SHUTDOWN_S = 90.0
"""Longest virtual time of a shutdown: longer than all waits in the options."""
QUIET_S = 60.0
"""How long the cell looks whether a finished message comes again."""
LEFT_S = 40.0
"""When nothing of the servers and clients may be left."""
SOON_S = 10.0
"""When everything that was sent without delay is stored."""
MORE_S = 120.0
"""Longest time until sends succeed again."""
_LOOK_S = 0.25


@dataclass
class Report:
    """The outcome of a cell.

    Attributes:
        row, column, variant: which cell.
        promised: the promise in words.
        findings: what breaks it; empty if it was kept.
        facts: further numbers.
    """

    row: str
    column: str
    variant: str
    promised: str
    findings: list[str]
    facts: dict[str, Any] = field(default_factory=dict)


class Cell:
    """A run of one cell. Events use its methods; everything runs on the loop.

    Args:
        row: the use of the client.
        column: the event.
        variant: the event's form.
        loop: the loop.
        main: the main thread, if the loop runs in another one.
        world: the servers; by default some of its own, on the loop.
    """

    def __init__(
        self,
        row: Row,
        column: Column,
        variant: str,
        loop: VirtualEventLoop,
        main: MainThread | None,
        world: World | None = None,
    ) -> None:
        self.row, self.column, self.variant, self.loop = row, column, variant, loop
        self.world = world or World(loop.time, column.name == "secret", row.has_lite_topics)
        self.faces = AsyncFace(loop), SyncFace(loop, main)
        self._main = main
        self.ledger: Ledger
        self.desk: Desk
        self.renew()
        self.warnings: list[str] = []
        self.wait_s = row.wait_s + column.wait_s
        self._connections = self.steps = 0
        self._threads = threading.enumerate()

    async def run(self) -> Report:
        """Runs the cell."""
        with captured_log(self.warnings):
            return await self._run()

    async def _run(self) -> Report:
        word = promise(self.row, self.column)
        try:
            await self.world.open()
            try:
                self._connections = max(self.world.connections() - 1, 0)  # without the administrator's
                if self.column.name == "shutdown":
                    findings = await sweep(self, word)
                else:
                    findings = []
                    await self._meet_event()
                await self.world.leave()
                await asyncio.sleep(5.0)
                connections = self.world.connections() - self._connections
                if connections > 0:
                    self.desk.fault(f"connections to the broker left: {connections}")
            finally:
                for member in self.members:
                    member.stop()
                await self.world.leave()
                await self.world.close()
            await asyncio.sleep(self.world.scaled(LEFT_S))
            self.ledger.faults += left(self.loop, self._threads)
        finally:
            shutil.rmtree(self.world.home, ignore_errors=True)
        findings += self.ledger.judge(word)
        findings += [f"unhandled: {text}" for text in self.loop.unhandled if "planned" not in text]
        facts = {
            "sent": len(self.ledger.sends),
            "given": len(self.ledger.givens),
            "calls": self.desk.calls,
            "steps": self.steps,
        }
        return Report(self.row.name, self.column.name, self.variant, str(word), findings, facts)

    async def _meet_event(self) -> None:
        if not self.row.is_producer:
            await events.EVENTS[self.column.name](self)
            if not any(send.outcome is Outcome.OK for send in self.ledger.sends.values()):
                self.desk.fault("no message was sent")
            await self.settle()
            await self.end()
            await self.succeed()
            return
        async with Responder(self.world) if self.row.base == "request" else nullcontext():
            await events.EVENTS[self.column.name](self)
            sent = list(self.ledger.sends)
            await self.more(4)
            await self.end()
            await self.await_stored()
        await self.take_stored()
        if self.row.base == "oneway" and promise(self.row, self.column).word is Word.SKIP:
            self.ledger.excuse(sent, "one-way")

    async def await_stored(self) -> None:
        """Waits until the broker has delivered what is delayed, and knows the outcome of all transactions."""
        if self.row.base == "transaction":  # another producer of the group tells it
            heir = await self.start("heir", holds=True)
            await asyncio.sleep(self.world.visible_s)
            await self.stop(heir)
        elif self.row.base in ("delayed", "recall"):
            await asyncio.sleep(self.world.visible_s)
        else:
            await asyncio.sleep(self.world.scaled(SOON_S))

    async def take_stored(self) -> None:
        """For a producer's row, what the broker has stored counts as given."""
        for message in await self.world.stored():
            value = message.body.decode()
            queue = self.world.queue_name(value, message.queue_id)
            given = Given(value, queue, message.queue_offset, "stored", self.loop.time())
            self.ledger.finished(self.ledger.given(given))

    def renew(self) -> None:
        """Begins a new ledger."""
        self.ledger = self.world.ledger = Ledger(
            self.loop.time,
            apart=self.row.broadcasting,
            exclusive=self.row.orderly,
            commits_again=self.row.base == "transaction" and self.world.commits_again,
        )
        self.desk = Desk(self.row, self.ledger, self.world, self.loop)
        self.members: list[Member] = []

    # -- for events

    async def begin(self, before: int = 8, after: int = 8) -> Member:
        """Sends, starts the first member, and sends again; a producer's row only starts the member, which sends."""
        if self.row.is_producer:
            return await self.start("a")
        await self.world.send(before)
        member = await self.start("a")
        await self.world.send(after)
        return member

    async def more(self, count: int) -> list[str]:
        """Further messages are sent and acknowledged; returns their values."""
        if not self.row.is_producer:
            return await self.world.send_until_acknowledged(count)
        before = set(self.ledger.sends)
        for _ in range(round(MORE_S / _LOOK_S)):
            values = [value for value in self.ledger.settled() if value not in before]
            if len(values) >= count:
                return values
            await asyncio.sleep(_LOOK_S)
        self.desk.fault(f"no {count} sends succeeded in {MORE_S:g} s; {self.desk.caught[-1:]}")
        return []

    async def start(self, name: str, in_main: bool = False, holds: bool = False, at_once: bool = False) -> Member:
        """Starts a member; returns when its consumer is started, or at once."""
        member = Member(name, holds=holds)
        self.members.append(member)
        self.ledger.joined(name)
        member.done = self.faces[self.row.sync].spawn(self._application(member).run, in_main)
        if not at_once:
            await self._started(member)
        return member

    def spawn_worker(self, member: Member, in_main: bool = False) -> asyncio.Future[None]:
        """A further task, or thread, with the member's consumer."""
        application = self._application(member)
        worker = self.faces[self.row.sync].spawn(lambda: application.work(member.consumer), in_main)
        member.workers.append(worker)
        return worker

    def _application(self, member: Member) -> Any:
        face = self.faces[self.row.sync]
        if self.row.is_producer:
            copy = blocking_transactions if self.row.sync else transactions
            sender = blocking_sending.Sender if self.row.sync else Sender
            return sender(self.desk, member, face, copy.Commits(self.desk, member, face))
        hands = blocking_hands.Hands if self.row.sync else Hands
        return hands(self.desk, member, face, self._listening(member))

    async def interrupt(self, worker: asyncio.Future[None]) -> None:
        """Cancels a task, or interrupts the main thread as Ctrl-C does; returns when it has ended."""
        if self._main is not None:
            self._main.interrupt()
        else:
            worker.cancel()
        try:
            async with asyncio.timeout(SHUTDOWN_S):
                await asyncio.wait([worker])
        except TimeoutError:
            self.desk.fault(f"the interrupted application did not end in {SHUTDOWN_S:.0f} s")
        finally:
            if self._main is not None:
                self._main.settle()

    async def kill(self, member: Member) -> None:
        """Ends a member as a killed process does: brokers and disk get nothing more."""
        consumer = member.consumer._async if self.row.sync else member.consumer
        flat = self.row.use in (Use.PULL, Use.SEND) or self.row.client in ("SimpleConsumer", "LiteConsumer")
        instance = consumer._instance if flat else consumer._member.instance
        await instance.client.close()
        instance.api.client.send_oneway = lambda *_: None
        if self.row.broadcasting:
            consumer._member.offsets._file.commit = lambda _: None
        member.killed = True
        for given in self.ledger.givens:
            if given.member == member.name:
                self.ledger.closed(given)
        await self.stop(member)

    async def call(self, member: Member, name: str, *arguments: Any) -> Any:
        """Calls a method of the member's consumer from outside of the application."""
        method = getattr(member.consumer, name)
        if not self.row.sync:
            return await self.faces[0].call(method, *arguments)
        return await self.loop.run_in_executor(None, lambda: method(*arguments))

    async def stop(self, member: Member) -> None:
        """Ends a member: shuts its consumer down and waits for its application."""
        member.stop()
        began = self.loop.time()
        if self.row.client == "SimpleConsumer":
            await self._hands_empty(member)
        try:
            async with asyncio.timeout(SHUTDOWN_S):
                if member.consumer is not None and self.row.use not in (Use.RECEIVE, Use.PULL, Use.SEND):
                    await self.call(member, "shutdown")
                assert member.done is not None
                await asyncio.wait([member.done, *member.workers])
        except TimeoutError:
            self.desk.fault(f"shutdown of {member.name} did not end in {self.loop.time() - began:.0f} s")
            return
        for work in (member.done, *member.workers):
            error = None if work.cancelled() else work.exception()
            refused = isinstance(error, RucolaError) and not member.started
            if not (error is None or member.killed or refused or isinstance(error, KeyboardInterrupt)):
                self.desk.fault(f"the application of {member.name} ended with {error!r}")

    async def _hands_empty(self, member: Member) -> None:
        """Waits until the application can have acknowledged what it has."""
        for _ in range(400):
            if all(given.closed_at is not None for given in self.ledger.givens if given.member == member.name):
                break
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_LOOK_S)

    def _listening(self, member: Member) -> Callable[..., Any]:
        asynchronous, blocking = self.faces
        hands = (
            blocking_hands.Hands(self.desk, member, blocking)
            if self.row.use is Use.PLAIN_LISTENER
            else Hands(self.desk, member, asynchronous)
        )
        if self.row.use is Use.PLAIN_LISTENER:

            def plain(message: Any) -> None:
                hands.body(message)

            return plain

        async def listen(message: Any) -> None:
            await hands.body(message)

        return listen

    async def _started(self, member: Member) -> None:
        assert member.done is not None
        for _ in range(1000):
            if member.started or member.done.done():
                break
            await asyncio.sleep(0.05)
        else:
            self.desk.fault(f"start of {member.name} did not return in 50 s")

    # -- the end

    async def settle(self) -> None:
        """Waits until nothing is outstanding, at most as long as documented; then looks what comes again."""
        until = self.loop.time() + self.wait_s
        while self.loop.time() < until and self.ledger.outstanding():
            await asyncio.sleep(_LOOK_S)
        missing = sorted(self.ledger.outstanding())
        if missing:
            self.desk.fault(f"outstanding after {self.wait_s:g} s: {', '.join(missing[:8])} ({len(missing)})")
        await asyncio.sleep(self.world.scaled(QUIET_S))

    async def end(self) -> None:
        """Ends all members."""
        await asyncio.gather(*(self.stop(member) for member in self.members))

    async def succeed(self) -> None:
        """Another life of the group gets what the first one left, and nothing else that was finished."""
        names = [member.name for member in self.members] if self.row.broadcasting else ["successor"]
        lives = [await self.start(name) for name in dict.fromkeys(names)]
        values = await self.world.send_until_acknowledged(2)
        for _ in range(round(self.row.wait_s / _LOOK_S)):
            if not self.ledger.outstanding():
                break
            await asyncio.sleep(_LOOK_S)
        missing = sorted(self.ledger.outstanding())
        if missing:
            self.desk.fault(f"a successor did not get {', '.join(missing[:8])} ({len(missing)} of {len(values)} new)")
        for member in lives:
            await self.stop(member)
        if self.row.shares and self.row.client not in ("SimpleConsumer", "LiteConsumer"):
            at = self.loop.time()
            self.ledger.commits += [Commit(name, offset, at) for name, offset in self.world.committed().items()]


@contextmanager
def captured_log(warnings: list[str]) -> Iterator[None]:
    """Collects the client's warnings and errors instead of printing the log."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.startswith("rucola.client") and record.levelno >= logging.WARNING:
                warnings.append(record.getMessage())

    loggers = [logging.getLogger(name) for name in ("rucola", "asyncio", "concurrent.futures")]
    collector, before = Collector(), [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(collector)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(collector)
            logger.propagate = propagate


def run_cell(row: Row, column: Column, variant: str = "", world: World | None = None) -> Report:
    """Runs a cell in this process; the main thread must call it.

    Args:
        row: the use of the client.
        column: the event.
        variant: the event's form.
        world: servers in other processes, in real time; by default servers on the cell's loop, in virtual time.
    """
    loop = VirtualEventLoop(in_real_time=world is not None)
    if world is not None:
        world.clock = loop.time
    with ExitStack() as stack:
        if world is None:
            stack.enter_context(virtual_time(loop))
            stack.enter_context(quiet_watch())
        if not row.sync:
            runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: loop))
            return runner.run(Cell(row, column, variant, loop, None, world).run())
        main = MainThread(loop.working)
        thread = VirtualLoopThread(loop)
        before = list(loop_thread._shared)
        loop_thread._shared[:] = [thread]
        stack.callback(thread.close)
        stack.callback(lambda: loop_thread._shared.__setitem__(slice(None), before))
        stack.enter_context(_signals(signal.SIG_BLOCK))  # Ctrl-C comes while the application waits
        stack.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, main.on_interrupt))
        loop.working.interruptible = lambda: _signals(signal.SIG_UNBLOCK)

        async def direct() -> Report:
            try:
                return await Cell(row, column, variant, loop, main, world).run()
            finally:
                main.jobs.put(None)

        future = thread.start(direct())
        while (job := _next_job(main)) is not None:
            job()
        return Future.result(future)  # without the count of working threads, which knows only the application's


@contextmanager
def _signals(how: int) -> Iterator[None]:
    before = signal.pthread_sigmask(how, {signal.SIGINT})
    try:
        yield
    finally:
        if how == signal.SIG_BLOCK:
            _forget_interrupts()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forget_interrupts() -> None:
    """Discards a Ctrl-C that came when the application had just ended by itself."""
    while signal.sigtimedwait({signal.SIGINT}, 0) is not None:
        pass


def _next_job(main: MainThread) -> Callable[[], None] | None:
    job = main.jobs.get()
    _forget_interrupts()
    return job
