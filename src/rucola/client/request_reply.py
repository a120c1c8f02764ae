"""Requests that wait for their consumers' replies. Source: RocketMQ 5.3.3, RequestFutureHolder and
ClientRemotingProcessor#receiveReplyMessage.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from rucola.common import message_const
from rucola.common.hosts import host_bytes, split_address
from rucola.common.key_builder import REPLY_TOPIC_SUFFIX
from rucola.common.message import Message, MessageExt, SystemMessage
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import ClientError, RequestTimeoutError
from rucola.formats.compression import decompress
from rucola.formats.properties import decode_properties
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import ReplyMessageRequestHeader
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_REPLY = "reply"


class RequestTable:
    """The requests of one producer that wait for a reply. The table may be used on only one event loop.

    Args:
        client_id: client id to which replies are sent.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def request(
        self, message: Message, timeout_ms: int, until: float, send: Callable[[Message], Awaitable[object]]
    ) -> MessageExt:
        """Sends ``message`` as a request and waits for its reply, which may arrive before ``send`` returns.

        Args:
            message: the request; only its UNIQ_KEY is changed.
            timeout_ms: timeout of send and reply together.
            until: end of the timeout, by the event loop's time.
            send: function that sends the message passed to it.

        Raises:
            RequestTimeoutError: no reply arrived in time.
        """
        correlation_id = os.urandom(16).hex()
        marks = {
            message_const.CORRELATION_ID: correlation_id,
            message_const.REPLY_TO_CLIENT: self._client_id,
            message_const.TTL: str(timeout_ms),
        }
        request = SystemMessage(message.topic, message.body, flag=message.flag, properties=message.properties | marks)
        future: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        try:
            async with asyncio.timeout_at(until):
                await send(request)
                return await future
        except TimeoutError:
            raise RequestTimeoutError(message.topic, request.uniq_key or "", timeout_ms) from None
        finally:
            message.uniq_key = request.uniq_key
            del self._waiting[correlation_id]

    def close(self) -> None:
        """Fails all waiting requests, because the client shuts down."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ClientError("the producer was shut down before the reply came"))
                future.exception()  # marks the exception as retrieved, even if the waiter was just cancelled

    def replied(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Handles PUSH_REPLY_MESSAGE_TO_CLIENT. A reply without a waiting request is accepted too."""
        header = ReplyMessageRequestHeader.from_ext_fields(command.ext_fields)
        message = _received(header, bytes(command.body))
        future = self._waiting.get(message.properties.get(message_const.CORRELATION_ID, ""))
        if future is None:
            event(logger, logging.INFO, "reply without a request", peer=address, topic=message.topic)
        elif not future.done():
            future.set_result(message)
        return command.answer(ResponseCode.SUCCESS)


def reply_message(request: MessageExt, body: bytes) -> Message:
    """Makes the reply message for ``request``.

    Raises:
        ClientError: the message lacks a property that is needed for a reply.
    """
    properties = {message_const.MSG_TYPE: _REPLY}
    for name in (message_const.CORRELATION_ID, message_const.REPLY_TO_CLIENT, message_const.TTL):
        value = request.properties.get(name)
        if value is None:
            raise ClientError(f"the message is not a request: it has no property {name}")
        properties[name] = value
    cluster = request.properties.get(message_const.CLUSTER)
    if cluster is None:
        raise ClientError(f"the request does not name its cluster (property {message_const.CLUSTER})")
    return SystemMessage(cluster + REPLY_TOPIC_SUFFIX, body, properties=properties)


def _received(header: ReplyMessageRequestHeader, body: bytes) -> MessageExt:
    """Decodes a reply as a message without offsets, because brokers need not store replies."""
    if header.sys_flag & MessageSysFlag.COMPRESSED:
        body = decompress(body, header.sys_flag)
    return MessageExt(
        header.topic,
        body,
        flag=header.flag,
        properties=decode_properties((header.properties or "").encode()),
        queue_id=header.queue_id,
        queue_offset=-1,
        physical_offset=-1,
        store_size=0,
        body_crc=0,
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp,
        born_host=_host(header.born_host),
        store_timestamp_ms=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
    )


def _host(address: str) -> bytes:
    host, port = split_address(address.lstrip("/"))
    return host_bytes(host, port)
