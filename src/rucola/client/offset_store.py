"""The consumer offsets of a group: kept in memory, and stored at the brokers or in a file every few seconds.

``RemoteBrokerOffsetStore`` is for groups whose consumers share the queues, ``BroadcastOffsetStore`` for consumers that
each read all queues. A store may be used on only one event loop. Source: RocketMQ 5.3.3, ``RemoteBrokerOffsetStore``,
``LocalFileOffsetStore``, ``ControllableOffset``. Unlike RocketMQ's client, a store waits for the brokers' responses, so
that failures are logged and a consumer closes only after its offsets are stored.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection

from rucola.client.local_offset_store import LocalFileOffsetStore
from rucola.client.queue_failures import QueueFailures
from rucola.client.route import RouteTable
from rucola.common.message_queue import MessageQueue
from rucola.errors import RucolaError
from rucola.remoting.api import RemotingApi
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

TIMEOUT_MS = 5_000


class OffsetStore(ABC):
    """The part that both kinds of stores share: the table of offsets in memory."""

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()
        self._deliberate: set[MessageQueue] = set()
        """Queues whose offset was set by a commit, a seek or a reset since it was stored; it may be lower."""

    def known(self, queue: MessageQueue) -> int | None:
        """The queue's offset in memory; None if unknown."""
        return self._table.get(queue)

    def update(self, queue: MessageQueue, consumer_offset: int, *, increase_only: bool) -> None:
        """Sets the queue's offset in memory; with ``increase_only``, never lowers it."""
        if queue not in self._frozen:
            if not increase_only:
                self._deliberate.add(queue)
            old = self._table.get(queue)
            if old is None or not increase_only or consumer_offset > old:
                self._table[queue] = consumer_offset

    def update_and_freeze(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Sets the queue's offset in memory, and refuses changes until ``remove`` is called."""
        self._table[queue] = consumer_offset
        self._frozen.add(queue)
        self._deliberate.add(queue)

    def remove(self, queue: MessageQueue) -> None:
        """Removes the queue from memory."""
        self._table.pop(queue, None)
        self._frozen.discard(queue)
        self._deliberate.discard(queue)

    def snapshot(self, topic: str) -> dict[MessageQueue, int]:
        """Offsets in memory for the queues of ``topic``."""
        return {queue: offset for queue, offset in self._table.items() if queue.topic == topic}

    async def load(self, queue: MessageQueue) -> int | None:
        """Like ``stored``; also takes the offset into memory."""
        offset = await self.stored(queue)
        if offset is not None and queue not in self._frozen:
            self._table[queue] = offset
        return offset

    async def check(self) -> None:  # noqa: B027 - brokers are only asked queue by queue
        """Checks before the consumer starts that offsets can be read.

        Raises:
            FormatError: the file is damaged, and there is no valid backup.
            DiskError: the file cannot be read.
        """

    @abstractmethod
    async def stored(self, queue: MessageQueue) -> int | None:
        """The queue's stored offset; None if there is none.

        Raises:
            BrokerError: the broker refuses the request.
            RemotingError: the broker cannot be reached or does not respond.
            ClientError: no route leads to the broker.
            FormatError: the file is damaged, and there is no valid backup.
            DiskError: the file cannot be read.
        """

    @abstractmethod
    async def persist(self, queues: Collection[MessageQueue], *, forward_only: bool = False) -> None:
        """Stores the offsets of these queues. Failures are logged; the next call tries again.

        Args:
            queues: queues without an offset in memory are left out.
            forward_only: whether a higher stored offset stays: the queue's next consumer may have stored it. An offset
                that a commit, a seek or a reset has set is stored in any case.
        """

    def retain(self, queues: Collection[MessageQueue]) -> None:
        """Removes all queues except ``queues`` from memory."""
        for queue in self._table.keys() - set(queues):
            self.remove(queue)


class RemoteBrokerOffsetStore(OffsetStore):
    """Keeps the group's offsets at the masters.

    Args:
        api: sends the requests.
        routes: addresses of the masters.
        group: the consumer group.
    """

    def __init__(self, api: RemotingApi, routes: RouteTable, group: str) -> None:
        super().__init__()
        self._api, self._routes, self._group = api, routes, group
        self._failures = QueueFailures()

    async def stored(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``."""
        await self._routes.route(queue.topic)
        address = self._routes.broker(queue.broker_name)
        return await self._api.query_consumer_offset(address, self._group, queue, timeout_ms=TIMEOUT_MS)

    async def persist(self, queues: Collection[MessageQueue], *, forward_only: bool = False) -> None:
        """See ``OffsetStore``."""
        told = {queue: self._table[queue] for queue in queues if queue in self._table}
        await asyncio.gather(*(self._tell(queue, told[queue], forward_only) for queue in told))

    async def _tell(self, queue: MessageQueue, offset: int, forward_only: bool) -> None:
        deliberate = queue in self._deliberate
        try:
            address = self._routes.master(queue.broker_name)
            if forward_only and not deliberate:
                stored = await self._api.query_consumer_offset(address, self._group, queue, timeout_ms=TIMEOUT_MS)
                if stored is not None and stored >= offset:
                    return
            await self._api.update_consumer_offset(address, self._group, queue, offset, TIMEOUT_MS)
            self._failures.end(queue)
            if deliberate and self._table.get(queue) == offset:
                self._deliberate.discard(queue)
        except RucolaError as error:
            if times := self._failures.note(queue, error):
                fields = {"group": self._group, "queue": queue, "error": error, "times": times}
                event(logger, logging.WARNING, "consumer offset not stored", **fields)


class BroadcastOffsetStore(OffsetStore):
    """Keeps this client's offsets in a file on this machine.

    Args:
        file: the offset file.
    """

    def __init__(self, file: LocalFileOffsetStore) -> None:
        super().__init__()
        self._file = file

    async def check(self) -> None:
        """See ``OffsetStore``."""
        await asyncio.to_thread(self._file.load)

    async def stored(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``."""
        return (await asyncio.to_thread(self._file.load)).get(queue)

    async def persist(self, queues: Collection[MessageQueue], *, forward_only: bool = False) -> None:
        """See ``OffsetStore``; no other consumer stores offsets in the file, so ``forward_only`` changes nothing."""
        told = {queue: self._table[queue] for queue in queues if queue in self._table}
        if not told:
            return
        try:
            await asyncio.to_thread(self._file.commit, told)
        except RucolaError as error:
            event(logger, logging.ERROR, "consumer offsets not stored", path=self._file.path, error=error)
