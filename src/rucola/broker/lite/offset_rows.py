"""A table of offsets by group and lite topic, in columns: nothing of it is a Python object per entry.

A key is a group's number times 2**32 plus the id of a lite topic. Hash tables hold the rows. There are 256 of them, and
one grows at a time, so no step takes long.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Final

from rucola.formats.lite_offsets import NO_OFFSET, ROW_FIELDS

PARTS: Final = 256
_SLOTS_LEAST = 8
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class OffsetRows:
    """Rows of key, hash of the name, and offset. A row with ``NO_OFFSET`` counts as absent.

    One thread changes the table. Others may call ``part``, whose result is of one moment.

    Args:
        is_live: whether the group with this number still exists; the rows of others are dropped sooner or later.

    Attributes:
        count: number of rows with an offset.
    """

    def __init__(self, is_live: Callable[[int], bool]) -> None:
        self.count = 0
        self._is_live = is_live
        self._parts: list[array[int] | None] = [None] * PARTS
        self._used = array("q", bytes(8 * PARTS))

    def reserve(self, count: int) -> None:
        """Makes room for ``count`` rows in an empty table, so that it need not grow with them."""
        size = _SLOTS_LEAST
        while (count // PARTS + 1) * 4 > size * 3:
            size *= 2
        if size > _SLOTS_LEAST:
            self._parts = [array("q", bytes(8 * ROW_FIELDS * size)) for _ in range(PARTS)]

    def get(self, key: int) -> int:
        """Returns the offset of ``key``; ``NO_OFFSET`` if it has none."""
        mixed = key * _MIX & _MASK
        slots = self._parts[mixed >> 56]
        if slots is None:
            return NO_OFFSET
        at = _find(slots, key, mixed)
        return slots[at + 2] if slots[at] == key else NO_OFFSET

    def put(self, key: int, consumer_offset: int, name_hash: Callable[[], int]) -> int:
        """Sets the offset of ``key``; returns the hash of its name.

        Args:
            name_hash: returns the hash of the name, which is asked for once for each key.
        """
        mixed = key * _MIX & _MASK
        part = mixed >> 56
        slots = self._parts[part]
        if slots is None:
            slots = self._parts[part] = array("q", bytes(8 * ROW_FIELDS * _SLOTS_LEAST))
        at = _find(slots, key, mixed)
        if slots[at] != key:
            if (self._used[part] + 1) * 4 > len(slots) // ROW_FIELDS * 3:
                slots = self._rebuild(part)
                at = _find(slots, key, mixed)
            slots[at + 1], slots[at + 2] = name_hash(), NO_OFFSET
            slots[at] = key
            self._used[part] += 1
        elif slots[at + 2] == NO_OFFSET:
            slots[at + 1] = name_hash()
        self.count += (consumer_offset != NO_OFFSET) - (slots[at + 2] != NO_OFFSET)
        slots[at + 2] = consumer_offset
        return slots[at + 1]

    def drop(self, key: int) -> int | None:
        """Removes the offset of ``key``; returns the hash of its name, None if it had no offset."""
        mixed = key * _MIX & _MASK
        slots = self._parts[mixed >> 56]
        if slots is None:
            return None
        at = _find(slots, key, mixed)
        if slots[at] != key or slots[at + 2] == NO_OFFSET:
            return None
        slots[at + 2] = NO_OFFSET
        self.count -= 1
        return slots[at + 1]

    def part(self, part: int) -> array[int]:
        """Returns a copy of a part: ``ROW_FIELDS`` numbers per slot. Key 0 is an empty slot."""
        slots = self._parts[part]
        return array("q") if slots is None else slots[:]

    def rows(self, part: int) -> Iterator[tuple[int, int, int]]:
        """Yields key, hash and offset of each row of a part, as of now."""
        return rows_in(self.part(part), self._is_live)

    def sweep(self, part: int) -> None:
        """Frees the slots of a part that hold no offset, or that of a group that is gone."""
        if self._parts[part] is not None:
            self._rebuild(part)

    def memory_bytes(self) -> int:
        """Returns how much memory the rows take."""
        return sum(8 * len(slots) for slots in self._parts if slots is not None)

    def _rebuild(self, part: int) -> array[int]:
        """Makes room for one more row of ``part``, and drops what is gone."""
        old = self._parts[part]
        assert old is not None
        kept = [row for row in rows_in(old, lambda _: True) if self._is_live(row[0] >> 32)]
        self.count -= sum(1 for _ in rows_in(old, lambda _: True)) - len(kept)
        count = _SLOTS_LEAST
        while (len(kept) + 1) * 4 > count * 2:
            count *= 2
        slots = array("q", bytes(8 * ROW_FIELDS * count))
        for key, name_hash, consumer_offset in kept:
            at = _find(slots, key, key * _MIX & _MASK)
            slots[at], slots[at + 1], slots[at + 2] = key, name_hash, consumer_offset
        self._used[part] = len(kept)
        self._parts[part] = slots
        return slots


def rows_in(slots: array[int], is_live: Callable[[int], bool]) -> Iterator[tuple[int, int, int]]:
    """Yields the rows in a copy of a part whose groups are live and that have an offset."""
    for key, name_hash, consumer_offset in zip(slots[::3], slots[1::3], slots[2::3], strict=True):
        if key and consumer_offset != NO_OFFSET and is_live(key >> 32):
            yield key, name_hash, consumer_offset


def _find(slots: array[int], key: int, mixed: int) -> int:
    """Returns where ``slots`` has ``key``, or the empty slot for it."""
    size = len(slots)
    at = (mixed >> 20) % (size // ROW_FIELDS) * ROW_FIELDS
    while (found := slots[at]) and found != key:
        at += ROW_FIELDS
        if at == size:
            at = 0
    return at
