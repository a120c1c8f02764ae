"""Divides the queues among the consumers of a group; each consumer repeatedly computes the division for itself.

There is no coordinator. Every consumer works in rounds. In each round it asks a broker for the members of its group,
divides the sorted queues among the sorted members, adds its new queues and gives up the queues that it lost. Brokers
notify the members when one joins or leaves, and each consumer also begins a round every 20 s, so all members soon
agree. A consumer begins at most one round per ``MIN_INTERVAL_S``. This is shorter than the time for which the new owner
of a queue waits before it reads the queue, so that the old owner has given the queue up by then.

A ``Rebalance`` may be used on only one event loop; its rounds run one after another. Source: RocketMQ 5.3.3,
``RebalanceImpl``, ``RebalanceService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from rucola.client.allocate import AllocateMessageQueueStrategy
from rucola.client.application_call import is_failed_call
from rucola.client.instance import ClientInstance
from rucola.common.key_builder import is_retry_topic
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ClientError, RucolaError
from rucola.protocol.bodies.heartbeat import MessageModel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

MIN_INTERVAL_S = 0.3
"""Shortest time between the beginnings of two rounds, in seconds."""
RETRY_S = 1.0
"""Time from the beginning of a round that left something undone to the next one, in seconds."""


class QueueOwner(Protocol):
    """The object that reads the assigned queues. None of its methods raises an exception."""

    def topics(self) -> Collection[str]:
        """The subscribed topics, including the group's retry topic."""
        ...

    def owned(self) -> Collection[MessageQueue]:
        """The queues that are currently read, including those in ``leaving``."""
        ...

    def leaving(self) -> Collection[MessageQueue]:
        """The queues for which ``remove_queue`` must be called again."""
        ...

    async def add_queue(self, queue: MessageQueue, alone: bool) -> bool:
        """Starts to read ``queue``; returns False if the next round must try again. ``alone`` is True if the group has
        no other member.
        """
        ...

    async def remove_queue(self, queue: MessageQueue) -> bool:
        """Stops reading ``queue`` and stores its offset; returns False if the next round must try again."""
        ...

    def drop_topic(self, topic: str) -> None:
        """Gives no further message of ``topic``, which is no longer subscribed; the next round removes its queues."""

    def pull_anew(self, topic: str) -> None:
        """Pulls with the present expression of ``topic``; ignores the answers to pulls in progress."""

    async def queues_changed(self, topic: str, queues: Sequence[MessageQueue], mine: Collection[MessageQueue]) -> None:
        """Called when the division of ``topic`` has changed; ``mine`` are this consumer's queues among ``queues``."""
        ...


class Rebalance:
    """Assigns queues to one consumer.

    Args:
        instance: the client.
        group: the consumer group.
        message_model: with BROADCASTING each consumer reads all queues.
        strategy: divides the queues.
        owner: reads the queues.
        interval_ms: interval between rounds if no notification arrives.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        message_model: MessageModel,
        strategy: AllocateMessageQueueStrategy,
        owner: QueueOwner,
        interval_ms: int,
    ) -> None:
        self._instance = instance
        self._group = group
        self._model = message_model
        self._strategy = strategy
        self._owner = owner
        self._interval_s = interval_ms / 1000
        self._asked = 0
        self._wanted = asyncio.Event()
        self._round = asyncio.Lock()
        self._unbalanced: dict[str, BaseException] = {}  # why the last round failed, by topic
        self._waiting: list[asyncio.Future[None]] = []

    def soon(self) -> None:
        """Starts a round as soon as ``MIN_INTERVAL_S`` has passed since the last round began."""
        self._wanted.set()

    async def run(self) -> None:
        """Runs rounds until cancelled; ``ClientTasks`` starts it again if it fails."""
        loop = asyncio.get_running_loop()
        interval_s = self._interval_s
        began = loop.time() - MIN_INTERVAL_S
        while True:
            try:
                async with asyncio.timeout_at(began + interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(began + MIN_INTERVAL_S - loop.time())
            self._wanted.clear()
            began = loop.time()
            waiting, self._waiting = self._waiting, []
            try:
                interval_s = self._interval_s if await self.rebalance() else RETRY_S
            except BaseException:
                self.soon()  # when ``ClientTasks`` has started this again
                raise
            finally:
                for future in waiting:
                    if not future.done():
                        future.set_result(None)

    async def round(self) -> None:
        """Begins a round like ``soon``, and waits for its end."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.soon()
        await future

    def failures_by_topic(self) -> dict[str, BaseException]:
        """The topics that exist, but whose queues could not be divided in the last round."""
        return {
            topic: error
            for topic, error in self._unbalanced.items()
            if topic in self._owner.topics() and not is_retry_topic(topic) and not isinstance(error, ClientError)
        }

    async def rebalance(self) -> bool:
        """Runs one round; returns whether the consumer now reads exactly the queues assigned to it."""
        async with self._round:
            topics = list(self._owner.topics())
            balanced = True
            for topic in topics:
                try:
                    balanced &= await self._rebalance_topic(topic)
                    self._unbalanced.pop(topic, None)
                except RucolaError as error:
                    # the broker creates the retry topic at the group's first heartbeat or for its first failed message
                    balanced &= is_retry_topic(topic)
                    self._log_once(topic, error)
                except BaseException as error:  # the strategy may be the application's own
                    if not is_failed_call(error, asyncio.current_task()):
                        raise
                    balanced = False
                    self._unbalanced[topic] = error
                    event(logger, logging.ERROR, "queues not divided", error, group=self._group, topic=topic)
            for queue in [one for one in self._owner.owned() if one.topic not in topics]:
                balanced &= await self._owner.remove_queue(queue)
            return balanced

    def _log_once(self, topic: str, error: RucolaError) -> None:
        """Logs why the queues of ``topic`` could not be divided, unless the last round failed for the same reason."""
        if str(self._unbalanced.get(topic)) != str(error):
            level = logging.WARNING if isinstance(error, BrokerError) else logging.INFO
            event(logger, level, "not rebalanced", group=self._group, topic=topic, error=error)
        self._unbalanced[topic] = error

    async def _rebalance_topic(self, topic: str) -> bool:
        route = await self._instance.routes.route(topic)
        queues = sorted(route.subscribe_queues)
        members = [self._instance.client_id]
        mine: Collection[MessageQueue] = queues
        if self._model is MessageModel.CLUSTERING:
            members = sorted(await self._consumer_ids(topic, queues))
            mine = ()
            if queues and self._instance.client_id in members:
                mine = self._strategy.allocate(self._instance.client_id, queues.copy(), members.copy())
        wanted = set(mine)
        return await self._change(topic, queues, wanted, alone=len(members) == 1)

    async def _change(self, topic: str, queues: list[MessageQueue], wanted: set[MessageQueue], alone: bool) -> bool:
        owner = self._owner
        before = {queue for queue in owner.owned() if queue.topic == topic}
        leaving = before.intersection(owner.leaving())
        gone = await asyncio.gather(*(owner.remove_queue(queue) for queue in sorted(before - wanted | leaving)))
        come = await asyncio.gather(*(owner.add_queue(queue, alone) for queue in sorted(wanted - before)))
        if any(gone) or any(come):
            event(
                logger,
                logging.INFO,
                "queues divided",
                group=self._group,
                topic=topic,
                strategy=self._strategy.name,
                queues=len(queues),
                mine=len(wanted),
            )
            await owner.queues_changed(topic, queues, wanted)
        return all(gone) and all(come) and not leaving & wanted

    async def _consumer_ids(self, topic: str, queues: Sequence[MessageQueue]) -> list[str]:
        """The group's members according to one of the topic's brokers; if the broker fails, asks the next one."""
        names = sorted({queue.broker_name for queue in queues})
        if not names:
            raise ClientError(f"topic {topic} has no queue that can be read")
        for attempt in range(len(names)):
            name = names[self._asked % len(names)]
            try:
                return await self._instance.api.consumer_list(self._instance.routes.broker(name), self._group)
            except RucolaError:
                self._asked += 1
                if attempt == len(names) - 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")
