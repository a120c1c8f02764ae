"""Warms up the next segment of the log (RocketMQ 5.3.3, ``DefaultMappedFile#warmMappedFile``), with
``warmMapedFileEnable``.

Warming writes zeros over the whole segment. The segment's pages are then in memory, and the first sync of messages need
not mark the segment's blocks as written. The pages are also locked in memory, as far as the system allows. This runs on
the allocating thread and ends when an append needs the segment.

Deliberate difference from RocketMQ: a segment is unlocked when the next one is half full, not six seconds after it
became full.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from rucola.errors import DiskError
from rucola.runtime.file_map import PAGE_BYTES, FileMap
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig

logger = logging.getLogger(__name__)
_STEP_BYTES = 1 << 20
_ZEROS = bytes(_STEP_BYTES)
Step = Callable[[], None]


class SegmentWarmer:
    """Warms up and locks segments. Only one thread at a time may use it."""

    def __init__(self, files: Files, config: MessageStoreConfig) -> None:
        self._files = files
        self._sync_bytes = config.flush_least_pages_when_warm_maped_file * PAGE_BYTES if config.sync_flush else 0
        self._held: deque[FileMap] = deque()
        self._lock_refused = False

    def warm(self, path: str, while_free: Callable[[Step], bool]) -> None:
        """Warms up the segment at ``path``, which is still empty.

        Args:
            while_free: runs the step that it is given, and returns True. If an append already uses the segment, or the
                thread should end, ``while_free`` does not run the step and returns False.
        """
        # The segment in use stays locked.
        while len(self._held) > 1:
            self._held.popleft().close()
        try:
            segment = self._files.map_file(path)
            self._held.append(segment)
            self._write(segment, while_free)
        except DiskError as error:
            event(logger, logging.WARNING, "next segment not warmed up", path=path, error=error)

    def close(self) -> None:
        """Unlocks everything."""
        while self._held:
            self._held.popleft().close()

    def _write(self, segment: FileMap, while_free: Callable[[Step], bool]) -> None:
        waiting = 0
        for position in range(0, segment.size, _STEP_BYTES):
            zeros = memoryview(_ZEROS)[: segment.size - position]
            if not while_free(lambda position=position, zeros=zeros: segment.write(position, zeros)):  # type: ignore[misc]
                return
            self._lock(segment, position, len(zeros))
            waiting += len(zeros)
            if 0 < self._sync_bytes <= waiting:
                segment.sync()
                waiting = 0
        if self._sync_bytes and waiting:
            segment.sync()
        segment.will_need()

    def _lock(self, segment: FileMap, position: int, length: int) -> None:
        if self._lock_refused:
            return
        refused = segment.lock(position, length)
        if refused:
            self._lock_refused = True
            event(logger, logging.WARNING, "segments may be swapped out, they cannot be locked", error=refused)
