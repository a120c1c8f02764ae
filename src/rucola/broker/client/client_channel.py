"""The client at the other end of a connection, as its heartbeats describe it."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.remoting.channel import Channel


@dataclass(slots=True, eq=False)
class ClientChannel:
    """One client of one group (RocketMQ's ``ClientChannelInfo``)."""

    channel: Channel
    client_id: str
    language: str
    version: int
    last_update_s: float
    """Monotonic seconds of the last heartbeat."""
    account: str = ""
    """The account that sent the heartbeat; empty without accounts."""


LAST_HEARTBEAT = "heartbeat"
"""Key of the attribute of a connection that holds its last heartbeat, so that an equal one only renews the times. It no
longer counts when the connection leaves a group.
"""
SCAN_INTERVAL_S = 10.0
"""Period of ``scanNotActiveChannel``."""
