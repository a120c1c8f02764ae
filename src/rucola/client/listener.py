"""What an application registers with a push consumer, what it may answer, and how it is called.

A listener is a coroutine function, which runs on the event loop, or a plain function, which runs in a thread. It gets
one message, or, registered with ``batch``, a list and a context. When it returns nothing, or a status that says so, it
has consumed the messages; when it raises, or returns anything else, it has not. Source: RocketMQ 5.3.3,
``MessageListenerConcurrently``, ``MessageListenerOrderly``; other than there, a listener that returns nothing has
succeeded.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue

MessageListener = Callable[[MessageExt], Any]
"""Takes one message."""
BatchListener = Callable[[list[MessageExt], Any], Any]
"""Takes messages of one queue and the context."""


class ConsumeConcurrentlyStatus(Enum):
    """What a listener may answer."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What a listener of an orderly consumer may answer.

    ROLLBACK and COMMIT are for contexts without ``auto_commit``: what came since the last COMMIT comes again, or is
    consumed.
    """

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    COMMIT = "COMMIT"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


class ReconsumeLater(Exception):  # noqa: N818 - an answer, not an error
    """Raised by a listener: the message shall come again, without a trace in the log.

    Args:
        delay_level: when: 1 to 18 as for a delayed message, 0 for the broker to decide, -1 for a dead letter at once.
            An orderly consumer has no use for it.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(delay_level)
        self.delay_level = delay_level


class ConsumeConcurrentlyContext:
    """What a batch listener can say besides its answer.

    Attributes:
        message_queue: where the messages are from.
        delay_level_when_next_consume: when those that failed come again; see ``ReconsumeLater``.
        ack_index: of a batch with CONSUME_SUCCESS: the last message that was consumed; those behind it come again.
    """

    __slots__ = ("ack_index", "delay_level_when_next_consume", "message_queue")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self.delay_level_when_next_consume = 0
        self.ack_index: int | None = None


class ConsumeOrderlyContext:
    """What a batch listener of an orderly consumer can say besides its answer.

    Attributes:
        message_queue: where the messages are from.
        auto_commit: whether SUCCESS is progress; else only COMMIT is.
        suspend_current_queue_time_ms: pause after a failure; -1 for the configured one.
    """

    __slots__ = ("auto_commit", "message_queue", "suspend_current_queue_time_ms")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self.auto_commit = True
        self.suspend_current_queue_time_ms = -1


class Listener:
    """A registered function.

    Args:
        function: the application's.
        batch: whether it takes a list and a context.

    Attributes:
        on_loop: whether it is a coroutine function; else it runs in a thread.
    """

    __slots__ = ("batch", "function", "on_loop")

    def __init__(self, function: MessageListener | BatchListener, batch: bool) -> None:
        self.function: Callable[..., Any] = function
        self.batch = batch
        self.on_loop = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an asynchronous __call__
        )

    def call(self, messages: list[MessageExt], context: object) -> Any:
        """The answer of a plain function, or the coroutine of a coroutine function."""
        return self.function(messages, context) if self.batch else self.function(messages[0])

    async def answer(self, messages: list[MessageExt], context: object) -> object:
        """The answer of a coroutine function."""
        answer: Awaitable[object] = self.call(messages, context)
        return await answer
