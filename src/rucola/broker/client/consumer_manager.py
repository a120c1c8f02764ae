"""Live consumers by group, and their subscriptions (RocketMQ 5.3.3, ``ConsumerManager``). Event loop only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rucola.broker.client.client_channel import LAST_HEARTBEAT, ClientChannel
from rucola.broker.client.registrations import Registrations
from rucola.remoting.channel import Channel

if TYPE_CHECKING:
    from rucola.protocol.bodies.heartbeat import SubscriptionData

BROADCASTING = "BROADCASTING"
CONSUME_ACTIVELY = "CONSUME_ACTIVELY"


@dataclass(slots=True)
class ConsumerGroup:
    """The combined heartbeats of one group's clients. If they differ, the last heartbeat wins, except that only a newer
    version of a subscription replaces an older one. RocketMQ does the same.
    """

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    clients: dict[Channel, ClientChannel] = field(default_factory=dict)
    changes: int = 0
    """Number of heartbeats that changed the group's subscriptions, consume type, message model or start position."""

    def client_ids(self) -> list[str]:
        """Ids of the live clients, without duplicates."""
        return list(dict.fromkeys(client.client_id for client in self.clients.values()))


class ConsumerManager:
    """Maps each group to its :class:`ConsumerGroup`.

    Args:
        registrations: counts the registrations of all clients.

    Attributes:
        changes: a counter that rises when a group loses its last client, or when a heartbeat changes the group's
            subscriptions, consume type, message model or start position.
    """

    def __init__(self, registrations: Registrations | None = None) -> None:
        self._registrations = registrations or Registrations()
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Channel, set[str]] = {}
        """Names of the groups of each connection."""
        self._listeners: list[Callable[[ConsumerGroup], None]] = []
        self.changes = 0

    def on_change(self, listener: Callable[[ConsumerGroup], None]) -> None:
        """Calls ``listener`` with a group whenever its clients or topics change, so that its members must rebalance."""
        self._listeners.append(listener)

    def group(self, group: str) -> ConsumerGroup | None:
        """The group; None if no client of it is alive."""
        return self._groups.get(group)

    def groups_of(self, channel: Channel) -> int:
        """Number of groups with which one connection has registered."""
        return len(self._groups_of.get(channel, ()))

    def groups(self) -> Collection[ConsumerGroup]:
        """All groups with a live client."""
        return self._groups.values()

    def find_client(self, group: str, client_id: str) -> ClientChannel | None:
        """A live client of the group by its id."""
        info = self._groups.get(group)
        clients = info.clients.values() if info is not None else ()
        return next((client for client in clients if client.client_id == client_id), None)

    def subscribers(self, topic: str) -> list[str]:
        """The groups that have a live client and read the topic."""
        return [info.group for info in self._groups.values() if topic in info.subscriptions]

    def reads(self, group: str, topic: str) -> bool:
        """Whether the live clients of the group read the topic; True if no client has reported subscriptions."""
        info = self._groups.get(group)
        return info is None or not info.subscriptions or topic in info.subscriptions

    def register(
        self,
        client: ClientChannel,
        group: str,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
        subscriptions: Iterable[SubscriptionData] | None,
    ) -> bool:
        """Processes a heartbeat that named ``group``.

        Args:
            subscriptions: all of the client's subscriptions; None if the heartbeat left them out.

        Returns:
            Whether clients or topics of the group changed.

        Raises:
            BrokerError: another account uses the client's id in the group, or there are too many registrations.
        """
        info = self._groups.get(group)
        self._registrations.replace(None if info is None else info.clients.get(client.channel), client, group)
        if info is None:
            info = self._groups[group] = ConsumerGroup(group, consume_type, message_model, consume_from_where)
        before = info.consume_type, info.message_model, info.consume_from_where, dict(info.subscriptions)
        info.consume_type, info.message_model = consume_type, message_model
        info.consume_from_where = consume_from_where
        changed = client.channel not in info.clients
        info.clients[client.channel] = client
        self._groups_of.setdefault(client.channel, set()).add(group)
        if subscriptions is not None:
            changed |= _replace_subscriptions(info.subscriptions, subscriptions)
        if before != (info.consume_type, info.message_model, info.consume_from_where, info.subscriptions):
            info.changes += 1
            self.changes += 1
        if changed:
            self._tell(info)
        return changed

    def unregister(self, group: str, channel: Channel) -> None:
        """Removes a client from the group; the others rebalance. The client's next heartbeat registers it again."""
        channel.attributes.pop(LAST_HEARTBEAT, None)
        info = self._groups.get(group)
        client = None if info is None else info.clients.pop(channel, None)
        if info is None or client is None:
            return
        self._registrations.remove(client, group)
        names = self._groups_of[channel]
        names.discard(group)
        if not names:
            del self._groups_of[channel]
        if not info.clients:
            del self._groups[group]
            self.changes += 1
        self._tell(info)

    def channel_closed(self, channel: Channel) -> None:
        """Removes a closed connection from every group."""
        for group in list(self._groups_of.get(channel, ())):
            self.unregister(group, channel)

    def silent_since(self, limit_s: float) -> list[Channel]:
        """Connections of clients whose last heartbeat came before ``limit_s``, a monotonic time in seconds."""
        return [
            client.channel
            for info in self._groups.values()
            for client in info.clients.values()
            if client.last_update_s < limit_s
        ]

    def _tell(self, info: ConsumerGroup) -> None:
        for listener in self._listeners:
            listener(info)


def _replace_subscriptions(table: dict[str, SubscriptionData], subscriptions: Iterable[SubscriptionData]) -> bool:
    """Stores a client's subscriptions; returns whether the set of topics changed."""
    changed = False
    topics = set()
    for subscription in subscriptions:
        topics.add(subscription.topic)
        known = table.get(subscription.topic)
        if known is None:
            changed = True
        if known is None or subscription.sub_version > known.sub_version:
            table[subscription.topic] = subscription
    for topic in [topic for topic in table if topic not in topics]:
        del table[topic]
        changed = True
    return changed
