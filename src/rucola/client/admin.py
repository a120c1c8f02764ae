"""The administration client, for name servers and brokers.

Source: protocol.md 2.12; RocketMQ 5.3.3, DefaultMQAdminExtImpl. Works with RocketMQ's servers and with Rucola's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Self, TypeVar

from rucola.client.config import ClientConfig
from rucola.client.instance import client_options
from rucola.client.name_servers import NameServers
from rucola.common.key_builder import dlq_topic, retry_topic
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.mq_version import MQVersion
from rucola.common.numbers import INT64_MAX
from rucola.common.sysflag import PermName
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError, ClientError
from rucola.formats.message import decode_messages
from rucola.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from rucola.protocol.bodies.statistics import ConsumeStats, TopicOffset
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.offset import ResetOffsetRequestHeader
from rucola.protocol.headers.query import QueryMessageRequestHeader
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.auth_api import AuthApi
from rucola.remoting.client import RemotingClient
from rucola.remoting.controller_api import ControllerApi
from rucola.runtime.clock import Clock, SystemClock

T = TypeVar("T")

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace in the name servers' configuration that maps a topic to ``broker:queues;broker:queues``."""
_MASTER = 0


class AdminClient:
    """Sends administrators' requests, over connections of its own. Use with ``async with``, on one event loop.

    Its methods raise ``BrokerError`` if a server refuses a request, ``RemotingError`` if a server cannot be reached,
    and ``ClientError`` if no cluster or broker has the given name.

    Args:
        namesrv: name servers, ``host:port`` separated by ``;``; changes go to all of them.
        timeout_ms: time limit of a connection attempt, and of one request to a name server.
        config: credentials and encryption.
        clock: gives the time for signatures.

    Attributes:
        api: methods that each send one request to one server.
        auth: methods for accounts, users and rules.
        controller: methods for controllers.

    Raises:
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self, namesrv: str, timeout_ms: int = 5_000, config: ClientConfig | None = None, clock: Clock | None = None
    ) -> None:
        config = replace(config or ClientConfig(), connect_timeout_ms=timeout_ms)
        self._client = RemotingClient(client_options(config, clock or SystemClock()))
        self.api = AdminApi(self._client)
        self.auth = AuthApi(self._client)
        self.controller = ControllerApi(self._client)
        self._name_servers = NameServers(namesrv, self.api, timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()

    # name servers

    @property
    def namesrv_addresses(self) -> list[str]:
        """Addresses of the name servers."""
        return self._name_servers.addresses

    async def on_name_servers(self, call: Callable[[str], Awaitable[object]]) -> None:
        """Makes a change on every name server."""
        for address in self._name_servers.addresses:
            await call(address)

    async def ask_name_server(self, call: Callable[[str], Awaitable[T]]) -> T:
        """Sends a request to the name servers in turn until one responds."""
        return await self._name_servers.ask(call)

    async def topic_list(self) -> list[str]:
        """Names of all topics."""
        return await self._name_servers.topic_list()

    async def cluster_info(self) -> ClusterInfo:
        """Clusters and brokers."""
        info = await self._name_servers.ask(self.api.cluster_info)
        # RocketMQ's name server also lists names whose brokers have left, if two clusters had brokers of one name.
        for names in info.cluster_addr_table.values():
            names[:] = [name for name in names if name in info.broker_addr_table]
        return info

    async def route(self, topic: str) -> TopicRouteData:
        """Route of a topic; raises ``BrokerError`` 17 if there is none."""
        return await self._name_servers.route_info(topic)

    async def masters(self, broker: str | None, cluster: str | None) -> list[str]:
        """Addresses of masters: ``broker`` itself if given, otherwise the masters of ``cluster`` or of all clusters.

        Raises:
            ClientError: the cluster does not exist.
        """
        if broker is not None:
            return [broker]
        found = [members.get(_MASTER) for members in await self._broker_members(cluster)]
        return [address for address in found if address is not None]

    async def members(self, broker: str | None, cluster: str | None) -> list[str]:
        """Like ``masters``, but includes the slaves. Used for changes that slaves do not copy from their master."""
        if broker is not None:
            return [broker]
        return [members[number] for members in await self._broker_members(cluster) for number in sorted(members)]

    async def _broker_members(self, cluster: str | None) -> list[dict[int, str]]:
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            raise ClientError(
                f"cluster {cluster} does not exist; existing clusters: {', '.join(sorted(info.cluster_addr_table))}"
            )
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        return [info.broker_addr_table[name].broker_addrs for name in sorted(names)]

    async def brokers_of(self, topic: str) -> list[BrokerData]:
        """Brokers that serve a topic, sorted by name."""
        return sorted((await self.route(topic)).broker_datas, key=lambda data: data.broker_name)

    async def brokers_of_group(self, group: str) -> list[BrokerData]:
        """Brokers of a consumer group: all that serve the group's retry topic."""
        return await self.brokers_of(retry_topic(group))

    async def broker_address(self, name: str) -> str:
        """Address of a broker's master.

        Raises:
            ClientError: the broker does not exist, or has no master.
        """
        data = (await self.cluster_info()).broker_addr_table.get(name)
        if data is None or _MASTER not in data.broker_addrs:
            raise ClientError(f"broker {name} does not exist, or has no master")
        return data.broker_addrs[_MASTER]

    # topics and groups

    async def topic_offsets(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Minimum and maximum offset of all queues of a topic."""
        table: dict[MessageQueue, TopicOffset] = {}
        for data in await self.brokers_of(topic):
            table.update((await self.api.topic_stats(_address(data), topic)).offset_table)
        return table

    async def readable_queues(self, topic: str, route_of: str | None = None) -> list[tuple[MessageQueue, str]]:
        """Queues of a topic that can be read, each with its broker's address.

        Args:
            topic: the topic.
            route_of: the topic whose route is used, by default ``topic``. Needed if ``topic`` is a light queue, which
                has no route of its own.
        """
        route = await self.route(route_of or topic)
        addresses = {data.broker_name: _address(data) for data in route.broker_datas}
        return [
            (MessageQueue(topic, data.broker_name, queue_id), addresses[data.broker_name])
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
            for queue_id in range(data.read_queue_nums)
            if data.perm & PermName.READ and data.broker_name in addresses
        ]

    async def change_perm(self, address: str, topic: str, perm: int) -> TopicConfig:
        """Sets the read and write permission of a topic; returns the previous configuration."""
        known = await self.api.topic_config(address, topic)
        await self.api.change_topic(address, replace(known, perm=perm))
        return known

    async def delete_topic(self, topic: str, cluster: str) -> None:
        """Deletes a topic and its order configuration on all brokers of a cluster and in the name servers."""
        info = await self.cluster_info()
        if cluster not in info.cluster_addr_table:
            raise ClientError(
                f"cluster {cluster} does not exist; existing clusters: {', '.join(sorted(info.cluster_addr_table))}"
            )
        for name in sorted(info.cluster_addr_table[cluster]):
            for address in info.broker_addr_table[name].broker_addrs.values():
                await self.api.delete_topic(address, topic)
        await self.on_name_servers(lambda address: self.api.delete_topic_in_namesrv(address, topic, cluster))
        await self.on_name_servers(lambda address: self.api.delete_kv_config(address, ORDER_TOPIC_CONFIG, topic))

    async def delete_group(self, address: str, group: str, clean_offset: bool) -> None:
        """Deletes a group on one broker; with ``clean_offset`` also its offsets, retry topic and dead-letter topic."""
        await self.api.delete_group(address, group, clean_offset)
        if clean_offset:
            for topic in (retry_topic(group), dlq_topic(group)):
                await self.api.delete_topic(address, topic)
                for namesrv in self.namesrv_addresses:
                    await self.api.delete_topic_in_namesrv(namesrv, topic, None)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Offsets of a group on the brokers of its retry topic; with ``topic``, only the offsets in this topic.

        A group whose consumers were never online has no retry topic. Then the brokers of ``topic`` are asked instead.

        Raises:
            BrokerError: 17 if the group has no retry topic, and ``topic`` is not given or does not exist.
        """
        result = ConsumeStats()
        try:
            brokers = await self.brokers_of_group(group)
        except BrokerError as error:
            if topic is None or error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            brokers = await self.brokers_of(topic)
        for data in brokers:
            part = await self.api.consume_stats(_address(data), group, topic)
            result.offset_table.update(part.offset_table)
            result.consume_tps += part.consume_tps
        return result

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, force: bool = True, cluster: str | None = None
    ) -> dict[MessageQueue, int]:
        """Resets a group's offsets to a store time; a negative time means the end. Returns the new offsets.

        ``cluster`` limits the reset to the brokers of one cluster. If ``cluster`` is not the name of a cluster but of a
        topic, the reset goes to the brokers of that topic. A light queue needs such a topic, because it has no route.
        """
        table: dict[MessageQueue, int] = {}
        for data in await self._brokers_reset(topic, cluster):
            header = ResetOffsetRequestHeader(topic, group, timestamp_ms, force, -1, -1)
            table.update(await self.api.reset_offset(_address(data), header))
        return table

    async def _brokers_reset(self, topic: str, cluster: str | None) -> list[BrokerData]:
        if cluster is None:
            return await self.brokers_of(topic)
        if cluster not in (await self.cluster_info()).cluster_addr_table:
            return await self.brokers_of(cluster)
        return [data for data in await self.brokers_of(topic) if data.cluster == cluster]

    async def reset_queue_offset(
        self, address: str, group: str, queue: MessageQueue, consumer_offset: int
    ) -> dict[MessageQueue, int]:
        """Sets a group's offset in one queue; returns the offsets that the broker has reset.

        Brokers before 5.0 change only the stored offset, and the result is empty. Consumers that are online then
        overwrite this offset.
        """
        version = (await self.api.runtime_info(address)).get("brokerVersion", "")
        await self.api.update_consumer_offset(address, group, queue, consumer_offset)
        if not version.isdecimal() or int(version) < MQVersion.V5_0_0:
            return {}  # Such a broker ignores the queue in request 222, and would reset all queues of the topic.
        header = ResetOffsetRequestHeader(queue.topic, group, 0, False, queue.queue_id, consumer_offset)
        return await self.api.reset_offset(address, header)

    # messages

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        unique: bool = False,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
    ) -> list[MessageExt]:
        """Returns the messages with this key, oldest first; if ``unique``, ``key`` is a unique key."""
        found: list[MessageExt] = []
        for data in await self.brokers_of(topic):
            header = QueryMessageRequestHeader(topic, key, count_max, begin_ms, end_ms, unique)
            answer = await self.api.query_message(_address(data), header)
            found += decode_messages(answer.records)
        matching = [message for message in found if key in _keys(message, unique)]
        return sorted(matching, key=lambda message: message.store_timestamp_ms)

    async def clone_offsets(self, source: str, target: str, topic: str) -> int:
        """Copies the offsets of group ``source`` in ``topic`` to group ``target``; returns the number of copied
        offsets.

        Raises:
            ClientError: ``source`` has no offsets in the topic.
        """
        stats = await self.consume_stats(source, topic)
        if not stats.offset_table:
            raise ClientError(f"group {source} has no offsets in topic {topic}")
        addresses = {data.broker_name: _address(data) for data in await self.brokers_of(topic)}
        for queue, wrapper in stats.offset_table.items():
            address = addresses[queue.broker_name]
            await self.api.update_consumer_offset(address, target, queue, wrapper.consumer_offset)
        return len(stats.offset_table)


async def unless(code: ResponseCode, call: Awaitable[T]) -> T | None:
    """Awaits ``call`` and returns its result; None if the server responds with ``code``."""
    try:
        return await call
    except BrokerError as error:
        if error.code != code:
            raise
        return None


def _address(data: BrokerData) -> str:
    """Address for requests: the master's or, if there is no master, that of the slave with the lowest broker id."""
    if not data.broker_addrs:
        raise ClientError(f"broker {data.broker_name} has no address")
    return data.broker_addrs.get(_MASTER) or data.broker_addrs[min(data.broker_addrs)]


def _keys(message: MessageExt, unique: bool) -> list[str]:
    if unique:
        return [message.properties.get("UNIQ_KEY", "")]
    return message.properties.get("KEYS", "").split()
