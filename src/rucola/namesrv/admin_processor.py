"""The name server's administrative requests: write permission of brokers, lists of topics, key-value configuration
(RocketMQ 5.3.3, ``DefaultRequestProcessor``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rucola.errors import BrokerError
from rucola.namesrv.kv_config import KVConfigManager
from rucola.namesrv.processor import success
from rucola.namesrv.route_info import RouteInfoManager, RouteLimits
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.bodies.route import TopicRouteData
from rucola.protocol.bodies.topic_list import TopicList
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers import namesrv_admin as headers
from rucola.remoting.server import Channel

FLAG_UNIT = 1
FLAG_UNIT_SUB = 2
"""Bits of a topic's system flags (RocketMQ's ``TopicSysFlag``)."""


class NamesrvAdminProcessor:
    """Processors of administrators' requests.

    Args:
        routes: the registered brokers and topics.
        kv_config: the key-value namespaces.
        persist: called after each change of ``kv_config``; the returned awaitable completes when the change is synced.
        limits: how many topics may be registered.
    """

    def __init__(
        self,
        routes: RouteInfoManager,
        kv_config: KVConfigManager,
        persist: Callable[[], Awaitable[None]],
        limits: RouteLimits,
    ) -> None:
        self._routes = routes
        self._limits = limits
        self._kv_config = kv_config
        self._persist = persist

    # -- brokers -------------------------------------------------------------------------------------------------------

    def wipe_write_perm(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 205: removes a broker's write permission."""
        header = headers.BrokerNameRequestHeader.from_ext_fields(command.ext_fields)
        return success(command, headers.WipeWritePermResponseHeader(self._routes.wipe_write_perm(header.broker_name)))

    def add_write_perm(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 327: restores a broker's write permission."""
        header = headers.BrokerNameRequestHeader.from_ext_fields(command.ext_fields)
        return success(command, headers.AddWritePermResponseHeader(self._routes.add_write_perm(header.broker_name)))

    # -- topics --------------------------------------------------------------------------------------------------------

    def all_topics(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 206: all topics."""
        return success(command, None, TopicList(self._routes.topics()))

    def topics_by_cluster(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 224: the topics of a cluster."""
        header = headers.GetTopicsByClusterRequestHeader.from_ext_fields(command.ext_fields)
        return success(command, None, TopicList(self._routes.topics_of_cluster(header.cluster)))

    def system_topics(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 304: the system topics, which are named after the clusters and the brokers."""
        names, address = self._routes.system_topics()
        return success(command, None, TopicList(names, address or None))

    def unit_topics(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 311: unit topics."""
        return success(command, None, TopicList(self._routes.unit_topics(FLAG_UNIT)))

    def unit_sub_topics(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 312: unit subscription topics."""
        return success(command, None, TopicList(self._routes.unit_topics(FLAG_UNIT_SUB)))

    def unit_sub_not_unit_topics(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 313: unit subscription topics that are not unit topics."""
        return success(command, None, TopicList(self._routes.unit_topics(FLAG_UNIT_SUB, FLAG_UNIT)))

    def delete_topic(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 216: deletes a topic."""
        header = headers.DeleteTopicFromNamesrvRequestHeader.from_ext_fields(command.ext_fields)
        self._routes.delete_topic(header.topic, header.cluster_name or "")
        return success(command)

    def register_topic(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 217: registers a topic."""
        header = headers.RegisterTopicRequestHeader.from_ext_fields(command.ext_fields)
        if reason := self._routes.refusal_of_topics([header.topic], self._limits):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, reason)
        self._routes.register_topic(header.topic, TopicRouteData.decode(command.body).queue_datas)
        return success(command)

    # -- key-value configuration ---------------------------------------------------------------------------------------

    def put_kv_config(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 100: sets a value; the response waits until the value is synced."""
        namespace, key, value = _kv_header(command)
        if value is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "value is null")
        try:
            self._kv_config.put(namespace, key, value)
        except ValueError as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        return self._when_kept(command)

    def get_kv_config(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 101: a value."""
        namespace, key, _ = _kv_header(command)
        value = self._kv_config.get(namespace, key)
        if value is None:
            raise BrokerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return success(command, headers.GetKVConfigResponseHeader(value))

    def delete_kv_config(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 102: deletes a value; the response waits until the change is synced."""
        namespace, key, _ = _kv_header(command)
        self._kv_config.delete(namespace, key)
        return self._when_kept(command)

    async def _when_kept(self, command: RemotingCommand) -> RemotingCommand:
        await self._persist()
        return success(command)

    def get_kv_list(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 219: all pairs of a namespace."""
        namespace = headers.GetKVListRequestHeader.from_ext_fields(command.ext_fields).namespace
        table = self._kv_config.namespace(namespace)
        if table is None:
            raise BrokerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return success(command, None, KVTable(table))


def _kv_header(command: RemotingCommand) -> tuple[str, str, str | None]:
    header = headers.KVConfigRequestHeader.from_ext_fields(command.ext_fields)
    if header.namespace is None or header.key is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
    return header.namespace, header.key, header.value
