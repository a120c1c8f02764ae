"""The pull consumer: reads queues at given offsets. Source: protocol.md 3.4, 4.14; RocketMQ 5.3.3,
DefaultMQPullConsumer and PullAPIWrapper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from rucola.client.checks import check_number, check_queue
from rucola.client.config import PullConsumerConfig
from rucola.client.faces import Asynchronous
from rucola.client.instance import ClientInstance, ConsumerRegistration, check_group, check_topic
from rucola.client.local_offset_store import LocalFileOffsetStore
from rucola.client.message_selector import MessageSelector, message_selector
from rucola.client.producer import tracing
from rucola.client.pull_result import PullResult, PullStatus, RawPullResult
from rucola.client.received import PullOrigin, ReceivedMessage
from rucola.common import message_const
from rucola.common.hosts import host_text
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT64_MAX
from rucola.common.options import checked_config
from rucola.common.sysflag import PullSysFlag
from rucola.errors import BrokerError, ClientError, RemotingError, RucolaError
from rucola.formats.message import decode_message
from rucola.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel
from rucola.protocol.bodies.route import ClusterInfo
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.protocol.headers.query import QueryMessageRequestHeader
from rucola.remoting.api import QueryAnswer
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import Files

T = TypeVar("T")

_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}
logger = logging.getLogger(__name__)

_OFFSET_ID_BYTES = (16, 28)
"""Lengths in bytes of a decoded offset message id (address, port and physical offset) for IPv4 and IPv6."""
_INT_MAX = (1 << 31) - 1


class PullConsumer(Asynchronous):
    """Reads messages at given offsets; keeps no position.

    Life cycle: ``async with PullConsumer(...)``, or ``start`` and ``shutdown``, on one event loop.

    In addition to the errors listed, methods that send requests raise ``BrokerError`` if a server refuses, and
    ``RemotingError`` if it cannot be reached or does not respond in time. The application may repeat the failed call.

    Args:
        group: consumer group; ``committed`` reads its consumer offsets, and ``commit`` writes them.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        clock: gives the time for the client id.
        registers: whether heartbeats register the group. Brokers then create its retry topic, and the group if it is
            new. A group that every broker has, such as TOOLS_CONSUMER, needs no registration.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
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
        self._config = checked_config(config, PullConsumerConfig)
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
        """The id by which brokers know this client."""
        return self._instance.client_id

    async def start(self) -> None:
        """Starts the consumer; connections are opened when needed."""
        if not self._instance.running:
            self._instance.start()
            if self._trace is not None:
                await self._trace.start()

    async def shutdown(self) -> None:
        """Unregisters and closes; pulls in progress fail with ``RemotingClosedError``."""
        if self._instance.running:
            try:
                if self._trace is not None:
                    await self._trace.shutdown()
            finally:
                await self._instance.shutdown()

    async def topics(self) -> list[str]:
        """Names of all topics that the name server knows, including internal ones."""
        self._check_running()
        return await self._instance.name_servers.topic_list()

    async def cluster_info(self) -> ClusterInfo:
        """The clusters and brokers that the name server knows."""
        self._check_running()
        return await self._instance.name_servers.cluster_info()

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of ``topic``, freshly fetched from the name server.

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
        """Reads messages of one queue. With ``enable_trace``, returned messages are traced as consumed.

        Args:
            queue: the queue.
            queue_offset: first queue offset to read.
            max_messages: largest number of messages; the broker may return fewer.
            expression: tags, ``A || B``, or ``*`` for all; ``MessageSelector.by_sql(...)`` for a condition.
            suspend_timeout_ms: how long the broker may hold a pull that finds no message; with 0 it responds
                immediately.

        Raises:
            ClientError: an argument is invalid; the error names the argument and the reason.
            FormatError: a record is malformed or fails its checksum. A compressed body that cannot be decompressed
                raises ``UnreadableBodyError`` when it is read.
        """
        selector = message_selector(expression)
        raw = await self.pull_raw(queue, queue_offset, max_messages, selector, suspend_timeout_ms=suspend_timeout_ms)
        origin = PullOrigin(queue.broker_name, raw.min_offset, raw.max_offset)
        messages = ReceivedMessage.of_records(raw.body, origin, queue_offset)
        wanted = selector.tags
        if wanted:
            # brokers compare only the hashes of tags
            messages = [message for message in messages if message.tags in wanted]
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
        """Like ``pull``, but returns the records as stored: not decoded and not checked, with tags compared only by
        hash.
        """
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
        """First queue offset that the broker still has."""
        return await self._told(queue, self._instance.api.min_offset(await self._master(queue), queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Queue offset of the next message to be stored."""
        return await self._told(queue, self._instance.api.max_offset(await self._master(queue), queue))

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at or after ``timestamp_ms`` (since the epoch); the maximum offset
        if there is none.
        """
        check_number("timestamp_ms", timestamp_ms, 0)
        return await self._told(queue, self._instance.api.search_offset(await self._master(queue), queue, timestamp_ms))

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Store time of the first message that the broker still has, ms since the epoch; -1 for an empty queue."""
        return await self._told(queue, self._instance.api.earliest_store_time(await self._master(queue), queue))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's consumer offset for ``queue``: the next queue offset to consume; None if there is none.

        With BROADCASTING, this client's own offset from its file.

        Raises:
            FormatError: the file is damaged, and there is no valid backup.
            DiskError: the file cannot be read.
        """
        check_queue(queue)
        if self._local is not None:
            self._check_running()
            return (await asyncio.to_thread(self._local.load)).get(queue)
        call = self._instance.api.query_consumer_offset(await self._master(queue), self._group, queue, False)
        return await self._told(queue, call)

    async def commit(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Stores the group's consumer offset for ``queue``; waits for the broker, or with BROADCASTING for the disk.

        Raises:
            ClientError: the queue or the offset is invalid.
            FormatError: the client's file is damaged, and there is no valid backup.
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
        """Fetches the message with this offset id (``SendResult.offset_msg_id``), which contains the broker's address.

        Raises:
            ClientError: the id is not an offset id. A UNIQ_KEY looks similar; use ``query_by_unique_key`` for it.
            FormatError: the broker's response is not exactly one message.
        """
        self._check_running()
        try:
            raw = bytes.fromhex(offset_msg_id)
        except ValueError:
            raw = b""
        if len(raw) not in _OFFSET_ID_BYTES:
            raise ClientError(f"{offset_msg_id!r} is not an offset message id, which has 32 or 56 hexadecimal digits")
        physical_offset = int.from_bytes(raw[-8:], "big", signed=True)
        return decode_message(await self._instance.api.view_message(host_text(raw[:-8]), physical_offset))

    async def message_at(self, topic: str, broker_name: str, physical_offset: int) -> MessageExt:
        """Fetches the message that begins at a place in the log of a broker of ``topic``; it may be of another topic.

        Args:
            topic: the topic.
            broker_name: the broker.
            physical_offset: where the message begins.

        Raises:
            BrokerError: the broker finds no message there.
            ClientError: no broker has the topic, or the broker is unknown.
            FormatError: the broker's response is not exactly one message.
        """
        self._check_running()
        await self._instance.routes.route(topic)
        address = self._instance.routes.broker(broker_name)
        return decode_message(await self._instance.api.view_message(address, physical_offset))

    async def query_by_key(
        self,
        topic: str,
        key: str,
        max_messages: int = 64,
        *,
        begin_timestamp_ms: int = 0,
        end_timestamp_ms: int | None = None,
    ) -> list[MessageExt]:
        """Finds messages of ``topic`` that have ``key`` among their keys, on all brokers of the topic; oldest first.

        Args:
            topic: the topic.
            key: one key.
            max_messages: largest number of messages from each broker.
            begin_timestamp_ms: earliest store time, ms since the epoch.
            end_timestamp_ms: latest store time; None for no limit.

        Raises:
            ClientError: no broker has the topic.
        """
        last_ms = INT64_MAX if end_timestamp_ms is None else end_timestamp_ms
        header = QueryMessageRequestHeader(topic, key, max_messages, begin_timestamp_ms, last_ms, False)
        found = await self._query(header)
        return [message for message in found if key in (message.keys or "").split(message_const.KEY_SEPARATOR)]

    async def query_index(self, topic: str, broker_name: str, key: str, max_messages: int) -> QueryAnswer:
        """Returns the stored records, neither decoded nor checked, that one broker's index finds for a key or UNIQ_KEY.

        Args:
            topic: the topic.
            broker_name: the broker.
            key: the key; records with another key that has the same hash are returned too.
            max_messages: largest number of records; brokers have a limit of their own.

        Raises:
            ClientError: no broker has the topic, or the broker is unknown.
        """
        self._check_running()
        await self._instance.routes.route(topic)
        header = QueryMessageRequestHeader(topic, key, max_messages, 0, INT64_MAX, False)
        return await self._instance.api.query_message(self._instance.routes.broker(broker_name), header)

    async def query_by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Finds messages of ``topic`` with this UNIQ_KEY, oldest first; several if a send was repeated.

        Raises:
            ClientError: no broker has the topic.
        """
        header = QueryMessageRequestHeader(topic, unique_key, 32, 0, INT64_MAX, True)
        return [message for message in await self._query(header) if message.uniq_key == unique_key]

    async def _query(self, header: QueryMessageRequestHeader) -> list[MessageExt]:
        self._check_running()
        routes = self._instance.routes
        route = await routes.route(header.topic)
        messages: list[MessageExt] = []
        for broker_name in sorted({queue.broker_name for queue in route.subscribe_queues}):
            answer = await self._instance.api.query_message(routes.broker(broker_name), header)
            decoded = ReceivedMessage.of_records(answer.records, PullOrigin(broker_name))
            messages += [message for message in decoded if message.topic == header.topic]
        return sorted(messages, key=lambda message: message.store_timestamp_ms)

    async def _master(self, queue: MessageQueue) -> str:
        self._check_running()
        check_queue(queue)
        await self._instance.routes.route(queue.topic)
        return self._instance.routes.master(queue.broker_name)

    async def _told(self, queue: MessageQueue, call: Awaitable[T]) -> T:
        """Runs ``call`` and returns its result; if the broker does not respond, fetches the route again."""
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
            return  # the next call reports the error; the old route stays

    def _check_running(self) -> None:
        if not self._instance.running:
            raise ClientError("the pull consumer is not started, or is shut down")
