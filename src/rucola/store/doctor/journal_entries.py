"""The entries of the undo journal of a repair (``journal``).

========= ===== ============================================================================================
position  bytes field
========= ===== ============================================================================================
0         25    ``_HEAD``: magic, kind, length of the path, position, length of the old bytes
25        4     CRC-32 of the head and the body: a wrong position would be as bad as wrong bytes
29        ..    the body: the path, the old bytes, and as many new bytes if bytes were replaced
========= ===== ============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from rucola.errors import StoreDamagedError
from rucola.formats.checksum import crc32
from rucola.runtime.files import Files

_HEAD, _CRC = Struct(">4sBHQQ"), Struct(">I")
_MAGIC, _EARLIER = b"RUJ2", b"RUJ1"
_BODY_AT = _HEAD.size + _CRC.size
PIECE = 1 << 20
"""Largest number of bytes that one entry replaces."""
_SEARCHED = 16 * PIECE
"""Number of bytes after the last whole entry in which others are searched: several times the longest entry."""


class ChangeKind(IntEnum):
    """Kinds of entries."""

    BYTES = 1
    """Bytes were replaced."""
    MADE = 2
    """A file or directory was made where none was."""
    MOVED = 3
    """A file or directory was moved away; the field for the old bytes holds its new path."""
    DONE = 4
    """The repair ended; the position is the end of the log."""


_KINDS = frozenset(ChangeKind)


@dataclass(frozen=True)
class JournalEntry:
    """One entry.

    Attributes:
        old: the replaced bytes, while they are being written; the new path of what was moved.
        new: the bytes that replace them, while they are being written.
        old_at: position of the replaced bytes in the journal; the new bytes follow them.
        length: number of replaced bytes.
    """

    kind: ChangeKind
    path: str
    position: int
    old: bytes
    new: bytes = b""
    old_at: int = 0
    length: int = 0

    def to_bytes(self) -> bytes:
        """Returns the entry as it is written."""
        path = self.path.encode("utf-8", "surrogateescape")
        head = _HEAD.pack(_MAGIC, self.kind, len(path), self.position, len(self.old))
        body = path + self.old + self.new
        return head + _CRC.pack(crc32(head + body)) + body


def read_changes(files: Files, path: str) -> tuple[list[JournalEntry], int]:
    """Returns the complete entries of a journal, and the position after them.

    Raises:
        StoreDamagedError: an entry is damaged, and others follow it; or an earlier version wrote the journal.
    """
    size = files.length(path)
    if size <= 0:
        return [], 0
    segment, at, changes = files.map_file(path, size, writable=False), 0, list[JournalEntry]()
    try:
        if bytes(segment.view[: len(_EARLIER)]) == _EARLIER:
            problem, advice = (
                "an earlier version wrote this journal",
                "undo the repair with that version, or move it away",
            )
            raise StoreDamagedError(path, 0, problem, advice)
        while (found := _entry_at(segment.view, at, size)) is not None:
            change, at = found
            changes.append(change)
        later = at
        while (later := segment.buffer.find(_MAGIC, later + 1, min(size, at + _SEARCHED))) >= 0:
            if _entry_at(segment.view, later, size) is not None:
                raise StoreDamagedError(path, at, "an entry of the journal is damaged", "restore the store from a copy")
    finally:
        segment.close()
    return changes, at


def _entry_at(view: memoryview, at: int, size: int) -> tuple[JournalEntry, int] | None:
    """Returns the entry at a position, and the position after it; None if there is no whole one."""
    if at + _BODY_AT > size:
        return None
    magic, kind, path_length, position, length = _HEAD.unpack_from(view, at)
    path_at = at + _BODY_AT
    old_at = path_at + path_length
    end = old_at + length * (2 if kind == ChangeKind.BYTES else 1)
    if magic != _MAGIC or kind not in _KINDS or end > size:
        return None
    if (
        crc32(bytes(view[at : at + _HEAD.size]) + bytes(view[path_at:end]))
        != _CRC.unpack_from(view, at + _HEAD.size)[0]
    ):
        return None
    name = bytes(view[path_at:old_at]).decode("utf-8", "surrogateescape")
    old = bytes(view[old_at:end]) if kind == ChangeKind.MOVED else b""
    return JournalEntry(ChangeKind(kind), name, position, old, b"", old_at, length), end
