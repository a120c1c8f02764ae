"""The push consumer: messages of its group come to a listener, or to ``async for``.

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

    Life cycle: ``subscribe``, ``register_message_listener``, then ``async with consumer``, or ``start`` and
    ``shutdown``, on one event loop. Without a listener, ``async for message in consumer`` gives the messages; one
    counts as consumed when the next is asked for.

    A message on which the listener fails comes again later, with longer and longer pauses, and becomes a dead letter
    after 16 times (``%DLQ%<group>``). With ``consume_orderly`` it comes again at once, before what is behind it.

    Args:
        group: consumer group; its consumers share the queues.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: how the queues are shared, the same for all consumers of the group; averagely unless given.
        clock: for client id, versions and the turns of threads.

    Raises:
        ClientError: the group cannot be one.
        ConfigError: a name server is not ``host:port``.
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
            self._iteration.settle_own()  # a loop that was left by break, and not by an error
        await self.shutdown()

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        return cast(AsyncIterator[MessageExt], MessageIterator(self._iteration))

    @property
    def client_id(self) -> str:
        """How brokers and the other consumers of the group know this one."""
        return self._member.instance.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        return sorted(self._service.queues) if self._service is not None else []

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Consume ``topic`` too, or with another expression; before or after ``start``.

        All consumers of a group must subscribe to the same.

        Args:
            topic: which topic; one that does not exist yet is waited for.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: it cannot be a topic, or the expression is none.
            BrokerError: the broker cannot filter like this.
            RemotingError: no name server answers.
        """
        self._member.subscribe(topic, expression)
        await self._member.announce(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Consume ``topic`` no longer."""
        self._member.subscriptions.pop(topic, None)
        await self._member.announce(topic)

    def register_message_listener(self, listener: MessageListener | BatchListener, *, batch: bool = False) -> None:
        """Name the function that gets the messages; before ``start``.

        Args:
            listener: a coroutine function, or a plain function, which runs in a thread. It succeeds when it returns
                nothing, or a status that says so. An exception, ``ReconsumeLater`` among them, is failure, and so is
                any other result.
            batch: whether it takes a list of up to ``consume_message_batch_max_size`` messages of one queue and a
                context (``ConsumeConcurrentlyContext``, ``ConsumeOrderlyContext``), not one message.

        Raises:
            ClientError: the consumer was started already.
        """
        if self._service is not None:
            raise ClientError("a listener must be registered before the consumer is started")
        self._listener = Listener(listener, batch)

    async def start(self) -> None:
        """Join the group and begin to consume.

        Raises:
            RemotingError: no name server answers.
            BrokerError: a broker cannot filter as an SQL92 subscription wants it.
            ClientError: the consumer was shut down before.
        """
        if self._ended:
            raise ClientError("a push consumer that was shut down cannot be started again; make another")
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
        """Pull no more, wait for running listeners, store the progress, and leave the group.

        Messages that no listener has yet are not begun; the group gets them again.
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
        """Pull no more until ``resume``; what was pulled is consumed."""
        self._running().suspend()

    def resume(self) -> None:
        """Pull again."""
        self._running().resume()

    async def send_message_back(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Have the broker deliver a copy of ``message`` to the group later; the message itself stays as it is.

        For ``async for`` loops, where a message is consumed in any case.

        Args:
            message: a message of this consumer.
            delay_level: when: 1 to 18, 0 for the broker to decide, -1 for a dead letter at once.

        Returns:
            Whether that succeeded; the log says why not.
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
