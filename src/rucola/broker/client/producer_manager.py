"""Live producers by group (RocketMQ 5.3.3, ``ProducerManager``). Event loop only.

A connection records its own groups, so closing the connection costs time only for those groups.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.client.registrations import Registrations
from rucola.remoting.channel import Channel


@dataclass(slots=True)
class _Connection:
    """Groups and client ids that the heartbeats of one connection named."""

    groups: dict[str, ClientChannel] = field(default_factory=dict)
    client_ids: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of groups for each client id and account."""


class ProducerManager:
    """Maps group and connection to the client.

    Args:
        registrations: counts the registrations of all clients.
    """

    def __init__(self, registrations: Registrations | None = None) -> None:
        self._registrations = registrations or Registrations()
        self._groups: dict[str, dict[Channel, ClientChannel]] = {}
        self._connections: dict[Channel, _Connection] = {}
        self._channels: dict[str, dict[str, Any]] = {}
        """For each client id, the newest connection of each account that uses the id."""

    def register(self, group: str, client: ClientChannel) -> None:
        """Processes a heartbeat that named ``group``.

        Raises:
            BrokerError: there are too many registrations.
        """
        connection = self._connections.get(client.channel)
        before = None if connection is None else connection.groups.get(group)
        self._registrations.replace(before, client)
        if connection is None:
            connection = self._connections[client.channel] = _Connection()
        connection.groups[group] = client
        connection.client_ids[client.client_id, client.account] += 1
        if before is not None:
            self._release_id(connection, before)
        self._groups.setdefault(group, {})[client.channel] = client
        self._channels.setdefault(client.client_id, {})[client.account] = client.channel

    def unregister(self, group: str, channel: Channel) -> None:
        """Removes a client from the group."""
        connection = self._connections.get(channel)
        client = connection.groups.pop(group, None) if connection is not None else None
        if connection is None or client is None:
            return
        clients = self._groups[group]
        del clients[channel]
        if not clients:
            del self._groups[group]
        self._registrations.remove(client)
        self._release_id(connection, client)
        if not connection.groups:
            del self._connections[channel]

    def channel_closed(self, channel: Channel) -> None:
        """Removes a closed connection from every group."""
        connection = self._connections.get(channel)
        for group in list(connection.groups) if connection is not None else ():
            self.unregister(group, channel)

    def clients(self, group: str) -> list[ClientChannel]:
        """Live clients of the group."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> dict[str, list[ClientChannel]]:
        """Live clients of every group."""
        return {group: list(clients.values()) for group, clients in self._groups.items()}

    def groups_of(self, channel: Channel) -> int:
        """Number of groups with which a connection has registered."""
        connection = self._connections.get(channel)
        return 0 if connection is None else len(connection.groups)

    def find_channel(self, client_id: str) -> Any | None:
        """The newest connection of a client; None if it has none, or if several accounts use the id: then nobody knows
        which of them is meant.
        """
        channels = self._channels.get(client_id, {})
        return next(iter(channels.values())) if len(channels) == 1 else None

    def silent_since(self, limit_s: float) -> list[Channel]:
        """Connections of clients whose last heartbeat came before ``limit_s``, a monotonic time in seconds."""
        return [
            channel
            for channel, connection in self._connections.items()
            if any(client.last_update_s < limit_s for client in connection.groups.values())
        ]

    def _release_id(self, connection: _Connection, client: ClientChannel) -> None:
        """Decrements the number of groups in which the connection uses the client id. At zero, ``find_channel`` no
        longer returns the connection for this id.
        """
        name = client.client_id, client.account
        connection.client_ids[name] -= 1
        if connection.client_ids[name] <= 0:
            del connection.client_ids[name]
            channels = self._channels[client.client_id]
            if channels.get(client.account) is client.channel:
                del channels[client.account]
                if not channels:
                    del self._channels[client.client_id]
