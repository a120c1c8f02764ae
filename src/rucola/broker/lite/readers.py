"""What other parts of a broker tell and ask those that deliver lite topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Reader(Protocol):
    """Who reads a lite topic; the client is ``*`` in a wildcard group."""

    @property
    def client_id(self) -> str:
        """The client."""

    @property
    def group(self) -> str:
        """Its group."""


class ClientInfo(Protocol):
    """What administrators learn of a client; wall-clock times in ms, 0 if it was never."""

    @property
    def names(self) -> list[bytes]:
        """Its lite topics, at most as many as were asked for."""

    @property
    def names_count(self) -> int:
        """The number of all its lite topics."""

    @property
    def accessed_ms(self) -> int:
        """When it was last heard of."""

    @property
    def consumed_ms(self) -> int:
        """When it last got messages."""


class LiteReaders(Protocol):
    """The clients that read lite topics. Names are ``<parent>$<lite>``."""

    @property
    def subscription_count(self) -> int:
        """Number of lite topics to which clients subscribe, summed over all clients."""

    @property
    def block_count(self) -> int:
        """Number of pairs of group and lite topic with messages in flight."""

    @property
    def event_count(self) -> int:
        """Number of lite topics that wait for a client."""

    def forget(self, lite_id: int) -> None:
        """Forgets who reads a lite topic, and what is in flight, because it is gone."""

    def readers_of(self, name: bytes) -> Sequence[Reader]:
        """Returns who reads a lite topic."""

    def client_info(self, group: str, client_id: str, names_max: int) -> ClientInfo | None:
        """Returns what is known of a client; None if it is unknown."""
