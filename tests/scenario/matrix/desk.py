"""Where the application records what it gets and does, and where a cell plans what the application shall do."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tests.scenario.matrix.ledger import Given, Ledger
from tests.scenario.matrix.table import Row
from tests.scenario.matrix.world import World

from rucola import MessageExt, MessageQueue
from rucola.errors import RucolaError
from rucola.testing.virtual_loop import VirtualEventLoop

BODY_S = 0.05
"""Seconds that the application takes for a message."""


class PlannedError(Exception):
    """The application's own error."""


class Killed(BaseException):
    """Ends the application of a member that plays a killed process."""


@dataclass(frozen=True)
class Act:
    """What the application does with one message.

    Attributes:
        leave: ``break`` or ``return``.
        error: makes the error that the body raises.
        slow_s: how much longer the body takes.
        call: name of the method that the body calls.
    """

    leave: str = ""
    error: Callable[[], BaseException] | None = None
    slow_s: float = 0.0
    call: str = ""


NORMAL = Act()


@dataclass(eq=False)
class Member:
    """One consumer of the application.

    Attributes:
        name: name in the ledger.
        consumer: the object; None before the application has made it.
        end: done when the application shall end.
        done: done when the application has ended.
        killed: whether the member plays a killed process.
        started: whether its consumer is started.
        holds: whether the application only holds the consumer, which workers use.
        abandons: whether the application starts the client without a ``with`` block, and never shuts it down.
        workers: further tasks, or threads, with the same consumer.
        positions: where the application reads on with a pull consumer.
        claims: which of its tasks reads which queue.
    """

    name: str
    consumer: Any = None
    end: Future[None] = field(default_factory=Future)
    done: asyncio.Future[None] | None = None
    killed: bool = False
    started: bool = False
    holds: bool = False
    abandons: bool = False
    workers: list[asyncio.Future[None]] = field(default_factory=list)
    positions: dict[MessageQueue, int] = field(default_factory=dict)
    claims: dict[MessageQueue, object] = field(default_factory=dict)

    @property
    def ending(self) -> bool:
        """Whether the application shall end."""
        return self.end.done()

    def stop(self) -> None:
        """The application shall end."""
        if not self.end.done():
            self.end.set_result(None)


class Desk:
    """One per cell; any thread may call it.

    Args:
        row: the use of the client.
        ledger: receives everything.
        world: the servers.
        loop: gives the time.

    Attributes:
        acts: what the application does with the n-th message that it gets or sends.
        caught: errors that the application caught, as texts.
        calls: the outcomes of methods that were called from inside.
        failed: values whose body raised a planned error.
        body_s: seconds that the application takes for a message.
        await_termination_ms: how long a shutdown waits for listeners.
        may_raise: whether a loop may end with an error of the client, since a broker refuses it.
        instance_name: instance name of all consumers; empty for the default.
    """

    def __init__(self, row: Row, ledger: Ledger, world: World, loop: VirtualEventLoop) -> None:
        self.row, self.ledger, self.world, self.loop = row, ledger, world, loop
        self.acts: dict[int, Act] = {}
        self.caught: list[str] = []
        self.calls: list[str] = []
        self.body_s = BODY_S
        self.instance_name = ""
        self.may_raise = False
        self.await_termination_ms = 30_000
        self.failed: set[str] = set()
        self._planned: list[BaseException] = []
        self._count = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    # -- for the application

    def given(self, member: Member, message: MessageExt) -> tuple[Given, Act]:
        """The application got a message; returns what it shall do."""
        if member.killed:
            raise Killed
        value = message.body.decode()
        send = self.ledger.sends.get(value)
        queue = self.world.queue_name(value, message.queue_id)
        place = (queue, message.queue_offset)
        elsewhere = message.reconsume_times > 0 and send is not None and (send.queue, send.offset) != place
        given = Given(value, queue, message.queue_offset, member.name, self.loop.time(), elsewhere)
        self.ledger.given(given)
        return given, self._next()

    def next_act(self, member: Member) -> Act:
        """The application is about to send a message; returns what it shall do meanwhile."""
        if member.killed:
            raise Killed
        return self._next()

    def error(self, act: Act, value: str) -> BaseException:
        """The error that the application's code shall raise about a message."""
        assert act.error is not None
        error = act.error()
        self.failed.add(value)
        self._planned.append(error)
        return error

    def catch(self, error: BaseException) -> None:
        """The application catches an error around its loop; raises it again unless it is the application's own."""
        own = any(isinstance(planned, asyncio.CancelledError) for planned in self._planned)
        if own and isinstance(error, concurrent.futures.CancelledError):
            self.caught.append(repr(error))  # a blocking call can only say that its work was cancelled
            return
        seen: BaseException | None = error
        while seen is not None:
            if seen in self._planned:
                self.caught.append(repr(seen))
                return
            seen = seen.__cause__ or seen.__context__
        raise error

    def raised(self, error: RucolaError) -> None:
        """A loop ended with an error of the client."""
        if self.may_raise:
            self.caught.append(repr(error))
        else:
            self.fault(f"the loop raised {error!r}")

    def fault(self, text: str) -> None:
        """Something went wrong."""
        self.ledger.faults.append(text)

    # -- for the cell

    @property
    def count(self) -> int:
        """Number of messages given, or sends begun, so far."""
        return self._count

    async def reached(self, count: int, timeout_s: float = 120.0) -> None:
        """Waits until the application got ``count`` messages, or began ``count`` sends."""
        if self._count >= count:
            return
        future = self.loop.create_future()
        self._waiting.append((count, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            self.fault(f"after {timeout_s:g} s only {self._count} messages were given or sent, not {count}")

    def _next(self) -> Act:
        self._count += 1
        act = self.acts.pop(self._count, NORMAL)
        if self._waiting:
            self.loop.call_soon_threadsafe(self._wake)
        return act

    def _wake(self) -> None:
        for count, future in self._waiting:
            if self._count >= count and not future.done():
                future.set_result(None)
        self._waiting = [entry for entry in self._waiting if not entry[1].done()]
