"""An index file: header, hash slots, entries (RocketMQ 5.3.3, ``IndexHeader`` and ``IndexFile``).

======================= =============== ==========================================================================
position                bytes           content
======================= =============== ==========================================================================
0                       40              ``INDEX_HEADER``; index_count is the number of the next entry, 1 at first
40                      4 S             slots; slot s: number of the newest entry with hash % S = s, 0 if none
40 + 4 S                20 N            entries; entry 0 is never used, so N - 1 keys fit
======================= =============== ==========================================================================

The file does not hold S and N: pass the numbers with which it was created. The hash is ``abs(String.hashCode)`` of
``topic#key``; 0 replaces -2**31, which has no absolute value in 32 bits. The file holds only the hash, so a query
returns candidates: compare topic and key with the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from rucola.common.ids import PhysicalOffset
from rucola.common.java import INT32_MIN
from rucola.errors import FormatError
from rucola.formats._index_cy import find_broken_chain, gather_keys, put_key, put_keys, put_rows
from rucola.formats._message_cy import hash_utf8
from rucola.formats.layout import Field, Layout

__all__ = [
    "INDEX_ENTRY",
    "INDEX_HEADER",
    "INDEX_SLOT",
    "KEY",
    "ChainBudget",
    "IndexHeader",
    "find_broken_chain",
    "gather_keys",
    "index_file_bytes",
    "key_hash",
    "put_key",
    "put_keys",
    "put_rows",
    "query",
]

INDEX_NAME_DIGITS: Final = 17
INDEX_HEADER: Final = Layout(
    "index file header",
    40,
    Field("begin_timestamp_ms", "q", "Store time of the first record in the file, ms since 1970."),
    Field("end_timestamp_ms", "q", "Store time of the last record in the file."),
    Field("begin_physical_offset", "q", "Physical offset of the first record."),
    Field("end_physical_offset", "q", "Physical offset of the last record."),
    Field("hash_slot_count", "i", "Number of slots that hold an entry."),
    Field("index_count", "i", "Number of the next entry; 1 in an empty file."),
)
INDEX_SLOT: Final = Layout(
    "index file slot",
    4,
    Field("entry", "i", "Number of the newest entry in this slot (hash modulo number of slots); 0 = none."),
)
INDEX_ENTRY: Final = Layout(
    "index file entry",
    20,
    Field("key_hash", "i", "Hash of `topic#key`."),
    Field("physical_offset", "q", "Offset of the record in the commit log."),
    Field("seconds", "i", "Seconds from `begin_timestamp_ms` to the store time of the record."),
    Field("previous", "i", "Number of the previous entry in the same slot; 0 = none."),
)
KEY: Final = Struct(">iqq")
"""A key that ``gather_keys`` prepared for a file: signed hash of ``topic#key``, physical offset, store time."""


class IndexHeader(NamedTuple):
    """The header of an index file."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: PhysicalOffset
    end_physical_offset: PhysicalOffset
    hash_slot_count: int
    index_count: int

    @classmethod
    def decode(cls, index: bytes | bytearray | memoryview) -> IndexHeader:
        """Decodes the first 40 bytes of a file; an ``index_count`` below 1 is read as 1, as in an empty file.

        Raises:
            FormatError: ``index`` has fewer than 40 bytes.
        """
        if len(index) < INDEX_HEADER.size:
            raise FormatError("index file", 0, f"a header of {INDEX_HEADER.size} bytes", f"{len(index)} bytes")
        header = cls(*INDEX_HEADER.unpack(index))
        return header._replace(index_count=max(header.index_count, 1))

    def encode(self) -> bytes:
        """Returns the 40 bytes of the header."""
        return INDEX_HEADER.pack(*self)

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may hold records stored from ``begin_ms`` to ``end_ms``."""
        return begin_ms <= self.end_timestamp_ms and end_ms >= self.begin_timestamp_ms


def is_index_name(name: str) -> bool:
    """Whether ``name`` is the name of an index file: the local time of its creation, as ``yyyyMMddHHmmssSSS``."""
    return len(name) == INDEX_NAME_DIGITS and name.isascii() and name.isdigit()


def index_file_bytes(slot_count: int, entry_max: int) -> int:
    """Size in bytes of an index file with ``slot_count`` slots and ``entry_max`` entries."""
    return INDEX_HEADER.size + INDEX_SLOT.size * slot_count + INDEX_ENTRY.size * entry_max


def key_hash(topic: bytes, key: bytes) -> int:
    """Returns the hash under which a key is stored, 0 to 2**31 - 1."""
    text = topic + b"#" + key
    value = hash_utf8(text, 0, len(text), 0)
    return 0 if value == INT32_MIN else abs(value)


@dataclass(slots=True)
class ChainBudget:
    """Number of entries that queries may still examine. The budget is needed because a client that chooses its keys can
    make a chain arbitrarily long.

    Attributes:
        cut: whether a query left a chain before its end because the budget was used up.
    """

    steps: int
    cut: bool = False


class Limits(NamedTuple):
    """Which entries of a hash a query returns.

    Attributes:
        count_max: largest number of entries.
        begin_ms, end_ms: first and last time, both included.
    """

    count_max: int
    begin_ms: int
    end_ms: int


def query(
    index: bytes | bytearray | memoryview,
    slot_count: int,
    wanted_hash: int,
    limits: Limits,
    budget: ChainBudget | None = None,
    look: Callable[[int, int], None] | None = None,
) -> list[PhysicalOffset]:
    """Returns the physical offsets of the entries with the hash ``wanted_hash`` within ``limits``, newest first.

    Times have the precision of the file: whole seconds since the file's begin time. A damaged chain ends the query; a
    chain with a cycle does not make the query endless.

    Args:
        look: called before each read of ``index``, with the position and the number of bytes to read.

    Raises:
        FormatError: the file is too short for its slots and entries.
    """
    count_max, begin_ms, end_ms = limits
    header = IndexHeader.decode(index)
    entries = INDEX_HEADER.size + INDEX_SLOT.size * slot_count
    if entries + INDEX_ENTRY.size * header.index_count > len(index) and header.index_count > 1:
        got = f"{header.index_count - 1} entries in {len(index)} bytes"
        raise FormatError(
            "index file", INDEX_HEADER.position("index_count"), "no more entries than fit into the file", got
        )
    found: list[PhysicalOffset] = []
    if header.index_count <= 1:
        return found
    slot_at = INDEX_HEADER.size + INDEX_SLOT.size * (wanted_hash % slot_count)
    if look is not None:
        look(slot_at, INDEX_SLOT.size)
    (entry,) = INDEX_SLOT.unpack(index, slot_at)
    for _ in range(header.index_count):  # a chain without a cycle has at most ``index_count`` entries
        if not 0 < entry <= header.index_count or len(found) >= count_max:
            break
        if budget is not None:
            if budget.steps <= 0:
                budget.cut = True
                break
            budget.steps -= 1
        entry_at = entries + INDEX_ENTRY.size * entry
        if look is not None:
            look(entry_at, INDEX_ENTRY.size)
        stored_hash, physical_offset, seconds, previous = INDEX_ENTRY.unpack(index, entry_at)
        if seconds < 0:
            break
        # The seconds in the first entry may be counted from the end time of the previous file.
        time_ms = header.begin_timestamp_ms + (1000 * seconds if entry > 1 else 0)
        if stored_hash == wanted_hash and begin_ms <= time_ms <= end_ms:
            found.append(PhysicalOffset(physical_offset))
        if previous == entry or time_ms < begin_ms:
            break
        entry = previous
    return found
