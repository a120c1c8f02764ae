"""The simple consumer: the application acknowledges messages one by one; brokers redeliver unacknowledged messages.

A simple consumer pops messages (POP), so it owns no queues: any number of consumers can share any number of queues.
Source: RocketMQ 5.3.3, ``PopMessageProcessor`` and related classes; the names are those of the 5.x clients'
``SimpleConsumer``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from rucola.client.checks import check_number
from rucola.client.consumer_config import SimpleConsumerConfig
from rucola.client.instance import ClientInstance, ConsumerRegistration, check_group, check_topic
from rucola.client.leases import Leases
from rucola.client.message_selector import MessageSelector
from rucola.client.pop_requests import PopRequests
from rucola.client.pop_service import POP_MAX, PopService
from rucola.client.producer import tracing
from rucola.client.subscription import subscription_data
from rucola.common.message import MessageExt
from rucola.errors import ClientError
from rucola.protocol.bodies.heartbeat import ConsumerData, ConsumeType
from rucola.remoting.consumer_api import ConsumerApi
from rucola.runtime.clock import Clock, SystemClock

INVISIBLE_MIN_MS, INVISIBLE_MAX_MS = 10_000, 43_200_000
"""Limits of RocketMQ's 5.x servers."""


class SimpleConsumer:
    """Receives messages, which the application acknowledges one by one. Needs brokers of RocketMQ 5.0 or later, or
    Rucola.

    Life cycle: ``subscribe``, then ``async with consumer``, or ``start`` and ``shutdown``, on one event loop.

    A received message is hidden from the group for its invisible duration. Without an ``ack`` in that time, any
    consumer of the group may receive the message again; Rucola's broker does not limit the number of retries. With
    ``auto_renew``, the consumer extends the invisible duration until the message is acknowledged, the application no
    longer holds the message object, or ``renew_max_duration_ms`` have passed.

    Requests about one message are sent one after the other, so ``ack`` and ``change_invisible_duration`` may be called
    while the invisible duration is being extended. A cancelled call of them goes on in the background.

    In addition to the errors listed, ``receive``, ``ack`` and ``change_invisible_duration`` raise ``BrokerError`` if a
    broker refuses, and ``RemotingError`` if it cannot be reached or does not respond in time. The application may
    repeat the failed call.

    Args:
        group: consumer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        clock: gives the time for the client id, the versions of subscriptions and the start times of pops.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self, group: str, namesrv: str, config: SimpleConsumerConfig | None = None, *, clock: Clock | None = None
    ) -> None:
        check_group(group)
        self._group = group
        self._config = config or SimpleConsumerConfig()
        self._clock = clock or SystemClock()
        self._instance = ClientInstance(namesrv, self._config, self._clock)
        self._api = ConsumerApi(self._instance.client)
        self._service = PopService(self._instance, self._api, group, self._config, self._clock)
        requests = PopRequests(self._instance, self._api, group)
        self._leases = Leases(requests, self._config.renew_max_duration_ms if self._config.auto_renew else None)
        traced = self._config.enable_trace
        self._trace = tracing(group, "CONSUME", namesrv, self._config, self._clock) if traced else None
        self._ended = False

    async def __aenter__(self) -> SimpleConsumer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        while not self._ended:
            for message in await self.receive():
                yield message

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._instance.client_id

    async def start(self) -> None:
        """Starts the consumer; connections are opened when needed.

        Raises:
            ClientError: the consumer was shut down before.
        """
        if self._ended:
            raise ClientError("a simple consumer that was shut down cannot be started again; create a new one")
        if self._instance.running:
            return
        self._instance.start()
        self._instance.register_consumer(self._group, ConsumerRegistration(consumer_data=self._consumer_data))
        if self._trace is not None:
            await self._trace.start()

    async def shutdown(self) -> None:
        """Unregisters and closes. Brokers deliver unacknowledged messages again."""
        if not self._instance.running:
            return
        self._ended = True
        try:
            await self._leases.stop()
            await self._service.stop()
            if self._trace is not None:
                await self._trace.shutdown()
        finally:
            await self._instance.shutdown()

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``.

        Args:
            topic: name of the topic.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid.
        """
        check_topic(topic)
        self._service.subscriptions[topic] = subscription_data(topic, expression, self._clock.wall_ms())
        if self._instance.running:
            await self._instance.heartbeat()

    async def unsubscribe(self, topic: str) -> None:
        """Stops receiving from ``topic``."""
        self._service.subscriptions.pop(topic, None)
        if self._instance.running:
            await self._instance.heartbeat()

    async def receive(
        self,
        max_messages: int = POP_MAX,
        invisible_duration_ms: int | None = None,
        await_duration_ms: int | None = None,
    ) -> list[MessageExt]:
        """Returns the next messages from any subscribed topic. A cancellation loses no messages.

        Args:
            max_messages: largest number of messages, 1 to 32; fewer may be returned even if more are available.
            invisible_duration_ms: how long the messages are hidden from other consumers, 10 s to 12 h; None for the
                configured time.
            await_duration_ms: how long to wait for messages; None for the configured time.

        Returns:
            Messages of the same topic from the same broker; empty if none arrived in time.

        Raises:
            ClientError: the consumer is not started, it has no subscription, a topic has no route, or a broker is too
                old.
        """
        self._check_running()
        invisible_ms = self._config.invisible_duration_ms if invisible_duration_ms is None else invisible_duration_ms
        await_ms = self._config.await_duration_ms if await_duration_ms is None else await_duration_ms
        check_number("max_messages", max_messages, 1, POP_MAX)
        check_number("invisible_duration_ms", invisible_ms, INVISIBLE_MIN_MS, INVISIBLE_MAX_MS)
        check_number("await_duration_ms", await_ms, 0)
        popped = await self._service.receive(max_messages, invisible_ms, await_ms)
        if self._trace is not None:
            self._trace.consumed(popped.messages)
        self._leases.give(*popped)
        return popped.messages

    async def ack(self, message: MessageExt) -> None:
        """Acknowledges ``message``, so that it is not delivered again.

        After an error, the message is as before: it may be acknowledged again, and ``auto_renew`` still covers it.

        Raises:
            ClientError: the message was not received by a simple consumer.
        """
        self._check_running()
        await self._leases.ack(message)

    async def change_invisible_duration(self, message: MessageExt, invisible_duration_ms: int) -> None:
        """Sets the time, counted from now, after which ``message`` is delivered again unless it is acknowledged.

        After a success, ``auto_renew`` no longer covers the message; after an error, the message is as before.

        Args:
            message: a received message; its receipt handle changes.
            invisible_duration_ms: 10 s to 12 h.

        Raises:
            ClientError: the message was not received by a simple consumer, or was acknowledged meanwhile.
        """
        self._check_running()
        check_number("invisible_duration_ms", invisible_duration_ms, INVISIBLE_MIN_MS, INVISIBLE_MAX_MS)
        await self._leases.hide(message, invisible_duration_ms)

    def _consumer_data(self) -> ConsumerData:
        subscriptions = list(self._service.subscriptions.values())
        return ConsumerData(self._group, ConsumeType.CONSUME_POP, subscription_data_set=subscriptions)

    def _check_running(self) -> None:
        if not self._instance.running or self._ended:
            raise ClientError("the simple consumer is not started, or is shut down")
