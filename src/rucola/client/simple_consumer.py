"""The simple consumer: the application acknowledges messages one by one; brokers redeliver unacknowledged messages.

A simple consumer pops messages (POP), so it owns no queues: any number of consumers can share any number of queues.
Source: RocketMQ 5.3.3, ``PopMessageProcessor`` and related classes; the names are those of the 5.x clients'
``SimpleConsumer``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from rucola.client.caller import Caller, caller
from rucola.client.checks import check_number, check_received, check_topics
from rucola.client.client_life import ClientLife
from rucola.client.consumer_config import SimpleConsumerConfig
from rucola.client.faces import Asynchronous
from rucola.client.instance import ClientInstance, ConsumerRegistration, check_group, check_topic
from rucola.client.leases import Leases
from rucola.client.message_iterator import MessageIterator
from rucola.client.message_selector import MessageSelector
from rucola.client.pop_deliveries import PopDeliveries
from rucola.client.pop_requests import PopRequests
from rucola.client.pop_service import POP_MAX, PopService
from rucola.client.pop_starts import store_starts
from rucola.client.producer import tracing
from rucola.client.received import pop_group
from rucola.client.subscription import subscription_data
from rucola.common.message import MessageExt
from rucola.common.options import checked_config
from rucola.errors import ClientError, RemotingError
from rucola.protocol.bodies.heartbeat import ConsumerData, ConsumeType
from rucola.remoting.consumer_api import ConsumerApi
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

INVISIBLE_MIN_MS, INVISIBLE_MAX_MS = 10_000, 43_200_000
"""Limits of RocketMQ's 5.x servers."""


class SimpleConsumer(Asynchronous):
    """Receives messages, which the application acknowledges one by one. Needs brokers of RocketMQ 5.0 or later, or
    Rucola.

    Life cycle: ``subscribe``, then ``async with consumer``, or ``start`` and ``shutdown``, on one event loop.

    A received message is hidden from the group for its invisible duration. Without an ``ack`` in that time, any
    consumer of the group may receive the message again; Rucola's broker does not limit the number of retries. With
    ``auto_renew``, the consumer extends the invisible duration until the message is acknowledged, the application no
    longer holds the message object, or ``renew_max_duration_ms`` have passed.

    ``async for message in consumer`` gives one message at a time. Unlike the loops of other consumers, it does not
    acknowledge: call ``ack``. Errors that may pass, such as a broker that restarts, are logged, and the loop goes on.

    Requests about one message are sent one after the other, so ``ack`` and ``change_invisible_duration`` may be called
    while the invisible duration is being extended. A cancelled call of them goes on in the background.

    In addition to the errors listed, ``receive``, ``ack`` and ``change_invisible_duration`` raise ``BrokerError`` if a
    broker refuses, and ``RemotingError`` if it cannot be reached or does not respond in time. The application may
    repeat the failed call.

    Args:
        group: consumer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        topics: topics to subscribe to, without a filter.
        clock: gives the time for the client id, the versions of subscriptions and the start times of pops.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: SimpleConsumerConfig | None = None,
        *,
        topics: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        self._group = group
        self._config = checked_config(config, SimpleConsumerConfig)
        self._clock = clock or SystemClock()
        self._instance = ClientInstance(namesrv, self._config, self._clock)
        self._api = api = ConsumerApi(self._instance.client)
        self._service = PopService(
            self._instance, api, group, self._config, self._clock, lambda: self._deliveries.has_bodies
        )
        for topic in check_topics(topics):
            self._service.subscribe(subscription_data(topic, "*", self._clock.wall_ms()))
        requests = PopRequests(self._instance, api, group)
        self._leases = Leases(requests, self._config.renew_max_duration_ms if self._config.auto_renew else None)
        self._deliveries = PopDeliveries(self._service, self._config, self._given)
        traced = self._config.enable_trace
        self._trace = tracing(group, "CONSUME", namesrv, self._config, self._clock) if traced else None
        self._life = ClientLife("simple consumer", self._instance.owner, self._start, self._close)
        self._deliveries.closed = self._life.closed
        self._patience_s = self._config.await_termination_ms / 1000
        self._changes = asyncio.Lock()
        """Changes of subscriptions happen in the order of their calls, also if a broker must check one."""

    async def __aenter__(self) -> SimpleConsumer:
        await self.start()
        return self

    def __aexit__(self, kind: type[BaseException] | None = None, *exc_info: object) -> Coroutine[Any, Any, None]:
        return self._leave(caller(), failed=kind is not None)

    def __aiter__(self) -> MessageIterator:
        return self.messages()

    def messages(self) -> MessageIterator:
        """The messages, for ``async for``. The loop gets one message at a time and does not acknowledge it."""
        return MessageIterator(self._running_deliveries)

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._instance.client_id

    async def start(self) -> None:
        """Starts the consumer; connections are opened when needed: now if a subscription has an SQL92 expression, or
        ``consume_from_first`` is off.

        Raises:
            ClientError: the consumer was shut down before.
            BrokerError: a broker refuses an SQL92 expression.
        """
        await self._life.start()

    async def _start(self) -> None:
        if not self._service.subscriptions:
            event(logger, logging.WARNING, "the consumer has no subscription", group=self._group)
        self._instance.start()
        registration = ConsumerRegistration(
            consumer_data=self._consumer_data, route_changed=lambda topic: self._service.wake()
        )
        self._instance.register_consumer(self._group, registration)
        if self._trace is not None:
            await self._trace.start()
        for subscription in list(self._service.subscriptions.values()):
            with suppress(RemotingError):  # the servers may come later
                await self._service.check(subscription)
        await self._store_starts(self._service.subscriptions)

    def shutdown(self) -> Coroutine[Any, Any, None]:
        """Waits for the bodies of loops and for requests that run, then unregisters and closes.

        Calls of ``receive`` that wait return no message. Messages that were fetched and not given to the application
        are given back to the group at once; the group gets other unacknowledged messages when their invisible time
        ends. ``ack`` works until the shutdown has waited for the bodies of loops, at most ``await_termination_ms``. In
        the body of a loop, the call returns at once; the loop ends after this body, when the consumer is closed. A
        further call waits for the end of the first one. If the call is cancelled, the shutdown goes on. At the end of
        ``async with consumer`` by an exception, nothing waits for bodies.
        """
        return self._shutdown(caller())

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``. After an error,
        the subscription is as before.

        Messages that are sent after the return are filtered by the new expression only. For this, the call waits until
        the brokers have answered requests with the expression before. Rucola's broker does so at once. RocketMQ's may
        take as long as ``receive`` waits for messages. A call that is cancelled in this wait has subscribed.

        Args:
            topic: name of the topic.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid.
            BrokerError: a broker refuses the SQL92 expression; before ``start``, the start raises the error.
            RemotingError: no server could be reached that checks the SQL92 expression.
        """
        check_topic(topic)
        self._life.check_loop()
        subscription = subscription_data(topic, expression, self._clock.wall_ms())
        async with self._changes:
            if self._instance.running:
                await self._service.check(subscription)
            self._service.subscribe(subscription)
        if self._instance.running:
            await self._store_starts([topic])
            await self._instance.heartbeat()
            await self._service.others_ended(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stops receiving from ``topic``. Messages that were fetched and not given to the application go back to the
        group. Messages that the application has may still be acknowledged.
        """
        self._life.check_loop()
        async with self._changes:
            self._service.unsubscribe(topic)
        if self._instance.running:
            await self._instance.heartbeat()

    async def receive(
        self,
        max_messages: int = POP_MAX,
        invisible_duration_ms: int | None = None,
        await_duration_ms: int | None = None,
    ) -> list[MessageExt]:
        """Returns the next messages from any subscribed topic. A cancellation loses no messages: what was fetched goes
        to the next caller, or back to the group after a second.

        Args:
            max_messages: largest number of messages, 1 to 32; fewer may be returned even if more are available.
            invisible_duration_ms: how long the messages are hidden from other consumers, 10 s to 12 h; None for the
                configured time.
            await_duration_ms: how long to wait for messages; None for the configured time. A broker that does not
                respond makes the call last up to 5 s longer.

        Returns:
            Messages of the same topic from the same broker; empty if none arrived in time, or at a shutdown.

        Raises:
            ClientError: the consumer is not started, it has no subscription, no topic has a route, or a broker is too
                old.
        """
        self._life.check_running()
        invisible_ms = self._config.invisible_duration_ms if invisible_duration_ms is None else invisible_duration_ms
        await_ms = self._config.await_duration_ms if await_duration_ms is None else await_duration_ms
        check_number("max_messages", max_messages, 1, POP_MAX)
        check_number("invisible_duration_ms", invisible_ms, INVISIBLE_MIN_MS, INVISIBLE_MAX_MS)
        check_number("await_duration_ms", await_ms, 0)
        popped = await self._service.receive(max_messages, invisible_ms, await_ms)
        if popped is None:
            return []
        self._given(popped.messages, popped.invisible_ms, popped.visible_at)
        return popped.messages

    async def ack(self, message: MessageExt) -> None:
        """Acknowledges ``message``, so that it is not delivered again.

        After an error, the message is as before: it may be acknowledged again, and ``auto_renew`` still covers it.

        Raises:
            ClientError: the message was not received by a simple consumer, or by one of another group.
        """
        self._check_open()
        self._check_popped("ack", message)
        await self._leases.ack(message)

    async def change_invisible_duration(self, message: MessageExt, invisible_duration_ms: int) -> None:
        """Sets the time, counted from now, after which ``message`` is delivered again unless it is acknowledged.

        After a success, ``auto_renew`` no longer covers the message; after an error, the message is as before.

        Args:
            message: a received message; its receipt handle changes.
            invisible_duration_ms: 10 s to 12 h.

        Raises:
            ClientError: the message was not received by a simple consumer, or by one of another group, or was
                acknowledged meanwhile.
        """
        self._check_open()
        self._check_popped("change_invisible_duration", message)
        check_number("invisible_duration_ms", invisible_duration_ms, INVISIBLE_MIN_MS, INVISIBLE_MAX_MS)
        await self._leases.hide(message, invisible_duration_ms)

    def _given(self, messages: list[MessageExt], invisible_ms: int, visible_at: float) -> None:
        if self._trace is not None:
            self._trace.consumed(messages)
        self._leases.give(messages, invisible_ms, visible_at)

    async def _leave(self, by: Caller, *, failed: bool) -> None:
        """Ends ``async with``: loops of this task whose iterator still exists were left."""
        self._deliveries.settle_loops(by)
        if failed:
            self._patience_s = 0.0  # for the bodies of other tasks' loops
        await self._shutdown(by)

    async def _shutdown(self, by: Caller) -> None:
        self._life.check_loop()
        inside = self._deliveries.has_body(by)
        self._deliveries.end()
        self._service.end()
        await self._life.close(inside)

    async def _close(self) -> None:
        self._deliveries.end()
        self._service.end()
        try:
            await self._deliveries.bodies(self._patience_s)
            await self._leases.stop()
            await self._service.stop()
            if self._trace is not None:
                await self._trace.shutdown()
        finally:
            await self._instance.shutdown()

    async def _store_starts(self, topics: Collection[str]) -> None:
        if not self._config.consume_from_first:
            await store_starts(self._instance, self._api, self._group, topics)

    def _consumer_data(self) -> ConsumerData:
        subscriptions = list(self._service.subscriptions.values())
        return ConsumerData(self._group, ConsumeType.CONSUME_POP, subscription_data_set=subscriptions)

    def _running_deliveries(self) -> PopDeliveries:
        self._life.check_running()
        return self._deliveries

    def _check_popped(self, call: str, message: MessageExt) -> None:
        """Checks that the message can have been received by this group. For another group, the broker would note the
        acknowledgement and say that all is well, and the message would come again.
        """
        check_received(call, message)
        group = pop_group(message)
        if group is not None and group != self._group:
            raise ClientError(
                f"message {message.msg_id} was received by group {group}: a consumer of group {self._group} cannot "
                "acknowledge or hide it"
            )

    def _check_open(self) -> None:
        """Checks that requests can be sent; while a shutdown waits for the bodies of loops, they can."""
        self._life.check_loop()
        if not self._life.has_started or self._leases.stopped:
            raise self._life.not_running()
