"""Typed calls, one per request code, over a ``RemotingClient``.

Each call takes the server's address first and its timeout in milliseconds last. A call raises ``BrokerError`` for a
code that is not an ordinary outcome of the call, ``FormatError`` for a response that does not follow protocol.md 2, and
the errors of ``RemotingClient.invoke``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.consumer_list import GetConsumerListByGroupResponseBody
from rucola.protocol.bodies.heartbeat import HeartbeatData
from rucola.protocol.bodies.route import ClusterInfo
from rucola.protocol.bodies.topic_list import TopicList
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.headers.client import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from rucola.protocol.headers.header import CommandHeader
from rucola.protocol.headers.offset import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.protocol.headers.query import (
    PARTIAL,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rucola.protocol.headers.recall import RecallMessageRequestHeader, RecallMessageResponseHeader
from rucola.protocol.headers.transaction import EndTransactionRequestHeader
from rucola.remoting.name_server_api import TIMEOUT_MS, NameServerApi

PULL_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Ordinary outcomes of a pull (protocol.md 3.4)."""


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """Response to 11 (PULL_MESSAGE) and 361 (LITE_PULL_MESSAGE): one of ``PULL_CODES``, the offset of the next pull,
    and the stored records unchanged.
    """

    code: int
    header: PullMessageResponseHeader
    body: bytes


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Response to 12 (QUERY_MESSAGE): the stored records that were found, and the progress of the broker's index.

    Attributes:
        records: the stored records, or empty if there are none. RocketMQ's broker compares only the hashes of keys, so
            some records may have a different key from the one requested.
        index_physical_offset: physical offset of the newest message in the index; 0 if the response does not contain
            it, for example after a query without a result.
        is_partial: whether records may be missing, because the search was cut short.
    """

    records: bytes
    index_physical_offset: int
    is_partial: bool


class RemotingApi(NameServerApi):
    """The calls, including those of ``NameServerApi``."""

    # name server

    async def cluster_info(self, address: str, timeout_ms: int = TIMEOUT_MS) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO (106)."""
        answer = await self._call(address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=timeout_ms)
        return ClusterInfo.decode(answer.body)

    async def topic_list(self, address: str, timeout_ms: int = TIMEOUT_MS) -> list[str]:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        answer = await self._call(address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout_ms=timeout_ms)
        return TopicList.decode(answer.body).topic_list

    # client management

    async def heartbeat(self, address: str, data: HeartbeatData, timeout_ms: int = TIMEOUT_MS) -> int:
        """HEART_BEAT (34); returns the ordinal of the broker's version."""
        answer = await self._call(address, RequestCode.HEART_BEAT, body=data.encode(), timeout_ms=timeout_ms)
        return answer.version

    async def unregister_client(
        self,
        address: str,
        client_id: str,
        producer_group: str | None = None,
        consumer_group: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """UNREGISTER_CLIENT (35)."""
        header = UnregisterClientRequestHeader(client_id, producer_group, consumer_group)
        await self._call(address, RequestCode.UNREGISTER_CLIENT, header, timeout_ms=timeout_ms)

    async def consumer_list(self, address: str, consumer_group: str, timeout_ms: int = TIMEOUT_MS) -> list[str]:
        """GET_CONSUMER_LIST_BY_GROUP (38): client ids; raises ``BrokerError`` 1 for a group without consumers."""
        header = GetConsumerListByGroupRequestHeader(consumer_group)
        answer = await self._call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, timeout_ms=timeout_ms)
        return GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list

    # messages

    async def pull_message(
        self, address: str, header: PullMessageRequestHeader, timeout_ms: int, lite: bool = False
    ) -> PullAnswer:
        """PULL_MESSAGE (11), or LITE_PULL_MESSAGE (361)."""
        code = RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE
        answer = await self._call(address, code, header, timeout_ms=timeout_ms, expected=PULL_CODES)
        return PullAnswer(answer.code, PullMessageResponseHeader.from_ext_fields(answer.ext_fields), bytes(answer.body))

    async def view_message(self, address: str, physical_offset: int, timeout_ms: int = TIMEOUT_MS) -> bytes:
        """VIEW_MESSAGE_BY_ID (33): the stored record."""
        header = ViewMessageRequestHeader(physical_offset)
        answer = await self._call(address, RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_ms=timeout_ms)
        return bytes(answer.body)

    async def query_message(
        self, address: str, header: QueryMessageRequestHeader, timeout_ms: int = TIMEOUT_MS
    ) -> QueryAnswer:
        """QUERY_MESSAGE (12)."""
        expected = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
        answer = await self._call(address, RequestCode.QUERY_MESSAGE, header, timeout_ms=timeout_ms, expected=expected)
        if not answer.ext_fields:  # the peer does not report the progress of its index
            return QueryAnswer(bytes(answer.body), 0, False)
        progress = QueryMessageResponseHeader.from_ext_fields(answer.ext_fields)
        return QueryAnswer(bytes(answer.body), progress.index_last_update_phyoffset, answer.remark == PARTIAL)

    async def recall_message(
        self, address: str, header: RecallMessageRequestHeader, timeout_ms: int = TIMEOUT_MS
    ) -> str:
        """RECALL_MESSAGE (370); returns the unique key of the message."""
        answer = await self._call(address, RequestCode.RECALL_MESSAGE, header, timeout_ms=timeout_ms)
        return RecallMessageResponseHeader.from_ext_fields(answer.ext_fields).msg_id

    async def end_transaction(
        self, address: str, header: EndTransactionRequestHeader, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """END_TRANSACTION (37) with a decision; the response confirms that the broker received the decision."""
        await self._call(address, RequestCode.END_TRANSACTION, header, timeout_ms=timeout_ms)

    # offsets

    async def query_consumer_offset(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        set_zero_if_not_found: bool | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> int | None:
        """QUERY_CONSUMER_OFFSET (14); None if the group has no consumer offset for ``queue`` (code 22)."""
        header = QueryConsumerOffsetRequestHeader(
            group, queue.topic, queue.queue_id, set_zero_if_not_found, queue.broker_name
        )
        expected = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
        answer = await self._call(
            address, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_ms=timeout_ms, expected=expected
        )
        return None if answer.code else OffsetResponseHeader.from_ext_fields(answer.ext_fields).offset

    async def update_consumer_offset(
        self, address: str, group: str, queue: MessageQueue, consumer_offset: int, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """UPDATE_CONSUMER_OFFSET (15); waits for the response."""
        header = UpdateConsumerOffsetRequestHeader(
            group, queue.topic, queue.queue_id, consumer_offset, queue.broker_name
        )
        await self._call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=timeout_ms)

    async def search_offset(
        self,
        address: str,
        queue: MessageQueue,
        timestamp_ms: int,
        boundary_type: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> int:
        """SEARCH_OFFSET_BY_TIMESTAMP (29); ``boundary_type`` LOWER (the default) or UPPER."""
        header = SearchOffsetRequestHeader(queue.topic, queue.queue_id, timestamp_ms, boundary_type, queue.broker_name)
        return await self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, timeout_ms)

    async def max_offset(self, address: str, queue: MessageQueue, timeout_ms: int = TIMEOUT_MS) -> int:
        """GET_MAX_OFFSET (30): the next free queue offset."""
        header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id, broker_name=queue.broker_name)
        return await self._offset(address, RequestCode.GET_MAX_OFFSET, header, timeout_ms)

    async def min_offset(self, address: str, queue: MessageQueue, timeout_ms: int = TIMEOUT_MS) -> int:
        """GET_MIN_OFFSET (31): the first queue offset that the broker still has."""
        header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
        return await self._offset(address, RequestCode.GET_MIN_OFFSET, header, timeout_ms)

    async def earliest_store_time(self, address: str, queue: MessageQueue, timeout_ms: int = TIMEOUT_MS) -> int:
        """GET_EARLIEST_MSG_STORETIME (32) in ms, -1 for an empty queue."""
        header = GetEarliestMsgStoretimeRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
        answer = await self._call(address, RequestCode.GET_EARLIEST_MSG_STORETIME, header, timeout_ms=timeout_ms)
        return GetEarliestMsgStoretimeResponseHeader.from_ext_fields(answer.ext_fields).timestamp

    async def _offset(self, address: str, code: RequestCode, header: CommandHeader, timeout_ms: int) -> int:
        answer = await self._call(address, code, header, timeout_ms=timeout_ms)
        return OffsetResponseHeader.from_ext_fields(answer.ext_fields).offset
