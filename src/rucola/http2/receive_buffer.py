"""The receive buffer of one connection."""

from __future__ import annotations

_FIRST_BYTES = 4096
_CAPACITY = 64 * 1024


class ReceiveBuffer:
    """Bytes that were read and not yet handled. It doubles while reads fill it, and halves while they are small.

    Args:
        frame_bytes: the longest frame, which always fits.

    Attributes:
        source: the memory.
        start: position of the first byte that was not handled.
        end: position after the last byte.
    """

    __slots__ = ("_capacity", "_is_large", "_view", "_wanted", "end", "source", "start")

    def __init__(self, frame_bytes: int) -> None:
        self._capacity = max(frame_bytes, _CAPACITY)
        self._wanted = _FIRST_BYTES
        self.source = bytearray(_FIRST_BYTES)
        self._view = memoryview(self.source)
        self.start = self.end = 0
        self._is_large = False  # for the last read

    def room(self) -> memoryview:
        """Returns the memory for the next read; never empty if all complete frames have been handled."""
        rest = self.end - self.start
        if self._is_large and not rest:
            self._wanted, self._is_large = max(len(self.source) // 2, _FIRST_BYTES), False
        if self._wanted != len(self.source):
            source = bytearray(self._wanted)
            source[:rest] = self._view[self.start : self.end]
            self.source, self._view = source, memoryview(source)
        elif self.start and rest:
            self._view[:rest] = self._view[self.start : self.end]
        self.start, self.end = 0, rest
        return self._view[rest:] if rest else self._view

    def add(self, count: int) -> None:
        """Notes that ``count`` bytes were read into ``room``."""
        self.end += count
        size = len(self.source)
        if self.end == size:
            self._wanted = min(2 * size, self._capacity)
        self._is_large = count * 8 < size > _FIRST_BYTES

    def drop(self) -> None:
        """Forgets all bytes."""
        self.start = self.end = 0
