"""The progress of a consumer group: kept in memory, brought to the brokers or to a file every few seconds.

``RemoteBrokerOffsetStore`` is for groups that share their queues, ``BroadcastOffsetStore`` for consumers that read all
of them. One event loop owns a store. Source: RocketMQ 5.3.3, ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``,
``ControllableOffset``. Other than there, a store waits for the brokers' answers, so what a closing consumer says is
known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from rucola.client.local_offset_store import LocalFileOffsetStore
from rucola.client.route import RouteTable
from rucola.common.message_queue import MessageQueue
from rucola.errors import RucolaError
from rucola.remoting.api import RemotingApi
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

TIMEOUT_MS = 5_000


class OffsetStore:
    """What both kinds share: the table in memory."""

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def known(self, queue: MessageQueue) -> int | None:
        """Progress in memory; None when it is not known."""
        return self._table.get(queue)

    def update(self, queue: MessageQueue, consumer_offset: int, *, increase_only: bool) -> None:
        """Set the progress in memory; ``increase_only``: unless it is farther already."""
        if queue not in self._frozen:
            old = self._table.get(queue)
            if old is None or not increase_only or consumer_offset > old:
                self._table[queue] = consumer_offset

    def update_and_freeze(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Set the progress, and let nothing change it until ``remove``."""
        self._table[queue] = consumer_offset
        self._frozen.add(queue)

    def remove(self, queue: MessageQueue) -> None:
        """Forget the queue."""
        self._table.pop(queue, None)
        self._frozen.discard(queue)

    def snapshot(self, topic: str) -> dict[MessageQueue, int]:
        """Progress in memory of the queues of ``topic``."""
        return {queue: offset for queue, offset in self._table.items() if queue.topic == topic}

    async def load(self, queue: MessageQueue) -> int | None:
        """Progress as it is kept, into memory too; None when there is none.

        Raises:
            BrokerError: the broker refuses to say.
            RemotingError: the broker cannot be asked.
            ClientError: no route leads to it.
            FormatError: the file is damaged, and there is no spare that reads.
            DiskError: the file cannot be read.
        """
        raise NotImplementedError

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Bring the progress of these queues to where it is kept. What fails is logged and comes with the next call."""
        raise NotImplementedError

    def retain(self, queues: Collection[MessageQueue]) -> None:
        """Forget all queues but these."""
        for queue in self._table.keys() - set(queues):
            self.remove(queue)


class RemoteBrokerOffsetStore(OffsetStore):
    """Progress that the masters keep.

    Args:
        api: carries the calls.
        routes: where the masters are.
        group: whose progress.
    """

    def __init__(self, api: RemotingApi, routes: RouteTable, group: str) -> None:
        super().__init__()
        self._api, self._routes, self._group = api, routes, group

    async def load(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``."""
        await self._routes.route(queue.topic)
        address = self._routes.broker(queue.broker_name)
        offset = await self._api.query_consumer_offset(address, self._group, queue, timeout_ms=TIMEOUT_MS)
        if offset is not None:
            self.update(queue, offset, increase_only=False)
        return offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """See ``OffsetStore``."""
        await asyncio.gather(*(self._tell(queue, self._table[queue]) for queue in queues if queue in self._table))

    async def _tell(self, queue: MessageQueue, offset: int) -> None:
        try:
            address = self._routes.master(queue.broker_name)
            await self._api.update_consumer_offset(address, self._group, queue, offset, TIMEOUT_MS)
        except RucolaError as error:
            event(logger, logging.WARNING, "progress not stored", group=self._group, queue=queue, error=error)


class BroadcastOffsetStore(OffsetStore):
    """Progress in a file of this machine.

    Args:
        file: the file.
    """

    def __init__(self, file: LocalFileOffsetStore) -> None:
        super().__init__()
        self._file = file

    async def load(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``."""
        offset = (await asyncio.to_thread(self._file.load)).get(queue)
        if offset is not None:
            self.update(queue, offset, increase_only=False)
        return offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """See ``OffsetStore``."""
        told = {queue: self._table[queue] for queue in queues if queue in self._table}
        if not told:
            return
        try:
            await asyncio.to_thread(self._file.commit, told)
        except RucolaError as error:
            event(logger, logging.ERROR, "progress not stored", path=self._file.path, error=error)
