"""The queues of a lite pull consumer: assigned by the rebalance or by the application, and pulled in the background.

Each queue has one task that pulls while its limits allow; pulled messages wait in their queue for a poll or a loop. The
offset that may be committed is that of the first message not done yet: a poll shows that its caller has finished with
the messages of its previous poll. Where the filter matches nothing, the offset follows the pulls. Everything runs on
one event loop.

Source: RocketMQ 5.3.3, ``DefaultLitePullConsumerImpl``, ``AssignedMessageQueue``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rucola.client.client_tasks import ClientTasks
from rucola.client.consumer_config import MIB, LitePullConsumerConfig
from rucola.client.deliveries import Deliveries
from rucola.client.group_member import FIRST_PULL_DELAY_S, GroupMember
from rucola.client.process_queue import DeliveryQueue, FlowLimits
from rucola.client.pull_result import PullStatus
from rucola.client.pulling import Pulled, Puller
from rucola.client.queue_failures import QueueFailures
from rucola.client.subscription import has_same_filter
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ClientError, RucolaError
from rucola.protocol.bodies.heartbeat import SubscriptionData
from rucola.protocol.codes import ResponseCode
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_BROKER_BUSY_DELAY_S = 0.02


class AssignedQueue(DeliveryQueue):
    """One queue that the consumer reads.

    Args:
        queue: the queue.
        queue_offset: where to start.
        now: the event loop's time.
        is_paused: whether ``poll`` excludes the queue for now.

    Attributes:
        resumed: set unless the queue is paused.
    """

    def __init__(self, queue: MessageQueue, queue_offset: int, now: float, is_paused: bool) -> None:
        super().__init__(queue, now)
        self.pulled_to = queue_offset
        self.is_paused = is_paused
        self.resumed = asyncio.Event()
        if not is_paused:
            self.resumed.set()
        self._task: asyncio.Task[None] | None = None

    def read_by(self, task: asyncio.Task[None]) -> None:
        """Notes the task that pulls from the queue."""
        self._task = task

    def stop_reading(self) -> None:
        """Ends the pulls, if there are any."""
        if self._task is not None:
            self._task.cancel()

    @property
    def position(self) -> int:
        """Queue offset of the next message to give; if none is fetched, that of the next pull."""
        return self.fetched[0].queue_offset if self.fetched else self.pulled_to

    @property
    def committable(self) -> int:
        """The offset that may be committed: that of the first message not done yet."""
        low, _ = self.span_ends
        return self.pulled_to if low is None else low


class LitePullService:
    """Reads queues for a lite pull consumer; a ``QueueOwner``.

    Args:
        member: the consumer as a member of its group.
        config: settings of the consumer.
        given: called with the messages that a loop or a poll is given, to trace them.

    Attributes:
        queues: the queues that are read.
        expressions: filters of topics whose queues the application assigned.
        deliveries: gives the messages to polls and loops.
    """

    def __init__(
        self,
        member: GroupMember,
        config: LitePullConsumerConfig,
        given: Callable[[Sequence[MessageExt]], None] | None,
    ) -> None:
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
        self._pulls = ClientTasks(member.group)
        self._room: asyncio.Future[None] | None = None  # where pulls wait for room
        self._paused: set[MessageQueue] = set()
        self._failures = QueueFailures()
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.expressions: dict[str, SubscriptionData] = {}
        self.deliveries = Deliveries(given=given)

    def note_progress(self) -> None:
        """With auto commit, writes the offsets that may be committed into the offset store."""
        if self._config.auto_commit:
            for assigned in self.queues.values():
                self._note(assigned)

    def commit(self, offsets: Mapping[MessageQueue, int] | None) -> list[MessageQueue]:
        """Writes the offsets that may be committed, or the given ones, into the offset store; returns their queues.

        Raises:
            ClientError: a queue is not assigned.
        """
        for queue in offsets or ():
            self.assigned(queue)
        for queue, assigned in self.queues.items():
            if not assigned.dropped:
                offset = assigned.committable if offsets is None else offsets.get(queue)
                if offset is not None:
                    self._member.offsets.update(queue, offset, increase_only=False)
        return list(self.queues if offsets is None else offsets)

    def assigned(self, queue: MessageQueue) -> AssignedQueue:
        """The state of an assigned queue.

        Raises:
            ClientError: the queue is not assigned.
        """
        assigned = self.queues.get(queue)
        if assigned is None or assigned.dropped:
            raise ClientError(f"{queue} is not assigned to this consumer; {len(self.queues)} other queues are")
        return assigned

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Excludes these queues from pulls and from ``poll``, even if they are removed and assigned again."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self.queues:
                self.queues[queue].is_paused = True
                self.queues[queue].resumed.clear()
        self._made_room()  # the messages of paused queues do not count

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Includes these queues in pulls and in ``poll`` again."""
        for queue in queues:
            self._paused.discard(queue)
            if queue in self.queues:
                self.queues[queue].is_paused = False
                self.queues[queue].resumed.set()
        self.deliveries.wake_all()

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continues a queue at an offset; drops its waiting messages, and ignores what becomes of given ones.

        Raises:
            ClientError: the queue is not assigned.
        """
        self._end(self.assigned(queue))
        self._begin(self._new_queue(queue, queue_offset), alone=True)
        if self._config.auto_commit:
            self._member.offsets.update(queue, queue_offset, increase_only=False)

    def drop_topic(self, topic: str) -> None:
        """Drops the queues of ``topic``, which is no longer subscribed: from now on, no message of it is given. The
        next round of the rebalance gives the queues up.
        """
        for queue, assigned in self.queues.items():
            if queue.topic == topic and not assigned.dropped:
                self._leave(assigned)

    def filter(self, subscription: SubscriptionData) -> None:
        """Sets the filter of a topic whose queues the application assigns."""
        before = self.expressions.get(subscription.topic)
        self.expressions[subscription.topic] = subscription
        if before is not None and not has_same_filter(before, subscription):
            self.pull_anew(subscription.topic)

    def pull_anew(self, topic: str) -> None:
        """Pulls the queues of ``topic`` with its present expression; ignores the answers to pulls in progress."""
        for queue, assigned in self.queues.items():
            if queue.topic == topic and not assigned.dropped:
                self._pull_from_now(assigned)

    async def stop(self, timeout_s: float) -> None:
        """Stops pulling; waits for the bodies of loops, at most ``timeout_s`` seconds."""
        await self._pulls.stop()
        self.deliveries.end()
        await self.deliveries.bodies(timeout_s)

    # QueueOwner

    def topics(self) -> Collection[str]:
        """See ``QueueOwner``."""
        return self._member.subscriptions.keys()

    def owned(self) -> Collection[MessageQueue]:
        """See ``QueueOwner``."""
        return self.queues.keys()

    def leaving(self) -> Collection[MessageQueue]:
        """See ``QueueOwner``."""
        return [queue for queue, assigned in self.queues.items() if assigned.dropped]

    async def add_queue(self, queue: MessageQueue, alone: bool) -> bool:
        """See ``QueueOwner``."""
        self._member.offsets.remove(queue)
        try:
            first = await self._member.where_to_start(queue)
        except RucolaError as error:
            event(logger, logging.WARNING, "queue not started", group=self._member.group, queue=queue, error=error)
            return False
        self._begin(self._new_queue(queue, first), alone)
        return True

    async def remove_queue(self, queue: MessageQueue) -> bool:
        """See ``QueueOwner``."""
        assigned = self.queues.get(queue)
        if assigned is None:
            return True
        if not assigned.dropped:
            self._leave(assigned)
        await self._member.offsets.persist([queue], forward_only=True)
        if self.queues.get(queue) is assigned:
            del self.queues[queue]
            self._member.offsets.remove(queue)
            self._puller.forget(queue)
        return True

    async def queues_changed(self, topic: str, queues: Sequence[MessageQueue], mine: Collection[MessageQueue]) -> None:
        """See ``QueueOwner``."""
        await self._member.queues_changed(topic)

    # pulling

    def _new_queue(self, queue: MessageQueue, queue_offset: int) -> AssignedQueue:
        return AssignedQueue(queue, queue_offset, asyncio.get_running_loop().time(), queue in self._paused)

    def _begin(self, assigned: AssignedQueue, alone: bool) -> None:
        self.queues[assigned.message_queue] = assigned
        if self._room is not None:
            assigned.when_room(self._made_room)
        assigned.is_start_certain = alone
        self._pull_from_now(assigned)

    def _pull_from_now(self, assigned: AssignedQueue) -> None:
        assigned.stop_reading()
        name = f"pulls of {assigned.message_queue}"
        assigned.read_by(self._pulls.until_cancelled(name, lambda: self._read_queue(assigned)))

    def _leave(self, assigned: AssignedQueue) -> None:
        """Drops a queue, and notes how far it was consumed."""
        self.deliveries.settle_left()
        if self._config.auto_commit:
            self._note(assigned)
        self._end(assigned)

    def _end(self, assigned: AssignedQueue) -> None:
        assigned.drop()
        assigned.stop_reading()

    async def _read_queue(self, assigned: AssignedQueue) -> None:
        """Reads a queue. Unless the group has no other member, the previous consumer of a new queue gets the time to
        store how far it came, and the offset is looked up again.
        """
        if not assigned.is_start_certain:
            await asyncio.sleep(FIRST_PULL_DELAY_S)
            assigned.pulled_to = await self._member.latest_start(assigned.message_queue, assigned.pulled_to)
            assigned.is_start_certain = True
        while True:
            await assigned.resumed.wait()
            while not self._has_room(assigned):
                await self._more_room()
            try:
                pulled = await self._pull(assigned)
            except RucolaError as error:
                await asyncio.sleep(self._pause_s(assigned.message_queue, error))
                continue
            if pulled.status is PullStatus.OFFSET_ILLEGAL and pulled.next_begin_offset < assigned.pulled_to:
                self._restart(assigned, pulled.next_begin_offset)
                return
            self._take(assigned, pulled)

    def _restart(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Reads a queue from an earlier offset. Its messages are other ones than before, because its topic was created
        again, so what is fetched or given counts no more.
        """
        fields = {"queue": assigned.message_queue, "offset": queue_offset}
        event(logger, logging.WARNING, "consumption of a queue restarts at another offset", **fields)
        assigned.drop()
        self._member.offsets.update(assigned.message_queue, queue_offset, increase_only=False)
        self._begin(self._new_queue(assigned.message_queue, queue_offset), alone=True)

    async def _pull(self, assigned: AssignedQueue) -> Pulled:
        queue = assigned.message_queue
        subscription = self._member.subscriptions.get(queue.topic) or self.expressions[queue.topic]
        return await self._puller.pull(queue, assigned.pulled_to, subscription)

    def _take(self, assigned: AssignedQueue, pulled: Pulled) -> None:
        self._failures.end(assigned.message_queue)
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            fields = {"queue": assigned.message_queue, "offset": pulled.next_begin_offset}
            event(logger, logging.WARNING, "queue continues at another offset", **fields)
        if pulled.messages:
            assigned.put(pulled.messages)
            self.deliveries.offer(assigned, len(pulled.messages))
        assigned.pulled_to = pulled.next_begin_offset

    def _pause_s(self, queue: MessageQueue, error: RucolaError) -> float:
        """Logs why a pull failed; returns the pause before the next one, in seconds."""
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            return _BROKER_BUSY_DELAY_S
        if times := self._failures.note(queue, error):
            fields = {"group": self._member.group, "queue": queue, "error": error, "times": times}
            event(logger, logging.WARNING, "pull failed", **fields)
        return self._config.pull_time_delay_when_exception_ms / 1000

    def _has_room(self, assigned: AssignedQueue) -> bool:
        """Whether this queue is within its limits, and all queues together are within theirs. Messages of paused queues
        do not count, because no poll can make room of them.
        """
        if assigned.is_full(self._limits):
            return False
        held = sum(len(queue) for queue in self.queues.values() if not (queue.is_paused or queue.dropped))
        return held <= self._config.pull_threshold_for_all

    async def _more_room(self) -> None:
        """Waits until a queue takes less room, or needs none any more."""
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
            for queue in self.queues.values():
                queue.when_room(self._made_room)
        await asyncio.shield(self._room)

    def _made_room(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
            for queue in self.queues.values():
                queue.when_room(None)

    def _note(self, assigned: AssignedQueue) -> None:
        if not assigned.dropped:
            self._member.offsets.update(assigned.message_queue, assigned.committable, increase_only=True)
