"""Brokers behind name servers, as the door uses them. Each client of the door is a client of its brokers, by
connections of its own.

Routes come from the name servers, attributes of topics and consumer groups from one of the brokers. A broker without a
master takes nothing; one that could not be reached gets no messages in turn for some seconds.

Source: RocketMQ 5.3.3, ``ClusterMetadataService``, ``ClusterTopicRouteService``, ``MessageQueueSelector``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rucola.client.name_servers import NameServers
from rucola.client.route import MASTER_ID, order_counts
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError, NoRouteError, RemotingError, RucolaError
from rucola.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from rucola.protocol.codes import ResponseCode
from rucola.proxy import messages
from rucola.proxy._send_cy import send_bytes
from rucola.proxy.brokers import ServerRequest, TopicView
from rucola.proxy.cluster_link import ClusterLink
from rucola.proxy.refreshed import Refreshed
from rucola.proxy.refusal import RefusedError
from rucola.proxy.send_rows import ROOM_BYTES, SendRows
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.proxy.cluster_access import ClusterAccess
    from rucola.proxy.sessions import ClientSession

logger = logging.getLogger(__name__)

AVOIDED_S: Final = 5.0
"""A broker that could not be reached gets no messages in turn for so long."""
MISSING_KEPT_S: Final = 60.0
"""A known topic is used for so long although name servers do not know it: one that has just started learns its topics
within half a minute, because brokers register every 30 s.
"""
_TIMEOUT_MS = 3_000
_ASKED_MAX = 4
"""Brokers that are asked for one topic or group, until one of them answers."""
_CLUSTERS_S = 1.0
"""Shortest time between two look-ups of all brokers."""


class ClusterBrokers:
    """See ``Brokers``. ``close`` must be called after the door has stopped.

    Args:
        name_servers: ``host:port`` of each, separated by semicolons, or as a list.
        monotonic: the clock, in seconds.
        asked: handles what brokers ask of a client.
        options: limits, credentials and TLS of the connections.
        access: judges what clients ask of brokers; None lets them do what the door may do.

    Raises:
        ConfigError: an address of a name server is invalid, or there is none.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        monotonic: Callable[[], float],
        asked: ServerRequest,
        options: ClientOptions | None = None,
        access: ClusterAccess | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        self.asked, self.access = asked, access
        self._monotonic = monotonic
        self._client = RemotingClient(self.options)
        self._api = AdminApi(self._client)
        self._name_servers = NameServers(name_servers, self._api, _TIMEOUT_MS)
        self._topics: Refreshed[bytes, TopicView] = Refreshed("topic", self._look_up_topic, monotonic, MISSING_KEPT_S)
        self._groups: Refreshed[str, SubscriptionGroupConfig] = Refreshed("group", self._look_up_group, monotonic)
        self._masters: dict[str, str] = {}
        self._avoided: dict[str, asyncio.TimerHandle] = {}
        self._clusters: asyncio.Task[None] | None = None
        self._clusters_asked_s = -math.inf
        self._rows = SendRows()
        self._closing: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()

    def known_topic(self, name: bytes) -> TopicView | None:
        """See ``Brokers``."""
        return self._topics.known(name)

    async def topic(self, name: str) -> TopicView | None:
        """See ``Brokers``."""
        return await self._topics.get(name.encode())

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """See ``Brokers``. A broker creates a group that clients may create."""
        return await self._groups.get(name)

    async def broker_names(self, topics: Iterable[str]) -> Sequence[str]:
        """See ``Brokers``."""
        views = await asyncio.gather(*map(self.topic, topics), return_exceptions=True)
        names: dict[str, None] = {}
        for view in views:
            if isinstance(view, TopicView):
                names.update(dict.fromkeys(data.broker_name for data in view.queues))
        found = [name for name in names if name in self._masters]
        for view in views:
            if isinstance(view, BaseException) and (not found or not isinstance(view, RucolaError)):
                raise view
        return found

    def rows(self, session: ClientSession, request_bytes: int) -> SendRows:
        """See ``Brokers``. All clients share the rows: a link encodes each message at once."""
        rows, host_bytes = self._rows, len(session.host)
        if not rows.has_room(request_bytes, host_bytes):  # for a large message; they are empty otherwise
            return SendRows(max(ROOM_BYTES, send_bytes(request_bytes, host_bytes)))
        return rows

    async def link(self, session: ClientSession, broker_name: str) -> ClusterLink:
        """See ``Brokers``."""
        link = self.open_link(session, broker_name)
        if link is None and broker_name not in self._masters:
            await self._learn_all()
            link = self.open_link(session, broker_name)
        if link is None:
            raise RefusedError(messages.INTERNAL_SERVER_ERROR, f"no master of a broker {broker_name} is known")
        return link

    def open_link(self, session: ClientSession, broker_name: str) -> ClusterLink | None:
        """See ``Brokers``."""
        address = self._masters.get(broker_name)
        link = session.links.get(broker_name)
        if isinstance(link, ClusterLink) and link.address == address:
            return link
        if address is None:
            return None
        if link is not None:  # the broker has another master now
            link.close()
        opened = session.links[broker_name] = ClusterLink(self, session, broker_name, address)
        return opened

    async def close(self) -> None:
        """Ends look-ups and connections."""
        await self._topics.close()
        await self._groups.close()
        if self._clusters is not None:
            self._clusters.cancel()
            await asyncio.wait([self._clusters])
        for timer in self._avoided.values():
            timer.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._client.close()

    @property
    def known_masters(self) -> int:
        """Number of brokers with a master that are known."""
        return len(self._masters)

    @property
    def not_reached(self) -> int:
        """Number of brokers to which no connection could be opened in the last seconds."""
        return len(self._avoided)

    # --- for links

    def unreachable(self, broker_name: str) -> None:
        """Notes that a connection to a broker could not be opened."""
        timer = self._avoided.pop(broker_name, None)
        if timer is None:
            event(logger, logging.WARNING, "broker not reached", broker=broker_name)
        else:
            timer.cancel()
        self._avoided[broker_name] = self._loop.call_later(AVOIDED_S, self._avoided.pop, broker_name, None)
        self._topics.doubt()

    def reached(self, broker_name: str) -> None:
        """Notes that a connection to a broker was opened."""
        timer = self._avoided.pop(broker_name, None)
        if timer is not None:
            timer.cancel()

    def finish(self, closing: Awaitable[None]) -> None:
        """Waits in ``close`` until a connection has ended."""
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # --- look-ups

    async def _look_up_topic(self, name: bytes) -> TopicView | None:
        topic = name.decode("utf-8", "replace")
        try:
            route = await self._name_servers.route_info(topic)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return None
        self._learn(route.broker_datas)
        attributes = await self._attributes(topic, route)
        if attributes is None:
            return None
        view = TopicView(topic, attributes, queues_of(topic, route), self._avoided)
        known = self._topics.known(name)
        if known is not None and (known.attributes, known.queues) == (view.attributes, view.queues):
            return known  # its turns go on
        return view

    async def _attributes(self, topic: str, route: TopicRouteData) -> Mapping[str, str] | None:
        """The attributes of a topic; None if its brokers do not know it."""
        groups = [broker.broker_addrs for broker in route.broker_datas]
        masters = [group[MASTER_ID] for group in groups if MASTER_ID in group]
        addresses = masters or [address for group in groups for address in group.values()]
        failure: RucolaError = NoRouteError(topic, "no broker has it")
        for address in self._in_turn(addresses):
            try:
                return (await self._api.topic_config(address, topic, _TIMEOUT_MS)).attributes
            except RemotingError as error:
                failure = error
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a broker older than attributes
                    return {}
                failure = error
        if isinstance(failure, BrokerError) and failure.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        raise failure

    async def _look_up_group(self, name: str) -> SubscriptionGroupConfig | None:
        if not self._masters:
            await self._learn_all()
        failure: RucolaError = NoRouteError(name, "no broker is registered")
        is_known = None
        for address in self._in_turn(self._masters.values()):
            try:
                return await self._api.group_config(address, name, _TIMEOUT_MS)
            except RemotingError as error:
                failure = error
            except BrokerError as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                is_known = False
        if is_known is None:
            raise failure
        return None

    def _in_turn(self, addresses: Iterable[str]) -> list[str]:
        """Some of the addresses in any order, those of brokers that could not be reached last."""
        avoided = {self._masters.get(name) for name in self._avoided}
        mixed = random.sample(found := list(addresses), len(found))
        return sorted(mixed, key=avoided.__contains__)[:_ASKED_MAX]

    def _learn(self, brokers: Iterable[BrokerData]) -> None:
        for broker in brokers:
            master = broker.broker_addrs.get(MASTER_ID)
            if master is None:
                self._masters.pop(broker.broker_name, None)
            else:
                self._masters[broker.broker_name] = master

    async def _learn_all(self) -> None:
        """Learns the masters of all brokers, of those whose topics nobody has used yet, too."""
        if self._clusters is None:
            if self._monotonic() < self._clusters_asked_s + _CLUSTERS_S:
                return
            self._clusters_asked_s = self._monotonic()
            self._clusters = asyncio.ensure_future(self._ask_clusters())
        await asyncio.shield(self._clusters)

    async def _ask_clusters(self) -> None:
        try:
            info = await self._name_servers.cluster_info()
        finally:
            self._clusters = None
        # A route may name a slave that acts as the master, this answer does not.
        self._learn(broker for broker in info.broker_addr_table.values() if MASTER_ID in broker.broker_addrs)


def queues_of(topic: str, route: TopicRouteData) -> list[QueueData]:
    """The queues in a route, as the door uses them: those of a broker without a master take and give nothing. If the
    topic has an order configuration, it says how many queues of each broker take messages.

    Raises:
        ClientError: the order configuration names too many queues.
    """
    masters = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    counts = dict(order_counts(topic, route.order_topic_conf)) if route.order_topic_conf else None

    def usable(data: QueueData) -> QueueData:
        if data.broker_name not in masters:
            return replace(data, perm=0)
        if counts is None:
            return data
        count = counts.get(data.broker_name, 0)
        return replace(data, write_queue_nums=count, perm=data.perm | (PermName.WRITE if count else 0))

    return [usable(data) for data in route.queue_datas]
