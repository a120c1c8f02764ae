"""The pops of a simple consumer, and who gets what they bring.

A pop that waits at a broker cannot be cancelled, and what it brings is hidden from the rest of the group. So a pop goes
on when its caller has left: the next call that asks for the same may wait for it, and messages that it brings meanwhile
go to the next caller or back to the group (``fetched_messages``). A call first asks one broker after the other for what
is there, so that it fetches no messages that nobody waits for; only then it waits at all of them. Everything runs on
one event loop. Source: RocketMQ 5.3.3, ``DefaultMQPushConsumerImpl#popMessage``, ``PopMessageProcessor``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Coroutine
from functools import partial

from rucola.client.consumer_config import SimpleConsumerConfig
from rucola.client.fetched_messages import FetchedMessages, Popped
from rucola.client.instance import ClientInstance
from rucola.client.message_selector import ExpressionType
from rucola.client.pop_call import LOOK_S, RENEWAL, STRAGGLERS_S, Place, PopCall, PopTerms, Source
from rucola.client.pop_receipt import PopReceipt, give_receipts
from rucola.client.pop_requests import PopRequests
from rucola.client.received import PullOrigin, ReceivedMessage
from rucola.client.subscription import selected
from rucola.common import message_const
from rucola.common.message import MessageExt
from rucola.errors import BrokerError, ClientError, RemotingError, RucolaError, TopicNotExistError
from rucola.protocol.bodies.heartbeat import SubscriptionData
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.pop import PopMessageRequestHeader, PopMessageResponseHeader
from rucola.remoting.consumer_api import ConsumerApi
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

POP_MAX = 32
"""Largest number of messages that brokers allow per pop."""
_ALL_QUEUES = -1
_FROM_FIRST, _FROM_LAST = 0, 1
_MARGIN_MS = 5_000
"""How long after the broker's waiting time a response may arrive, in ms."""
_GIVE_BACK_MS = 1_000
"""Invisible time of messages that are given back. Brokers make messages visible in steps of one second."""


class PopService:
    """Pops messages for one group.

    Args:
        instance: the client.
        api: sends the requests.
        group: the consumer group.
        config: settings of the consumer.
        clock: gives the start time of each pop; brokers compare it with their own time and ignore old pops.
        is_claimed: whether a loop will take the fetched messages one by one.

    Attributes:
        subscriptions: subscriptions by topic.
        was_subscribed: whether there was ever a subscription.
        fetched: messages that nobody has been given.
    """

    def __init__(
        self,
        instance: ClientInstance,
        api: ConsumerApi,
        group: str,
        config: SimpleConsumerConfig,
        clock: Clock,
        is_claimed: Callable[[], bool],
    ) -> None:
        self._instance, self._api, self._group = instance, api, group
        self._requests = PopRequests(instance, api, group)
        self._config, self._clock = config, clock
        self._behind_ms = self._distance_ms()
        self._calls: dict[PopCall, None] = {}
        self._sources: set[Source] = set()
        self._orphans: dict[PopTerms, list[Source]] = {}
        """Pops whose calls have left."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = itertools.count(1)
        self._ended = False
        self.fetched = FetchedMessages(self._give_back, is_claimed)
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.was_subscribed = False

    async def receive(self, max_messages: int, invisible_ms: int, await_ms: int) -> Popped | None:
        """Returns messages of a subscribed topic; None if none arrived in time, or the service has ended.

        Args:
            max_messages: the most messages to return.
            invisible_ms: how long they are hidden from the group, in ms.
            await_ms: how long to wait for them, in ms.

        Raises:
            BrokerError: a broker refuses.
            RemotingError: a broker cannot be reached or does not respond.
            ClientError: there is no subscription, no topic has a route, or a broker does not support POP.
        """
        deadline = asyncio.get_running_loop().time() + await_ms / 1000
        call = PopCall(max_messages, max_messages, invisible_ms, deadline)
        try:
            found = await self._find(call)
            return None if found is None else self.fetched.take(found, max_messages)
        finally:
            self._leave(call)

    async def arrival(self, max_messages: int, invisible_ms: int, await_ms: int) -> None:
        """Waits until ``fetched`` may have a message, or the time is over; arguments and errors as for ``receive``."""
        deadline = asyncio.get_running_loop().time() + await_ms / 1000
        call = PopCall(max_messages, 1, invisible_ms, deadline)
        try:
            await self._find(call)
        finally:
            self._leave(call)

    async def pause(self, seconds: float) -> None:
        """Waits until there are messages that anybody may take, at most ``seconds``."""
        until = asyncio.get_running_loop().time() + seconds
        call = PopCall(0, 0, 0, until)
        self._calls[call] = None
        try:
            if not self._ended and not self.fetched.has_free:
                await call.wait(until)
        finally:
            self._leave(call)

    def subscribe(self, subscription: SubscriptionData) -> None:
        """Adds or replaces the subscription of a topic."""
        self.subscriptions[subscription.topic] = subscription
        self.was_subscribed = True
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Removes the subscription of a topic, if there is one."""
        self.subscriptions.pop(topic, None)
        self._subscriptions_changed()

    def _subscriptions_changed(self) -> None:
        """Gives back what is no longer subscribed, and makes the waiting calls ask for what is."""
        self.fetched.give_back_others(self._is_wanted)
        for source in self._sources:
            call, key = source.owner, source.key
            if source.is_pop and call is not None and key.expression != self._expression(key.place[0]):
                del call.sources[key.place]
                source.owner = None
        self.wake()

    async def others_ended(self, topic: str) -> None:
        """Waits until the brokers have answered the pops of ``topic`` with other expressions than its subscription's.
        They would pass over messages, or take them, that the subscription wants.
        """
        while not self._ended:
            expression = self._expression(topic)
            sources = [one for one in self._sources if one.is_pop and one.key.place[0] == topic]
            others = [source.task for source in sources if source.key.expression != expression]
            if not others:
                return
            await asyncio.wait(others)

    async def check(self, subscription: SubscriptionData) -> None:
        """Lets the brokers check an SQL92 filter.

        Raises:
            BrokerError: a broker refuses it.
            RemotingError: no name server responds, or no broker has checked it.
        """
        routes, topic = self._instance.routes, subscription.topic
        if subscription.expression_type == ExpressionType.TAG:
            return
        try:
            route = await routes.route(topic)
        except TopicNotExistError:
            return  # ``receive`` reports it
        names = sorted({queue.broker_name for queue in route.subscribe_queues if routes.has_master(queue.broker_name)})
        client_id = self._instance.client_id
        checks = [self._api.check_client(routes.master(name), client_id, self._group, subscription) for name in names]
        results = await asyncio.gather(*checks, return_exceptions=True)
        errors = [error for error in results if error is not None]
        errors.sort(key=lambda error: isinstance(error, RemotingError))  # refusals first
        if errors and (len(errors) == len(names) or not isinstance(errors[0], RemotingError)):
            raise errors[0]

    def wake(self) -> None:
        """Makes the waiting calls look for new places."""
        for call in list(self._calls):
            call.wake()

    def end(self) -> None:
        """Ends all calls and pops, and gives back the messages that nobody was given. The brokers deliver the messages
        of unfinished pops to the group again.
        """
        self._ended = True
        self.wake()
        for source in self._sources:
            if source.is_pop:
                source.task.cancel()
        self.fetched.give_back_all()

    async def stop(self) -> None:
        """Waits for the requests that run, after ``end``."""
        await asyncio.gather(*(source.task for source in self._sources), return_exceptions=True)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _find(self, call: PopCall) -> Popped | None:
        """Waits for messages that a call may take; None if its time is over, or the service has ended."""
        turn = next(self._turns)
        self._calls[call] = None
        while not self._ended:
            found = self._fetched_for(call)
            if found is not None:
                return found
            until = self._ask(call, turn)
            if until is not None:
                await call.wait(until)
            elif call.failure is not None:
                raise call.failure
            else:
                break
        return None

    def _fetched_for(self, call: PopCall) -> Popped | None:
        """Fetched messages that a call may take. If none are hidden as it asks, begins to hide some so."""
        now = asyncio.get_running_loop().time()
        other: Popped | None = None
        for popped in self.fetched.available(call):
            if popped.is_as_wanted(call.invisible_ms, now):
                return popped
            other = other or popped
        if other is not None and RENEWAL not in call.sources:
            taken = self.fetched.take(other, call.take_max)
            self._start(call, call.key(RENEWAL), now, self._hide(taken, call.invisible_ms))
        return None

    def _ask(self, call: PopCall, turn: int) -> float | None:
        """Sends the requests that a call needs now. Returns the event loop's time until which to wait for answers; None
        if the call's time is over.

        Raises:
            RucolaError: no place can be asked, or a request failed and another try will not help.
        """
        now = asyncio.get_running_loop().time()
        if RENEWAL in call.sources:
            return math.inf
        places = self._places(turn)
        for error in call.failures.values():
            if is_final(error) or call.failures.keys() >= set(places):
                raise error
        unasked = []
        for place in places:
            topic, broker_name = place
            if call.may_ask(place, now):
                if not broker_name:
                    self._start(call, call.key(place), now, self._look_up(topic))
                elif not self._adopt(call, place):
                    unasked.append(place)
        new = [place for place in unasked if place not in call.looked]
        if new and (call.looked or len(unasked) > 1) and now < call.deadline + STRAGGLERS_S:
            if now >= call.look_until or not call.looked & call.sources.keys():
                call.looked.add(new[0])
                call.look_until = now + LOOK_S
                self._start_pop(call, new[0], 0)
            return call.look_until
        for place in unasked:
            self._start_pop(call, place, max(round((call.deadline - now) * 1000), 0))
        return call.wait_until(now)

    def _places(self, turn: int) -> list[Place]:
        """The places to pop from; the next turn begins at the next place.

        Raises:
            ClientError: there is no subscription.
        """
        places: list[Place] = []
        for topic in self.subscriptions:
            route = self._instance.routes.routes.get(topic)
            if route is None:
                places.append((topic, ""))
            else:
                places += [(topic, name) for name in sorted({queue.broker_name for queue in route.subscribe_queues})]
        if not self.subscriptions:
            raise ClientError("the simple consumer has no subscription")
        first = turn % len(places) if places else 0
        return places[first:] + places[:first]

    def _adopt(self, call: PopCall, place: Place) -> bool:
        """Makes a call wait for a pop whose own call has left; returns whether there is one."""
        key = call.key(place, self._expression(place[0]))
        orphans = self._orphans.get(key)
        if orphans is None:
            return False
        source = orphans.pop()
        if not orphans:
            del self._orphans[key]
        source.owner, call.sources[place] = call, source
        return True

    def _start_pop(self, call: PopCall, place: Place, poll_ms: int) -> None:
        key = call.key(place, self._expression(place[0]))
        ends_at = asyncio.get_running_loop().time() + poll_ms / 1000
        self._start(call, key, ends_at, self._pop(key, self.subscriptions[place[0]], poll_ms))

    def _start(
        self, call: PopCall, key: PopTerms, ends_at: float, request: Coroutine[None, None, Popped | None]
    ) -> None:
        task = asyncio.ensure_future(request)
        source = call.sources[key.place] = Source(key, ends_at, call, task)
        self._sources.add(source)
        task.add_done_callback(partial(self._source_ended, source))

    def _source_ended(self, source: Source, task: asyncio.Task[Popped | None]) -> None:
        """Passes on what a request has brought."""
        self._sources.discard(source)
        call, key = source.owner, source.key
        if call is not None:
            del call.sources[key.place]
        elif source in self._orphans.get(key, ()):
            self._orphans[key].remove(source)
            if not self._orphans[key]:
                del self._orphans[key]
        if task.cancelled():
            return
        now = asyncio.get_running_loop().time()
        error, popped = task.exception(), None
        if error is None:
            popped = task.result()
        elif call is None:
            event(logger, logging.DEBUG, "pop failed", group=self._group, topic=key.place[0], error=error)
        else:
            call.failed(key.place, error, now)
        if popped is not None and popped.messages:
            self._put(popped, call)
        elif call is not None and error is None:
            call.succeeded(source, now)
        if call is not None:
            call.wake()

    def _put(self, popped: Popped, call: PopCall | None) -> None:
        if self._ended or not self._is_wanted(popped.subscription):
            self._give_back(popped)
            return
        self.fetched.put(popped, call)
        if call is None:
            self._wake_next()

    def _leave(self, call: PopCall) -> None:
        """Ends a call: others may have what is on its way to it."""
        self._calls.pop(call, None)
        for source in call.sources.values():
            source.owner = None
            if source.is_pop:
                self._orphans.setdefault(source.key, []).append(source)
        self.fetched.disown(call)
        if self.fetched.has_free:
            self._wake_next()

    def _wake_next(self) -> None:
        """Wakes the call that has waited longest."""
        for call in self._calls:
            if call.is_waiting:
                call.wake()
                return

    def _expression(self, topic: str) -> str:
        """Type and expression of a topic's subscription; empty if there is none."""
        subscription = self.subscriptions.get(topic)
        return "" if subscription is None else f"{subscription.expression_type} {subscription.sub_string}"

    def _is_wanted(self, popped_with: SubscriptionData) -> bool:
        """Whether the topic's subscription still has the same expression."""
        subscription = self.subscriptions.get(popped_with.topic)
        return subscription is not None and (subscription.expression_type, subscription.sub_string) == (
            popped_with.expression_type,
            popped_with.sub_string,
        )

    async def _look_up(self, topic: str) -> None:
        """Fetches the route of a topic."""
        try:
            await self._instance.routes.route(topic)
        except ClientError as error:
            raise _passing(str(error)) from error

    async def _pop(self, key: PopTerms, subscription: SubscriptionData, poll_ms: int) -> Popped | None:
        topic, broker_name = key.place
        loop = asyncio.get_running_loop()
        try:
            address = self._instance.routes.master(broker_name)
            header, records = await self._send_pop(key, subscription, poll_ms, address)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ClientError(
                    f"broker {broker_name} ({address}) does not support POP, which a simple consumer needs: RocketMQ "
                    "5.0 and newer have it; use PushConsumer or LitePullConsumer with older brokers"
                ) from error
            self._refresh_soon(topic)
            raise
        except RucolaError:
            self._refresh_soon(topic)
            raise
        if not records:
            return None
        visible_at = loop.time() + key.invisible_ms / 1000
        messages = ReceivedMessage.of_records(records, PullOrigin(broker_name, 0, 0, self._group))
        give_receipts(messages, topic, header)
        wanted = list(selected(messages, subscription))
        if len(wanted) < len(messages):
            kept = set(map(id, wanted))
            self._keep(self._skip([message for message in messages if id(message) not in kept]))
        return Popped(subscription, wanted, key.invisible_ms, visible_at)

    async def _send_pop(
        self, key: PopTerms, subscription: SubscriptionData, poll_ms: int, address: str
    ) -> tuple[PopMessageResponseHeader, bytes]:
        header = PopMessageRequestHeader(
            self._group,
            key.place[0],
            _ALL_QUEUES,
            key.max_messages,
            key.invisible_ms,
            poll_ms,
            self._now_ms(),
            _FROM_FIRST if self._config.consume_from_first else _FROM_LAST,
            subscription.expression_type,
            subscription.sub_string,
        )
        found, records = await self._api.pop(address, header, poll_ms + _MARGIN_MS)
        if found is None and self._set_clock():
            header.born_time = self._now_ms()
            found, records = await self._api.pop(address, header, poll_ms + _MARGIN_MS)
        if found is None:
            raise _passing(
                f"broker {key.place[1]} ({address}) rejects new pops as too old: its clock is ahead of this "
                f"client's time, which is {header.born_time} ms since the epoch"
            )
        return found, records

    async def _skip(self, messages: list[MessageExt]) -> None:
        """Acknowledges messages that have another tag with the same hash as a subscribed one."""
        acks = [self._requests.ack(message.topic, PopReceipt.of(message)) for message in messages]
        for error in await asyncio.gather(*acks, return_exceptions=True):
            if error is not None:
                event(logger, logging.INFO, "message with another tag not acknowledged", error=error)

    async def _hide(self, popped: Popped, invisible_ms: int) -> Popped:
        """Sets the invisible time of fetched messages. Leaves out those for which this fails: the group gets them
        again.
        """
        began = asyncio.get_running_loop().time()
        messages = popped.messages
        hides = [self._requests.hide(message.topic, PopReceipt.of(message), invisible_ms) for message in messages]
        results = await asyncio.gather(*hides, return_exceptions=True)
        hidden = []
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, PopReceipt):
                message.properties[message_const.POP_CK] = result.text
                hidden.append(message)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            topic, count = popped.subscription.topic, len(errors)
            event(logger, logging.INFO, "invisible time not changed", topic=topic, count=count, error=errors[0])
        return Popped(popped.subscription, hidden, invisible_ms, began + invisible_ms / 1000)

    def _give_back(self, popped: Popped) -> None:
        """Cuts the invisible time of messages short."""
        if asyncio.get_running_loop().time() < popped.visible_at - _GIVE_BACK_MS / 1000:
            self._keep(self._hide_briefly(popped))

    async def _hide_briefly(self, popped: Popped) -> None:
        await self._hide(popped, _GIVE_BACK_MS)

    def _refresh_soon(self, topic: str) -> None:
        """Fetches the route of a topic whose broker failed, in the background."""
        if self._instance.routes.refresh_wanted(topic):
            self._keep(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.routes.refresh(topic)
        except RucolaError:
            return  # the old route stays, and the next pop reports the error

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        """Runs ``work`` in the background."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._kept)

    def _kept(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            event(logger, logging.ERROR, "request about a popped message failed", error)

    def _now_ms(self) -> int:
        """The time that brokers compare with their clocks: the time at which this object was created, plus the time
        elapsed since then. A clock that is set back meanwhile has no effect.
        """
        return self._behind_ms + int(self._clock.monotonic() * 1000)

    def _set_clock(self) -> bool:
        """Follows the system's clock forwards; returns whether this makes a difference. The clock was set forwards, or
        the elapsed time lacks the time during which the machine was suspended.
        """
        before_ms, self._behind_ms = self._behind_ms, max(self._behind_ms, self._distance_ms())
        return self._behind_ms > before_ms

    def _distance_ms(self) -> int:
        return self._clock.wall_ms() - int(self._clock.monotonic() * 1000)


def is_final(error: BaseException) -> bool:
    """Whether another try does not help, however long it waits: wrong use, a refused account, a broker without POP."""
    if isinstance(error, ClientError | BrokerError):
        return not error.retriable
    return not isinstance(error, RucolaError)


def _passing(text: str) -> ClientError:
    """An error that may pass without a change by the application."""
    error = ClientError(text)
    error.retriable = True
    return error
