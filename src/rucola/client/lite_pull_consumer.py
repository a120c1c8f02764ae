"""The lite pull consumer: the application polls for messages. Source: RocketMQ 5.3.3,
DefaultLitePullConsumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

from rucola.client.allocate import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy
from rucola.client.checks import check_number, check_queue
from rucola.client.consumer_config import LitePullConsumerConfig
from rucola.client.group_member import GroupMember
from rucola.client.instance import check_topic
from rucola.client.lite_pull_service import LitePullService
from rucola.client.message_selector import MessageSelector
from rucola.client.producer import tracing
from rucola.client.subscription import subscription_data
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError
from rucola.protocol.bodies.heartbeat import ConsumeType
from rucola.runtime.clock import Clock, SystemClock


class LitePullConsumer:
    """Returns messages when polled, and keeps the position of each queue.

    Life cycle: ``async with consumer``, or ``start`` and ``shutdown``, on one event loop. Use either ``subscribe``, so
    that the consumers of the group share the queues, or ``assign`` with the queues to read.

    With ``auto_commit`` the messages of a ``poll`` are committed at the next call, so a message that was not processed
    is delivered again. ``async for message in consumer`` polls automatically.

    In addition to the errors listed, methods that send requests raise ``BrokerError`` if a broker refuses, and
    ``RemotingError`` if it cannot be reached or does not respond in time. The application may repeat the failed call.

    Args:
        group: consumer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: divides the queues; must be the same for all consumers of the group. By default
            ``AllocateMessageQueueAveragely``.
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
        clock: Clock | None = None,
    ) -> None:
        self._config = config or LitePullConsumerConfig()
        self._clock = clock or SystemClock()
        self._strategy = allocate_strategy or AllocateMessageQueueAveragely()
        self._member = GroupMember(group, namesrv, self._config, self._clock, ConsumeType.CONSUME_ACTIVELY)
        self._service = LitePullService(self._member, self._config)
        self._wanted: tuple[MessageQueue, ...] | None = None  # queues that the application assigned
        traced = self._config.enable_trace
        self._trace = tracing(group, "CONSUME", namesrv, self._config, self._clock) if traced else None
        self._started = self._ended = False

    async def __aenter__(self) -> LitePullConsumer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._shutdown(consumed=exc_info[:1] in ((), (None,)))

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        while not self._ended:
            for message in await self.poll():
                yield message

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
        if self._ended:
            raise ClientError("a lite pull consumer that was shut down cannot be started again; create a new one")
        if self._started:
            return
        self._started = True
        if self._trace is not None:
            await self._trace.start()
        strategy = self._strategy if self._wanted is None else None
        try:
            await self._member.start(self._service, strategy, self._service.note_progress)
            if self._wanted is not None:
                await self._reassign(self._wanted)
        except BaseException:
            await self.shutdown()
            raise

    async def shutdown(self) -> None:
        """Stops pulling, stores the offsets (with ``auto_commit``, for all polled messages), and leaves the group."""
        await self._shutdown(consumed=True)

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``.

        Args:
            topic: name of the topic; the topic may be created later.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid, or queues were assigned.
        """
        if self._wanted is not None:
            raise ClientError("a consumer with assigned queues cannot subscribe")
        self._member.subscribe(topic, expression)
        await self._member.announce(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stops reading ``topic``."""
        self._member.subscriptions.pop(topic, None)
        await self._member.announce(topic)

    async def assign(self, queues: Collection[MessageQueue], expression: str | MessageSelector = "*") -> None:
        """Reads exactly these queues. Must be called before ``start``, and may be called again afterwards.

        Args:
            queues: at least one.
            expression: filter, as for ``subscribe``.

        Raises:
            ClientError: ``queues`` is empty, the expression is invalid, the consumer has subscriptions or was started
                without queues, or the consumer offset of a queue is not available.
        """
        if self._member.subscriptions:
            raise ClientError("a consumer that subscribed to topics cannot be assigned queues")
        if not queues:
            raise ClientError("at least one queue must be assigned")
        if self._started and self._wanted is None:
            raise ClientError("queues must be assigned before a consumer without subscriptions is started")
        for queue in queues:
            check_queue(queue)
        for topic in {queue.topic for queue in queues}:
            check_topic(topic)
            self._service.expressions[topic] = subscription_data(topic, expression, self._clock.wall_ms())
        self._wanted = tuple(queues)
        if self._started:
            await self._reassign(self._wanted)

    async def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """Returns the next messages, from one pull; the messages of the previous call then count as consumed.

        Args:
            timeout_ms: how long to wait for messages; None for ``poll_timeout_ms``.

        Returns:
            Messages of the same queue, in order; empty if none arrived in time.

        Raises:
            ClientError: the consumer is not started, or is shut down.
        """
        self._check_running()
        messages = await self._poll(timeout_ms)
        if self._trace is not None:
            self._trace.consumed(messages)
        return messages

    async def _poll(self, timeout_ms: int | None) -> list[MessageExt]:
        service = self._service
        service.settle()
        messages = service.take()
        if messages:
            return messages
        wait_ms = self._config.poll_timeout_ms if timeout_ms is None else timeout_ms
        check_number("timeout_ms", wait_ms, 0)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while not messages and not self._ended:
                    await service.arrival()
                    messages = service.take()
        except TimeoutError:
            pass
        return messages

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
        """Queue offset after the last polled message.

        Raises:
            ClientError: the queue is not assigned to this consumer.
        """
        return self._service.assigned(queue).position

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Excludes these queues from ``poll`` until ``resume``."""
        self._service.pause(queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Includes these queues in ``poll`` again."""
        self._service.resume(queues)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Stores offsets immediately. Offsets that a broker does not accept are logged, and sent again when offsets are
        stored the next time.

        Args:
            offsets: the next queue offset to consume, by queue; None for all polled messages.

        Raises:
            ClientError: a queue is not assigned to this consumer.
        """
        self._check_running()
        await self._member.offsets.persist(self._service.commit(offsets))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored consumer offset for ``queue``; None if there is none."""
        self._check_running()
        known = self._member.offsets.known(queue)
        stored = await self._member.offsets.load(queue)
        if known is not None:
            self._member.offsets.update(queue, known, increase_only=False)
        return stored

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """Queues of ``topic`` that can be read.

        Raises:
            ClientError: no broker has the topic.
        """
        self._check_running()
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
        return await self._member.api.search_offset(await self._master(queue), queue, timestamp_ms)

    async def _reassign(self, queues: tuple[MessageQueue, ...]) -> None:
        service = self._service
        await asyncio.gather(*(service.remove_queue(queue) for queue in list(service.queues) if queue not in queues))
        for queue in queues:
            if queue not in service.queues and not await service.add_queue(queue, True):
                raise ClientError(f"the consumer offset of {queue} is not available")

    async def _shutdown(self, consumed: bool) -> None:
        if not self._started or self._ended:
            return
        self._ended = True
        if consumed:
            self._service.settle()
        try:
            await self._member.rest()
            await self._service.stop()
        finally:
            self._service.note_progress()
            try:
                await self._member.leave(list(self._service.queues))
            finally:
                if self._trace is not None:
                    await self._trace.shutdown()

    async def _master(self, queue: MessageQueue) -> str:
        self._check_running()
        check_queue(queue)
        await self._member.instance.routes.route(queue.topic)
        return self._member.instance.routes.master(queue.broker_name)

    def _check_running(self) -> None:
        if not self._started or self._ended:
            raise ClientError("the lite pull consumer is not started, or is shut down")
