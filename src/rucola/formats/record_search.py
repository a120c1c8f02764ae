"""Searches for places where records may begin, in bytes that cannot be walked from record to record: damaged logs, disk
images, the middle of a segment.

A place found by the search is a guess: bodies of messages may contain the same bytes. The caller reads the record and
checks it.
"""

from __future__ import annotations

from typing import Final, Protocol

from rucola.formats.message import MAGIC_V1, MAGIC_V2, RECORD_HEAD

MAGIC_POSITION: Final = RECORD_HEAD.position("magic")
MAGIC_BYTES: Final = 4
RECORD_MAGICS: Final = tuple(magic.to_bytes(MAGIC_BYTES, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))
"""The magic codes of records of version 1 and 2, as bytes in the log."""

_PIECE_BYTES = 64 * 1024


class Searchable(Protocol):
    """Bytes, or a memory map."""

    def find(self, sub: bytes, start: int, end: int, /) -> int:
        """Returns the first position of ``sub`` between ``start`` and ``end``; -1 if there is none."""


def find_record(buffer: Searchable, position: int, end: int) -> int:
    """Returns the first position from ``position`` on at which a record may begin; -1 if there is none. At least
    the record's magic code lies wholly before ``end``.
    """
    at = position + MAGIC_POSITION
    while at + MAGIC_BYTES <= end:
        # Searches piece by piece: most logs have no record of version 2, so a search for the magic code of this version
        # would always go to the end.
        stop = min(at + _PIECE_BYTES, end)
        hits = [hit for magic in RECORD_MAGICS if (hit := buffer.find(magic, at, stop)) >= 0]
        if hits:
            return min(hits) - MAGIC_POSITION
        at = stop - MAGIC_BYTES + 1
    return -1
