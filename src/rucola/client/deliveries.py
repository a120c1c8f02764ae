"""The messages that wait for the loops and polls of one consumer, and the messages that these have been given.

A loop is done with its message when it asks for the next one, a poll when its caller polls again. A message that was
not handled is given back: it comes again before later messages of its queue. Everything runs on one event loop, except
``leave``, which any thread may call.

The states are those of ``delivery``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from rucola.client.caller import Caller, Callers, has_failed, has_succeeded
from rucola.client.process_queue import DeliveryQueue
from rucola.common.message import MessageExt


class LoopHand:
    """One loop, and the message that its body has.

    Attributes:
        queue: where ``message`` came from, for example its queue; None if the loop has no message.
        message: the message that was given and not settled yet; valid only with a ``queue``.
        owner: the task or thread that asked for the message.
    """

    __slots__ = ("__weakref__", "message", "owner", "queue")

    def __init__(self) -> None:
        self.queue: Any = None
        self.message: MessageExt
        self.owner: Caller | None = None


class LoopDeliveries(Protocol):
    """What ``MessageIterator`` needs of a consumer: ``Deliveries`` for pulled messages, ``PopDeliveries`` for popped
    ones.
    """

    has_ended: bool
    closed: asyncio.Event
    callers: Callers

    def add_loop(self, loop: LoopHand) -> None:
        """Registers a loop, so that a shutdown waits for its body."""

    def advance(self, loop: LoopHand, owner: Caller | None) -> bool:
        """Marks the message of ``loop`` as handled, and gives it the next one; returns False if there is none now."""

    async def arrival(self) -> None:
        """Waits until messages may have arrived, or the consumer shuts down."""

    def settle_loop(self, loop: LoopHand, *, handled: bool) -> None:
        """Settles the message that ``loop`` has now, if any."""

    def leave(self, loop: LoopHand, handled: bool) -> None:
        """Settles the message of a loop that was left. Any thread may call this, also while an object is collected."""


class Polled(NamedTuple):
    """The messages that one poll was given."""

    queue: DeliveryQueue
    messages: list[MessageExt]


class Deliveries:
    """Gives the messages of a consumer's queues to its loops and polls.

    Args:
        may_give: whether messages of a queue may be given now; None if they always may.
        given: called with the messages that a loop or poll is given, to trace them.

    Attributes:
        has_ended: whether the consumer shuts down: nothing more is given.
        closed: set when the shutdown is complete.
        callers: the tasks and threads that have messages, or had some.
    """

    def __init__(
        self,
        may_give: Callable[[DeliveryQueue], bool] | None = None,
        given: Callable[[Sequence[MessageExt]], None] | None = None,
    ) -> None:
        self._may_give = may_give
        self._given = given
        self._lines: deque[DeliveryQueue] = deque()  # the queues that have messages to give
        self._waiting: dict[asyncio.Future[None], None] = {}  # callers that wait for messages, longest first
        self._loops: WeakSet[LoopHand] = WeakSet()
        self._polls: dict[Caller, list[Polled]] = {}
        self._left: deque[tuple[DeliveryQueue, MessageExt, bool]] = deque()
        self._settled: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.has_ended = False
        self.closed = asyncio.Event()
        self.callers = Callers(self.settle_failed)

    def offer(self, queue: DeliveryQueue, count: int) -> None:
        """Announces that up to ``count`` more messages of ``queue`` may be given, and wakes as many callers."""
        self._line_up(queue)
        self.wake(count)

    def advance(self, loop: LoopHand, owner: Caller | None) -> bool:
        """Marks the message of ``loop`` as handled, and gives it the next one; returns False if there is none now."""
        if self._left:
            self.settle_left()
        queue: DeliveryQueue | None = loop.queue
        if queue is not None:
            if not queue.dropped:
                queue.finish_one(loop.message)
                if queue.in_order:
                    self.offer(queue, 1)
            if self._settled is not None:
                self._tell_settled()
            loop.queue = None
        lines = self._lines
        if not lines:
            return False
        queue = lines[0]
        if self._may_give is not None or queue.dropped or queue.is_paused:
            queue = self._first()
            if queue is None:
                return False
        if queue.in_order:
            (loop.message,) = queue.give(1)
            lines.popleft().in_line = False
        else:
            fetched = queue.fetched
            loop.message = fetched.popleft()
            if not fetched:
                lines.popleft().in_line = False
            elif len(lines) > 1:
                lines.rotate(-1)
        loop.owner, loop.queue = owner, queue
        if self._given is not None:
            self._given([loop.message])
        return True

    def take(self, count: int) -> Polled | None:
        """Gives a poll up to ``count`` messages of one queue; None if there are none now."""
        self.settle_left()
        queue = self._first()
        if queue is None:
            return None
        polled = Polled(queue, queue.give(count))
        self._lines.popleft().in_line = False
        self._line_up(queue)
        if self._given is not None:
            self._given(polled.messages)
        return polled

    def _first(self) -> DeliveryQueue | None:
        """Moves the next queue that may give messages to the front of the line; returns None if none may."""
        lines, may_give = self._lines, self._may_give
        for _ in range(len(lines)):
            queue = lines[0]
            if queue.dropped:
                lines.popleft().in_line = False
            elif not queue.is_paused and (may_give is None or may_give(queue)):
                return queue
            else:
                lines.rotate(-1)
        return None

    async def arrival(self) -> None:
        """Waits until messages may have arrived, or the consumer shuts down."""
        loop = self._loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        self._waiting[waiting] = None
        try:
            await waiting
        except asyncio.CancelledError:
            if self._waiting.pop(waiting, False) is False:
                self.wake(1)  # this caller was woken, but is cancelled: wake another one instead
            raise

    def wake(self, count: int) -> None:
        """Wakes up to ``count`` callers that wait for messages."""
        while count > 0 and self._waiting:
            waiting = next(iter(self._waiting))
            del self._waiting[waiting]
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        """Wakes all callers that wait for messages, because the rules may permit more now."""
        self.wake(len(self._waiting))

    def settle(self, queue: DeliveryQueue, messages: list[MessageExt], *, handled: bool) -> None:
        """Marks given messages as handled, or gives them back: they are given before later messages of ``queue``."""
        if not queue.dropped:
            if not handled:
                queue.give_back(messages)
                self.offer(queue, len(messages))
            else:
                queue.finish(messages)
                if queue.in_order:
                    self.offer(queue, 1)
        self._tell_settled()

    # loops

    def add_loop(self, loop: LoopHand) -> None:
        """Registers a loop, so that a shutdown waits for its body."""
        self._loop = asyncio.get_running_loop()
        self._loops.add(loop)

    def leave(self, loop: LoopHand, handled: bool) -> None:
        """Settles the message of a loop that was left. Any thread may call this, also while an object is collected."""
        if loop.queue is not None:
            self._left.append((loop.queue, loop.message, handled))
            loop.queue = None
        with suppress(RuntimeError):  # the event loop is closed, and the consumer with it
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._after_leave)

    def _after_leave(self) -> None:
        self.settle_left()
        self.wake_all()

    def settle_left(self) -> None:
        """Settles the messages of loops that were left."""
        while self._left:
            queue, message, handled = self._left.popleft()
            self.settle(queue, [message], handled=handled)

    def settle_loops(self, owner: Caller, *, handled: bool) -> None:
        """Settles the messages that the loops of ``owner`` have now."""
        self.settle_left()
        for loop in [loop for loop in self._loops if loop.owner is owner]:
            self.settle_loop(loop, handled=handled)

    def settle_loop(self, loop: LoopHand, *, handled: bool) -> None:
        """Settles the message that ``loop`` has now, if any."""
        queue, loop.queue = loop.queue, None
        if queue is not None:
            self.settle(queue, [loop.message], handled=handled)

    def has_body(self, owner: Caller) -> bool:
        """Whether ``owner`` is in the body of a loop."""
        return any(loop.queue is not None and loop.owner is owner for loop in self._loops)

    @property
    def has_loops(self) -> bool:
        """Whether a loop has a message, or waits for one."""
        return bool(self._waiting) or any(loop.queue is not None for loop in self._loops)

    def has_given(self, queue: DeliveryQueue) -> bool:
        """Whether the body of a loop has a message of ``queue``."""
        return any(loop.queue is queue for loop in self._loops)

    # polls

    def add_poll(self, owner: Caller, polled: Polled) -> None:
        """Registers what ``owner`` has polled."""
        self.callers.add(owner)
        self._polls.setdefault(owner, []).append(polled)

    def polls_of(self, owner: Caller) -> tuple[Polled, ...]:
        """The polls of ``owner`` whose messages are not settled."""
        return tuple(self._polls.get(owner, ()))

    def settle_polls(self, owner: Caller, polls: Sequence[Polled]) -> None:
        """Marks the messages of ``polls``, which are of ``owner``, as handled. Settles the polls of other callers that
        have ended, too: as handled after success, otherwise as not handled.
        """
        for polled in polls:
            if self._remove_poll(owner, polled):
                self.settle(*polled, handled=True)
        if self._polls:
            self.settle_failed()
            for other in [one for one in self._polls if one is not owner and has_succeeded(one)]:
                for polled in self._polls.pop(other):
                    self.settle(*polled, handled=True)

    def settle_failed(self) -> None:
        """Gives back what callers have that have failed."""
        self.settle_left()
        for owner in [one for one in self._polls if has_failed(one)]:
            for polled in self._polls.pop(owner):
                self.settle(*polled, handled=False)
        for loop in list(self._loops):
            if loop.owner is not None and has_failed(loop.owner):
                self.settle_loop(loop, handled=False)

    def give_back_poll(self, messages: Sequence[MessageExt]) -> None:
        """Gives back what a poll was given, because its caller has not received it.

        Args:
            messages: the messages of one poll, at least one.
        """
        for owner, mine in list(self._polls.items()):
            for polled in mine:
                if polled.messages[0] is messages[0]:
                    self._remove_poll(owner, polled)
                    self.settle(*polled, handled=False)
                    return

    def _remove_poll(self, owner: Caller, polled: Polled) -> bool:
        """Forgets a poll; returns False if another poll of the same caller was faster."""
        mine = self._polls.get(owner, [])
        left = [one for one in mine if one is not polled]
        if left:
            self._polls[owner] = left
        else:
            self._polls.pop(owner, None)
        return len(left) < len(mine)

    # shutdown

    def end(self) -> None:
        """Gives nothing more. Callers that wait return; a loop ends when it asks for its next message."""
        self.has_ended = True
        for queue in self._lines:
            queue.in_line = False
        self._lines.clear()
        self.wake_all()

    async def bodies(self, timeout_s: float) -> None:
        """Waits until no loop has a message, at most ``timeout_s`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._has_bodies():
                    await asyncio.shield(self._next_settlement())
        self.callers.close()

    async def settled(self, timeout_s: float) -> None:
        """Waits until messages were settled, at most ``timeout_s`` seconds."""
        await asyncio.wait([self._next_settlement()], timeout=timeout_s)

    def _next_settlement(self) -> asyncio.Future[None]:
        if self._settled is None:
            self._settled = asyncio.get_running_loop().create_future()
        return self._settled

    def _has_bodies(self) -> bool:
        self.settle_failed()
        return any(loop.queue is not None for loop in self._loops)

    def _line_up(self, queue: DeliveryQueue) -> None:
        """Adds ``queue`` to the queues that have messages to give, if it has any."""
        if not queue.in_line and queue.can_give and not self.has_ended:
            queue.in_line = True
            self._lines.append(queue)

    def _tell_settled(self) -> None:
        if self._settled is not None:
            self._settled.set_result(None)
            self._settled = None
