"""Shows connected clients and forwards requests to them (RocketMQ 5.3.3, ``AdminBrokerProcessor``, ``Broker2Client``;
requests 203, 204, 300, 307, 309, 328, 343, 345).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import replace
from functools import partial

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.processor.responses import success
from rucola.broker.services import BrokerServices
from rucola.common.mq_version import MQVersion, version_name
from rucola.errors import BrokerError, RemotingError
from rucola.formats.message_id import parse_offset_message_id
from rucola.protocol.bodies.connections import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
)
from rucola.protocol.bodies.topic_list import GroupList, TopicList
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import (
    ConsumeMessageDirectlyRequestHeader,
    ConsumerGroupRequestHeader,
    ConsumerRunningInfoRequestHeader,
    GroupRequestHeader,
    GroupTopicRequestHeader,
    ProducerGroupRequestHeader,
    TopicRequestHeader,
)
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.store.log.cold_read import ColdRecords

_CLIENT_TIMEOUT_MS = 10_000


class ConnectionQueryProcessor:
    """Answers from the tables of clients, or lets a client answer."""

    def __init__(self, services: BrokerServices, address: str) -> None:
        self._config = services.config
        self._address = address
        self._store = services.store
        self._topics = services.topics
        self._groups = services.groups
        self._producers = services.producers
        self._consumers = services.consumers
        self._offsets = services.offsets
        self._clock = services.clock
        self._cold_reads = services.cold_reads

    def consumer_connections(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 203: the consumers of a group."""
        group = ConsumerGroupRequestHeader.from_ext_fields(command.ext_fields).consumer_group
        info = self._consumers.group(group)
        if info is None:
            raise BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        body = ConsumerConnection(
            _connections(info.clients.values()),
            dict(info.subscriptions),
            info.consume_type,
            info.message_model,
            info.consume_from_where,
        )
        return success(command, None, body)

    def producer_connections(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 204: the producers of a group."""
        group = ProducerGroupRequestHeader.from_ext_fields(command.ext_fields).producer_group
        clients = self._producers.clients(group)
        if not clients:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return success(command, None, ProducerConnection(_connections(clients)))

    def all_producers(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 328: all producers."""
        wall_ms, now_s = self._clock.wall_ms(), self._clock.monotonic()
        data = {
            group: [
                ProducerInfo(
                    client.client_id,
                    f"/{client.channel.remote_address}",  # as Java writes an address
                    client.language,
                    client.version,
                    wall_ms - round((now_s - client.last_update_s) * 1000),
                )
                for client in clients
            ]
            for group, clients in self._producers.groups().items()
        }
        return success(command, None, ProducerTableInfo(data))

    def groups_of_topic(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 300: groups that read a topic or have read it.

        RocketMQ also lists the topic itself as a group if any group reads the topic. This broker leaves out
        that entry, because it serves no purpose.
        """
        topic = TopicRequestHeader.from_ext_fields(command.ext_fields).topic
        groups = {*self._consumers.subscribers(topic), *self._offsets.groups_of(topic)}
        return success(command, None, GroupList(sorted(groups)))

    def topics_of_group(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 343: topics that a group has consumed."""
        group = GroupRequestHeader.from_ext_fields(command.ext_fields).group
        return success(command, None, TopicList(self._offsets.topics_of(group), self._address))

    def subscription(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 345: a group's subscription to a topic."""
        header = GroupTopicRequestHeader.from_ext_fields(command.ext_fields)
        info = self._consumers.group(header.group)
        found = info.subscriptions.get(header.topic) if info is not None else None
        return success(command, None, QuerySubscriptionResponseBody(header.group, header.topic, found))

    async def running_info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 307: a consumer's report about itself."""
        header = ConsumerRunningInfoRequestHeader.from_ext_fields(command.ext_fields)
        request = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=header.to_ext_fields())
        return await self._pass_on(command, header.consumer_group, header.client_id, request)

    def consume_directly(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 309: passes one message to one client, whether or not the client reads the message's queue."""
        return self._cold_reads.serve(partial(self._consume_directly, command))

    def _consume_directly(self, command: RemotingCommand, cold: ColdRecords) -> Awaitable[Answer]:
        header = ConsumeMessageDirectlyRequestHeader.from_ext_fields(command.ext_fields)
        record = self._record(header.msg_id or "", cold)
        topic = self._topics.get(header.topic or "")
        group = self._groups.table.get(header.consumer_group)
        asked = replace(
            header,
            broker_name=self._config.broker_name,
            topic_sys_flag=topic.topic_sys_flag if topic is not None else None,
            group_sys_flag=group.group_sys_flag if group is not None else None,
        )
        request = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=asked.to_ext_fields(), body=record)
        return self._pass_on(command, header.consumer_group, header.client_id or "", request)

    def _record(self, message_id: str, cold: ColdRecords) -> bytes:
        try:
            physical_offset = parse_offset_message_id(message_id).physical_offset
        except ValueError as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)[:200]) from None
        record = self._store.message_at(physical_offset, cold)
        if record is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no message has the id {message_id}")
        return bytes(record)

    async def _pass_on(
        self, command: RemotingCommand, group: str, client_id: str, request: RemotingCommand
    ) -> RemotingCommand:
        """Forwards ``request`` to the client; its response becomes the response to ``command``."""
        client = self._consumers.find_client(group, client_id)
        if client is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if client.version < MQVersion.V3_1_8_SNAPSHOT:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{version_name(client.version)}> too low to finish, please "
                f"upgrade it to V3_1_8_SNAPSHOT",
            )
        try:
            answer: RemotingCommand = await client.channel.invoke(request, _CLIENT_TIMEOUT_MS)
        except RemotingError as error:
            remark = f"consumer <{group}> <{client_id}> does not answer: {error}"
            raise BrokerError(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from None
        return command.answer(answer.code, answer.remark, dict(answer.ext_fields), bytes(answer.body))


def _connections(clients: Iterable[ClientChannel]) -> list[Connection]:
    return [
        Connection(client.client_id, client.channel.remote_address, client.language, client.version)
        for client in clients
    ]
