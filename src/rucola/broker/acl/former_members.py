"""Removes clients from the consumer groups that their accounts may no longer use.

Such a client cannot pull, but while it is a member, a part of the group's queues is assigned to it and read by nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.acl.permission import AclSnapshot
from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.senders import Senders
from rucola.remoting.fairness.steps import Steps


class FormerMembers:
    """Looks at the members after each change of the accounts. Event loop only.

    Args:
        snapshot: returns the current accounts.
    """

    def __init__(self, snapshot: Callable[[], AclSnapshot], senders: Senders, consumers: ConsumerManager) -> None:
        self._snapshot = snapshot
        self._senders = senders
        self._consumers = consumers
        self._seen = snapshot()

    def remove(self) -> Steps[None]:
        """Removes the clients whose rights have ended since the last call. If an account gets its rights back, the next
        heartbeats of its clients register them again.
        """
        snapshot = self._snapshot()
        if snapshot is self._seen:
            return
        self._seen = snapshot
        for info in list(self._consumers.groups()):
            for client in list(info.clients.values()):
                if not self._senders.is_member(client, info.group):
                    self._consumers.unregister(info.group, client.channel)
                yield
