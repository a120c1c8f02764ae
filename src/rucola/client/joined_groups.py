"""The groups that consumers of this process have joined, so that no two of them join one group with the same client id.

Members with the same client id are one member for the brokers: each would be assigned the same queues, and would
receive every message. Consumers of other processes are not known here; their client ids differ unless
``instance_name`` is the same and was set for both. Any thread may call the functions.

Source: RocketMQ 5.3.3, ``MQClientInstance#registerConsumer``, which refuses a second consumer, too.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from rucola.errors import ClientError

_Key = tuple[int, tuple[str, ...], str, str]


class Membership:
    """The membership of one consumer in its group; ends with ``end``, or when the consumer is garbage.

    Args:
        namesrv: addresses of the cluster's name servers.
        client_id: id of the consumer.
        group: the group.

    Raises:
        ClientError: another consumer of this process is a member with the same client id.
    """

    def __init__(self, namesrv: Sequence[str], client_id: str, group: str) -> None:
        self._key: _Key = os.getpid(), tuple(sorted(namesrv)), client_id, group  # a forked child has no members yet
        self._loop = asyncio.get_running_loop()
        with _lock:
            other = _memberships.get(self._key)
            if other is not None and not other._loop.is_closed():
                raise ClientError(
                    f"another consumer of this process has joined group {group} with the client id {client_id}: both "
                    "would receive every message; give each consumer an instance_name of its own, or shut the other "
                    "one down first"
                )
            _memberships[self._key] = self

    def end(self) -> None:
        """Ends the membership, so that another consumer may join."""
        with _lock:
            if _memberships.get(self._key) is self:
                del _memberships[self._key]


_memberships: WeakValueDictionary[_Key, Membership] = WeakValueDictionary()
_lock = threading.Lock()


def _forked() -> None:
    """Runs in the child of a fork: replaces the lock, because a thread of the parent may have held it."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
