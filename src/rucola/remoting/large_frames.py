"""Limits the memory of all frames that are larger than the receive buffers of their connections.

If there is no room for a frame, reading from its connection pauses. While others wait, frames that arrive slowly lose
their room, and their connections are closed. A peer that begins large frames and does not continue therefore delays
others by a few seconds at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rucola.remoting.channel import Channel

GRACE_S = 2.0
"""Time that a large frame always gets, even while others wait for room."""
RATE_MIN = 1024 * 1024
"""Minimum rate in bytes per second for a frame that takes longer."""
RETRY_S = 0.25
"""Interval in seconds at which waiting connections try again."""


class LargeFrames:
    """The room for large frames. Event loop only.

    Args:
        bytes_max: maximum number of bytes of all incomplete large frames.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Channel, tuple[int, float]] = {}
        self._total = 0
        self._waiting: set[Channel] = set()

    @property
    def total_bytes(self) -> int:
        """Number of bytes received of incomplete large frames."""
        return self._total

    @property
    def waiting(self) -> int:
        """Connections that wait for room."""
        return len(self._waiting)

    def grew(self, channel: Channel, size: int, now_s: float) -> bool:
        """Records that ``size`` bytes of a large frame of ``channel`` have arrived; returns whether there is room for
        more.
        """
        before, since_s = self._held.get(channel, (0, now_s))
        self._held[channel] = size, since_s
        self._total += size - before
        # The oldest frame must be able to finish, or none ever would.
        if self._total <= self._bytes_max or channel is next(iter(self._held)):
            return True
        self._waiting.add(channel)
        return False

    def ended(self, channel: Channel) -> None:
        """Releases the room: the frame is complete, or the connection closed."""
        size, _ = self._held.pop(channel, (0, 0.0))
        self._total -= size
        self._waiting.discard(channel)

    def slow(self, now_s: float) -> list[Channel]:
        """Connections that must give up their room, because others wait for it and their own frames make no
        progress.
        """
        if not self._waiting or self._total <= self._bytes_max:
            return []
        return [
            channel
            for channel, (size, since_s) in self._held.items()
            if channel not in self._waiting and now_s - since_s > GRACE_S and size < RATE_MIN * (now_s - since_s)
        ]

    def admit(self) -> list[Channel]:
        """The waiting connections that may be read again, longest waiting first, as far as there is room."""
        room = self._bytes_max - self._total
        by_age = sorted(self._waiting, key=lambda channel: self._held[channel][1])
        # All holders of room are waiting: the oldest continues, otherwise none would ever finish.
        admitted = by_age[:1] if len(self._waiting) == len(self._held) else []
        for channel in by_age[len(admitted) :]:
            # A buffer doubles when it is full, so each may need as much again.
            room -= self._held[channel][0]
            if room < 0:
                break
            admitted.append(channel)
        self._waiting.difference_update(admitted)
        return admitted
