"""The iterator behind ``async for message in consumer``: each loop has one, and one message at a time.

The message of a loop is done when the loop asks for the next one. If the loop is left before that, ``break`` and
``return`` count the message as done, and an error or a cancellation does not. Python tells an iterator only that it is
no longer used. ``async with consumer.messages() as messages`` makes it known for certain. Otherwise the instruction at
which the loop's frame let go of its iterator tells it: ``break`` and ``return`` remove the iterator from the frame's
stack by an instruction of their own, while an error removes it at the instruction that failed. Where that instruction
cannot be seen, the message is given back and comes again: the iterator is kept in a variable, another generator is in
between, or the caller is compiled. See ``docs/decisions/0008-life-of-a-delivery.md``.
"""

from __future__ import annotations

import dis
import sys
from asyncio import current_task
from collections.abc import Callable, Coroutine
from types import CodeType, FrameType
from typing import Any

from rucola.client.caller import Caller, has_ended, has_succeeded
from rucola.client.deliveries import LoopDeliveries, LoopHand
from rucola.common.message import MessageExt
from rucola.errors import ClientError

_LEAVING = frozenset(dis.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in dis.opmap)
"""The instructions by which ``break`` and ``return`` remove a loop's iterator; the second one since Python 3.14."""


class MessageIterator(LoopHand):
    """One loop over the messages of a consumer. The loops of a consumer share its messages.

    ``async with consumer.messages() as messages`` settles the current message when the block ends: as consumed, unless
    an exception ends the block.

    Args:
        find: returns what gives the messages.
    """

    __slots__ = ("_code", "_deliveries", "_find", "_has_ended", "_is_waiting")

    def __init__(self, find: Callable[[], LoopDeliveries]) -> None:
        super().__init__()
        self._find = find
        self._deliveries: LoopDeliveries | None = None
        self._code: CodeType | None = None
        self._is_waiting = False
        self._has_ended = False

    def __aiter__(self) -> MessageIterator:
        return self

    def __anext__(self) -> Coroutine[Any, Any, MessageExt]:
        """Returns the next message; the previous one then counts as consumed.

        Raises:
            ClientError: the consumer has a listener or is not started, or another task uses this iterator.
        """
        if self._code is None:
            self._code = sys._getframe(1).f_code
        return self._next(current_task())

    async def __aenter__(self) -> MessageIterator:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        self.close(handled=kind is None)

    async def aclose(self) -> None:
        """Ends the loop. Its current message does not count as consumed, and comes again."""
        self.close(handled=False)

    def close(self, handled: bool) -> None:
        """Ends the loop. Any thread may call this.

        Args:
            handled: whether its current message counts as consumed.
        """
        self._has_ended = True
        if self._deliveries is not None:
            self._deliveries.leave(self, handled)

    def __del__(self) -> None:
        if self.queue is not None and self._deliveries is not None:
            try:
                frame: FrameType | None = sys._getframe(1)
            except ValueError:  # a thread or the interpreter ends, and with it the last reference
                frame = None
            self._deliveries.leave(self, is_left_by_break(self._code, frame))

    def next_for(self, owner: Caller) -> Coroutine[Any, Any, MessageExt]:
        """Like ``__anext__``, for a thread that waits for the result."""
        return self._next(owner)

    async def _next(self, owner: Caller | None) -> MessageExt:
        deliveries = self._deliveries
        if deliveries is None:
            deliveries = self._deliveries = self._find()
            deliveries.add_loop(self)
        if owner is not self.owner:
            self._change_owner(deliveries, owner)
        if self._is_waiting or self._has_ended or not deliveries.advance(self, owner):
            await self._wait(deliveries, owner)
        return self.message

    async def _wait(self, deliveries: LoopDeliveries, owner: Caller | None) -> None:
        if self._is_waiting:
            raise ClientError("another task waits for the next message of this iterator: each task needs its own loop")
        self._is_waiting = True
        try:
            while self._has_ended or not deliveries.advance(self, owner):
                if self._has_ended:
                    raise StopAsyncIteration
                if deliveries.has_ended:
                    await deliveries.closed.wait()
                    raise StopAsyncIteration
                await deliveries.arrival()
        finally:
            self._is_waiting = False

    def _change_owner(self, deliveries: LoopDeliveries, owner: Caller | None) -> None:
        """Another task asks for the next message; the current one is settled by how its task ended.

        Raises:
            ClientError: the task that has the current message has not ended.
        """
        if self.queue is not None:
            if self.owner is not None and not has_ended(self.owner):
                raise ClientError("another task has a message of this iterator: each task needs its own loop")
            if self.owner is None or not has_succeeded(self.owner):
                deliveries.settle_loop(self, handled=False)
        if owner is not None:
            deliveries.callers.add(owner)


def is_left_by_break(code: CodeType | None, frame: FrameType | None) -> bool:
    """Whether ``frame``, which just let go of a loop's iterator, left the loop by ``break`` or ``return``.

    Args:
        code: the code that contains the loop; None if unknown.
        frame: the frame that let go of the iterator; None if no frame did.
    """
    if code is None or frame is None or frame.f_code is not code or frame.f_lasti < 0:
        return False
    return code.co_code[frame.f_lasti] in _LEAVING
