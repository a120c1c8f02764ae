"""Requests to the name server (RocketMQ 5.3.3, ``DefaultRequestProcessor`` and ``ClientRequestProcessor``).

Numeric keys in bodies are quoted, whatever the client's version: every client reads them, including old Java and C++
clients (protocol.md 1.9).
"""

from __future__ import annotations

import logging

from rucola.common.data_version import DataVersion
from rucola.errors import BrokerError
from rucola.namesrv.kv_config import NAMESPACE_ORDER_TOPIC, KVConfigManager
from rucola.namesrv.route_info import BrokerRegistration, RouteInfoManager
from rucola.protocol import fastjson
from rucola.protocol.bodies import Body
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.bodies.registration import RegisterBrokerBody, body_crc32
from rucola.protocol.bodies.route import BrokerMemberGroup, BrokerMemberGroupBody, ClusterInfo
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers import route as headers
from rucola.protocol.headers.header import CommandHeader
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel
from rucola.runtime.logs import event

_log = logging.getLogger(__name__)
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_ZONE_MODE = "__ZONE_MODE"
_ZONE_NAME = "__ZONE_NAME"


class NamesrvProcessor:
    """The name server's processors; those for administrators are in ``admin_processor``.

    Args:
        routes: the registered brokers and topics.
        kv_config: the key-value namespaces.
    """

    def __init__(self, routes: RouteInfoManager, kv_config: KVConfigManager) -> None:
        self._routes = routes
        self._kv_config = kv_config

    def register_to(self, table: ProcessorTable) -> None:
        """Registers every processor in ``table``."""
        for code, processor in (
            (RequestCode.REGISTER_BROKER, self.register_broker),
            (RequestCode.UNREGISTER_BROKER, self.unregister_broker),
            (RequestCode.QUERY_DATA_VERSION, self.query_data_version),
            (RequestCode.BROKER_HEARTBEAT, self.broker_heartbeat),
            (RequestCode.GET_BROKER_MEMBER_GROUP, self.broker_member_group),
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, self.route_info),
            (RequestCode.GET_BROKER_CLUSTER_INFO, self.cluster_info),
        ):
            table.register(code, processor)

    # -- brokers ----------------------------------------------------------------------------------------------------

    def register_broker(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 103: a broker registers."""
        header = headers.RegisterBrokerRequestHeader.from_ext_fields(command.ext_fields)
        body = bytes(command.body)
        if header.body_crc32 and header.body_crc32 != body_crc32(body):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        topics = RegisterBrokerBody.decode(body).topic_config_serialize_wrapper if body else None
        broker = BrokerRegistration(
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            header.ha_server_addr,
            header.heartbeat_timeout_millis,
            header.enable_acting_master,
            command.ext_fields.get(_ZONE_NAME),
        )
        is_new = self._routes.data_version(header.cluster_name, header.broker_addr) is None
        result = self._routes.register(
            broker,
            topics.topic_config_table if topics else {},
            topics.data_version if topics else DataVersion(),
            channel,
        )
        if result is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if is_new and self._routes.data_version(header.cluster_name, header.broker_addr) is not None:
            event(_log, logging.INFO, "broker registered", broker=header.broker_name, address=header.broker_addr)
        answer = headers.RegisterBrokerResponseHeader(result.ha_address or None, result.master_address or None)
        ordered = self._kv_config.namespace(NAMESPACE_ORDER_TOPIC)
        return success(command, answer, KVTable(ordered) if ordered is not None else None)

    def unregister_broker(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 104: a broker unregisters."""
        header = headers.UnregisterBrokerRequestHeader.from_ext_fields(command.ext_fields)
        self._routes.unregister(header.cluster_name, header.broker_addr, header.broker_name, header.broker_id)
        event(_log, logging.INFO, "broker unregistered", broker=header.broker_name, address=header.broker_addr)
        return success(command)

    def query_data_version(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 322: whether a broker's topics have changed."""
        header = headers.QueryDataVersionRequestHeader.from_ext_fields(command.ext_fields)
        theirs = DataVersion.from_dict(fastjson.load_object(command.body, "DataVersion"))
        ours = self._routes.data_version(header.cluster_name, header.broker_addr)
        if ours == theirs:
            self._routes.refresh(header.cluster_name, header.broker_addr)
        answer = success(command, headers.QueryDataVersionResponseHeader(ours != theirs))
        if ours is not None:
            answer.body = fastjson.dumps(ours.to_dict())
        return answer

    def broker_heartbeat(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 904: a broker's heartbeat."""
        header = headers.BrokerHeartbeatRequestHeader.from_ext_fields(command.ext_fields)
        self._routes.refresh(header.cluster_name, header.broker_addr)
        return success(command)

    def broker_member_group(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 901: the members of a broker group."""
        header = headers.BrokerMemberGroupRequestHeader.from_ext_fields(command.ext_fields)
        data = self._routes.members(header.broker_name)
        group = BrokerMemberGroup(header.cluster_name, header.broker_name, data.broker_addrs if data else {})
        return success(command, None, BrokerMemberGroupBody(group))

    # -- routes -----------------------------------------------------------------------------------------------------

    def route_info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 105: the route of a topic."""
        fields = command.ext_fields
        topic = headers.GetRouteInfoRequestHeader.from_ext_fields(fields).topic
        zone = fields.get(_ZONE_NAME, "") if fields.get(_ZONE_MODE, "").lower() == "true" else ""
        route = self._routes.route(topic, zone)
        if route is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}{FAQ}"
            )
        return success(command, None, route)

    def cluster_info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 106: clusters and brokers."""
        return success(command, None, ClusterInfo(self._routes.brokers(), self._routes.clusters()))


def success(command: RemotingCommand, header: CommandHeader | None = None, body: Body | None = None) -> RemotingCommand:
    """The answer to a request that succeeded."""
    return command.answer(
        ResponseCode.SUCCESS,
        ext_fields=header.to_ext_fields() if header is not None else None,
        body=body.encode() if body is not None else b"",
    )
