"""Finds messages in a store directory: by key through the index, else by a walk over the log, over damage too."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.message import MessageExt
from rucola.common.message_const import KEY_SEPARATOR
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.compression import decompress
from rucola.formats.index_file import IndexHeader, key_hash, query
from rucola.formats.message import decode_message, message_from_row
from rucola.runtime.files import Files
from rucola.store.log.mapped_file import MappedFile
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.verify.findings import Findings
from rucola.store.verify.index import index_geometry
from rucola.store.verify.log import LogCheck

_INDEX_SECOND_MS = 1000


@dataclass(frozen=True)
class MessageQuery:
    """What is looked for; what is None, or empty, does not matter.

    Attributes:
        key: one of KEYS, or UNIQ_KEY.
        body: searched in bodies as they were before compression.
        properties: name and what is searched in the value; a message without the property does not match.
        begin_ms: store time from which on.
        end_ms: store time up to which, itself with it.
    """

    topic: str | None = None
    queue_id: int | None = None
    key: str | None = None
    tag: str | None = None
    body: re.Pattern[bytes] | None = None
    properties: tuple[tuple[str, re.Pattern[str]], ...] = ()
    begin_ms: int = 0
    end_ms: int = (1 << 63) - 1

    def matches(self, message: MessageExt) -> bool:
        """Whether a message, its body as stored, is one of those looked for."""
        if self.topic is not None and message.topic != self.topic:
            return False
        if self.queue_id is not None and message.queue_id != self.queue_id:
            return False
        if not self.begin_ms <= message.store_timestamp_ms <= self.end_ms:
            return False
        if self.tag is not None and message.tags != self.tag:
            return False
        if self.key is not None and self.key not in [message.uniq_key, *(message.keys or "").split(KEY_SEPARATOR)]:
            return False
        for name, pattern in self.properties:
            value = message.properties.get(name)
            if value is None or pattern.search(value) is None:
                return False
        return self.body is None or self.body.search(unpacked_body(message)) is not None


def unpacked_body(message: MessageExt) -> bytes:
    """The body as it was before compression; as stored when it cannot be unpacked."""
    if message.sys_flag & MessageSysFlag.COMPRESSED:
        try:
            return decompress(message.body, message.sys_flag)
        except FormatError:
            return message.body
    return message.body


def has_index(store: OfflineStore, files: Files) -> bool:
    """Whether the store has index files."""
    return bool(files.list_files(f"{store.path}/index"))


def search_index(store: OfflineStore, files: Files, wanted: MessageQuery) -> Iterator[MessageExt]:
    """The messages with ``wanted.key`` that the index knows and everything else matches, in the order of the log.

    The index has hashes only: the key is compared with that of the record.
    """
    assert wanted.key is not None
    topics = store.topics() if wanted.topic is None else [wanted.topic]
    found: set[int] = set()
    for name in files.list_files(f"{store.path}/index"):
        path = f"{store.path}/index/{name}"
        file = MappedFile(files, path, 0, files.size(path), False, 0)
        geometry = index_geometry(file)
        if geometry is None:
            file.close()
            continue
        view = file.segment.view
        most = IndexHeader.decode(view).index_count
        for topic in topics:
            wanted_hash = key_hash(
                topic.encode("utf-8", "surrogateescape"), wanted.key.encode("utf-8", "surrogateescape")
            )
            # The file cuts times to seconds; the exact comparison follows with the record.
            begin_ms = wanted.begin_ms - _INDEX_SECOND_MS
            found.update(query(view, geometry[0], wanted_hash, most, begin_ms, wanted.end_ms))
        file.close()
    for physical_offset in sorted(found):
        record = store.record_at(physical_offset)
        if record is not None:
            message = decode_message(record, unpack=False)
            if wanted.matches(message):
                yield message


def search_log(
    store: OfflineStore, files: Files, wanted: MessageQuery, found: Findings, progress: Callable[[int], None]
) -> Iterator[MessageExt]:
    """All messages that match, in the order of the log.

    Args:
        found: gets the damage on the way.
        progress: called with the number of bytes walked over.
    """
    segments = [MappedFile(files, path, start, size, False, 0) for path, start, size in store.log_segments()]
    log = LogCheck(segments, found, unclean=False, live_end=store.end_offset(), progress=progress)
    columns = _Columns(wanted)
    for file, table, rows in log.batches():
        for row in range(rows):
            if columns.match(file, table, row * ROW_WIDTH):
                message = message_from_row(file.segment.view, table, row, unpack=False)
                if wanted.matches(message):
                    yield message
    for file in segments:
        file.close()


class _Columns:
    """What can be told from a row alone, before a message object is made of it."""

    def __init__(self, wanted: MessageQuery) -> None:
        self._wanted = wanted
        self._topic = None if wanted.topic is None else wanted.topic.encode("utf-8", "surrogateescape")
        self._tag = None if wanted.tag is None else wanted.tag.encode("utf-8", "surrogateescape")
        # Within one record a key lies as it is given, whether in KEYS or in UNIQ_KEY.
        self._key = None if wanted.key is None else wanted.key.encode("utf-8", "surrogateescape")

    def match(self, file: MappedFile, table: array[int], row: int) -> bool:
        wanted, view = self._wanted, file.segment.view
        if not wanted.begin_ms <= table[row + RecordColumn.STORE_TIMESTAMP] <= wanted.end_ms:
            return False
        if wanted.queue_id is not None and table[row + RecordColumn.QUEUE_ID] != wanted.queue_id:
            return False
        if self._topic is not None:
            at = table[row + RecordColumn.TOPIC_POS]
            if view[at : at + table[row + RecordColumn.TOPIC_LEN]] != self._topic:
                return False
        if self._tag is not None:
            at, length = table[row + RecordColumn.TAGS_POS], table[row + RecordColumn.TAGS_LEN]
            if length < 0 or view[at : at + length] != self._tag:
                return False
        if self._key is not None:
            at = table[row + RecordColumn.PROPERTIES_POS]
            return self._key in bytes(view[at : at + table[row + RecordColumn.PROPERTIES_LEN]])
        return True
