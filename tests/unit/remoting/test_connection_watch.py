"""Which connections are closed because their peer accepts no responses."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.remoting.fairness.connection_watch import ConnectionProgress, ConnectionWatch
from rucola.remoting.server_options import ServerOptions


@dataclass
class Connection:
    unread_bytes: int
    begun_bytes: int = 0
    is_read: bool = False
    progress: ConnectionProgress = field(default_factory=lambda: ConnectionProgress(0.0))


def closed_at(connection: Connection, caught_up_at: int = -1, falls_at: int = -1) -> int:
    """The second at which the watch, which looks once per second, closes ``connection``; 100 if it stays.

    Args:
        caught_up_at: when the peer accepts all responses, and then no more of the next ones.
        falls_at: when it accepts one byte.
    """
    watch = ConnectionWatch(ServerOptions(stalled_timeout_ms=30_000))
    for now in range(100):
        if now == caught_up_at:
            connection.progress.caught_up = True
        if now == falls_at:
            connection.unread_bytes -= 1
        if watch.overdue(connection, now):
            return now
    return 100


def test_a_peer_that_accepts_nothing_has_thirty_seconds() -> None:
    assert closed_at(Connection(1000)) == 31
    assert closed_at(Connection(0)) == 100


def test_each_sign_of_progress_gives_thirty_seconds_more_and_counts_once() -> None:
    assert closed_at(Connection(1000), caught_up_at=20) == 51
    assert closed_at(Connection(1000), falls_at=25) == 56
    assert closed_at(Connection(1000), caught_up_at=20, falls_at=45) == 76
