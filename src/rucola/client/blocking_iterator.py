"""The iterator behind ``for message in consumer`` of ``rucola.sync``; see ``message_iterator``."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from rucola.client.caller import caller
from rucola.client.message_iterator import MessageIterator, is_left_by_break
from rucola.common.message import MessageExt

if TYPE_CHECKING:
    from rucola.client.loop_thread import LoopThread


class BlockingMessageIterator:
    """One ``for`` loop over the messages of a consumer.

    ``with consumer.messages() as messages`` settles the current message when the block ends: as consumed, unless an
    exception ends the block.

    Args:
        loop: runs the consumer.
        messages: the loop on the event loop.
    """

    __slots__ = ("_code", "_loop", "_messages")

    def __init__(self, loop: LoopThread, messages: MessageIterator) -> None:
        self._loop = loop
        self._messages = messages
        self._code: CodeType | None = None

    def __iter__(self) -> BlockingMessageIterator:
        return self

    def __next__(self) -> MessageExt:
        """Returns the next message; the previous one then counts as consumed.

        Raises:
            ClientError: the consumer has a listener or is not started, or another thread uses this iterator.
        """
        if self._code is None:
            self._code = sys._getframe(1).f_code
        try:
            return self._loop.run(self._messages.next_for(caller()))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> BlockingMessageIterator:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        self._messages.close(handled=kind is None)

    def close(self) -> None:
        """Ends the loop. Its current message does not count as consumed, and comes again."""
        self._messages.close(handled=False)

    def __del__(self) -> None:
        if self._messages.queue is not None:
            try:
                frame: FrameType | None = sys._getframe(1)
            except ValueError:  # the thread ends, and with it the last reference
                frame = None
            self._messages.close(is_left_by_break(self._code, frame))
