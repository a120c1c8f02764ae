"""Memory that messages go to before they go to a file (RocketMQ 5.3.3, ``TransientStorePool``).

With ``transientStorePoolEnable`` a new segment of the log borrows a buffer as long as itself. Appends fill the buffer;
``CommitService`` writes what is in it to the file, in order, and gives the buffer back with the segment's end. The
buffers are locked in memory, as far as the system allows: a page of them that was swapped out would stop the appends.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from rucola.errors import DiskError
from rucola.runtime.logs import event
from rucola.runtime.memory import PrivateMemory, lock_memory, private_memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PoolBuffer:
    """One buffer; ``buffer`` and ``view`` as those of a mapped segment. What was in it before stays in it."""

    buffer: PrivateMemory
    view: memoryview


class TransientStorePool:
    """See the module. ``borrow`` and ``give_back`` may be called by different threads.

    Args:
        count: of buffers.
        size: of one, in bytes.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._free: deque[PoolBuffer] = deque()

    @property
    def free(self) -> int:
        """Buffers that can be borrowed now."""
        return len(self._free)

    def start(self) -> None:
        """Takes the memory.

        Raises:
            DiskError: there is not so much.
        """
        refused = ""
        for _ in range(self._count):
            try:
                buffer = private_memory(self._size)
            except MemoryError as error:
                raise DiskError("transientStorePool", "take memory", str(error)) from error
            refused = refused or lock_memory(buffer, 0, self._size)
            self._free.append(PoolBuffer(buffer, memoryview(buffer)))
        if refused:
            event(_log, logging.WARNING, "buffers of the log may be swapped out, they cannot be locked", error=refused)

    def borrow(self) -> PoolBuffer | None:
        """A buffer; None when all are in use."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give_back(self, buffer: PoolBuffer) -> None:
        """The buffer is not used any more."""
        self._free.append(buffer)

    def stop(self) -> None:
        """Gives the memory up, but for buffers in use."""
        self._free.clear()
