"""The file ``rucola-watermark``: the offsets up to which data is known to be synced. RocketMQ's ``checkpoint`` is in
the same directory.

RocketMQ ignores the watermark. With the watermark, recovery starts from offsets instead of comparing times, and can
tell damage from the end of the log: a bad record below ``flushed_offset`` is damage; a bad record above it was torn by
a crash.

Writes alternate between two slots of 512 bytes, so that one slot is complete at any moment. A slot begins with the 48
bytes of ``WATERMARK_SLOT``, followed by their CRC-32. At byte 52 follows the number of writer marks (int32), then the
marks (``WRITER_MARK``), oldest first: who wrote the log from which physical offset on. The last 4 bytes of the slot are
the CRC-32 of all bytes before them. In a slot without marks they are 0, as older versions of Rucola write it; who wrote
the log is then unknown.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from rucola.formats.checksum import crc32
from rucola.formats.layout import Field, Layout
from rucola.runtime.files import Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
_CRC = Struct(">I")
_COUNT = Struct(">i")
_MAGIC = b"RUCOLAW1"
_SLOT_BYTES = 512
FILE_NAME = "rucola-watermark"

WATERMARK_SLOT = Layout(
    "watermark slot",
    48,
    Field("magic", "8s", "`RUCOLAW1`."),
    Field(
        "sequence",
        "q",
        "Sequence number of this write. If both slots have correct CRCs, the slot with the higher number is valid.",
    ),
    Field("flushed_offset", "q", "Physical offset up to which the commit log is synced; always the end of a record."),
    Field("queues_offset", "q", "Physical offset below which the queue and index entries of all records are synced."),
    Field("end_offset", "q", "End of the log at a clean stop; -1 while the store is in use."),
    Field(
        "later_files", "i", "Number of files of all queues at a clean stop, not counting the first file of each queue."
    ),
    Field("queue_count", "i", "Number of queues that had a file at a clean stop."),
)
WRITER_MARK = Layout(
    "writer mark",
    16,
    Field("physical_offset", "q", "Physical offset from which on this writer wrote the log; the border of a record."),
    Field("writer", "q", "1: Rucola, every record with a checksum (`__CRC32#`). 0 and all others: unknown."),
)
_BODY = WATERMARK_SLOT.struct
_COUNT_AT = _BODY.size + _CRC.size
_MARKS_AT = _COUNT_AT + _COUNT.size
_SLOT_CRC_AT = _SLOT_BYTES - _CRC.size
WRITER_MARKS_MAX = (_SLOT_CRC_AT - _MARKS_AT) // WRITER_MARK.size
"""Largest number of writer marks in a slot."""


class Writer(IntEnum):
    """Who wrote a stretch of the log."""

    UNKNOWN = 0
    RUCOLA = 1
    """Rucola, with ``enabledAppendPropCRC``."""


class WriterMark(NamedTuple):
    """From ``physical_offset`` on, ``writer`` (a ``Writer``) wrote the log."""

    physical_offset: int
    writer: int


@dataclass(frozen=True)
class Watermark:
    """The fields of a slot; ``WATERMARK_SLOT`` describes them.

    Attributes:
        writers: the writer marks, oldest first, at most ``WRITER_MARKS_MAX``.
    """

    flushed_offset: int
    queues_offset: int
    end_offset: int = -1
    queue_count: int = 0
    later_files: int = 0
    writers: tuple[WriterMark, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether a clean stop wrote this watermark."""
        return self.end_offset >= 0


class WatermarkFile:
    """Reads and writes the file ``rucola-watermark``. Only one thread at a time may call ``write``."""

    def __init__(self, files: Files, root: str) -> None:
        self.path = f"{root}/{FILE_NAME}"
        self._files = files
        self._sequence = 0
        self._written: Watermark | None = None

    def read(self) -> Watermark | None:
        """Returns the newest complete slot; None if the file does not exist or has no complete slot."""
        content = self._files.read_file(self.path)
        if content is None:
            return None
        best: Watermark | None = None
        for start in (0, _SLOT_BYTES):
            slot = content[start : start + _SLOT_BYTES]
            if len(slot) < _SLOT_BYTES or slot[:8] != _MAGIC:
                continue
            if _CRC.unpack_from(slot, _BODY.size)[0] != crc32(slot[: _BODY.size]):
                continue
            writers = _decode_writers(slot)
            if writers is None:
                continue
            _, sequence, flushed, queues, end, later_files, count = _BODY.unpack_from(slot)
            if best is None or sequence > self._sequence:
                self._sequence, best = sequence, Watermark(flushed, queues, end, count, later_files, writers)
        if best is None:
            event(logger, logging.WARNING, "watermark cannot be read, whole log is checked", path=self.path)
        return best

    def write(self, watermark: Watermark) -> None:
        """Makes ``watermark`` durable; does nothing if it equals the one written last.

        Raises:
            DiskError: the watermark may not have reached the disk; the previous watermark is still on the disk.
        """
        if watermark == self._written:
            return
        self._sequence += 1
        body = _BODY.pack(
            _MAGIC,
            self._sequence,
            watermark.flushed_offset,
            watermark.queues_offset,
            watermark.end_offset,
            watermark.later_files,
            watermark.queue_count,
        )
        slot = _with_writers(body + _CRC.pack(crc32(body)), watermark.writers)
        if not self._files.exists(self.path):
            self._files.replace_file(self.path, bytes(2 * _SLOT_BYTES))
        self._files.write_at(self.path, self._sequence % 2 * _SLOT_BYTES, slot)
        self._written = watermark


def _with_writers(head: bytes, writers: tuple[WriterMark, ...]) -> bytes:
    """Returns the slot that begins with ``head``."""
    if not writers:
        return head.ljust(_SLOT_BYTES, b"\0")
    marks = b"".join(WRITER_MARK.struct.pack(*mark) for mark in writers)
    slot = (head + _COUNT.pack(len(writers)) + marks).ljust(_SLOT_CRC_AT, b"\0")
    return slot + _CRC.pack(crc32(slot))


def _decode_writers(slot: bytes) -> tuple[WriterMark, ...] | None:
    """Returns the writer marks of a slot; None if they are damaged."""
    (count,), (crc,) = _COUNT.unpack_from(slot, _COUNT_AT), _CRC.unpack_from(slot, _SLOT_CRC_AT)
    if count == crc == 0:
        return ()
    if crc != crc32(slot[:_SLOT_CRC_AT]) or not 0 < count <= WRITER_MARKS_MAX:
        return None
    places = range(_MARKS_AT, _MARKS_AT + count * WRITER_MARK.size, WRITER_MARK.size)
    return tuple(WriterMark(*WRITER_MARK.struct.unpack_from(slot, place)) for place in places)
