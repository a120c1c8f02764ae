"""Finds messages by key: manages index files of fixed length, newest last (``formats.index_file``, RocketMQ 5.3.3
``IndexService``).

A file is named after its creation time. Where RocketMQ would give two files the same name, or a name that sorts before
that of an older file, the next free name is used. Disk blocks for the slots of a file are allocated when it is created,
and blocks for its entries are allocated step by step. The event loop's thread puts keys and runs queries; the
maintenance thread syncs.
"""

from __future__ import annotations

import logging
from array import array
from contextlib import suppress
from operator import attrgetter

from rucola.common.columns import ROW_WIDTH
from rucola.common.ids import PhysicalOffset
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.index_file import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_NAME_DIGITS,
    INDEX_SLOT,
    ChainBudget,
    IndexHeader,
    Limits,
    index_file_bytes,
    is_index_name,
    key_hash,
    put_rows,
    query,
)
from rucola.runtime.clock import Clock, local_time_digits
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig
from rucola.store.log.mapped_file import MappedFile, readable

logger = logging.getLogger(__name__)
_SECOND_MS = 1000
_LOOK_BYTES = 4096
_FRESH = IndexHeader(0, 0, PhysicalOffset(0), PhysicalOffset(0), 0, 1)


def next_name(time_ms: int, previous: str) -> str:
    """Returns the name of an index file that is created at ``time_ms``.

    Args:
        previous: name of the file before it; empty for the first.
    """
    name = local_time_digits(time_ms)
    return f"{int(previous) + 1:0{INDEX_NAME_DIGITS}d}" if previous and name <= previous else name


class IndexFile:
    """One index file. Header fields are read from the map, where the Cython kernel updates them.

    Attributes:
        name: name of the file, 17 digits.
        slot_count, entry_max: number of hash slots, and largest number of entries.
        entries_at: length of header and slots in bytes.
        on_disk: whether the whole file was synced after it became full.
        limit: number of entries that the file may hold before ``room`` must be called; 0 if that is unknown.
    """

    __slots__ = ("_file", "_holes", "entries_at", "entry_max", "limit", "name", "on_disk", "slot_count")

    def __init__(self, files: Files, directory: str, name: str, config: MessageStoreConfig) -> None:
        self.name = name
        self.slot_count = config.max_hash_slot_num
        self.entry_max = config.max_index_num
        self.on_disk = True
        self.limit = 0
        self.entries_at = INDEX_HEADER.size + INDEX_SLOT.size * self.slot_count
        self._holes = True
        """Whether slots may lack blocks, as RocketMQ leaves them in a file that it created."""
        size = index_file_bytes(self.slot_count, self.entry_max)
        self._file = MappedFile(files, f"{directory}/{name}", 0, size, True, 0, scattered=True)

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._file.path

    @property
    def buffer(self) -> object:
        """The memory map of the file, for the Cython kernel."""
        return self._file.map.buffer

    @property
    def view(self) -> memoryview:
        """The bytes."""
        return self._file.map.view

    def check(self) -> None:
        """Reads from the disk what opening the index needs: the header and the newest entries.

        Raises:
            StoreDamagedError: the disk cannot read one of these parts.
        """
        with readable():
            self._file.ensure(0, INDEX_HEADER.size)
            end = self.entries_at + INDEX_ENTRY.size * min(max(self.header().index_count, 1), self.entry_max)
            self._file.ensure(max(end - _LOOK_BYTES, 0), min(_LOOK_BYTES, end))

    def check_slots(self) -> None:
        """Reads all slots from the disk, because each key that is put reads and changes a slot.

        Raises:
            DiskError: the disk cannot read some of the slots.
        """
        self._file.ensure(0, self.entries_at)

    def header(self) -> IndexHeader:
        """Decodes the header as it is now."""
        return IndexHeader.decode(self._file.map.view)

    @property
    def plausible(self) -> bool:
        """Whether the header can be right: no field is negative, the end offset is not before the begin offset, and the
        index count lies between 1 and ``entry_max``.

        The end time may lie before the begin time if the writer's clock stepped back.
        """
        begin_ms, end_ms, begin, end, slots_used, count = INDEX_HEADER.unpack(self._file.map.view)
        sound = min(begin_ms, end_ms, slots_used) >= 0 and 0 <= begin <= end and 1 <= count <= self.entry_max
        return bool(sound)

    def begin(self) -> None:
        """Writes the header of a new file, whose header and slots have blocks. The first entry has number 1."""
        self._file.allocated, self._holes = self.entries_at, False
        self._file.map.view[: INDEX_HEADER.size] = _FRESH.encode()

    def room(self, entries: int) -> int:
        """Allocates blocks for at least ``entries`` more entries, up to the end of the file.

        Returns:
            ``limit``: the number of entries that the file may hold now, at most ``maxIndexNum``.

        Raises:
            DiskFullError: there is no space; nothing was changed.
        """
        if self._holes:
            self._file.map.fill_holes(0, self.entries_at)
            self._holes = False
        count = max(INDEX_HEADER.unpack(self._file.map.view)[-1], 1)
        used = self.entries_at + INDEX_ENTRY.size * count
        self._file.allocated = max(self._file.allocated, used)
        needed = min(used + INDEX_ENTRY.size * entries, self._file.size)
        if needed > self._file.allocated:
            self._file.allocate_to(needed)
        self.limit = (self._file.allocated - self.entries_at) // INDEX_ENTRY.size
        return self.limit

    def inherit(self, previous: IndexFile) -> None:
        """Prepares this new file as the successor of a full one."""
        _, end_ms, _, end_offset, _, _ = previous.header()
        self.follow(end_ms, end_offset)

    def follow(self, end_ms: int, end_offset: int) -> None:
        """Writes the header of a file that follows a full file. Until the first entry is put, begin time and end time
        of the new file are the end time of the full file (5.3.3).

        Args:
            end_ms: store time of the last record in the full file.
            end_offset: physical offset of that record.
        """
        header = IndexHeader(end_ms, end_ms, PhysicalOffset(end_offset), PhysicalOffset(end_offset), 0, 1)
        self._file.map.view[: INDEX_HEADER.size] = header.encode()

    def query(
        self, wanted_hash: int, count_max: int, begin_ms: int, end_ms: int, budget: ChainBudget
    ) -> list[PhysicalOffset]:
        """Returns the physical offsets of the entries with the wanted hash, newest first. The records at these offsets
        are candidates, because only the hash is compared.

        The file truncates times to seconds. Records up to one second too old may be included, but none is missed.
        """
        view = self._file.map.view
        begin_ms -= _SECOND_MS - 1
        return query(view, self.slot_count, wanted_hash, Limits(count_max, begin_ms, end_ms), budget, self._file.ensure)

    def keys_at_end(self) -> int:
        """Returns how many keys of the newest record are in the file. The file may have become full before the last key
        of that record.
        """
        header, view = self.header(), self._file.map.view
        last = min(header.index_count, self.entry_max) - 1
        done = 0
        while done < last:
            position = self.entries_at + INDEX_ENTRY.size * (last - done)
            if INDEX_ENTRY.struct.unpack_from(view, position)[1] != header.end_physical_offset:
                break
            done += 1
        return done

    def sync(self) -> None:
        """Syncs the file."""
        self._file.sync()

    def close(self) -> None:
        """Unmaps the file."""
        self._file.close()


class IndexService:
    """The index files of a store.

    Attributes:
        files: the index files, oldest first.
        full_timestamp_ms: end time of the newest full and synced file, for the checkpoint; owned by the maintenance
            thread.
        sync_when_full: whether a full file is synced before the next one is created. Recovery sets this, because after
            a further crash every file except the newest must be trustworthy.
    """

    def __init__(self, files: Files, clock: Clock, path: str, config: MessageStoreConfig) -> None:
        self.path = path
        self.files: list[IndexFile] = []
        self.full_timestamp_ms = 0
        self.sync_when_full = False
        self._files = files
        self._clock = clock
        self._config = config
        self._end_offset = 0
        self._keys_done = 0
        self._written: dict[IndexFile, int] = {}
        self._unreadable: IndexFile | None = None

    def load(self) -> None:
        """Opens the files; ignores files with other names.

        Raises:
            StoreDamagedError: the length of a file does not match the configured numbers of slots and entries.
        """
        size = index_file_bytes(self._config.max_hash_slot_num, self._config.max_index_num)
        self.files = []
        for name in self._files.list_files(self.path):
            if not is_index_name(name):
                event(logger, logging.WARNING, "not an index file", path=f"{self.path}/{name}")
                continue
            length = self._files.size(f"{self.path}/{name}")
            if length != size:
                raise StoreDamagedError(
                    f"{self.path}/{name}",
                    min(length, size),
                    f"the file has {length} bytes, but an index file with maxHashSlotNum="
                    f"{self._config.max_hash_slot_num} and maxIndexNum={self._config.max_index_num} has {size}",
                    "set the numbers with which the store was created, or move the file away",
                )
            self.files.append(IndexFile(self._files, self.path, name, self._config))
            self.files[-1].check()
        if self.files:
            self._check_slots(self.files[-1])
        # The newest file by name need not hold the newest record, because the clock may have stepped back.
        self._find_end()

    def _check_slots(self, file: IndexFile) -> None:
        """Checks whether the disk can read the slots of ``file``; if not, further keys go to a new file."""
        try:
            file.check_slots()
        except DiskError as error:
            event(
                logger,
                logging.ERROR,
                "index file cannot be read, new keys go to a new file",
                path=file.path,
                error=error,
            )
            self._unreadable = file

    def drop(self, physical_end: int, unclean: bool, synced_end: int) -> int:
        """Removes the files that refer to records after the end of the log, and files that may be damaged.

        Only whole files are removed; their keys are put into the index again.

        Args:
            physical_end: end of the log.
            unclean: whether there was a crash, so that the newest file may be damaged.
            synced_end: physical offset; the keys of all records below it are synced. After a crash, an older file is
                kept only if it is full and all its keys belong to records below this offset.

        Returns:
            Physical offset of the first record whose keys may be missing.
        """
        # Files after an invalid file are removed like the invalid file itself; their keys are put again.
        trusted = 0
        while trusted < len(self.files) and self.files[trusted].plausible:
            trusted += 1
        dropped = self.files[trusted:]
        for file in self.files[:trusted]:
            header = file.header()
            behind = header.end_physical_offset >= physical_end
            synced = header.index_count >= self._config.max_index_num and header.end_physical_offset < synced_end
            if behind or (unclean and (file is self.files[-1] or not synced)):
                dropped.append(file)
        # The headers of these files may be damaged. A wrong begin offset can only make recovery start earlier.
        begins = [begin for file in dropped if (begin := file.header().begin_physical_offset) > 0]
        self._remove(dropped)
        self._find_end(*begins)
        return self._end_offset

    def keep(self, sound: list[IndexFile], unclean: bool, synced_ms: int) -> int:
        """Removes the files that do not agree with the log. After a crash, also removes the newest file, and all files
        from the first one that is not known to be synced.

        Args:
            sound: the files that agree with the log, in the order of their records.
            unclean: whether there was a crash, so that the newest file may be damaged.
            synced_ms: store time; a full file whose end time is not later than this time is known to be synced.
        """
        kept = sound
        if unclean:
            kept = []
            for file in sound[:-1] if len(sound) == len(self.files) else sound:
                header = file.header()
                if header.index_count < self._config.max_index_num or header.end_timestamp_ms > synced_ms:
                    break
                kept.append(file)
        self._remove([file for file in self.files if file not in kept])
        self._find_end()
        return self._end_offset

    def _remove(self, dropped: list[IndexFile]) -> None:
        """Removes files newest first and syncs each removal, so that the remaining files do not look like a complete
        index if the removal is interrupted.
        """
        self.files = [file for file in self.files if file not in dropped]
        for file in sorted(dropped, key=attrgetter("name"), reverse=True):
            file.close()
            self._files.remove(file.path)
            self._files.sync_directory(self.path)

    def _find_end(self, *begins: int) -> None:
        """Finds the physical offset from which keys must be put: that of the newest record in the index, or the lowest
        of ``begins`` if that is lower. The newest record is included, because some of its keys may be missing.

        Sets ``full_timestamp_ms`` from all full files. All of these files are synced after a clean stop, and after
        ``drop`` or ``keep``.
        """
        ends = [file.header().end_physical_offset for file in self.files]
        end = max(ends, default=0)
        self._end_offset = min([end, *begins])
        self._keys_done = 0
        if self._end_offset == end:
            # Two files have entries for the newest record if its keys did not all fit into one file.
            self._keys_done = sum(
                file.keys_at_end() for file, last in zip(self.files, ends, strict=True) if last == end
            )
        headers = (file.header() for file in self.files)
        full = (header.end_timestamp_ms for header in headers if header.index_count >= self._config.max_index_num)
        self.full_timestamp_ms = max(full, default=0)

    @property
    def plausible(self) -> bool:
        """True if the headers of all files are valid."""
        return all(file.plausible for file in self.files)

    @property
    def end_offset(self) -> int:
        """Returns the physical offset from which keys must be put: ``put_rows`` skips the records that start below it.

        After ``load`` and ``drop``, this is the offset of the newest record in the index, some of whose keys may be
        missing; 0 if the index is empty.
        """
        return self._end_offset

    def put_rows(self, source: object, table: array[int], rows: int, base_offset: int) -> None:
        """Puts the keys of records into the index.

        Args:
            source: the segment that holds the records.
            table: the rows of the records; ``base_offset`` is the physical offset of byte 0 of the segment.

        Raises:
            DiskFullError: no space; a call with the same rows resumes where this one stopped.
        """
        if not rows:
            return
        row = self._first_row(table, rows, base_offset)
        file = self.files[-1] if self.files else self._next_file()
        if file is self._unreadable:
            file = self._next_file()
        config = self._config
        limit = file.limit
        while True:
            # The maintenance thread gets the file only after these writes, so its next sync covers them.
            self._written[file] = 0
            if not limit:
                # Allocates space for one key per record. Records with more keys cause further allocations.
                limit = file.room(rows - row + 1)
            row, done = put_rows(
                file.buffer,
                config.max_hash_slot_num,
                limit,
                source,
                table,
                row,
                rows,
                base_offset,
                self._end_offset,
                self._keys_done,
            )
            if row == rows:
                self._end_offset = max(self._end_offset, base_offset + table[(rows - 1) * ROW_WIDTH] + 1)
                self._keys_done = 0
                return
            self._end_offset, self._keys_done = base_offset + table[row * ROW_WIDTH], done
            if limit >= config.max_index_num:
                file = self._next_file()
            limit = 0

    def _first_row(self, table: array[int], rows: int, base_offset: int) -> int:
        """Returns the row of the record whose keys are only partly in the index, if it is among the rows; otherwise the
        first row.
        """
        if self._keys_done:
            for row in range(rows):
                if base_offset + table[row * ROW_WIDTH] == self._end_offset:
                    return row
            self._keys_done = 0
        return 0

    def detach_before(self, min_offset: int) -> list[IndexFile]:
        """Removes the oldest files from the list: those that refer only to records before ``min_offset``. The files
        themselves are not deleted.

        The last file stays, and so do a file that is not yet synced and all files after it (RocketMQ 5.3.3,
        ``IndexService#deleteExpiredFile``).
        """
        count = 0
        while count < len(self.files) - 1 and self.files[count].on_disk:
            if self.files[count].header().end_physical_offset >= min_offset:
                break
            count += 1
        detached, self.files = self.files[:count], self.files[count:]
        return detached

    def query(
        self, topic: bytes, key: bytes, count_max: int, begin_ms: int, end_ms: int, budget: ChainBudget
    ) -> list[int]:
        """Returns the physical offsets of records that may have the key, newest first. The caller compares topic and
        key with the record.
        """
        wanted_hash = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files):
            header = file.header()
            # RocketMQ stops at a file that begins too early. This search continues, because older files may still match
            # if a clock was set back.
            if header.index_count > 1 and header.overlaps(begin_ms, end_ms):
                try:
                    found += file.query(wanted_hash, count_max - len(found), begin_ms, end_ms, budget)
                except DiskError as error:
                    event(logger, logging.ERROR, "messages are not found by key", error=error)
                    budget.cut = True
                if len(found) >= count_max or budget.cut:
                    break
        return found

    def newest(self) -> tuple[int, int]:
        """Physical offset and store time of the newest record with a key; zeros if there is no such record."""
        if not self.files:
            return 0, 0
        header = self.files[-1].header()
        return header.end_physical_offset, header.end_timestamp_ms

    def take_written(self) -> dict[IndexFile, int] | None:
        """Returns the files written since the last call, each with a time for ``sync``; None if there are no such
        files.
        """
        written = self._written
        if not written:
            return None
        self._written = {}
        return written

    def sync(self, files: dict[IndexFile, int]) -> None:
        """Syncs files that were written. Runs on the maintenance thread, or after that thread has ended.

        Args:
            files: the files to sync, each with a time: the store time of the newest key if the file was full, else 0.
        """
        for file, full_timestamp_ms in files.items():
            file.sync()
            if full_timestamp_ms:
                file.on_disk = True
                self.full_timestamp_ms = full_timestamp_ms

    def close(self) -> None:
        """Unmaps all files."""
        for file in self.files:
            file.close()

    def _next_file(self) -> IndexFile:
        if self.sync_when_full and self.files:
            self.files[-1].sync()
        self._files.make_directory(self.path)
        name = next_name(self._clock.wall_ms(), self.files[-1].name if self.files else "")
        file = IndexFile(self._files, self.path, name, self._config)
        try:
            self._files.create_segment(file.path, f"{self.path}-{name}.tmp", file._file.size, file.entries_at)
            file.begin()
        except DiskError:
            # The file is removed, because each attempt uses a different name and abandoned files would fill the disk.
            with suppress(DiskError):
                self._files.remove(file.path)
            raise
        if self.files:
            full = self.files[-1]
            full.on_disk = False
            self._written[full] = full.header().end_timestamp_ms
            file.inherit(full)
        self._written[file] = 0
        self.files.append(file)
        return file
