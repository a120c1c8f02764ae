"""Memory in which, with ``writeWithoutMmap``, the records of a run (one append) are built before they are written to
the file. A single record takes one system call, several records take two.

A write through a map causes a page fault for each fresh page, and kills the process if the file system turns out to
have no space. A system call reports the error instead. Written bytes are in the page cache either way: they survive the
end of the process, and the map shows them at once.

Deliberate difference from RocketMQ: the blank record that ends a segment is followed by zeros, not by leftover bytes
of the buffer.
"""

from __future__ import annotations

_FIRST_BYTES = 256 * 1024


class RunBuffer:
    """The memory. ``buffer`` and ``view`` are like those of a mapped segment. Used by the appending thread only.

    Args:
        size_max: largest size in bytes.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._make(_FIRST_BYTES)

    def grow(self) -> None:
        """Doubles the size and discards the content."""
        self._make(2 * len(self.buffer))

    def _make(self, size: int) -> None:
        self.buffer = bytearray(min(size, self._size_max))
        self.view = memoryview(self.buffer)
