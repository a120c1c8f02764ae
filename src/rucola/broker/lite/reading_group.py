"""A group that reads lite topics, and its clients: what the broker remembers of them, in memory only.

A lite topic is known by its name, ``<parent>$<lite>``. There is one bytes object for each name that a group knows;
tables and sets refer to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rucola.broker.lite.attributes import LiteGroup

if TYPE_CHECKING:
    from rucola.broker.lite.order_block import OrderBlock
    from rucola.broker.pop.hold import WaitingPop
    from rucola.remoting.channel import Channel

_CLIENTS = "lite-clients"
"""Key of the attribute of a connection with its clients."""
_ATTEMPTS_MAX = 64
"""The newest pops of a client that may be repeated with their attempt ids."""


class LiteClient:
    """One client of a group: it has subscribed, or it waits for messages.

    Attributes:
        account: the account that it uses; empty without accounts.
        channel: the connection of its last subscription, for notifications; None before the first (``bind``).
        names: the lite topics to which it has subscribed.
        taken: those that another client has taken over from it, and of which it has not taken note yet.
        is_subscribed: whether it has subscribed to anything; in a wildcard group, to everything.
        is_aside: whether it is silent: others get its events, if there are any.
        events: names with messages for it, in the order in which it gets them.
        waiters: its pops that wait, the oldest first.
        attempts: names of which its last pops got messages, by attempt id.
        renewed_ms, polled_ms: monotonic times in ms of its last subscription and of its last poll.
        accessed_ms, consumed_ms: wall-clock times in ms of its last subscription and of its last messages; 0: never.
    """

    __slots__ = (
        "accessed_ms",
        "account",
        "attempts",
        "channel",
        "client_id",
        "consumed_ms",
        "events",
        "group",
        "is_aside",
        "is_subscribed",
        "names",
        "polled_ms",
        "renewed_ms",
        "taken",
        "waiters",
    )

    def __init__(self, group: ReadingGroup, client_id: str, account: str, now_ms: int) -> None:
        self.group = group
        self.client_id = client_id
        self.account = account
        self.channel: Channel | None = None
        self.names: set[bytes] = set()
        self.taken: set[bytes] = set()
        self.is_subscribed = self.is_aside = False
        self.events: OrderedDict[bytes, None] = OrderedDict()
        self.waiters: dict[WaitingPop, None] = {}
        self.attempts: dict[str, tuple[bytes, ...]] = {}
        self.renewed_ms = self.polled_ms = now_ms
        self.accessed_ms = self.consumed_ms = 0

    def bind(self, channel: Channel | None) -> None:
        """Notes the connection of the client, and notes the client there (``clients_on``)."""
        if self.channel is not channel:
            if self.channel is not None:
                clients_on(self.channel).pop(self, None)
            if channel is not None:
                channel.attributes.setdefault(_CLIENTS, {})[self] = None
            self.channel = channel

    @property
    def is_unused(self) -> bool:
        """Whether nothing is known of it that it could miss."""
        return not (self.is_subscribed or self.waiters or self.taken)

    def note_attempt(self, attempt_id: str, names: tuple[bytes, ...]) -> None:
        """Notes what a pop got."""
        self.attempts.pop(attempt_id, None)
        self.attempts[attempt_id] = names
        if len(self.attempts) > _ATTEMPTS_MAX:
            del self.attempts[next(iter(self.attempts))]


def clients_on(channel: Channel) -> dict[LiteClient, None]:
    """Returns the clients whose last subscription came over a connection."""
    clients: dict[LiteClient, None] = channel.attributes.get(_CLIENTS, {})
    return clients


class ReadingGroup:
    """One group.

    Attributes:
        settings: its attributes.
        clients: by client id.
        holders: the clients that have subscribed to a name: one, or several in a tuple.
        owners: the client that has the event of a name; a name has at most one event.
        ready: in a wildcard group, the names with messages, for any client.
        blocks: the last pop of each name, if it is not over.
        moved: names whose offset was set anew; until the next pop, acknowledgements of former pops do not count.
        waiting: in a wildcard group, the subscribed clients with pops that wait.
    """

    __slots__ = ("blocks", "clients", "holders", "moved", "name", "owners", "ready", "settings", "waiting")

    def __init__(self, name: str, settings: LiteGroup) -> None:
        self.name = name
        self.settings = settings
        self.clients: dict[str, LiteClient] = {}
        self.holders: dict[bytes, LiteClient | tuple[LiteClient, ...]] = {}
        self.owners: dict[bytes, LiteClient] = {}
        self.ready: OrderedDict[bytes, None] = OrderedDict()
        self.blocks: dict[bytes, OrderBlock] = {}
        self.moved: set[bytes] = set()
        self.waiting: OrderedDict[LiteClient, None] = OrderedDict()

    def holders_of(self, name: bytes) -> tuple[LiteClient, ...]:
        """Returns the clients that have subscribed to a name."""
        found = self.holders.get(name, ())
        return found if isinstance(found, tuple) else (found,)

    def add_holder(self, name: bytes, client: LiteClient) -> None:
        """Notes that a client, which is no holder, has subscribed to a name."""
        before = self.holders_of(name)
        self.holders[name] = (*before, client) if before else client

    def remove_holder(self, name: bytes, client: LiteClient) -> None:
        """Notes that a client no longer subscribes to a name."""
        rest = tuple(each for each in self.holders_of(name) if each is not client)
        if rest:
            self.holders[name] = rest if len(rest) > 1 else rest[0]
        else:
            self.holders.pop(name, None)


class ReadingGroups:
    """The groups with clients, by name and by parent. Event loop only."""

    def __init__(self) -> None:
        self._groups: dict[str, ReadingGroup] = {}
        self._of_parent: dict[bytes, dict[ReadingGroup, None]] = {}

    def __iter__(self) -> Iterator[ReadingGroup]:
        return iter(list(self._groups.values()))

    def get(self, name: str) -> ReadingGroup | None:
        """Returns a group; None if it is not known."""
        return self._groups.get(name)

    def of_parent(self, parent: bytes) -> tuple[ReadingGroup, ...]:
        """Returns the groups that read lite topics of a parent."""
        return tuple(self._of_parent.get(parent, ()))

    def make(self, name: str, settings: LiteGroup) -> ReadingGroup:
        """Returns a group, which is made if it is not known."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ReadingGroup(name, settings)
            self._of_parent.setdefault(settings.bind_topic.encode(), {})[group] = None
        return group

    def drop(self, group: ReadingGroup) -> None:
        """Forgets a group."""
        if self._groups.get(group.name) is not group:
            return
        del self._groups[group.name]
        parent = group.settings.bind_topic.encode()
        groups = self._of_parent[parent]
        del groups[group]
        if not groups:
            del self._of_parent[parent]
