"""Decodes the files of a store for display: position, bytes, name, value and meaning of each field.

The fields come from the layouts in the other modules of this package; the values read determine the variable parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import calcsize

from rucola.common.hosts import host_text
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.batch_consume_queue import BATCH_UNIT
from rucola.formats.checkpoint import CHECKPOINT
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue import PRE_FILL_UNIT, UNIT
from rucola.formats.consume_queue_ext import EXT_UNIT, decode_ext_unit, is_address, position_of
from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rucola.formats.layout import Layout
from rucola.formats.message import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_HEAD, RECORD_MIDDLE
from rucola.formats.timer import (
    MAGIC_DELETE,
    MAGIC_ROLL,
    TIMER_BLANK,
    TIMER_BLANK_MAGIC,
    TIMER_CHECKPOINT,
    TIMER_SLOT,
    TIMER_UNIT,
    TIMER_UNIT_BYTES,
)

Bytes = bytes | bytearray | memoryview
_MAGICS = {MAGIC_V1: "record, version 1", MAGIC_V2: "record, version 2", MAGIC_BLANK: "end of file"}
_FLAGS = (
    (MessageSysFlag.COMPRESSED, "COMPRESSED"),
    (0x002, "MULTI_TAGS"),
    (MessageSysFlag.BORN_HOST_V6, "BORNHOST_V6"),
    (MessageSysFlag.STORE_HOST_V6, "STOREHOST_V6"),
    (0x040, "NEED_UNWRAP"),
    (0x080, "INNER_BATCH"),
)
_TRANSACTIONS = {0x4: "PREPARED", 0x8: "COMMIT", 0xC: "ROLLBACK"}
_COMPRESSIONS = {0x100: "LZ4", 0x200: "ZSTD"}


@dataclass(frozen=True, slots=True)
class AnnotatedField:
    """One field.

    Attributes:
        position: position of the field's first byte, plus the caller's ``base``.
        data: the field's bytes.
        name: the field's name.
        value: a number or text; None if the bytes alone are shown.
        meaning: explanation of the value, or empty. Always empty if the field's name ends with ``timestamp_ms``: the
            value of such a field is a time in milliseconds.
    """

    position: int
    data: bytes
    name: str
    value: int | str | None
    meaning: str = ""


def annotate_layout(layout: Layout, data: Bytes, position: int = 0, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of ``layout`` at ``position`` in ``data``; ``base`` is added to all positions.

    Raises:
        FormatError: ``data`` is too short.
    """
    if position + layout.size > len(data):
        got = f"{max(len(data) - position, 0)} bytes"
        raise FormatError(layout.what, base + position, f"{layout.size} bytes", got)
    fields, at = [], position
    for field, value in zip(layout.fields, layout.unpack(data, position), strict=True):
        size = calcsize(">" + field.code)
        fields.append(AnnotatedField(base + at, bytes(data[at : at + size]), field.name, value))
        at += size
    return fields


def annotate_record(record: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of the commit-log record, or end-of-file record, at the start of ``record``.

    For a damaged record, returns every field that can be read, and a last field ``rest`` that says where decoding
    stopped.

    Args:
        base: position to show for the first byte.

    Raises:
        FormatError: ``record`` is shorter than the fixed fields at the beginning of a record.
    """
    if len(record) >= BLANK.size and BLANK.unpack(record)[1] == MAGIC_BLANK:
        space, magic = annotate_layout(BLANK, record, 0, base)
        return [space, _with(magic, "end of file: the next record is in the next segment")]
    reader = _Reader(record, base)
    for field in reader.layout(RECORD_HEAD):
        meaning = ""
        if field.name == "magic":
            meaning = _MAGICS.get(int(field.value or 0), "not the magic code of a record")
        elif field.name == "sys_flag":
            meaning = sys_flag_text(int(field.value or 0))
        reader.fields.append(_with(field, meaning))
    try:
        _annotate_variable_part(reader)
    except FormatError as error:
        reader.rest(f"not a record: expected {error.expected}, got {error.got}")
    else:
        reader.rest("the lengths do not add up to total_size")
    return reader.fields


def _annotate_variable_part(reader: _Reader) -> None:
    sys_flag = reader.value("sys_flag")
    reader.host("born_host", bool(sys_flag & MessageSysFlag.BORN_HOST_V6))
    reader.number("store_timestamp_ms", 8)
    reader.host("store_host", bool(sys_flag & MessageSysFlag.STORE_HOST_V6))
    reader.fields += reader.layout(RECORD_MIDDLE)
    body = reader.take(reader.value("body_length"))
    reader.blob("body", body)
    reader.judge_body_crc(body)
    reader.text("topic", reader.number("topic_length", 2 if reader.value("magic") == MAGIC_V2 else 1))
    reader.properties(reader.number("properties_length", 2))


def annotate_unit(unit: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of a consume-queue unit."""
    fields = annotate_layout(UNIT, unit, 0, base)
    if bytes(unit[: UNIT.size]) == PRE_FILL_UNIT:
        fields[1] = _with(fields[1], "no entry: the queue begins after this unit")
    elif not any(unit[: UNIT.size]):
        fields[1] = _with(fields[1], "never written")
    address = int(fields[2].value or 0)
    if is_address(address):
        fields[2] = _with(fields[2], f"address of the extension unit at position {position_of(address)}")
    return fields


def annotate_batch_unit(unit: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of a unit of a batch consume queue."""
    fields = annotate_layout(BATCH_UNIT, unit, 0, base)
    if not any(unit[: BATCH_UNIT.size]):
        fields[1] = _with(fields[1], "never written")
    return fields


def annotate_ext_unit(data: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of the consume-queue extension unit at the start of ``data``."""
    fields = annotate_layout(EXT_UNIT, data, 0, base)
    if (unit := decode_ext_unit(data)) is None:
        fields[0] = _with(fields[0], "no unit: the segment ends here, or nothing was written here")
    elif unit.bit_map:
        bits = sum(byte.bit_count() for byte in unit.bit_map)
        fields.append(AnnotatedField(base + EXT_UNIT.size, unit.bit_map, "bit_map", None, f"{bits} bits set"))
    return fields


def annotate_checkpoint(data: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of the file ``checkpoint``, without the zeros that follow them."""
    return annotate_layout(CHECKPOINT, data, 0, base)


def annotate_timer_unit(data: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of the timer-log unit at the start of ``data``, or of the blank that ends a segment."""
    blank = annotate_layout(TIMER_BLANK, data, 0, base)
    if blank[2].value == TIMER_BLANK_MAGIC:
        blank[2] = _with(blank[2], "the segment ends here")
        return blank
    fields = annotate_layout(TIMER_UNIT, data, 0, base)
    if fields[0].value != TIMER_UNIT_BYTES:
        fields[0] = _with(fields[0], "not a unit")
        return fields
    values = [int(field.value or 0) for field in fields]
    if values[1] < 0:
        fields[1] = _with(fields[1], "the oldest unit of its time step")
    kinds = (
        (MAGIC_ROLL, "rolled: the message enters the timer again when this unit is due"),
        (MAGIC_DELETE, "cancels another message"),
    )
    fields[2] = _with(fields[2], ", ".join(text for bit, text in kinds if values[2] & bit))
    fields[4] = _with(fields[4], f"due at {values[3] + values[4]} ms")
    return fields


def annotate_timer_slot(data: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of a slot of the timer wheel."""
    fields = annotate_layout(TIMER_SLOT, data, 0, base)
    if not any(data[: TIMER_SLOT.size]):
        fields[0] = _with(fields[0], "never used")
    return fields


def annotate_timer_checkpoint(data: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of the file ``config/timercheck``, without the zeros that follow them."""
    return annotate_layout(TIMER_CHECKPOINT, data, 0, base)


def annotate_index_header(data: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of the header of an index file."""
    fields = annotate_layout(INDEX_HEADER, data, 0, base)
    fields[-1] = _with(fields[-1], f"{max(int(fields[-1].value or 0) - 1, 0)} entries")
    return fields


def annotate_index_slot(data: Bytes, base: int = 0) -> list[AnnotatedField]:
    """Returns the field of a slot of an index file."""
    return annotate_layout(INDEX_SLOT, data, 0, base)


def annotate_index_entry(data: Bytes, begin_timestamp_ms: int, base: int = 0) -> list[AnnotatedField]:
    """Returns the fields of an entry of an index file whose header holds ``begin_timestamp_ms``."""
    fields = annotate_layout(INDEX_ENTRY, data, 0, base)
    time_ms = begin_timestamp_ms + 1000 * int(fields[2].value or 0)
    fields[2] = _with(fields[2], f"store time about {time_ms} ms")
    if fields[3].value == 0:
        fields[3] = _with(fields[3], "end of the chain")
    return fields


def sys_flag_text(sys_flag: int) -> str:
    """Returns the names of the bits set in ``sys_flag``, separated by ``|``."""
    names = [name for bit, name in _FLAGS if sys_flag & bit]
    if sys_flag & 0xC:
        names.append(_TRANSACTIONS[sys_flag & 0xC])
    if sys_flag & MessageSysFlag.COMPRESSED:
        names.append(_COMPRESSIONS.get(sys_flag & 0x700, "ZLIB"))
    return "|".join(names)


def _with(field: AnnotatedField, meaning: str) -> AnnotatedField:
    return AnnotatedField(field.position, field.data, field.name, field.value, meaning)


class _Reader:
    """Decodes one record from front to back into ``fields``."""

    def __init__(self, record: Bytes, base: int) -> None:
        self.fields: list[AnnotatedField] = []
        self._record = record
        self._base = base
        self._at = 0

    def value(self, name: str) -> int:
        return next(int(field.value or 0) for field in self.fields if field.name == name)

    def layout(self, layout: Layout) -> list[AnnotatedField]:
        fields = annotate_layout(layout, self._record, self._at, self._base)
        self._at += layout.size
        return fields

    def take(self, length: int) -> bytes:
        """Returns the next ``length`` bytes.

        Raises:
            FormatError: fewer than ``length`` bytes remain.
        """
        left = len(self._record) - self._at
        if not 0 <= length <= left:
            at = self._base + self._at
            raise FormatError("commit log record", at, f"a length from 0 to {left}", str(length))
        self._at += length
        return bytes(self._record[self._at - length : self._at])

    def number(self, name: str, size: int) -> int:
        data = self.take(size)
        value = int.from_bytes(data, "big", signed=True)
        self.fields.append(AnnotatedField(self._base + self._at - size, data, name, value))
        return value

    def host(self, name: str, wide: bool) -> None:
        data = self.take(20 if wide else 8)
        self.fields.append(AnnotatedField(self._base + self._at - len(data), data, name, host_text(data)))

    def blob(self, name: str, data: bytes) -> None:
        self.fields.append(AnnotatedField(self._base + self._at - len(data), data, name, None, f"{len(data)} bytes"))

    def text(self, name: str, length: int) -> None:
        data = self.take(length)
        text = data.decode("utf-8", "replace")
        self.fields.append(AnnotatedField(self._base + self._at - length, data, name, text))

    def properties(self, length: int) -> None:
        """Adds one field for each property in the next ``length`` bytes; the field's bytes include the separators."""
        data = self.take(length)
        at = self._base + self._at - length
        for pair in _pairs(data):
            name, separator, value = pair.rstrip(b"\x02").partition(b"\x01")
            shown = value.decode("utf-8", "replace") if separator else None
            label = f"property {name.decode('utf-8', 'replace')}" if separator else "properties without a pair"
            meaning = self._judge_record_crc(at, value) if name == b"__CRC32#" else ""
            self.fields.append(AnnotatedField(at, pair, label, shown, meaning))
            at += len(pair)

    def rest(self, meaning: str) -> None:
        """Adds one field ``rest`` for the bytes left before the record's end, which follows from total_size; adds none
        if no bytes are left.
        """
        end = min(max(self.value("total_size"), 0), len(self._record))
        if self._at < end:
            data = self.take(end - self._at)
            self.fields.append(AnnotatedField(self._base + end - len(data), data, "rest", None, meaning))

    def judge_body_crc(self, body: bytes) -> None:
        for number, field in enumerate(self.fields):
            if field.name == "body_crc" and body:
                found = crc32(body) & 0x7FFFFFFF
                good = found == field.value
                self.fields[number] = _with(field, "right" if good else f"WRONG: the checksum of the body is {found}")

    def _judge_record_crc(self, at: int, digits: bytes) -> str:
        found = crc32(bytes(self._record[: at - self._base])) & 0x7FFFFFFF
        wanted = f"{found:010d}"[::-1]
        return "right" if digits == wanted.encode() else f"WRONG: the checksum of the record is {wanted}"


def _pairs(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = data.find(b"\x02", start)
        end = len(data) if end < 0 else end + 1
        yield data[start:end]
        start = end
