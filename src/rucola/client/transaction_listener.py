"""What an application says of its transactions, and what it is told of them."""

from __future__ import annotations

from collections.abc import Awaitable
from enum import Enum
from typing import NamedTuple, Protocol

from rucola.client.send_result import SendResult
from rucola.common.message import Message, MessageExt


class LocalTransactionState(Enum):
    """What becomes of a message; the names are RocketMQ's."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"  # it is delivered
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"  # it never is
    UNKNOW = "UNKNOW"  # the broker asks later


class TransactionListener(Protocol):
    """The application's part of its transactions. Functions run on threads of their own, coroutines on the loop."""

    def execute_local_transaction(
        self, message: Message, argument: object
    ) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Do the application's part, now that ``message`` is stored half; ``message.uniq_key`` names the transaction.

        An exception counts as ``UNKNOW``: the broker will ask.
        """

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Say what became of the application's part; it may have been another process that did it, or never did."""


class TransactionSendResult(NamedTuple):
    """What became of a transactional message.

    Attributes:
        send_result: where the half message is.
        local_transaction_state: what the listener said.
        local_error: what the listener raised instead, None when it did not.
    """

    send_result: SendResult
    local_transaction_state: LocalTransactionState
    local_error: Exception | None = None
