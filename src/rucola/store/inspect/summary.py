"""Collects facts about a store directory without reading the whole log."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.key_builder import is_light_queue
from rucola.errors import StoreDamagedError
from rucola.formats.batch_consume_queue import BATCH_UNIT_BYTES, decode_batch_unit
from rucola.formats.checkpoint import StoreCheckpoint
from rucola.formats.consume_queue import UNIT_BYTES
from rucola.formats.index_file import INDEX_HEADER, IndexHeader, is_index_name
from rucola.formats.light_queue import is_lite
from rucola.formats.segment_name import is_segment_name
from rucola.runtime.files import Files
from rucola.store.lite.lite_table import LiteColumns, read_table
from rucola.store.lite.lite_topics import DIRECTORY
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.multi_path import log_directories
from rucola.store.offline.offline_store import OfflineStore, OffsetRange
from rucola.store.places import hold_store
from rucola.store.recovery.watermark import FILE_NAME, Watermark, WatermarkFile
from rucola.store.verify.findings import Findings
from rucola.store.verify.index import index_geometry
from rucola.store.verify.log import load_segments

_QUEUES_OPEN_MAX = 32
"""Largest number of queues that are mapped at a time. Each queue needs several descriptors, and the number of
descriptors is limited.
"""


@dataclass(frozen=True)
class IndexInfo:
    """One index file. ``slots`` and ``entries_max`` are 0 if they cannot be determined."""

    name: str
    slots: int
    entries_max: int
    header: IndexHeader


@dataclass(frozen=True)
class StoreInfo:
    """The result of ``store_info``.

    Attributes:
        path: path of the directory.
        writer: the program that probably wrote the store last.
        size_bytes: total length of all files in bytes, including a log in another directory.
        min_offset: physical offset of the oldest byte of the log.
        end_offset: physical offset after the last whole record.
        segments: number of segments of the log.
        segment_bytes: length of a segment of the log in bytes; 0 if the log has no segments.
        topics: number of topics with a queue.
        queues: number of queues.
        queue_segment_bytes: length in bytes of a segment of a queue that is not a batch consume queue; 0 if there is
            no such segment.
        messages: number of messages in all queues; a message with entries in light queues counts once.
        lite_topics: number of lite topics that ever had a message, when their table was written.
        lite_queues: number of lite topics with a consume queue, as in RocketMQ; other counts leave them out.
        checkpoint: None if the file does not exist.
        watermark: None if no complete watermark was found; RocketMQ writes none.
        abort: whether the abort file exists; if so, the store is in use or was not stopped cleanly.
        lock_held: whether a process is using the store.
    """

    path: str
    writer: str
    size_bytes: int
    min_offset: int
    end_offset: int
    segments: int
    segment_bytes: int
    topics: int
    queues: int
    queue_segment_bytes: int
    messages: int
    lite_topics: int
    lite_queues: int
    index_files: list[IndexInfo]
    checkpoint: StoreCheckpoint | None
    watermark: Watermark | None
    abort: bool
    lock_held: bool


@dataclass(frozen=True)
class QueueInfo:
    """A queue with the store times of its first and last message. Both times are -1 if the queue is empty, or if the
    times were not requested.
    """

    range: OffsetRange
    first_timestamp_ms: int
    last_timestamp_ms: int

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.range.max_offset - self.range.min_offset


def store_info(store: OfflineStore, files: Files) -> StoreInfo:
    """Collects the facts about an open store."""
    root = hold_store(files, store.path)
    ranges = queue_ranges(store)
    segments = store.log_segments()
    checkpoint = files.read_file(f"{root}/checkpoint")
    return StoreInfo(
        path=root,
        writer=_writer(files, root),
        size_bytes=_directory_bytes(files, root)
        + sum(size for path, _, size in segments if not path.startswith(f"{root}/")),
        min_offset=store.min_offset(),
        end_offset=store.end_offset(),
        segments=len(segments),
        segment_bytes=segments[0][2] if segments else 0,
        topics=len({queue.topic for queue in ranges}),
        queues=len(ranges),
        queue_segment_bytes=_queue_segment_bytes(store, ranges),
        messages=sum(queue.max_offset - queue.min_offset for queue in ranges if not is_light_queue(queue.topic)),
        lite_topics=lite_topics(files, root),
        lite_queues=lite_queues(store),
        index_files=_index_files(files, f"{root}/index"),
        checkpoint=StoreCheckpoint.decode(checkpoint) if checkpoint is not None else None,
        watermark=WatermarkFile(files, root).read(),
        abort=files.exists(f"{root}/abort"),
        lock_held=files.lock_held(root),
    )


def queue_ranges(store: OfflineStore, topic: str | None = None) -> list[OffsetRange]:
    """Returns the range of every queue, or of every queue of one topic."""
    return [info.range for info in queue_infos(store, topic, times=False)]


def queue_infos(store: OfflineStore, topic: str | None = None, times: bool = True) -> list[QueueInfo]:
    """Returns the queues of ``topic``; without a topic, all queues but those of lite topics. Store times are read only
    if ``times`` is true.
    """
    infos: list[QueueInfo] = []
    # One look at the directories: with one for each topic, a store with thousands of topics would take minutes.
    names = {queue for queue in store.queue_names() if topic == queue[0] or (topic is None and not _is_lite(queue[0]))}
    for name, queue_id in sorted(names):
        queue = store.queue_range(name, queue_id)
        last = queue.max_offset - 1
        wanted = (queue.min_offset, last) if times and last >= queue.min_offset else ()
        stored = [_store_timestamp(store, name, queue_id, queue_offset) for queue_offset in wanted]
        infos.append(QueueInfo(queue, *(stored or (-1, -1))))
        if len(infos) % _QUEUES_OPEN_MAX == 0:
            store.release_queues()
    return infos


def lite_queues(store: OfflineStore) -> int:
    """Returns the number of lite topics that have a consume queue, as in RocketMQ."""
    return len({topic for topic, _ in store.queue_names() if _is_lite(topic)})


def _is_lite(topic: str) -> bool:
    return is_light_queue(topic) and is_lite(topic.encode("utf-8", "surrogateescape"))


def _store_timestamp(store: OfflineStore, topic: str, queue_id: int, queue_offset: int) -> int:
    for _, physical_offset, _, _ in store.units(topic, queue_id, queue_offset, queue_offset + 1):
        return store.store_timestamp(physical_offset)
    return -1


def _queue_segment_bytes(store: OfflineStore, ranges: list[OffsetRange]) -> int:
    for queue in ranges:
        for _, _, units in store.queue_files(queue.topic, queue.queue_id):
            return units * UNIT_BYTES
    return 0


def _index_files(files: Files, directory: str) -> list[IndexInfo]:
    infos = []
    for name, size in files.list_sizes(directory, is_index_name).items():
        if size >= INDEX_HEADER.size:
            file = MappedFile(files, f"{directory}/{name}", 0, size, False, 0)
            slots, entries_max = index_geometry(file) or (0, 0)
            infos.append(IndexInfo(name, slots, entries_max, IndexHeader.decode(file.map.view)))
            file.close()
    return infos


def lite_topics(files: Files, root: str) -> int:
    """Returns the number of lite topics that ever had a message, when their table was written; 0 without a table."""
    path = f"{root}/{DIRECTORY}/table"
    if not files.exists(path):
        return 0
    try:
        return read_table(files, path, LiteColumns()).names
    except StoreDamagedError:
        return 0


def _writer(files: Files, root: str) -> str:
    if files.exists(f"{root}/{FILE_NAME}"):
        return "Rucola"
    if files.exists(f"{root}/rocksdbstore"):
        return "RocketMQ 5.4 or later"
    if files.exists(f"{root}/timerwheel") or files.exists(f"{root}/compaction"):
        return "RocketMQ 5"
    return "RocketMQ"


def _directory_bytes(files: Files, path: str) -> int:
    total = sum(files.list_sizes(path).values())
    return total + sum(_directory_bytes(files, f"{path}/{name}") for name in files.list_directories(path))


def log_file(files: Files, root: str, physical_offset: int, commit_log_path: str | None = None) -> MappedFile | None:
    """Returns the segment of the log that holds ``physical_offset``, even if other parts of the log are damaged."""
    directory, *others = log_directories(files, root, commit_log_path)
    for file in load_segments(files, directory, Findings(root), others=others):
        if file.start <= physical_offset < file.end:
            return file
    return None


def queue_file(files: Files, root: str, topic: str, queue_id: int, queue_offset: int) -> MappedFile | None:
    """Returns the segment of a queue that contains the unit of entry ``queue_offset``."""
    return _file_at(files, f"{root}/consumequeue/{topic}/{queue_id}", queue_offset * UNIT_BYTES)


def ext_file(files: Files, root: str, topic: str, queue_id: int, position: int) -> MappedFile | None:
    """Returns the segment of a queue's extension that holds ``position``."""
    return _file_at(files, f"{root}/consumequeue_ext/{topic}/{queue_id}", position)


def batch_unit_place(
    files: Files, root: str, topic: str, queue_id: int, queue_offset: int
) -> tuple[MappedFile, int] | None:
    """Searches a batch consume queue for the unit of the batch that contains ``queue_offset``. Returns the segment with
    this unit, and the unit's position in the segment; None if there is no such unit.
    """
    directory = f"{root}/batchconsumequeue/{topic}/{queue_id}"
    for name, size in reversed(files.list_sizes(directory, is_segment_name).items()):
        file = MappedFile(files, f"{directory}/{name}", int(name), size, False, 0)
        for position in range(0, size - size % BATCH_UNIT_BYTES, BATCH_UNIT_BYTES):
            unit = decode_batch_unit(file.map.view, position)
            if unit.valid and unit.base_offset <= queue_offset < unit.next_offset:
                return file, position
        file.close()
    return None


def _file_at(files: Files, directory: str, position: int) -> MappedFile | None:
    for name, size in files.list_sizes(directory, is_segment_name).items():
        if int(name) <= position < int(name) + size:
            return MappedFile(files, f"{directory}/{name}", int(name), size, False, 0)
    return None
