"""The calls of one consumer's listener: where they run, and which code runs inside of one.

A coroutine function runs in the task of its worker, a plain function in a daemon thread. Each worker, and each task of
an orderly queue, has a ``CallSlot`` with room for one call. A context variable holds the slot of the running call, also
in tasks that the listener starts, and in blocking calls of ``rucola.sync`` that it makes in its thread. So ``shutdown``
knows that it was called from inside a listener, and does not wait for that call.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from rucola.client.application_call import FailedCall, called, is_failed_call
from rucola.client.daemon_threads import DaemonThreads
from rucola.client.listener import Listener, Meaning, completed, is_pending
from rucola.common.message import MessageExt

CALL_SLOT: ContextVar[CallSlot | None] = ContextVar("CALL_SLOT", default=None)
"""The slot of the listener call inside of which this code runs, if it runs inside of one."""


class CallSlot:
    """Has room for one call of the listener at a time.

    Args:
        calls: the calls of that listener.

    Attributes:
        request: what the running call processes; None between calls.
    """

    __slots__ = ("calls", "request")

    def __init__(self, calls: ListenerCalls) -> None:
        self.calls = calls
        self.request: object = None


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
        slot = CALL_SLOT.get()
        return slot is not None and slot.calls is self and slot.request is not None

    async def call(self, slot: CallSlot, messages: list[MessageExt], context: object) -> Any:
        """Calls the listener; returns its result, or a ``FailedCall``.

        Args:
            slot: a free slot, which the current task has put into ``CALL_SLOT``.
            messages: the messages; only the first one, unless it is a listener of batches.
            context: the context of the batch.
        """
        task = asyncio.current_task()
        slot.request = messages
        try:
            if self.listener.on_loop:
                result = await self.listener.call(messages, context)
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self.threads, self._call_in_thread, slot, messages, context)
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
        slot = CallSlot(self)
        CALL_SLOT.set(slot)
        return self.listener.meaning(await self.call(slot, [message], context))

    def _call_in_thread(self, slot: CallSlot, messages: list[MessageExt], context: object) -> Any:
        CALL_SLOT.set(slot)
        return called(self.listener.call, messages, context)
