"""Finds messages in a store directory: by key through the index, or in a walk over the log that skips damage."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.kernel_columns import (
    RECORD_BODY_LEN,
    RECORD_BODY_POS,
    RECORD_LITE_LEN,
    RECORD_LITE_POS,
    RECORD_QUEUE_ID,
    RECORD_STORE_TIMESTAMP,
    RECORD_SYS_FLAG,
    RECORD_TAGS_LEN,
    RECORD_TAGS_POS,
    RECORD_TOPIC_LEN,
    RECORD_TOPIC_POS,
)
from rucola.common.message_const import KEY_SEPARATOR, KEYS, UNIQ_KEY
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.compression import decompress
from rucola.formats.index_file import IndexHeader, Limits, is_index_name, key_hash, query
from rucola.formats.light_queue import lite_topic
from rucola.formats.lite import QUEUE_OFFSET_MAX, find_lite
from rucola.formats.properties import decode_properties
from rucola.runtime.files import Files
from rucola.store.log.mapped_file import MappedFile
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.offline.rows import SegmentRows
from rucola.store.places import hold_store
from rucola.store.verify.findings import Findings
from rucola.store.verify.index import index_geometry
from rucola.store.verify.log import LogCheck

_INDEX_SECOND_MS = 1000
_LAST_MS = (1 << 63) - 1


@dataclass(frozen=True)
class MessageQuery:
    """Search criteria. A criterion that is None or empty matches everything.

    Attributes:
        key: one of the message's KEYS, or its UNIQ_KEY.
        body: bytes that the decompressed body must contain.
        properties: maps property names to texts that the values must contain; a message without the property does not
            match.
        begin_ms: earliest store time.
        end_ms: latest store time, inclusive.
        lite_topic: the lite topic of the message's own topic in which it is.
    """

    topic: str | None = None
    queue_id: int | None = None
    key: str | None = None
    tag: str | None = None
    body: re.Pattern[bytes] | None = None
    properties: tuple[tuple[str, re.Pattern[str]], ...] = ()
    begin_ms: int = 0
    end_ms: int = (1 << 63) - 1
    lite_topic: str | None = None

    def choose(self, view: memoryview, table: array[int], rows: int) -> list[int]:
        """Returns the indices of the matching rows among the first ``rows`` rows. Positions in the rows refer to
        ``view``.
        """
        topic = None if self.topic is None else self.topic.encode("utf-8", "surrogateescape")
        tag = None if self.tag is None else self.tag.encode("utf-8", "surrogateescape")
        lite = None if self.lite_topic is None else self.lite_topic.encode("utf-8", "surrogateescape")
        if lite is not None:
            find_lite(view, table, rows, QUEUE_OFFSET_MAX)
        by_text = self.key is not None or bool(self.properties)
        any_time = self.begin_ms <= 0 and self.end_ms >= _LAST_MS
        chosen = []
        for row in range(rows):
            base = row * ROW_WIDTH
            if not any_time and not self.begin_ms <= table[base + RECORD_STORE_TIMESTAMP] <= self.end_ms:
                continue
            if self.queue_id is not None and table[base + RECORD_QUEUE_ID] != self.queue_id:
                continue
            if topic is not None:
                at = table[base + RECORD_TOPIC_POS]
                if view[at : at + table[base + RECORD_TOPIC_LEN]] != topic:
                    continue
            if lite is not None:
                at, length = table[base + RECORD_LITE_POS], table[base + RECORD_LITE_LEN]
                if length < 0 or view[at : at + length] != lite:
                    continue
            if tag is not None:
                at, length = table[base + RECORD_TAGS_POS], table[base + RECORD_TAGS_LEN]
                if length < 0 or view[at : at + length] != tag:
                    continue
            if by_text and not self._has_text(view, table, base):
                continue
            if self.body is not None:
                at = table[base + RECORD_BODY_POS]
                body: memoryview | bytes = view[at : at + table[base + RECORD_BODY_LEN]]
                if table[base + RECORD_SYS_FLAG] & MessageSysFlag.COMPRESSED:
                    body = unpacked_body(bytes(body), table[base + RECORD_SYS_FLAG])
                if self.body.search(body) is None:
                    continue
            chosen.append(row)
        return chosen

    def _has_text(self, view: memoryview, table: array[int], base: int) -> bool:
        """Whether a record has the wanted key and properties."""
        at = table[base + RecordColumn.PROPERTIES_POS]
        text = bytes(view[at : at + table[base + RecordColumn.PROPERTIES_LEN]])
        # A record contains its keys literally, in KEYS or UNIQ_KEY.
        if self.key is not None and self.key.encode("utf-8", "surrogateescape") not in text:
            return False
        values = decode_properties(text)
        if self.key is not None and self.key not in [
            values.get(UNIQ_KEY),
            *values.get(KEYS, "").split(KEY_SEPARATOR),
        ]:
            return False
        return all(name in values and pattern.search(values[name]) for name, pattern in self.properties)


def unpacked_body(body: bytes, sys_flag: int) -> bytes:
    """Returns the decompressed body, or the stored body if it cannot be decompressed."""
    if sys_flag & MessageSysFlag.COMPRESSED:
        try:
            return decompress(body, sys_flag)
        except FormatError:
            return body
    return body


def has_index(store: OfflineStore, files: Files) -> bool:
    """Whether the store has index files."""
    return any(map(is_index_name, files.list_files(f"{store.path}/index")))


def search_index(store: OfflineStore, files: Files, wanted: MessageQuery) -> Iterator[SegmentRows]:
    """Yields the messages that have ``wanted.key`` according to the index and match all other criteria, in log order.

    The index holds hashes only, so the key is compared with the record's keys.
    """
    assert wanted.key is not None
    topics = store.topics() if wanted.topic is None else [wanted.topic]
    for physical_offset in index_hits(store, files, topics, wanted.key, wanted.begin_ms, wanted.end_ms):
        rows = store.rows_at(physical_offset)
        if rows is not None and wanted.choose(rows.view, rows.table, 1):
            yield rows


def search_lite(store: OfflineStore, wanted: MessageQuery) -> Iterator[SegmentRows] | None:
    """Yields the messages of ``wanted.lite_topic`` of ``wanted.topic`` that match all other criteria, in log order.

    Returns:
        The messages; None if the units of lite topics do not tell them all.
    """
    assert wanted.topic is not None and wanted.lite_topic is not None
    view = store.lite_view()
    if view is None:
        return None
    try:
        topic = lite_topic(f"{wanted.topic}${wanted.lite_topic}".encode("utf-8", "surrogateescape"))
        places = view.records([topic]) if view.covered_to >= store.end_offset() else None
    finally:
        view.close()
    if places is None:
        return None
    found = (store.rows_at(physical_offset) for physical_offset, _ in places)
    return (rows for rows in found if rows is not None and wanted.choose(rows.view, rows.table, 1))


def index_hits(
    store: OfflineStore, files: Files, topics: Iterable[str], key: str, begin_ms: int = 0, end_ms: int = _LAST_MS
) -> list[int]:
    """Returns the physical offsets that the index has for ``key`` in ``topics``, in log order, including those of other
    keys with the same hash.

    Args:
        begin_ms: earliest store time.
        end_ms: latest store time, inclusive.
    """
    encoded = key.encode("utf-8", "surrogateescape")
    hashes = {key_hash(topic.encode("utf-8", "surrogateescape"), encoded) for topic in topics}
    found: set[int] = set()
    for header, slots, view in _index_files(store, files):
        for wanted_hash in hashes:
            # An index file truncates times to seconds, so the query begins one second earlier. The exact times are in
            # the records.
            limits = Limits(header.index_count, begin_ms - _INDEX_SECOND_MS, end_ms)
            found.update(query(view, slots, wanted_hash, limits))
    return sorted(found)


def indexed_span(store: OfflineStore, files: Files) -> tuple[int, int] | None:
    """Returns the physical offsets of the first and the last record in the index; None if the index has no entries.

    Some entries of the last record may be missing while a broker writes them.
    """
    headers = [header for header, _, _ in _index_files(store, files)]
    if not headers:
        return None
    return min(one.begin_physical_offset for one in headers), max(one.end_physical_offset for one in headers)


def _index_files(store: OfflineStore, files: Files) -> Iterator[tuple[IndexHeader, int, memoryview]]:
    """Yields header, number of slots and content of each index file that has entries."""
    hold_store(files, store.path)
    for name, size in files.list_sizes(f"{store.path}/index", is_index_name).items():
        file = MappedFile(files, f"{store.path}/index/{name}", 0, size, False, 0)
        geometry = index_geometry(file)
        if geometry is not None:
            yield IndexHeader.decode(file.map.view), geometry[0], file.map.view
        file.close()


def search_log(
    store: OfflineStore, files: Files, wanted: MessageQuery, found: Findings, progress: Callable[[int], None]
) -> Iterator[SegmentRows]:
    """Yields all matching messages, in log order.

    Args:
        found: collects the damage found on the way.
        progress: called with the number of bytes walked.
    """
    segments = [MappedFile(files, path, start, size, False, 0) for path, start, size in store.log_segments()]
    log = LogCheck(
        segments, found, unclean=False, live_end=store.end_offset(), progress=progress, stretches=store.log.stretches
    )
    for file, table, rows in log.batches():
        view = file.map.view
        chosen = wanted.choose(view, table, rows)
        if chosen:
            yield SegmentRows(view, table, chosen)
    for file in segments:
        file.close()
