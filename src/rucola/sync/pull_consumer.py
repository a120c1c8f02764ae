"""``PullConsumer`` with blocking calls.

Generated from rucola/client/pull_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from rucola.client.config import PullConsumerConfig
from rucola.client.loop_thread import shared_loop
from rucola.client.message_selector import MessageSelector
from rucola.client.pull_consumer import PullConsumer as AsyncPullConsumer
from rucola.client.pull_result import PullResult, RawPullResult
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.route import ClusterInfo
from rucola.runtime.clock import Clock


class PullConsumer:
    """Reads messages; keeps no position of its own.

    Life cycle: ``with PullConsumer(...)``, or ``start`` and ``shutdown``.

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
        self._loop = shared_loop()
        self._async = AsyncPullConsumer(group, namesrv, config, clock=clock, registers=registers)

    def __enter__(self) -> PullConsumer:
        self._loop.run(self._async.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.run(self._async.__aexit__(*exc_info))

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._async.client_id

    def start(self) -> None:
        """Begin; connections are opened when they are needed."""
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Leave the brokers and close; pulls under way fail with ``RemotingClosedError``."""
        self._loop.run(self._async.shutdown())

    def topics(self) -> list[str]:
        """Names of all topics the name server knows, internal ones among them."""
        return self._loop.run(self._async.topics())

    def cluster_info(self) -> ClusterInfo:
        """Clusters and brokers that the name server knows."""
        return self._loop.run(self._async.cluster_info())

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """Queues of ``topic`` that can be read, as the name server knows them now.

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
        """Like ``pull``, with the records as they are stored: not decoded, not checked, tags compared by hash only."""
        return self._loop.run(
            self._async.pull_raw(queue, queue_offset, max_messages, expression, suspend_timeout_ms=suspend_timeout_ms)
        )

    def min_offset(self, queue: MessageQueue) -> int:
        """First queue offset the broker still holds."""
        return self._loop.run(self._async.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The next free queue offset."""
        return self._loop.run(self._async.max_offset(queue))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First queue offset stored at or after ``timestamp_ms`` (since the epoch); the maximum when there is none."""
        return self._loop.run(self._async.offset_for_time(queue, timestamp_ms))

    def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the first message still held was stored, ms since the epoch; -1 for an empty queue."""
        return self._loop.run(self._async.earliest_store_time(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress on ``queue``: the next queue offset it wants; None when it has none.

        With BROADCASTING that of this client, from its file.

        Raises:
            FormatError: the file is damaged, and there is no spare that reads.
            DiskError: the file cannot be read.
        """
        return self._loop.run(self._async.committed(queue))

    def commit(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Store the group's progress on ``queue`` and wait until the broker has it, with BROADCASTING the disk.

        Raises:
            ClientError: it is no queue offset, or not a queue.
            FormatError: the client's file is damaged, and there is no spare that reads.
            DiskError: the client's file cannot be written.
        """
        self._loop.run(self._async.commit(queue, consumer_offset))

    def message_by_id(self, offset_msg_id: str) -> MessageExt:
        """The message that lies where the id says (``SendResult.offset_msg_id``), asked of the broker in the id.

        Raises:
            ClientError: it is no offset id. A UNIQ_KEY looks like one; look that up with ``query_by_unique_key``.
            FormatError: what the broker sent is not one message.
        """
        return self._loop.run(self._async.message_by_id(offset_msg_id))

    def query_by_key(
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
        return self._loop.run(
            self._async.query_by_key(
                topic, key, max_messages, begin_timestamp_ms=begin_timestamp_ms, end_timestamp_ms=end_timestamp_ms
            )
        )

    def query_by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Messages of ``topic`` with this UNIQ_KEY, oldest first: several when a send was repeated.

        Raises:
            ClientError: no broker has the topic.
        """
        return self._loop.run(self._async.query_by_unique_key(topic, unique_key))
