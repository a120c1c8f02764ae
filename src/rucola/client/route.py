"""The routes of a client (queues of topics, addresses of brokers) and their updates.

Source: protocol.md 4.3, 4.4; RocketMQ 5.3.3, MQClientInstance#updateTopicRouteInfoFromNameServer and
TopicPublishInfo.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rucola.client.name_servers import NameServers
from rucola.common.message_queue import MessageQueue
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError, ClientError, NoRouteError, RucolaError, TopicNotExistError
from rucola.protocol.bodies.route import QUEUES_MAX, BrokerData, TopicRouteData
from rucola.protocol.codes import ResponseCode
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

MASTER_ID = 0
_DIGITS_MAX = 9
_REFRESH_PAUSE_S = 1.0
"""Shortest interval between route requests for a topic after failed sends, in seconds."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of one topic, for producers and for consumers.

    Attributes:
        publish_queues: queues to which a producer may send, sorted by broker name and queue id. For an ordered topic,
            the order configuration determines the queues and their order.
        subscribe_queues: queues that a consumer may read.
        ordered: whether the topic has an order configuration.
        without_master: names of the brokers to which a producer could send if they had a master.
    """

    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    ordered: bool
    without_master: frozenset[str] = frozenset()


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Makes the route of ``topic`` from ``data``.

    Raises:
        ClientError: the order configuration names more than ``QUEUES_MAX`` queues.
    """
    masters = {broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    sources = sorted(data.queue_datas, key=lambda source: source.broker_name)
    readable = [source for source in sources if source.perm & PermName.READ]
    subscribe = tuple(
        MessageQueue(topic, source.broker_name, queue_id)
        for source in readable
        for queue_id in range(source.read_queue_nums)
    )
    writable = [source for source in sources if source.perm & PermName.WRITE and source.write_queue_nums]
    counts = [(source.broker_name, source.write_queue_nums) for source in writable if source.broker_name in masters]
    ordered = bool(data.order_topic_conf)
    if data.order_topic_conf:
        counts = order_counts(topic, data.order_topic_conf)
    publish = tuple(MessageQueue(topic, name, queue_id) for name, count in counts for queue_id in range(count))
    without_master = frozenset(source.broker_name for source in writable) - masters
    return TopicRoute(publish, subscribe, ordered, without_master)


def default_topic_route(topic: str, data: TopicRouteData, queue_nums_max: int) -> TopicRoute:
    """Makes the route of a topic that does not exist yet; ``data`` is the route of its template topic."""
    sources = [
        replace(
            source,
            read_queue_nums=min(source.read_queue_nums, queue_nums_max),
            write_queue_nums=min(source.write_queue_nums, queue_nums_max),
        )
        for source in data.queue_datas
    ]
    return topic_route(topic, replace(data, queue_datas=sources))


class RouteTable:
    """The routes of the topics that a client uses.

    Args:
        name_servers: source of the routes.
        create_topic_key: topic whose route is the template for unknown topics; None for consumers.
        default_topic_queue_nums: largest number of queues of an unknown topic on each broker.
        on_brokers_changed: called when the addresses of a broker have changed.
        on_route_changed: called with the topic when its queues or the addresses of its brokers have changed.
    """

    def __init__(
        self,
        name_servers: NameServers,
        create_topic_key: str | None,
        default_topic_queue_nums: int,
        on_brokers_changed: Callable[[], None],
        on_route_changed: Callable[[str], None],
    ) -> None:
        self.version = 0  # incremented whenever a route or an address changes
        self.routes: dict[str, TopicRoute] = {}
        self.brokers: dict[str, dict[int, str]] = {}
        self._name_servers = name_servers
        self._create_topic_key = create_topic_key
        self._default_topic_queue_nums = default_topic_queue_nums
        self._on_brokers_changed = on_brokers_changed
        self._on_route_changed = on_route_changed
        self._named: dict[str, frozenset[str]] = {}  # names of brokers, by the topic of the answer that names them
        self._own: set[str] = set()  # topics with a route of their own; other routes were made from a template
        self._lookups: dict[str, asyncio.Task[TopicRoute]] = {}
        self._asked_at: dict[str, float] = {}

    async def route(self, topic: str) -> TopicRoute:
        """Returns the route of ``topic``; fetches it only the first time.

        Raises:
            ClientError: no broker has the topic, and none would create it.
            RemotingError: no name server responds.
        """
        return self.routes.get(topic) or await self.refresh(topic)

    @property
    def name_servers(self) -> list[str]:
        """Addresses of the name servers."""
        return self._name_servers.addresses

    async def refresh(self, topic: str) -> TopicRoute:
        """Fetches the route of ``topic`` now; concurrent callers share one request."""
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = asyncio.ensure_future(self._look_up(topic))
            self._lookups[topic] = lookup
            lookup.add_done_callback(lambda done: self._looked_up(topic, done))
        return await asyncio.shield(lookup)

    def refresh_wanted(self, topic: str) -> bool:
        """Whether to fetch the route of ``topic`` now, after a broker failed: at most about once per second."""
        now = asyncio.get_running_loop().time()
        return topic not in self._lookups and now - self._asked_at.get(topic, -math.inf) >= _REFRESH_PAUSE_S

    async def refresh_all(self) -> None:
        """Fetches the routes of all topics in use. If the fetch of a route fails, the old route is kept. A defect in
        the handling of a route does not keep the other routes from being fetched.
        """
        defects: list[Exception] = []
        for topic in list(self.routes):
            try:
                await self.refresh(topic)
            except RucolaError as error:
                event(logger, logging.WARNING, "route not refreshed", topic=topic, error=error)
            except Exception as error:  # noqa: BLE001 - raised again below
                defects.append(error)
        if defects:
            raise defects[0]

    def has_master(self, broker_name: str) -> bool:
        """Whether the address of broker ``broker_name``'s master is known."""
        return MASTER_ID in self.brokers.get(broker_name, {})

    def master(self, broker_name: str) -> str:
        """Address of broker ``broker_name``'s master.

        Raises:
            ClientError: there is none.
        """
        address = self.brokers.get(broker_name, {}).get(MASTER_ID)
        if address is None:
            raise ClientError(f"broker {broker_name} has no master in any known route")
        return address

    def broker(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Address to read from: that of the broker with the name ``broker_name`` and the id ``broker_id``; if no such
        broker is known, that of the broker with the same name and the lowest id.

        Raises:
            ClientError: no broker of this name is known.
        """
        members = self.brokers.get(broker_name)
        if not members:
            raise ClientError(f"broker {broker_name} is in no known route")
        return members.get(broker_id) or members[min(members)]

    def current_addresses(self, *, masters_only: bool) -> list[str]:
        """Addresses of the brokers that the latest answers of the name servers name: of the masters, or of all."""
        names = set().union(*self._named.values())
        return [
            address
            for name, members in self.brokers.items()
            for broker_id, address in members.items()
            if name in names and (broker_id == MASTER_ID or not masters_only)
        ]

    def learn(self, brokers: Iterable[BrokerData], topic: str = "") -> bool:
        """Replaces the known addresses of each broker in ``brokers``; returns whether any address has changed. The
        addresses of other brokers remain, so that the offsets of their queues can still be stored.

        Args:
            brokers: the brokers of an answer.
            topic: topic whose route the answer is; empty if the answer names all brokers of the clusters.
        """
        brokers = list(brokers)
        self._named[topic] = frozenset(broker.broker_name for broker in brokers)
        changed = False
        for broker in brokers:
            if self.brokers.get(broker.broker_name) != broker.broker_addrs:
                self.brokers[broker.broker_name] = dict(broker.broker_addrs)
                changed = True
        if changed:
            self.version += 1
            self._on_brokers_changed()
        return changed

    def _looked_up(self, topic: str, lookup: asyncio.Task[TopicRoute]) -> None:
        self._lookups.pop(topic, None)
        if not lookup.cancelled():
            lookup.exception()  # marks the exception as retrieved, even if all callers were cancelled

    async def _look_up(self, topic: str) -> TopicRoute:
        self._asked_at[topic] = asyncio.get_running_loop().time()
        try:
            data = await self._name_servers.route_info(topic)
            route = topic_route(topic, data)
            self._own.add(topic)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            data, route = await self._default_route(topic)
        changed = self.learn(data.broker_datas, topic)
        if self.routes.get(topic) != route:
            self.routes[topic] = route
            self.version += 1
            changed = True
        if changed:
            self._on_route_changed(topic)
        return route

    async def _default_route(self, topic: str) -> tuple[TopicRouteData, TopicRoute]:
        key = self._create_topic_key
        if key is None or topic == key:
            raise TopicNotExistError(f"no route to topic {topic}: no broker has it")
        if topic in self._own:
            # A restarted name server knows only the brokers that have registered since the restart. A route made from
            # the template could send messages of an existing topic to a wrong broker, which would create the topic.
            raise TopicNotExistError(
                f"the name server no longer has a route to topic {topic}; the last known route is kept"
            )
        try:
            data = await self._name_servers.route_info(key)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            if not (await self._name_servers.cluster_info()).broker_addr_table:
                raise NoRouteError(topic, f"no broker is registered at {', '.join(self.name_servers)}") from error
            raise TopicNotExistError(
                f"no route to topic {topic}: no broker has it, and none creates topics automatically"
            ) from error
        return data, default_topic_route(topic, data, self._default_topic_queue_nums)


def order_counts(topic: str, conf: str) -> list[tuple[str, int]]:
    """Parses ``broker:queues;broker:queues`` in order; leaves out malformed items and impossible numbers.

    Raises:
        ClientError: the order configuration names more than ``QUEUES_MAX`` queues.
    """
    counts = []
    for item in conf.split(";"):
        name, _, count = item.partition(":")
        if name and count.isascii() and count.isdecimal() and len(count) <= _DIGITS_MAX and int(count) <= QUEUES_MAX:
            counts.append((name, int(count)))
    if sum(count for _, count in counts) > QUEUES_MAX:
        raise ClientError(f"the order configuration of topic {topic} names more than {QUEUES_MAX} queues")
    return counts
