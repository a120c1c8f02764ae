"""Checks index files: every entry must point to a record that has a key with the entry's hash, and the entries of each
slot must be linked from the newest to the oldest.

The Cython kernel that writes index files puts the keys of a batch of records into an empty index in memory. The entries
in memory are compared, column by column, with the next entries of the file. If any differ, the entries of the batch
are examined one by one.
"""

from __future__ import annotations

import sys
from array import array
from itertools import filterfalse, pairwise

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.ids import PhysicalOffset
from rucola.common.numbers import INT64_MAX
from rucola.formats.index_file import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexHeader,
    index_file_bytes,
    is_index_name,
    key_hash,
    put_rows,
)
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.log.mapped_file import MappedFile
from rucola.store.verify.findings import FindingKind, Findings
from rucola.store.verify.identities import RecordIdentities
from rucola.store.verify.log import LogCheck, readable_file

_SCRATCH_ENTRIES = 8192
_SCRATCH_FIRST = 2
_DOUBTFUL_MAX = 100_000
_SCRATCH_ENTRIES_AT = INDEX_HEADER.size + INDEX_SLOT.size
_SAMPLE = 64
_LOOK_BYTES = 1 << 20
_ROLLBACK = 12
_WORDS = INDEX_ENTRY.size // 4
_entry = INDEX_ENTRY.struct.unpack_from


def index_geometry(file: MappedFile) -> tuple[int, int] | None:
    """Determines the numbers of slots and entries (``maxHashSlotNum``, ``maxIndexNum``), which a file does not contain.

    The default numbers are used if they fit. Otherwise the numbers are computed from the position of the last nonzero
    byte. That byte belongs to the newest entry, because an entry's hash and offset are not both zero. If no numbers
    fit, the last nonzero byte may be a stray one, so the nonzero byte before it is tried. In all cases the first
    entries must be plausible. Another process may add entries during the call.

    Returns:
        The numbers of slots and entries; None if no numbers fit, or if they would have to be computed from a file
        without entries.
    """
    if file.size < INDEX_HEADER.size + INDEX_SLOT.size + INDEX_ENTRY.size:
        return None
    view = file.map.view
    newest = IndexHeader.decode(view).index_count - 1
    defaults = MessageStoreConfig().max_hash_slot_num, MessageStoreConfig().max_index_num
    if index_file_bytes(*defaults) == file.size and (newest < 1 or _agrees(view, newest, *defaults)):
        return defaults
    if newest < 1:
        return None
    last = file.data_end(0) - 1
    for end in (last, _nonzero_before(view, last)):
        for number in range(newest, IndexHeader.decode(view).index_count):
            for start in range(end, max(end - INDEX_ENTRY.size, 0), -1):
                slots, rest = divmod(start - INDEX_HEADER.size - INDEX_ENTRY.size * number, INDEX_SLOT.size)
                entries, more = divmod(file.size - INDEX_HEADER.size - INDEX_SLOT.size * slots, INDEX_ENTRY.size)
                if not rest and not more and slots > 0 and _agrees(view, newest, slots, entries):
                    return slots, entries
    return None


def _nonzero_before(view: memoryview, position: int) -> int:
    """Returns the position of the last nonzero byte in the MiB before ``position``; if there is none, the position
    before that MiB."""
    first = max(position - _LOOK_BYTES, 0)
    return first + len(bytes(view[first:position]).rstrip(b"\0")) - 1


def _agrees(view: memoryview, newest: int, slots: int, entries: int) -> bool:
    """Whether these numbers of slots and entries fit the file: entry 0 is unwritten, entry 1 is written, and more than
    three quarters of the first entries point backwards.
    """
    at = INDEX_HEADER.size + INDEX_SLOT.size * slots
    if not newest < entries or any(_entry(view, at)) or not any(_entry(view, at + INDEX_ENTRY.size)):
        return False
    looked = range(1, min(newest, _SAMPLE) + 1)
    right: int = sum(0 <= _entry(view, at + INDEX_ENTRY.size * number)[3] < number for number in looked)
    return 4 * right > 3 * len(looked)


class IndexFileCheck:
    """One index file, up to the entry that was the newest at the beginning of the check.

    Attributes:
        count: ``index_count`` of the header at the beginning of the check; one more than the number of the last entry.
        cursor: number of the first entry that has not been compared with the log yet.
        header: the header at the beginning of the check.
        begin_ms, end_ms: store times in the header.
        first_offset, last_offset: physical offsets of the first and the last entry.
        next_offset: physical offset in the entry at ``cursor``; kept here so that the file need not be mapped before
            the walk over the log reaches this offset.
    """

    def __init__(self, file: MappedFile, slots: int, count: int) -> None:
        self.file = file
        self.slots = slots
        self.count = count
        self.cursor = 0
        self.next_offset = 0
        self.header = header = IndexHeader.decode(file.map.view)
        self.begin_ms, self.end_ms = header.begin_timestamp_ms, header.end_timestamp_ms
        self._entries_at = INDEX_HEADER.size + INDEX_SLOT.size * slots
        self.first_offset, self.last_offset = (self.entry(number)[1] if count > 1 else -1 for number in (1, count - 1))

    def position(self, number: int) -> int:
        """Returns the position of an entry in the file."""
        return self._entries_at + INDEX_ENTRY.size * number

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Returns the fields of an entry: hash, physical offset, seconds, and number of the previous entry."""
        fields: tuple[int, int, int, int] = _entry(self.file.map.view, self.position(number))
        return fields

    def move(self, count: int) -> None:
        """Advances the cursor by ``count`` entries."""
        self.cursor += count
        if self.cursor < self.count:
            self.next_offset = self.entry(self.cursor)[1]
        else:
            self.file.close()

    def words(self, first: int, last: int) -> memoryview:
        """Returns the entries from ``first`` to ``last`` (excluded) as 32-bit words."""
        return self.file.map.view[self.position(first) : self.position(last)].cast("I")

    def check_times(self, found: Findings, log: LogCheck, previous_ms: int, live: bool) -> None:
        """Compares the times in the header, and the seconds of the first entry, with the records to which they belong.

        Args:
            previous_ms: end time of the previous file, from which RocketMQ may count the seconds of the first entry.
        """
        if self.count < 2:
            return
        for name, number, said_ms in (
            ("begin_timestamp_ms", 1, self.begin_ms),
            ("end_timestamp_ms", self.count - 1, self.end_ms),
        ):
            physical_offset = self.entry(number)[1]
            hit = None if physical_offset in log.times.wrong else log.row_at(physical_offset, 0)
            if hit is None or (live and number > 1):
                continue
            stored_ms = hit[1][RecordColumn.STORE_TIMESTAMP]
            if stored_ms != said_ms:
                detail = f"{name} is {said_ms}, but the record of entry {number} was stored at {stored_ms}"
                found.add(FindingKind.INDEX_HEADER, self.file.path, INDEX_HEADER.position(name), detail)
        for name, said, entry_offset in (
            ("begin_physical_offset", self.header.begin_physical_offset, self.first_offset),
            ("end_physical_offset", self.header.end_physical_offset, self.last_offset),
        ):
            if said != entry_offset and not live:
                detail = f"{name} is {said}, but according to the entries it is {entry_offset}"
                found.add(FindingKind.INDEX_HEADER, self.file.path, INDEX_HEADER.position(name), detail)
        seconds = self.entry(1)[2]
        if seconds not in (0, max(self.begin_ms - previous_ms, 0) // 1000):
            detail = f"entry 1 has {seconds} seconds, although seconds are counted from this entry"
            found.add(FindingKind.INDEX_ENTRY, self.file.path, self.position(1), detail, INDEX_ENTRY.size)

    def check_chains(self, found: Findings, live: bool) -> None:
        """Checks slots and chain links, entry by entry in the order of insertion.

        Each entry points to the next older one of its slot, so a correct chain has an end.
        """
        path, header = self.file.path, IndexHeader.decode(self.file.map.view)
        words = self.words(0, self.count)
        hashes, previous = _integers(words[0::_WORDS]), _integers(words[_WORDS - 1 :: _WORDS])
        heads = array("i", bytes(INDEX_SLOT.size * self.slots))
        slots, used = self.slots, 0
        for number in range(1, self.count):
            slot = hashes[number] % slots
            before = heads[slot]
            used += not before
            if previous[number] != before:
                detail = f"entry {number} points to {previous[number]}, but the previous entry in its slot is {before}"
                found.add(FindingKind.INDEX_CHAIN, path, self.position(number), detail, INDEX_ENTRY.size)
            heads[slot] = number
        view = self.file.map.view
        stored = _integers(view[INDEX_HEADER.size : self._entries_at].cast("I"))
        if live:
            return
        for slot in range(slots if stored != heads else 0):
            if stored[slot] != heads[slot]:
                detail = f"slot {slot} points to entry {stored[slot]}, but its newest entry is {heads[slot]}"
                at = INDEX_HEADER.size + INDEX_SLOT.size * slot
                found.add(FindingKind.INDEX_CHAIN, path, at, detail, INDEX_SLOT.size)
        if used != header.hash_slot_count:
            detail = f"hash_slot_count is {header.hash_slot_count}, but {used} slots are used"
            found.add(FindingKind.INDEX_HEADER, path, INDEX_HEADER.position("hash_slot_count"), detail)

    def check_rest(self, found: Findings) -> None:
        """Reports nonzero bytes after the last entry. After a crash, the next start removes a file with such bytes."""
        end = self.position(self.count)
        stop = self.file.data_end(end)
        if stop > end:
            detail = f"{stop - end} bytes after the last entry are not zero"
            found.add(FindingKind.INDEX_ENTRY, self.file.path, end, detail)


class IndexChecks:
    """Checks all index files of a store.

    Attributes:
        entries: number of entries checked.

    Args:
        path: the directory ``index``.
        log: the log that is checked; the caller passes its records to ``rows``, in order.
        identities: reconciles records with entries.
        live: whether the store is in use.
        unclean: whether the store was not stopped cleanly, so that the newest keys may be missing.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        found: Findings,
        log: LogCheck,
        identities: RecordIdentities,
        live: bool = False,
        unclean: bool = False,
    ) -> None:
        self.entries = 0
        self._path = path
        self._found = found
        self._log = log
        self._identities = identities
        self._doubtful: list[tuple[IndexFileCheck, int, tuple[int, int, int, int]]] = []
        self._live = live
        self._unclean = unclean
        self._checks: list[IndexFileCheck] = []
        self._scratch = bytearray(index_file_bytes(1, _SCRATCH_ENTRIES))
        for name in filterfalse(is_index_name, files.list_files(path)):
            found.add(FindingKind.STRAY_FILE, f"{path}/{name}", 0, "the name is not that of an index file (17 digits)")
        for name, size in files.list_sizes(path, is_index_name).items():
            self._open(readable_file(files, f"{path}/{name}", 0, size, found))
        self._check_order()
        newest = max((check.last_offset for check in self._checks), default=-1)
        # After a crash, the next start-up adds the missing keys of all records after those in the newest file.
        self._complete_to = newest if live or unclean or newest < 0 else INT64_MAX

    def _check_order(self) -> None:
        """Checks the order of the files by name, that is, by time of creation. A file must not begin with both a lower
        physical offset and an earlier store time than the previous file. A lower offset alone is no fault: if the
        clock was set back after RocketMQ created a file, the next file may have an earlier name.
        """
        for before, after in pairwise(check for check in self._checks if check.count > 1):
            if after.first_offset < before.first_offset and after.begin_ms < before.begin_ms:
                detail = f"the file begins with older records than {before.file.path.rpartition('/')[2]}"
                self._found.add(FindingKind.INDEX_HEADER, after.file.path, 0, detail)

    def _open(self, file: MappedFile) -> None:
        if file.size < INDEX_HEADER.size:
            self._found.add(FindingKind.INDEX_HEADER, file.path, 0, f"{file.size} bytes are too few for a header")
            return
        count = IndexHeader.decode(file.map.view).index_count
        geometry = index_geometry(file)
        if geometry is None:
            if count > 1:
                detail = f"{file.size} bytes cannot hold a slot table and {count - 1} entries"
                self._found.add(FindingKind.INDEX_HEADER, file.path, 0, detail)
            file.close()
            return
        check = IndexFileCheck(file, geometry[0], count)
        self.entries += count - 1
        check.check_chains(self._found, self._live)
        if not self._unclean:
            check.check_rest(self._found)
        check.move(1)
        file.close()
        self._checks.append(check)

    def rows(self, file: MappedFile, table: array[int], rows: int) -> None:
        """Checks records of the log, in order."""
        last = (rows - 1) * ROW_WIDTH
        first_offset, end = file.start + table[0], file.start + table[last] + table[last + RecordColumn.RECORD_SIZE]
        self._find_missing(file, table, rows, first_offset, end)
        waiting = [check for check in self._checks if check.cursor < check.count and check.next_offset < end]
        if not waiting:
            return
        for check in waiting:
            entries = self._keys(file, table, rows, check.begin_ms)
            if not self._compare_columns(check, entries):
                self._compare_entries(check, _by_offset(entries), first_offset, end)

    def _find_missing(self, file: MappedFile, table: array[int], rows: int, first_offset: int, end: int) -> None:
        """Reports records whose keys are in no file. A store without index files gets no findings."""
        spans = [(check.first_offset, check.last_offset) for check in self._checks]
        if first_offset >= self._complete_to or any(first <= first_offset and end <= last for first, last in spans):
            return
        for row in range(0, rows * ROW_WIDTH, ROW_WIDTH):
            at = file.start + table[row]
            keyed = table[row + RecordColumn.KEYS_LEN] > 0 or table[row + RecordColumn.UNIQ_KEY_LEN] > 0
            rolled_back = table[row + RecordColumn.SYS_FLAG] & _ROLLBACK == _ROLLBACK
            if not keyed or rolled_back or at >= self._complete_to or any(first <= at <= last for first, last in spans):
                continue
            detail = f"no index file has the keys of the record at physical offset {at}"
            self._found.add(FindingKind.KEYS_MISSING, self._path, 0, detail, 0)

    def _keys(self, file: MappedFile, table: array[int], rows: int, begin_ms: int) -> bytes:
        """Returns the index entries for the keys of the records in ``table``. Seconds in the entries are counted from
        ``begin_ms``.
        """
        row = done = 0
        keys: list[bytes] = []
        # Entry 0 is never used. Entry 1 is left out too, because it would set the time from which seconds are counted.
        head = IndexHeader(begin_ms, 0, PhysicalOffset(0), PhysicalOffset(0), 0, _SCRATCH_FIRST).encode()
        while row < rows:
            self._scratch[: INDEX_HEADER.size + INDEX_SLOT.size] = head + bytes(INDEX_SLOT.size)
            row, done = put_rows(
                self._scratch, 1, _SCRATCH_ENTRIES, file.map.buffer, table, row, rows, file.start, 0, done
            )
            count = IndexHeader.decode(self._scratch).index_count
            first, stop = (_SCRATCH_ENTRIES_AT + INDEX_ENTRY.size * number for number in (_SCRATCH_FIRST, count))
            keys.append(bytes(self._scratch[first:stop]))
        return b"".join(keys)

    def finish(self) -> None:
        """Checks the entries that match none of the records passed to ``rows``. Must be called after all queues are
        checked.
        """
        previous_ms = 0
        for check in self._checks:
            self._compare_entries(check, {}, 0, 0)
            while check.cursor < check.count:
                self._judge(check, check.entry(check.cursor))
                check.move(1)
            check.check_times(self._found, self._log, previous_ms, self._live)
            previous_ms = check.end_ms
            check.file.close()
        for check, number, entry in self._doubtful:
            self._judge_late(check, number, entry)
            check.file.close()

    def close(self) -> None:
        """Unmaps all files."""
        for check in self._checks:
            check.file.close()

    def _compare_columns(self, check: IndexFileCheck, entries: bytes) -> bool:
        """Whether the next entries of the file equal ``entries``, apart from the links to previous entries. If so,
        marks them as compared.
        """
        count = len(entries) // INDEX_ENTRY.size
        if not count or check.cursor + count > check.count:
            return False
        ours, theirs = memoryview(entries).cast("I"), check.words(check.cursor, check.cursor + count)
        if any(ours[column::_WORDS].tobytes() != theirs[column::_WORDS].tobytes() for column in range(_WORDS - 1)):
            return False
        check.move(count)
        return True

    def _compare_entries(
        self, check: IndexFileCheck, known: dict[int, dict[int, int]], first_offset: int, end: int
    ) -> None:
        """Compares the next entries one by one, as long as they point below ``end``."""
        while check.cursor < check.count:
            entry = check.entry(check.cursor)
            if entry[1] >= end:
                return
            seconds = known.get(entry[1], {}).get(entry[0])
            if seconds is None:
                self._judge(check, entry)
            elif seconds != entry[2] and check.cursor > 1 and entry[1] not in self._log.times.wrong:
                self._late(check, entry)
            check.move(1)

    def _judge(self, check: IndexFileCheck, entry: tuple[int, int, int, int]) -> None:
        """Checks one entry that matches none of the keys of the batch."""
        physical_offset, log = entry[1], self._log
        before = check.entry(check.cursor - 1)[1] if check.cursor > 1 else 0
        if 0 <= physical_offset < log.start > before or (self._live and physical_offset >= log.end):
            return  # the record has expired, or was appended after the check began
        if log.damaged(physical_offset):
            self._found.affected += 1
        else:
            self._late(check, entry)

    def _late(self, check: IndexFileCheck, entry: tuple[int, int, int, int]) -> None:
        """Notes an entry that can be judged only after its record has been compared with queues and later records."""
        if len(self._doubtful) < _DOUBTFUL_MAX:
            self._doubtful.append((check, check.cursor, entry))
        else:
            self._judge_late(check, check.cursor, entry)

    def _judge_late(self, check: IndexFileCheck, number: int, entry: tuple[int, int, int, int]) -> None:
        wanted_hash, physical_offset, seconds, _ = entry
        place = (check.file.path, check.position(number))
        if not self._has_key(physical_offset, wanted_hash):
            detail = f"entry {number}: no record with a key of hash {wanted_hash} at physical offset {physical_offset}"
            self._found.add(FindingKind.INDEX_ENTRY, *place, detail, INDEX_ENTRY.size)
            return
        hit = self._log.row_at(physical_offset)
        stored_ms = 0 if hit is None else hit[1][RecordColumn.STORE_TIMESTAMP]
        wanted = max(stored_ms - check.begin_ms, 0) // 1000
        if number > 1 and seconds != wanted and physical_offset not in self._log.times.wrong and hit is not None:
            detail = (
                f"entry {number} has {seconds} seconds, its record at physical offset {physical_offset} has {wanted}"
            )
            self._found.add(FindingKind.INDEX_ENTRY, *place, detail, INDEX_ENTRY.size)

    def _has_key(self, physical_offset: int, wanted_hash: int) -> bool:
        hit = self._log.row_at(physical_offset, 0)
        if hit is None:
            return False
        file, row = hit

        def span(position: RecordColumn, length: RecordColumn) -> bytes:
            return bytes(file.map.view[row[position] : row[position] + max(row[length], 0)])

        said = span(RecordColumn.TOPIC_POS, RecordColumn.TOPIC_LEN)
        topic = self._identities.topics.get(physical_offset, said)
        keys = span(RecordColumn.KEYS_POS, RecordColumn.KEYS_LEN).split(b" ")
        # Since 5.4.0, RocketMQ also puts the tags into the index, as a key that begins with "T#".
        tags = b"T#" + span(RecordColumn.TAGS_POS, RecordColumn.TAGS_LEN)
        keys += [span(RecordColumn.UNIQ_KEY_POS, RecordColumn.UNIQ_KEY_LEN), tags]
        return any(key and key_hash(topic, key) == wanted_hash for key in keys)


def _integers(words: memoryview) -> array[int]:
    """Returns big-endian 32-bit words as numbers."""
    numbers = array("i", words.tobytes())
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _by_offset(entries: bytes) -> dict[int, dict[int, int]]:
    """Returns, for each physical offset, a map from the hash of each key to the seconds in its entry."""
    known: dict[int, dict[int, int]] = {}
    for wanted_hash, physical_offset, seconds, _ in INDEX_ENTRY.struct.iter_unpack(entries):
        known.setdefault(physical_offset, {})[wanted_hash] = seconds
    return known
