"""The names of lite topics: each gets a number, its id, once.

All names lie one after the other in one buffer, as in the file ``names``; a hash table of ids finds them. So a name
takes its own length and about 25 bytes. The table has 256 parts that grow one at a time, so no step takes long.

The event loop's thread adds and finds names; the maintenance thread writes them to the file.
"""

from __future__ import annotations

from array import array

from rucola.formats.checksum import crc32
from rucola.formats.lite import (
    NAME_CRC_BYTES,
    NAME_HEAD_BYTES,
    encode_name,
    fill_slots,
    find_name,
    hash_name,
    hash_names,
    insert_name,
    name_at,
    refill_slots,
    remove_name,
    set_parents,
    walk_names,
)
from rucola.runtime.files import Files

_ENTRY_BYTES_MIN = NAME_HEAD_BYTES + 3 + NAME_CRC_BYTES
_FILE_BYTES_MAX = (1 << 32) - 1
"""Positions of names have 32 bits."""
_PARTS = 256
_SLOTS_MIN = 16


class LiteNames:
    """The names of one store.

    Attributes:
        blob: the entries of all names, in the order of their ids.
        positions: for each id, where its entry begins in ``blob``.
        parents: for each id, the number of the parent topic.
        parent_names: the parent topics, by number.
        free: ids that may be given again.
        entries: number of entries in ``blob``.
        written: number of bytes of ``blob`` that are synced.

    Args:
        path: path of the file.
        seed: makes the hash table's order unknown to those who choose names.
    """

    def __init__(self, files: Files, path: str, seed: int) -> None:
        self.blob = bytearray()
        self.positions = array("I")
        self.parents = array("I")
        self.parent_names: list[bytes] = []
        self.written = self.entries = 0
        self.free = array("I")
        self._files = files
        self._path = path
        self._seed = seed & 0xFFFFFFFF
        self._parent_numbers: dict[bytes, int] = {}
        self._slots: list[array[int]] = []
        self._used = array("q")
        self._live = array("q")
        self.build(array("q"))

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_full(self) -> bool:
        """Whether the file cannot take another name."""
        return len(self.blob) > _FILE_BYTES_MAX - 512

    # -- opening -------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the file up to the first entry that is not whole. ``build`` must follow.

        Raises:
            DiskError: the file cannot be read.
        """
        content = self._files.read_file(self._path, _FILE_BYTES_MAX) or b""
        positions = array("I", bytes(4 * (len(content) // _ENTRY_BYTES_MIN + 1)))
        end, count, self.entries = walk_names(content, memoryview(content), 0, positions, 0, crc32)
        del positions[count:]
        self.blob, self.positions, self.written = bytearray(memoryview(content)[:end]), positions, end

    def build(self, nexts: array[int]) -> None:
        """Builds the hash table and the list of parents.

        Args:
            nexts: for each id, its next queue offset; ids with 0 are not in use.
        """
        count = len(self.positions)
        hashes, used = array("I", bytes(4 * count)), array("I", bytes(4 * _PARTS))
        hash_names(self.blob, self.positions, self._seed, nexts, hashes, used)
        self._used, self._live = array("q", used), array("q", used)
        self._slots = []
        for part in range(_PARTS):
            slots = array("I", bytes(4 * _slot_count(used[part])))
            if used[part]:
                fill_slots(slots, hashes, nexts, part)
            self._slots.append(slots)
        self.parents = array("I", bytes(4 * count))
        self.parent_names.clear()
        self._parent_numbers.clear()
        name_id = 0
        while name_id < count:
            if nexts[name_id] == 0:
                name_id += 1
                continue
            parent = self.name(name_id).partition(b"$")[0]
            number = self.number_of(parent)
            name_id = max(set_parents(self.blob, self.positions, name_id, parent, number, self.parents), name_id + 1)

    # -- use -----------------------------------------------------------------------------------------------------------

    def find(self, name: bytes) -> int:
        """Returns the id of ``name``; -1 if it has none."""
        value = hash_name(name, self._seed)
        return find_name(self._slots[value & (_PARTS - 1)], self.blob, self.positions, name, value)

    def add(self, name: bytes) -> int:
        """Gives ``name``, which has none, an id; returns it. The file gets it at the next ``write``."""
        position, parent = len(self.blob), self.number_of(name.partition(b"$")[0])
        name_id = self.free.pop() if self.free else len(self.positions)
        self.blob += encode_name(name_id, name)
        self.entries += 1
        if name_id < len(self.positions):
            self.parents[name_id], self.positions[name_id] = parent, position
        else:
            self.parents.append(parent)
            self.positions.append(position)
        value = hash_name(name, self._seed)
        part = value & (_PARTS - 1)
        if self._used[part] * 8 >= len(self._slots[part]) * 5:
            larger = array("I", bytes(4 * _slot_count(self._live[part] * 2)))
            self._used[part] = refill_slots(larger, self._slots[part], self.blob, self.positions, self._seed)
            self._slots[part] = larger
        insert_name(self._slots[part], name_id, value)
        self._used[part] += 1
        self._live[part] += 1
        return name_id

    def remove(self, name_id: int) -> None:
        """Forgets the name with this id. The id may be added to ``free`` later."""
        value = hash_name(self.name(name_id), self._seed)
        part = value & (_PARTS - 1)
        if remove_name(self._slots[part], name_id, value):
            self._live[part] -= 1

    def compact(self, nexts: array[int]) -> None:
        """Drops the entries of names that are not in use from memory; ``replace`` writes the file."""
        blob, unused = bytearray(), b"-"
        for name_id, following in enumerate(nexts):
            name = self.name(name_id) if following else unused
            self.positions[name_id] = len(blob)
            blob += encode_name(name_id, name)
        self.blob, self.entries = blob, len(nexts)

    def replace(self) -> None:
        """Replaces the file.

        Raises:
            DiskError: the file is the old one or the new one.
        """
        self._files.replace_file(self._path, bytes(self.blob))
        self.written = len(self.blob)

    def name(self, name_id: int) -> bytes:
        """Returns the name with this id."""
        return name_at(self.blob, self.positions[name_id])

    def number_of(self, parent: bytes) -> int:
        """Returns the number of a parent topic; gives it one if it has none."""
        number = self._parent_numbers.get(parent)
        if number is None:
            number = self._parent_numbers[parent] = len(self.parent_names)
            self.parent_names.append(parent)
        return number

    def find_parent(self, parent: bytes) -> int:
        """Returns the number of a parent topic; -1 if no name has it."""
        return self._parent_numbers.get(parent, -1)

    def write(self) -> None:
        """Writes and syncs the names that the file does not have yet. Called by the maintenance thread.

        Raises:
            DiskError: the names are not in the file; the next call writes them again.
        """
        start = self.written
        content = bytes(self.blob[start:])
        if content:
            self._files.write_at(self._path, start, content)
            self.written = start + len(content)

    def memory_bytes(self) -> int:
        """Returns how much memory the names take."""
        arrays = (self.positions, self.parents, *self._slots)
        return len(self.blob) + sum(each.itemsize * len(each) for each in arrays)


def _slot_count(used: int) -> int:
    count = _SLOTS_MIN
    while used * 8 >= count * 5:
        count *= 2
    return count
