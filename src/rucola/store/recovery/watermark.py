"""The file ``rucola-watermark``: the offsets up to which data is known to be synced. RocketMQ's ``checkpoint`` is in
the same directory.

RocketMQ ignores the watermark. With the watermark, recovery starts from offsets instead of comparing times, and can
tell damage from the end of the log: a bad record below ``flushed_offset`` is damage; a bad record above it was torn by
a crash.

Writes alternate between two slots of 512 bytes, so that one slot is complete at any moment. A slot begins with the 48
bytes of ``WATERMARK_SLOT``, followed by their CRC-32.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from struct import Struct

from rucola.formats.checksum import crc32
from rucola.formats.layout import Field, Layout
from rucola.runtime.files import Files
from rucola.runtime.logs import event

_log = logging.getLogger(__name__)
_CRC = Struct(">I")
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
_BODY = WATERMARK_SLOT.struct


@dataclass(frozen=True)
class Watermark:
    """The fields of a slot; ``WATERMARK_SLOT`` describes them."""

    flushed_offset: int
    queues_offset: int
    end_offset: int = -1
    queue_count: int = 0
    later_files: int = 0

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
            slot = content[start : start + _BODY.size + _CRC.size]
            if len(slot) < _BODY.size + _CRC.size or slot[:8] != _MAGIC:
                continue
            if _CRC.unpack_from(slot, _BODY.size)[0] != crc32(slot[: _BODY.size]):
                continue
            _, sequence, flushed, queues, end, later_files, count = _BODY.unpack_from(slot)
            if best is None or sequence > self._sequence:
                self._sequence, best = sequence, Watermark(flushed, queues, end, count, later_files)
        if best is None:
            event(_log, logging.WARNING, "watermark cannot be read, whole log is checked", path=self.path)
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
        slot = (body + _CRC.pack(crc32(body))).ljust(_SLOT_BYTES, b"\0")
        if not self._files.exists(self.path):
            self._files.replace_file(self.path, bytes(2 * _SLOT_BYTES))
        self._files.write_at(self.path, self._sequence % 2 * _SLOT_BYTES, slot)
        self._written = watermark
