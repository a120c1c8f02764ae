"""A consumer as a member of its group: subscriptions, heartbeats, start offsets and the consumer offsets.

Used by push and lite pull consumers. A ``GroupMember`` may be used on only one event loop.

Source: RocketMQ 5.3.3, ``DefaultMQPushConsumerImpl``, ``RebalancePushImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime

from rucola.client.allocate import AllocateMessageQueueStrategy
from rucola.client.client_tasks import ClientTasks
from rucola.client.consumer_config import START_LIMIT_S, GroupConsumerConfig
from rucola.client.instance import ClientInstance, ConsumerRegistration, check_group, check_topic
from rucola.client.joined_groups import Membership
from rucola.client.local_offset_store import LocalFileOffsetStore
from rucola.client.message_selector import ExpressionType, MessageSelector
from rucola.client.offset_store import BroadcastOffsetStore, OffsetStore, RemoteBrokerOffsetStore
from rucola.client.rebalance import QueueOwner, Rebalance
from rucola.client.subscription import has_same_filter, subscription_data
from rucola.common.key_builder import is_retry_topic, retry_topic
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ClientError, RucolaError, TopicNotExistError
from rucola.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from rucola.remoting.consumer_api import ConsumerApi
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

FIRST_PULL_DELAY_S = 0.5
"""Pause before a new queue is read, in seconds. In this time the queue's previous consumer can send its consumer offset
to the broker; a consumer that is alone in its group does not wait.
"""
CLOCKS_DIFFER_MS = 10_000
"""By how much the clock of a broker may be behind this machine's clock without a late queue losing messages, in ms."""
_HALF_AN_HOUR_MS = 30 * 60 * 1000


class GroupMember:
    """One consumer of a group.

    Args:
        group: name of the group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings of the consumer.
        clock: clock of the consumer.
        consume_type: type of the consumer in heartbeats.

    Attributes:
        subscriptions: subscriptions by topic.
        was_subscribed: whether the application has ever subscribed to a topic.
        started_ms: time at which ``start`` was called, in milliseconds since the epoch.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self, group: str, namesrv: str, config: GroupConsumerConfig, clock: Clock, consume_type: ConsumeType
    ) -> None:
        check_group(group)
        self.group = group
        self.config = config
        self._clock = clock
        self._consume_type = consume_type
        broadcasting = config.message_model is MessageModel.BROADCASTING
        self.instance = ClientInstance(namesrv, config, clock, keeps_client_id=broadcasting)
        self.api = ConsumerApi(self.instance.client)
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.was_subscribed = False
        self.offsets: OffsetStore
        if broadcasting:
            file = LocalFileOffsetStore(Files(), config.local_offset_store_dir, self.instance.client_id, group)
            self.offsets = BroadcastOffsetStore(file)
        else:
            self.offsets = RemoteBrokerOffsetStore(self.api, self.instance.routes, group)
        self._begin_ms = self._consume_timestamp_ms()
        self._background = ClientTasks(group)
        self._rebalance: Rebalance | None = None
        self._membership: Membership | None = None
        self._unknown_starts: set[MessageQueue] = set()
        self._known_starts: set[MessageQueue] = set()
        self._promised_ms: dict[str, int] = {}
        """Topics whose messages must not be skipped any more, because a call has returned that says so. The value is
        the time at which the call began, in milliseconds since the epoch.
        """
        self.started_ms = 0

    async def start(
        self,
        owner: QueueOwner,
        strategy: AllocateMessageQueueStrategy | None,
        note_progress: Callable[[], None],
        connected: Callable[[str], None] = lambda address: None,
    ) -> None:
        """Joins the group. Returns when it is known where each queue starts, so that a new group skips no message that
        is sent from now on. A queue that is found only later, because its topic did not exist or its broker was
        down for ``START_LIMIT_S``, starts with the first message stored since ``CLOCKS_DIFFER_MS`` before
        the call, by the broker's clock.

        Args:
            owner: reads the queues.
            strategy: divides the queues; None if the owner chooses its queues itself and does not join the group.
            note_progress: writes the consumer offsets of all queues into ``offsets``.
            connected: called with the address of every broker to which a connection was opened.

        Raises:
            RemotingError: no name server responds.
            BrokerError: a broker refuses the account, or cannot filter by an SQL92 subscription.
            ClientError: a consumer of this process has joined the group with the same client id.
            FormatError, DiskError: the offset file of a broadcasting consumer cannot be read.
        """
        config, instance = self.config, self.instance
        self.started_ms = self._clock.wall_ms()
        if strategy is not None:
            self._membership = Membership(instance.name_servers.addresses, instance.client_id, self.group)
        await self.offsets.check()
        instance.start()
        interval_s = config.auto_commit_interval_ms / 1000
        self._background.periodic(
            "storage of consumer offsets", lambda: self._persist(owner, note_progress), interval_s
        )
        if strategy is None:
            return
        if config.message_model is MessageModel.CLUSTERING and self._consume_type is ConsumeType.CONSUME_PASSIVELY:
            topic = retry_topic(self.group)
            self.subscriptions[topic] = subscription_data(topic, "*", self._clock.wall_ms())
        rebalance = Rebalance(instance, self.group, config.message_model, strategy, owner, config.rebalance_interval_ms)
        self._rebalance = rebalance
        registration = ConsumerRegistration(
            consumer_data=self._consumer_data,
            group_changed=lambda: self._group_changed(owner, note_progress),
            route_changed=lambda topic: rebalance.soon() if topic in self.subscriptions else None,
            connected=connected,
        )
        instance.register_consumer(self.group, registration)
        for topic in list(self.subscriptions):
            await self._find(topic)
        refusals = await instance.heartbeat()
        if refusals:
            raise refusals[0]
        self._background.forever("rebalance", rebalance.run)
        await self._find_starts(rebalance, list(self.subscriptions), self.started_ms)

    def subscribe(self, topic: str, expression: str | MessageSelector) -> SubscriptionData:
        """Adds ``topic`` to the subscriptions, or replaces its expression, without a word to the brokers.

        Raises:
            ClientError: the topic or the expression is invalid.
        """
        check_topic(topic)
        mine = self.subscriptions[topic] = subscription_data(topic, expression, self._clock.wall_ms())
        self.was_subscribed = True
        return mine

    async def change_subscription(
        self, topic: str, expression: str | MessageSelector, owner: QueueOwner | None
    ) -> None:
        """Subscribes to ``topic``, or changes its expression, and tells the brokers. After an error, the subscription
        is as before.

        Args:
            topic: name of the topic.
            expression: the filter.
            owner: reads the queues; None before the start.

        Raises:
            ClientError: the topic or the expression is invalid.
            RemotingError, BrokerError: see ``announce``.
        """
        before = self.subscriptions.get(topic)
        mine = self.subscribe(topic, expression)
        try:
            await self.announce(topic)
        except RucolaError:
            if self.subscriptions.get(topic) is mine:
                self._restore(topic, before, mine.sub_version, owner)
            raise
        if owner is not None and before is not None and not has_same_filter(before, mine):
            owner.pull_anew(topic)

    def _restore(self, topic: str, before: SubscriptionData | None, version: int, owner: QueueOwner | None) -> None:
        if before is None:
            del self.subscriptions[topic]
            if owner is not None:
                owner.drop_topic(topic)
        else:
            before.sub_version = version + 1  # brokers that know the refused one already take only a later one
            self.subscriptions[topic] = before
            if owner is not None:
                owner.pull_anew(topic)
        self.instance.heartbeat_soon()
        self.rebalance_soon()

    def check_subscribed(self) -> None:
        """Raises ``ClientError`` if there was never a subscription."""
        if not self.was_subscribed:
            raise ClientError(
                f"the consumer of group {self.group} has no subscription: pass topics=[...] when you create it, or "
                "await subscribe(topic)"
            )

    async def announce(self, topic: str) -> None:
        """Tells the brokers about a changed subscription, and divides the queues again. Returns when it is known where
        each queue starts; see ``start``.

        Raises:
            RemotingError: no name server responds.
            BrokerError: a broker cannot filter by an SQL92 subscription.
        """
        if self._rebalance is None:
            return
        began_ms = self._clock.wall_ms()
        if topic in self.subscriptions:
            await self._find(topic)
        await self.instance.heartbeat()
        if topic in self.subscriptions:
            await self._find_starts(self._rebalance, [topic], began_ms)
        else:
            self._promised_ms.pop(topic, None)
            self._rebalance.soon()

    def rebalance_soon(self) -> None:
        """Starts a rebalance as soon as possible."""
        if self._rebalance is not None:
            self._rebalance.soon()

    async def queues_changed(self, topic: str) -> None:
        """Tells the brokers, by a new version of the subscription, that the queues of ``topic`` were divided again."""
        subscription = self.subscriptions.get(topic)
        if subscription is not None:
            subscription.sub_version = max(self._clock.wall_ms(), subscription.sub_version + 1)
        await self.instance.heartbeat()

    async def where_to_start(self, queue: MessageQueue) -> int:
        """The first queue offset to consume: the group's consumer offset, or, if there is none, the offset that
        ``consume_from_where`` selects.

        Raises:
            BrokerError, RemotingError, ClientError: the offset is currently not available.
            FormatError, DiskError: see ``OffsetStore.stored``.
        """
        self._unknown_starts.add(queue)
        offset = await self.offsets.load(queue)
        if offset is None:
            offset = await self._first_start(queue)
        self._unknown_starts.discard(queue)
        self._known_starts.add(queue)
        return offset

    async def _first_start(self, queue: MessageQueue) -> int:
        """The first queue offset of a group without a consumer offset. Stores it, because a consumer that gets the
        queue later must not start at a later end of the queue.
        """
        where, retry = self.config.consume_from_where, is_retry_topic(queue.topic)
        if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return 0  # if the queue's minimum offset is above 0, the response to the pull tells it
        if where is not ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and retry:
            return 0
        address = self.instance.routes.broker(queue.broker_name)
        if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and not retry:
            offset = await self.api.search_offset(address, queue, self._begin_ms)
        elif queue not in self._known_starts and queue.topic in self._promised_ms:
            since_ms = self._promised_ms[queue.topic] - CLOCKS_DIFFER_MS
            offset = await self.api.search_offset(address, queue, since_ms)
        else:
            offset = await self.api.max_offset(address, queue)
        self.offsets.update(queue, offset, increase_only=True)
        await self.offsets.persist([queue])
        return offset

    async def latest_start(self, queue: MessageQueue, first: int) -> int:
        """Looks up again where to start: the stored consumer offset, or ``first``, the result of ``where_to_start``, if
        there is none or it is not available.
        """
        try:
            stored = await self.offsets.load(queue)
        except RucolaError as error:
            event(logger, logging.INFO, "consumer offset not available", group=self.group, queue=queue, error=error)
            return first
        return first if stored is None else stored

    async def rest(self) -> None:
        """Stops the rebalancing and the automatic storage of offsets."""
        await self._background.stop()

    async def leave(
        self, queues: Collection[MessageQueue], unlock: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Stores the offsets of ``queues``, calls ``unlock``, unregisters from the brokers, and closes."""
        await self.rest()
        try:
            await self.offsets.persist(queues)
            if unlock is not None:
                await unlock()
        finally:
            try:
                await self.instance.shutdown()
            finally:
                if self._membership is not None:
                    self._membership.end()

    def wall_ms(self) -> int:
        """The current time in milliseconds since the epoch."""
        return self._clock.wall_ms()

    def _consumer_data(self) -> ConsumerData:
        config = self.config
        subscriptions = list(self.subscriptions.values())
        return ConsumerData(
            self.group, self._consume_type, config.message_model, config.consume_from_where, subscriptions
        )

    async def _find(self, topic: str) -> None:
        """Fetches the route of ``topic``; from then on, the topic's brokers get heartbeats. If the subscription has an
        SQL92 filter, one of these brokers checks the filter.
        """
        try:
            route = await self.instance.routes.route(topic)
        except TopicNotExistError as error:
            if not is_retry_topic(topic):
                event(logger, logging.WARNING, "subscribed topic does not exist yet", topic=topic, error=error)
            return
        subscription = self.subscriptions.get(topic)  # None if the topic was unsubscribed meanwhile
        if subscription is not None and subscription.expression_type != ExpressionType.TAG and route.subscribe_queues:
            address = self.instance.routes.broker(route.subscribe_queues[0].broker_name)
            await self.api.check_client(address, self.instance.client_id, self.group, subscription)

    def _group_changed(self, owner: QueueOwner, note_progress: Callable[[], None]) -> None:
        """Stores the consumer offsets before the queues are divided, so that their next consumers find them."""
        note_progress()
        self.instance.keep(self.offsets.persist(list(owner.owned())))
        self.rebalance_soon()

    async def _persist(self, owner: QueueOwner, note_progress: Callable[[], None]) -> None:
        note_progress()
        owned = list(owner.owned())
        self.offsets.retain(owned)
        await self.offsets.persist(owned)

    async def _find_starts(self, rebalance: Rebalance, topics: Collection[str], began_ms: int) -> None:
        """Waits until the start of each queue is known, at most ``START_LIMIT_S``. From then on, no message of
        ``topics`` that was stored since ``began_ms`` may be skipped.

        Raises:
            BrokerError: a broker refuses the account.
        """
        await self._wait_for_starts(rebalance)
        for topic in topics:
            self._promised_ms.setdefault(topic, began_ms)

    async def _wait_for_starts(self, rebalance: Rebalance) -> None:
        failures: dict[str, BaseException] = {}
        unknown: set[MessageQueue] = set()
        try:
            async with asyncio.timeout(START_LIMIT_S):
                while True:
                    self._unknown_starts.clear()
                    await rebalance.round()
                    failures, unknown = rebalance.failures_by_topic(), set(self._unknown_starts)
                    for error in failures.values():
                        if isinstance(error, BrokerError) and not error.retriable:
                            raise error
                    if not failures and not unknown:
                        return
        except TimeoutError:
            if not failures and not unknown:  # the application has blocked the event loop
                return
            about = {"topics": sorted(failures), "queues": sorted(unknown), "group": self.group}
            event(logger, logging.WARNING, "starts of queues not known yet", **about)

    def _consume_timestamp_ms(self) -> int:
        stamp = self.config.consume_timestamp
        if not stamp:
            return self._clock.wall_ms() - _HALF_AN_HOUR_MS
        try:
            return int(datetime.strptime(stamp, "%Y%m%d%H%M%S").timestamp() * 1000)
        except ValueError as error:
            raise ClientError(f"consumeTimestamp {stamp} is not a valid time: {error}") from error
