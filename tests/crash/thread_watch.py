"""Records which bytes a running store syncs, and compares them with the offsets that the store reports."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.recovery.watermark import Watermark, WatermarkFile

_UNIT = Struct(">qiq")


class Broken(AssertionError):  # noqa: N818 - reads as what was found
    """Raised if the store reports more as synced than is on the disk."""


class SyncWatch:
    """Remembers the synced content of each file: its content at the beginning of its last completed sync.

    Attributes:
        broken: the first violation in any thread.
        checks: number of comparisons.
        is_deleted: whether a topic was deleted after the record at a physical offset was stored. Units of such records
            need no sync: they stay in their files until these are removed.
    """

    def __init__(self, root: Path, config: MessageStoreConfig) -> None:
        self.broken: BaseException | None = None
        self.is_deleted: Callable[[bytes, int], bool] = lambda topic, physical_offset: False
        self.checks = 0
        self._root = root
        self._config = config
        self._synced: dict[tuple[int, int], bytes] = {}
        self._lock = threading.Lock()
        self._log_checked = 0

    def files(self) -> Files:
        """Returns a ``Files`` object that records the content that its syncs cover."""
        files = Files()
        sync: Callable[[int], None] = Files.data_sync
        synced = self._synced

        def watched(descriptor: int) -> None:
            status = os.fstat(descriptor)
            content = os.pread(descriptor, status.st_size, 0)
            sync(descriptor)
            with self._lock:
                synced[status.st_dev, status.st_ino] = content

        files.data_sync = watched  # type: ignore[method-assign]
        return files

    def loaded(self, end: int) -> None:
        """Records, at the end of a recovery, that the present content of all files is synced."""
        self._log_checked = end
        for path in self._root.rglob("*"):
            if path.is_file():
                status = path.stat()
                with self._lock:
                    self._synced.setdefault((status.st_dev, status.st_ino), path.read_bytes())

    def watch(self, marks: WatermarkFile) -> None:
        """Checks each watermark that is written from now on."""
        write = marks.write

        def watched(watermark: Watermark) -> None:
            write(watermark)
            try:
                self.check(watermark)
            except Exception as error:
                self.broken = self.broken or error
                raise

        marks.write = watched  # type: ignore[method-assign]

    def check(self, watermark: Watermark) -> None:
        """Compares a watermark with the synced content.

        Raises:
            Broken: the watermark is ahead.
        """
        self.checks += 1
        self.check_log(watermark.flushed_offset)
        for path in self._paths("consumequeue/*/*/*"):
            self._check_units(path, watermark.queues_offset)
        for path in self._paths("index/*"):
            self._check_index(path, watermark.queues_offset)

    def check_log(self, flushed_offset: int) -> None:
        """Compares the reported end of the synced log with the synced content."""
        begin, size = self._log_checked, self._config.mapped_file_size_commit_log
        for path in self._paths("commitlog/*"):
            start = int(path.name)
            low, high = max(begin - start, 0), min(flushed_offset - start, size)
            if low < high:
                self._compare(path, low, high, f"flushed offset {flushed_offset}")
        self._log_checked = max(begin, flushed_offset)

    def _paths(self, pattern: str) -> list[Path]:
        while True:
            try:
                return sorted(self._root.glob(pattern))
            except FileNotFoundError:
                continue  # a topic was deleted while its directory was read

    def _check_units(self, path: Path, queues_offset: int) -> None:
        content, topic = self._read(path), path.parent.parent.name.encode()
        for position in range(0, len(content) - _UNIT.size + 1, _UNIT.size):
            physical_offset, size, _ = _UNIT.unpack_from(content, position)
            is_unit = 0 < size != 0x7FFFFFFF and physical_offset < queues_offset
            if is_unit and not self.is_deleted(topic, physical_offset):
                self._compare(path, position, position + _UNIT.size, f"queues offset {queues_offset}")

    def _check_index(self, path: Path, queues_offset: int) -> None:
        content = self._read(path)
        if len(content) < INDEX_HEADER.size:
            return
        count = min(INDEX_HEADER.unpack(content)[-1], self._config.max_index_num) - 1
        first = INDEX_HEADER.size + INDEX_SLOT.size * self._config.max_hash_slot_num + INDEX_ENTRY.size
        for number in range(count):
            position = first + INDEX_ENTRY.size * number
            if int.from_bytes(content[position + 4 : position + 12], "big") < queues_offset:
                self._compare(path, position, position + INDEX_ENTRY.size, f"queues offset {queues_offset}")

    def _compare(self, path: Path, low: int, high: int, what: str) -> None:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = os.pread(file.fileno(), high - low, low)
        except FileNotFoundError:
            return  # the file expired, or was removed with its topic
        with self._lock:
            synced = self._synced.get((status.st_dev, status.st_ino), b"")[low:high]
        if synced.ljust(high - low, b"\0") != content and path.exists():
            raise Broken(f"{what} is recorded, and bytes {low} to {high} of {path} were not synced")

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return b""
