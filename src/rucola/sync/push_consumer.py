"""``PushConsumer`` with blocking calls.

Generated from rucola/client/push_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rucola.client.allocate import AllocateMessageQueueStrategy
from rucola.client.blocking_iterator import BlockingMessageIterator
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.faces import Blocking
from rucola.client.listener import BatchListener, MessageListener
from rucola.client.loop_thread import shared_loop
from rucola.client.message_selector import MessageSelector
from rucola.client.push_consumer import PushConsumer as AsyncPushConsumer
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.runtime.clock import Clock


class PushConsumer(Blocking):
    """Consumes the messages of a group's topics, each at least once.

    First call ``subscribe`` and ``register_message_listener``. Then use ``with consumer``, or ``start`` and
    ``shutdown``. Without a listener, ``for message in consumer`` yields the messages. A
    message counts as consumed when the loop asks for the next one or is left by ``break`` or ``return``; after an error
    or a cancellation it comes again, before later messages of its queue.

    If the listener fails, the message is delivered again later, with growing pauses; after 16 retries it becomes a dead
    letter (``%DLQ%<group>``). With BROADCASTING it is dropped instead. With ``consume_orderly`` it is retried before
    later messages, without limit. ``max_reconsume_times`` changes the number of retries.

    Args:
        group: consumer group; its consumers share the queues.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: divides the queues; must be the same for all consumers of the group. By default
            ``AllocateMessageQueueAveragely``.
        topics: topics to subscribe to, without a filter.
        clock: source of the time; by default the clocks of the operating system.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: PushConsumerConfig | None = None,
        *,
        allocate_strategy: AllocateMessageQueueStrategy | None = None,
        topics: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._loop = shared_loop()
        self._async = AsyncPushConsumer(
            group, namesrv, config, allocate_strategy=allocate_strategy, topics=topics, clock=clock
        )

    def __enter__(self) -> PushConsumer:
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

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``. When the call
        returns, the expression applies to all messages sent from now on; after an error, nothing has changed.

        All consumers of a group must have the same subscriptions.

        Args:
            topic: name of the topic; may be created later.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid.
            BrokerError: the broker cannot filter by this expression.
            RemotingError: no name server responds.
        """
        self._loop.run(self._async.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Stops consuming ``topic``. When the call returns, no further message of the topic is passed on; results for
        messages that are still being processed are ignored.
        """
        self._loop.run(self._async.unsubscribe(topic))

    def register_message_listener(self, listener: MessageListener | BatchListener, *, batch: bool = False) -> None:
        """Registers the function that receives the messages. Must be called before ``start``.

        Args:
            listener: a coroutine function, or a plain function, which runs in a thread. The call lasts until an
                awaitable that it returns is done. The listener fails if it raises anything (for example
                ``ReconsumeLater``), or returns a status of failure or ``False``. Any other result means success; with
                ``batch``, only None and a status of success do.
            batch: whether the listener takes two arguments instead of one message: a list of messages of one queue, and
                a context (``ConsumeConcurrentlyContext``, ``ConsumeOrderlyContext``). The list has up to
                ``consume_message_batch_max_size`` messages.

        Raises:
            ClientError: the consumer has been started already, or ``listener`` is no function, does not take these
                arguments, or is a class or a generator function.
        """
        self._loop.call(self._async.register_message_listener, listener, batch=batch)

    def start(self) -> None:
        """Joins the group and starts to consume.

        Raises:
            RemotingError: no name server responds.
            BrokerError: a broker cannot filter by an SQL92 subscription.
            ClientError: the consumer was shut down before.
        """
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Stops pulling, waits for running listeners and for the bodies of loops, stores the offsets, and leaves the
        group.

        The wait takes at most ``await_termination_ms``. Messages not yet passed to a listener or a loop are not
        consumed; the group receives them again. Loops end after their current body, whose message counts as consumed.
        In the body of a loop, the call returns at once; the loop ends after this body, when the consumer is closed. In
        a listener, too: the consumer closes when the listener has returned, and its message counts as consumed if it
        returns normally. A task that a concurrent coroutine listener has started counts as part of a listener, even if
        the listener has returned. A further call waits for the end of the first one. If the call is cancelled, the
        shutdown goes on.
        """
        self._loop.run(self._async.shutdown())

    def suspend(self) -> None:
        """Stops pulling until ``resume``. Messages already pulled still go to the listener or an ``for`` loop."""
        self._loop.call(self._async.suspend)

    def resume(self) -> None:
        """Starts pulling again."""
        self._loop.call(self._async.resume)

    def send_message_back(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Asks the broker to deliver a copy of ``message`` to the group later; the message itself is not affected.

        Use this in ``for`` loops, in which every message counts as consumed.

        Args:
            message: a message of this consumer.
            delay_level: 1 to 18, 0 for the broker's choice, -1 for an immediate dead letter.

        Returns:
            Whether the broker accepted the message; the log has the reason for a failure.
        """
        return self._loop.run(self._async.send_message_back(message, delay_level))
