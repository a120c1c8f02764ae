"""``LiteConsumer`` with blocking calls.

Generated from rucola/client/lite_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from rucola.client.blocking_iterator import BlockingMessageIterator
from rucola.client.consumer_config import LiteConsumerConfig
from rucola.client.faces import Blocking
from rucola.client.listener import EvictionListener, MessageListener
from rucola.client.lite_consumer import LiteConsumer as AsyncLiteConsumer
from rucola.client.lite_offset import LiteOffset
from rucola.client.loop_thread import shared_loop
from rucola.common.message import MessageExt
from rucola.runtime.clock import Clock


class LiteConsumer(Blocking):
    """Consumes the messages of lite topics of one parent topic, each at least once. Needs brokers of RocketMQ 5.5 or
    later, or Rucola.

    First call ``register_message_listener``. Then use ``with consumer``, or ``start`` and
    ``shutdown``. Call ``subscribe_lite`` at any time. Without a listener,
    ``for message in consumer`` yields the messages. A message counts as consumed when the loop asks for the next
    one or is left by ``break`` or ``return``; after an error or a cancellation it comes again.

    The messages of one lite topic are consumed in order, one after the other; those of different lite topics at the
    same time. If the listener fails, the message is consumed again after a pause, before later messages of its lite
    topic; after 16 retries it becomes a dead letter (``%DLQ%<group>``), which keeps its lite topic.

    A message that comes again has the same ``lite_offset``. A consumer of a wildcard group receives all lite topics of
    the parent, and subscribes to none.

    Args:
        group: consumer group, bound to the parent by its attribute ``lite.bind.topic``.
        namesrv: name servers, ``host:port`` separated by ``;``.
        topic: the parent topic, of type LITE.
        config: settings.
        lite_topics: lite topics to which ``start`` subscribes.
        clock: source of the time; by default the clocks of the operating system.

    Raises:
        ClientError: a name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        topic: str,
        config: LiteConsumerConfig | None = None,
        *,
        lite_topics: Collection[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._loop = shared_loop()
        self._async = AsyncLiteConsumer(group, namesrv, topic, config, lite_topics=lite_topics, clock=clock)

    def __enter__(self) -> LiteConsumer:
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
        """The id by which brokers know this consumer and its lite topics."""
        return self._async.client_id

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics to which the consumer has subscribed."""
        return self._async.lite_topics

    def subscribe_lite(self, lite_topic: str | Collection[str], start: LiteOffset | None = None) -> None:
        """Subscribes to a lite topic, or to several by one request. When the call returns, all brokers know it; after
        an error, nothing has changed.

        A lite topic that nobody has sent to yet may be subscribed. To a lite topic that the consumer has, ``start``
        makes the group go to another place. A call that is cancelled goes on in the background.

        Args:
            lite_topic: a name, or several.
            start: where the group continues to read. None: where it stopped; a group that has never read the lite topic
                begins at its first message.

        Raises:
            LiteQuotaError: the consumer, or a broker, may not have more lite topics.
            ClientError: a name is invalid, or the consumer was shut down.
            BrokerError: a broker refuses, for example because the group is a wildcard group.
            RemotingError: a broker cannot be reached, or does not respond in time.
        """
        self._loop.run(self._async.subscribe_lite(lite_topic, start))

    def unsubscribe_lite(self, lite_topic: str | Collection[str]) -> None:
        """Leaves a lite topic, or several; does nothing if the consumer has not subscribed to it. When the call
        returns, no further message of it is passed on. Messages that were popped go back to the group; a message that
        is being processed may still be acknowledged. A broker that does not respond learns of it within 30 s.

        Raises:
            ClientError: a name is invalid, or the consumer was shut down.
        """
        self._loop.run(self._async.unsubscribe_lite(lite_topic))

    def register_message_listener(self, listener: MessageListener) -> None:
        """Registers the function that receives the messages. Must be called before ``start``.

        Args:
            listener: a coroutine function, or a plain function, which runs in a thread. The call lasts until an
                awaitable that it returns is done. The listener fails if it raises anything (for example
                ``ReconsumeLater``), or returns a status of failure or ``False``. ``ConsumeResultSuspend`` lets the
                message come again after a time, without costing an attempt. Any other result means success.

        Raises:
            ClientError: the consumer has been started already, or ``listener`` is no function, does not take one
                message, or is a class or a generator function.
        """
        self._loop.call(self._async.register_message_listener, listener)

    def register_eviction_listener(self, listener: EvictionListener) -> None:
        """Registers the function that is told when another client of an exclusive group has taken over a lite topic.
        The consumer has then left the lite topic already.

        Args:
            listener: takes the name of the lite topic; a coroutine function, or a plain function, which runs in a
                thread.

        Raises:
            ClientError: ``listener`` is no function, or does not take one argument.
        """
        self._loop.call(self._async.register_eviction_listener, listener)

    def suspend_lite(self, message: MessageExt, duration: timedelta) -> None:
        """Makes ``message``, and those behind it in its lite topic, come again after a time, without costing an
        attempt. How the body of the loop, or the listener, that has the message ends, does not matter then.

        Args:
            message: a message that a loop or the listener has now.
            duration: 50 ms to 12 h.

        Raises:
            ClientError: the consumer does not hold the message.
            BrokerError, RemotingError: the request failed: the message comes again later.
        """
        self._loop.run(self._async.suspend_lite(message, duration))

    def start(self) -> None:
        """Joins the group, subscribes to the given lite topics, and starts to consume.

        Raises:
            RemotingError: no name server responds, or a broker does not when it is asked to subscribe.
            BrokerError: a broker refuses, for example because the group is not bound to the parent.
            ClientError: there is no such topic, a broker has no lite topics, a consumer of this process has joined the
                group with the same client id, or the consumer was shut down before.
        """
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Leaves all lite topics, waits for running listeners and for the bodies of loops, acknowledges what they have
        handled, and closes.

        Messages that were popped and not passed on go back to the group at once. The wait takes at most
        ``await_termination_ms``. In the body of a loop, the call returns at once; the loop ends after this body, when
        the consumer is closed. In a listener, too: the consumer closes when the listener has returned. A further call
        waits for the end of the first one. If the call is cancelled, the shutdown goes on.

        If an error ends ``with``, listeners that are coroutine functions are cancelled, and their messages go
        back to the group. A plain function is waited for, because nobody can stop its thread.
        """
        self._loop.run(self._async.shutdown())
