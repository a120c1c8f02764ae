"""``SimpleConsumer`` with blocking calls.

Generated from rucola/client/simple_consumer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from collections.abc import Iterator

from rucola.client.consumer_config import SimpleConsumerConfig
from rucola.client.loop_thread import shared_loop
from rucola.client.message_selector import MessageSelector
from rucola.client.pop_service import POP_MAX
from rucola.client.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from rucola.common.message import MessageExt
from rucola.runtime.clock import Clock


class SimpleConsumer:
    """Receives messages and acknowledges each. Needs brokers of RocketMQ 5.0 or newer, or ours.

    Life cycle: ``subscribe``, then ``with consumer``, or ``start`` and ``shutdown``.

    A received message is hidden from the group for its invisible duration. Without ``ack`` until then it comes again,
    to whoever receives next, and after 16 times it becomes a dead letter. With ``auto_renew`` that time is prolonged
    until the message is acknowledged or the consumer ends.

    Besides what each call names, all raise ``BrokerError`` when a broker refuses, and ``RemotingError`` when it cannot
    be reached or does not answer in time; both may be called again.

    Args:
        group: consumer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        clock: for client id and versions.

    Raises:
        ClientError: the group cannot be one.
        ConfigError: a name server is not ``host:port``.
    """

    def __init__(
        self, group: str, namesrv: str, config: SimpleConsumerConfig | None = None, *, clock: Clock | None = None
    ) -> None:
        self._loop = shared_loop()
        self._async = AsyncSimpleConsumer(group, namesrv, config, clock=clock)

    def __enter__(self) -> SimpleConsumer:
        self._loop.run(self._async.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.run(self._async.__aexit__(*exc_info))

    def __iter__(self) -> Iterator[MessageExt]:
        return self._loop.iterate(self._async.__aiter__)

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._async.client_id

    def start(self) -> None:
        """Begin; connections are opened when they are needed.

        Raises:
            ClientError: the consumer was shut down before.
        """
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Leave the brokers and close. What is not acknowledged comes again."""
        self._loop.run(self._async.shutdown())

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Receive from ``topic`` too, or with another expression; before or after ``start``.

        Args:
            topic: which topic.
            expression: tags, ``A || B``, ``*`` for all, or ``MessageSelector.by_sql(...)``.

        Raises:
            ClientError: it cannot be a topic, or the expression is none.
        """
        self._loop.run(self._async.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Receive from ``topic`` no longer."""
        self._loop.run(self._async.unsubscribe(topic))

    def receive(
        self,
        max_messages: int = POP_MAX,
        invisible_duration_ms: int | None = None,
        await_duration_ms: int | None = None,
    ) -> list[MessageExt]:
        """The next messages of any topic subscribed to. May be cancelled; no message is lost by that.

        Args:
            max_messages: how many at most, 1 to 32; there may be fewer though more wait.
            invisible_duration_ms: how long they are hidden from the others, 10 s to 12 h; None for the configured time.
            await_duration_ms: how long to wait for messages; None for the configured time.

        Returns:
            Messages of one topic of one broker; none when none came in time.

        Raises:
            ClientError: the consumer is not started, no topic is subscribed to or has a route, or a broker is too old.
        """
        return self._loop.run(self._async.receive(max_messages, invisible_duration_ms, await_duration_ms))

    def ack(self, message: MessageExt) -> None:
        """Say that ``message`` is consumed: it does not come again.

        Raises:
            ClientError: it was not received by a simple consumer.
        """
        self._loop.run(self._async.ack(message))

    def change_invisible_duration(self, message: MessageExt, invisible_duration_ms: int) -> None:
        """Have ``message`` come again so long after now, unless it is acknowledged before.

        Args:
            message: a received message; its receipt changes with this.
            invisible_duration_ms: 10 s to 12 h.

        Raises:
            ClientError: it was not received by a simple consumer.
        """
        self._loop.run(self._async.change_invisible_duration(message, invisible_duration_ms))
