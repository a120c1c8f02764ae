"""Reads the commit log by plain slicing, for comparison with the store; shares no code with the package.

A record is accepted only if everything in it agrees: its lengths add up, it lies at the physical offset stored in it,
and the checksums of its body and, if present, of the whole record are right.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import Struct

MAGICS = {-626843481: 1, -626843477: 2}
BLANK = -875286124
_HEAD = Struct(">iiiiiqqiq")
_CRC_TAG = b"__CRC32#\x01"
_CRC_BYTES = len(_CRC_TAG) + 11


@dataclass(frozen=True)
class PlainRecord:
    """One record; ``sound`` says whether its checksums hold."""

    physical_offset: int
    data: bytes
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    body: bytes
    properties_text: bytes
    sound: bool

    @property
    def queued(self) -> bool:
        """Whether the message is in a queue: half and rolled back messages are in none."""
        return self.sys_flag & 12 in (0, 8)

    @cached_property
    def properties(self) -> dict[bytes, bytes]:
        pairs = (pair.partition(b"\x01") for pair in self.properties_text.split(b"\x02"))
        return {name: value for name, separator, value in pairs if separator}

    @property
    def keys(self) -> set[bytes]:
        """Keys by which the message can be found; a rolled back message has none."""
        names = [self.properties.get(b"UNIQ_KEY", b""), *self.properties.get(b"KEYS", b"").split(b" ")]
        return set() if self.sys_flag & 12 == 12 else {name for name in names if name}

    @property
    def light_queues(self) -> list[str]:
        """Names of the light queues that also contain the message. A message pulled from them has the offset in its own
        queue.
        """
        return [name for name in self.properties.get(b"INNER_MULTI_DISPATCH", b"").decode().split(",") if name]


@dataclass(frozen=True)
class PlainLog:
    """All records, in order, found by adding each record's size to its position.

    Attributes:
        end: position after the last record; the bytes there are neither a record nor a blank.
    """

    records: list[PlainRecord]
    end: int

    @property
    def sound_end(self) -> int:
        """Position of the first record with wrong checksums; if all checksums are right, the end of the last record."""
        return next((record.physical_offset for record in self.records if not record.sound), self.end)


def read_log(segments: dict[str, bytes], segment_bytes: int) -> PlainLog:
    """Walks through segments by name, from the oldest on; files that are not ``segment_bytes`` long are skipped."""
    starts = {int(name): data for name, data in segments.items() if name.isdigit() and len(data) == segment_bytes}
    records: list[PlainRecord] = []
    offset = min(starts, default=0)
    while (start := offset - offset % segment_bytes) in starts:
        data, position = starts[start], offset - start
        if len(data) - position < 8:
            break
        size, magic = _HEAD.unpack_from(data[position : position + _HEAD.size].ljust(_HEAD.size, b"\0"))[:2]
        if magic == BLANK and 8 <= size <= len(data) - position:
            if start + segment_bytes not in starts:
                break
            offset = start + segment_bytes
            continue
        record = _record(data[position : position + size], offset) if 0 < size <= len(data) - position else None
        if record is None:
            break
        records.append(record)
        offset += size
    return PlainLog(records, offset)


def read_directory(path: Path, segment_bytes: int) -> PlainLog:
    """Reads the log from the files in ``path``."""
    return read_log({file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}, segment_bytes)


def find_sound(data: bytes, start: int) -> list[PlainRecord]:
    """Returns all sound records at any position of a segment that begins at offset ``start``."""
    found, at = [], 4
    while (at := data.find(b"\xda\xa3\x20", at)) >= 0:
        position = at - 4
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        record = _record(data[position : position + size], start + position) if 0 < size <= len(data) else None
        if record is not None and record.sound:
            found.append(record)
        at += 1
    return found


def _record(data: bytes, physical_offset: int) -> PlainRecord | None:
    if len(data) < 91:
        return None
    size, magic, body_crc, queue_id, _, queue_offset, own_offset, sys_flag, _ = _HEAD.unpack_from(data)
    if magic not in MAGICS or size != len(data) or own_offset != physical_offset:
        return None
    at = 48 + (20 if sys_flag & 16 else 8)
    store_timestamp_ms = int.from_bytes(data[at : at + 8], "big", signed=True)
    at += 8 + (20 if sys_flag & 32 else 8) + 12
    parts = []
    for width in (4, MAGICS[magic], 2):
        length = int.from_bytes(data[at : at + width], "big", signed=True)
        at += width
        if length < 0 or at + length > size:
            return None
        parts.append(data[at : at + length])
        at += length
    if at != size:
        return None
    body, topic, properties = parts
    sound = not body or zlib.crc32(body) & 0x7FFFFFFF == body_crc
    if len(properties) >= _CRC_BYTES and properties[-_CRC_BYTES:].startswith(_CRC_TAG) and properties[-1] == 2:
        digits = b"%010d" % (zlib.crc32(data[:-_CRC_BYTES]) & 0x7FFFFFFF)
        sound = sound and properties[-11:-1] == digits[::-1]
    return PlainRecord(
        physical_offset,
        data,
        topic.decode("utf-8", "surrogateescape"),
        queue_id,
        queue_offset,
        sys_flag,
        store_timestamp_ms,
        body,
        properties,
        sound,
    )
