"""Requests to the name server (RocketMQ 5.3.3, ``DefaultRequestProcessor`` and ``ClientRequestProcessor``).

Numeric keys in response bodies are always quoted. Every client can read quoted keys, even old Java and C++ clients
(protocol.md 1.9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError
from rucola.namesrv.kv_config import NAMESPACE_ORDER_TOPIC, KVConfigManager
from rucola.namesrv.route_info import BrokerRegistration, RegistrationResult, RouteInfoManager, RouteLimits
from rucola.protocol import fastjson
from rucola.protocol.bodies import Body
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.bodies.registration import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    body_crc32,
    is_deflated,
)
from rucola.protocol.bodies.route import BrokerMemberGroup, BrokerMemberGroupBody, ClusterInfo
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers import route as headers
from rucola.protocol.headers.header import CommandHeader
from rucola.remoting.fairness.json_bodies import SHORT_BYTES
from rucola.remoting.fairness.steps import in_turns
from rucola.remoting.processors import OVERLOAD, Answer, ProcessorTable
from rucola.remoting.server import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_ZONE_MODE = "__ZONE_MODE"
_ZONE_NAME = "__ZONE_NAME"
_WAITING_BYTES_MAX = 128 * 1024 * 1024
"""Largest number of bytes in the bodies of all waiting registrations together."""


class NamesrvProcessor:
    """The name server's processors, except those for administrators' requests (see ``admin_processor``).

    Args:
        routes: the registered brokers and topics.
        kv_config: the key-value namespaces.
        limits: limits of registrations.
    """

    def __init__(self, routes: RouteInfoManager, kv_config: KVConfigManager, limits: RouteLimits) -> None:
        self._routes = routes
        self._limits = limits
        self._kv_config = kv_config
        self._order = asyncio.Lock()
        """Registrations and unregistrations that arrive during a long registration wait for this lock."""
        self._waiting = self._waiting_bytes = 0
        """Number of requests that wait for the lock or have it, and the bytes of their bodies."""

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

    # -- brokers -------------------------------------------------------------------------------------------------------

    def register_broker(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 103: a broker registers.

        A thread decodes the body if the body is long or compressed, or if earlier requests are waiting. The event loop
        then adds the topics in several steps.
        """
        header = headers.RegisterBrokerRequestHeader.from_ext_fields(command.ext_fields)
        body = bytes(command.body)
        if self._waiting or len(body) > SHORT_BYTES or is_deflated(body):
            return self._in_order(partial(self._register, channel, command, header, body), len(body))
        topics = _topics_in(header, body)
        registration = _registration(command, header, topics)
        self._check_room(channel, registration)
        is_new = self._is_new(header)
        result = self._routes.register(*registration, channel)
        return self._registered(command, header, result, is_new)

    def unregister_broker(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 104: a broker unregisters."""
        if self._waiting:
            return self._in_order(partial(self._unregister_in_turn, command), 0)
        return self._unregister(command)

    def _in_order(self, serve: Callable[[], Awaitable[Answer]], size: int) -> Awaitable[Answer]:
        """Calls ``serve`` after all earlier waiting requests have been served, and returns the response of ``serve``.
        ``size`` counts towards the waiting bytes until ``serve`` ends.

        Raises:
            BrokerError: the waiting bytes would exceed ``_WAITING_BYTES_MAX``.
        """
        if self._waiting_bytes + size > _WAITING_BYTES_MAX:
            raise BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        self._waiting += 1
        self._waiting_bytes += size

        async def served() -> Answer:
            async with self._order:
                return await serve()

        answered = asyncio.ensure_future(served())
        answered.add_done_callback(partial(self._served, size))
        return answered

    def _served(self, size: int, _answered: asyncio.Future[Answer]) -> None:
        self._waiting -= 1
        self._waiting_bytes -= size

    async def _register(
        self, channel: Channel, command: RemotingCommand, header: headers.RegisterBrokerRequestHeader, body: bytes
    ) -> Answer:
        topics = await asyncio.to_thread(_topics_in, header, body)
        if channel.closed:
            return None  # channel_closed has already run: a broker registered now would stay
        registration = _registration(command, header, topics)
        self._check_room(channel, registration)
        is_new = self._is_new(header)
        result = await in_turns(self._routes.register_steps(*registration, channel))
        self._forget_if_closed(channel)
        return self._registered(command, header, result, is_new)

    def _forget_if_closed(self, channel: Channel) -> None:
        """Removes the brokers of ``channel`` if it was closed while a broker was being registered over it."""
        if channel.closed:
            self._routes.channel_closed(channel)

    async def _unregister_in_turn(self, command: RemotingCommand) -> Answer:
        return self._unregister(command)

    def _unregister(self, command: RemotingCommand) -> Answer:
        header = headers.UnregisterBrokerRequestHeader.from_ext_fields(command.ext_fields)
        self._routes.unregister(header.cluster_name, header.broker_addr, header.broker_name, header.broker_id)
        event(logger, logging.INFO, "broker unregistered", broker=header.broker_name, address=header.broker_addr)
        return success(command)

    def _check_room(
        self, channel: Channel, registration: tuple[BrokerRegistration, dict[str, TopicConfig], DataVersion]
    ) -> None:
        broker, topics, _ = registration
        reason = self._routes.refusal(broker, topics, channel, self._limits)
        if reason:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, reason)

    def _is_new(self, header: headers.RegisterBrokerRequestHeader) -> bool:
        return self._routes.data_version(header.cluster_name, header.broker_addr) is None

    def _registered(
        self,
        command: RemotingCommand,
        header: headers.RegisterBrokerRequestHeader,
        result: RegistrationResult | None,
        is_new: bool,
    ) -> RemotingCommand:
        if result is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if is_new and not self._is_new(header):
            event(logger, logging.INFO, "broker registered", broker=header.broker_name, address=header.broker_addr)
        answer = headers.RegisterBrokerResponseHeader(result.ha_address or None, result.master_address or None)
        ordered = self._kv_config.namespace(NAMESPACE_ORDER_TOPIC)
        return success(command, answer, KVTable(ordered) if ordered is not None else None)

    def query_data_version(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 322: whether a broker's topics have changed. The broker shows that it lives, whatever the answer:
        with ``enableSlaveActingMaster``, this is its heartbeat.
        """
        header = headers.QueryDataVersionRequestHeader.from_ext_fields(command.ext_fields)
        theirs = DataVersion.from_dict(fastjson.load_object(command.body, "DataVersion"))
        ours = self._routes.data_version(header.cluster_name, header.broker_addr)
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

    # -- routes --------------------------------------------------------------------------------------------------------

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


def _topics_in(header: headers.RegisterBrokerRequestHeader, body: bytes) -> TopicConfigSerializeWrapper:
    """The topics in the body of a registration. May be called on any thread.

    Raises:
        BrokerError: the checksum is wrong.
        FormatError: the body cannot be decoded.
    """
    if header.body_crc32 and header.body_crc32 != body_crc32(body):
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    return RegisterBrokerBody.decode(body).topic_config_serialize_wrapper if body else TopicConfigSerializeWrapper()


def _registration(
    command: RemotingCommand, header: headers.RegisterBrokerRequestHeader, topics: TopicConfigSerializeWrapper
) -> tuple[BrokerRegistration, dict[str, TopicConfig], DataVersion]:
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
    return broker, topics.topic_config_table, topics.data_version


def success(command: RemotingCommand, header: CommandHeader | None = None, body: Body | None = None) -> RemotingCommand:
    """The response to a request that succeeded."""
    return command.answer(
        ResponseCode.SUCCESS,
        ext_fields=header.to_ext_fields() if header is not None else None,
        body=body.encode() if body is not None else b"",
    )
