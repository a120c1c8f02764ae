"""What a connection allows its peer: sizes that SETTINGS announce, and how often it may do what costs us more than it.

An ``Allowance`` counts what a peer does, and grows with time. Control frames are also earned by requests and bytes in
either direction: a gRPC client sends a PING and some WINDOW_UPDATE with nearly all of its data. Whoever takes more than
there is, is told to ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rucola.http2.frames import FRAME_BYTES_DEFAULT, FRAME_BYTES_MAX, WINDOW_MAX


class BurstRate(NamedTuple):
    """How many at once, and how many per second in the long run."""

    burst: int
    per_second: int


_QUICK_RESETS, _FORCED_RESETS = BurstRate(1000, 33), BurstRate(200, 10)
_CONTROL_FRAMES, _SMALL_FRAMES = BurstRate(1000, 100), BurstRate(50_000, 20_000)


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of one connection.

    Attributes:
        streams_max: open streams of the peer (MAX_CONCURRENT_STREAMS).
        stream_window_bytes: unacknowledged bytes of a stream (INITIAL_WINDOW_SIZE).
        connection_window_bytes: unacknowledged bytes of all streams; at least 65,535.
        table_bytes: size of the dynamic table (HEADER_TABLE_SIZE).
        list_bytes_max: size of the fields of a block (MAX_HEADER_LIST_SIZE).
        frame_bytes_max: payload of a frame (MAX_FRAME_SIZE).
        block_bytes_max: size of a block in several frames, encoded.
        continuations_max: frames of a block after the first.
        unsent_bytes_max: answers to control frames that the peer does not read.
        quick_reset_ms: a stream that the peer resets so soon after opening it counts as a quick reset.
        quick_resets: against rapid reset. Requests that wait long and are cancelled do not count.
        forced_resets: streams that errors of the peer make us reset.
        control_frames: SETTINGS, PING, PRIORITY, WINDOW_UPDATE, RST_STREAM, unknown frames, and DATA that is empty.
        small_frames: DATA of less than ``small_frame_bytes`` that does not end its stream.
        small_frame_bytes: see ``small_frames``.
    """

    streams_max: int = 4096
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 4 << 20
    table_bytes: int = 4096
    list_bytes_max: int = 16 * 1024
    frame_bytes_max: int = FRAME_BYTES_DEFAULT
    block_bytes_max: int = 64 * 1024
    continuations_max: int = 16
    unsent_bytes_max: int = 256 * 1024
    quick_reset_ms: int = 100
    quick_resets: BurstRate = _QUICK_RESETS
    forced_resets: BurstRate = _FORCED_RESETS
    control_frames: BurstRate = _CONTROL_FRAMES
    small_frames: BurstRate = _SMALL_FRAMES
    small_frame_bytes: int = 64

    def __post_init__(self) -> None:
        """Checks what the protocol bounds.

        Raises:
            ValueError: a size that SETTINGS cannot announce.
        """
        if not FRAME_BYTES_DEFAULT <= self.frame_bytes_max <= FRAME_BYTES_MAX:
            raise ValueError(f"frames of {self.frame_bytes_max} bytes cannot be announced")
        if not 0 <= self.stream_window_bytes <= WINDOW_MAX or not 65535 <= self.connection_window_bytes <= WINDOW_MAX:
            raise ValueError("a window is larger or smaller than the protocol allows")


SETTINGS_COST = 10
"""Control frames that one SETTINGS counts for, and one more for each setting: it may change the windows of all streams.
"""
UPDATE_COST = 5
"""Control frames that a header block counts for if it changes the size of the table."""


class Allowance:
    """A number that grows with time up to the burst of its rate, and that each count takes from."""

    __slots__ = ("_burst", "_left", "_per_second", "_since_ms")

    def __init__(self, rate: BurstRate) -> None:
        self._burst, self._per_second = rate.burst * 1000, rate.per_second
        self._left = self._burst  # in thousandths, which is what a millisecond adds
        self._since_ms: int | None = None

    def take(self, now_ms: int, count: int) -> bool:
        """Whether there is enough for ``count`` more."""
        if self._since_ms is None or now_ms < self._since_ms:
            self._since_ms = now_ms
        self._left = min(self._burst, self._left + (now_ms - self._since_ms) * self._per_second) - count * 1000
        self._since_ms = now_ms
        return self._left >= 0
