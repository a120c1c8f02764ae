"""Logs why a server closes connections, and not more often than people read: peers can cause thousands per second."""

from __future__ import annotations

import asyncio
import logging

from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_INTERVAL_S = 10.0
_ADDRESS_INTERVAL_S = 60.0
ADDRESSES_MAX = 256
"""Number of addresses that ``AddressLog`` tells apart; all others share the lines of one."""


class PeerLog:
    """The log of one server: one line per 10 s. Event loop only."""

    def __init__(self) -> None:
        self._logged_at = -_INTERVAL_S
        self._not_logged = 0

    def closed(self, peer: str, reason: str) -> None:
        """Logs why a connection was closed, or counts it for the next line."""
        now = asyncio.get_running_loop().time()
        if now - self._logged_at < _INTERVAL_S:
            self._not_logged += 1
            return
        _write(peer, reason, self._not_logged)
        self._logged_at, self._not_logged = now, 0


class AddressLog:
    """The log of a server with few peers that matter, each by itself: one line a minute for each address. Event loop
    only.
    """

    def __init__(self) -> None:
        self._lines: dict[str, tuple[float, int]] = {}
        """For each address, when the last line was written, and the number of closed connections since."""

    def closed(self, peer: str, reason: str) -> None:
        """Logs why a connection was closed, or counts it for the next line of this address."""
        now, address = asyncio.get_running_loop().time(), _address(peer)
        if address not in self._lines and len(self._lines) >= ADDRESSES_MAX:
            self._lines = {each: line for each, line in self._lines.items() if now - line[0] < _ADDRESS_INTERVAL_S}
            address = address if len(self._lines) < ADDRESSES_MAX else ""
        logged_at, not_logged = self._lines.get(address, (-_ADDRESS_INTERVAL_S, 0))
        if now - logged_at < _ADDRESS_INTERVAL_S:
            self._lines[address] = logged_at, not_logged + 1
            return
        _write(peer, reason, not_logged)
        self._lines[address] = now, 0


def _address(peer: str) -> str:
    """Returns a peer without its port, if it has one."""
    if peer.startswith("["):
        return peer[1:].partition("]")[0]
    return peer.partition(":")[0] if peer.count(":") == 1 else peer


def _write(peer: str, reason: str, not_logged: int) -> None:
    event(logger, logging.WARNING, "connection closed", peer=peer, reason=reason, not_logged=not_logged)
