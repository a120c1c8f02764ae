"""Resets the offsets of a group in the broker or through the group's clients (request 222), and asks the clients for
their offsets (request 223). The clients receive request 220 for a reset, and request 221 for a query (RocketMQ 5.3.3,
``AdminBrokerProcessor#resetOffset``, ``Broker2Client``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.offset.offset_resets import Reset
from rucola.broker.pull.request import PullRequestHold
from rucola.broker.services import BrokerServices
from rucola.common.message_queue import MessageQueue
from rucola.common.mq_version import version_name
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError, FormatError, RemotingError
from rucola.protocol.bodies import Body
from rucola.protocol.bodies.offsets import (
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.offset import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from rucola.remoting.fairness.steps import Steps, in_turns
from rucola.remoting.server import Channel
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError

CLIENT_VERSION_MIN = 28
"""V3_0_7_SNAPSHOT."""
_CLIENT_TIMEOUT_MS = 5000
_NO_CODE = "not set any response code"
"""The initial remark of RocketMQ's responses; it stays if RocketMQ sets only the code and the body."""


class OffsetResetProcessor:
    """Serves requests 222 and 223.

    A topic may have thousands of queues. Their new offsets are found one by one, and other requests are served in
    between. All offsets are then set at once, unless the topic was changed or deleted meanwhile: the offsets of a
    deleted topic must not be set for a new one. One reset is served at a time, so resets take effect in the order of
    their requests.
    """

    def __init__(self, services: BrokerServices, hold: PullRequestHold) -> None:
        self._config = services.config
        self._store = services.store
        self._topics = services.topics
        self._groups = services.groups
        self._consumers = services.consumers
        self._offsets = services.offsets
        self._resets = services.resets
        self._end = hold.end
        self._cold_reads = services.cold_reads
        self._one = asyncio.Lock()

    async def reset_offset(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 222: resets the offsets of a group."""
        header = ResetOffsetRequestHeader.from_ext_fields(command.ext_fields)
        async with self._one:
            topic = self._topic(header)
            while True:
                table = await self._new_offsets(header, topic)
                topic, before = self._topic(header), topic
                if topic is before:
                    break
            if not self._config.use_server_side_reset_offset:
                return await self._reset_by_clients(command, header, table)
            for queue_id, offset in table.items():
                self._offsets.reset(header.group, header.topic, queue_id, offset)
                self._resets.add(header.group, header.topic, queue_id, Reset(offset))
                self._end(header.topic.encode(), queue_id, header.group)
            return command.answer(ResponseCode.SUCCESS, body=await _encoded(self._body(header.topic, table)))

    def _topic(self, header: ResetOffsetRequestHeader) -> TopicConfig:
        """The topic of a reset.

        Raises:
            BrokerError: there is no such topic, or no such group.
        """
        topic = self._topics.get(header.topic)
        if not self._config.use_server_side_reset_offset:
            if topic is None:
                raise BrokerError(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
                )
            return topic
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if header.group not in self._groups.table:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
        return topic

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

    async def _new_offsets(self, header: ResetOffsetRequestHeader, topic: TopicConfig) -> dict[int, int]:
        """The new offset of each queue to reset."""
        table: dict[int, int] = {}
        cold = ColdRecords()
        while True:
            try:
                await in_turns(self._find(header, topic, table, cold))
                return table
            except NotInMemoryError:
                await self._cold_reads.fetched(cold)

    def _find(
        self, header: ResetOffsetRequestHeader, topic: TopicConfig, table: dict[int, int], cold: ColdRecords
    ) -> Steps[None]:
        """Puts the new offset of each queue into ``table``, except of those that are already there: of one queue, or of
        all if the request names none.

        Raises:
            NotInMemoryError: a message must be fetched for the next queue.
        """
        find: Callable[[ResetOffsetRequestHeader, int, ColdRecords], int] = self._offset_at
        if not self._config.use_server_side_reset_offset:
            queues, find = range(topic.write_queue_nums), self._offset_for_clients
        elif header.queue_id < 0:
            queues = range(topic.read_queue_nums)
        else:
            queues = range(header.queue_id, header.queue_id + 1)
            if header.offset is not None and header.offset != -1:
                find = self._offset_named
        for queue_id in queues:
            if queue_id not in table:
                table[queue_id] = find(header, queue_id, cold)
                yield

    def _offset_named(self, header: ResetOffsetRequestHeader, queue_id: int, _cold: ColdRecords) -> int:
        """The offset that the request names."""
        name, offset = header.topic.encode(), header.offset
        minimum, maximum = self._store.min_queue_offset(name, queue_id), self._store.max_queue_offset(name, queue_id)
        if offset is None or not minimum <= offset <= maximum + 1:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range [{minimum}-{maximum}]"
            )
        return offset

    def _offset_at(self, header: ResetOffsetRequestHeader, queue_id: int, cold: ColdRecords) -> int:
        """The offset at the request's time."""
        name = header.topic.encode()
        if header.timestamp < 0:
            return self._store.max_queue_offset(name, queue_id)
        return self._store.offset_by_time(name, queue_id, header.timestamp, cold=cold)

    def _offset_for_clients(self, header: ResetOffsetRequestHeader, queue_id: int, cold: ColdRecords) -> int:
        """As ``_offset_at``; without ``is_force``, an offset does not become larger."""
        consumed = self._offsets.query(header.group, header.topic, queue_id)
        if consumed is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
        offset = self._offset_at(header, queue_id, cold)
        return offset if header.is_force else min(offset, consumed)

    async def _reset_by_clients(
        self, command: RemotingCommand, header: ResetOffsetRequestHeader, table: Mapping[int, int]
    ) -> RemotingCommand:
        """Resets offsets as RocketMQ 4.9 does: sends the new offsets to every client of the group."""
        info = self._consumers.group(header.group)
        if info is None:
            raise BrokerError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}",
            )
        clients = list(info.clients.values())
        _refuse_old(clients)
        fields = ResetOffsetRequestHeader(header.topic, header.group, header.timestamp).to_ext_fields()
        body = self._body(header.topic, table)
        encoded = sent = await _encoded(body)
        if command.language is LanguageCode.CPP:
            queues = [
                MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
                for queue, offset in body.offset_table.items()
            ]
            sent = await _encoded(ResetOffsetBodyForC(queues))

        def send() -> Steps[None]:
            for client in clients:
                client.channel.invoke_oneway(
                    RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext_fields=dict(fields), body=sent)
                )
                yield

        await in_turns(send())
        return command.answer(ResponseCode.SUCCESS, _NO_CODE, body=encoded)

    def _body(self, topic: str, table: Mapping[int, int]) -> ResetOffsetBody:
        name = self._config.broker_name
        return ResetOffsetBody({MessageQueue(topic, name, queue_id): offset for queue_id, offset in table.items()})


async def _encoded(body: Body) -> bytes:
    """Encodes ``body`` in a thread: the offsets of 4,096 queues take 20 ms."""
    return await asyncio.to_thread(body.encode)


def _refuse_old(clients: Iterable[ClientChannel]) -> None:
    for client in clients:
        if client.version < CLIENT_VERSION_MIN:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={version_name(client.version)}",
            )
