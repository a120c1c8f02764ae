"""The listener that an application registers with a push consumer, its results, and how it is called.

A listener is a coroutine function, which runs on the event loop, or a plain function, which runs in a thread. It
receives one message; with ``batch``, it receives a list and a context. The messages count as consumed if the listener
returns nothing or CONSUME_SUCCESS; an orderly consumer's listener returns SUCCESS or COMMIT instead. A listener that
raises an exception or returns anything else has failed. Source: RocketMQ 5.3.3, ``MessageListenerConcurrently``,
``MessageListenerOrderly``. Unlike in RocketMQ, a listener that returns nothing has succeeded.
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
"""A listener that takes a list of messages from the same queue, and the context."""


class ConsumeConcurrentlyStatus(Enum):
    """The statuses that a listener may return."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """The statuses that an orderly consumer's listener may return.

    ROLLBACK and COMMIT are for contexts without ``auto_commit``: ROLLBACK repeats the messages since the last COMMIT;
    COMMIT marks them as consumed.
    """

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    COMMIT = "COMMIT"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


class ReconsumeLater(Exception):  # noqa: N818 - a result, not an error
    """Raised by a listener so that the message is delivered again; no stack trace is logged.

    Args:
        delay_level: 1 to 18 as for a delayed message, 0 for the broker's choice, -1 for an immediate dead letter.
            Orderly consumers ignore the delay level.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(delay_level)
        self.delay_level = delay_level


class ConsumeConcurrentlyContext:
    """Lets a batch listener return more than a status: the listener sets the attributes.

    Attributes: message_queue: queue of the messages. delay_level_when_next_consume: delay of failed messages; see
        ``ReconsumeLater``. ack_index: with CONSUME_SUCCESS, the index of the last consumed message; later ones are
        delivered again.
    """

    __slots__ = ("ack_index", "delay_level_when_next_consume", "message_queue")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self.delay_level_when_next_consume = 0
        self.ack_index: int | None = None


class ConsumeOrderlyContext:
    """Lets an orderly consumer's batch listener return more than a status: the listener sets the attributes.

    Attributes:
        message_queue: queue of the messages.
        auto_commit: whether SUCCESS commits the messages; otherwise only COMMIT does.
        suspend_current_queue_time_ms: pause after a failure; -1 for the configured pause.
    """

    __slots__ = ("auto_commit", "message_queue", "suspend_current_queue_time_ms")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self.auto_commit = True
        self.suspend_current_queue_time_ms = -1


class Listener:
    """A function that the application has registered as a listener.

    Args:
        function: the application's function.
        batch: whether it takes a list and a context.

    Attributes:
        on_loop: whether it is a coroutine function; otherwise it runs in a thread.
    """

    __slots__ = ("batch", "function", "on_loop")

    def __init__(self, function: MessageListener | BatchListener, batch: bool) -> None:
        self.function: Callable[..., Any] = function
        self.batch = batch
        self.on_loop = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an asynchronous __call__
        )

    def call(self, messages: list[MessageExt], context: object) -> Any:
        """Calls the function; returns a plain function's result, or a coroutine function's coroutine."""
        return self.function(messages, context) if self.batch else self.function(messages[0])

    async def answer(self, messages: list[MessageExt], context: object) -> object:
        """Calls a coroutine function and returns its result."""
        answer: Awaitable[object] = self.call(messages, context)
        return await answer
