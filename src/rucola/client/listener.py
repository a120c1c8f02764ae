"""The listener that an application registers with a push consumer, what is accepted as one, and what results mean.

A listener is a coroutine function, which runs on the event loop, or a plain function, which runs in a thread. It
receives one message; with ``batch``, it receives a list and a context. If it returns an awaitable or a future of a
thread pool, the call lasts until that is done.

A listener that raises has failed. What a result means:

- None and a status of success: consumed. A status of failure: failed.
- ``ConsumeResultSuspend``: the message comes again later. Only a lite consumer knows it; elsewhere the call has failed.
- ``False``: failed, since functions that return it mostly say that they did not do the work. Every line in the log
  about it tells what to return instead.
- An exception, a generator or a function, returned by mistake: failed, since the work was not done.
- Any other result of a listener of one message, whatever its attributes raise: consumed, since the work was done and
  must not be repeated. The first such result is logged as WARNING. A listener of batches must return None or a status:
  another result, for example a number, may mean that only a part was consumed, so the call has failed.

Source: RocketMQ 5.3.3, ``MessageListenerConcurrently``, ``MessageListenerOrderly``. In RocketMQ, a listener must return
a status.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import logging
import types
from collections.abc import Awaitable, Callable
from datetime import timedelta
from enum import Enum
from typing import Any, cast

from rucola.client.application_call import FailedCall, called
from rucola.client.checks import check_number
from rucola.common.java import INT32_MAX
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

MessageListener = Callable[[MessageExt], Any]
"""Takes one message."""
BatchListener = Callable[[list[MessageExt], Any], Any]
"""A listener that takes a list of messages from the same queue, and the context."""
EvictionListener = Callable[[str], Any]
"""Takes the name of a lite topic."""


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


Status = ConsumeConcurrentlyStatus | ConsumeOrderlyStatus
Meaning = Status | FailedCall | None
"""What a listener's result says about its messages; None: they were consumed."""
GOOD = (  # a tuple compares by identity first; the hash of an Enum is slow
    None,
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
    ConsumeOrderlyStatus.SUCCESS,
    ConsumeOrderlyStatus.COMMIT,
)
"""Meanings (see ``Listener.meaning``) with which the messages count as consumed."""
_MEANINGS = (ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, FailedCall)
_NESTED_MAX = 100
"""If an awaitable leads to another one more often than this, its listener call has failed; it may lead to itself."""
_NOT_CALLED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_NOT_RUN = (types.GeneratorType, types.AsyncGeneratorType)
_HINT = "return nothing if the message was consumed; otherwise raise an exception, for example ReconsumeLater()"
_SHOWN_CHARACTERS = 200
SUSPEND_MIN_MS, SUSPEND_MAX_MS = 50, 43_200_000
"""Shortest and longest time of a suspension, in ms (RocketMQ's client for Java; its servers)."""


class ReconsumeLater(Exception):  # noqa: N818 - a result, not an error
    """Raised by a listener so that the message is delivered again; no stack trace is logged.

    Args:
        delay_level: 1 to 18 as for a delayed message, 0 for the broker's choice, -1 for an immediate dead letter.
            Orderly consumers ignore the delay level.

    Raises:
        ClientError: the delay level is not a number, or below -1.
    """

    delay_level = 0

    def __init__(self, delay_level: int = 0) -> None:
        check_number("delay_level", delay_level, -1, INT32_MAX)
        super().__init__(delay_level)
        self.delay_level = delay_level


class ConsumeResultSuspend:
    """A result of the listener of a ``LiteConsumer``: the message, and those behind it in its lite topic, come again
    after a time. Unlike a failure, this costs no attempt.

    RocketMQ's brokers count an attempt if the message was delivered for the first time.

    Args:
        duration: at least 50 ms, at most 12 h.

    Raises:
        ClientError: the duration is not a ``timedelta``, or out of range.
    """

    __slots__ = ("milliseconds",)

    def __init__(self, duration: timedelta) -> None:
        if not isinstance(duration, timedelta):
            raise ClientError(f"duration must be a datetime.timedelta, not {shown(duration)}")
        self.milliseconds = duration // timedelta(milliseconds=1)
        check_number("duration in milliseconds", self.milliseconds, SUSPEND_MIN_MS, SUSPEND_MAX_MS)

    def __repr__(self) -> str:
        return f"ConsumeResultSuspend({self.milliseconds} ms)"


class ConsumeConcurrentlyContext:
    """Lets a batch listener return more than a status: the listener sets the attributes. A wrong value raises
    ``ClientError`` where it is set.

    Attributes:
        message_queue: queue of the messages.
        delay_level_when_next_consume: delay of failed messages; see ``ReconsumeLater``.
        ack_index: with CONSUME_SUCCESS, the index of the last consumed message; later ones are delivered again.
    """

    __slots__ = ("_ack_index", "_delay_level", "message_queue")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self._delay_level = 0
        self._ack_index: int | None = None

    @property
    def delay_level_when_next_consume(self) -> int:
        """Delay level of failed messages."""
        return self._delay_level

    @delay_level_when_next_consume.setter
    def delay_level_when_next_consume(self, value: int) -> None:
        check_number("delay_level_when_next_consume", value, -1, INT32_MAX)
        self._delay_level = value

    @property
    def ack_index(self) -> int | None:
        """Index of the last consumed message; None: all are consumed."""
        return self._ack_index

    @ack_index.setter
    def ack_index(self, value: int | None) -> None:
        if value is not None:
            check_number("ack_index", value, -1, INT32_MAX)
        self._ack_index = value


class ConsumeOrderlyContext:
    """Lets an orderly consumer's batch listener return more than a status: the listener sets the attributes. A wrong
    value raises ``ClientError`` where it is set.

    Attributes:
        message_queue: queue of the messages.
        auto_commit: whether SUCCESS commits the messages; otherwise only COMMIT does.
        suspend_current_queue_time_ms: pause after a failure; -1 for the configured pause.
    """

    __slots__ = ("_auto_commit", "_suspend_ms", "message_queue")

    def __init__(self, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self._auto_commit = True
        self._suspend_ms = -1

    @property
    def auto_commit(self) -> bool:
        """Whether SUCCESS commits the messages."""
        return self._auto_commit

    @auto_commit.setter
    def auto_commit(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise ClientError(f"auto_commit must be True or False, not {shown(value)}")
        self._auto_commit = value

    @property
    def suspend_current_queue_time_ms(self) -> int:
        """Pause after a failure in milliseconds; -1 for the configured pause."""
        return self._suspend_ms

    @suspend_current_queue_time_ms.setter
    def suspend_current_queue_time_ms(self, value: int) -> None:
        check_number("suspend_current_queue_time_ms", value, -1)
        self._suspend_ms = value


class Listener:
    """A function that the application has registered as a listener.

    Args:
        function: the application's function.
        batch: whether it takes a list and a context.

    Attributes:
        on_loop: whether it is a coroutine function; otherwise it runs in a thread.

    Raises:
        ClientError: see ``check_listener``.
    """

    __slots__ = ("_warned", "batch", "function", "on_loop")

    def __init__(self, function: MessageListener | BatchListener, batch: bool) -> None:
        check_listener(function, batch)
        self.function: Callable[..., Any] = function
        self.batch = batch
        self.on_loop = is_coroutine_function(function)
        self._warned = False

    def call(self, messages: list[MessageExt], context: object) -> Any:
        """Calls the function; returns a plain function's result, or a coroutine function's coroutine.

        Args:
            messages: the messages. A listener of batches gets a copy of the list, which it may change.
            context: the context of the batch.
        """
        return self.function(messages.copy(), context) if self.batch else self.function(messages[0])

    def meaning(self, result: object) -> Meaning:
        """What a result says about the messages; see the module's docstring.

        Args:
            result: a listener's result, or the ``FailedCall`` of a listener that raised.

        Returns:
            None for consumed messages, a status, or a failed call.
        """
        meaning = self._judge(result)
        if meaning is None and result is not None and not self._warned:
            self._warned = True
            about = {"result": shown(result), "hint": _HINT, "listener": shown(self.function)}
            event(logger, logging.WARNING, "listener's result is ignored, the message counts as consumed", **about)
        return meaning

    def is_good(self, result: object) -> bool:
        """Whether the messages count as consumed with this result. Logs nothing."""
        meaning = self._judge(result)
        return not isinstance(meaning, FailedCall) and meaning in GOOD

    def _judge(self, result: object) -> Meaning:
        if result is None:
            return None
        kind = type(result)  # isinstance would also ask the result for its class, which may be the application's code
        if issubclass(kind, _MEANINGS):
            return cast("Meaning", result)
        if kind is ConsumeResultSuspend:
            return FailedCall(ClientError("only the listener of a LiteConsumer can suspend a message"))
        if issubclass(kind, BaseException):
            return FailedCall(cast("BaseException", result))
        not_done = issubclass(kind, (*_NOT_RUN, *_NOT_CALLED)) or _is_exception_class(result)
        if result is False or not_done or self.batch:
            hint = "return None or a status" if self.batch else _HINT
            return FailedCall(ClientError(f"the listener returned {shown(result)}, so its call has failed; {hint}"))
        return None


def check_listener(function: object, batch: bool = False) -> None:
    """Checks that ``function`` can be a listener, as far as this is known before a message arrives.

    Raises:
        ClientError: it is not a function, does not take the arguments of a listener, or would not do its work when it
            is called: a generator function or a class.
    """
    wanted = "a function of a list of messages and a context" if batch else "a function of one message"
    if asyncio.iscoroutine(function) or isinstance(function, _NOT_RUN):
        raise ClientError(f"a listener must be {wanted}, not {shown(function)}: pass the function, do not call it")
    if not callable(function):
        raise ClientError(f"a listener must be {wanted}, not {shown(function)}")
    if isinstance(function, type):
        raise ClientError(f"a listener must be {wanted}, not the class {function.__qualname__}: pass an object of it")
    if any(map(inspect.isgeneratorfunction, _forms(function))) or any(
        map(inspect.isasyncgenfunction, _forms(function))
    ):
        raise ClientError(f"a listener must be {wanted}, not the generator function {shown(function)}")
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):  # a function written in C
        return
    try:
        signature.bind(*([None, None] if batch else [None]))
    except TypeError as error:
        advice = "batch=True passes a list and a context" if not batch else "without batch, it gets one message"
        raise ClientError(
            f"a listener must be {wanted}, but {shown(function)} has the parameters {signature}: {error}; {advice}"
        ) from error


def is_coroutine_function(function: object) -> bool:
    """Whether ``function`` is a coroutine function, or an object with an asynchronous ``__call__``."""
    return any(map(inspect.iscoroutinefunction, _forms(function)))


def is_pending(result: object) -> bool:
    """Whether a listener's result is an awaitable or a thread pool's future, so that the work is still under way. A
    result that cannot be asked, for example a weak reference whose object is gone, is none of these.
    """
    return called(_is_pending, result) is True


async def completed(result: Any) -> Any:
    """Waits for the work that ``result`` stands for; see ``is_pending``. Returns what it leads to in the end.

    Raises:
        ClientError: it leads to no end.
    """
    for _ in range(_NESTED_MAX):
        if not is_pending(result):
            return result
        waiting: Awaitable[Any] = result
        if isinstance(result, concurrent.futures.Future):
            waiting = asyncio.wrap_future(result)
        result = await waiting
    raise ClientError(f"the listener returned an awaitable that leads to no end: {shown(result)}")


def let_go(result: object) -> None:
    """Ends ``result`` if it is a coroutine; nobody will await it."""
    called(_close, result)


def shown(value: object) -> str:
    """The beginning of ``repr(value)``, which may be code of the application."""
    text = called(repr, value)
    if isinstance(text, FailedCall):
        text = f"<{_class_name(value)}, its repr raises {_class_name(text.error)}>"
    text = str.__str__(text)  # a subclass may have methods that raise
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _forms(function: object) -> tuple[object, object]:
    return function, getattr(function, "__call__", None)  # noqa: B004 - an object may have an asynchronous __call__


def _is_exception_class(result: object) -> bool:
    return issubclass(type(result), type) and issubclass(cast("type", result), BaseException)


def _is_pending(result: object) -> bool:
    return inspect.isawaitable(result) or isinstance(result, concurrent.futures.Future)


def _close(result: Any) -> None:
    if asyncio.iscoroutine(result):
        result.close()


def _class_name(value: object) -> str:
    name: str = type.__dict__["__name__"].__get__(type(value))  # a metaclass may define another __name__
    return name
