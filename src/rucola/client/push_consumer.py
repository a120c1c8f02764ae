"""The push consumer: passes the messages of its group to a listener, or to ``async for`` loops.

Source: RocketMQ 5.3.3, ``DefaultMQPushConsumer``.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from rucola.client.allocate import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy
from rucola.client.caller import Caller, caller
from rucola.client.checks import check_topics
from rucola.client.client_life import ClientLife
from rucola.client.consume_by_iteration import ConsumeByIteration
from rucola.client.consume_concurrently import ConsumeConcurrently
from rucola.client.consume_orderly import ConsumeOrderly
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.consumer_requests import ConsumerRequests
from rucola.client.deliveries import Deliveries
from rucola.client.faces import Asynchronous
from rucola.client.group_member import GroupMember
from rucola.client.listener import BatchListener, Listener, MessageListener
from rucola.client.message_iterator import MessageIterator
from rucola.client.message_selector import MessageSelector
from rucola.client.process_queue import ProcessQueue
from rucola.client.producer import tracing
from rucola.client.pulling import Puller
from rucola.client.push_service import Consumption, PushService
from rucola.client.send_back import SendBack
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.options import checked_config
from rucola.errors import ClientError
from rucola.protocol.bodies.heartbeat import ConsumeType
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.client.trace import TraceDispatcher

logger = logging.getLogger(__name__)


class PushConsumer(Asynchronous):
    """Consumes the messages of a group's topics, each at least once.

    First call ``subscribe`` and ``register_message_listener``. Then use ``async with consumer``, or ``start`` and
    ``shutdown``, on one event loop. Without a listener, ``async for message in consumer`` yields the messages. A
    message counts as consumed when the loop asks for the next one or is left by ``break`` or ``return``; after an error
    or a cancellation it comes again, before later messages of its queue.

    If the listener fails, the message is delivered again later, with growing pauses; after 16 retries it becomes a dead
    letter (``%DLQ%<group>``). With BROADCASTING it is dropped instead. With ``consume_orderly`` it is retried before
    later messages, without limit. ``max_reconsume_times`` changes the number of retries.

    Args:
        group: consumer group; its consumers share the queues.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: divides the queues; must be the same for all consumers of the group. By default
            ``AllocateMessageQueueAveragely``.
        topics: topics to subscribe to, without a filter.
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
        topics: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._config = checked_config(config, PushConsumerConfig)
        self._namesrv = namesrv
        self._clock = clock or SystemClock()
        self._strategy = allocate_strategy or AllocateMessageQueueAveragely()
        self._member = GroupMember(group, namesrv, self._config, self._clock, ConsumeType.CONSUME_PASSIVELY)
        for topic in check_topics(topics):
            self._member.subscribe(topic, "*")
        self._send_back = SendBack(self._member, namesrv, self._config, self._clock)
        self._listener: Listener | None = None
        self._service: PushService | None = None
        self._deliveries: Deliveries | None = None
        self._trace: TraceDispatcher | None = None
        self._patience_s = self._config.await_termination_ms / 1000
        self._life = ClientLife("push consumer", self._member.instance.owner, self._start, self._close)

    async def __aenter__(self) -> PushConsumer:
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
        return MessageIterator(self._running_deliveries)

    @property
    def client_id(self) -> str:
        """The id by which brokers and the other consumers of the group know this consumer."""
        return self._member.instance.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer currently reads, sorted."""
        return sorted(self._service.queues) if self._service is not None else []

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``. When the call
        returns, the expression applies to all messages sent from now on; after an error, nothing has changed.

        All consumers of a group must have the same subscriptions.

        Args:
            topic: name of the topic; may be created later.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid.
            BrokerError: the broker cannot filter by this expression.
            RemotingError: no name server responds.
        """
        self._life.check_loop()
        await self._member.change_subscription(topic, expression, self._service)

    async def unsubscribe(self, topic: str) -> None:
        """Stops consuming ``topic``. When the call returns, no further message of the topic is passed on; results for
        messages that are still being processed are ignored.
        """
        self._life.check_loop()
        self._member.subscriptions.pop(topic, None)
        if self._service is not None:
            self._service.drop_topic(topic)
        await self._member.announce(topic)

    def register_message_listener(self, listener: MessageListener | BatchListener, *, batch: bool = False) -> None:
        """Registers the function that receives the messages. Must be called before ``start``.

        Args:
            listener: a coroutine function, or a plain function, which runs in a thread. The call lasts until an
                awaitable that it returns is done. The listener fails if it raises anything (for example
                ``ReconsumeLater``), or returns a status of failure or ``False``. Any other result means success; with
                ``batch``, only None and a status of success do.
            batch: whether the listener takes two arguments instead of one message: a list of messages of one queue, and
                a context (``ConsumeConcurrentlyContext``, ``ConsumeOrderlyContext``). The list has up to
                ``consume_message_batch_max_size`` messages.

        Raises:
            ClientError: the consumer has been started already, or ``listener`` is no function, does not take these
                arguments, or is a class or a generator function.
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
        await self._life.start()

    async def _start(self) -> None:
        config, member = self._config, self._member
        if not member.subscriptions:
            event(logger, logging.WARNING, "the consumer has no subscription", group=member.group)
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
            self._deliveries = consumption.deliveries
            self._deliveries.closed = self._life.closed
        ConsumerRequests(member, config, service, consumption).register()
        service.start()
        await member.start(service, self._strategy, service.note_progress, service.connected)

    def shutdown(self) -> Coroutine[Any, Any, None]:
        """Stops pulling, waits for running listeners and for the bodies of loops, stores the offsets, and leaves the
        group.

        The wait takes at most ``await_termination_ms``. Messages not yet passed to a listener or a loop are not
        consumed; the group receives them again. Loops end after their current body, whose message counts as consumed.
        In the body of a loop, the call returns at once; the loop ends after this body, when the consumer is closed. In
        a listener, too: the consumer closes when the listener has returned, and its message counts as consumed if it
        returns normally. A task that a concurrent coroutine listener has started counts as part of a listener, even if
        the listener has returned. A further call waits for the end of the first one. If the call is cancelled, the
        shutdown goes on.
        """
        return self._shutdown(caller())

    async def _leave(self, by: Caller, *, failed: bool) -> None:
        """Ends ``async with``. Loops of this task whose iterator still exists were left without an error, or with the
        error that ends the block.
        """
        self._life.check_loop()
        if self._deliveries is not None:
            self._deliveries.settle_loops(by, handled=not failed)
            if failed:
                self._patience_s = 0.0  # for the bodies of other tasks' loops
        await self._shutdown(by)

    async def _shutdown(self, by: Caller) -> None:
        self._life.check_loop()
        inside = False
        if self._deliveries is not None:
            inside = self._deliveries.has_body(by)
            self._deliveries.end()
        if self._service is not None:
            inside = inside or self._service.is_inside_call()
            self._service.take_no_more()
        await self._life.close(inside)

    async def _close(self) -> None:
        service = self._service
        try:
            await self._member.rest()
            if service is not None:
                await service.stop(self._patience_s)
        finally:
            try:
                queues = list(service.queues) if service is not None else []
                await self._member.leave(queues, service.unlock_all if service is not None else None)
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
            # This import is deferred, because few clients write traces.
            from rucola.client.consume_trace import traced_listener

            listener = traced_listener(listener, self._trace, self._member.group)
        if self._config.consume_orderly:
            return ConsumeOrderly(listener, self._config, self._send_back.dead_letter, self._note_orderly)
        return ConsumeConcurrently(listener, self._config, self._send_back.send_back, self._clock)

    def _note_orderly(self, process_queue: ProcessQueue, consumer_offset: int) -> None:
        if self._service is not None:
            self._service.note_orderly(process_queue, consumer_offset)

    def _running(self) -> PushService:
        self._life.check_running()
        if self._service is None:
            raise self._life.not_running()
        return self._service

    def _running_deliveries(self) -> Deliveries:
        self._life.check_loop()
        if self._deliveries is None or self._life.is_closing:
            raise ClientError("only a started push consumer without a listener can be iterated over")
        self._member.check_subscribed()
        return self._deliveries
