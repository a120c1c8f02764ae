"""Reads messages that may not be in memory: threads wait for the disk while the event loop serves other requests.

The work is a function, called the step, which gets a ``ColdRecords`` for its reads. If a read raises
``NotInMemoryError``, a thread fetches the missing messages and the step runs again from its beginning. A step must
therefore read first and act afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.channel import Channel
from rucola.remoting.processors import OVERLOAD, Answer
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

_THREADS = 4
"""Largest number of disk reads that run at the same time. Consumers that are far behind read sequentially, and the
system reads ahead for them.
"""


class ColdReads:
    """The running disk reads. Event loop only.

    Args:
        waiting_max: returns the maximum number of reads that run or wait for a thread. If that number is reached,
            further requests are refused.
    """

    def __init__(self, waiting_max: Callable[[], int]) -> None:
        self._waiting_max = waiting_max
        self._threads: ThreadPoolExecutor | None = None
        self._running: set[asyncio.Future[None]] = set()
        self._served: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def serve(self, step: Callable[[ColdRecords], Answer | Awaitable[Answer]]) -> Answer | Awaitable[Answer]:
        """The result of ``step`` for a request; an awaitable if ``step`` must run again.

        Raises:
            BrokerError: too many requests wait for the disk. Also raises whatever ``step`` raises.
        """
        cold = ColdRecords()
        try:
            return step(cold)
        except NotInMemoryError:
            self._check_room()
        acting = asyncio.ensure_future(self._again(step, cold))
        self._served.add(acting)
        acting.add_done_callback(self._served.discard)
        return _answer_of(acting)

    async def fetched(self, cold: ColdRecords) -> None:
        """Fetches the messages that are listed in ``cold``, for a request that is not served through ``serve``.

        Raises:
            BrokerError: too many requests wait for the disk.
        """
        self._check_room()
        await asyncio.shield(self.fetch(cold.fetch))

    async def done(self, step: Callable[[ColdRecords], T]) -> T:
        """Returns the result of ``step``. For the broker's own work, which is never refused."""
        cold = ColdRecords()
        try:
            return step(cold)
        except NotInMemoryError:
            return await self._again(step, cold)

    def start(self, channel: Channel, fetch: Callable[[], None], resume: Callable[[], None]) -> bool:
        """Calls ``fetch`` in a thread for a request of ``channel``, then ``resume`` on the event loop. Returns False if
        too many reads wait.
        """
        if len(self._running) >= self._waiting_max():
            return False
        channel.owe(0)

        def fetched(_future: asyncio.Future[None]) -> None:
            channel.settle(0)
            resume()

        self.fetch(fetch).add_done_callback(fetched)
        return True

    def fetch(self, fetch: Callable[[], None]) -> asyncio.Future[None]:
        """Calls ``fetch`` in a thread; returns a future that is done when the call has ended. Nothing is refused here:
        the broker's own work has no limit, and other callers check the limit first.
        """
        if self._threads is None:
            self._threads = _threads()
        future = asyncio.get_running_loop().run_in_executor(self._threads, fetch)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def close(self) -> None:
        """Returns when every read has ended and its request was answered. Call it after the broker's own work has
        ended.
        """
        while self._running or self._served:
            await asyncio.wait(self._running | self._served)
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _check_room(self) -> None:
        if len(self._running) >= self._waiting_max():
            raise BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD)

    async def _again(self, step: Callable[[ColdRecords], T], cold: ColdRecords) -> T:
        while True:
            await asyncio.shield(self.fetch(cold.fetch))  # if this call is cancelled, ``close`` waits for the read
            try:
                return step(cold)
            except NotInMemoryError:
                continue


async def _answer_of(acting: Awaitable[Answer | Awaitable[Answer]]) -> Answer:
    answer = await acting
    return answer if answer is None or isinstance(answer, RemotingCommand) else await answer


def _threads() -> ThreadPoolExecutor:
    """The thread pool; imported and created with the first read, because many brokers never need it."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_THREADS, "rucola-cold-read")
