"""``TransactionProducer`` with blocking calls.

Generated from rucola/client/transaction_producer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from collections.abc import Sequence

from rucola.client.config import ProducerConfig
from rucola.client.loop_thread import shared_loop
from rucola.client.transaction_listener import TransactionListener, TransactionSendResult
from rucola.client.transaction_producer import TransactionProducer as AsyncTransactionProducer
from rucola.common.message import Message
from rucola.runtime.clock import Clock
from rucola.sync.producer import Producer


class TransactionProducer(Producer):
    """Sends messages in transactions; ordinary ones, too, like a ``Producer``.

    Life cycle: ``with TransactionProducer(...)``, or ``start`` and ``shutdown``.

    Once it is started it answers the brokers' questions, also about messages of other producers of the group that have
    ended. Any number of producers of a group may run.

    Args:
        group: producer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        listener: does and knows the application's part.
        config: settings.
        topics: those whose brokers may have questions; by default it is asked by all brokers.
        clock: for time stamps and ids.

    Raises:
        ClientError: the group or a topic cannot be one.
        ConfigError: a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str,
        listener: TransactionListener,
        config: ProducerConfig | None = None,
        *,
        topics: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._loop = shared_loop()
        self._async: AsyncTransactionProducer = AsyncTransactionProducer(
            group, namesrv, listener, config, topics=topics, clock=clock
        )

    def __enter__(self) -> TransactionProducer:
        self._loop.run(self._async.__aenter__())
        return self

    def start(self) -> None:
        """Begin; in the background connections are opened to the brokers that may have questions."""
        self._loop.run(self._async.start())

    def send_message_in_transaction(
        self, message: Message, argument: object = None, *, timeout_ms: int | None = None
    ) -> TransactionSendResult:
        """Store ``message`` half, have the listener do its part, and tell the broker what becomes of the message.

        Args:
            message: what to send; gets its UNIQ_KEY here unless it has one.
            argument: handed to the listener.
            timeout_ms: for all attempts to store the half message together; by default as configured.

        Returns:
            Where the message is, and what the listener said. When the broker cannot be told, it asks later.

        Raises:
            ClientError: the message cannot be sent in a transaction, or its topic has no route.
            BrokerError: the broker refused it; the listener was not called.
            RemotingError: no broker could be reached or answered in time; the listener was not called.
        """
        return self._loop.run(self._async.send_message_in_transaction(message, argument, timeout_ms=timeout_ms))
