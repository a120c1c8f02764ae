"""Which client reads which lite topics (RocketMQ 5.5.0, ``LiteSubscriptionRegistryImpl``). Event loop only; no I/O and
no clock: times come as arguments, in monotonic ms.

Clients say their sets again every 30 s (``complete_add``); a client that does not for 180 s is forgotten. In between,
they tell what changes. Sets may be long, so the operations are steps.

In an exclusive group, a name has one client, the last one that added it. The client before it is told; until it has
taken note, which a complete set without the name shows, its complete sets do not bring the name back, and it is told
again. After a restart the broker knows no such history: then the first client keeps the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.leases import LiteLeases, ReadProgress
from rucola.broker.lite.reading_group import LiteClient, ReadingGroup, ReadingGroups
from rucola.broker.shares import Shares
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.steps import Steps

OVER_QUOTA = 300
"""A client may exceed its group's quota by so much, as at RocketMQ's proxy: it learns late that the quota is lower."""
_NAMES_A_STEP = 64


class StartAt(Enum):
    """Where a new subscription starts."""

    LAST = "last"
    """Where the group is."""
    MIN = "min"
    MAX = "max"
    OFFSET = "offset"
    TAIL = "tail"
    """So many messages before where the group is."""
    TIME = "time"
    """At the first message stored at a time, in ms, or later; within its second."""


class Start(NamedTuple):
    """Where a new subscription starts; ``value`` belongs to ``OFFSET``, ``TAIL`` and ``TIME``."""

    at: StartAt = StartAt.LAST
    value: int = 0


class Notice(NamedTuple):
    """A client is to be told that it does not read a lite topic any more."""

    channel: Channel
    group: str
    client_id: str
    name: bytes


class LiteSubscriptions:
    """The subscriptions of all groups.

    Args:
        clients: limits the clients of each account.
        shares: limits the names of the clients of each account; a name of two clients counts twice.
        check_holder: see ``Senders.check_holder``.
        wall_ms: wall-clock time in ms, for administrators.

    Attributes:
        notices: who is to be told what; the caller sends and clears them.
    """

    def __init__(
        self,
        groups: ReadingGroups,
        dispatcher: LiteEventDispatcher,
        leases: LiteLeases,
        progress: ReadProgress,
        clients: Shares,
        shares: Shares,
        check_holder: Callable[[str, str, str], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self.notices: list[Notice] = []
        self._groups = groups
        self._dispatcher = dispatcher
        self._leases = leases
        self._progress = progress
        self._clients = clients
        self._shares = shares
        self._check_holder = check_holder
        self._wall_ms = wall_ms

    @property
    def count(self) -> int:
        """Number of subscribed names; a name of two clients counts twice."""
        return self._shares.count

    def client(self, group: ReadingGroup, client_id: str, account: str, now_ms: int) -> LiteClient:
        """Returns a client of a group, which is made if it is not known. ``release`` forgets it if it is not used.

        Raises:
            BrokerError: NO_PERMISSION, another account uses the client id; LITE_SUBSCRIPTION_QUOTA_EXCEEDED, there are
                too many.
        """
        known = group.clients.get(client_id)
        if known is not None:
            if known.account != account:
                self._check_holder(client_id, known.account, account)
            return known
        if not self._clients.take(account):
            raise _quota_exceeded("the broker has too many clients of lite topics")
        client = group.clients[client_id] = LiteClient(group, client_id, account, now_ms)
        return client

    def release(self, client: LiteClient) -> None:
        """Forgets a client that neither subscribes nor waits."""
        if client.is_unused and client.group.clients.get(client.client_id) is client:
            del client.group.clients[client.client_id]
            self._clients.give_back(client.account)

    # -- the four actions ----------------------------------------------------------------------------------------------

    def partial_add(self, client: LiteClient, names: Iterable[bytes], start: Start, now_ms: int) -> Steps[None]:
        """Adds names. Those that the client has are accepted always.

        Raises:
            BrokerError: LITE_SUBSCRIPTION_QUOTA_EXCEEDED; nothing was added, unless others took the room meanwhile.
        """
        group, wanted = client.group, set(names)
        self._renew(client, now_ms)
        self._check_room(client, wanted)
        for number, name in enumerate(wanted, 1):
            if not _is_known(client):
                return  # it ended meanwhile
            others = [each for each in group.holders_of(name) if each is not client] if group.settings.exclusive else []
            for other in others:
                self._take_over(other, name, now_ms)
            if others and group.settings.reset_exclusive:
                self._leases.move_to(group, name, 0, now_ms)
            self._start(group, name, start, now_ms)
            self._add(client, name, now_ms)
            if number % _NAMES_A_STEP == 0:
                yield

    def partial_remove(self, client: LiteClient, names: Iterable[bytes], now_ms: int) -> Steps[None]:
        """Removes names. If the group says so, it begins anew with them."""
        group = client.group
        for number, name in enumerate(names, 1):
            had = name in client.names
            self._remove(client, name, now_ms)
            if had and group.settings.reset_unsubscribe:
                self._leases.move_to(group, name, 0, now_ms)
            if number % _NAMES_A_STEP == 0:
                yield

    def complete_add(self, client: LiteClient, names: Iterable[bytes], now_ms: int) -> Steps[None]:
        """Makes ``names`` the set of the client, without new offsets.

        Raises:
            BrokerError: LITE_SUBSCRIPTION_QUOTA_EXCEEDED; the client keeps of its names those that it wants.
        """
        self._renew(client, now_ms)
        wanted = set(names)
        if client.group.settings.exclusive:
            yield from self._leave_lost(client, wanted)
        yield from self._remove_all(client, client.names - wanted, now_ms)
        new = wanted - client.names
        self._check_room(client, new)
        for number, name in enumerate(new, 1):
            if not _is_known(client):
                return
            self._add(client, name, now_ms)
            if number % _NAMES_A_STEP == 0:
                yield

    def join(self, client: LiteClient, now_ms: int) -> None:
        """Subscribes a client to all lite topics of its wildcard group."""
        was_subscribed = client.is_subscribed
        self._renew(client, now_ms)
        if not was_subscribed:
            self._dispatcher.joined(client)

    def complete_remove(self, client: LiteClient, now_ms: int) -> Steps[None]:
        """Forgets a client; others get its events. Its pops that wait run again, as those of a client without a
        subscription.
        """
        if not _is_known(client):
            return
        del client.group.clients[client.client_id]
        client.is_aside, client.is_subscribed = True, False
        client.bind(None)
        self._dispatcher.left(client)
        self._clients.give_back(client.account)
        self._shares.give_back(client.account, len(client.taken))
        client.taken.clear()
        yield from self._remove_all(client, client.names, now_ms)

    # -- time, deletion ------------------------------------------------------------------------------------------------

    def expire(self, timeout_ms: int, now_ms: int) -> Steps[None]:
        """Forgets the clients that have not subscribed for ``timeout_ms``."""
        for group in self._groups:
            for client in list(group.clients.values()):
                if client.is_subscribed and now_ms - client.renewed_ms >= timeout_ms:
                    yield from self.complete_remove(client, now_ms)
            yield

    def forget(self, name: bytes, now_ms: int) -> None:
        """A lite topic was deleted: nobody subscribes to it. Clients that still want it say so with their next set."""
        for group in self._groups.of_parent(name.partition(b"$")[0]):
            for client in group.holders_of(name):
                self._remove(client, name, now_ms)
            self._dispatcher.forget(group, name)

    def drop(self, group: ReadingGroup) -> None:
        """A group was deleted, or reads other lite topics now: forgets its clients. Their pops that wait run again."""
        self._groups.drop(group)
        self._dispatcher.drop(group)
        for client in group.clients.values():
            self._clients.give_back(client.account)
            self._shares.give_back(client.account, len(client.names) + len(client.taken))
            client.names.clear()
            client.taken.clear()
            client.bind(None)
        group.clients.clear()

    # -- steps of the actions ------------------------------------------------------------------------------------------

    def _renew(self, client: LiteClient, now_ms: int) -> None:
        client.renewed_ms, client.accessed_ms = now_ms, self._wall_ms()
        if not client.group.settings.wildcard:
            client.is_subscribed = True

    def _check_room(self, client: LiteClient, wanted: set[bytes]) -> None:
        quota = client.group.settings.quota
        known = len(client.names) + len(client.taken)
        new = len(wanted - client.names - client.taken)
        if not new:
            return
        if 0 <= quota < known + new - OVER_QUOTA:
            raise _quota_exceeded(f"the client has more than {quota} lite topics")
        self._take(client.account, new)
        self._shares.give_back(client.account, new)

    def _take(self, account: str, entries: int) -> None:
        if not self._shares.take(account, entries):
            raise _quota_exceeded("the broker has too many subscriptions to lite topics")

    def _add(self, client: LiteClient, name: bytes, now_ms: int) -> None:
        if name in client.names:
            return
        if name in client.taken:
            client.taken.discard(name)
        else:
            self._take(client.account, 1)
        client.names.add(name)
        self._dispatcher.subscribed(client, name, now_ms)

    def _remove(self, client: LiteClient, name: bytes, now_ms: int) -> None:
        if name in client.names:
            client.names.discard(name)
            self._shares.give_back(client.account)
            self._dispatcher.unsubscribed(client, name, now_ms)
        elif name in client.taken:
            client.taken.discard(name)
            self._shares.give_back(client.account)

    def _remove_all(self, client: LiteClient, names: set[bytes], now_ms: int) -> Steps[None]:
        for number, name in enumerate(list(names), 1):
            self._remove(client, name, now_ms)
            if number % _NAMES_A_STEP == 0:
                yield

    def _take_over(self, loser: LiteClient, name: bytes, now_ms: int) -> None:
        loser.names.discard(name)
        loser.taken.add(name)
        self._dispatcher.unsubscribed(loser, name, now_ms)
        self._tell(loser, name)

    def _leave_lost(self, client: LiteClient, wanted: set[bytes]) -> Steps[None]:
        """Takes those of the names in a complete set out of it that another client has taken over, or has."""
        for name in client.taken - wanted:  # the client has taken note
            client.taken.discard(name)
            self._shares.give_back(client.account)
        for number, name in enumerate(wanted - client.names, 1):
            if name in client.taken or any(each is not client for each in client.group.holders_of(name)):
                wanted.discard(name)
                self._tell(client, name)
            if number % _NAMES_A_STEP == 0:
                yield

    def _tell(self, client: LiteClient, name: bytes) -> None:
        if client.channel is not None:
            self.notices.append(Notice(client.channel, client.group.name, client.client_id, name))

    def _start(self, group: ReadingGroup, name: bytes, start: Start, now_ms: int) -> None:
        """Sets where the group continues, if the client wants another place."""
        committed = self._progress.committed(group.name, name)
        if start.at is StartAt.MIN:
            self._leases.move_to(group, name, 0, now_ms)
        elif start.at is StartAt.MAX:
            self._leases.move_to(group, name, self._progress.max_offset(name), now_ms)
        elif start.at is StartAt.OFFSET:
            self._leases.move_to(group, name, start.value, now_ms)
        elif start.at is StartAt.TAIL and committed >= 0:
            self._leases.move_to(group, name, committed - start.value, now_ms)
        elif start.at is StartAt.TIME:
            self._leases.move_to(group, name, self._progress.offset_since(name, start.value), now_ms)


def _is_known(client: LiteClient) -> bool:
    return client.group.clients.get(client.client_id) is client


def _quota_exceeded(why: str) -> BrokerError:
    return BrokerError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {why}")
