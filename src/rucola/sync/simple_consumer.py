"""``SimpleConsumer`` with blocking calls.

Generated from rucola/client/simple_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rucola.client.blocking_iterator import BlockingMessageIterator
from rucola.client.consumer_config import SimpleConsumerConfig
from rucola.client.faces import Blocking
from rucola.client.loop_thread import shared_loop
from rucola.client.message_selector import MessageSelector
from rucola.client.pop_service import POP_MAX
from rucola.client.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from rucola.common.message import MessageExt
from rucola.runtime.clock import Clock


class SimpleConsumer(Blocking):
    """Receives messages, which the application acknowledges one by one. Needs brokers of RocketMQ 5.0 or later, or
    Rucola.

    Life cycle: ``subscribe``, then ``with consumer``, or ``start`` and ``shutdown``.

    A received message is hidden from the group for its invisible duration. Without an ``ack`` in that time, any
    consumer of the group may receive the message again; Rucola's broker does not limit the number of retries. With
    ``auto_renew``, the consumer extends the invisible duration until the message is acknowledged, the application no
    longer holds the message object, or ``renew_max_duration_ms`` have passed.

    ``for message in consumer`` gives one message at a time. Unlike the loops of other consumers, it does not
    acknowledge: call ``ack``. Errors that may pass, such as a broker that restarts, are logged, and the loop goes on.

    Requests about one message are sent one after the other, so ``ack`` and ``change_invisible_duration`` may be called
    while the invisible duration is being extended. A cancelled call of them goes on in the background.

    In addition to the errors listed, ``receive``, ``ack`` and ``change_invisible_duration`` raise ``BrokerError`` if a
    broker refuses, and ``RemotingError`` if it cannot be reached or does not respond in time. The application may
    repeat the failed call.

    Args:
        group: consumer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        topics: topics to subscribe to, without a filter.
        clock: gives the time for the client id, the versions of subscriptions and the start times of pops.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        config: SimpleConsumerConfig | None = None,
        *,
        topics: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._loop = shared_loop()
        self._async = AsyncSimpleConsumer(group, namesrv, config, topics=topics, clock=clock)

    def __enter__(self) -> SimpleConsumer:
        # after an interruption, __exit__ does not run, but the start may have succeeded
        self._loop.run(self._async.__aenter__(), lambda client: client.shutdown())
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._loop.run(self._async.__aexit__(*exc_info))

    def __iter__(self) -> BlockingMessageIterator:
        return self.messages()

    def messages(self) -> BlockingMessageIterator:
        """The messages, for ``for``. The loop gets one message at a time and does not acknowledge it."""
        return BlockingMessageIterator(self._loop, self._async.messages())

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._async.client_id

    def start(self) -> None:
        """Starts the consumer; connections are opened when needed: now if a subscription has an SQL92 expression, or
        ``consume_from_first`` is off.

        Raises:
            ClientError: the consumer was shut down before.
            BrokerError: a broker refuses an SQL92 expression.
        """
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Waits for the bodies of loops and for requests that run, then unregisters and closes.

        Calls of ``receive`` that wait return no message. Messages that were fetched and not given to the application
        are given back to the group at once; the group gets other unacknowledged messages when their invisible time
        ends. ``ack`` works until the shutdown has waited for the bodies of loops, at most ``await_termination_ms``. In
        the body of a loop, the call returns at once; the loop ends after this body, when the consumer is closed. A
        further call waits for the end of the first one. If the call is cancelled, the shutdown goes on. At the end of
        ``with consumer`` by an exception, nothing waits for bodies.
        """
        self._loop.run(self._async.shutdown())

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Subscribes to ``topic``, or changes its expression. May be called before or after ``start``. After an error,
        the subscription is as before.

        Messages that are sent after the return are filtered by the new expression only. For this, the call waits until
        the brokers have answered requests with the expression before. Rucola's broker does so at once. RocketMQ's may
        take as long as ``receive`` waits for messages. A call that is cancelled in this wait has subscribed.

        Args:
            topic: name of the topic.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: the topic or the expression is invalid.
            BrokerError: a broker refuses the SQL92 expression; before ``start``, the start raises the error.
            RemotingError: no server could be reached that checks the SQL92 expression.
        """
        self._loop.run(self._async.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Stops receiving from ``topic``. Messages that were fetched and not given to the application go back to the
        group. Messages that the application has may still be acknowledged.
        """
        self._loop.run(self._async.unsubscribe(topic))

    def receive(
        self,
        max_messages: int = POP_MAX,
        invisible_duration_ms: int | None = None,
        await_duration_ms: int | None = None,
    ) -> list[MessageExt]:
        """Returns the next messages from any subscribed topic. A cancellation loses no messages: what was fetched goes
        to the next caller, or back to the group after a second.

        Args:
            max_messages: largest number of messages, 1 to 32; fewer may be returned even if more are available.
            invisible_duration_ms: how long the messages are hidden from other consumers, 10 s to 12 h; None for the
                configured time.
            await_duration_ms: how long to wait for messages; None for the configured time. A broker that does not
                respond makes the call last up to 5 s longer.

        Returns:
            Messages of the same topic from the same broker; empty if none arrived in time, or at a shutdown.

        Raises:
            ClientError: the consumer is not started, it has no subscription, no topic has a route, or a broker is too
                old.
        """
        return self._loop.run(self._async.receive(max_messages, invisible_duration_ms, await_duration_ms))

    def ack(self, message: MessageExt) -> None:
        """Acknowledges ``message``, so that it is not delivered again.

        After an error, the message is as before: it may be acknowledged again, and ``auto_renew`` still covers it.

        Raises:
            ClientError: the message was not received by a simple consumer, or by one of another group.
        """
        self._loop.run(self._async.ack(message))

    def change_invisible_duration(self, message: MessageExt, invisible_duration_ms: int) -> None:
        """Sets the time, counted from now, after which ``message`` is delivered again unless it is acknowledged.

        After a success, ``auto_renew`` no longer covers the message; after an error, the message is as before.

        Args:
            message: a received message; its receipt handle changes.
            invisible_duration_ms: 10 s to 12 h.

        Raises:
            ClientError: the message was not received by a simple consumer, or by one of another group, or was
                acknowledged meanwhile.
        """
        self._loop.run(self._async.change_invisible_duration(message, invisible_duration_ms))
