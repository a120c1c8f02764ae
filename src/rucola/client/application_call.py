"""Decides what it means that the application's code raised an exception; the one place for all clients.

Clients call code of the application: listeners, queue selectors, callbacks, allocation strategies. This code may raise
anything. Whatever it raises by itself is a failed call, which must not end a task, a thread or an event loop of the
client. Some exceptions only pass through the application's code, and must reach whoever waits for them:

- ``CancelledError`` passes if the client's own task is being cancelled; otherwise the application, or something that it
  awaited, raised it.
- ``KeyboardInterrupt`` passes in the main thread, where Ctrl-C raises it. In another thread it is a failed call.
- ``GeneratorExit`` passes if Python is closing the client's coroutine.
- Any other exception is a failed call, ``SystemExit`` and ``StopIteration`` included.

A message whose call was left by an exception that passes counts as not handled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, final

P = ParamSpec("P")
T = TypeVar("T")


@final
class FailedCall:
    """The outcome of a call that failed. It is a class of its own, because the application may also return exceptions.
    Ask ``type(outcome) is FailedCall`` if the outcome may be any object: ``isinstance`` reads the object's
    ``__class__``, which may raise.

    Args:
        error: the exception that the application's code raised.
    """

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def is_failed_call(error: BaseException, task: asyncio.Task[Any] | None = None, *, stopping: bool = False) -> bool:
    """Whether the application's code raised ``error`` by itself. If not, the caller must raise ``error`` again.

    Args:
        error: an exception that came out of the application's code, in any thread.
        task: the client's task that awaited the application's code; None if a plain function was called. A plain
            function never suspends, so a cancellation cannot pass through it.
        stopping: whether the client itself is ending this task; then every ``CancelledError`` passes.
    """
    kind = type(error)  # isinstance would also ask the error for its class, which may be the application's code
    if issubclass(kind, asyncio.CancelledError):
        return not stopping and (task is None or not task.cancelling())
    if issubclass(kind, KeyboardInterrupt):
        return threading.current_thread() is not threading.main_thread()
    if issubclass(kind, GeneratorExit):
        return task is None or _runs(task)
    return True


def called(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | FailedCall:
    """Calls a plain function of the application, on the event loop or in a thread.

    Use it in threads in particular: a future takes no ``StopIteration``, and its waiter would take a ``CancelledError``
    for its own.

    Returns:
        The function's result, or a ``FailedCall``.
    """
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        if not is_failed_call(error):
            raise
        return FailedCall(error)


async def awaited(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T | FailedCall:
    """Calls a coroutine function of the application in the current task, and awaits its result.

    Returns:
        The result, or a ``FailedCall``.
    """
    task = asyncio.current_task()
    try:
        return await function(*args, **kwargs)
    except BaseException as error:
        if not is_failed_call(error, task):
            raise
        return FailedCall(error)


def for_future(error: BaseException) -> BaseException:
    """Returns ``error`` in a form that ``Future.set_exception`` takes: asyncio's futures refuse ``StopIteration``, and
    whoever waits for a future takes a ``CancelledError`` for a cancellation.
    """
    if isinstance(error, StopIteration | asyncio.CancelledError):
        substitute = RuntimeError(f"the application's code raised {type(error).__name__}")
        substitute.__cause__ = error
        return substitute
    return error


def _runs(task: asyncio.Task[Any]) -> bool:
    """Whether this code runs inside ``task``. If it does not, Python is closing the task's coroutine."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs any more
        return False
