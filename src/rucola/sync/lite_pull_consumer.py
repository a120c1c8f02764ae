"""``LitePullConsumer`` with blocking calls.

Generated from rucola/client/lite_pull_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rucola.client.allocate import AllocateMessageQueueStrategy
from rucola.client.blocking_iterator import BlockingMessageIterator
from rucola.client.consumer_config import LitePullConsumerConfig
from rucola.client.faces import Blocking
from rucola.client.lite_pull_consumer import LitePullConsumer as AsyncLitePullConsumer
from rucola.client.loop_thread import shared_loop
from rucola.client.message_selector import MessageSelector
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.runtime.clock import Clock


class LitePullConsumer(Blocking):
    """Returns messages when polled, and keeps the position of each queue.

    Life cycle: ``with consumer``, or ``start`` and ``shutdown``. Use either ``subscribe``, so
    that the consumers of the group share the queues, or ``assign`` with the queues to read.

    Messages that ``poll`` returned count as consumed when the task that called it, or for blocking calls the thread,
    polls again or shuts the consumer down. Other tasks do not change this. If a task ends with an error, the messages
    that it polled are given again. In ``for message in consumer``, a message counts as consumed when the loop
    asks for the next one or is left by ``break`` or ``return``; after an error it is given again. With ``auto_commit``,
    the offsets of consumed messages are stored regularly.

    In addition to the errors listed, methods that send requests raise ``BrokerError`` if a broker refuses, and
    ``RemotingError`` if it cannot be reached or does not respond in time. The application may repeat the failed call.

    Args:
        group: consumer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: divides the queues; must be the same for all consumers of the group. By default
            ``AllocateMessageQueueAveragely``.
        topics: topics to subscribe to, without a filter.
        clock: gives the time for client id and versions.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: LitePullConsumerConfig | None = None,
        *,
        allocate_strategy: AllocateMessageQueueStrategy | None = None,
        topics: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._loop = shared_loop()
        self._async = AsyncLitePullConsumer(
            group, namesrv, config, allocate_strategy=allocate_strategy, topics=topics, clock=clock
        )

    def __enter__(self) -> LitePullConsumer:
        # after an interruption, __exit__ does not run, but the start may have succeeded
        self._loop.run(self._async.__aenter__(), lambda client: client.shutdown())
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._loop.run(self._async.__aexit__(*exc_info))

    def __iter__(self) -> BlockingMessageIterator:
        return self.messages()

    def messages(self) -> BlockingMessageIterator:
        """The messages, for ``for``. In ``with consumer.messages() as messages``, the last message of a
        loop counts as consumed when the block ends without an error, however the loop was left.
        """
        return BlockingMessageIterator(self._loop, self._async.messages())

    @property
    def client_id(self) -> str:
        """The id by which brokers and the other consumers of the group know this consumer."""
        return self._async.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer currently reads, sorted."""
        return self._async.assignment

    def start(self) -> None:
        """Joins the group, or starts to read the assigned queues.

        Raises:
            RemotingError: no name server responds.
            BrokerError: a broker cannot filter by an SQL92 subscription.
            ClientError: the consumer was shut down before.
        """
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Stops pulling, waits for the bodies of loops, stores the offsets, and leaves the group.

        Messages that this task polled, or this thread with blocking calls, count as consumed. Loops end after their
        current body, whose message counts as consumed if the body takes at most ``await_termination_ms``. In the body
        of a loop, the call returns at once; the loop ends after this body, when the consumer is closed. A further call
        waits for the end of the first one. If the call is cancelled, the shutdown goes on. At the end of ``with
        consumer`` by an exception, nothing waits for bodies, and no message of a poll or a body counts as consumed.
        """
        self._loop.run(self._async.shutdown())

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``. When the call
        returns, the expression applies to all messages sent from now on; after an error, nothing has changed.

        Args:
            topic: name of the topic; the topic may be created later.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid, or queues were assigned.
        """
        self._loop.run(self._async.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Stops reading ``topic``. When the call returns, no further message of the topic is given.

        Raises:
            ClientError: queues were assigned; assign the others.
        """
        self._loop.run(self._async.unsubscribe(topic))

    def assign(self, queues: Collection[MessageQueue], expression: str | MessageSelector = "*") -> None:
        """Reads exactly these queues. Must be called before ``start``, and may be called again afterwards; of several
        calls at once, the last one decides.

        Args:
            queues: at least one.
            expression: filter, as for ``subscribe``.

        Raises:
            ClientError: ``queues`` is empty, the expression is invalid, the consumer has subscriptions or was started
                without queues, or the consumer offset of a queue is not available.
        """
        self._loop.run(self._async.assign(queues, expression))

    def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """Returns the next messages; the messages that the same task, or thread, polled before then count as consumed.

        Args:
            timeout_ms: how long to wait for messages; None for ``poll_timeout_ms``.

        Returns:
            Messages of the same queue, in order, at most ``pull_batch_size``; empty if none arrived in time.

        Raises:
            ClientError: the consumer is not started, is shut down, or has no subscription and no assigned queues.
        """
        return self._loop.run(self._async.poll(timeout_ms), self._async._missed_poll)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Makes ``poll`` continue at ``queue_offset`` of a queue; drops messages that are already pulled.

        Raises:
            ClientError: the queue is not assigned to this consumer, or does not have the offset.
        """
        self._loop.run(self._async.seek(queue, queue_offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Makes ``poll`` continue at the first message that the broker still has."""
        self._loop.run(self._async.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Makes ``poll`` continue at the next new message."""
        self._loop.run(self._async.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Makes ``poll`` continue at the first message stored at or after ``timestamp_ms`` (since the epoch)."""
        self._loop.run(self._async.seek_to_time(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Queue offset after the last message that was polled or given to a loop, or that the filter passed over.

        Raises:
            ClientError: the queue is not assigned to this consumer.
        """
        return self._loop.call(self._async.position, queue)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Excludes these queues from ``poll`` until ``resume``."""
        self._loop.call(self._async.pause, queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Includes these queues in ``poll`` again."""
        self._loop.call(self._async.resume, queues)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Stores offsets immediately. Offsets that a broker does not accept are logged, and sent again when offsets are
        stored the next time.

        Args:
            offsets: the next queue offset to consume, by queue. None for all messages that this task, or thread, was
                given, including the current message of its loop; of each queue, up to the first message that another
                task has not finished with.

        Raises:
            ClientError: a queue is not assigned to this consumer, or does not have the offset.
        """
        self._loop.run(self._async.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored consumer offset for ``queue``; None if there is none."""
        return self._loop.run(self._async.committed(queue))

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """Queues of ``topic`` that can be read.

        Raises:
            ClientError: no broker has the topic.
        """
        return self._loop.run(self._async.message_queues(topic))

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
