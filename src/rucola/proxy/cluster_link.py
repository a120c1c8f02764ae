"""The connection of one client of the door to one broker of a cluster.

It is a connection over the network like that of any remoting client: opened on first use, and again after a loss. When
it ends, the broker forgets the client and its waiting polls.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rucola.broker.acl.message_topic import topic_of
from rucola.common.columns import ROW_WIDTH
from rucola.common.json_library import orjson
from rucola.common.kernel_columns import (
    FRAME_BODY_LEN,
    FRAME_BODY_POS,
    FRAME_BORN_TIMESTAMP,
    FRAME_PROPERTIES_LEN,
    FRAME_PROPERTIES_POS,
    FRAME_QUEUE_ID,
    FRAME_RECONSUME_TIMES,
    FRAME_SYS_FLAG,
    FRAME_TOPIC_LEN,
    FRAME_TOPIC_POS,
)
from rucola.common.key_builder import TRANS_HALF_TOPIC
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, FormatError
from rucola.formats.message import decode_message
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send_request import encode_send_head, header_head, retry_head
from rucola.proxy import messages
from rucola.proxy.brokers import ServerAnswer
from rucola.proxy.commands import HANDLED
from rucola.proxy.receipt import ReceiptHandle
from rucola.proxy.refusal import RefusedError
from rucola.proxy.send_rows import SendRows
from rucola.remoting.client import RemotingClient
from rucola.remoting.consumer_api import ConsumerApi
from rucola.remoting.response_future import Waiter

if TYPE_CHECKING:
    from rucola.proxy.cluster import ClusterBrokers
    from rucola.proxy.cluster_access import ClusterAccess
    from rucola.proxy.sessions import ClientSession

UNSENT_BYTES_MAX: Final = 16 << 20
"""While a broker has not taken so many bytes of a client, it gets no more messages of this client."""
_HEADS_MAX: Final = 16_384


class ClusterLink:
    """See ``DoorLink``.

    Args:
        brokers: all brokers.
        session: the client.
        broker_name: name of the broker.
        address: address of its master.

    Attributes:
        session: the client.
    """

    def __init__(self, brokers: ClusterBrokers, session: ClientSession, broker_name: str, address: str) -> None:
        self.broker_name, self.address = broker_name, address
        self._brokers, self.session = brokers, session
        options = brokers.options
        if options.signer is not None:
            options = replace(options, signer=options.signer.apart())
        self._client = RemotingClient(
            options,
            lambda _: brokers.reached(broker_name),
            lambda _: brokers.unreachable(broker_name),
        )
        for code in HANDLED:
            self._client.register_processor(code, self._asked)
        self.api = self.own = ConsumerApi(self._client, session.language_code)
        self._access = brokers.access
        if self._access is not None:
            self.api = ConsumerApi(_JudgedCalls(self, self._access, self._client), session.language_code)
        self._loop = asyncio.get_running_loop()

    def send(self, rows: SendRows, waiter: Waiter, timeout_ms: int) -> None:
        """See ``DoorLink``. The rows are empty afterwards.

        Raises:
            RefusedError: ``TOO_MANY_REQUESTS``: the broker takes messages more slowly than the client sends them.
        """
        if self._client.unsent_bytes(self.address) > UNSENT_BYTES_MAX:
            rows.clear()
            raise RefusedError(messages.TOO_MANY_REQUESTS, f"broker {self.broker_name} does not take messages so fast")
        table, view, base = rows.table, rows.view, (rows.count - 1) * ROW_WIDTH

        def part(position: int, length: int) -> bytes:
            start = table[base + position]
            return bytes(view[start : start + table[base + length]])

        head = _head(part(FRAME_TOPIC_POS, FRAME_TOPIC_LEN), self.broker_name, table[base + FRAME_QUEUE_ID])
        if table[base + FRAME_RECONSUME_TIMES]:
            head = retry_head(head, str(table[base + FRAME_RECONSUME_TIMES]), None)
        properties = orjson.dumps(part(FRAME_PROPERTIES_POS, FRAME_PROPERTIES_LEN).decode())
        body = part(FRAME_BODY_POS, FRAME_BODY_LEN)
        sys_flag, born_ms = table[base + FRAME_SYS_FLAG], table[base + FRAME_BORN_TIMESTAMP]
        opaque = self._client.next_opaque()
        frame = encode_send_head(head, sys_flag, born_ms, 0, properties, 0, opaque, len(body))
        waiter.wait_for(timeout_ms, self._loop.time())
        self._client.request(self.address, opaque, waiter, frame, body)
        rows.clear()

    def request(self, command: RemotingCommand, waiter: Waiter, timeout_ms: int) -> int:
        """See ``DoorLink``.

        Raises:
            RefusedError: ``FORBIDDEN``: the client may not send it.
        """
        if self._access is not None:
            self._access.check_request(self.session, command)
        command.opaque = self._client.next_opaque()
        waiter.wait_for(timeout_ms, self._loop.time())
        self._client.request(self.address, command.opaque, waiter, command.encode())
        return command.opaque

    def acknowledge(self, topic: str, group: str, handle: ReceiptHandle) -> bool:
        """See ``DoorLink``: a broker must be asked over the network."""
        return False

    def withdraw(self, opaque: int) -> bool:
        """See ``DoorLink``: a broker cannot be told over the network."""
        return False

    def close(self) -> None:
        """See ``DoorLink``."""
        self._brokers.finish(self._client.close())

    def _asked(self, _address: str, command: RemotingCommand) -> ServerAnswer:
        return self._brokers.asked(self.session, self.broker_name, command)


class _JudgedCalls:
    """Carries the calls that the client may make. See ``Invoker``."""

    def __init__(self, link: ClusterLink, access: ClusterAccess, client: RemotingClient) -> None:
        self._link, self._access, self._client = link, access, client

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """See ``Invoker``.

        Raises:
            RefusedError: ``FORBIDDEN``: the client may not make it.
        """

        async def topic_at(physical_offset: int) -> str | None:
            try:
                record = await self._link.own.view_message(address, physical_offset, timeout_ms)
                message = decode_message(record, unpack=False)
            except FormatError:
                return None
            except BrokerError as error:
                if error.code == ResponseCode.SYSTEM_BUSY:
                    raise
                return None  # there is no message
            if command.code == RequestCode.END_TRANSACTION and message.topic != TRANS_HALF_TOPIC:
                # RocketMQ's broker commits any message to the topic in its property REAL_TOPIC. A body may hold the
                # bytes of a message of another topic with this property.
                return None
            return topic_of(message)

        await self._access.check_call(self._link.session, command, topic_at)
        return await self._client.invoke(address, command, timeout_ms)


@lru_cache(_HEADS_MAX)
def _head(topic: bytes, broker_name: str, queue_id: int) -> bytes:
    """The part of the header that is the same in every send to a queue. No topic is named from which the broker could
    create one: the door knows that the topic exists.
    """
    name = topic.decode()
    return header_head(RequestCode.SEND_MESSAGE_V2, name, MessageQueue(name, broker_name, queue_id), "", 0)
