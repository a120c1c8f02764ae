"""How many topics and consumer groups an account may make by using them (security.md S-28).

Each name costs memory, files and a line in every registration for as long as the broker lives, and nobody reviews it.
Names that administrators make are not counted.
"""

from __future__ import annotations

from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode


class NameQuota:
    """The count for each account since the start. Event loop only.

    Args:
        names_max: topics and groups of one account together.

    Attributes:
        account: whose requests are being served; empty for those to whom no bound applies.
    """

    def __init__(self, names_max: int) -> None:
        self.account = ""
        self._names_max = names_max
        self._made: dict[str, int] = {}

    def take(self, name: str) -> None:
        """A topic or group ``name`` is about to be made because somebody used it.

        Raises:
            BrokerError: NO_PERMISSION, the account has made its share.
        """
        if not self.account:
            return
        made = self._made.get(self.account, 0)
        if made >= self._names_max:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"{name} does not exist, and the account has made {made} topics and groups by using them, "
                "which is as many as it may",
            )
        self._made[self.account] = made + 1
