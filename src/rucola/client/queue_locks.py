"""The locks of an orderly consumer: the broker of a queue guarantees that no other consumer reads it.

Locks are confirmed every 20 s; the broker keeps a lock for 60 s. Source: RocketMQ 5.3.3, ``RebalanceImpl#lockAll``,
``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rucola.client.client_tasks import ClientTasks, Periodic
from rucola.client.group_member import GroupMember
from rucola.client.process_queue import OrderlyProcessQueue
from rucola.errors import RucolaError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

INTERVAL_S = 20.0
SURE_S = 55.0
"""For this many seconds after a confirmation, no other consumer can have read the queue."""
TIMEOUT_MS = 1_000


class QueueLocks:
    """Requests, confirms and releases locks.

    Args:
        member: the consumer as a member of its group.
        queues: returns the queues that are read.
        lost: called with a queue that another consumer has locked, or may have locked because the last confirmation was
            more than ``SURE_S`` ago.
        confirmed: called when locks were confirmed.
    """

    def __init__(
        self,
        member: GroupMember,
        queues: Callable[[], list[OrderlyProcessQueue]],
        lost: Callable[[OrderlyProcessQueue], None],
        confirmed: Callable[[], None],
    ) -> None:
        self._member = member
        self._queues = queues
        self._lost = lost
        self._confirmed = confirmed
        self._confirming = Periodic(self.confirm, INTERVAL_S)
        self._background = ClientTasks(member.group)

    def start(self) -> None:
        """Starts to confirm locks."""
        self._background.forever("confirmation of locks", self._confirming.run)

    async def stop(self) -> None:
        """Releases all locks."""
        await self._background.stop()
        await asyncio.gather(*(self.unlock(queue) for queue in self._queues()))

    async def lock(self, process_queue: OrderlyProcessQueue) -> bool:
        """Requests the lock of a new queue; returns whether it was granted."""
        asked_at = asyncio.get_running_loop().time()
        if not await self._ask(process_queue.message_queue.broker_name, [process_queue], asked_at):
            return False
        return process_queue.locked_at is not None

    async def unlock(self, process_queue: OrderlyProcessQueue) -> None:
        """Releases the lock; failures are only logged, because the lock expires."""
        member = self._member
        process_queue.unlock()
        try:
            address = member.instance.routes.broker(process_queue.message_queue.broker_name)
            await member.api.unlock_queues(
                address, member.group, member.instance.client_id, [process_queue.message_queue], TIMEOUT_MS
            )
        except RucolaError as error:
            event(logger, logging.INFO, "queue not unlocked", queue=process_queue.message_queue, error=error)

    async def confirm(self) -> None:
        """Requests the locks of all queues again, which confirms them."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        by_broker: dict[str, list[OrderlyProcessQueue]] = {}
        for process_queue in self._queues():
            by_broker.setdefault(process_queue.message_queue.broker_name, []).append(process_queue)
        before = {process_queue: process_queue.locked_at for queues in by_broker.values() for process_queue in queues}
        await asyncio.gather(*(self._ask(name, queues, asked_at) for name, queues in by_broker.items()))
        for process_queue, locked_at in before.items():
            sure = (
                process_queue.locked_at is not None
                and locked_at is not None
                and process_queue.locked_at - locked_at <= SURE_S
            )
            if not process_queue.dropped and not sure:
                event(logger, logging.WARNING, "lock lost", group=self._member.group, queue=process_queue.message_queue)
                self._lost(process_queue)
        self._confirmed()

    async def _ask(self, broker_name: str, queues: list[OrderlyProcessQueue], asked_at: float) -> bool:
        """Requests the locks of a broker's queues; returns False if the broker does not respond."""
        member = self._member
        try:
            address = member.instance.routes.broker(broker_name)
            locked = await member.api.lock_queues(
                address,
                member.group,
                member.instance.client_id,
                [process_queue.message_queue for process_queue in queues],
                TIMEOUT_MS,
            )
        except RucolaError as error:
            event(logger, logging.WARNING, "queues not locked", broker=broker_name, error=error)
            return False
        for process_queue in queues:
            if process_queue.message_queue in locked:
                process_queue.lock(asked_at)
            else:
                process_queue.unlock()
        return True

    def confirm_soon(self) -> None:
        """Starts to confirm all locks now, because a restarted broker no longer has them."""
        self._confirming.soon()
