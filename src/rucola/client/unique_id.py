"""Message ids created by clients (property UNIQ_KEY).

An id is 32 or 56 upper-case hex digits: IP address (4 or 16 bytes), low 2 bytes of the process id, 4 bytes that differ
between generators of the same process, int32 milliseconds since the start of the month (local time), uint16 counter.
Source: protocol.md 4.2; RocketMQ 5.3.3, MessageClientIDSetter.
"""

from __future__ import annotations

from datetime import datetime

from rucola.runtime.clock import Clock

_LOW_BYTES = tuple(f"{byte:02X}" for byte in range(256))


class UniqueIds:
    """Generates unique message ids.

    Ids of the same millisecond differ only in the counter, so at most 65,536 ids per millisecond are possible.

    Args:
        address: local IP address, 4 or 16 bytes.
        pid: process id.
        token: 4 bytes that no other generator with the same address and process id has.
        clock: source of the milliseconds.
    """

    def __init__(self, address: bytes, pid: int, token: bytes, clock: Clock) -> None:
        self._fixed = (address + (pid & 0xFFFF).to_bytes(2, "big") + token[:4].rjust(4, b"\0")).hex().upper()
        self._clock = clock
        self._counter = 0
        self._month_ms = 0
        self._next_month_ms = 0
        self._prefix_ms = -1
        self._prefix = ""

    def next(self) -> str:
        """A new id."""
        return self.next_at(self._clock.wall_ms())

    def next_at(self, now_ms: int) -> str:
        """Returns a new id for the time ``now_ms``, which the caller has just read from the same clock."""
        counter = self._counter
        low_byte = counter & 0xFF
        if now_ms != self._prefix_ms or not low_byte:
            self._begin(now_ms, counter >> 8)
        self._counter = (counter + 1) & 0xFFFF
        return self._prefix + _LOW_BYTES[low_byte]

    def _begin(self, now_ms: int, high_byte: int) -> None:
        """Prepares the common prefix of up to 256 ids of the same millisecond."""
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._month_ms, self._next_month_ms = _month_of(now_ms)
        self._prefix_ms = now_ms
        self._prefix = f"{self._fixed}{(now_ms - self._month_ms) & 0xFFFFFFFF:08X}{high_byte:02X}"


def _month_of(wall_ms: int) -> tuple[int, int]:
    """Returns when the month that contains ``wall_ms`` begins and ends in local time, both in ms since the epoch."""
    start = datetime.fromtimestamp(wall_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)
