"""``PushConsumer`` with blocking calls.

Generated from rucola/client/push_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from collections.abc import Iterator

from rucola.client.allocate import AllocateMessageQueueStrategy
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.listener import BatchListener, MessageListener
from rucola.client.loop_thread import shared_loop
from rucola.client.message_selector import MessageSelector
from rucola.client.push_consumer import PushConsumer as AsyncPushConsumer
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.runtime.clock import Clock


class PushConsumer:
    """Consumes the messages of a group's topics, each at least once.

    Life cycle: ``subscribe``, ``register_message_listener``, then ``with consumer``, or ``start`` and
    ``shutdown``. Without a listener, ``for message in consumer`` gives the messages; one
    counts as consumed when the next is asked for.

    A message on which the listener fails comes again later, with longer and longer pauses, and becomes a dead letter
    after 16 times (``%DLQ%<group>``). With ``consume_orderly`` it comes again at once, before what is behind it.

    Args:
        group: consumer group; its consumers share the queues.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        allocate_strategy: how the queues are shared, the same for all consumers of the group; averagely unless given.
        clock: for client id, versions and the turns of threads.

    Raises:
        ClientError: the group cannot be one.
        ConfigError: a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: PushConsumerConfig | None = None,
        *,
        allocate_strategy: AllocateMessageQueueStrategy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._loop = shared_loop()
        self._async = AsyncPushConsumer(group, namesrv, config, allocate_strategy=allocate_strategy, clock=clock)

    def __enter__(self) -> PushConsumer:
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

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Consume ``topic`` too, or with another expression; before or after ``start``.

        All consumers of a group must subscribe to the same.

        Args:
            topic: which topic; one that does not exist yet is waited for.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: it cannot be a topic, or the expression is none.
            BrokerError: the broker cannot filter like this.
            RemotingError: no name server answers.
        """
        self._loop.run(self._async.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Consume ``topic`` no longer."""
        self._loop.run(self._async.unsubscribe(topic))

    def register_message_listener(self, listener: MessageListener | BatchListener, *, batch: bool = False) -> None:
        """Name the function that gets the messages; before ``start``.

        Args:
            listener: a coroutine function, or a plain function, which runs in a thread. It succeeds when it returns
                nothing, or a status that says so. An exception, ``ReconsumeLater`` among them, is failure, and so is
                any other result.
            batch: whether it takes a list of up to ``consume_message_batch_max_size`` messages of one queue and a
                context (``ConsumeConcurrentlyContext``, ``ConsumeOrderlyContext``), not one message.

        Raises:
            ClientError: the consumer was started already.
        """
        self._loop.call(self._async.register_message_listener, listener, batch=batch)

    def start(self) -> None:
        """Join the group and begin to consume.

        Raises:
            RemotingError: no name server answers.
            BrokerError: a broker cannot filter as an SQL92 subscription wants it.
            ClientError: the consumer was shut down before.
        """
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Pull no more, wait for running listeners, store the progress, and leave the group.

        Messages that no listener has yet are not begun; the group gets them again.
        """
        self._loop.run(self._async.shutdown())

    def suspend(self) -> None:
        """Pull no more until ``resume``; what was pulled is consumed."""
        self._loop.call(self._async.suspend)

    def resume(self) -> None:
        """Pull again."""
        self._loop.call(self._async.resume)

    def send_message_back(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Have the broker deliver a copy of ``message`` to the group later; the message itself stays as it is.

        For ``for`` loops, where a message is consumed in any case.

        Args:
            message: a message of this consumer.
            delay_level: when: 1 to 18, 0 for the broker to decide, -1 for a dead letter at once.

        Returns:
            Whether that succeeded; the log says why not.
        """
        return self._loop.run(self._async.send_message_back(message, delay_level))
