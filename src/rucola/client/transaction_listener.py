"""The application's part in transactions: listener, states and result."""

from __future__ import annotations

from collections.abc import Awaitable
from enum import Enum
from typing import NamedTuple, Protocol

from rucola.client.send_result import SendResult
from rucola.common.message import Message, MessageExt


class LocalTransactionState(Enum):
    """Decision about a transactional message; the names are RocketMQ's."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"  # the message is delivered
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"  # the message is never delivered
    UNKNOW = "UNKNOW"  # the broker checks again later


class TransactionListener(Protocol):
    """The functions of the application that execute and check its local transactions. Plain functions run in threads,
    coroutine functions on the event loop.
    """

    def execute_local_transaction(
        self, message: Message, argument: object
    ) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Executes the local transaction. A broker has already stored ``message`` as a half message;
        ``message.uniq_key`` is the transaction id.

        Whatever it raises counts as ``UNKNOW``, SystemExit included, so the broker checks later.
        """

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Returns the state of the local transaction, which may have run in another process or not at all.

        If it raises anything, the broker asks again.
        """


class TransactionSendResult(NamedTuple):
    """Result of a transactional message.

    Attributes:
        send_result: result of the send of the half message.
        local_transaction_state: the state that the listener returned; ``UNKNOW`` if the listener raised an exception,
            and ``ROLLBACK_MESSAGE`` if it was not called.
        local_error: what the listener raised, or None.
    """

    send_result: SendResult
    local_transaction_state: LocalTransactionState
    local_error: BaseException | None = None
