"""The messages that wait for the loops and polls of one consumer, and the messages that these have been given.

A ``Hand`` has the messages that one loop or one poll has been given. A loop is done with its message when it asks for
the next one, a poll when its caller polls again. A message that was not handled is given back: it comes again before
later messages of its queue. Everything runs on one event loop, except ``leave``, which any thread may call.

The states are those of ``delivery``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from rucola.client.caller import Caller, has_ended, has_succeeded
from rucola.client.process_queue import DeliveryQueue
from rucola.common.message import MessageExt


class DeliveryRules(Protocol):
    """What the kinds of consumers do differently."""

    def can_give(self, queue: DeliveryQueue) -> bool:
        """Whether messages of ``queue`` may be given now."""

    def finish(self, queue: DeliveryQueue, messages: list[MessageExt]) -> None:
        """Marks given messages of ``queue``, which is not dropped, as done."""


class Hand:
    """One loop or poll, and what it has been given.

    Attributes:
        queue: the queue of ``messages``.
        messages: the messages that were given and not settled yet; empty if there are none.
        owner: the task or thread that asked for them.
    """

    __slots__ = ("__weakref__", "messages", "owner", "queue")

    def __init__(self) -> None:
        self.queue: DeliveryQueue | None = None
        self.messages: list[MessageExt] = []
        self.owner: Caller | None = None


class Deliveries:
    """Gives the messages of a consumer's queues to its loops and polls.

    Args:
        rules: see ``DeliveryRules``.
        given: called with the messages that a loop or poll is given, to trace them.

    Attributes:
        has_ended: whether the consumer shuts down: nothing more is given.
        closed: set when the shutdown is complete.
    """

    def __init__(self, rules: DeliveryRules, given: Callable[[Sequence[MessageExt]], None] | None = None) -> None:
        self._rules = rules
        self._given = given
        self._lines: deque[DeliveryQueue] = deque()  # queues with messages to give
        self._waiting: dict[asyncio.Future[None], None] = {}  # callers that wait for messages, longest first
        self._loops: WeakSet[Hand] = WeakSet()
        self._polls: dict[Caller, list[Hand]] = {}
        self._left: deque[tuple[DeliveryQueue, list[MessageExt], bool]] = deque()
        self._settled: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.has_ended = False
        self.closed = asyncio.Event()

    def offer(self, queue: DeliveryQueue, count: int) -> None:
        """Announces that ``count`` more messages of ``queue`` wait to be given."""
        self._line_up(queue)
        self.wake(count)

    def take(self, hand: Hand, owner: Caller, count: int) -> bool:
        """Gives ``hand`` up to ``count`` messages of one queue; returns False if none may be given now."""
        if self._left:
            self.settle_left()
        if self.has_ended:
            return False
        lines = self._lines
        for _ in range(len(lines)):
            queue = lines[0]
            if queue.dropped or not queue.can_give:
                lines.popleft().in_line = False
            elif not self._rules.can_give(queue):
                lines.rotate(-1)  # another queue first
            else:
                lines.popleft().in_line = False
                hand.owner, hand.queue, hand.messages = owner, queue, queue.give(count)
                self._line_up(queue)
                if self._given is not None:
                    self._given(hand.messages)
                return True
        return False

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

    def done(self, hand: Hand) -> None:
        """Marks the messages of ``hand`` as handled."""
        self._settle(*self._released(hand), handled=True)

    def give_back(self, hand: Hand) -> None:
        """Gives the messages of ``hand``, which were not handled, to the next loop or poll."""
        self._settle(*self._released(hand), handled=False)

    # loops

    def add_loop(self, hand: Hand) -> None:
        """Registers a loop, so that a shutdown waits for its body."""
        self._loop = asyncio.get_running_loop()
        self._loops.add(hand)

    def leave(self, hand: Hand, handled: bool) -> None:
        """Settles the messages of a loop that was left. Any thread may call this, also while an object is collected."""
        queue, messages = self._released(hand)
        if queue is not None:
            self._left.append((queue, messages, handled))
        with suppress(RuntimeError):  # the event loop is closed, and the consumer with it
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._after_leave)

    def _after_leave(self) -> None:
        self.settle_left()
        self.wake_all()

    def settle_left(self) -> None:
        """Settles the messages of loops that were left."""
        while self._left:
            queue, messages, handled = self._left.popleft()
            self._settle(queue, messages, handled=handled)

    def settle_loops(self, owner: Caller, *, handled: bool) -> None:
        """Settles the messages that the loops of ``owner`` have now."""
        self.settle_left()
        for hand in [hand for hand in self._loops if hand.owner is owner]:
            self._settle(*self._released(hand), handled=handled)

    def has_body(self, owner: Caller) -> bool:
        """Whether ``owner`` is in the body of a loop."""
        return any(hand.messages and hand.owner is owner for hand in self._loops)

    def has_given(self, queue: DeliveryQueue) -> bool:
        """Whether a loop or poll has messages of ``queue``."""
        if self._left:
            self.settle_left()
        polls = (hand for hands in self._polls.values() for hand in hands)
        return any(hand.queue is queue and hand.messages for hands in (self._loops, polls) for hand in hands)

    # polls

    def polled(self, hand: Hand) -> None:
        """Registers a poll that was given messages."""
        assert hand.owner is not None
        self._polls.setdefault(hand.owner, []).append(hand)

    def polls_of(self, owner: Caller) -> tuple[Hand, ...]:
        """The polls of ``owner`` whose messages are not settled."""
        return tuple(self._polls.get(owner, ()))

    def settle_polls(self, owner: Caller, polls: Iterable[Hand]) -> None:
        """Marks the messages of ``polls``, which belong to ``owner``, as handled. Also settles polls of callers that
        have ended: as handled after success, otherwise as not handled.
        """
        for hand in polls:
            self._forget(owner, hand)
            self.done(hand)
        for other in [one for one in self._polls if one is not owner and has_ended(one)]:
            for hand in self._polls.pop(other):
                (self.done if has_succeeded(other) else self.give_back)(hand)

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
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._has_bodies():
                    self._settled = loop.create_future()
                    await self._settled

    async def settled(self, timeout_s: float) -> None:
        """Waits until messages were settled, at most ``timeout_s`` seconds."""
        self._settled = self._settled or asyncio.get_running_loop().create_future()
        await asyncio.wait([self._settled], timeout=timeout_s)

    def _has_bodies(self) -> bool:
        self.settle_left()
        return any(hand.messages for hand in self._loops)

    def _line_up(self, queue: DeliveryQueue) -> None:
        if not queue.in_line and queue.can_give:
            queue.in_line = True
            self._lines.append(queue)

    def _released(self, hand: Hand) -> tuple[DeliveryQueue | None, list[MessageExt]]:
        queue, messages = hand.queue, hand.messages
        hand.queue, hand.messages = None, []
        return queue, messages

    def _settle(self, queue: DeliveryQueue | None, messages: list[MessageExt], *, handled: bool) -> None:
        if queue is not None and messages and not queue.dropped:
            if handled:
                self._rules.finish(queue, messages)
            else:
                queue.give_back(messages)
            if queue.can_give and not self.has_ended and not queue.in_line:
                self.offer(queue, 1)
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
            self._settled = None

    def _forget(self, owner: Caller, hand: Hand) -> None:
        hands = self._polls.get(owner, [])
        if hand in hands:
            hands.remove(hand)
        if not hands:
            self._polls.pop(owner, None)
