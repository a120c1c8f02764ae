"""The push consumer: passes the messages of its group to a listener, or to ``async for`` loops.

Source: RocketMQ 5.3.3, ``DefaultMQPushConsumer``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

from rucola.client.allocate import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy
from rucola.client.consume_by_iteration import ConsumeByIteration, MessageIterator
from rucola.client.consume_concurrently import ConsumeConcurrently
from rucola.client.consume_orderly import ConsumeOrderly
from rucola.client.consume_trace import traced_listener
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.consumer_requests import ConsumerRequests
from rucola.client.group_member import GroupMember
from rucola.client.listener import BatchListener, Listener, MessageListener
from rucola.client.message_selector import MessageSelector
from rucola.client.process_queue import ProcessQueue
from rucola.client.producer import tracing
from rucola.client.pulling import Puller
from rucola.client.push_service import Consumption, PushService
from rucola.client.send_back import SendBack
from rucola.client.trace import TraceDispatcher
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError
from rucola.protocol.bodies.heartbeat import ConsumeType
from rucola.runtime.clock import Clock, SystemClock


class PushConsumer:
    """Consumes the messages of a group's topics, each at least once.

    First call ``subscribe`` and ``register_message_listener``. Then use ``async with consumer``, or ``start`` and
    ``shutdown``, on one event loop. Without a listener, ``async for message in consumer`` yields the messages; a
    message counts as consumed when the next one is requested.

    If the listener fails, the message is delivered again later, with growing pauses; after 16 retries it becomes a dead
    letter (``%DLQ%<group>``). With BROADCASTING it is dropped instead. With ``consume_orderly`` it is retried before
    later messages, without limit. ``max_reconsume_times`` changes the number of retries.

    Args:
        group: consumer group; its consumers share the queues.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: divides the queues; must be the same for all consumers of the group. By default
            ``AllocateMessageQueueAveragely``.
        clock: source of the time; by default the clocks of the operating system.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: PushConsumerConfig | None = None,
        *,
        allocate_strategy: AllocateMessageQueueStrategy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config or PushConsumerConfig()
        self._namesrv = namesrv
        self._clock = clock or SystemClock()
        self._strategy = allocate_strategy or AllocateMessageQueueAveragely()
        self._member = GroupMember(group, namesrv, self._config, self._clock, ConsumeType.CONSUME_PASSIVELY)
        self._send_back = SendBack(self._member, namesrv, self._config, self._clock)
        self._listener: Listener | None = None
        self._service: PushService | None = None
        self._iteration: ConsumeByIteration | None = None
        self._trace: TraceDispatcher | None = None
        self._ended = False

    async def __aenter__(self) -> PushConsumer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._iteration is not None and exc_info[:1] in ((), (None,)):
            self._iteration.settle_own()  # this loop was left by break, not by an error
        await self.shutdown()

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        return cast(AsyncIterator[MessageExt], MessageIterator(self._iteration))

    @property
    def client_id(self) -> str:
        """The id by which brokers and the other consumers of the group know this consumer."""
        return self._member.instance.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer currently reads, sorted."""
        return sorted(self._service.queues) if self._service is not None else []

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``.

        All consumers of a group must have the same subscriptions.

        Args:
            topic: name of the topic; may be created later.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid.
            BrokerError: the broker cannot filter by this expression.
            RemotingError: no name server responds.
        """
        self._member.subscribe(topic, expression)
        await self._member.announce(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stops consuming ``topic``."""
        self._member.subscriptions.pop(topic, None)
        await self._member.announce(topic)

    def register_message_listener(self, listener: MessageListener | BatchListener, *, batch: bool = False) -> None:
        """Registers the function that receives the messages. Must be called before ``start``.

        Args:
            listener: a coroutine function, or a plain function, which runs in a thread. The listener succeeds if it
                returns None or a status of success. It fails if it raises (for example ``ReconsumeLater``) or returns
                anything else.
            batch: whether the listener takes two arguments instead of one message: a list of messages of one queue, and
                a context (``ConsumeConcurrentlyContext``, ``ConsumeOrderlyContext``). The list has up to
                ``consume_message_batch_max_size`` messages.

        Raises:
            ClientError: the consumer has been started already.
        """
        if self._service is not None:
            raise ClientError("a listener must be registered before the consumer is started")
        self._listener = Listener(listener, batch)

    async def start(self) -> None:
        """Joins the group and starts to consume.

        Raises:
            RemotingError: no name server responds.
            BrokerError: a broker cannot filter by an SQL92 subscription.
            ClientError: the consumer was shut down before.
        """
        if self._ended:
            raise ClientError("a push consumer that was shut down cannot be started again; create a new one")
        if self._service is not None:
            return
        config, member = self._config, self._member
        puller = Puller(
            member.instance,
            member.api,
            member.group,
            config.pull_batch_size,
            config.broker_suspend_max_time_ms,
            config.consumer_timeout_when_suspend_ms,
            post_subscription=config.post_subscription_when_pull,
        )
        if config.enable_trace:
            self._trace = tracing(member.group, "CONSUME", self._namesrv, config, self._clock)
        consumption = self._consumption()
        if self._trace is not None:
            await self._trace.start()
        service = self._service = PushService(member, config, puller, consumption)
        if isinstance(consumption, ConsumeByIteration):
            self._iteration = consumption
        ConsumerRequests(member, config, service, consumption).register()
        service.start()
        try:
            await member.start(service, self._strategy, service.note_progress, service.connected)
        except BaseException:
            await self.shutdown()
            raise

    async def shutdown(self) -> None:
        """Stops pulling, waits for running listeners, stores the offsets, and leaves the group.

        Messages not yet passed to a listener are not consumed; the group receives them again.
        """
        service = self._service
        if service is None or self._ended:
            return
        self._ended = True
        try:
            await self._member.rest()
            await service.stop()
        finally:
            try:
                await self._member.leave(list(service.queues), service.unlock_all)
            finally:
                await self._send_back.shutdown()
                if self._trace is not None:
                    await self._trace.shutdown()

    def suspend(self) -> None:
        """Stops pulling until ``resume``. Messages already pulled still go to the listener or an ``async for`` loop."""
        self._running().suspend()

    def resume(self) -> None:
        """Starts pulling again."""
        self._running().resume()

    async def send_message_back(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Asks the broker to deliver a copy of ``message`` to the group later; the message itself is not affected.

        Use this in ``async for`` loops, in which every message counts as consumed.

        Args:
            message: a message of this consumer.
            delay_level: 1 to 18, 0 for the broker's choice, -1 for an immediate dead letter.

        Returns:
            Whether the broker accepted the message; the log has the reason for a failure.
        """
        self._running()
        return await self._send_back.send_back(message, delay_level)

    def _consumption(self) -> Consumption:
        if self._listener is None:
            given = self._trace.consumed if self._trace is not None else None
            return ConsumeByIteration(self._config, self._note_orderly, given)
        listener = self._listener
        if self._trace is not None:
            listener = traced_listener(listener, self._trace, self._member.group)
        if self._config.consume_orderly:
            return ConsumeOrderly(listener, self._config, self._send_back.send_anew, self._note_orderly)
        return ConsumeConcurrently(listener, self._config, self._send_back.send_back, self._clock)

    def _note_orderly(self, queue: ProcessQueue, consumer_offset: int) -> None:
        if self._service is not None:
            self._service.note_orderly(queue, consumer_offset)

    def _running(self) -> PushService:
        if self._service is None or self._ended:
            raise ClientError("the push consumer is not started, or is shut down")
        return self._service
