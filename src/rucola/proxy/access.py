"""Who sends a request. Here: a door without accounts, where everybody is the same sender."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from rucola.grpc.call import GrpcCall
from rucola.proxy.sessions import UNSIGNED

if TYPE_CHECKING:
    from rucola.proxy.receipt import TransactionId
    from rucola.proxy.sessions import ClientSession


class Asked(Enum):
    """Whether a client is asked about a half message."""

    NOT = auto()
    WITHOUT_BODY = auto()
    """It may send to the topic, and not read it."""
    YES = auto()


class DoorAccess:
    """The answers if there are no accounts.

    Attributes:
        wanted: fields of requests that it reads, and those that all doors read.
        refused: number of requests refused since start-up.
        unknown_senders: number of refused requests without a valid signature.
    """

    wanted: Sequence[bytes] = UNSIGNED

    def __init__(self) -> None:
        self.refused = self.unknown_senders = 0

    def account_of(self, call: GrpcCall) -> str:
        """Name of the account that makes a call.

        Raises:
            RefusedError: ``UNAUTHORIZED``: its signature is not that of an account.
        """
        return ""

    def check_publish(self, account: str, address: str, topic: str) -> None:
        """Checks whether an account may send to a topic.

        Raises:
            RefusedError: ``FORBIDDEN``: it may not.
        """

    def check_subscribe(self, account: str, address: str, topic: str, group: str) -> None:
        """Checks whether an account may receive from a topic as a member of a group; an empty name is not checked.

        Raises:
            RefusedError: ``FORBIDDEN``: it may not.
        """

    def check_route(self, account: str, address: str, topic: str) -> None:
        """Checks whether an account may know the route of a topic: it may send to it or receive from it.

        Raises:
            RefusedError: ``FORBIDDEN``: it may not.
        """

    def note_sender(self, session: ClientSession, place: TransactionId) -> None:
        """Notes whose client has sent a half message."""

    def check_end(self, session: ClientSession, place: TransactionId) -> None:
        """Checks whether an account may decide the transaction of a half message, beside the right to its topic.

        Raises:
            RefusedError: ``FORBIDDEN``: another account has sent it.
        """

    def asked_about(self, session: ClientSession, topic: str, place: TransactionId) -> Asked:
        """Whether a client is asked about a half message; a broker wants to know its outcome."""
        return Asked.YES
