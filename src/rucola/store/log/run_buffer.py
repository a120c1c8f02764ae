"""Memory in which the records of a run are made before one call writes them, with ``writeWithoutMmap``.

A store through a map of a fresh page costs a fault, and can end the process where the file system has no space after
all; a call tells. What it wrote is in the page cache, as everything is that goes through a map: it survives the process
and is seen through the map at once.

What differs from RocketMQ on purpose: behind the blank record that ends a segment are zeros, as everywhere, not what
the memory held before.
"""

from __future__ import annotations

_FIRST_BYTES = 256 * 1024


class RunBuffer:
    """The memory; ``buffer`` and ``view`` as those of a mapped segment. For the thread that appends.

    Args:
        size_max: it never grows beyond, in bytes.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._make(_FIRST_BYTES)

    def grow(self) -> None:
        """Makes it twice as large; what was in it is gone."""
        self._make(2 * len(self.buffer))

    def _make(self, size: int) -> None:
        self.buffer = bytearray(min(size, self._size_max))
        self.view = memoryview(self.buffer)
