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
    """Sends transactional messages and, like a ``Producer``, normal messages.

    Life cycle: ``with TransactionProducer(...)``, or ``start`` and ``shutdown``.

    After ``start``, the producer also responds to brokers' checks, even about messages that another producer of the
    group has sent. Any number of producers of a group may run at the same time.

    Args:
        group: producer group.
        namesrv: name servers, ``host:port`` separated by ``;``, or a list of them.
        listener: executes and checks local transactions.
        config: settings.
        topics: topics whose brokers may send checks; by default all brokers may.
        clock: gives the time for time stamps and ids.

    Raises:
        ClientError: the name of the group or of a topic is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
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
        # after an interruption, __exit__ does not run, but the start may have succeeded
        self._loop.run(self._async.__aenter__(), lambda client: client.shutdown())
        return self

    def start(self) -> None:
        """Starts the producer; in the background, opens connections to the brokers that may send checks."""
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Refuses further messages and checks at once, waits for the local transactions and checks that have begun and
        for the results of all messages, then unregisters and closes.

        If the wait is cancelled or interrupted, brokers later ask another producer of the group about transactions
        without a decision. A listener may call ``shutdown``; the wait does not include its own transaction.
        """
        self._loop.run(self._async.shutdown())

    def send_message_in_transaction(
        self, message: Message, argument: object = None, *, timeout_ms: int | None = None
    ) -> TransactionSendResult:
        """Stores ``message`` as a half message, calls the listener, and sends the listener's decision to the broker.

        If the half message is stored with a status other than SEND_OK, it may be lost. The listener is then not called,
        and the decision is ROLLBACK_MESSAGE.

        Args:
            message: the message; gets a UNIQ_KEY unless it has one.
            argument: passed to the listener.
            timeout_ms: total time for all attempts to store the half message; by default as configured.

        Returns:
            The result of the send, and the decision. If the broker does not receive the decision, it checks later.

        Raises:
            ClientError: the message cannot be sent in a transaction, or its topic has no route.
            BrokerError: the broker refused the message; the listener was not called.
            RemotingError: no broker could be reached, or none responded in time; the listener was not called.
        """
        return self._loop.run(self._async.send_message_in_transaction(message, argument, timeout_ms=timeout_ms))
