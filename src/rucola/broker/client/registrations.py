"""Counts the registrations of clients, and knows the account of each client id in a consumer group. Event loop only.

A registration is one connection's membership in one producer or consumer group. A client id is self-declared, but
queue locks and requests of the broker reach a consumer by its group and id. Therefore, within a consumer group, an id
that is in use belongs to its account. In other groups, other accounts may have the id: otherwise, who guessed an id
could keep its client away. Within an account the newest connection wins, because a client whose network was cut comes
back on a new connection while the old one still looks alive.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.shares import Shares
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode

REGISTRATIONS_MAX, REGISTRATIONS_SHARE, REGISTRATIONS_KEPT = 262_144, 65_536, 256
"""Registrations of all accounts, of one account, and those that each account may always have. Without accounts, the
first number counts.
"""


class Registrations:
    """The registrations of all producers and consumers.

    Args:
        check: raises an error if the second account may not use an id that the first one uses; see
            ``Senders.check_holder``.
        shares: limits the registrations of each account.
    """

    def __init__(self, check: Callable[[str, str, str], None] = lambda *_: None, shares: Shares | None = None) -> None:
        self._check = check
        self._shares = shares or Shares(REGISTRATIONS_MAX, REGISTRATIONS_MAX, 0)
        self._ids: dict[tuple[str, str], tuple[str, int]] = {}
        """Account and number of registrations of each consumer group and client id."""

    @property
    def count(self) -> int:
        """Number of registrations."""
        return self._shares.count

    def check(self, group: str, client_id: str, account: str) -> None:
        """Raises the error of ``Senders.check_holder`` if another account uses the id in a consumer group."""
        holder = self._ids.get((group, client_id))
        if holder is not None and holder[0] != account:
            self._check(client_id, holder[0], account)

    def replace(self, before: ClientChannel | None, client: ClientChannel, group: str = "") -> None:
        """Counts a registration, which replaces that of ``before`` in the same group and on the same connection.

        Args:
            group: the consumer group; empty for producers.

        Raises:
            BrokerError: another account uses the id in the consumer group, or there are too many registrations.
        """
        name = client.client_id, client.account
        if before is not None and (before.client_id, before.account) == name:
            return
        if group:
            self.check(group, *name)
        if not self._shares.take(client.account):
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY, f"too many registrations, {self._shares.of(client.account)} of this account"
            )
        if group:
            key = group, client.client_id
            self._ids[key] = client.account, self._ids.get(key, ("", 0))[1] + 1
        if before is not None:
            self.remove(before, group)

    def remove(self, client: ClientChannel, group: str = "") -> None:
        """Counts a registration less; ``group`` is as in ``replace``."""
        self._shares.give_back(client.account)
        if group:
            key = group, client.client_id
            account, count = self._ids.pop(key)
            if count > 1:
                self._ids[key] = account, count - 1
