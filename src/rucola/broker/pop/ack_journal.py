"""Keeps acknowledgements that are not in the log yet from being lost with the process. See ``formats.pop_journal``.

The file is mapped, so what was written survives the process. Like the log with ASYNC_FLUSH, it does not survive a power
cut. Event loop only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rucola.formats.pop import PopKey
from rucola.formats.pop_journal import FILE_NAME, HALF_BYTES, JournaledAck, encode_entry, journaled_acks
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files

_ROUNDS = 1 << 31


class AckJournal:
    """The file in the store directory ``root``."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._path = f"{root}/{FILE_NAME}"
        self._map: FileMap | None = None
        self._half = 0
        self._position = 0
        self._round = 1

    def left(self) -> Iterator[JournaledAck]:
        """What an earlier process has left behind; the file stays.

        Raises:
            DiskError: the file cannot be read, or is none.
        """
        content = memoryview(self._files.read_file(self._path) or b"")
        yield from journaled_acks(content[:HALF_BYTES])
        yield from journaled_acks(content[HALF_BYTES : 2 * HALF_BYTES])

    def open(self) -> None:
        """Creates the file, in place of the one that is there.

        Raises:
            DiskError: it cannot be created.
        """
        self._files.create_segment(self._path, f"{self._path}.tmp", 2 * HALF_BYTES)
        self._map = self._files.map_file(self._path, 2 * HALF_BYTES)

    def write(self, key: PopKey, queue_offsets: Sequence[int], due_ms: int, revive_queue: int) -> bool:
        """Appends an entry; returns False if the half is full."""
        assert self._map is not None
        entry = encode_entry(self._round, key, queue_offsets, due_ms, revive_queue)
        end = self._position + len(entry)
        if end > HALF_BYTES:
            return False
        start = self._half * HALF_BYTES + self._position
        self._map.view[start : start + len(entry)] = entry
        self._position = end
        return True

    def turn(self) -> None:
        """Begins the other half, whose acknowledgements are all in the log."""
        self._half, self._position = 1 - self._half, 0
        self._round = (self._round + 1) % _ROUNDS

    def close(self) -> None:
        """Closes the file; it stays."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def remove(self) -> None:
        """Closes and removes the file, because all acknowledgements are in the log. Does nothing if there is none.

        Raises:
            DiskError: it cannot be removed.
        """
        self.close()
        if self._files.exists(self._path):
            self._files.remove(self._path)
