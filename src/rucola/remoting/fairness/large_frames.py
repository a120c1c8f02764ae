"""Limits the memory of all incomplete frames that have buffers of their own (large frames).

All connections share three quarters of the memory. When this part is in use, reading pauses in the middle of large
frames. The rest of the memory is then given to a few waiting frames at a time: alternately to the frame with the fewest
missing bytes and to the frame that began first. Each of these frames gets all the memory that it still needs, so that
it can finish. While frames wait, every other large frame must arrive at a minimum rate, or its connection is closed. A
peer that begins large frames and does not continue therefore delays others by a second or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Connection = TypeVar("Connection")

GRACE_S = 2.0
"""Seconds that a large frame always gets, even while other large frames wait for memory."""
GRACE_AFTER_WAIT_S = 0.5
"""Seconds that a large frame gets after a wait: fewer, because the next bytes of the frame are already on their way."""
RATE_MIN = 1024 * 1024
"""Minimum rate in bytes per second at which a frame must arrive after its ``GRACE_S`` or ``GRACE_AFTER_WAIT_S``."""
RETRY_S = 0.25
"""Interval in seconds at which waiting connections try again."""


@dataclass(slots=True)
class _BegunFrame:
    """An incomplete large frame.

    Attributes:
        needed: size in bytes of the whole frame.
        size: bytes that have arrived.
        since_s: when the frame began or was given memory; ``since_size`` bytes had arrived then.
        let_in: whether the frame has waited and memory is now reserved for all its missing bytes.
    """

    needed: int
    size: int
    since_s: float
    since_size: int = 0
    grace_s: float = GRACE_S
    waits: bool = False
    let_in: bool = False

    @property
    def missing(self) -> int:
        return max(self.needed - self.size, 0)

    def is_slow(self, now_s: float) -> bool:
        elapsed_s = now_s - self.since_s
        return not self.waits and elapsed_s > self.grace_s and self.size - self.since_size < RATE_MIN * elapsed_s


class LargeFrames(Generic[Connection]):
    """The memory that large frames may use. Event loop only.

    Args:
        bytes_max: maximum number of bytes of all incomplete large frames. A single frame may be larger.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._shared_max = bytes_max * 3 // 4
        self._frames: dict[Connection, _BegunFrame] = {}
        self._total = 0
        self._smallest_next = True

    @property
    def total_bytes(self) -> int:
        """Number of bytes received of incomplete large frames."""
        return self._total

    @property
    def waiting(self) -> int:
        """Number of connections that wait for memory."""
        return sum(frame.waits for frame in self._frames.values())

    def grew(self, channel: Connection, size: int, needed: int, now_s: float) -> bool:
        """Notes that ``size`` of the ``needed`` bytes of a large frame have arrived from ``channel``; returns whether
        there is memory for more.
        """
        frame = self._frames.get(channel)
        if frame is None:
            frame = self._frames[channel] = _BegunFrame(needed, 0, now_s)
        self._total += size - frame.size
        frame.size = size
        if not (frame.let_in or self._total <= self._shared_max or len(self._frames) == 1):
            frame.waits = True
        # A channel whose frame waits calls this method again after it has served its postponed requests.
        return not frame.waits

    def ended(self, channel: Connection) -> None:
        """Releases the memory of a frame that is complete, or whose connection has closed."""
        frame = self._frames.pop(channel, None)
        if frame is not None:
            self._total -= frame.size

    def slow(self, now_s: float) -> list[Connection]:
        """Connections whose large frames arrive too slowly while other connections wait for memory; the caller must
        close them.
        """
        if not self.waiting:
            return []
        return [channel for channel, frame in self._frames.items() if frame.is_slow(now_s)]

    def admit(self, now_s: float) -> list[Connection]:
        """The waiting connections that may be read again, because there is memory for the rest of their frames."""
        waiting = [channel for channel, frame in self._frames.items() if frame.waits]
        by_size = sorted(waiting, key=lambda channel: self._frames[channel].missing, reverse=True)
        by_age = waiting[::-1]  # frames are listed in the order in which they began
        free = self._bytes_max - self._total
        free -= sum(frame.missing for frame in self._frames.values() if frame.let_in)
        admitted: list[Connection] = []
        while by_size:
            order = by_size if self._smallest_next else by_age
            channel = order.pop()
            frame = self._frames[channel]
            if not frame.waits:
                continue
            # At least one frame must be able to finish, or none ever would.
            if frame.missing > free and (admitted or len(self._frames) > len(waiting)):
                break
            free -= frame.missing
            self._let_in(frame, now_s)
            admitted.append(channel)
            self._smallest_next = not self._smallest_next
        return admitted

    def _let_in(self, frame: _BegunFrame, now_s: float) -> None:
        frame.waits, frame.let_in = False, True
        frame.since_s, frame.since_size, frame.grace_s = now_s, frame.size, GRACE_AFTER_WAIT_S
