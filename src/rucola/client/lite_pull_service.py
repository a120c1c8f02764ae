"""The queues of a lite pull consumer: assigned by the rebalance or by the application, and pulled in the background.

Each queue has one task that pulls while its limits allow; pulled messages of all queues wait in one list for ``poll``.
The position of a queue is the offset after the last polled message. The committable offset is the position before the
latest ``poll``, because only the next ``poll`` shows that the application has finished with the latest messages.
Everything runs on one event loop.

Source: RocketMQ 5.3.3, ``DefaultLitePullConsumerImpl``, ``AssignedMessageQueue``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from rucola.client.consumer_config import MIB, LitePullConsumerConfig
from rucola.client.group_member import GroupMember
from rucola.client.process_queue import FlowLimits, ProcessQueue
from rucola.client.pull_result import PullStatus
from rucola.client.pulling import Puller
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ClientError, RucolaError
from rucola.protocol.bodies.heartbeat import SubscriptionData
from rucola.protocol.codes import ResponseCode
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_BROKER_BUSY_DELAY_S = 0.02


class AssignedQueue:
    """The state of one queue that the consumer reads.

    Attributes:
        held: messages that were pulled but not polled yet.
        position: queue offset after the last polled message, or the start offset.
        committable: offset that may be committed; None if there is nothing new.
        paused: whether ``poll`` excludes the queue.
    """

    def __init__(self, queue: MessageQueue, position: int, now: float) -> None:
        self.held = ProcessQueue(queue, now)
        self.position = position
        self.committable: int | None = None
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.task: asyncio.Task[None] | None = None

    @property
    def paused(self) -> bool:
        """Whether ``poll`` excludes the queue."""
        return not self.resumed.is_set()


class LitePullService:
    """Reads queues for a lite pull consumer; a ``QueueOwner``.

    Args:
        member: the consumer as a member of its group.
        config: settings of the consumer.

    Attributes:
        queues: the queues that are read.
        expressions: filters of topics whose queues the application assigned.
    """

    def __init__(self, member: GroupMember, config: LitePullConsumerConfig) -> None:
        self._member = member
        self._config = config
        self._puller = Puller(
            member.instance,
            member.api,
            member.group,
            config.pull_batch_size,
            config.broker_suspend_max_time_ms,
            config.consumer_timeout_when_suspend_ms,
            lite=True,
        )
        self._limits = FlowLimits(
            config.pull_threshold_for_queue, config.pull_threshold_size_for_queue * MIB, config.consume_max_span
        )
        self._ready: deque[tuple[AssignedQueue, ProcessQueue, list[MessageExt]]] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._given: list[AssignedQueue] = []
        self._paused: set[MessageQueue] = set()
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.expressions: dict[str, SubscriptionData] = {}

    def note_progress(self) -> None:
        """With auto commit, writes the committable offsets into the offset store."""
        if self._config.auto_commit:
            for assigned in self.queues.values():
                self._note(assigned)

    def settle(self) -> None:
        """Marks the messages of the last ``poll`` as consumed."""
        for assigned in self._given:
            assigned.committable = assigned.position
        self._given.clear()

    def take(self) -> list[MessageExt]:
        """Takes the waiting messages of one pull, from a queue that is not paused; empty if there are none."""
        for _ in range(len(self._ready)):
            assigned, held, messages = entry = self._ready.popleft()
            if held.dropped:
                continue
            if assigned.paused:
                self._ready.append(entry)
                continue
            held.remove(messages)
            assigned.position = messages[-1].queue_offset + 1
            self._given.append(assigned)
            self._taken.set()
            return messages
        self._arrived.clear()
        return []

    async def arrival(self) -> None:
        """Waits until messages arrive or a queue is resumed."""
        await self._arrived.wait()

    def commit(self, offsets: Mapping[MessageQueue, int] | None) -> list[MessageQueue]:
        """Writes the positions, or the given offsets, into the offset store; returns their queues.

        Raises:
            ClientError: a queue is not assigned.
        """
        for queue in offsets or ():
            self.assigned(queue)
        for queue, assigned in self.queues.items():
            offset = assigned.position if offsets is None else offsets.get(queue)
            if offset is not None:
                self._member.offsets.update(queue, offset, increase_only=False)
                assigned.committable = None
        return list(self.queues if offsets is None else offsets)

    def assigned(self, queue: MessageQueue) -> AssignedQueue:
        """The state of an assigned queue.

        Raises:
            ClientError: the queue is not assigned.
        """
        assigned = self.queues.get(queue)
        if assigned is None:
            raise ClientError(f"{queue} is not assigned to this consumer; {len(self.queues)} other queues are")
        return assigned

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Excludes these queues from pulls and from ``poll``, even if they are removed and assigned again."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self.queues:
                self.queues[queue].resumed.clear()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Includes these queues in pulls and in ``poll`` again."""
        for queue in queues:
            self._paused.discard(queue)
            if queue in self.queues:
                self.queues[queue].resumed.set()
        self._arrived.set()

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continues a queue at an offset; drops its waiting messages.

        Raises:
            ClientError: the queue is not assigned.
        """
        assigned = self.assigned(queue)
        self._end(assigned)
        self._given = [one for one in self._given if one is not assigned]
        assigned.committable = queue_offset
        self._begin(assigned, queue_offset)

    async def stop(self) -> None:
        """Stops pulling."""
        tasks = [assigned.task for assigned in self.queues.values() if assigned.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._arrived.set()

    # QueueOwner

    def topics(self) -> Collection[str]:
        """See ``QueueOwner``."""
        return self._member.subscriptions.keys()

    def owned(self) -> Collection[MessageQueue]:
        """See ``QueueOwner``."""
        return self.queues.keys()

    def leaving(self) -> Collection[MessageQueue]:
        """See ``QueueOwner``; always empty."""
        return ()

    async def add_queue(self, queue: MessageQueue, alone: bool) -> bool:
        """See ``QueueOwner``."""
        self._member.offsets.remove(queue)
        try:
            first = await self._member.where_to_start(queue)
        except RucolaError as error:
            event(logger, logging.WARNING, "queue not started", group=self._member.group, queue=queue, error=error)
            return False
        assigned = AssignedQueue(queue, first, asyncio.get_running_loop().time())
        if queue in self._paused:
            assigned.resumed.clear()
        self.queues[queue] = assigned
        self._begin(assigned, first)
        return True

    async def remove_queue(self, queue: MessageQueue) -> bool:
        """See ``QueueOwner``."""
        assigned = self.queues[queue]
        self._end(assigned)
        if self._config.auto_commit:
            self._note(assigned)
        await self._member.offsets.persist([queue])
        self.queues.pop(queue, None)
        self._given = [one for one in self._given if one is not assigned]
        self._member.offsets.remove(queue)
        self._puller.forget(queue)
        return True

    async def queues_changed(self, topic: str, queues: Sequence[MessageQueue], mine: Collection[MessageQueue]) -> None:
        """See ``QueueOwner``."""
        await self._member.queues_changed(topic)

    # pulling

    def _begin(self, assigned: AssignedQueue, queue_offset: int) -> None:
        assigned.position = queue_offset
        assigned.held = ProcessQueue(assigned.held.queue, asyncio.get_running_loop().time())
        assigned.task = asyncio.ensure_future(self._pull_queue(assigned, assigned.held, queue_offset))

    def _end(self, assigned: AssignedQueue) -> None:
        assigned.held.dropped = True
        if assigned.task is not None:
            assigned.task.cancel()

    async def _pull_queue(self, assigned: AssignedQueue, held: ProcessQueue, next_offset: int) -> None:
        queue, delay_s = held.queue, 0.0
        while True:
            if delay_s:
                await asyncio.sleep(delay_s)
            delay_s = 0.0
            await assigned.resumed.wait()
            await self._room(held)
            try:
                subscription = self._member.subscriptions.get(queue.topic) or self.expressions[queue.topic]
                pulled = await self._puller.pull(queue, next_offset, subscription)
            except Exception as error:  # noqa: BLE001 - a defect must not end the pulls of a queue
                delay_s = self._config.pull_time_delay_when_exception_ms / 1000
                if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
                    delay_s = _BROKER_BUSY_DELAY_S
                elif isinstance(error, RucolaError):
                    event(logger, logging.WARNING, "pull failed", group=self._member.group, queue=queue, error=error)
                else:
                    event(logger, logging.ERROR, "pull failed", error, group=self._member.group, queue=queue)
                continue
            next_offset = pulled.next_begin_offset
            if pulled.status is PullStatus.OFFSET_ILLEGAL:
                event(logger, logging.WARNING, "queue continues at another offset", queue=queue, offset=next_offset)
            if pulled.messages:
                found = list(pulled.messages)
                held.put(found)
                self._ready.append((assigned, held, found))
                self._arrived.set()

    async def _room(self, held: ProcessQueue) -> None:
        """Waits until this queue is within its limits, and all queues together are within theirs."""
        while held.is_full(self._limits) or self._waiting() > self._config.pull_threshold_for_all:
            self._taken.clear()
            await self._taken.wait()

    def _waiting(self) -> int:
        return sum(len(assigned.held) for assigned in self.queues.values())

    def _note(self, assigned: AssignedQueue) -> None:
        if assigned.committable is not None:
            self._member.offsets.update(assigned.held.queue, assigned.committable, increase_only=False)
            assigned.committable = None
