"""Compares what a store reports as synced with what is durable on the simulated disk.

A store may report bytes as synced that are not durable. A simulated power failure reveals this only if recovery relies
on the report and the check of the recovered store reads the lost bytes. This module compares the reported offsets
themselves with the disk, whenever one of these offsets has changed.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, IndexHeader
from rucola.store.config import MessageStoreConfig, split_paths
from rucola.store.message_store import MessageStore
from rucola.store.recovery.watermark import Watermark
from rucola.testing.simulated_disk import Inode, SimulatedDisk
from rucola.testing.store_model import Mismatch, SentRecord, StoreModel


class ProgressCheck:
    """Checks one process after its recovery; ``check_recovered`` has already checked the recovered content.

    Args:
        disk: the disk of the store.
        root: the store directory.
        store: the store, loaded but not started yet; once it runs, each watermark is checked before it is written.
        model: function that returns the currently expected content.

    Attributes:
        checks: number of comparisons.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        config: MessageStoreConfig,
        root: str,
        store: MessageStore,
        model: Callable[[], StoreModel],
    ) -> None:
        self.checks = 0
        self._disk = disk
        self._config = config
        self._root = root
        self._store = store
        self._model = model
        self._said = (0, 0)
        self._flushed = self._queued = len(model().records)
        marks = store._keeper._marks.watermark
        write = marks.write

        def watched(watermark: Watermark) -> None:
            self._check(watermark.flushed_offset, watermark.queues_offset)
            write(watermark)

        marks.write = watched  # type: ignore[method-assign]

    def step(self) -> None:
        """Compares the offsets that the store currently reports with the disk.

        Raises:
            Mismatch: the reported progress is ahead of the disk.
        """
        synced = self._store._keeper._synced
        self._check(self._store.flushed_offset, min(synced.position, synced.index_position))

    def _check(self, flushed_offset: int, queues_offset: int) -> None:
        if (flushed_offset, queues_offset) == self._said:
            return
        self._said = flushed_offset, queues_offset
        self.checks += 1
        model = self._model()
        records = model.records
        first = self._flushed
        while self._flushed < len(records) and records[self._flushed].end <= flushed_offset:
            self._flushed += 1
        self._check_log(records[first : self._flushed], flushed_offset)
        first = self._queued
        while self._queued < len(records) and records[self._queued].end <= queues_offset:
            self._queued += 1
        if first < self._queued:
            wanted = {id(record) for record in records[first : self._queued]}
            self._check_units(model, wanted, queues_offset)
            self._check_keys(records[first : self._queued], queues_offset)

    def _check_log(self, records: list[SentRecord], flushed_offset: int) -> None:
        directories = split_paths(self._config.store_path_commit_log) or [f"{self._root}/commitlog"]
        size = self._config.mapped_file_size_commit_log
        for record in records:
            start = record.physical_offset - record.physical_offset % size
            paths = [f"{directory}/{start:020d}" for directory in directories]
            content = b"".join(self._certain(path) for path in paths)
            position = record.physical_offset - start
            there = content[position : position + len(record.record)] == record.record
            if not there and start >= self._store.min_offset:
                raise Mismatch(f"flushed offset {flushed_offset}: the record at {start + position} was not synced")

    def _check_units(self, model: StoreModel, wanted: set[int], queues_offset: int) -> None:
        size = self._config.mapped_file_size_consume_queue
        min_offset = self._store.min_offset
        for (topic, queue_id), records in model.queues(queues_offset).items():
            if topic in model.deleting:
                continue
            directory = f"{self._root}/consumequeue/{topic.decode()}/{queue_id}"
            for number, record in enumerate(records):
                if id(record) not in wanted or record.physical_offset < min_offset:
                    continue
                position = number * len(record.unit)
                content = self._certain(f"{directory}/{position - position % size:020d}")
                at = position % size
                if content[at : at + len(record.unit)] != record.unit:
                    raise Mismatch(f"queues offset {queues_offset}: entry {number} of {directory} was not synced")

    def _check_keys(self, records: list[SentRecord], queues_offset: int) -> None:
        if not self._config.message_index_enable:
            return
        min_offset, there = self._store.min_offset, self._certain_entries()
        for record in records:
            entries = {(key, record.physical_offset) for key in record.keys}
            if record.physical_offset >= min_offset and not entries <= there:
                raise Mismatch(
                    f"queues offset {queues_offset}: index entries of the record at {record.physical_offset} "
                    "were not synced"
                )

    def _certain_entries(self) -> set[tuple[int, int]]:
        entries: set[tuple[int, int]] = set()
        start = INDEX_HEADER.size + INDEX_SLOT.size * self._config.max_hash_slot_num + INDEX_ENTRY.size
        for path in list(self._disk.names):
            content = self._certain(path) if path.startswith(f"{self._root}/index/") else b""
            if len(content) >= INDEX_HEADER.size:
                count = max(IndexHeader.decode(content).index_count - 1, 0)
                found = INDEX_ENTRY.struct.iter_unpack(content[start : start + INDEX_ENTRY.size * count])
                entries.update((key, physical_offset) for key, physical_offset, *_ in found)
        return entries

    def _certain(self, path: str) -> bytes:
        """The durable content of a file, which survives a power failure; empty if the file's name may be lost."""
        node = self._disk.names.get(path)
        certain = isinstance(node, Inode) and self._disk.durable.get(path) is node
        return node.disk if certain and isinstance(node, Inode) else b""
