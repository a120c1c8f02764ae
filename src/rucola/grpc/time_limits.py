"""Ends what keeps a server waiting: connections that do not greet or are silent, and clients that are too slow.

A look costs what is due, or pending, and not what exists: silent connections stand in the order in which they are due,
and only those with a frame, a request or an answer that is not complete are compared with the last look.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rucola.grpc.server_options import GrpcServerOptions
from rucola.grpc.stream_watch import StreamWatch
from rucola.remoting.fairness.connection_watch import ConnectionWatch
from rucola.remoting.peer_log import PeerLog
from rucola.runtime.supervision import Pause

if TYPE_CHECKING:
    from rucola.grpc.connection import GrpcConnection

_LOOKS_MAX = 256
"""Number of connections at which one turn of the event loop looks."""
_STREAMS_OF_A_LOOK = 16
"""So many open streams of a connection count as one more connection."""


class TimeLimits:
    """The time limits of one server. Event loop only.

    Args:
        options: the limits.
        now_ms: the clock, in ms.
        log: where it is said why a connection was closed.
        note: is told a word for the reason.
    """

    def __init__(
        self, options: GrpcServerOptions, now_ms: Callable[[], int], log: PeerLog, note: Callable[[str], None]
    ) -> None:
        self._options, self._now_ms, self._log, self._note = options, now_ms, log, note
        self._watch = ConnectionWatch(options)
        self._greeting: OrderedDict[GrpcConnection, int] = OrderedDict()
        """Connections whose preface is not known to be complete, and when they were opened."""
        self._silent: OrderedDict[GrpcConnection, int] = OrderedDict()
        """All connections, and when it was last seen whether they are silent."""
        self._pending: dict[GrpcConnection, StreamWatch] = {}
        self._round: list[GrpcConnection] = []

    @property
    def period_s(self) -> float:
        """Seconds between two looks."""
        return min(self._watch.period_s, self._options.preface_timeout_ms / 4000)

    def opened(self, connection: GrpcConnection) -> None:
        """Called when a connection was accepted."""
        self._greeting[connection] = self._silent[connection] = self._now_ms()

    def closed(self, connection: GrpcConnection) -> None:
        """Called when a connection has ended."""
        self._greeting.pop(connection, None)
        self._silent.pop(connection, None)
        self._pending.pop(connection, None)

    def watch(self, connection: GrpcConnection) -> None:
        """Called when something of a connection is not complete; the next looks compare it."""
        if connection not in self._pending:
            connection.progress.framed = connection.progress.caught_up = True  # what was before does not count
            self._pending[connection] = StreamWatch(self._options)

    def look(self) -> Pause:
        """Ends what is due. Returns a pause of 0 if there is more than one turn of the event loop should do."""
        now_ms = self._now_ms()
        greeting = list(islice(_due(self._greeting, now_ms - self._options.preface_timeout_ms), _LOOKS_MAX))
        for connection in greeting:
            if not connection.http2.is_settled:
                self._log.closed(connection.address, f"no HTTP/2 within {self._options.preface_timeout_ms} ms")
                self._note("no preface")
                connection.abort()
        silent = list(islice(_due(self._silent, now_ms - self._options.idle_timeout_ms // 8), _LOOKS_MAX))
        for connection in silent:
            self._end_if_silent(connection, now_ms)
        if not self._round:
            self._round = list(self._pending)
        looks = 0
        while self._round and looks < _LOOKS_MAX:
            connection = self._round.pop()
            looks += 1 + connection.stream_count // _STREAMS_OF_A_LOOK
            if connection in self._pending and not self._is_kept(connection, now_ms):
                self._pending.pop(connection, None)
        return 0.0 if self._round or max(len(greeting), len(silent)) == _LOOKS_MAX else None

    def _end_if_silent(self, connection: GrpcConnection, now_ms: int) -> None:
        if now_ms - connection.active_ms > self._options.idle_timeout_ms:
            self._note("silent")
            connection.dismiss("silent for too long")
        else:
            self._silent[connection] = now_ms

    def _is_kept(self, connection: GrpcConnection, now_ms: int) -> bool:
        """Ends a connection, or streams of it, that took too long; returns whether the next look is for it, too."""
        if reason := self._watch.overdue(connection, now_ms / 1000):
            self._log.closed(connection.address, reason)
            self._note("too slow")
            connection.abort()
            return False
        connection.end_slow(self._pending[connection], now_ms)
        return connection.is_pending


def _due(table: OrderedDict[GrpcConnection, int], until_ms: int) -> Iterator[GrpcConnection]:
    """Takes from a table what was noted before a time."""
    while table:
        connection, noted_ms = next(iter(table.items()))
        if noted_ms >= until_ms:
            return
        del table[connection]
        yield connection
