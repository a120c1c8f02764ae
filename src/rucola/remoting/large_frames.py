"""Room for frames that are larger than the receive buffers of their connections, of all connections together.

Who finds no room is not read for a while. Meanwhile frames that arrive slowly lose theirs with their connections: a
peer that begins large frames and does not go on keeps nobody waiting for longer than a few seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rucola.remoting.channel import Channel

GRACE_S = 2.0
"""How long a large frame may take at any rate, even while others wait for room."""
RATE_MIN = 1024 * 1024
"""Bytes a second that keep the room of a frame that takes longer."""
RETRY_S = 0.25
"""How often those who wait try again."""


class LargeFrames:
    """See the module. Event loop only.

    Args:
        bytes_max: of all large frames that are not complete.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Channel, tuple[int, float]] = {}
        self._total = 0
        self._waiting: set[Channel] = set()

    @property
    def total_bytes(self) -> int:
        """Bytes that are here of large frames."""
        return self._total

    @property
    def waiting(self) -> int:
        """Connections that wait for room."""
        return len(self._waiting)

    def grew(self, channel: Channel, size: int, now_s: float) -> bool:
        """``size`` bytes are here of a large frame of ``channel``; whether there is room for more."""
        before, since_s = self._held.get(channel, (0, now_s))
        self._held[channel] = size, since_s
        self._total += size - before
        # Whoever holds all there is must be able to come to an end.
        if self._total <= self._bytes_max or len(self._held) == 1:
            return True
        self._waiting.add(channel)
        return False

    def ended(self, channel: Channel) -> None:
        """The frame is complete, or the connection gone."""
        size, _ = self._held.pop(channel, (0, 0.0))
        self._total -= size
        self._waiting.discard(channel)

    def slow(self, now_s: float) -> list[Channel]:
        """Connections that must give up their room: others wait for it and their frames do not come on."""
        if not self._waiting or self._total <= self._bytes_max:
            return []
        return [
            channel
            for channel, (size, since_s) in self._held.items()
            if channel not in self._waiting and now_s - since_s > GRACE_S and size < RATE_MIN * (now_s - since_s)
        ]

    def admit(self) -> list[Channel]:
        """Those who waited and may be read on, longest-waiting frames first, as far as there is room."""
        room = self._bytes_max - self._total
        by_age = sorted(self._waiting, key=lambda channel: self._held[channel][1])
        # All that hold room wait: the oldest goes on, else none would ever end.
        admitted = by_age if room > 0 else by_age[:1] if len(self._waiting) == len(self._held) else []
        self._waiting.difference_update(admitted)
        return admitted
