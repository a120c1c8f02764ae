"""Gives popped messages to the loops of a simple consumer, one message at a time.

While a loop has a message, the other messages of the pop wait in ``FetchedMessages``: this loop, another one or a
``receive`` takes them. The application acknowledges what it has been given, so a loop that asks for its next message,
or is left, settles nothing. When the last loop was left, the waiting messages are given back to the group after a
second. Errors that may pass do not end a loop. Everything runs on one event loop, except ``leave``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from rucola.client.caller import Caller, Callers, has_failed
from rucola.client.consumer_config import SimpleConsumerConfig
from rucola.client.deliveries import LoopHand
from rucola.client.pop_service import POP_MAX, PopService, is_final
from rucola.common.message import MessageExt
from rucola.errors import RucolaError
from rucola.runtime.logs import Recurring, event

logger = logging.getLogger(__name__)

_PAUSE_S, _PAUSE_MAX_S = 0.5, 5.0
"""Pause of a loop after the first failure in seconds, doubled after each further one; longest pause."""


Given = Callable[[list[MessageExt], int, float], None]


class PopDeliveries:
    """What the loops of a simple consumer have been given.

    Args:
        service: fetches the messages.
        config: settings of the consumer.
        given: called with messages that a loop is given, their invisible time, and the event loop's time when it ends.

    Attributes:
        has_ended: whether the consumer shuts down: nothing more is given.
        closed: set when the shutdown is complete.
        callers: the tasks and threads that have messages, or had some.
    """

    def __init__(self, service: PopService, config: SimpleConsumerConfig, given: Given) -> None:
        self._service = service
        self._config = config
        self._given = given
        self._loops: WeakSet[LoopHand] = WeakSet()
        self._pause_s = _PAUSE_S
        self._failures = Recurring()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settled: asyncio.Future[None] | None = None
        self.has_ended = False
        self.closed = asyncio.Event()
        self.callers = Callers(self._settle_failed)

    @property
    def has_bodies(self) -> bool:
        """Whether a loop has a message."""
        return any(loop.queue is not None for loop in self._loops)

    def has_body(self, owner: Caller) -> bool:
        """Whether ``owner`` is in the body of a loop."""
        return any(loop.queue is not None and loop.owner is owner for loop in self._loops)

    def add_loop(self, loop: LoopHand) -> None:
        """Registers a loop, so that a shutdown waits for its body."""
        self._loop = asyncio.get_running_loop()
        self._loops.add(loop)

    def advance(self, loop: LoopHand, owner: Caller | None) -> bool:
        """Gives ``loop`` its next message; returns False if there is none now."""
        invisible_ms = self._config.invisible_duration_ms
        taken = None if self.has_ended else self._service.fetched.take_one(invisible_ms)
        if taken is None:
            self.settle_loop(loop, handled=True)
            return False
        message, visible_at = taken
        loop.owner, loop.queue, loop.message = owner, self, message
        self._given([message], invisible_ms, visible_at)
        return True

    async def arrival(self) -> None:
        """Waits until messages may have arrived, or the consumer shuts down.

        Raises:
            RucolaError: another try does not help.
        """
        service, config = self._service, self._config
        if not service.subscriptions and service.was_subscribed:
            await service.pause(config.await_duration_ms / 1000)
            return
        try:
            await service.arrival(POP_MAX, config.invisible_duration_ms, config.await_duration_ms)
        except RucolaError as error:
            if not service.subscriptions and service.was_subscribed:
                return  # the application has unsubscribed meanwhile, and may subscribe again
            if is_final(error):
                raise
            pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _PAUSE_MAX_S)
            count = self._failures.note("receive", error)
            if count:
                event(logger, logging.WARNING, "receive failed, the loop goes on", count=count, error=error)
            await service.pause(pause_s)
        else:
            self._pause_s = _PAUSE_S
            self._failures.end("receive")

    def settle_loop(self, loop: LoopHand, *, handled: bool) -> None:
        """Notes that the body of ``loop`` has ended; the application acknowledges messages itself."""
        if loop.queue is not None:
            loop.queue = None
            self._after_body()

    def settle_loops(self, owner: Caller) -> None:
        """Notes that the loops of ``owner`` were left."""
        for loop in [loop for loop in self._loops if loop.owner is owner]:
            self.settle_loop(loop, handled=True)

    def leave(self, loop: LoopHand, handled: bool) -> None:
        """Notes that a loop was left. Any thread may call this, also while an object is collected."""
        loop.queue = None
        with suppress(RuntimeError):  # the event loop is closed, and the consumer with it
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._after_body)

    def end(self) -> None:
        """Gives nothing more. A loop ends when it asks for its next message."""
        self.has_ended = True

    async def bodies(self, timeout_s: float) -> None:
        """Waits until no loop has a message, at most ``timeout_s`` seconds."""
        self._settle_failed()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.has_bodies:
                    self._settled = asyncio.get_running_loop().create_future()
                    await self._settled
        self.callers.close()

    def _settle_failed(self) -> None:
        for loop in list(self._loops):
            if loop.owner is not None and has_failed(loop.owner):
                self.settle_loop(loop, handled=False)

    def _after_body(self) -> None:
        if not self.has_bodies:
            self._service.fetched.unclaimed()
            if self._settled is not None and not self._settled.done():
                self._settled.set_result(None)
