"""The lite pull consumer: the application polls for messages. Source: RocketMQ 5.3.3,
DefaultLitePullConsumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rucola.client.allocate import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy
from rucola.client.caller import Caller, caller
from rucola.client.checks import check_number, check_queue, check_topics
from rucola.client.client_life import ClientLife
from rucola.client.consumer_config import LitePullConsumerConfig
from rucola.client.deliveries import Deliveries, Polled
from rucola.client.faces import Asynchronous
from rucola.client.group_member import GroupMember
from rucola.client.instance import check_topic
from rucola.client.lite_pull_service import LitePullService
from rucola.client.message_iterator import MessageIterator
from rucola.client.message_selector import MessageSelector
from rucola.client.producer import tracing
from rucola.client.subscription import subscription_data
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.options import checked_config
from rucola.errors import ClientError
from rucola.protocol.bodies.heartbeat import ConsumeType
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class LitePullConsumer(Asynchronous):
    """Returns messages when polled, and keeps the position of each queue.

    Life cycle: ``async with consumer``, or ``start`` and ``shutdown``, on one event loop. Use either ``subscribe``, so
    that the consumers of the group share the queues, or ``assign`` with the queues to read.

    Messages that ``poll`` returned count as consumed when the task that called it, or for blocking calls the thread,
    polls again or shuts the consumer down. Other tasks do not change this. If a task ends with an error, the messages
    that it polled are given again. In ``async for message in consumer``, a message counts as consumed when the loop
    asks for the next one or is left by ``break`` or ``return``; after an error it is given again. With ``auto_commit``,
    the offsets of consumed messages are stored regularly.

    In addition to the errors listed, methods that send requests raise ``BrokerError`` if a broker refuses, and
    ``RemotingError`` if it cannot be reached or does not respond in time. The application may repeat the failed call.

    Args:
        group: consumer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: divides the queues; must be the same for all consumers of the group. By default
            ``AllocateMessageQueueAveragely``.
        topics: topics to subscribe to, without a filter.
        clock: gives the time for client id and versions.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: LitePullConsumerConfig | None = None,
        *,
        allocate_strategy: AllocateMessageQueueStrategy | None = None,
        topics: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._config = checked_config(config, LitePullConsumerConfig)
        self._clock = clock or SystemClock()
        self._strategy = allocate_strategy or AllocateMessageQueueAveragely()
        self._member = GroupMember(group, namesrv, self._config, self._clock, ConsumeType.CONSUME_ACTIVELY)
        for topic in check_topics(topics):
            self._member.subscribe(topic, "*")
        self._wanted: tuple[MessageQueue, ...] | None = None  # queues that the application assigned
        self._assigning = asyncio.Lock()
        traced = self._config.enable_trace
        self._trace = tracing(group, "CONSUME", namesrv, self._config, self._clock) if traced else None
        given = self._trace.consumed if self._trace is not None else None
        self._service = LitePullService(self._member, self._config, given)
        self._life = ClientLife("lite pull consumer", self._member.instance.owner, self._start, self._close)
        self._service.deliveries.closed = self._life.closed
        self._patience_s = self._config.await_termination_ms / 1000

    async def __aenter__(self) -> LitePullConsumer:
        await self.start()
        return self

    def __aexit__(self, kind: type[BaseException] | None = None, *exc_info: object) -> Coroutine[Any, Any, None]:
        return self._leave(caller(), failed=kind is not None)

    def __aiter__(self) -> MessageIterator:
        return self.messages()

    def messages(self) -> MessageIterator:
        """The messages, for ``async for``. In ``async with consumer.messages() as messages``, the last message of a
        loop counts as consumed when the block ends without an error, however the loop was left.
        """
        return MessageIterator(self._reading_deliveries)

    @property
    def client_id(self) -> str:
        """The id by which brokers and the other consumers of the group know this consumer."""
        return self._member.instance.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer currently reads, sorted."""
        return sorted(self._service.queues)

    async def start(self) -> None:
        """Joins the group, or starts to read the assigned queues.

        Raises:
            RemotingError: no name server responds.
            BrokerError: a broker cannot filter by an SQL92 subscription.
            ClientError: the consumer was shut down before.
        """
        await self._life.start()

    async def _start(self) -> None:
        if not self._member.subscriptions and self._wanted is None:
            event(logger, logging.WARNING, "the consumer has no subscription", group=self._member.group)
        if self._trace is not None:
            await self._trace.start()
        strategy = self._strategy if self._wanted is None else None
        await self._member.start(self._service, strategy, self._service.note_progress)
        if self._wanted is not None:
            await self._reassign()

    def shutdown(self) -> Coroutine[Any, Any, None]:
        """Stops pulling, waits for the bodies of loops, stores the offsets, and leaves the group.

        Messages that this task polled, or this thread with blocking calls, count as consumed. Loops end after their
        current body, whose message counts as consumed if the body takes at most ``await_termination_ms``. In the body
        of a loop, the call returns at once; the loop ends after this body, when the consumer is closed. A further call
        waits for the end of the first one. If the call is cancelled, the shutdown goes on. At the end of ``async with
        consumer`` by an exception, nothing waits for bodies, and no message of a poll or a body counts as consumed.
        """
        return self._shutdown(caller(), consumed=True)

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``. When the call
        returns, the expression applies to all messages sent from now on; after an error, nothing has changed.

        Args:
            topic: name of the topic; the topic may be created later.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid, or queues were assigned.
        """
        self._life.check_loop()
        if self._wanted is not None:
            raise ClientError("a consumer with assigned queues cannot subscribe")
        await self._member.change_subscription(topic, expression, self._service if self._life.has_started else None)

    async def unsubscribe(self, topic: str) -> None:
        """Stops reading ``topic``. When the call returns, no further message of the topic is given.

        Raises:
            ClientError: queues were assigned; assign the others.
        """
        self._life.check_loop()
        if self._wanted is not None:
            raise ClientError("a consumer with assigned queues cannot unsubscribe: assign the queues that remain")
        self._member.subscriptions.pop(topic, None)
        self._service.drop_topic(topic)
        await self._member.announce(topic)

    async def assign(self, queues: Collection[MessageQueue], expression: str | MessageSelector = "*") -> None:
        """Reads exactly these queues. Must be called before ``start``, and may be called again afterwards; of several
        calls at once, the last one decides.

        Args:
            queues: at least one.
            expression: filter, as for ``subscribe``.

        Raises:
            ClientError: ``queues`` is empty, the expression is invalid, the consumer has subscriptions or was started
                without queues, or the consumer offset of a queue is not available.
        """
        self._life.check_loop()
        if self._member.subscriptions:
            raise ClientError("a consumer that subscribed to topics cannot be assigned queues")
        if not queues:
            raise ClientError("at least one queue must be assigned")
        if self._life.has_started and self._wanted is None:
            raise ClientError("queues must be assigned before a consumer without subscriptions is started")
        for queue in queues:
            check_queue(queue)
        for topic in {queue.topic for queue in queues}:
            check_topic(topic)
            self._service.filter(subscription_data(topic, expression, self._clock.wall_ms()))
        self._wanted = tuple(queues)
        if self._life.has_started:
            await self._reassign()

    def poll(self, timeout_ms: int | None = None) -> Coroutine[Any, Any, list[MessageExt]]:
        """Returns the next messages; the messages that the same task, or thread, polled before then count as consumed.

        Args:
            timeout_ms: how long to wait for messages; None for ``poll_timeout_ms``.

        Returns:
            Messages of the same queue, in order, at most ``pull_batch_size``; empty if none arrived in time.

        Raises:
            ClientError: the consumer is not started, is shut down, or has no subscription and no assigned queues.
        """
        owner = caller()
        return self._poll(timeout_ms, owner, self._service.deliveries.polls_of(owner))

    def _missed_poll(self, messages: list[MessageExt]) -> None:
        """Takes back the result of a blocking ``poll`` whose thread was interrupted before it received it."""
        if messages:
            self._service.deliveries.give_back_poll(messages)

    async def _poll(self, timeout_ms: int | None, owner: Caller, before: tuple[Polled, ...]) -> list[MessageExt]:
        deliveries = self._reading_deliveries()
        wait_ms = self._config.poll_timeout_ms if timeout_ms is None else timeout_ms
        check_number("timeout_ms", wait_ms, 0)
        deliveries.settle_polls(owner, before)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while (polled := deliveries.take(self._config.pull_batch_size)) is None:
            if self._life.is_closing or loop.time() >= until:
                return []
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await deliveries.arrival()
        deliveries.add_poll(owner, polled)
        return list(polled.messages)

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Makes ``poll`` continue at ``queue_offset`` of a queue; drops messages that are already pulled.

        Raises:
            ClientError: the queue is not assigned to this consumer, or does not have the offset.
        """
        low, high = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        check_number("queue_offset", queue_offset, low, high)
        self._service.seek(queue, queue_offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Makes ``poll`` continue at the first message that the broker still has."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Makes ``poll`` continue at the next new message."""
        await self.seek(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Makes ``poll`` continue at the first message stored at or after ``timestamp_ms`` (since the epoch)."""
        await self.seek(queue, await self.offset_for_time(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Queue offset after the last message that was polled or given to a loop, or that the filter passed over.

        Raises:
            ClientError: the queue is not assigned to this consumer.
        """
        return self._service.assigned(queue).position

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Excludes these queues from ``poll`` until ``resume``."""
        self._life.check_loop()
        self._service.pause(_checked(queues))

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Includes these queues in ``poll`` again."""
        self._life.check_loop()
        self._service.resume(_checked(queues))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> Coroutine[Any, Any, None]:
        """Stores offsets immediately. Offsets that a broker does not accept are logged, and sent again when offsets are
        stored the next time.

        Args:
            offsets: the next queue offset to consume, by queue. None for all messages that this task, or thread, was
                given, including the current message of its loop; of each queue, up to the first message that another
                task has not finished with.

        Raises:
            ClientError: a queue is not assigned to this consumer, or does not have the offset.
        """
        if offsets is not None and not isinstance(offsets, Mapping):
            raise ClientError(
                f"commit takes offsets by queue, {{queue: offset}}, or nothing; not {type(offsets).__name__}"
            )
        return self._commit(offsets, caller())

    async def _commit(self, offsets: Mapping[MessageQueue, int] | None, owner: Caller) -> None:
        deliveries = self._running_deliveries()
        if offsets is not None:
            await self._check_offsets(offsets)
        else:
            deliveries.settle_polls(owner, deliveries.polls_of(owner))
            deliveries.settle_loops(owner, handled=True)
        await self._member.offsets.persist(self._service.commit(offsets))

    async def _check_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            check_queue(queue)
            check_number(f"the offset of {queue}", offset, 0)
            if offset > self._service.assigned(queue).pulled_to:
                check_number(f"the offset of {queue}", offset, 0, await self.max_offset(queue))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored consumer offset for ``queue``; None if there is none."""
        self._life.check_running()
        return await self._member.offsets.stored(queue)

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """Queues of ``topic`` that can be read.

        Raises:
            ClientError: no broker has the topic.
        """
        self._life.check_running()
        check_topic(topic)
        return list((await self._member.instance.routes.refresh(topic)).subscribe_queues)

    async def min_offset(self, queue: MessageQueue) -> int:
        """First queue offset that the broker still has."""
        return await self._member.api.min_offset(await self._master(queue), queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Queue offset of the next message to be stored."""
        return await self._member.api.max_offset(await self._master(queue), queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at or after ``timestamp_ms`` (since the epoch); the maximum offset
        if there is none.
        """
        check_number("timestamp_ms", timestamp_ms, 0)
        return await self._member.api.search_offset(await self._master(queue), queue, timestamp_ms)

    async def _reassign(self) -> None:
        service = self._service
        async with self._assigning:
            queues = self._wanted or ()
            gone = [queue for queue in service.queues if queue not in queues]
            await asyncio.gather(*map(service.remove_queue, gone))
            for queue in queues:
                if queue not in service.queues and not await service.add_queue(queue, True):
                    raise ClientError(f"the consumer offset of {queue} is not available")

    async def _leave(self, by: Caller, *, failed: bool) -> None:
        """Ends ``async with``. Loops of this task whose iterator still exists were left without an error, or with the
        error that ends the block.
        """
        self._life.check_loop()
        self._service.deliveries.settle_loops(by, handled=not failed)
        if failed:
            self._patience_s = 0.0  # for the bodies of other tasks' loops
        await self._shutdown(by, consumed=not failed)

    async def _shutdown(self, by: Caller, *, consumed: bool) -> None:
        self._life.check_loop()
        deliveries = self._service.deliveries
        if consumed:
            deliveries.settle_polls(by, deliveries.polls_of(by))
        inside = deliveries.has_body(by)
        deliveries.end()
        await self._life.close(inside)

    async def _close(self) -> None:
        try:
            await self._member.rest()
            await self._service.stop(self._patience_s)
        finally:
            self._service.note_progress()
            try:
                await self._member.leave(list(self._service.queues))
            finally:
                if self._trace is not None:
                    await self._trace.shutdown()

    def _running_deliveries(self) -> Deliveries:
        self._life.check_running()
        return self._service.deliveries

    def _reading_deliveries(self) -> Deliveries:
        deliveries = self._running_deliveries()
        if self._wanted is None:
            self._member.check_subscribed()
        return deliveries

    async def _master(self, queue: MessageQueue) -> str:
        self._life.check_running()
        check_queue(queue)
        await self._member.instance.routes.route(queue.topic)
        return self._member.instance.routes.master(queue.broker_name)


def _checked(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    checked = list(queues)
    for queue in checked:
        check_queue(queue)
    return checked
