"""The pull consumer: reads queues at the offsets it is told. Source: protocol.md 3.4, 4.14; RocketMQ 5.3.3,
DefaultMQPullConsumer and PullAPIWrapper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from rucola.client.checks import check_number, check_queue
from rucola.client.config import PullConsumerConfig
from rucola.client.instance import ClientInstance, ConsumerRegistration, check_group, check_topic
from rucola.client.local_offset_store import LocalFileOffsetStore
from rucola.client.message_selector import MessageSelector, message_selector
from rucola.client.producer import tracing
from rucola.client.pull_result import PullResult, PullStatus, RawPullResult
from rucola.common import message_const
from rucola.common.hosts import host_text
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.sysflag import MessageSysFlag, PullSysFlag
from rucola.errors import BrokerError, ClientError, FormatError, RemotingError, RucolaError
from rucola.formats.compression import decompress
from rucola.formats.inner_batch import decode_single_messages
from rucola.formats.message import decode_message, decode_messages
from rucola.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel
from rucola.protocol.bodies.route import ClusterInfo
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.protocol.headers.query import QueryMessageRequestHeader
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import Files
from rucola.runtime.logs import event

T = TypeVar("T")

_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}
logger = logging.getLogger(__name__)

_OFFSET_ID_BYTES = (16, 28)
"""Address, port and physical offset: of IPv4 and IPv6."""
_FOREVER_MS = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1


class PullConsumer:
    """Reads messages; keeps no position of its own.

    Life cycle: ``async with PullConsumer(...)``, or ``start`` and ``shutdown``, on one event loop.

    Besides what each call names, all of them raise ``BrokerError`` when the broker refuses, and ``RemotingError`` when
    it cannot be reached or does not answer in time; both may be called again.

    Args:
        group: consumer group, whose progress ``committed`` and ``commit`` read and write.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        clock: for the client id.
        registers: whether the brokers hear of the group. They make a retry topic for it then, and the group itself if
            it is new; one that every broker has, TOOLS_CONSUMER, can do without.

    Raises:
        ClientError: the group cannot be one.
        ConfigError: a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: PullConsumerConfig | None = None,
        *,
        clock: Clock | None = None,
        registers: bool = True,
    ) -> None:
        check_group(group)
        self._group = group
        self._config = config or PullConsumerConfig()
        consumer = ConsumerData(group, ConsumeType.CONSUME_ACTIVELY, self._config.message_model)
        clock = clock or SystemClock()
        broadcasting = self._config.message_model is MessageModel.BROADCASTING
        self._instance = ClientInstance(namesrv, self._config, clock, keeps_client_id=broadcasting)
        if registers:
            self._instance.register_consumer(group, ConsumerRegistration(consumer_data=lambda: consumer))
        self._trace = tracing(group, "CONSUME", namesrv, self._config, clock) if self._config.enable_trace else None
        self._suggested: dict[MessageQueue, int] = {}
        self._local: LocalFileOffsetStore | None = None
        if broadcasting:
            directory = self._config.local_offset_store_dir
            self._local = LocalFileOffsetStore(Files(), directory, self._instance.client_id, group)

    async def __aenter__(self) -> PullConsumer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._instance.client_id

    async def start(self) -> None:
        """Begin; connections are opened when they are needed."""
        if not self._instance.running:
            self._instance.start()
            if self._trace is not None:
                await self._trace.start()

    async def shutdown(self) -> None:
        """Leave the brokers and close; pulls under way fail with ``RemotingClosedError``."""
        if self._instance.running:
            try:
                if self._trace is not None:
                    await self._trace.shutdown()
            finally:
                await self._instance.shutdown()

    async def topics(self) -> list[str]:
        """Names of all topics the name server knows, internal ones among them."""
        self._check_running()
        return await self._instance.name_servers.topic_list()

    async def cluster_info(self) -> ClusterInfo:
        """Clusters and brokers that the name server knows."""
        self._check_running()
        return await self._instance.name_servers.cluster_info()

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """Queues of ``topic`` that can be read, as the name server knows them now.

        Raises:
            ClientError: no broker has the topic.
        """
        self._check_running()
        check_topic(topic)
        return list((await self._instance.routes.refresh(topic)).subscribe_queues)

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        max_messages: int = 32,
        expression: str | MessageSelector = "*",
        *,
        suspend_timeout_ms: int = 0,
    ) -> PullResult:
        """Read messages of one queue. With ``enable_trace`` those it gives count as consumed.

        Args:
            queue: which queue.
            queue_offset: where to begin.
            max_messages: how many at most; the broker may give fewer.
            expression: tags, ``A || B``, or ``*`` for all; ``MessageSelector.by_sql(...)`` for a condition.
            suspend_timeout_ms: how long the broker may hold the answer back while there is no message; 0 for not.

        Raises:
            ClientError: an argument is not what it must be; the message says which and why.
            FormatError: a record does not follow its format or fails its checksum. A compressed body that cannot be
                unpacked is none: it comes as stored, and the log says so.
        """
        selector = message_selector(expression)
        raw = await self.pull_raw(queue, queue_offset, max_messages, selector, suspend_timeout_ms=suspend_timeout_ms)
        messages = decode_single_messages(raw.body, queue_offset, unpack=False)
        for message in messages:
            _unpack(message)
            message.broker_name = queue.broker_name
        wanted = selector.tags
        if wanted:
            messages = [message for message in messages if message.tags in wanted]  # brokers compare hashes only
        if self._trace is not None:
            self._trace.consumed(messages)
        return PullResult(raw.status, raw.next_begin_offset, raw.min_offset, raw.max_offset, messages)

    async def pull_raw(
        self,
        queue: MessageQueue,
        queue_offset: int,
        max_messages: int = 32,
        expression: str | MessageSelector = "*",
        *,
        suspend_timeout_ms: int = 0,
    ) -> RawPullResult:
        """Like ``pull``, with the records as they are stored: not decoded, not checked, tags compared by hash only."""
        self._check_running()
        check_queue(queue)
        check_number("queue_offset", queue_offset, 0)
        check_number("max_messages", max_messages, 1, _INT_MAX)
        check_number("suspend_timeout_ms", suspend_timeout_ms, 0)
        selector = message_selector(expression)
        sys_flag, timeout_ms = int(PullSysFlag.SUBSCRIPTION), self._config.consumer_pull_timeout_ms
        if suspend_timeout_ms > 0:
            sys_flag |= PullSysFlag.SUSPEND
            timeout_ms = max(self._config.consumer_timeout_when_suspend_ms, suspend_timeout_ms + timeout_ms)
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=max_messages,
            sys_flag=sys_flag,
            commit_offset=0,
            suspend_timeout_millis=suspend_timeout_ms,
            sub_version=0,
            subscription=selector.expression,
            expression_type=selector.expression_type.value,
            broker_name=queue.broker_name,
        )
        await self._instance.routes.route(queue.topic)
        address = self._instance.routes.broker(queue.broker_name, self._suggested.get(queue, 0))
        answer = await self._told(queue, self._instance.api.pull_message(address, header, timeout_ms))
        found = answer.header
        self._suggested[queue] = found.suggest_which_broker_id
        return RawPullResult(
            _STATUS[answer.code], found.next_begin_offset, found.min_offset, found.max_offset, answer.body
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """First queue offset the broker still holds."""
        return await self._told(queue, self._instance.api.min_offset(await self._master(queue), queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The next free queue offset."""
        return await self._told(queue, self._instance.api.max_offset(await self._master(queue), queue))

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First queue offset stored at or after ``timestamp_ms`` (since the epoch); the maximum when there is none."""
        check_number("timestamp_ms", timestamp_ms, 0)
        return await self._told(queue, self._instance.api.search_offset(await self._master(queue), queue, timestamp_ms))

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the first message still held was stored, ms since the epoch; -1 for an empty queue."""
        return await self._told(queue, self._instance.api.earliest_store_time(await self._master(queue), queue))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress on ``queue``: the next queue offset it wants; None when it has none.

        With BROADCASTING that of this client, from its file.

        Raises:
            FormatError: the file is damaged, and there is no spare that reads.
            DiskError: the file cannot be read.
        """
        check_queue(queue)
        if self._local is not None:
            self._check_running()
            return (await asyncio.to_thread(self._local.load)).get(queue)
        call = self._instance.api.query_consumer_offset(await self._master(queue), self._group, queue, False)
        return await self._told(queue, call)

    async def commit(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Store the group's progress on ``queue`` and wait until the broker has it, with BROADCASTING the disk.

        Raises:
            ClientError: it is no queue offset, or not a queue.
            FormatError: the client's file is damaged, and there is no spare that reads.
            DiskError: the client's file cannot be written.
        """
        check_queue(queue)
        check_number("consumer_offset", consumer_offset, 0)
        if self._local is not None:
            self._check_running()
            await asyncio.to_thread(self._local.commit, {queue: consumer_offset})
            return
        call = self._instance.api.update_consumer_offset(await self._master(queue), self._group, queue, consumer_offset)
        await self._told(queue, call)

    async def message_by_id(self, offset_msg_id: str) -> MessageExt:
        """The message that lies where the id says (``SendResult.offset_msg_id``), asked of the broker in the id.

        Raises:
            ClientError: it is no offset id. A UNIQ_KEY looks like one; look that up with ``query_by_unique_key``.
            FormatError: what the broker sent is not one message.
        """
        self._check_running()
        try:
            raw = bytes.fromhex(offset_msg_id)
        except ValueError:
            raw = b""
        if len(raw) not in _OFFSET_ID_BYTES:
            raise ClientError(f"{offset_msg_id!r} is not an offset message id: 32 or 56 hexadecimal digits")
        physical_offset = int.from_bytes(raw[-8:], "big", signed=True)
        return decode_message(await self._instance.api.view_message(host_text(raw[:-8]), physical_offset))

    async def query_by_key(
        self,
        topic: str,
        key: str,
        max_messages: int = 64,
        *,
        begin_timestamp_ms: int = 0,
        end_timestamp_ms: int | None = None,
    ) -> list[MessageExt]:
        """Messages of ``topic`` that have ``key`` among their keys, of all its brokers, oldest first.

        Args:
            topic: which topic.
            key: one key.
            max_messages: how many at most, of each broker.
            begin_timestamp_ms: stored at or after this time, ms since the epoch.
            end_timestamp_ms: stored at or before this time; None for no limit.

        Raises:
            ClientError: no broker has the topic.
        """
        last_ms = _FOREVER_MS if end_timestamp_ms is None else end_timestamp_ms
        header = QueryMessageRequestHeader(topic, key, max_messages, begin_timestamp_ms, last_ms, False)
        found = await self._query(header)
        return [message for message in found if key in (message.keys or "").split(message_const.KEY_SEPARATOR)]

    async def query_by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Messages of ``topic`` with this UNIQ_KEY, oldest first: several when a send was repeated.

        Raises:
            ClientError: no broker has the topic.
        """
        header = QueryMessageRequestHeader(topic, unique_key, 32, 0, _FOREVER_MS, True)
        return [message for message in await self._query(header) if message.uniq_key == unique_key]

    async def _query(self, header: QueryMessageRequestHeader) -> list[MessageExt]:
        self._check_running()
        routes = self._instance.routes
        route = await routes.route(header.topic)
        messages: list[MessageExt] = []
        for broker_name in sorted({queue.broker_name for queue in route.subscribe_queues}):
            records = await self._instance.api.query_message(routes.broker(broker_name), header)
            found = [message for message in decode_messages(records, unpack=False) if message.topic == header.topic]
            for message in found:
                _unpack(message)
                message.broker_name = broker_name
            messages += found
        return sorted(messages, key=lambda message: message.store_timestamp_ms)

    async def _master(self, queue: MessageQueue) -> str:
        self._check_running()
        check_queue(queue)
        await self._instance.routes.route(queue.topic)
        return self._instance.routes.master(queue.broker_name)

    async def _told(self, queue: MessageQueue, call: Awaitable[T]) -> T:
        """The result of ``call``; when the broker fails, its address is asked for again before the next one."""
        try:
            return await call
        except BrokerError as error:
            error.broker_name = queue.broker_name
            raise
        except RemotingError:
            self._suggested.pop(queue, None)
            if self._instance.routes.refresh_wanted(queue.topic):
                self._instance.keep(self._refresh(queue.topic))
            raise

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.routes.refresh(topic)
        except RucolaError:
            return  # the next call tells what is wrong; the old route stays

    def _check_running(self) -> None:
        if not self._instance.running:
            raise ClientError("the pull consumer is not started, or is shut down")


def _unpack(message: MessageExt) -> None:
    """The body as it was sent. One that cannot be unpacked stays as stored: who sent it must not stop a whole queue."""
    if not message.sys_flag & MessageSysFlag.COMPRESSED:
        return
    try:
        message.body = decompress(message.body, message.sys_flag)
    except FormatError as error:
        event(
            logger,
            logging.WARNING,
            "body cannot be unpacked",
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            error=error,
        )
