"""Resets the offsets of a group in the broker or through the group's clients (request 222), and asks the clients for
their offsets (request 223). The clients receive request 220 for a reset, and request 221 for a query (RocketMQ 5.3.3,
``AdminBrokerProcessor#resetOffset``, ``Broker2Client``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.offset.offset_resets import Reset
from rucola.broker.processor.responses import success
from rucola.broker.services import BrokerServices
from rucola.common.message_queue import MessageQueue
from rucola.common.mq_version import version_name
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError, FormatError, RemotingError
from rucola.protocol.bodies.offsets import (
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.offset import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.store.log.cold_read import ColdRecords

CLIENT_VERSION_MIN = 28
"""V3_0_7_SNAPSHOT."""
_CLIENT_TIMEOUT_MS = 5000
_NO_CODE = "not set any response code"
"""The initial remark of RocketMQ's responses; it stays if RocketMQ sets only the code and the body."""


class OffsetResetProcessor:
    """Serves requests 222 and 223."""

    def __init__(self, services: BrokerServices) -> None:
        self._config = services.config
        self._store = services.store
        self._topics = services.topics
        self._groups = services.groups
        self._consumers = services.consumers
        self._offsets = services.offsets
        self._resets = services.resets
        self._wake = services.hold.wake
        self._cold_reads = services.cold_reads

    def reset_offset(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 222: resets the offsets of a group."""
        return self._cold_reads.serve(partial(self._reset_offset, command))

    def _reset_offset(self, command: RemotingCommand, cold: ColdRecords) -> RemotingCommand:
        header = ResetOffsetRequestHeader.from_ext_fields(command.ext_fields)
        topic = self._topics.get(header.topic)
        if not self._config.use_server_side_reset_offset:
            if topic is None:
                raise BrokerError(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
                )
            return self._reset_by_clients(command, header, topic, cold)
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if header.group not in self._groups.table:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
        table = self._new_offsets(header, topic, cold)
        for queue_id, offset in table.items():
            self._offsets.reset(header.group, header.topic, queue_id, offset)
            self._resets.add(header.group, header.topic, queue_id, Reset(offset))
            self._wake(header.topic.encode(), queue_id, header.group)
        return success(command, None, self._body(header.topic, table))

    async def consumer_status(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 223: asks the group's clients in parallel for their offsets, or only the client that the request
        names. Clients that do not answer in time, or answer with an error, are left out.
        """
        header = GetConsumerStatusRequestHeader.from_ext_fields(command.ext_fields)
        info = self._consumers.group(header.group)
        if info is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        clients = [client for client in info.clients.values() if header.client_addr in (None, "", client.client_id)]
        _refuse_old(clients)
        tables = await asyncio.gather(*[self._ask_status(client, header) for client in clients])
        body = GetConsumerStatusBody(
            consumer_table={
                client.client_id: table for client, table in zip(clients, tables, strict=True) if table is not None
            }
        )
        return command.answer(ResponseCode.SUCCESS, _NO_CODE, body=body.encode())

    async def _ask_status(
        self, client: ClientChannel, header: GetConsumerStatusRequestHeader
    ) -> dict[MessageQueue, int] | None:
        fields = GetConsumerStatusRequestHeader(header.topic, header.group).to_ext_fields()
        request = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=fields)
        try:
            answer: RemotingCommand = await client.channel.invoke(request, _CLIENT_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            return GetConsumerStatusBody.decode(answer.body).message_queue_table
        except (RemotingError, FormatError):
            return None

    def _new_offsets(self, header: ResetOffsetRequestHeader, topic: TopicConfig, cold: ColdRecords) -> dict[int, int]:
        """The new offset of each queue to reset: of one queue, or of all if the request names none."""
        name = header.topic.encode()
        queues = range(topic.read_queue_nums) if header.queue_id < 0 else (header.queue_id,)
        if header.queue_id < 0 or header.offset is None or header.offset == -1:
            return {queue_id: self._offset_at(name, queue_id, header.timestamp, cold) for queue_id in queues}
        minimum = self._store.min_queue_offset(name, header.queue_id)
        maximum = self._store.max_queue_offset(name, header.queue_id)
        if not minimum <= header.offset <= maximum + 1:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.offset} not in consume queue range [{minimum}-{maximum}]",
            )
        return {header.queue_id: header.offset}

    def _offset_at(self, topic: bytes, queue_id: int, timestamp_ms: int, cold: ColdRecords) -> int:
        if timestamp_ms < 0:
            return self._store.max_queue_offset(topic, queue_id)
        return self._store.offset_by_time(topic, queue_id, timestamp_ms, cold=cold)

    def _reset_by_clients(
        self, command: RemotingCommand, header: ResetOffsetRequestHeader, topic: TopicConfig, cold: ColdRecords
    ) -> RemotingCommand:
        """Resets offsets as RocketMQ 4.9 does: sends the new offsets to every client of the group."""
        table = {}
        for queue_id in range(topic.write_queue_nums):
            consumed = self._offsets.query(header.group, header.topic, queue_id)
            if consumed is None:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
            offset = self._offset_at(header.topic.encode(), queue_id, header.timestamp, cold)
            table[queue_id] = offset if header.is_force else min(offset, consumed)
        info = self._consumers.group(header.group)
        if info is None:
            raise BrokerError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}",
            )
        _refuse_old(info.clients.values())
        fields = ResetOffsetRequestHeader(header.topic, header.group, header.timestamp).to_ext_fields()
        body = self._body(header.topic, table)
        sent = body.encode()
        if command.language is LanguageCode.CPP:
            queues = [
                MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
                for queue, offset in body.offset_table.items()
            ]
            sent = ResetOffsetBodyForC(queues).encode()
        for client in info.clients.values():
            client.channel.invoke_oneway(
                RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext_fields=dict(fields), body=sent)
            )
        return command.answer(ResponseCode.SUCCESS, _NO_CODE, body=body.encode())

    def _body(self, topic: str, table: dict[int, int]) -> ResetOffsetBody:
        name = self._config.broker_name
        return ResetOffsetBody({MessageQueue(topic, name, queue_id): offset for queue_id, offset in table.items()})


def _refuse_old(clients: Iterable[ClientChannel]) -> None:
    for client in clients:
        if client.version < CLIENT_VERSION_MIN:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={version_name(client.version)}",
            )
