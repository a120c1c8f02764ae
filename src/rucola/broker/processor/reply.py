"""Delivers the replies of request/reply (RocketMQ 5.3.3, ``ReplyMessageProcessor``; requests 324 and 325).

The reply is passed on to the requesting client with request 326; the client id in the message names this client. The
reply is also stored if ``storeReplyMessageEnable`` is true. Whether the store succeeds does not change the response
code, which only says whether the client got the reply.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.checked_topics import CheckedTopics
from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.config import BrokerConfig
from rucola.broker.property_gate import admit
from rucola.broker.schedule.delay_rewrite import PARSED_MAP_CAPACITY
from rucola.common.hosts import host_text
from rucola.common.message import StoreMessage
from rucola.common.message_const import MSG_REGION, PUSH_REPLY_TIME, REPLY_TO_CLIENT, TRACE_ON
from rucola.common.sysflag import COMPRESSION_MASK, MessageSysFlag
from rucola.errors import BrokerError, RemotingError
from rucola.formats.message_id import offset_message_id
from rucola.formats.properties import decode_properties, encode_properties, java_order
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus

_CLIENT_TIMEOUT_MS = 10_000
_KEPT_FLAGS = int(MessageSysFlag.COMPRESSED) | COMPRESSION_MASK


class ReplyMessageProcessor:
    """Serves requests 324 and 325."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        checked: CheckedTopics,
        producers: ProducerManager,
        wall_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._checked = checked
        self._producers = producers
        self._wall_ms = wall_ms
        self._stores = config.store_reply_message_enable
        self._fields = {MSG_REGION: config.region_id, TRACE_ON: "true" if config.trace_on else "false"}

    async def reply(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Requests 324 and 325: a reply."""
        v1 = command.code == RequestCode.SEND_REPLY_MESSAGE
        header_class = SendMessageRequestHeader if v1 else SendMessageRequestHeaderV2
        header = header_class.from_ext_fields(command.ext_fields)
        if not command.body:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the message has no body")
        properties = decode_properties((header.properties or "").encode())
        try:
            topic = self._checked.check(header.topic.encode(), header.default_topic, header.default_topic_queue_nums)
            queue_id = self._checked.choose_queue(header.queue_id, channel, topic)
            admit(properties, header.topic)
        except BrokerError as refusal:
            return command.answer(refusal.code, refusal.remark, dict(self._fields))
        properties |= self._fields
        body = bytes(command.body)
        failure = await self._push(channel, header, properties, body)
        answer = command.answer(
            ResponseCode.SYSTEM_ERROR if failure else ResponseCode.SUCCESS, failure, dict(self._fields)
        )
        place = self._put(channel, header, queue_id, properties, body) if self._stores else None
        if place is None and not failure:
            place = SendMessageResponseHeader("0", queue_id, 0)
        if place is not None:
            answer.ext_fields.update(place.to_ext_fields())
        return answer

    async def _push(
        self, channel: Channel, header: SendMessageRequestHeader, properties: dict[str, str], body: bytes
    ) -> str:
        """Passes the reply to the requesting client; returns why that failed, or an empty text."""
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        asker = self._producers.find_channel(client_id)
        if asker is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._wall_ms()
        pushed = ReplyMessageRequestHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp,
            header.flag,
            channel.remote_address,
            host_text(self._store.store_host),
            now_ms,
            _text(properties | {PUSH_REPLY_TIME: str(now_ms)}),
            header.reconsume_times,
            header.unit_mode,
        )
        request = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext_fields=pushed.to_ext_fields(), body=body
        )
        try:
            code = (await asker.invoke(request, _CLIENT_TIMEOUT_MS)).code
        except RemotingError:
            code = ResponseCode.SYSTEM_ERROR
        return "" if code == ResponseCode.SUCCESS else f"push reply message to {client_id}fail."

    def _put(
        self,
        channel: Channel,
        header: SendMessageRequestHeader,
        queue_id: int,
        properties: dict[str, str],
        body: bytes,
    ) -> SendMessageResponseHeader | None:
        """Stores the reply; returns None if the store refused it."""
        result = self._store.put_message(
            StoreMessage(
                header.topic.encode(),
                queue_id,
                body,
                _text(properties).encode(),
                header.born_timestamp,
                channel.host,
                header.flag,
                header.sys_flag & _KEPT_FLAGS,
                header.reconsume_times or 0,
            )
        )
        if result.status is not PutMessageStatus.PUT_OK:
            return None
        message_id = offset_message_id(self._store.store_host, result.physical_offset)
        return SendMessageResponseHeader(message_id, queue_id, result.queue_offset)


def _text(properties: dict[str, str]) -> str:
    return encode_properties(java_order(properties.items(), PARSED_MAP_CAPACITY)).decode()
