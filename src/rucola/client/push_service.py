"""The queues of a push consumer: added and removed by the rebalance, pulled while their limits allow, and consumed.

Each queue has one task that pulls, with at most one pull in progress. Pulled messages go into a ``ProcessQueue`` and to
the ``Consumption``. The consumption removes messages from the process queue once they are consumed or sent back. The
process queue determines the consumer offset. With CLUSTERING, each pull from a master tells the master this offset. In
addition, the offset is stored every 5 s (``persistConsumerOffsetInterval``), when the members of the group change, and
when the consumer gives up the queue.

A queue is given up in one way, ``remove_queue``, whatever the reason: the division of the queues, ``unsubscribe``, a
reset, an illegal offset or a lost lock. The reasons differ only in the consumer offset that is stored. The queue is
dropped at once, so that results for its messages are ignored. It is forgotten, and may be added again, only when no
orderly call processes its messages any more.

Everything runs on one event loop. Source: RocketMQ 5.3.3, ``DefaultMQPushConsumerImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from rucola.client.client_tasks import ClientTasks
from rucola.client.consume_rates import ConsumeRates
from rucola.client.consumer_config import MIB, PushConsumerConfig
from rucola.client.group_member import FIRST_PULL_DELAY_S, GroupMember
from rucola.client.process_queue import FlowLimits, OrderlyProcessQueue, ProcessQueue
from rucola.client.pull_result import PullStatus
from rucola.client.pulling import Pulled, Puller
from rucola.client.queue_failures import QueueFailures
from rucola.client.queue_locks import QueueLocks
from rucola.common import message_const
from rucola.common.key_builder import is_retry_topic
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, RucolaError
from rucola.protocol.bodies.heartbeat import MessageModel
from rucola.protocol.codes import ResponseCode
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

BROKER_BUSY_DELAY_S = 0.02
UNKNOWN_TO_BROKER_DELAY_S = 0.5
UNKNOWN_TIMES, UNKNOWN_WITHIN_S = 5, 60.0
"""Refused pulls of a queue, each within this time after the one before, that show that another member of the group has
other subscriptions: a broker keeps those of the last heartbeat. After a start or a restart, one or two are refused.
"""
_UNKNOWN_TO_BROKER = frozenset({ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST})


class Consumption(Protocol):
    """How a push consumer consumes messages; implemented in ``consume_concurrently``, ``consume_orderly`` and
    ``consume_by_iteration``.

    Attributes:
        queue_type: the class of its process queues.
    """

    queue_type: type[ProcessQueue]

    def start(self) -> None:
        """Starts the consumption."""

    def add(self, process_queue: ProcessQueue) -> None:
        """Adds a queue that this consumer now reads."""

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Consumes messages that were pulled from ``queue``."""

    def locked(self) -> None:
        """Called when locks were confirmed."""

    async def remove(self, process_queue: ProcessQueue) -> bool:
        """Gives up ``queue``; returns False if it must be kept for now."""

    async def stop(self, timeout_s: float) -> None:
        """Stops; waits at most ``timeout_s`` seconds for running listeners."""

    def take_no_more(self) -> None:
        """Begins no further call of the listener; ``stop`` follows."""

    def is_inside_call(self) -> bool:
        """Whether the code that asks runs inside a call of the listener."""
        ...


class PushService:
    """Reads queues for a push consumer; a ``QueueOwner``.

    Args:
        member: the consumer as a member of its group.
        config: settings of the consumer.
        puller: sends the pulls.
        consumption: consumes the messages.

    Attributes:
        queues: the queues that are read.
    """

    def __init__(
        self, member: GroupMember, config: PushConsumerConfig, puller: Puller, consumption: Consumption
    ) -> None:
        self._member = member
        self._config = config
        self._puller = puller
        self._consumption = consumption
        self._pulls = ClientTasks(member.group)
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._limits = self._flow_limits(1)
        self._failures = QueueFailures()
        self._unknown: dict[MessageQueue, tuple[int, float]] = {}  # refused pulls, and the time of the last one
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self.rates = ConsumeRates()
        self.locks: QueueLocks | None = None
        if config.consume_orderly and config.message_model is MessageModel.CLUSTERING:
            self.locks = QueueLocks(member, self._orderly_queues, self._lock_lost, consumption.locked)

    def start(self) -> None:
        """Starts the consumption."""
        self._consumption.start()
        if self.locks is not None:
            self.locks.start()

    async def stop(self, patience_s: float) -> None:
        """Stops pulling, lets the consumption finish within ``patience_s`` seconds, and records the consumer offsets of
        all queues.
        """
        await self._pulls.stop()
        await self._consumption.stop(patience_s)
        self.note_progress()

    def take_no_more(self) -> None:
        """Begins no further call of the listener; ``stop`` follows."""
        self._consumption.take_no_more()

    def is_inside_call(self) -> bool:
        """Whether the code that asks runs inside a call of the listener."""
        return self._consumption.is_inside_call()

    def connected(self, address: str) -> None:
        """Called when a connection to a broker was opened, perhaps because the broker restarted."""
        if self.locks is not None:
            self.locks.confirm_soon()

    async def unlock_all(self) -> None:
        """Unlocks all orderly queues, so that other consumers of the group can read them."""
        if self.locks is not None:
            await self.locks.stop()

    def suspend(self) -> None:
        """Stops pulling until ``resume``."""
        self._resumed.clear()

    def resume(self) -> None:
        """Starts pulling again."""
        self._resumed.set()
        self._member.rebalance_soon()

    def note_progress(self) -> None:
        """Writes the consumer offsets of all queues into the offset store."""
        for queue in self.queues.values():
            self._note(queue)
        self.rates.sample(self.queues.values(), asyncio.get_running_loop().time())

    def note_orderly(self, process_queue: ProcessQueue, consumer_offset: int) -> None:
        """Records an orderly queue's consumer offset, which may be lower than before."""
        if not process_queue.dropped:
            self._member.offsets.update(process_queue.message_queue, consumer_offset, increase_only=False)

    async def reset(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Gives up the queues of ``topic`` that are in ``offsets`` and stores these offsets; the next round of the
        rebalance adds the queues again.
        """
        wanted = [
            process_queue
            for process_queue in self.queues.values()
            if process_queue.message_queue.topic == topic and process_queue.message_queue in offsets
        ]
        await asyncio.gather(
            *(self._restart(process_queue, offsets[process_queue.message_queue]) for process_queue in wanted)
        )

    def drop_topic(self, topic: str) -> None:
        """Drops the queues of ``topic``, which is no longer subscribed: from now on, no message of it is passed on. The
        next round of the rebalance gives the queues up.
        """
        for process_queue in [
            process_queue for process_queue in self.queues.values() if process_queue.message_queue.topic == topic
        ]:
            if not process_queue.dropped:
                self._note(process_queue)
                self._drop(process_queue)

    def pull_anew(self, topic: str) -> None:
        """Pulls the queues of ``topic`` with its present expression; ignores the answers to pulls in progress."""
        for process_queue in self.queues.values():
            if process_queue.message_queue.topic == topic and not process_queue.dropped:
                self._pull_from_now(process_queue)

    def _pull_from_now(self, process_queue: ProcessQueue) -> None:
        task = self._tasks.get(process_queue.message_queue)
        if task is not None:
            task.cancel()
        name = f"pulls of {process_queue.message_queue}"
        self._tasks[process_queue.message_queue] = self._pulls.until_cancelled(
            name, lambda: self._pull_queue(process_queue)
        )

    # QueueOwner

    def topics(self) -> Collection[str]:
        """See ``QueueOwner``."""
        return self._member.subscriptions.keys()

    def owned(self) -> Collection[MessageQueue]:
        """See ``QueueOwner``."""
        return self.queues.keys()

    def leaving(self) -> Collection[MessageQueue]:
        """See ``QueueOwner``."""
        return [process_queue.message_queue for process_queue in self.queues.values() if process_queue.dropped]

    async def add_queue(self, queue: MessageQueue, alone: bool) -> bool:
        """See ``QueueOwner``."""
        held = self._consumption.queue_type(queue, asyncio.get_running_loop().time())
        if isinstance(held, OrderlyProcessQueue) and self.locks is not None and not await self.locks.lock(held):
            return False
        self._member.offsets.remove(queue)
        try:
            first = await self._member.where_to_start(queue)
        except RucolaError as error:
            event(logger, logging.WARNING, "queue not started", group=self._member.group, queue=queue, error=error)
            return False
        held.pulled_to, held.is_start_certain = first, alone
        self.queues[queue] = held
        self._consumption.add(held)
        self._pull_from_now(held)
        return True

    async def remove_queue(self, queue: MessageQueue) -> bool:
        """See ``QueueOwner``."""
        held = self.queues.get(queue)
        if held is None:
            return True
        if not held.dropped:
            self._note(held)
            self._drop(held)
        await self._member.offsets.persist([queue], forward_only=True)
        if not await self._consumption.remove(held):
            return False
        if self.queues.get(queue) is not held:
            return True  # given up by another call meanwhile
        if self.locks is not None:
            assert isinstance(held, OrderlyProcessQueue)
            await self.locks.unlock(held)
        self._forget(held)
        return True

    async def queues_changed(self, topic: str, queues: Sequence[MessageQueue], mine: Collection[MessageQueue]) -> None:
        """See ``QueueOwner``."""
        self._limits = self._flow_limits(len(self.queues))
        for queue in self.queues.values():
            if queue.on_room is not None:
                queue.on_room()  # the limits may be higher than before
        await self._member.queues_changed(topic)

    # pulling

    async def _pull_queue(self, process_queue: ProcessQueue) -> None:
        """Reads a queue. Unless the group has no other member, the previous consumer of a new queue gets the time to
        store how far it came, and the offset is looked up again.
        """
        if not process_queue.is_start_certain:
            await asyncio.sleep(FIRST_PULL_DELAY_S)
            process_queue.pulled_to = await self._member.latest_start(
                process_queue.message_queue, process_queue.pulled_to
            )
            process_queue.is_start_certain = True
        loop = asyncio.get_running_loop()
        exception_s = self._config.pull_time_delay_when_exception_ms / 1000
        delay_s = 0.0
        while True:
            if delay_s:
                await asyncio.sleep(delay_s)
            delay_s = 0.0
            await self._resumed.wait()
            while process_queue.is_full(self._limits):
                await _room(process_queue)
            if (
                isinstance(process_queue, OrderlyProcessQueue)
                and self.locks is not None
                and not process_queue.is_locked(loop.time())
            ):
                delay_s = exception_s
                continue
            if process_queue.dropped:
                return
            process_queue.last_pull_at = loop.time()
            try:
                pulled = await self._pull(process_queue)
            except RucolaError as error:
                delay_s = self._delay_s(process_queue, error, exception_s)
                continue
            self._failures.end(process_queue.message_queue)
            if pulled.status is PullStatus.OFFSET_ILLEGAL and pulled.next_begin_offset < process_queue.pulled_to:
                # the queue's messages are other ones than before: its topic was created again
                self._member.instance.keep(self._restart(process_queue, pulled.next_begin_offset))
                return
            self._take(process_queue, pulled)
            if pulled.messages:
                delay_s = self._config.pull_interval_ms / 1000

    async def _pull(self, process_queue: ProcessQueue) -> Pulled:
        commit_offset = None
        if self._config.message_model is MessageModel.CLUSTERING:
            self._note(process_queue)
            commit_offset = self._member.offsets.known(process_queue.message_queue) or None
        subscription = self._member.subscriptions[process_queue.message_queue.topic]
        return await self._puller.pull(
            process_queue.message_queue, process_queue.pulled_to, subscription, commit_offset
        )

    def _take(self, process_queue: ProcessQueue, pulled: Pulled) -> None:
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            fields = {
                "group": self._member.group,
                "queue": process_queue.message_queue,
                "offset": pulled.next_begin_offset,
            }
            event(logger, logging.WARNING, "queue continues at another offset", **fields)
        if pulled.messages:
            self._submit(process_queue, list(pulled.messages))
        elif not len(process_queue):
            self._member.offsets.update(process_queue.message_queue, pulled.next_begin_offset, increase_only=True)
        process_queue.pulled_to = pulled.next_begin_offset

    def _submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        if is_retry_topic(process_queue.message_queue.topic):
            for message in messages:
                message.topic = message.properties.get(message_const.RETRY_TOPIC, message.topic)
        process_queue.put(messages)
        self._consumption.submit(process_queue, messages)

    def _delay_s(self, process_queue: ProcessQueue, error: RucolaError, exception_s: float) -> float:
        if isinstance(error, BrokerError):
            if error.code == ResponseCode.FLOW_CONTROL:
                return BROKER_BUSY_DELAY_S
            if error.code in _UNKNOWN_TO_BROKER:
                self._member.instance.heartbeat_soon()
                self._note_unknown(process_queue.message_queue, error)
                return min(UNKNOWN_TO_BROKER_DELAY_S, exception_s)
        if not is_retry_topic(process_queue.message_queue.topic) and (
            times := self._failures.note(process_queue.message_queue, error)
        ):
            fields = {"group": self._member.group, "queue": process_queue.message_queue, "error": error, "times": times}
            event(logger, logging.WARNING, "pull failed", **fields)
        return exception_s

    def _note_unknown(self, queue: MessageQueue, error: BrokerError) -> None:
        now = asyncio.get_running_loop().time()
        times, last = self._unknown.get(queue, (0, now))
        times = times + 1 if now - last <= UNKNOWN_WITHIN_S else 1
        self._unknown[queue] = times, now
        if times == UNKNOWN_TIMES:
            fields = {"group": self._member.group, "queue": queue, "error": error}
            event(logger, logging.WARNING, "another member of the group has other subscriptions", **fields)

    async def _restart(self, process_queue: ProcessQueue, consumer_offset: int) -> None:
        """Gives up a queue, and stores ``consumer_offset``, at which it will start again."""
        if self.queues.get(process_queue.message_queue) is not process_queue:
            return  # given up meanwhile
        event(
            logger,
            logging.WARNING,
            "consumption of a queue restarts at another offset",
            group=self._member.group,
            queue=process_queue.message_queue,
            offset=consumer_offset,
        )
        self._drop(process_queue)
        self._member.offsets.update_and_freeze(process_queue.message_queue, consumer_offset)
        await self.remove_queue(process_queue.message_queue)
        self._member.rebalance_soon()

    def _lock_lost(self, process_queue: OrderlyProcessQueue) -> None:
        """Drops a queue that another consumer may have read since this consumer lost the lock. Stores no consumer
        offset, because only the other consumer knows how far the queue has been consumed.
        """
        self._drop(process_queue)
        self._member.offsets.remove(process_queue.message_queue)
        self._member.rebalance_soon()

    def _drop(self, process_queue: ProcessQueue) -> None:
        process_queue.drop()
        task = self._tasks.pop(process_queue.message_queue, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _forget(self, process_queue: ProcessQueue) -> None:
        if self.queues.get(process_queue.message_queue) is process_queue:
            del self.queues[process_queue.message_queue]
            self._unknown.pop(process_queue.message_queue, None)
            self._member.offsets.remove(process_queue.message_queue)
            self._puller.forget(process_queue.message_queue)

    def _note(self, process_queue: ProcessQueue) -> None:
        if not process_queue.dropped and not isinstance(process_queue, OrderlyProcessQueue):
            progress = process_queue.progress
            if progress is not None:
                self._member.offsets.update(process_queue.message_queue, progress, increase_only=True)

    def _orderly_queues(self) -> list[OrderlyProcessQueue]:
        return [queue for queue in self.queues.values() if isinstance(queue, OrderlyProcessQueue) and not queue.dropped]

    def _flow_limits(self, queue_count: int) -> FlowLimits:
        config = self._config
        messages, size_mib = config.pull_threshold_for_queue, config.pull_threshold_size_for_queue
        if config.pull_threshold_for_topic != -1:
            messages = max(1, config.pull_threshold_for_topic // max(queue_count, 1))
        if config.pull_threshold_size_for_topic != -1:
            size_mib = max(1, config.pull_threshold_size_for_topic // max(queue_count, 1))
        span = 0 if config.consume_orderly else config.consume_concurrently_max_span
        return FlowLimits(messages, size_mib * MIB, span)


async def _room(process_queue: ProcessQueue) -> None:
    """Waits until messages are removed from ``queue``."""
    removed = asyncio.Event()
    process_queue.when_room(removed.set)
    try:
        await removed.wait()
    finally:
        process_queue.when_room(None)
