"""Logs why a server closes connections: one line per 10 s, because peers can cause thousands per second."""

from __future__ import annotations

import asyncio
import logging

from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_INTERVAL_S = 10.0


class PeerLog:
    """The log of one server. Event loop only."""

    def __init__(self) -> None:
        self._logged_at = -_INTERVAL_S
        self._not_logged = 0

    def closed(self, peer: str, reason: str) -> None:
        """Logs why a connection was closed, or counts it for the next line."""
        now = asyncio.get_running_loop().time()
        if now - self._logged_at < _INTERVAL_S:
            self._not_logged += 1
            return
        event(logger, logging.WARNING, "connection closed", peer=peer, reason=reason, not_logged=self._not_logged)
        self._logged_at, self._not_logged = now, 0
