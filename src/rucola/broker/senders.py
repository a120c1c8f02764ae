"""Who sent a request, and whose messages and client ids a client may act for. Here: a broker without accounts.

A client says by itself which client id, producer group and consumer group it has. Without accounts nothing contradicts
it. ``acl.senders`` has the rules for a broker with accounts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rucola.broker.client.client_channel import ClientChannel
from rucola.protocol.command import RemotingCommand
from rucola.remoting.channel import Channel

VOUCHED = "vouched"
"""Key of the attribute of a connection from within the process that names its account: whoever opened the connection
has proved who its client is, so the client's requests need no signature.
"""


class AskedClient(NamedTuple):
    """A client that may be asked for its decision about a half message."""

    client: ClientChannel
    reads: bool
    """Whether it may read the message; if not, it is asked without the body."""


class Senders:
    """The answers if there are no accounts: everybody is the same sender, whose name is empty."""

    def account_of(self, command: RemotingCommand) -> str:
        """Name of the account that sent ``command``, a request that was allowed."""
        return ""

    def account_on(self, channel: Channel) -> str:
        """Name of the account that sent the last allowed request of a connection; empty if there is none."""
        return ""

    def resumption(self) -> Callable[[], None]:
        """Returns a function to call when the request that is being served now is served again after a wait: from then
        on, it counts as the request of the same account.
        """
        return _nothing

    def proof(self, channel: Channel) -> object:
        """What the last allowed request of a connection proved, for ``check_still_reads``."""
        return None

    def check_still_reads(self, proof: object, channel: Channel, topic: str, group: str) -> None:
        """Checks whether a request that has waited would still be allowed to read.

        Args:
            proof: what ``proof`` returned when the request began to wait.

        Raises:
            BrokerError: NO_PERMISSION, the account has lost the permission, was removed or got another secret.
        """

    def is_member(self, client: ClientChannel, group: str) -> bool:
        """Whether the account of a client may still be in a consumer group."""
        return True

    def mark(self) -> str:
        """Mark of the account whose requests are being served, for the property ``SENDER`` of a half message or a
        timed one; empty if there is none.
        """
        return ""

    def recall_mark(self) -> str:
        """Mark of the account whose timed messages the request being served may recall; empty if it may recall all."""
        return ""

    def audience(self, clients: Sequence[ClientChannel], mark: str, topic: str) -> list[AskedClient]:
        """Those of ``clients``, all of one producer group, that may be asked about a half message.

        Args:
            mark: the half message's property ``SENDER``; empty if it has none.
            topic: the topic to which the message was sent.
        """
        return [AskedClient(client, reads=True) for client in clients]

    def check_end(self, account: str, mark: str) -> None:
        """Checks whether ``account`` may end the transaction of a half message with this ``mark``.

        Raises:
            BrokerError: NO_PERMISSION, another account sent the message.
        """

    def check_holder(self, client_id: str, holder: str, account: str) -> None:
        """Checks whether ``account`` may use a client id that a connection of ``holder`` uses now.

        Raises:
            BrokerError: NO_PERMISSION, they are different accounts.
        """


def _nothing() -> None:
    """Without accounts, all requests are from the same sender."""
