"""The pops of a simple consumer, one at a time per topic and broker, and popped messages not yet returned to a caller.

A pop that waits at a broker cannot be cancelled, because the messages that it returns are hidden from the rest of the
group. The pop therefore continues when its caller stops waiting. The popped messages go to the next caller, unless half
of their invisible time has passed. Everything runs on one event loop. Source: RocketMQ 5.3.3,
``DefaultMQPushConsumerImpl#popMessage``, ``PopMessageProcessor``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from rucola.client.consumer_config import SimpleConsumerConfig
from rucola.client.instance import ClientInstance
from rucola.client.pop_receipt import PopReceipt, give_receipts
from rucola.client.pop_requests import PopRequests
from rucola.client.received import PullOrigin, received_messages
from rucola.client.subscription import selected
from rucola.common.message import MessageExt
from rucola.errors import BrokerError, ClientError, RucolaError
from rucola.protocol.bodies.heartbeat import SubscriptionData
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.pop import PopMessageRequestHeader
from rucola.remoting.consumer_api import ConsumerApi
from rucola.runtime.clock import Clock

POP_MAX = 32
"""Largest number of messages that brokers allow per pop."""
_ALL_QUEUES = -1
_FROM_FIRST, _FROM_LAST = 0, 1
_MARGIN_MS = 5_000
"""How long after the broker's waiting time a response may arrive, in ms."""

Place = tuple[str, str]
"""Topic and broker name."""


class Popped(NamedTuple):
    """Messages of one pop.

    Attributes:
        invisible_ms: their invisible time.
        visible_at: the event loop's time at which it ends.
    """

    messages: list[MessageExt]
    invisible_ms: int
    visible_at: float

    def is_fresh(self, now: float) -> bool:
        """Whether less than half of the invisible time has passed."""
        return now < self.visible_at - self.invisible_ms / 2000


class PopService:
    """Pops messages for one group.

    Args:
        instance: the client.
        api: sends the requests.
        group: the consumer group.
        config: settings of the consumer.
        clock: gives the start time of each pop; brokers compare it with their own time and ignore old pops.

    Attributes:
        subscriptions: subscriptions by topic.
    """

    def __init__(
        self, instance: ClientInstance, api: ConsumerApi, group: str, config: SimpleConsumerConfig, clock: Clock
    ) -> None:
        self._instance, self._api, self._group = instance, api, group
        self._requests = PopRequests(instance, api, group)
        self._config, self._clock = config, clock
        self._behind_ms = clock.wall_ms() - int(clock.monotonic() * 1000)
        self._pops: dict[Place, asyncio.Task[Popped]] = {}
        self._left: deque[Popped] = deque()
        self._turn = 0
        self.subscriptions: dict[str, SubscriptionData] = {}

    async def receive(self, max_messages: int, invisible_ms: int, await_ms: int) -> Popped:
        """Returns messages of the subscribed topics; none if none arrived in time.

        Raises:
            BrokerError: a broker refuses.
            RemotingError: a broker cannot be reached or does not respond.
            ClientError: there is no subscription, a topic has no route, or a broker does not support POP.
        """
        popped = self._take_left(max_messages)
        if popped is not None:
            return popped
        places = await self._places()
        for place in places:
            if place not in self._pops:
                self._pops[place] = asyncio.ensure_future(self._pop(place, max_messages, invisible_ms, await_ms))
        await asyncio.wait([self._pops[place] for place in places], return_when=asyncio.FIRST_COMPLETED)
        failure: BaseException | None = None
        for place, pop in list(self._pops.items()):
            if pop.done():
                del self._pops[place]
                if pop.exception() is None:
                    self._left.append(pop.result())
                else:
                    failure = pop.exception()
        popped = self._take_left(max_messages)
        if popped is None and failure is not None:
            raise failure
        return popped or Popped([], invisible_ms, 0.0)

    async def stop(self) -> None:
        """Ends all pops; the brokers deliver the messages of unfinished pops to the group again."""
        pops = list(self._pops.values())
        self._pops.clear()
        for pop in pops:
            pop.cancel()
        await asyncio.gather(*pops, return_exceptions=True)

    def _take_left(self, max_messages: int) -> Popped | None:
        """Takes messages left over from one pop, if they are recent enough."""
        now = asyncio.get_running_loop().time()
        while self._left:
            popped = self._left.popleft()
            messages = popped.messages
            if messages and popped.is_fresh(now):
                if len(messages) > max_messages:
                    self._left.appendleft(popped._replace(messages=messages[max_messages:]))
                return popped._replace(messages=messages[:max_messages])
        return None

    async def _places(self) -> list[Place]:
        """The pairs of topic and broker to pop from; each call of this method starts with the next pair."""
        places: list[Place] = []
        missing: ClientError | None = None
        for topic in self.subscriptions:
            try:
                route = await self._instance.routes.route(topic)
            except ClientError as error:
                missing = error
                continue
            places += [(topic, name) for name in sorted({queue.broker_name for queue in route.subscribe_queues})]
        if not places:
            raise missing or ClientError("the simple consumer has no subscription")
        self._turn = (self._turn + 1) % len(places)
        return places[self._turn :] + places[: self._turn]

    async def _pop(self, place: Place, max_messages: int, invisible_ms: int, await_ms: int) -> Popped:
        loop = asyncio.get_running_loop()
        topic, broker_name = place
        subscription = self.subscriptions[topic]
        address = self._instance.routes.master(broker_name)
        header = PopMessageRequestHeader(
            self._group,
            topic,
            _ALL_QUEUES,
            max_messages,
            invisible_ms,
            await_ms,
            self._now_ms(),
            _FROM_FIRST if self._config.consume_from_first else _FROM_LAST,
            subscription.expression_type,
            subscription.sub_string,
        )
        try:
            found, records = await self._api.pop(address, header, await_ms + _MARGIN_MS)
            if found is None:
                raise ClientError(
                    f"broker {broker_name} ({address}) rejects new pops as too old: its clock is ahead of this "
                    f"client's time, which is {header.born_time} ms since the epoch"
                )
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ClientError(
                    f"broker {broker_name} ({address}) does not support POP, which a simple consumer needs: RocketMQ "
                    "5.0 and newer have it; use PushConsumer or LitePullConsumer with older brokers"
                ) from error
            raise
        except RucolaError:
            if self._instance.routes.refresh_wanted(topic):
                self._instance.keep(self._refresh(topic))
            raise
        messages = received_messages(records, PullOrigin(broker_name, 0, 0)) if records else []
        give_receipts(messages, topic, found)
        wanted = list(selected(messages, subscription))
        for message in messages:
            if message not in wanted:
                await self._requests.ack(
                    topic, PopReceipt.of(message)
                )  # the message has another tag with the same hash
        return Popped(wanted, invisible_ms, loop.time() + invisible_ms / 1000)

    def _now_ms(self) -> int:
        """The time that brokers compare with their clocks: the time at which this object was created, plus the time
        elapsed since then. Changes of the system clock in between have no effect.
        """
        return self._behind_ms + int(self._clock.monotonic() * 1000)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.routes.refresh(topic)
        except RucolaError:
            return  # the old route stays, and the next pop reports the error
