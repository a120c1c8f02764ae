"""Shows parts of a store's files field by field (``formats.annotate``), also in damaged stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rucola.errors import FormatError, StoreDamagedError
from rucola.formats.annotate import (
    AnnotatedField,
    annotate_batch_unit,
    annotate_checkpoint,
    annotate_ext_unit,
    annotate_index_entry,
    annotate_index_header,
    annotate_index_slot,
    annotate_record,
    annotate_timer_checkpoint,
    annotate_timer_slot,
    annotate_timer_unit,
    annotate_unit,
)
from rucola.formats.batch_consume_queue import BATCH_UNIT_BYTES
from rucola.formats.consume_queue import UNIT, UNIT_BYTES
from rucola.formats.consume_queue_ext import is_address, position_of
from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, IndexHeader
from rucola.formats.layout import Layout
from rucola.formats.message import BLANK, RECORD_HEAD
from rucola.formats.segment_name import segment_start
from rucola.formats.timer import TIMER_SLOT, TIMER_UNIT_BYTES
from rucola.runtime.files import Files
from rucola.store.inspect.summary import batch_unit_place, ext_file, log_file, queue_file
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.multi_path import log_directories
from rucola.store.places import hold_store
from rucola.store.verify.index import index_geometry


@dataclass(frozen=True)
class Dump:
    """Part of one file. Positions of fields are positions in the file."""

    path: str
    title: str
    fields: list[AnnotatedField]


class Hexdump:
    """Decodes parts of the store in ``root``.

    Args:
        commit_log_path: the directory of the log if it is not in the store; several directories are separated by `,`.

    All methods raise ``StoreDamagedError`` if the requested position does not exist. They raise this error or
    ``FormatError`` if the file ends within the fixed fields of the requested structure.
    """

    def __init__(self, files: Files, root: str, commit_log_path: str | None = None) -> None:
        self._files = files
        self._commit_log_path = commit_log_path
        root = files.expand(root)
        self._root = hold_store(files, root, *log_directories(files, root, commit_log_path))

    def record(self, physical_offset: int) -> Dump:
        """Decodes the record at ``physical_offset``. For a truncated or damaged record, returns the fields that can be
        read, which include the fixed ones.
        """
        file = log_file(self._files, self._root, physical_offset, self._commit_log_path)
        if file is None:
            raise self._nowhere("commitlog", physical_offset, "no segment holds this physical offset")
        position = physical_offset - file.start
        left = file.size - position
        size, _ = BLANK.unpack(file.map.view, position) if left >= BLANK.size else (left, 0)
        # An impossible size is ignored: only the fixed fields are shown.
        end = position + (size if RECORD_HEAD.size <= size <= left else min(left, RECORD_HEAD.size))
        record = bytes(file.map.view[position:end])
        fields = _fields(file.path, annotate_record, record, position)
        return self._dump(file, f"record at physical offset {physical_offset}", fields)

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Dump:
        """Decodes the unit at ``queue_offset``; in a batch consume queue, the unit of the batch that contains this
        queue offset.
        """
        title = f"entry {queue_offset} of {topic}/{queue_id}"
        place = batch_unit_place(self._files, self._root, topic, queue_id, queue_offset)
        if place is not None:
            file, position = place
            unit = file.map.view[position : position + BATCH_UNIT_BYTES]
            fields = _fields(file.path, annotate_batch_unit, unit, position)
            return self._dump(file, title, fields)
        file, position = self._unit_place(topic, queue_id, queue_offset)
        unit = file.map.view[position : position + UNIT_BYTES]
        fields = _fields(file.path, annotate_unit, unit, position)
        return self._dump(file, title, fields)

    def ext_unit(self, topic: str, queue_id: int, queue_offset: int) -> Dump:
        """Decodes the extension unit of a queue entry."""
        file, position = self._unit_place(topic, queue_id, queue_offset)
        address = UNIT.unpack(file.map.view, position)[2]
        file.close()
        part = f"consumequeue_ext/{topic}/{queue_id}"
        if not is_address(address):
            raise self._nowhere(part, 0, f"entry {queue_offset} has no unit in the extension")
        position = position_of(address)
        ext = ext_file(self._files, self._root, topic, queue_id, position)
        if ext is None:
            raise self._nowhere(part, position, "no segment holds this position")
        at = position - ext.start
        fields = _fields(ext.path, annotate_ext_unit, ext.map.view[at:], at)
        return self._dump(ext, f"extension of entry {queue_offset} of {topic}/{queue_id}", fields)

    def _unit_place(self, topic: str, queue_id: int, queue_offset: int) -> tuple[MappedFile, int]:
        file = queue_file(self._files, self._root, topic, queue_id, queue_offset)
        if file is None:
            part = f"consumequeue/{topic}/{queue_id}"
            raise self._nowhere(part, queue_offset * UNIT_BYTES, f"no segment holds entry {queue_offset}")
        return file, queue_offset * UNIT_BYTES - file.start

    def checkpoint(self) -> Dump:
        """Decodes the file ``checkpoint``."""
        path = f"{self._root}/checkpoint"
        content = self._files.read_file(path)
        if content is None:
            raise self._nowhere("checkpoint", 0, "there is no such file")
        return Dump(path, "checkpoint", _fields(path, annotate_checkpoint, content))

    def timer_unit(self, position: int) -> Dump:
        """Decodes the unit at ``position`` of the timer log."""
        directory = f"{self._root}/timerlog"
        starts = [start for start in map(segment_start, self._files.list_files(directory)) if start is not None]
        start = max((start for start in starts if start <= position), default=-1)
        path = f"{directory}/{start:020d}"
        if start < 0 or position - start + TIMER_UNIT_BYTES > self._files.size(path):
            raise self._nowhere("timerlog", position, "no segment holds this position")
        data = self._files.read_at(path, position - start, TIMER_UNIT_BYTES)
        return Dump(path, f"timer log unit at {position}", _fields(path, annotate_timer_unit, data, position - start))

    def timer_slot(self, step: int) -> Dump:
        """Decodes the slot of the timer wheel for time step ``step``, the time since the epoch in units of
        ``timerPrecisionMs`` (by default, seconds).
        """
        path = f"{self._root}/timerwheel"
        slots = self._files.size(path) // TIMER_SLOT.size if self._files.exists(path) else 0
        if not slots:
            raise self._nowhere("timerwheel", 0, "there is no such file")
        position = step % slots * TIMER_SLOT.size
        data = self._files.read_at(path, position, TIMER_SLOT.size)
        return Dump(path, f"slot of step {step}", _fields(path, annotate_timer_slot, data, position))

    def timer_checkpoint(self) -> Dump:
        """Decodes the file ``config/timercheck``."""
        path = f"{self._root}/config/timercheck"
        content = self._files.read_file(path)
        if content is None:
            raise self._nowhere("config/timercheck", 0, "there is no such file")
        return Dump(path, "timer checkpoint", _fields(path, annotate_timer_checkpoint, content))

    def index_header(self, name: str) -> Dump:
        """Decodes the header of an index file."""
        file = self._index_file(name)
        return self._dump(file, f"header of index file {name}", annotate_index_header(file.map.view))

    def index_slot(self, name: str, number: int) -> Dump:
        """Decodes a slot of an index file."""
        file = self._index_file(name)
        slots, _ = self._geometry(file)
        position = INDEX_HEADER.size + INDEX_SLOT.size * number
        data = self._piece(file, INDEX_SLOT, position, number, slots)
        return self._dump(file, f"slot {number} of index file {name}", annotate_index_slot(data, position))

    def index_entry(self, name: str, number: int) -> Dump:
        """Decodes an entry of an index file."""
        file = self._index_file(name)
        slots, entries = self._geometry(file)
        position = INDEX_HEADER.size + INDEX_SLOT.size * slots + INDEX_ENTRY.size * number
        data = self._piece(file, INDEX_ENTRY, position, number, entries)
        begin_ms = IndexHeader.decode(file.map.view).begin_timestamp_ms
        return self._dump(file, f"entry {number} of index file {name}", annotate_index_entry(data, begin_ms, position))

    def _index_file(self, name: str) -> MappedFile:
        path = f"{self._root}/index/{name}"
        if "/" in name or not self._files.exists(path):
            raise self._nowhere(f"index/{name}", 0, "there is no such file")
        size = self._files.size(path)
        if size < INDEX_HEADER.size:
            raise self._nowhere(f"index/{name}", size, "the file ends within its header")
        return MappedFile(self._files, path, 0, size, False, 0)

    def _geometry(self, file: MappedFile) -> tuple[int, int]:
        geometry = index_geometry(file)
        if geometry is None:
            raise StoreDamagedError(
                file.path, 0, "its numbers of slots and entries cannot be determined", "inspect the header instead"
            )
        return geometry

    def _piece(self, file: MappedFile, layout: Layout, position: int, number: int, count: int) -> bytes:
        if not 0 <= number < count:
            raise StoreDamagedError(file.path, 0, f"no item {number}: there are {count}", "give a smaller number")
        return bytes(file.map.view[position : position + layout.size])

    def _dump(self, file: MappedFile, title: str, fields: list[AnnotatedField]) -> Dump:
        file.close()
        return Dump(file.path, title, fields)

    def _nowhere(self, part: str, position: int, problem: str) -> StoreDamagedError:
        return StoreDamagedError(f"{self._root}/{part}", position, problem, "see rucola store ls and rucola store info")


def _fields(path: str, annotate: Callable[..., list[AnnotatedField]], *content: Any) -> list[AnnotatedField]:
    """Calls ``annotate``; its errors name the file."""
    try:
        return annotate(*content)
    except FormatError as error:
        raise FormatError(error.what, error.position, error.expected, error.got, path) from error
