"""Limits the number of topics and consumer groups that an account may create by using them (security.md S-28).

Each name costs memory, files and a line in every registration for as long as the broker runs, and no administrator
reviews the name. Names that administrators create are not counted.
"""

from __future__ import annotations

from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode


class NameQuota:
    """Counts the names of each account since start-up. Event loop only.

    Args:
        names_max: maximum number of topics and groups of one account together.

    Attributes:
        account: the account whose requests are being served; empty if no limit applies.
    """

    def __init__(self, names_max: int) -> None:
        self.account = ""
        self._names_max = names_max
        self._made: dict[str, int] = {}

    def take(self, name: str) -> None:
        """Counts a topic or group ``name`` that is about to be created because a request used it.

        Raises:
            BrokerError: NO_PERMISSION, the account has reached its limit.
        """
        if not self.account:
            return
        made = self._made.get(self.account, 0)
        if made >= self._names_max:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"{name} does not exist, and the account has reached its limit of {made} topics and "
                "groups that are created at their first use",
            )
        self._made[self.account] = made + 1
