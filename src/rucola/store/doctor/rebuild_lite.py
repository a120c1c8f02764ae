"""The lite topics of a rebuild: their units come from the log, in its order; what no record tells comes from the
directory of before, as far as it can be read.

No record tells which messages were deleted, and the next offset of a topic whose messages expired. So each name keeps
its start and its next offset (``store.lite.lite_topics``). Without them, as in a store of RocketMQ, deleted messages
are back, and the lite topics are those that a broker would build.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from rucola.errors import StoreDamagedError
from rucola.formats.consume_queue import UNIT_BYTES
from rucola.formats.light_queue import lite_name, lite_topic
from rucola.runtime.files import Files
from rucola.store.doctor.rebuild_job import RebuildJob
from rucola.store.lite.lite_names import LiteNames
from rucola.store.lite.lite_table import LiteColumns, read_table
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.log.log_reader import LogReader
from rucola.store.log.segment_list import SegmentList
from rucola.store.queue.multi_dispatch import LightEntry
from rucola.store.recovery.lite_recovery import view_lite

_ENTRY = Struct(">Bqqiqq")
"""Length of the name, queue offset, physical offset, size, tags code, store time in ms; then the name."""
_READ_BYTES = 1 << 20
Counters = dict[bytes, tuple[int, int]]
"""First offset that is not deleted, and next offset, by name."""


def encode_entry(entry: LightEntry) -> bytes:
    """Returns an entry of a lite topic as ``build_lite`` reads it."""
    name = lite_name(entry.name)
    return _ENTRY.pack(len(name), *entry[1:]) + name


def build_lite(files: Files, job: RebuildJob, scans: Sequence[str], target: str) -> int:
    """Writes the directory of the lite topics below ``target``; returns the number of lite topics.

    Args:
        scans: paths of the files with the entries of all segments, in the order of the log.
        job: its ``lite_sources`` are the stores whose counters are kept.
        target: a directory without lite topics.

    Raises:
        DiskError: a file cannot be read or written.
    """
    log = LogReader(SegmentList(files, f"{job.root}/commitlog", 1, writable=False))
    topics = LiteTopics(files, target, job.config.consume_queue_segment_bytes // UNIT_BYTES, log)
    files.make_directory(f"{topics.path}/units")
    files.replace_file(f"{topics.path}/names", b"")
    for path in scans:
        for topic, place, tags_code, store_time_ms in _entries(files, path):
            topics.put(topic, place, tags_code, store_time_ms)
    for source in job.lite_sources:
        for name, (start, following) in counters_of(files, source, log).items():
            topics.keep_counters(name, start, following)
    topics.finish()
    count = len(topics.names)
    topics.close()
    return count


def counters_of(files: Files, root: str, log: LogReader) -> Counters:
    """Returns what the store ``root`` knows of its lite topics: if the units are damaged, what the table says; if that
    is damaged, too, nothing.
    """
    topics = LiteTopics(files, root, 1, log, writable=False)
    names, columns = topics.names, topics.columns
    try:
        view_lite(topics, files)
    except StoreDamagedError:
        names, columns = LiteNames(files, f"{topics.path}/names", 0), LiteColumns()
        try:
            names.load()
            read_table(files, topics.table_path, columns)
        except StoreDamagedError:
            return {}
    finally:
        topics.close()
    return {
        names.name(name_id): (columns.starts[name_id], columns.nexts[name_id])
        for name_id in range(min(len(names), len(columns)))
        if columns.nexts[name_id]
    }


def _entries(files: Files, path: str) -> Iterator[tuple[bytes, tuple[int, int, int], int, int]]:
    """Yields light queue, place, tags code and store time of each entry in a file."""
    position, size, content = 0, files.size(path), b""
    while position < size:
        content += files.read_at(path, position, min(_READ_BYTES, size - position))
        position = min(position + _READ_BYTES, size)
        at = 0
        while at + _ENTRY.size <= len(content):
            length, queue_offset, physical_offset, entry_bytes, tags_code, stored_ms = _ENTRY.unpack_from(content, at)
            end = at + _ENTRY.size + length
            if end > len(content):
                break
            place = queue_offset, physical_offset, entry_bytes
            yield lite_topic(content[at + _ENTRY.size : end]), place, tags_code, stored_ms
            at = end
        content = content[at:]
