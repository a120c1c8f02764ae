"""Finds streams of a connection whose client is too slow: it takes none of our bytes, or sends its request by drops.

Nothing here runs for each message: ``StreamWatch`` compares numbers of bytes at looks that are seconds apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from rucola.http2.streams import StreamState

if TYPE_CHECKING:
    from rucola.grpc.call import GrpcCall
    from rucola.http2.connection import Http2Connection


class StreamLimits(Protocol):
    """The options of a server that matter here."""

    @property
    def frame_timeout_ms(self) -> int:
        """Longest time for a request, in addition to the time of its bytes."""
        ...

    @property
    def frame_bytes_per_s_min(self) -> int:
        """The lowest accepted rate of a sending client."""
        ...

    @property
    def stalled_timeout_ms(self) -> int:
        """How long a client may take none of the unsent bytes of a stream."""
        ...


class StreamWatch:
    """What the looks at one connection remember of its streams.

    Args:
        limits: the limits.
    """

    __slots__ = ("_begun", "_drained", "_limits", "_stalled")

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._stalled: dict[int, tuple[int, int]] = {}
        """For each stream with unsent bytes, how many had gone out, and when that changed."""
        self._begun: dict[int, int] = {}
        """For each stream that its client has not ended, when its request began."""
        self._drained = -1

    def stalled(self, http2: Http2Connection, now_ms: int) -> list[int]:
        """Returns the streams of which the client has taken nothing for too long.

        A stream that has a window waits for the connection's, so what other streams get counts for it, too.
        """
        before, self._stalled = self._stalled, {}
        has_moved = http2.drained_bytes != self._drained
        self._drained = http2.drained_bytes
        found = []
        for stream in http2.queued_streams():
            drained, since_ms = before.get(stream.number, (-1, 0))
            if stream.drained_bytes != drained or (has_moved and stream.send_window > 0):
                since_ms = now_ms
            self._stalled[stream.number] = stream.drained_bytes, since_ms
            if now_ms - since_ms > self._limits.stalled_timeout_ms:
                found.append(stream.number)
        return found

    def slow(
        self, http2: Http2Connection, calls: Mapping[int, GrpcCall], talks: dict[int, bool], is_read: bool, now_ms: int
    ) -> Iterator[tuple[int, int]]:
        """Yields streams whose request comes too slowly, and the time in ms that it took so far. There is no call if it
        was answered, and the client has not ended the stream.

        Args:
            http2: the connection.
            calls: its open calls.
            talks: streams with any number of requests, and whether one was completed since the last look; set to False.
            is_read: whether the server reads what the client sends.
            now_ms: the time.
        """
        before, self._begun = self._begun, {}
        limits = self._limits
        for stream in http2.unended_streams():
            number = stream.number
            call, talk = calls.get(number), talks.get(number)
            if call is None and stream.state != StreamState.HALF_CLOSED_LOCAL:
                continue  # its answer waits for a window
            held = 0 if call is None else call.held_bytes
            is_unary = call is not None and talk is None
            since_ms = before.get(number, stream.opened_ms if is_unary else now_ms)
            if not is_read or (talk is not None and (talk or not held)):
                since_ms = now_ms
            if talk:
                talks[number] = False
            self._begun[number] = since_ms
            if now_ms - since_ms > limits.frame_timeout_ms + held * 1000 // limits.frame_bytes_per_s_min:
                yield number, now_ms - since_ms
