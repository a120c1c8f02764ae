"""Decides which connections to close: those that have had an incomplete frame or unsent responses for too long.
``RemotingServer`` itself closes connections that are silent for too long.

A hostile peer costs one connection and the bytes that it sent, for a limited time; other peers are not affected
(security.md S-02, S-07 to S-09). Nothing here runs for each message: channels only set flags, and ``overdue`` is called
for each channel every few seconds.
"""

from __future__ import annotations

from typing import Protocol


class ConnectionProgress:
    """What ``ConnectionWatch``, and the server's check for silent connections, know of one connection.

    The connection sets the first three attributes; the checks clear them.

    Attributes:
        active: whether a byte was received or sent since the last check.
        framed: whether a frame was completed since the last check.
        caught_up: whether the peer, which had been slow, has accepted its responses since the last check.
        idle_since: time in seconds of the last check that found ``active`` set.
        begun_since: time in seconds from which the check counts how long a frame has been incomplete.
        stalled_since: time in seconds of the last check that found fewer unsent bytes than before, or none.
        unsent_before: number of unsent bytes at the last check.
    """

    __slots__ = ("active", "begun_since", "caught_up", "framed", "idle_since", "stalled_since", "unsent_before")

    def __init__(self, now: float) -> None:
        self.active = self.framed = True
        self.caught_up = False
        self.idle_since = self.begun_since = self.stalled_since = now
        self.unsent_before = 0


class Watched(Protocol):
    """A connection, as ``ConnectionWatch`` sees it."""

    progress: ConnectionProgress

    @property
    def begun_bytes(self) -> int:
        """Number of received bytes of an incomplete frame."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the server reads bytes that arrive."""
        ...

    @property
    def unread_bytes(self) -> int:
        """Number of unsent bytes of responses, if they keep the server from reading; otherwise 0."""
        ...


class WatchLimits(Protocol):
    """The options of a server that matter here."""

    @property
    def idle_timeout_ms(self) -> int:
        """How long a connection may be silent."""
        ...

    @property
    def frame_timeout_ms(self) -> int:
        """Longest time for a frame, in addition to the time of its bytes."""
        ...

    @property
    def frame_bytes_per_s_min(self) -> int:
        """The lowest accepted rate of a sending peer."""
        ...

    @property
    def stalled_timeout_ms(self) -> int:
        """How long a peer may accept none of its unsent responses."""
        ...


class ConnectionWatch:
    """The limits of one server. Event loop only.

    Args:
        limits: the limits.
    """

    def __init__(self, limits: WatchLimits) -> None:
        self._limits = limits

    @property
    def period_s(self) -> float:
        """Seconds between two checks of each connection."""
        limits = self._limits
        shortest = min(limits.idle_timeout_ms / 8, limits.frame_timeout_ms / 3, limits.stalled_timeout_ms / 3)
        return shortest / 1000

    def overdue(self, channel: Watched, now: float) -> str:
        """Why ``channel`` must be closed at the time ``now`` (seconds); empty if it may stay."""
        limits = self._limits
        progress = channel.progress
        unsent = channel.unread_bytes
        if not unsent or progress.caught_up or unsent < progress.unsent_before:
            progress.stalled_since = now
        progress.caught_up = False
        progress.unsent_before = unsent
        if now - progress.stalled_since > limits.stalled_timeout_ms / 1000:
            return f"the peer has accepted no response data for {limits.stalled_timeout_ms} ms"
        begun = channel.begun_bytes
        # no frame has begun, the frame began after the last check, or reading is paused
        if not begun or progress.framed or not channel.is_read:
            progress.framed = False
            progress.begun_since = now
        elif now - progress.begun_since > limits.frame_timeout_ms / 1000 + begun / limits.frame_bytes_per_s_min:
            return f"only {begun} bytes of a frame in {now - progress.begun_since:.0f} s"
        return ""
