"""Finds messages by key and id, and offsets of queues (RocketMQ 5.3.3, ``QueryMessageProcessor`` and the offset
requests of ``AdminBrokerProcessor``; requests 12, 33, 29 to 32).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from rucola.broker.cold_reads import ColdReads
from rucola.broker.processor.responses import success
from rucola.broker.retry_owner import is_for
from rucola.common.key_builder import is_retry_topic
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.offset import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    SearchOffsetRequestHeader,
)
from rucola.protocol.headers.query import (
    PARTIAL,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.store.log.cold_read import ColdRecords
from rucola.store.message_store import MessageStore
from rucola.store.results import Boundary


class QueryProcessor:
    """Serves requests from the store alone. If messages are not in memory, threads wait for the disk; the event loop
    does not.
    """

    def __init__(
        self,
        store: MessageStore,
        cold_reads: ColdReads,
    ) -> None:
        self._store = store
        self._cold_reads = cold_reads

    def query_message(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 12: messages by key."""
        return self._cold_reads.serve(partial(self._query, command))

    def view_message(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 33: a message by id."""
        return self._cold_reads.serve(partial(self._view, command))

    def _query(self, command: RemotingCommand, cold: ColdRecords) -> RemotingCommand:
        header = QueryMessageRequestHeader.from_ext_fields(command.ext_fields)
        count = self._store.config.default_query_max_num if header.unique_key_query else header.max_num
        result = self._store.query_by_key(
            header.topic.encode(), header.key.encode(), count, header.begin_timestamp, header.end_timestamp, cold
        )
        if is_retry_topic(header.topic):
            result = result._replace(views=[view for view in result.views if is_for(view, header.topic)])
        fields = QueryMessageResponseHeader(result.index_timestamp_ms, result.index_physical_offset).to_ext_fields()
        if not result.views:
            remark = PARTIAL if result.partial else "can not find message, maybe time range not correct"
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark, fields)
        remark = PARTIAL if result.partial else ""
        return command.answer(ResponseCode.SUCCESS, remark, fields, b"".join(result.views))

    def _view(self, command: RemotingCommand, cold: ColdRecords) -> RemotingCommand:
        physical_offset = ViewMessageRequestHeader.from_ext_fields(command.ext_fields).offset
        record = self._store.message_at(physical_offset, cold)
        if record is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}")
        return command.answer(ResponseCode.SUCCESS, body=bytes(record))

    def search_offset(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 29: the queue offset for a given time."""
        return self._cold_reads.serve(partial(self._search, command))

    def _search(self, command: RemotingCommand, cold: ColdRecords) -> RemotingCommand:
        header = SearchOffsetRequestHeader.from_ext_fields(command.ext_fields)
        boundary = Boundary.UPPER if (header.boundary_type or "").upper() == "UPPER" else Boundary.LOWER
        topic = header.topic.encode()
        offset = self._store.offset_by_time(topic, header.queue_id, header.timestamp, boundary, cold)
        return success(command, OffsetResponseHeader(offset))

    def max_offset(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 30: the maximum offset."""
        header = GetMaxOffsetRequestHeader.from_ext_fields(command.ext_fields)
        return success(
            command, OffsetResponseHeader(self._store.max_queue_offset(header.topic.encode(), header.queue_id))
        )

    def min_offset(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 31: the minimum offset."""
        header = GetMinOffsetRequestHeader.from_ext_fields(command.ext_fields)
        return success(
            command, OffsetResponseHeader(self._store.first_queue_offset(header.topic.encode(), header.queue_id))
        )

    def earliest_store_time(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 32: the store time of the oldest message."""
        return self._cold_reads.serve(partial(self._earliest, command))

    def _earliest(self, command: RemotingCommand, cold: ColdRecords) -> RemotingCommand:
        header = GetEarliestMsgStoretimeRequestHeader.from_ext_fields(command.ext_fields)
        topic = header.topic.encode()
        first = self._store.min_queue_offset(topic, header.queue_id)
        timestamp = self._store.store_time_at(topic, header.queue_id, first, cold)
        return success(command, GetEarliestMsgStoretimeResponseHeader(timestamp))
