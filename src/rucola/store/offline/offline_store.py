"""Reads a store directory without changing a byte of it, even while a broker uses it.

``rucola store`` and Spark use this module. ``log_segments``, ``queue_files`` and ``end_offset`` return plain values
that can be sent to other processes, which then map the files themselves.

While a broker runs, everything below ``end_offset`` is final. The broker removes expired segments at the start of the
log, but it never removes whole records, or the blank record that ends a segment, from the log's end (``CommitLog``). If
the broker is killed, these records are still in the files. A power failure may remove bytes above the broker's flushed
offset. The log may then end before records that a reader has seen. A write that failed with an input/output error can
have the same effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rucola.common.columns import RecordColumn
from rucola.common.message import MessageExt
from rucola.common.numbers import INT64_MAX
from rucola.errors import StoreDamagedError
from rucola.formats.batch_consume_queue import BATCH_UNIT_BYTES
from rucola.formats.consume_queue import UNIT_BYTES
from rucola.formats.message import CHECK_ALL, CHECK_BODY_CRC, CHECK_RECORD_CRC, CHECK_TORN_END, decode_message
from rucola.formats.segment_name import is_segment_name
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.log.log_end import LogEnd, scan
from rucola.store.log.log_reader import LogReader
from rucola.store.log.multi_path import MultiPathSegmentList, log_directories
from rucola.store.offline.rows import SegmentRows, UnitRows
from rucola.store.places import hold_store
from rucola.store.queue.batch_consume_queue import BatchConsumeQueue
from rucola.store.queue.consume_queue import PREFILL_SIZE, ConsumeQueue
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.queue.queue_factory import QueueOptions
from rucola.store.recovery.checksum_stretches import as_pairs, known_stretches
from rucola.store.recovery.watermark import Watermark, WatermarkFile
from rucola.store.results import Boundary

if TYPE_CHECKING:
    from rucola.store.offline.lite_view import LiteView

_SEGMENT_BYTES_MAX = (1 << 31) - 1
"""Longest segment of a queue: RocketMQ's option is a 32-bit integer."""
_SAMPLE_FILES = 64


@dataclass(frozen=True)
class OffsetRange:
    """The range of queue offsets in a queue.

    Attributes:
        min_offset: queue offset of the oldest message.
        max_offset: queue offset after the newest message.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


class OfflineStore:
    """A store directory, opened for reading. The segment lengths are taken from its files.

    Attributes:
        path: absolute path of the directory.
        log: the log up to ``end_offset``.

    Args:
        path: path of the directory.
        files: access to the disk.
        commit_log_path: the directory of the log if it is not in the store; several directories are separated by `,`.

    Raises:
        StoreDamagedError: the directory holds no store, or a file of the log is not a segment.
    """

    def __init__(self, path: str, files: Files | None = None, commit_log_path: str | None = None) -> None:
        self._files = files = files if files is not None else Files()
        path = files.expand(path)
        directories = log_directories(files, path, commit_log_path)
        self.path = hold_store(files, path, *directories)
        if not any(files.exists(part) for part in (*directories, f"{path}/consumequeue", f"{path}/batchconsumequeue")):
            raise StoreDamagedError(
                path, 0, "there is no store here: neither commitlog nor consumequeue", "give the path of a store"
            )
        self._directories = directories
        self._open()
        self._load_log(0)

    # -- the log -------------------------------------------------------------------------------------------------------

    def log_segments(self) -> list[tuple[str, int, int]]:
        """Returns path, physical offset of the first byte, and length of each segment of the log, oldest first."""
        return [(file.path, file.start, file.size) for file in self.log.segments.files]

    def min_offset(self) -> int:
        """Physical offset of the oldest byte of the log."""
        return self.log.min_offset

    def end_offset(self) -> int:
        """Physical offset after the last whole, undamaged record when the store was opened or last refreshed."""
        return self.log.max_offset

    def refresh(self) -> int:
        """Searches for records that a running broker has added; returns the new end offset."""
        known = self.log.max_offset
        self.log.segments.close()
        self._queues.close()
        if not self._has_lengths:
            self._open()
        self._load_log(known)
        return self.log.max_offset

    def message_at(self, physical_offset: int) -> MessageExt | None:
        """Returns the message whose record starts at ``physical_offset``; None if there is none."""
        record = self.log.message_at(physical_offset)
        return None if record is None else decode_message(record)

    def rows_at(self, physical_offset: int) -> SegmentRows | None:
        """Returns the message whose record starts at ``physical_offset``, as a row."""
        row = self.log.row_at(physical_offset, CHECK_ALL)
        file = self.log.segments.find(physical_offset)
        return None if row is None or file is None else SegmentRows(file.map.view, row, (0,))

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Returns the bytes of the record that starts at ``physical_offset``."""
        return self.log.message_at(physical_offset)

    def store_timestamp(self, physical_offset: int) -> int:
        """Returns the store time in ms of the record that starts at ``physical_offset``; -1 outside of the log. The
        record is not checked.
        """
        return self.log.store_timestamp(physical_offset)

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue_names(self) -> list[tuple[str, int]]:
        """Returns topic and queue id of every queue."""
        return [(topic.decode("utf-8", "surrogateescape"), queue_id) for topic, queue_id in self._queues.names()]

    def topics(self) -> list[str]:
        """Returns the names of the topics that have a queue, sorted."""
        return sorted({topic.decode("utf-8", "surrogateescape") for topic, _ in self._queues.names()})

    def queues(self, topic: str) -> list[int]:
        """Returns the queue ids of a topic, sorted."""
        wanted = topic.encode("utf-8", "surrogateescape")
        return sorted(queue_id for name, queue_id in self._queues.names() if name == wanted)

    def queue_ranges(self) -> list[OffsetRange]:
        """Returns the range of every queue, by topic and queue id."""
        # One look at the directories: with one for each topic, a store with thousands of topics would take minutes.
        return [self.queue_range(topic, queue_id) for topic, queue_id in sorted(set(self.queue_names()))]

    def queue_range(self, topic: str, queue_id: int) -> OffsetRange:
        """Returns the range of one queue; empty for an unknown queue."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return OffsetRange(topic, queue_id, 0, 0)
        return OffsetRange(topic, queue_id, queue.min_offset, queue.max_offset)

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic are of type BatchCQ, where an entry may stand for several messages."""
        return self._queues.factory.is_batch(topic.encode("utf-8", "surrogateescape"))

    def queue_files(self, topic: str, queue_id: int) -> list[tuple[str, int, int]]:
        """Returns path, queue offset of the first unit, and number of units of each segment of a queue.

        Empty for an unknown queue, and for a batch consume queue, where a unit's position cannot be computed from its
        queue offset.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or isinstance(queue, BatchConsumeQueue):
            return []
        return [(file.path, file.start // UNIT_BYTES, file.size // UNIT_BYTES) for file in queue.segments.files]

    def units(self, topic: str, queue_id: int, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields queue offset, physical offset, size and tags code of the entries from ``first`` to ``last``
        (excluded).

        In a batch consume queue, an entry stands for a whole batch, and its queue offset is that of the batch's first
        message. The method yields the entry of each batch that has a message in the given range.
        """
        queue = self._queue(topic, queue_id)
        if queue is None:
            return
        if isinstance(queue, BatchConsumeQueue):
            for unit in queue.units(max(first, queue.min_offset), min(last, queue.max_offset)):
                yield unit.base_offset, unit.physical_offset, unit.size, unit.tags_code
            return
        for queue_offset in range(max(first, queue.min_offset), min(last, queue.max_offset)):
            physical_offset, size, tags_code = queue.entry(queue_offset)
            if size != PREFILL_SIZE:
                yield queue_offset, physical_offset, size, tags_code

    def messages(self, topic: str, queue_id: int, first: int, last: int, unpack: bool = True) -> Iterator[MessageExt]:
        """Yields the messages of a queue from ``first`` to ``last`` (excluded).

        Args:
            unpack: whether to decompress bodies.

        Raises:
            StoreDamagedError: a record does not match its unit.
        """
        for queue_offset, physical_offset, size, _ in self.units(topic, queue_id, first, last):
            # The record's own physical offset is not checked, because the unit states where the record is.
            row = self.log.row_at(physical_offset, CHECK_BODY_CRC | CHECK_RECORD_CRC)
            record = self.log.view(physical_offset, size)
            if row is None or record is None or row[RecordColumn.RECORD_SIZE] != size:
                raise self._damaged_entry(topic, queue_id, queue_offset, physical_offset)
            yield decode_message(record, unpack)

    def rows(self, topic: str, queue_id: int, first: int, last: int) -> Iterator[SegmentRows]:
        """Yields the same messages as ``messages``, but as rows, without an object for each. Bodies stay compressed.

        Raises:
            StoreDamagedError: a record does not match its unit.
        """

        return self.rows_of(topic, queue_id, self.units(topic, queue_id, first, last))

    def rows_of(self, topic: str, queue_id: int, units: Iterator[tuple[int, int, int, int]]) -> Iterator[SegmentRows]:
        """Yields the messages of ``units``, which belong to the named queue, as rows.

        Raises:
            StoreDamagedError: a record does not match its unit.
        """

        def damaged(unit: tuple[int, int, int, int]) -> StoreDamagedError:
            return self._damaged_entry(topic, queue_id, unit[0], unit[1])

        return UnitRows(self.log.segments.find, damaged, self.log.stretches).of(units, self.log.max_offset)

    def lite_view(self) -> LiteView | None:
        """Opens the lite topics as of now; the caller closes them. Returns None if the store keeps none.

        Raises:
            StoreDamagedError: they are damaged.
        """
        from rucola.store.offline.lite_view import LiteView  # most stores have no lite topics

        return LiteView.open(self._files, self.path, self.log)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Returns the queue offset of the message at a store time; see ``Boundary``."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.offset_by_time(timestamp_ms, boundary)

    def release_queues(self) -> None:
        """Unmaps all queues; queues that are used later are mapped again. Useful in walks over very many queues."""
        self._queues.close()

    def close(self) -> None:
        """Unmaps all files."""
        self._queues.close()
        self.log.segments.close()

    # -- opening -------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Makes log and queues with the lengths of the files. As long as there are no files of one of them, the lengths
        are RocketMQ's defaults, and ``refresh`` looks at the files again.
        """
        lengths = (self._segment_bytes(directory, 0) for directory in self._directories)
        segment_bytes, queues = next(filter(None, lengths), 0), queue_lengths(self._files, self.path)
        self._has_lengths = bool(segment_bytes and queues)
        segments = MultiPathSegmentList(self._files, self._directories, (), segment_bytes or 1 << 30, writable=False)
        self.log = LogReader(segments)
        self._queues = ConsumeQueueStore(self._files, self.path, _options_of(queues), self.log, writable=False)

    def _damaged_entry(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> StoreDamagedError:
        file = self.log.segments.find(physical_offset)
        path, start = (file.path, file.start) if file is not None else (self.log.segments.path, 0)
        return StoreDamagedError(
            path,
            physical_offset - start,
            f"entry {queue_offset} of {topic}/{queue_id} points to no whole record",
            "run rucola store verify",
        )

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.find(topic.encode("utf-8", "surrogateescape"), queue_id)

    def _load_log(self, known: int) -> None:
        """Lists the segments of the log, and finds its end. Accepts entries that point above the watermark only if
        their records state the same queue and queue offset, because a crash may have left anything in these entries.

        Args:
            known: the end that an earlier search found; the log below this end is not checked again.
        """
        log = self.log
        log.segments.load()
        watermark = WatermarkFile(self._files, self.path).read()
        log.know_stretches(as_pairs(known_stretches(log.segments.files, watermark)))
        log.max_offset = self._find_end(watermark, known)
        self._queues.factory.placement.trusted_to = INT64_MAX if watermark is None else watermark.queues_offset

    def _find_end(self, watermark: Watermark | None, known: int) -> int:
        """Searches for the end of the log. The search starts at the watermark's flushed offset. Without a watermark, or
        if this offset lies outside of the log, the search starts at the last segment that begins with a record.
        """
        segments = self.log.segments
        if known > (watermark.flushed_offset if watermark is not None else 0) and segments.find(known - 1) is not None:
            return scan(self.log, known, CHECK_ALL | CHECK_TORN_END).physical_offset
        if watermark is not None and segments.find(watermark.flushed_offset - 1) is not None:
            start = max(watermark.flushed_offset, segments.start)
            return scan(self.log, start, CHECK_ALL | CHECK_TORN_END).physical_offset
        for file in reversed(segments.files):
            end = scan(self.log, file.start, CHECK_ALL, INT64_MAX)
            if end.physical_offset > file.start:
                self.log.max_offset = end.physical_offset
                return end.last_record if self._is_being_written(end) else end.physical_offset
        return segments.start

    def _is_being_written(self, end: LogEnd) -> bool:
        """Whether the last record is incomplete, that is, whether it has a zero byte at its end, where the property
        ``__CRC32#`` belongs. In a record without this property, nothing else shows that the end is missing.

        Only the last record can be incomplete. Earlier records may end in zero bytes that their senders wrote.
        """
        return end.last_record >= 0 and self.log.row_at(end.last_record, CHECK_TORN_END) is None

    def _segment_bytes(self, directory: str, default: int) -> int:
        """Returns the length of the first segment in ``directory``."""
        return next(filter(None, self._files.list_sizes(directory, is_segment_name).values()), default)

    def queue_options(self) -> QueueOptions:
        """Returns the lengths of queue segments, taken from the files; without files, the default lengths."""
        return queue_options_of(self._files, self.path)


def queue_options_of(files: Files, root: str) -> QueueOptions:
    """Returns the lengths of queue segments of the store ``root``, taken from the files; without files, the default
    lengths.
    """
    return _options_of(queue_lengths(files, root))


def _options_of(found: dict[str, int]) -> QueueOptions:
    config = MessageStoreConfig()
    return QueueOptions(
        found.get("mappedFileSizeConsumeQueue") or config.consume_queue_segment_bytes,
        found.get("mapperFileSizeBatchConsumeQueue") or config.batch_consume_queue_segment_bytes,
        found.get("mappedFileSizeConsumeQueueExt") or config.mapped_file_size_consume_queue_ext,
    )


def queue_lengths(files: Files, root: str) -> dict[str, int]:
    """Returns the lengths of the store's queue segments that files tell, by the option that sets each."""
    lengths = {
        "mappedFileSizeConsumeQueue": _usual_length(files, f"{root}/consumequeue", UNIT_BYTES),
        "mapperFileSizeBatchConsumeQueue": _usual_length(files, f"{root}/batchconsumequeue", BATCH_UNIT_BYTES),
        "mappedFileSizeConsumeQueueExt": _usual_length(files, f"{root}/consumequeue_ext", 1),
    }
    return {key: length for key, length in lengths.items() if length}


def _usual_length(files: Files, directory: str, unit_bytes: int) -> int:
    """Returns the possible length that most segments of the queues below ``directory`` have; 0 if there is none.

    About ``_SAMPLE_FILES`` files are looked at, because there may be hundreds of thousands. One may be cut short.
    """
    lengths: Counter[int] = Counter()
    for topic in files.list_directories(directory):
        for queue_id in files.list_directories(f"{directory}/{topic}"):
            sizes = files.list_sizes(f"{directory}/{topic}/{queue_id}", is_segment_name).values()
            lengths.update(size for size in sizes if 0 < size <= _SEGMENT_BYTES_MAX and size % unit_bytes == 0)
            if lengths.total() >= _SAMPLE_FILES:
                return lengths.most_common(1)[0][0]
    return lengths.most_common(1)[0][0] if lengths else 0
