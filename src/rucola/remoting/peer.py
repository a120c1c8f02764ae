"""The connection of a client, as other parts of a server see it. ``Channel`` implements it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from rucola.protocol.command import RemotingCommand
from rucola.remoting.outbound import Part


class Peer(Protocol):
    """A connected client. Peers are compared by identity, so they can be keys of a dictionary.

    Attributes:
        attributes: data that the handler keeps with this connection.
        closed: whether the connection is gone.
        costly: whether the connection's last request used much processor time. If so, the next request is served
            only in a turn (iteration) of the event loop that has time left. ``costly`` is also True before the first
            request, because many new connections may begin with a costly request.
        remote_address: the client as ``ip:port``.
    """

    attributes: dict[str, Any]
    closed: bool
    costly: bool
    remote_address: str

    def send(self, data: Part) -> None:
        """See ``Channel.send``."""
        ...

    def send_parts(self, parts: Iterable[Part]) -> None:
        """See ``Channel.send_parts``."""
        ...

    def send_oneway(self, frame: bytes) -> None:
        """See ``Channel.send_oneway``."""
        ...

    def owe(self, size: int) -> None:
        """See ``Channel.owe``."""
        ...

    def settle(self, size: int) -> None:
        """See ``Channel.settle``."""
        ...

    async def invoke(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """See ``Channel.invoke``."""
        ...

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """See ``Channel.invoke_oneway``."""
        ...

    def close(self) -> None:
        """See ``Channel.close``."""
        ...
