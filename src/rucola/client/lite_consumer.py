"""The lite consumer: passes the messages of lite topics to a listener, or to ``async for`` loops.

Source: RocketMQ's client for Java 5.2.0, ``LitePushConsumer``; requests as RocketMQ's proxy 5.5.0 sends them. It needs
no proxy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rucola.client.application_call import FailedCall, awaited, called
from rucola.client.caller import Caller, caller
from rucola.client.checks import check_received
from rucola.client.client_life import ClientLife
from rucola.client.consume_lite import ConsumeLite
from rucola.client.consumer_config import LiteConsumerConfig
from rucola.client.deliveries import Deliveries
from rucola.client.faces import Asynchronous
from rucola.client.instance import ClientInstance, ConsumerRegistration, check_group, check_topic
from rucola.client.joined_groups import Membership
from rucola.client.listener import (
    ConsumeResultSuspend,
    EvictionListener,
    Listener,
    MessageListener,
    check_listener,
    is_coroutine_function,
)
from rucola.client.lite_dead_letters import LiteDeadLetters
from rucola.client.lite_leases import ClientLiteLeases
from rucola.client.lite_offset import LiteOffset
from rucola.client.lite_pops import LitePops
from rucola.client.lite_process_queue import LiteProcessQueue, LiteRoom
from rucola.client.lite_queues import LiteQueues
from rucola.client.lite_requests import LiteRequests
from rucola.client.lite_subscriptions import ClientLiteSubscriptions
from rucola.client.message_iterator import MessageIterator
from rucola.client.producer import tracing
from rucola.client.subscription import subscription_data
from rucola.common.lite_topics import check_lite_topic
from rucola.common.message import MessageExt
from rucola.common.options import checked_config
from rucola.errors import ClientError, RucolaError
from rucola.protocol.bodies.heartbeat import ConsumerData, ConsumeType
from rucola.protocol.codes import RequestCode
from rucola.remoting.consumer_api import ConsumerApi
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.client.trace import TraceDispatcher

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024


class LiteConsumer(Asynchronous):
    """Consumes the messages of lite topics of one parent topic, each at least once. Needs brokers of RocketMQ 5.5 or
    later, or Rucola.

    First call ``register_message_listener``. Then use ``async with consumer``, or ``start`` and
    ``shutdown``, on one event loop. Call ``subscribe_lite`` at any time. Without a listener,
    ``async for message in consumer`` yields the messages. A message counts as consumed when the loop asks for the next
    one or is left by ``break`` or ``return``; after an error or a cancellation it comes again.

    The messages of one lite topic are consumed in order, one after the other; those of different lite topics at the
    same time. If the listener fails, the message is consumed again after a pause, before later messages of its lite
    topic; after 16 retries it becomes a dead letter (``%DLQ%<group>``), which keeps its lite topic.

    A message that comes again has the same ``lite_offset``. A consumer of a wildcard group receives all lite topics of
    the parent, and subscribes to none.

    Args:
        group: consumer group, bound to the parent by its attribute ``lite.bind.topic``.
        namesrv: name servers, ``host:port`` separated by ``;``.
        topic: the parent topic, of type LITE.
        config: settings.
        lite_topics: lite topics to which ``start`` subscribes.
        clock: source of the time; by default the clocks of the operating system.

    Raises:
        ClientError: a name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        topic: str,
        config: LiteConsumerConfig | None = None,
        *,
        lite_topics: Collection[str] = (),
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        check_topic(topic)
        self._group, self._topic, self._namesrv = group, topic, namesrv
        self._config = config = checked_config(config, LiteConsumerConfig)
        self._clock = clock or SystemClock()
        self._first: dict[str, LiteOffset | None] = dict.fromkeys(_names(lite_topics))
        self._instance = ClientInstance(namesrv, config, self._clock)
        requests = LiteRequests(self._instance, ConsumerApi(self._instance.client), group, topic)
        room = LiteRoom(config.pull_threshold_for_all, config.pull_threshold_size_for_all * _MIB)
        self._subscriptions = ClientLiteSubscriptions(
            self._instance, requests, config.lite_subscription_quota, self._left, self._evicted
        )
        self._queues = LiteQueues(topic, room, self._subscriptions.is_left, self._offer)
        self._leases = ClientLiteLeases(
            requests, config.invisible_duration_ms, config.renew_max_duration_ms, self._is_claimed, self._queues.forget
        )
        self._queues.settle_by(self._leases)
        self._pops = LitePops(
            self._instance, requests, config, room, self._queues.put, lambda: self._subscriptions.brokers
        )
        self._dead_letters = LiteDeadLetters(group, namesrv, config, self._clock)
        self._listener: Listener | None = None
        self._eviction_listener: EvictionListener | None = None
        self._consumption: ConsumeLite | None = None
        self._deliveries: Deliveries | None = None
        self._trace: TraceDispatcher | None = None
        self._membership: Membership | None = None
        self._patience_s = config.await_termination_ms / 1000
        self._life = ClientLife("lite consumer", self._instance.owner, self._start, self._close)

    async def __aenter__(self) -> LiteConsumer:
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
        """The id by which brokers know this consumer and its lite topics."""
        return self._instance.client_id

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics to which the consumer has subscribed."""
        return self._subscriptions.names

    async def subscribe_lite(self, lite_topic: str | Collection[str], start: LiteOffset | None = None) -> None:
        """Subscribes to a lite topic, or to several by one request. When the call returns, all brokers know it; after
        an error, nothing has changed.

        A lite topic that nobody has sent to yet may be subscribed. To a lite topic that the consumer has, ``start``
        makes the group go to another place. A call that is cancelled goes on in the background.

        Args:
            lite_topic: a name, or several.
            start: where the group continues to read. None: where it stopped; a group that has never read the lite topic
                begins at its first message.

        Raises:
            LiteQuotaError: the consumer, or a broker, may not have more lite topics.
            ClientError: a name is invalid, or the consumer was shut down.
            BrokerError: a broker refuses, for example because the group is a wildcard group.
            RemotingError: a broker cannot be reached, or does not respond in time.
        """
        names = _names(lite_topic)
        if start is not None and not isinstance(start, LiteOffset):
            raise ClientError(f"start must be a LiteOffset, not {start!r}")
        self._life.check_loop()
        if self._life.has_started:
            self._life.check_running()
            await self._subscriptions.add(names, start)
        else:
            self._first.update(dict.fromkeys(names, start))

    async def unsubscribe_lite(self, lite_topic: str | Collection[str]) -> None:
        """Leaves a lite topic, or several; does nothing if the consumer has not subscribed to it. When the call
        returns, no further message of it is passed on. Messages that were popped go back to the group; a message that
        is being processed may still be acknowledged. A broker that does not respond learns of it within 30 s.

        Raises:
            ClientError: a name is invalid, or the consumer was shut down.
        """
        names = _names(lite_topic)
        self._life.check_loop()
        if self._life.has_started:
            self._life.check_running()
            await self._subscriptions.remove(names)
        else:
            for name in names:
                self._first.pop(name, None)

    def register_message_listener(self, listener: MessageListener) -> None:
        """Registers the function that receives the messages. Must be called before ``start``.

        Args:
            listener: a coroutine function, or a plain function, which runs in a thread. The call lasts until an
                awaitable that it returns is done. The listener fails if it raises anything (for example
                ``ReconsumeLater``), or returns a status of failure or ``False``. ``ConsumeResultSuspend`` lets the
                message come again after a time, without costing an attempt. Any other result means success.

        Raises:
            ClientError: the consumer has been started already, or ``listener`` is no function, does not take one
                message, or is a class or a generator function.
        """
        if self._life.has_started:
            raise ClientError("a listener must be registered before the consumer is started")
        self._listener = Listener(listener, batch=False)

    def register_eviction_listener(self, listener: EvictionListener) -> None:
        """Registers the function that is told when another client of an exclusive group has taken over a lite topic.
        The consumer has then left the lite topic already.

        Args:
            listener: takes the name of the lite topic; a coroutine function, or a plain function, which runs in a
                thread.

        Raises:
            ClientError: ``listener`` is no function, or does not take one argument.
        """
        check_listener(listener)
        self._eviction_listener = listener

    async def suspend_lite(self, message: MessageExt, duration: timedelta) -> None:
        """Makes ``message``, and those behind it in its lite topic, come again after a time, without costing an
        attempt. How the body of the loop, or the listener, that has the message ends, does not matter then.

        Args:
            message: a message that a loop or the listener has now.
            duration: 50 ms to 12 h.

        Raises:
            ClientError: the consumer does not hold the message.
            BrokerError, RemotingError: the request failed: the message comes again later.
        """
        self._life.check_running()
        check_received("suspend_lite", message)
        milliseconds = ConsumeResultSuspend(duration).milliseconds
        queue = self._queues.of(message)
        if queue is None:
            raise ClientError(f"message {message.msg_id} is not held by this consumer")
        await self._suspend(queue, message, milliseconds)

    async def start(self) -> None:
        """Joins the group, subscribes to the given lite topics, and starts to consume.

        Raises:
            RemotingError: no name server responds, or a broker does not when it is asked to subscribe.
            BrokerError: a broker refuses, for example because the group is not bound to the parent.
            ClientError: there is no such topic, a broker has no lite topics, a consumer of this process has joined the
                group with the same client id, or the consumer was shut down before.
        """
        await self._life.start()

    async def _start(self) -> None:
        instance, config = self._instance, self._config
        self._membership = Membership(instance.name_servers.addresses, instance.client_id, self._group)
        if config.enable_trace:
            self._trace = tracing(self._group, "CONSUME", self._namesrv, config, self._clock)
            await self._trace.start()
        self._start_consumption()
        instance.start()
        instance.client.register_processor(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, self._subscriptions.notified)
        registration = ConsumerRegistration(
            consumer_data=self._consumer_data,
            route_changed=self._route_changed,
            connected=self._subscriptions.connected,
        )
        instance.register_consumer(self._group, registration)
        await instance.routes.route(self._topic)
        refusals = await instance.heartbeat()
        if refusals:
            raise refusals[0]
        await self._subscriptions.open()
        await self._pops.check()
        starts: dict[LiteOffset | None, list[str]] = {}
        for name, start in self._first.items():
            starts.setdefault(start, []).append(name)
        for start, names in starts.items():
            await self._subscriptions.add(names, start)
        self._pops.start()

    def _start_consumption(self) -> None:
        if self._listener is None:
            given = self._trace.consumed if self._trace is not None else None
            self._deliveries = Deliveries(None, given)
            self._deliveries.closed = self._life.closed
            return
        listener = self._listener
        if self._trace is not None:
            # This import is deferred, because few clients write traces.
            from rucola.client.consume_trace import traced_listener

            listener = traced_listener(listener, self._trace, self._group)
        self._consumption = ConsumeLite(listener, self._config, self._dead_letters.send, self._try_to_suspend)
        self._consumption.start()

    def shutdown(self) -> Coroutine[Any, Any, None]:
        """Leaves all lite topics, waits for running listeners and for the bodies of loops, acknowledges what they have
        handled, and closes.

        Messages that were popped and not passed on go back to the group at once. The wait takes at most
        ``await_termination_ms``. In the body of a loop, the call returns at once; the loop ends after this body, when
        the consumer is closed. In a listener, too: the consumer closes when the listener has returned. A further call
        waits for the end of the first one. If the call is cancelled, the shutdown goes on.

        If an error ends ``async with``, listeners that are coroutine functions are cancelled, and their messages go
        back to the group. A plain function is waited for, because nobody can stop its thread.
        """
        return self._shutdown(caller())

    async def _leave(self, by: Caller, *, failed: bool) -> None:
        """Ends ``async with``. Loops of this task whose iterator still exists were left without an error, or with the
        error that ends the block.
        """
        self._life.check_loop()
        if self._deliveries is not None:
            self._deliveries.settle_loops(by, handled=not failed)
        if failed and (self._listener is None or self._listener.on_loop):
            self._patience_s = 0.0  # for what other tasks do; the thread of a plain listener cannot be stopped
        await self._shutdown(by)

    async def _shutdown(self, by: Caller) -> None:
        self._life.check_loop()
        inside = False
        self._pops.end()
        if self._deliveries is not None:
            inside = self._deliveries.has_body(by)
            self._deliveries.end()
        if self._consumption is not None:
            inside = inside or self._consumption.is_inside_call()
            self._consumption.take_no_more()
        await self._life.close(inside)

    async def _close(self) -> None:
        self._pops.end()
        try:
            if self._deliveries is not None:
                self._deliveries.end()
            await self._subscriptions.close()
            self._queues.leave_all()
            if self._consumption is not None:
                await self._consumption.stop(self._patience_s)
            if self._deliveries is not None:
                await self._deliveries.bodies(self._patience_s)
            await self._pops.stop()
            await self._leases.stop()
        finally:
            try:
                await self._instance.shutdown()
            finally:
                await self._dead_letters.shutdown()
                if self._trace is not None:
                    await self._trace.shutdown()
                if self._membership is not None:
                    self._membership.end()

    def _consumer_data(self) -> ConsumerData:
        subscription = subscription_data(self._topic, "*", 0)
        return ConsumerData(self._group, ConsumeType.CONSUME_POP, subscription_data_set=[subscription])

    def _route_changed(self, topic: str) -> None:
        if topic == self._topic:
            self._subscriptions.route_changed()
            self._pops.route_changed()

    def _offer(self, queue: LiteProcessQueue) -> None:
        if self._consumption is not None:
            self._consumption.offer(queue)
        elif self._deliveries is not None:
            self._deliveries.offer(queue, 1)

    def _is_claimed(self) -> bool:
        return self._deliveries is None or self._deliveries.has_loops

    async def _suspend(self, queue: LiteProcessQueue, message: MessageExt, milliseconds: int) -> None:
        offset = queue.offset_of(message)
        self._queues.forget(queue)
        await self._leases.suspend(queue, offset, milliseconds)

    async def _try_to_suspend(self, queue: LiteProcessQueue, message: MessageExt, milliseconds: int) -> None:
        try:
            await self._suspend(queue, message, milliseconds)
        except RucolaError as error:
            event(logger, logging.WARNING, "lite topic not suspended", lite_topic=queue.lite_topic, error=error)

    def _left(self, lite_topic: str) -> None:
        self._queues.leave(lite_topic)

    def _evicted(self, lite_topic: str) -> None:
        if self._eviction_listener is not None:
            self._instance.keep(self._tell(self._eviction_listener, lite_topic))

    async def _tell(self, listener: EvictionListener, lite_topic: str) -> None:
        outcome: object
        if is_coroutine_function(listener):
            outcome = await awaited(listener, lite_topic)
        else:
            outcome = await asyncio.to_thread(called, listener, lite_topic)
        if type(outcome) is FailedCall:
            event(logger, logging.ERROR, "eviction listener failed", outcome.error, lite_topic=lite_topic)

    def _running_deliveries(self) -> Deliveries:
        self._life.check_loop()
        if self._deliveries is None or self._life.is_closing:
            raise ClientError("only a started lite consumer without a listener can be iterated over")
        return self._deliveries


def _names(lite_topics: str | Collection[str]) -> list[str]:
    if isinstance(lite_topics, str):
        return [check_lite_topic(lite_topics)]
    if not isinstance(lite_topics, Collection):
        raise ClientError(f"lite_topic must be a name or several names, not {lite_topics!r}")
    return list(dict.fromkeys(map(check_lite_topic, lite_topics)))
