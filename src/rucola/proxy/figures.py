"""Figures of a door, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class DoorFigures(NamedTuple):
    """The figures at one moment; the defaults are those of a door to which nobody has come.

    Attributes:
        connections: open connections.
        clients: known clients; a client has one connection or more.
        links: connections of clients to brokers.
        calls: calls that clients have begun.
        open_calls: calls that have not ended.
        polls: receives that wait for messages.
        renewed: receipt handles that are renewed.
        unsent_bytes: bytes of answers that clients do not take.
        held_bytes: bytes of requests that are not complete.
        refused: requests refused by access control at the door.
        unknown_senders: those of them without a valid signature.
        outcomes: number of calls by method and status.
        ends: number of connections that were closed because of what their clients did, by reason.
    """

    connections: int = 0
    clients: int = 0
    links: int = 0
    calls: int = 0
    open_calls: int = 0
    polls: int = 0
    renewed: int = 0
    unsent_bytes: int = 0
    held_bytes: int = 0
    refused: int = 0
    unknown_senders: int = 0
    outcomes: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    ends: Mapping[str, int] = MappingProxyType({})
