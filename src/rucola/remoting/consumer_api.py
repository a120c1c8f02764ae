"""Typed calls of consumers: locks, returned messages, POP. An unexpected code raises ``BrokerError``."""

from __future__ import annotations

from collections.abc import Collection

from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from rucola.protocol.bodies.lite import LiteSubscriptionCtlRequestBody, LiteSubscriptionDTO
from rucola.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.headers.client import ConsumerSendMsgBackRequestHeader
from rucola.protocol.headers.lite import PopLiteMessageRequestHeader, PopLiteMessageResponseHeader
from rucola.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rucola.remoting.api import RemotingApi
from rucola.remoting.name_server_api import TIMEOUT_MS

_TOO_OLD = "pop message is timeout too much"
_POPPED = frozenset({ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL})


class ConsumerApi(RemotingApi):
    """The calls, including those of ``RemotingApi``."""

    async def check_client(
        self, address: str, client_id: str, group: str, subscription: SubscriptionData, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """CHECK_CLIENT_CONFIG (46): raises ``BrokerError`` if the broker does not support the filter."""
        body = CheckClientRequestBody(client_id, group, subscription)
        await self._call(address, RequestCode.CHECK_CLIENT_CONFIG, body=body.encode(), timeout_ms=timeout_ms)

    async def lock_queues(
        self,
        address: str,
        group: str,
        client_id: str,
        queues: Collection[MessageQueue],
        timeout_ms: int = TIMEOUT_MS,
    ) -> set[MessageQueue]:
        """LOCK_BATCH_MQ (41): returns the ``queues`` that are locked for this client for the next minute."""
        body = LockBatchRequestBody(group, client_id, mq_set=list(queues))
        answer = await self._call(address, RequestCode.LOCK_BATCH_MQ, body=body.encode(), timeout_ms=timeout_ms)
        return set(LockBatchResponseBody.decode(answer.body).lock_ok_mq_set)

    async def unlock_queues(
        self,
        address: str,
        group: str,
        client_id: str,
        queues: Collection[MessageQueue],
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """UNLOCK_BATCH_MQ (42); waits for the response."""
        body = LockBatchRequestBody(group, client_id, mq_set=list(queues))
        await self._call(address, RequestCode.UNLOCK_BATCH_MQ, body=body.encode(), timeout_ms=timeout_ms)

    async def send_back(
        self, address: str, header: ConsumerSendMsgBackRequestHeader, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """CONSUMER_SEND_MSG_BACK (36): the broker delivers the message again later, or moves it to the dead-letter
        topic.
        """
        await self._call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)

    async def pop(
        self, address: str, header: PopMessageRequestHeader, timeout_ms: int
    ) -> tuple[PopMessageResponseHeader | None, bytes]:
        """POP_MESSAGE (200050): the header with the data for the receipt handles, and the stored records (empty if no
        message came in time). The header is None if the born time shows the broker that the request is outdated.
        """
        answer = await self._call(address, RequestCode.POP_MESSAGE, header, timeout_ms=timeout_ms, expected=_POPPED)
        if answer.code == ResponseCode.POLLING_TIMEOUT and _TOO_OLD in (answer.remark or ""):
            return None, b""
        records = b"" if answer.code else bytes(answer.body)
        return PopMessageResponseHeader.from_ext_fields(answer.ext_fields), records

    async def pop_lite(
        self, address: str, header: PopLiteMessageRequestHeader, timeout_ms: int
    ) -> tuple[PopLiteMessageResponseHeader, bytes]:
        """POP_LITE_MESSAGE (200070): the header with the data for the receipt handles, and the stored records (empty if
        no message came in time).
        """
        answer = await self._call(
            address, RequestCode.POP_LITE_MESSAGE, header, timeout_ms=timeout_ms, expected=_POPPED
        )
        records = b"" if answer.code else bytes(answer.body)
        return PopLiteMessageResponseHeader.from_ext_fields(answer.ext_fields), records

    async def change_lite_subscriptions(
        self, address: str, changes: list[LiteSubscriptionDTO], timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """LITE_SUBSCRIPTION_CTL (200071): carries out changes of subscriptions to lite topics, in order."""
        body = LiteSubscriptionCtlRequestBody(changes)
        await self._call(address, RequestCode.LITE_SUBSCRIPTION_CTL, body=body.encode(), timeout_ms=timeout_ms)

    async def ack(self, address: str, header: AckMessageRequestHeader, timeout_ms: int = TIMEOUT_MS) -> None:
        """ACK_MESSAGE (200051)."""
        await self._call(address, RequestCode.ACK_MESSAGE, header, timeout_ms=timeout_ms)

    async def change_invisible_time(
        self, address: str, header: ChangeInvisibleTimeRequestHeader, timeout_ms: int = TIMEOUT_MS
    ) -> ChangeInvisibleTimeResponseHeader:
        """CHANGE_MESSAGE_INVISIBLETIME (200053): the data for the message's new receipt handle."""
        answer = await self._call(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, timeout_ms=timeout_ms)
        return ChangeInvisibleTimeResponseHeader.from_ext_fields(answer.ext_fields)
