"""The timer wheel: each slot points to the chain of units of one time step in the timer log (``formats.timer``).

Changes stay in memory until the units to which they point are synced. Only then are the changes written to the mapped
file, which therefore never points to units that a power failure has removed. The event loop's thread reads and changes
the wheel; one thread at a time may call ``apply``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rucola.errors import DiskError
from rucola.formats.timer import TIMER_SLOT, TimerSlot, is_beyond
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
_PIECE_BYTES = 1 << 18
_SLOTS_AT_ONCE = 4096


class TimerWheel:
    """Reads and changes the timer wheel.

    Attributes:
        segment: the mapped file, once it is open.

    Args:
        slots: number of slots in the file.
        precision_ms: length of a time step in ms.
    """

    def __init__(self, files: Files, path: str, slots: int, precision_ms: int) -> None:
        self.path = path
        self.map: FileMap
        self._files = files
        self._slots = slots
        self._precision_ms = precision_ms
        self._changed: dict[int, TimerSlot] = {}
        self._applying: dict[int, TimerSlot] = {}

    def open(self) -> bool:
        """Maps the file, and creates it if necessary; returns whether it existed with the right length.

        Raises:
            DiskFullError: there is no space for the file.
        """
        size = self._slots * TIMER_SLOT.size
        there = self._files.exists(self.path)
        if there and self._files.size(self.path) != size:
            event(logger, logging.ERROR, "timer wheel has a wrong length, it is made anew", path=self.path)
            self._files.rename(self.path, f"{self.path}.damaged")
            there = False
        if not there:
            self._files.create_segment(self.path, f"{self.path}.tmp", size)
        self.map = self._files.map_file(self.path, size)
        if there:
            self.map.fill_holes(0, size)
        return there

    def get(self, time_ms: int) -> TimerSlot:
        """Returns the slot of the time step that contains ``time_ms``; its positions are -1 if the step is empty."""
        step = time_ms // self._precision_ms
        index = step % self._slots
        slot = self._changed.get(index) or self._applying.get(index)
        if slot is None:
            slot = TimerSlot(*TIMER_SLOT.unpack(self.map.view, index * TIMER_SLOT.size))
        return slot if slot.step == step else TimerSlot(step, -1, -1, 0)

    def next_used(self, time_ms: int, end_ms: int) -> int:
        """Returns the first time step from ``time_ms`` on whose slot was ever used, or ``end_ms`` if there is none
        before it. A run of unused slots costs a read, not one step after the other.
        """
        step = time_ms // self._precision_ms
        changed = self._changed.keys() | self._applying.keys()
        end = min([end_ms // self._precision_ms, *(step + (index - step) % self._slots for index in changed)])
        while step < end:
            first = step % self._slots
            count = min(end - step, _SLOTS_AT_ONCE, self._slots - first)
            try:
                piece = self.map.read(first * TIMER_SLOT.size, count * TIMER_SLOT.size)
            except DiskError:
                break  # ``get`` answers, through the map
            unused = (len(piece) - len(piece.lstrip(b"\0"))) // TIMER_SLOT.size
            step += unused
            if unused < count:
                break
        return step * self._precision_ms

    def put(self, slot: TimerSlot) -> None:
        """Sets the slot of a time step."""
        self._changed[slot.step % self._slots] = slot

    def take_changes(self) -> dict[int, TimerSlot]:
        """Returns the changes to apply once the timer log is synced, including those whose last write failed."""
        self._applying = self._applying | self._changed
        self._changed = {}
        return self._applying

    def apply(self, changes: dict[int, TimerSlot]) -> None:
        """Writes ``changes`` to the file and syncs it.

        Raises:
            DiskError: the changes may not have reached the disk; ``take_changes`` returns them again.
        """
        view = self.map.view
        for index, slot in changes.items():
            TIMER_SLOT.struct.pack_into(view, index * TIMER_SLOT.size, *slot)
        self.map.sync()
        self._applying = {}

    def is_beyond(self, log_end: int) -> bool:
        """Whether a slot points to ``log_end`` or beyond."""
        return any(is_beyond(piece, 0, len(piece), log_end) for _, piece in self._used())

    def clear(self) -> None:
        """Empties all slots."""
        for start, piece in self._used():
            self.map.view[start : start + len(piece)] = bytes(len(piece))

    def _used(self) -> Iterator[tuple[int, bytes]]:
        """Yields the parts of the file that are not empty, each with its position.

        The parts are read by system calls, because pages that are accessed through the memory map stay in the memory of
        the process.
        """
        for first, last in self.map.data_ranges(0):
            for start in range(first - first % _PIECE_BYTES, last, _PIECE_BYTES):
                piece = self._files.read_at(self.path, start, _PIECE_BYTES)
                if piece.count(0) != len(piece):
                    yield start, piece

    def close(self) -> None:
        """Unmaps the file."""
        self.map.close()
