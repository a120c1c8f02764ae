"""``LitePullConsumer`` with blocking calls.

Generated from rucola/client/lite_pull_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from rucola.client.allocate import AllocateMessageQueueStrategy
from rucola.client.consumer_config import LitePullConsumerConfig
from rucola.client.lite_pull_consumer import LitePullConsumer as AsyncLitePullConsumer
from rucola.client.loop_thread import shared_loop
from rucola.client.message_selector import MessageSelector
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.runtime.clock import Clock


class LitePullConsumer:
    """Gives messages when they are asked for, and keeps its place.

    Life cycle: ``with consumer``, or ``start`` and ``shutdown``. Either ``subscribe``: the
    consumers of the group share the queues; or ``assign``: the application names the queues it wants.

    With ``auto_commit`` what a ``poll`` gave becomes progress when the next one is called, so a message that was not
    dealt with comes again. ``for message in consumer`` polls by itself.

    Besides what each call names, those that ask brokers raise ``BrokerError`` when one refuses, and ``RemotingError``
    when it cannot be reached or does not answer in time; both may be called again.

    Args:
        group: consumer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: how the queues are shared, the same for all consumers of the group; averagely unless given.
        clock: for client id and versions.

    Raises:
        ClientError: the group cannot be one.
        ConfigError: a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: LitePullConsumerConfig | None = None,
        *,
        allocate_strategy: AllocateMessageQueueStrategy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._loop = shared_loop()
        self._async = AsyncLitePullConsumer(group, namesrv, config, allocate_strategy=allocate_strategy, clock=clock)

    def __enter__(self) -> LitePullConsumer:
        self._loop.run(self._async.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.run(self._async.__aexit__(*exc_info))

    def __iter__(self) -> Iterator[MessageExt]:
        return self._loop.iterate(self._async.__aiter__)

    @property
    def client_id(self) -> str:
        """How brokers and the other consumers of the group know this one."""
        return self._async.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        return self._async.assignment

    def start(self) -> None:
        """Join the group, or begin to read the assigned queues.

        Raises:
            RemotingError: no name server answers.
            BrokerError: a broker cannot filter as an SQL92 subscription wants it.
            ClientError: the consumer was shut down before.
        """
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Pull no more, store the progress (with ``auto_commit``: of all that ``poll`` gave), and leave the group."""
        self._loop.run(self._async.shutdown())

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Read ``topic`` too, or with another expression; before or after ``start``.

        Args:
            topic: which topic; one that does not exist yet is waited for.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: it cannot be a topic, the expression is none, or queues were assigned.
        """
        self._loop.run(self._async.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Read ``topic`` no longer."""
        self._loop.run(self._async.unsubscribe(topic))

    def assign(self, queues: Collection[MessageQueue], expression: str | MessageSelector = "*") -> None:
        """Read these queues and no others; before or after ``start``.

        Args:
            queues: at least one.
            expression: what is wanted of them, as for ``subscribe``.

        Raises:
            ClientError: there is none, the expression is none, the consumer subscribed to topics, or the progress of a
                queue cannot be asked for.
        """
        self._loop.run(self._async.assign(queues, expression))

    def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """The next messages, those of one pull; what was given before counts as consumed.

        Args:
            timeout_ms: how long to wait for them; None for ``poll_timeout_ms``.

        Returns:
            Messages of one queue in its order; none when none came in time.

        Raises:
            ClientError: the consumer is not started, or is shut down.
        """
        return self._loop.run(self._async.poll(timeout_ms))

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on at ``queue_offset``; what was pulled ahead is dropped.

        Raises:
            ClientError: the queue is not this consumer's now, or does not have the offset.
        """
        self._loop.run(self._async.seek(queue, queue_offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that the broker still holds."""
        self._loop.run(self._async.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on at the next message to come."""
        self._loop.run(self._async.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the first message stored at or after ``timestamp_ms`` (since the epoch)."""
        self._loop.run(self._async.seek_to_time(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int:
        """Queue offset behind the last message that ``poll`` gave.

        Raises:
            ClientError: the queue is not this consumer's now.
        """
        return self._loop.call(self._async.position, queue)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Have ``poll`` leave these queues out until ``resume``."""
        self._loop.call(self._async.pause, queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Have ``poll`` give them again."""
        self._loop.call(self._async.resume, queues)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store progress now. What a broker does not take is logged, and stored with the next time.

        Args:
            offsets: the next queue offset wanted, by queue; None for all that ``poll`` gave.

        Raises:
            ClientError: a queue is not this consumer's now.
        """
        self._loop.run(self._async.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress on ``queue`` as it is stored; None when there is none."""
        return self._loop.run(self._async.committed(queue))

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """Queues of ``topic`` that can be read.

        Raises:
            ClientError: no broker has the topic.
        """
        return self._loop.run(self._async.message_queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """First queue offset the broker still holds."""
        return self._loop.run(self._async.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The next free queue offset."""
        return self._loop.run(self._async.max_offset(queue))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First queue offset stored at or after ``timestamp_ms`` (since the epoch); the maximum when there is none."""
        return self._loop.run(self._async.offset_for_time(queue, timestamp_ms))
