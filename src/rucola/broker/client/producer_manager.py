"""Live producers by group (RocketMQ 5.3.3, ``ProducerManager``). Event loop only."""

from __future__ import annotations

from typing import Any

from rucola.broker.client.client_channel import ClientChannel


class ProducerManager:
    """Group → connection → client."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Any, ClientChannel]] = {}
        self._channels: dict[str, Any] = {}

    def register(self, group: str, client: ClientChannel) -> None:
        """A heartbeat named ``group``."""
        self._groups.setdefault(group, {})[client.channel] = client
        self._channels[client.client_id] = client.channel

    def unregister(self, group: str, channel: Any) -> None:
        """The client leaves the group."""
        clients = self._groups.get(group)
        if clients is not None:
            client = clients.pop(channel, None)
            if not clients:
                del self._groups[group]
            if (
                client is not None
                and self._channels.get(client.client_id) is channel
                and not any(channel in others for others in self._groups.values())
            ):
                del self._channels[client.client_id]

    def channel_closed(self, channel: Any) -> None:
        """The connection is gone: it leaves every group."""
        for group in list(self._groups):
            self.unregister(group, channel)

    def clients(self, group: str) -> list[ClientChannel]:
        """Live clients of the group."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> dict[str, list[ClientChannel]]:
        """Live clients of every group."""
        return {group: list(clients.values()) for group, clients in self._groups.items()}

    def find_channel(self, client_id: str) -> Any | None:
        """The newest connection of a client, None when it has none."""
        return self._channels.get(client_id)

    def silent_since(self, limit_s: float) -> list[Any]:
        """Connections whose last heartbeat is older than ``limit_s`` (monotonic seconds)."""
        return [
            client.channel
            for clients in self._groups.values()
            for client in clients.values()
            if client.last_update_s < limit_s
        ]
