"""The simple consumer: the application acknowledges messages one by one; brokers redeliver unacknowledged messages.

A simple consumer pops messages (POP), so it owns no queues: any number of consumers can share any number of queues.
Source: RocketMQ 5.3.3, ``PopMessageProcessor`` and related classes; the names are those of the 5.x clients'
``SimpleConsumer``.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator

from rucola.client.checks import check_number
from rucola.client.consumer_config import SimpleConsumerConfig
from rucola.client.instance import ClientInstance, ConsumerRegistration, check_group, check_topic
from rucola.client.message_selector import MessageSelector
from rucola.client.pop_receipt import PopReceipt
from rucola.client.pop_service import POP_MAX, PopService
from rucola.client.producer import tracing
from rucola.client.subscription import subscription_data
from rucola.common import message_const
from rucola.common.message import MessageExt
from rucola.errors import ClientError, RucolaError
from rucola.protocol.bodies.heartbeat import ConsumerData, ConsumeType
from rucola.remoting.consumer_api import ConsumerApi
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

INVISIBLE_MIN_MS, INVISIBLE_MAX_MS = 10_000, 43_200_000
"""Limits of RocketMQ's 5.x servers."""


class SimpleConsumer:
    """Receives messages, which the application acknowledges one by one. Needs brokers of RocketMQ 5.0 or later, or
    Rucola.

    Life cycle: ``subscribe``, then ``async with consumer``, or ``start`` and ``shutdown``, on one event loop.

    A received message is hidden from the group for its invisible duration. Without an ``ack`` in that time, any
    consumer of the group may receive the message again; Rucola's broker does not limit the number of retries. With
    ``auto_renew``, the consumer extends the invisible duration until the message is acknowledged or
    ``renew_max_duration_ms`` have passed.

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
        self._unacknowledged: dict[tuple[str, str, int, int], _Renewal] = {}
        self._renewals: list[_Renewal] = []
        self._renewing: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
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
        if self._config.auto_renew:
            self._renewing = asyncio.ensure_future(self._renew())

    async def shutdown(self) -> None:
        """Unregisters and closes. Brokers deliver unacknowledged messages again."""
        if not self._instance.running:
            return
        self._ended = True
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        try:
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
        messages = await self._service.receive(max_messages, invisible_ms, await_ms)
        if self._trace is not None:
            self._trace.consumed(messages)
        if self._renewing is not None:
            for message in messages:
                self._keep_hidden(message, invisible_ms)
        return messages

    async def ack(self, message: MessageExt) -> None:
        """Acknowledges ``message``, so that it is not delivered again.

        Raises:
            ClientError: the message was not received by a simple consumer.
        """
        self._check_running()
        renewal = self._unacknowledged.pop(_key(message), None)
        if renewal is not None:
            renewal.done = True
        await self._service.ack(message)

    async def change_invisible_duration(self, message: MessageExt, invisible_duration_ms: int) -> None:
        """Sets the time, counted from now, after which ``message`` is delivered again unless it is acknowledged.

        Args:
            message: a received message; its receipt handle changes.
            invisible_duration_ms: 10 s to 12 h.

        Raises:
            ClientError: the message was not received by a simple consumer.
        """
        self._check_running()
        check_number("invisible_duration_ms", invisible_duration_ms, INVISIBLE_MIN_MS, INVISIBLE_MAX_MS)
        await self._hide(message, invisible_duration_ms)
        renewal = self._unacknowledged.pop(_key(message), None)
        if renewal is not None:
            renewal.done = True  # the application has set the time itself

    async def _hide(self, message: MessageExt, invisible_ms: int) -> None:
        receipt = await self._service.hide(message, invisible_ms)
        message.properties[message_const.POP_CK] = receipt.text

    def _keep_hidden(self, message: MessageExt, invisible_ms: int) -> None:
        now = asyncio.get_running_loop().time()
        until = now + self._config.renew_max_duration_ms / 1000
        renewal = _Renewal(now + invisible_ms / 2000, message, invisible_ms, until)
        self._unacknowledged[_key(message)] = renewal
        heapq.heappush(self._renewals, renewal)
        self._more.set()

    async def _renew(self) -> None:
        """Extends the invisible time of each message as soon as half of it has passed."""
        loop = asyncio.get_running_loop()
        while True:
            while self._renewals and (self._renewals[0].done or self._renewals[0].due <= loop.time()):
                renewal = heapq.heappop(self._renewals)
                if not renewal.done:
                    self._instance.keep(self._prolong(renewal))
            self._more.clear()
            due = self._renewals[0].due if self._renewals else None
            try:
                async with asyncio.timeout_at(due):
                    await self._more.wait()
            except TimeoutError:
                pass

    async def _prolong(self, renewal: _Renewal) -> None:
        message = renewal.message
        try:
            await self._hide(message, renewal.invisible_ms)
        except RucolaError as error:
            self._unacknowledged.pop(_key(message), None)
            event(logger, logging.WARNING, "invisible time not extended", id=message.msg_id, error=error)
            return
        renewal.due = asyncio.get_running_loop().time() + renewal.invisible_ms / 2000
        if not renewal.done and renewal.due < renewal.until:
            heapq.heappush(self._renewals, renewal)
            self._more.set()

    def _consumer_data(self) -> ConsumerData:
        subscriptions = list(self._service.subscriptions.values())
        return ConsumerData(self._group, ConsumeType.CONSUME_POP, subscription_data_set=subscriptions)

    def _check_running(self) -> None:
        if not self._instance.running:
            raise ClientError("the simple consumer is not started, or is shut down")


class _Renewal:
    """A received message whose invisible time is extended."""

    __slots__ = ("done", "due", "invisible_ms", "message", "until")

    def __init__(self, due: float, message: MessageExt, invisible_ms: int, until: float) -> None:
        self.due, self.message, self.invisible_ms, self.until = due, message, invisible_ms, until
        self.done = False

    def __lt__(self, other: _Renewal) -> bool:
        return self.due < other.due


def _key(message: MessageExt) -> tuple[str, str, int, int]:
    """A key that identifies a received message and does not change with its invisible time.

    Raises:
        ClientError: the message was not received by a simple consumer.
    """
    receipt = PopReceipt.of(message)
    return (f"{receipt.topic_kind} {message.topic}", receipt.broker_name, receipt.queue_id, receipt.queue_offset)
