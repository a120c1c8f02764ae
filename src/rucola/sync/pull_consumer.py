"""``PullConsumer`` with blocking calls.

Generated from rucola/client/pull_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from typing import Any

from rucola.client.config import PullConsumerConfig
from rucola.client.faces import Blocking
from rucola.client.loop_thread import shared_loop
from rucola.client.message_selector import MessageSelector
from rucola.client.pull_consumer import PullConsumer as AsyncPullConsumer
from rucola.client.pull_result import PullResult, RawPullResult
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.route import ClusterInfo
from rucola.remoting.api import QueryAnswer
from rucola.runtime.clock import Clock


class PullConsumer(Blocking):
    """Reads messages at given offsets; keeps no position.

    Life cycle: ``with PullConsumer(...)``, or ``start`` and ``shutdown``.

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
        self._loop = shared_loop()
        self._async = AsyncPullConsumer(group, namesrv, config, clock=clock, registers=registers)

    def __enter__(self) -> PullConsumer:
        # after an interruption, __exit__ does not run, but the start may have succeeded
        self._loop.run(self._async.__aenter__(), lambda client: client.shutdown())
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._loop.run(self._async.__aexit__(*exc_info))

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._async.client_id

    def start(self) -> None:
        """Starts the consumer; connections are opened when needed."""
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Unregisters and closes; pulls in progress fail with ``RemotingClosedError``."""
        self._loop.run(self._async.shutdown())

    def topics(self) -> list[str]:
        """Names of all topics that the name server knows, including internal ones."""
        return self._loop.run(self._async.topics())

    def cluster_info(self) -> ClusterInfo:
        """The clusters and brokers that the name server knows."""
        return self._loop.run(self._async.cluster_info())

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of ``topic``, freshly fetched from the name server.

        Raises:
            ClientError: no broker has the topic.
        """
        return self._loop.run(self._async.message_queues(topic))

    def pull(
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
        return self._loop.run(
            self._async.pull(queue, queue_offset, max_messages, expression, suspend_timeout_ms=suspend_timeout_ms)
        )

    def pull_raw(
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
        return self._loop.run(
            self._async.pull_raw(queue, queue_offset, max_messages, expression, suspend_timeout_ms=suspend_timeout_ms)
        )

    def min_offset(self, queue: MessageQueue) -> int:
        """First queue offset that the broker still has."""
        return self._loop.run(self._async.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Queue offset of the next message to be stored."""
        return self._loop.run(self._async.max_offset(queue))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at or after ``timestamp_ms`` (since the epoch); the maximum offset
        if there is none.
        """
        return self._loop.run(self._async.offset_for_time(queue, timestamp_ms))

    def earliest_store_time(self, queue: MessageQueue) -> int:
        """Store time of the first message that the broker still has, ms since the epoch; -1 for an empty queue."""
        return self._loop.run(self._async.earliest_store_time(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's consumer offset for ``queue``: the next queue offset to consume; None if there is none.

        With BROADCASTING, this client's own offset from its file.

        Raises:
            FormatError: the file is damaged, and there is no valid backup.
            DiskError: the file cannot be read.
        """
        return self._loop.run(self._async.committed(queue))

    def commit(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Stores the group's consumer offset for ``queue``; waits for the broker, or with BROADCASTING for the disk.

        Raises:
            ClientError: the queue or the offset is invalid.
            FormatError: the client's file is damaged, and there is no valid backup.
            DiskError: the client's file cannot be written.
        """
        self._loop.run(self._async.commit(queue, consumer_offset))

    def message_by_id(self, offset_msg_id: str) -> MessageExt:
        """Fetches the message with this offset id (``SendResult.offset_msg_id``), which contains the broker's address.

        Raises:
            ClientError: the id is not an offset id. A UNIQ_KEY looks similar; use ``query_by_unique_key`` for it.
            FormatError: the broker's response is not exactly one message.
        """
        return self._loop.run(self._async.message_by_id(offset_msg_id))

    def message_at(self, topic: str, broker_name: str, physical_offset: int) -> MessageExt:
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
        return self._loop.run(self._async.message_at(topic, broker_name, physical_offset))

    def query_by_key(
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
        return self._loop.run(
            self._async.query_by_key(
                topic, key, max_messages, begin_timestamp_ms=begin_timestamp_ms, end_timestamp_ms=end_timestamp_ms
            )
        )

    def query_index(self, topic: str, broker_name: str, key: str, max_messages: int) -> QueryAnswer:
        """Returns the stored records, neither decoded nor checked, that one broker's index finds for a key or UNIQ_KEY.

        Args:
            topic: the topic.
            broker_name: the broker.
            key: the key; records with another key that has the same hash are returned too.
            max_messages: largest number of records; brokers have a limit of their own.

        Raises:
            ClientError: no broker has the topic, or the broker is unknown.
        """
        return self._loop.run(self._async.query_index(topic, broker_name, key, max_messages))

    def query_by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Finds messages of ``topic`` with this UNIQ_KEY, oldest first; several if a send was repeated.

        Raises:
            ClientError: no broker has the topic.
        """
        return self._loop.run(self._async.query_by_unique_key(topic, unique_key))
