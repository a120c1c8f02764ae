"""The calls of one consumer's listener: where they run, and which code runs inside of one.

A coroutine function runs in the task of its worker, a plain function in a daemon thread. Each worker, and each task of
an orderly queue, has a ``CallSlot`` with room for one call. A context variable holds what the running call processes,
also in tasks that the listener starts, and in blocking calls of ``rucola.sync`` that it makes in its thread. So
``shutdown`` knows that it was called from inside a listener, and does not wait for that call. Each call processes an
object of its own. So a task that outlives the call that started it is not taken for a part of a later call. The workers
of a concurrent coroutine function are the exception: the variable holds the worker's slot, because setting it for each
message takes too much time. There, such a task counts as a part of the worker's later calls.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from rucola.client.application_call import FailedCall, called, is_failed_call
from rucola.client.daemon_threads import DaemonThreads
from rucola.client.listener import Listener, Meaning, completed, is_pending
from rucola.common.message import MessageExt

CALL: ContextVar[object] = ContextVar("CALL", default=None)
"""The ``CallSlot.request`` of the listener call that runs this code, or has started the task of this code; or the
``CallSlot`` itself.
"""


class CallSlot:
    """Has room for one call of the listener at a time.

    Args:
        calls: the calls of that listener.

    Attributes:
        request: what the running call processes, an object that no other call has; None between calls.
    """

    __slots__ = ("__weakref__", "request")

    def __init__(self, calls: ListenerCalls) -> None:
        self.request: object = None
        calls.add(self)


class ListenerCalls:
    """Calls a consumer's listener.

    Args:
        listener: the listener.
        count_max: largest number of calls in threads at the same time.

    Attributes:
        stopping: whether the consumer is shutting down.
        threads: the threads of a plain function, once they were started.
    """

    def __init__(self, listener: Listener, count_max: int) -> None:
        self.listener = listener
        self.stopping = False
        self.threads: DaemonThreads | None = None
        self._count_max = count_max
        self._slots: WeakSet[CallSlot] = WeakSet()

    def add(self, slot: CallSlot) -> None:
        """Adds a slot for calls of this listener."""
        self._slots.add(slot)

    def start(self) -> None:
        """Prepares the threads, if the listener is a plain function."""
        if not self.listener.on_loop:
            self.threads = DaemonThreads(self._count_max, "rucola-consume")

    def stop(self) -> None:
        """Ends the threads, each after its call."""
        if self.threads is not None:
            self.threads.shutdown(wait=False, cancel_futures=True)

    def is_inside(self) -> bool:
        """Whether the code that asks runs inside a running call of this listener."""
        call = CALL.get()
        requests = ((slot, slot.request) for slot in self._slots)
        return any(request is not None and (call is request or call is slot) for slot, request in requests)

    async def call(self, slot: CallSlot, messages: list[MessageExt], context: object) -> Any:
        """Calls the listener; returns its result, or a ``FailedCall``.

        Args:
            slot: a free slot.
            messages: the messages, in a list that no other call has; a listener of one message gets the first one.
            context: the context of the batch.
        """
        task = asyncio.current_task()
        slot.request = messages
        CALL.set(messages)
        try:
            if self.listener.on_loop:
                result = await self.listener.call(messages, context)
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self.threads, self._call_in_thread, messages, context)
            if result is not None and is_pending(result):
                result = await completed(result)
        except BaseException as error:
            if not is_failed_call(error, task, stopping=self.stopping):
                raise
            result = FailedCall(error)
        finally:
            slot.request = None
        return result

    async def call_directly(self, message: MessageExt, context: object) -> Meaning:
        """Calls the listener with one message that an administrator sent; returns the meaning of its result."""
        return self.listener.meaning(await self.call(CallSlot(self), [message], context))

    def _call_in_thread(self, messages: list[MessageExt], context: object) -> Any:
        CALL.set(messages)
        return called(self.listener.call, messages, context)
