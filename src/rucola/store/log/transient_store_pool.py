"""Memory buffers that hold messages before they go to a file (RocketMQ 5.3.3, ``TransientStorePool``).

With ``transientStorePoolEnable`` each new segment of the log borrows a buffer of its own length. Appends fill the
buffer. ``CommitService`` writes the content to the file in order, and returns the buffer when the segment is complete.
The buffers are locked in memory as far as the system allows, because an append to a swapped-out page would have to
wait.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from rucola.errors import DiskError
from rucola.runtime.logs import event
from rucola.runtime.memory import PrivateMemory, lock_memory, private_memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PoolBuffer:
    """One buffer. ``buffer`` and ``view`` are like those of a mapped segment. The buffer keeps its old content when it
    is borrowed again.
    """

    buffer: PrivateMemory
    view: memoryview


class TransientStorePool:
    """Lends buffers. ``borrow`` and ``give_back`` may be called by different threads.

    Args:
        count: number of buffers.
        size: size of a buffer in bytes.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._free: deque[PoolBuffer] = deque()

    @property
    def free(self) -> int:
        """Number of buffers that can be borrowed now."""
        return len(self._free)

    def start(self) -> None:
        """Allocates the memory.

        Raises:
            DiskError: there is not enough memory.
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
            event(
                logger, logging.WARNING, "buffers of the log may be swapped out, they cannot be locked", error=refused
            )

    def borrow(self) -> PoolBuffer | None:
        """Returns a buffer; None if all are in use."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give_back(self, buffer: PoolBuffer) -> None:
        """Takes a buffer back."""
        self._free.append(buffer)

    def stop(self) -> None:
        """Frees the memory, except for buffers in use."""
        self._free.clear()
