# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel over commit-log records: encodes messages to be stored; walks and checks stored records.

``formats.message`` describes the record layout. Tables are ``array('q')`` with the columns of
``rucola.common.columns``. Bounds checks are off: every function first checks its arguments against the buffers, and
every length found in a record against the bytes that remain.
"""

from __future__ import annotations

from collections.abc import Callable

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.rucola.common.kernel_bytes import *
    from cython.cimports.rucola.common.kernel_columns import *
    from cython.cimports.rucola.common.kernel_records import *
else:
    from rucola.common.kernel_bytes import *
    from rucola.common.kernel_columns import *
    from rucola.common.kernel_records import *

# formats.message
MAGIC_V1 = cython.declare(cython.longlong, -626843481)
MAGIC_V2 = cython.declare(cython.longlong, -626843477)
MAGIC_BLANK = cython.declare(cython.longlong, -875286124)

# MessageSysFlag
BORN_HOST_V6 = cython.declare(cython.int, 0x10)
STORE_HOST_V6 = cython.declare(cython.int, 0x20)

# Bits of the argument `check`.
CHECK_BODY_CRC = cython.declare(cython.int, 1)
CHECK_RECORD_CRC = cython.declare(cython.int, 2)
CHECK_PHYSICAL_OFFSET = cython.declare(cython.int, 4)
CHECK_TORN_END = cython.declare(cython.int, 8)
CHECK_CRC_NAME = cython.declare(cython.int, 16)
# a damaged CRC property is recognized if this many bytes of its name are right
CRC_NAME_ALIKE = cython.declare(cython.int, 6)


LOOK_AHEAD_BYTES = cython.declare(cython.int, 6144)
CACHE_LINE_BYTES = cython.declare(cython.int, 64)
_touched = cython.declare(cython.uint, 0)

# What a walk remembers of one row's properties: their position, their length, and the end of each pair, counted from
# that position. In messages from the same producer, the separators of the properties are mostly at the same places.
SHAPE_START = cython.declare(cython.int, 0)
SHAPE_LEN = cython.declare(cython.int, 1)
SHAPE_ENDS = cython.declare(cython.int, 2)
SHAPE_PAIRS = cython.declare(cython.int, 32)
SHAPE_WIDTH = cython.declare(cython.int, 34)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def _last_touched() -> int:
    """Returns the sum of the values of the bytes that the last walk read ahead. Without this function, nothing
    would use the sum, and the compiler would remove the reads.
    """
    return _touched


# ---------------------------------------------------------------------------------------------------------------------
# bytes


# ---------------------------------------------------------------------------------------------------------------------
# Java's String.hashCode


@cython.cfunc
@cython.exceptval(check=False)
def _hash(
    data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t, seed: cython.longlong
) -> cython.longlong:
    value: cython.uint = low32(seed)
    at: cython.Py_ssize_t = start
    lead: cython.uint
    code: cython.uint
    size: cython.int
    have: cython.int
    low: cython.uint
    high: cython.uint
    while at < end:
        lead = data[at]
        at += 1
        if lead < 0x80:
            value = low32(value * 31 + lead)
            continue
        # the second byte's range excludes overlong forms and code points above U+10FFFF
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            size, code = 1, lead & 0x1F
        elif 0xE0 <= lead <= 0xEF:
            size, code = 2, lead & 0x0F
            if lead == 0xE0:
                low = 0xA0
        elif 0xF0 <= lead <= 0xF4:
            size, code = 3, lead & 0x07
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            size, code = 0, 0xFFFD
        have = 0
        while have < size and at < end and low <= data[at] <= high:
            code = (code << 6) | (data[at] & 0x3F)
            at += 1
            have += 1
            low, high = 0x80, 0xBF
        if have < size or 0xD800 <= code <= 0xDFFF:
            # As in Java, an encoded surrogate becomes one replacement character. If the next byte of a character is
            # missing or wrong, the bytes of the character read so far together become one replacement character.
            code = 0xFFFD
        if code >= 0x10000:
            value = low32(value * 31 + 0xD7C0 + (code >> 10))
            code = 0xDC00 | (code & 0x3FF)
        value = low32(value * 31 + code)
    wide: cython.longlong = value
    return signed32(wide)


def hash_utf8(
    data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t, seed: cython.longlong
) -> int:
    """Returns Java's ``String.hashCode`` of the UTF-8 text ``data[start:end]``, continuing from ``seed``; signed, 32
    bits.

    Bytes that are not UTF-8 count as the replacement character, as in Java's ``new String(bytes, UTF_8)``.

    Raises:
        ValueError: if the span lies outside ``data``.
    """
    if not 0 <= start <= end <= len(data):
        raise ValueError(f"span {start}..{end} lies outside the {len(data)} bytes given")
    return _hash(data, start, end, seed)


# ---------------------------------------------------------------------------------------------------------------------
# messages to be stored


@cython.cclass
class RecordPlacement:
    """Where ``encode_rows`` writes records, and the values that all these records share.

    Attributes:
        position, limit: the bytes of the segment that ``encode_rows`` may write.
        base_offset: physical offset of byte 0 of the segment.
        store_timestamp_ms: the time of storing, written into each record.
        record_crc: whether to append the record CRC property (``enabledAppendPropCRC``).
    """

    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    limit = cython.declare(cython.Py_ssize_t, visibility="readonly")
    base_offset = cython.declare(cython.longlong, visibility="readonly")
    store_timestamp_ms = cython.declare(cython.longlong, visibility="readonly")
    record_crc = cython.declare(cython.bint, visibility="readonly")

    def __init__(
        self,
        position: cython.Py_ssize_t,
        limit: cython.Py_ssize_t,
        base_offset: cython.longlong,
        store_timestamp_ms: cython.longlong,
        record_crc: cython.bint,
    ) -> None:
        self.position = position
        self.limit = limit
        self.base_offset = base_offset
        self.store_timestamp_ms = store_timestamp_ms
        self.record_crc = record_crc


def encode_rows(
    source: cython.const[cython.uchar][::1],
    source_view: memoryview,
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    segment: cython.uchar[::1],
    segment_view: memoryview,
    place: RecordPlacement,
    topic: cython.const[cython.uchar][::1],
    queue_offsets: cython.longlong[::1],
    born_host: cython.const[cython.uchar][::1],
    store_host: cython.const[cython.uchar][::1],
    suffix: cython.const[cython.uchar][::1],
    crc32: Callable[[memoryview], int],
) -> int:
    """Encodes the rows ``first`` to ``last`` (excluded), all of ``topic``, as records into ``segment`` at ``place``.

    Fills PHYSICAL_OFFSET, QUEUE_OFFSET and RECORD_SIZE of each row. PREPARED_TRANSACTION_OFFSET is copied into the
    record (the frame scanner leaves it 0). Prepared and rollback rows use no queue offset; their records hold 0.

    Args:
        source: the bytes that the rows refer to; ``source_view``: a memoryview of them.
        segment: the segment; ``segment_view``: a memoryview of it.
        place: the bytes of ``segment`` to write, and what the records have in common.
        queue_offsets: next queue offset of each queue, indexed by queue id; advanced for each record.
        born_host, store_host: 8 bytes (IPv4) or 20 (IPv6), port last.
        suffix: property text appended to each row's properties, at most ``SUFFIX_BYTES_MAX`` bytes. If the 0x02 between
            properties and suffix is missing, it is added.
        crc32: function that takes a memoryview.

    Returns:
        Index of the first row that was not encoded: ``last``, or the first row whose record plus a blank record of 8
        bytes does not fit.

    Raises:
        ValueError: a length is out of range; nothing of that row or later ones was written.
    """
    position: cython.Py_ssize_t = place.position
    limit: cython.Py_ssize_t = place.limit
    if not 0 <= first <= last or last * ROW_WIDTH > len(table):
        raise ValueError(f"rows {first}..{last} lie outside the table")
    if not 0 <= position <= limit <= len(segment):
        raise ValueError(f"positions {position}..{limit} lie outside the segment")
    fixed: cython.Py_ssize_t = _fixed_bytes(len(topic), len(born_host), len(store_host), len(suffix))
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    end: cython.Py_ssize_t
    total: cython.Py_ssize_t
    crc: cython.longlong
    for i in range(first, last):
        row = i * ROW_WIDTH
        total = _record_bytes(source, table, row, fixed, len(queue_offsets), suffix, place.record_crc)
        if total + BLANK_BYTES > limit - position:
            return i
        crc = 0
        if table[row + FRAME_BODY_LEN] > 0:
            crc = crc32(_body(source_view, table, row)) & 0x7FFFFFFF
        _assign(table, row, place.base_offset + position, total, queue_offsets)
        end = _put_record(
            segment, position, total - fixed, table, row, crc, source, place, topic, born_host, store_host, suffix
        )
        # A concurrent reader of the file sees no record until its size is written. After that the checksum, which
        # covers the size, protects the reader.
        put32(segment, position, total)
        if place.record_crc:
            crc = crc32(segment_view[position:end]) & 0x7FFFFFFF
            _put_crc_property(segment, end, crc)
        position += total
    return last


@cython.cfunc
@cython.exceptval(-1)
def _fixed_bytes(
    topic_len: cython.Py_ssize_t,
    born_len: cython.Py_ssize_t,
    store_len: cython.Py_ssize_t,
    suffix_len: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Returns the size in bytes of each record, not counting body and properties.

    Raises:
        ValueError: one of the lengths is out of range.
    """
    if not 0 < topic_len <= 32767:
        raise ValueError(f"a topic of {topic_len} bytes cannot be stored")
    if born_len not in (8, 20) or store_len not in (8, 20):
        raise ValueError(f"hosts have {born_len} and {store_len} bytes, expected 8 or 20")
    if suffix_len > SUFFIX_BYTES_MAX:
        raise ValueError(f"a property suffix of {suffix_len} bytes is too long")
    topic_len += 2 if topic_len > TOPIC_BYTES_V1_MAX else 1
    return RECORD_FIXED_BYTES + born_len + store_len + topic_len


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _record_bytes(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    fixed: cython.Py_ssize_t,
    queue_count: cython.Py_ssize_t,
    suffix: cython.const[cython.uchar][::1],
    record_crc: cython.bint,
) -> cython.Py_ssize_t:
    """Returns the size in bytes of one record.

    Raises:
        ValueError: a length or the queue is out of range.
    """
    check_spans(source, table, row)
    queue_id: cython.longlong = table[row + FRAME_QUEUE_ID]
    if not 0 <= queue_id < queue_count:
        raise ValueError(f"row {row // ROW_WIDTH}: queue {queue_id} does not exist")
    properties_len: cython.Py_ssize_t = _properties_len(source, table, row, suffix, record_crc)
    if properties_len > PROPERTIES_BYTES_MAX:
        raise ValueError(f"row {row // ROW_WIDTH}: properties of {properties_len} bytes cannot be stored")
    total: cython.Py_ssize_t = fixed + max(table[row + FRAME_BODY_LEN], 0) + properties_len
    if total > 0x7FFFFFFF:
        raise ValueError(f"row {row // ROW_WIDTH}: a record of {total} bytes cannot be stored")
    return total


@cython.cfunc
@cython.inline
def _body(source_view: memoryview, table: cython.longlong[::1], row: cython.Py_ssize_t) -> memoryview:
    position: cython.Py_ssize_t = table[row + FRAME_BODY_POS]
    return source_view[position : position + table[row + FRAME_BODY_LEN]]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _assign(
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    physical_offset: cython.longlong,
    total: cython.Py_ssize_t,
    queue_offsets: cython.longlong[::1],
) -> cython.void:
    """Sets the queue offset, physical offset and record size of a row, and advances the queue's next offset. A half
    message or a rollback gets queue offset 0, and does not advance the next offset.
    """
    queue_id: cython.Py_ssize_t = table[row + FRAME_QUEUE_ID]
    transaction: cython.longlong = table[row + FRAME_SYS_FLAG] & TRANSACTION_MASK
    table[row + FRAME_QUEUE_OFFSET] = 0
    if transaction not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
        table[row + FRAME_QUEUE_OFFSET] = queue_offsets[queue_id]
        queue_offsets[queue_id] += 1
    table[row + FRAME_PHYSICAL_OFFSET] = physical_offset
    table[row + FRAME_RECORD_SIZE] = total


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_record(
    segment: cython.uchar[::1],
    position: cython.Py_ssize_t,
    content_len: cython.Py_ssize_t,
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    body_crc: cython.longlong,
    source: cython.const[cython.uchar][::1],
    place: RecordPlacement,
    topic: cython.const[cython.uchar][::1],
    born_host: cython.const[cython.uchar][::1],
    store_host: cython.const[cython.uchar][::1],
    suffix: cython.const[cython.uchar][::1],
) -> cython.Py_ssize_t:
    """Writes a record except its size and its record CRC; returns the position after it.

    ``content_len`` is the length of body and properties together.
    """
    body_len: cython.Py_ssize_t = max(table[row + FRAME_BODY_LEN], 0)
    at: cython.Py_ssize_t = _put_head(
        segment, position, table, row, body_crc, born_host, store_host, place.store_timestamp_ms, len(topic)
    )
    copy(segment, at, source, table[row + FRAME_BODY_POS], body_len)
    at = _put_topic(segment, at + body_len, topic)
    return _put_properties(segment, at, content_len - body_len, source, table, row, suffix, place.record_crc)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _properties_len(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    suffix: cython.const[cython.uchar][::1],
    record_crc: cython.bint,
) -> cython.Py_ssize_t:
    """Returns the number of property bytes that ``_put_properties`` and ``_put_crc_property`` write."""
    own_len: cython.Py_ssize_t = max(table[row + FRAME_PROPERTIES_LEN], 0)
    suffix_len: cython.Py_ssize_t = len(suffix)
    total: cython.Py_ssize_t = own_len + suffix_len
    if own_len > 0 and source[table[row + FRAME_PROPERTIES_POS] + own_len - 1] != 2 and (suffix_len > 0 or record_crc):
        total += 1
    if record_crc:
        total += CRC_PROPERTY_BYTES
        if suffix_len > 0 and suffix[suffix_len - 1] != 2:
            total += 1
    return total


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_head(
    segment: cython.uchar[::1],
    position: cython.Py_ssize_t,
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    body_crc: cython.longlong,
    born_host: cython.const[cython.uchar][::1],
    store_host: cython.const[cython.uchar][::1],
    store_timestamp_ms: cython.longlong,
    topic_len: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the fields from the magic code to the body length; returns the position after them."""
    at: cython.Py_ssize_t = position + 48
    sys_flag: cython.longlong = table[row + FRAME_SYS_FLAG] & ~(BORN_HOST_V6 | STORE_HOST_V6)
    if len(born_host) == 20:
        sys_flag |= BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= STORE_HOST_V6
    put32(segment, position + 4, MAGIC_V2 if topic_len > TOPIC_BYTES_V1_MAX else MAGIC_V1)
    put32(segment, position + 8, body_crc)
    put32(segment, position + 12, table[row + FRAME_QUEUE_ID])
    put32(segment, position + 16, table[row + FRAME_MESSAGE_FLAG])
    put64(segment, position + 20, table[row + FRAME_QUEUE_OFFSET])
    put64(segment, position + 28, table[row + FRAME_PHYSICAL_OFFSET])
    put32(segment, position + 36, sys_flag)
    put64(segment, position + 40, table[row + FRAME_BORN_TIMESTAMP])
    copy(segment, at, born_host, 0, len(born_host))
    at += len(born_host)
    put64(segment, at, store_timestamp_ms)
    copy(segment, at + 8, store_host, 0, len(store_host))
    at += 8 + len(store_host)
    put32(segment, at, table[row + FRAME_RECONSUME_TIMES])
    put64(segment, at + 4, table[row + FRAME_PREPARED_TRANSACTION_OFFSET])
    put32(segment, at + 12, max(table[row + FRAME_BODY_LEN], 0))
    return at + 16


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_topic(
    segment: cython.uchar[::1], at: cython.Py_ssize_t, topic: cython.const[cython.uchar][::1]
) -> cython.Py_ssize_t:
    """Writes the topic's length and bytes; returns the position after them."""
    topic_len: cython.Py_ssize_t = len(topic)
    if topic_len > TOPIC_BYTES_V1_MAX:
        segment[at] = topic_len >> 8
        at += 1
    segment[at] = topic_len & 255
    copy(segment, at + 1, topic, 0, topic_len)
    return at + 1 + topic_len


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_properties(
    segment: cython.uchar[::1],
    at: cython.Py_ssize_t,
    properties_len: cython.Py_ssize_t,
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    suffix: cython.const[cython.uchar][::1],
    record_crc: cython.bint,
) -> cython.Py_ssize_t:
    """Writes the properties except the record CRC, and adds missing separators; returns the position after them."""
    own_pos: cython.Py_ssize_t = table[row + FRAME_PROPERTIES_POS]
    own_len: cython.Py_ssize_t = max(table[row + FRAME_PROPERTIES_LEN], 0)
    suffix_len: cython.Py_ssize_t = len(suffix)
    segment[at] = properties_len >> 8
    segment[at + 1] = properties_len & 255
    at += 2
    copy(segment, at, source, own_pos, own_len)
    at += own_len
    if own_len > 0 and source[own_pos + own_len - 1] != 2 and (suffix_len > 0 or record_crc):
        segment[at] = 2
        at += 1
    copy(segment, at, suffix, 0, suffix_len)
    at += suffix_len
    if record_crc and suffix_len > 0 and suffix[suffix_len - 1] != 2:
        segment[at] = 2
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_crc_property(segment: cython.uchar[::1], at: cython.Py_ssize_t, crc: cython.longlong) -> cython.void:
    """Writes ``__CRC32#`` 0x01, ten decimal digits with the least significant first, 0x02."""
    name: bytes = b"__CRC32#\x01"
    i: cython.Py_ssize_t
    for i in range(9):
        segment[at + i] = name[i]
    for i in range(9, 19):
        segment[at + i] = 48 + crc % 10
        crc //= 10
    segment[at + 19] = 2


def write_blank(segment: cython.uchar[::1], position: cython.Py_ssize_t, space_left: cython.longlong) -> None:
    """Writes the 8 header bytes of the end-of-file record, whose size field covers all the space left.

    Raises:
        ValueError: if fewer than 8 bytes remain, or fewer than ``space_left``.
    """
    if position < 0 or not BLANK_BYTES <= space_left <= len(segment) - position:
        raise ValueError(f"no blank record of {space_left} bytes at position {position}")
    put32(segment, position, space_left)
    put32(segment, position + 4, MAGIC_BLANK)


# ---------------------------------------------------------------------------------------------------------------------
# records in the log


def walk_records(
    segment: cython.const[cython.uchar][::1],
    segment_view: memoryview,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base_offset: cython.longlong,
    table: cython.longlong[::1],
    rows_max: cython.Py_ssize_t,
    crc32: Callable[[memoryview], int],
    check: cython.int,
    stretches: cython.longlong[::1] | None = None,
) -> tuple[int, int, int]:
    """Reads the records in ``segment[position:limit]`` into ``table``, one row each.

    Applies the checks of RocketMQ's ``CommitLog#checkMessageAndReturnSize``, and refuses negative lengths everywhere.

    Args:
        segment: any bytes; ``segment_view``: a memoryview of them.
        base_offset: physical offset of byte 0 of ``segment``.
        rows_max: largest number of records to read.
        crc32: function that takes a memoryview.
        check: sum of the checks to apply. 1: body CRC. 2: record CRC, if present. 4: physicalOffset field. 8: refuse a
            zero byte where the record CRC belongs, because a crash may have lost the page with the record CRC. 16:
            refuse a record CRC with a damaged name or separator. A name with more than two wrong bytes is not
            recognized as that of a record CRC.
        stretches: start and end of each range of physical offsets in which every record was written with a record CRC;
            a record in such a range that lacks it has lost its end, and is refused. None if there is no such range.

    Returns:
        The number of rows filled, the position after the last record read, and a ``WalkStop``.

    Raises:
        ValueError: if the positions lie outside ``segment``, or the rows outside ``table``.
    """
    global _touched
    if not 0 <= position <= limit <= len(segment):
        raise ValueError(f"positions {position}..{limit} lie outside the segment")
    if not 0 <= rows_max * ROW_WIDTH <= len(table):
        raise ValueError(f"{rows_max} rows do not fit into the table")
    rows: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    total: cython.longlong
    magic: cython.longlong
    topic_len: cython.longlong
    ahead: cython.Py_ssize_t = position
    touched: cython.uint = 0
    shape = cython.declare(cython.longlong[34])  # SHAPE_WIDTH; the compiler takes only a literal
    shape[SHAPE_LEN] = -1
    while position < limit:
        if cython.compiled:
            # A walk jumps from record to record, and each jump would wait for a read from memory. Sequential reads do
            # not wait, because the processor fetches their bytes while the previous record is decoded.
            ahead = max(ahead, position)
            while ahead < min(position + LOOK_AHEAD_BYTES, limit):
                touched += segment[ahead]
                ahead += CACHE_LINE_BYTES
            _touched = touched
        if rows == rows_max:
            return rows, position, STOP_TABLE_FULL
        if limit - position < BLANK_BYTES:
            return rows, position, STOP_TORN
        total = int32(segment, position)
        magic = int32(segment, position + 4)
        if magic == MAGIC_BLANK:  # RocketMQ does not check the size of this record either
            return rows, position, STOP_BLANK
        if total > limit - position or magic not in (MAGIC_V1, MAGIC_V2):
            return rows, position, STOP_TORN
        row = rows * ROW_WIDTH
        if not _read_record(segment, position, total, magic == MAGIC_V2, table, row):
            return rows, position, STOP_TORN
        if check & CHECK_PHYSICAL_OFFSET and table[row + RECORD_PHYSICAL_OFFSET] != base_offset + position:
            return rows, position, STOP_TORN
        if check & CHECK_BODY_CRC and not _body_is_sound(segment_view, table, row, crc32):
            return rows, position, STOP_TORN
        if check & CHECK_RECORD_CRC or stretches is not None:
            if _has_record_crc(segment, table, row):
                if check & CHECK_RECORD_CRC and not _record_is_sound(segment, segment_view, table, row, crc32):
                    return rows, position, STOP_TORN
            elif stretches is not None and _lost_its_end(table, row, base_offset + position, stretches):
                return rows, position, STOP_TORN
        if check & CHECK_TORN_END and _end_is_torn(segment, table, row):
            return rows, position, STOP_TORN
        if check & CHECK_CRC_NAME and _crc_name_is_damaged(segment, table, row):
            return rows, position, STOP_TORN
        _span_properties(segment, table, row, shape)
        topic_len = table[row + RECORD_TOPIC_LEN]
        table[row + RECORD_SAME_TOPIC] = (
            rows > 0
            and topic_len == table[row - ROW_WIDTH + RECORD_TOPIC_LEN]
            and same(
                segment, table[row + RECORD_TOPIC_POS], segment, table[row - ROW_WIDTH + RECORD_TOPIC_POS], topic_len
            )
        )
        rows += 1
        position += total
    return rows, position, STOP_LIMIT


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _read_record(
    segment: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    total: cython.longlong,
    wide_topic: cython.bint,
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
) -> cython.bint:
    """Reads the fields of a record of ``total`` bytes; returns False if its lengths do not add up to ``total``."""
    if total < RECORD_FIXED_BYTES + 17:
        return False
    sys_flag: cython.longlong = int32(segment, position + 36)
    born_len: cython.longlong = 20 if sys_flag & BORN_HOST_V6 else 8
    store_len: cython.longlong = 20 if sys_flag & STORE_HOST_V6 else 8
    topic_field: cython.longlong = 2 if wide_topic else 1
    # Number of bytes that remain for body, topic and properties.
    room: cython.longlong = total - RECORD_FIXED_BYTES - born_len - store_len - topic_field
    if room < 0:
        return False
    at: cython.Py_ssize_t = position + 56 + born_len + store_len
    body_len: cython.longlong = int32(segment, at + 12)
    if not 0 <= body_len <= room:
        return False
    room -= body_len
    table[row + RECORD_POS] = position
    table[row + RECORD_SIZE] = total
    table[row + RECORD_BODY_CRC] = int32(segment, position + 8)
    table[row + RECORD_QUEUE_ID] = int32(segment, position + 12)
    table[row + RECORD_MESSAGE_FLAG] = int32(segment, position + 16)
    table[row + RECORD_QUEUE_OFFSET] = int64(segment, position + 20)
    table[row + RECORD_PHYSICAL_OFFSET] = int64(segment, position + 28)
    table[row + RECORD_SYS_FLAG] = sys_flag
    table[row + RECORD_BORN_TIMESTAMP] = int64(segment, position + 40)
    table[row + RECORD_BORN_HOST_POS] = position + 48
    table[row + RECORD_STORE_TIMESTAMP] = int64(segment, position + 48 + born_len)
    table[row + RECORD_STORE_HOST_POS] = position + 56 + born_len
    table[row + RECORD_RECONSUME_TIMES] = int32(segment, at)
    table[row + RECORD_PREPARED_TRANSACTION_OFFSET] = int64(segment, at + 4)
    at += 16
    table[row + RECORD_BODY_POS] = at
    table[row + RECORD_BODY_LEN] = body_len
    at += body_len
    topic_len: cython.longlong
    if wide_topic:
        topic_len = int16(segment, at)
        at += 2
    else:
        topic_len = segment[at]
        at += 1
        # the length byte is signed in RocketMQ, so a larger length would be negative
        if topic_len > TOPIC_BYTES_V1_MAX:
            return False
    if not 0 <= topic_len <= room:
        return False
    table[row + RECORD_TOPIC_POS] = at
    table[row + RECORD_TOPIC_LEN] = topic_len
    at += topic_len
    table[row + RECORD_PROPERTIES_POS] = at + 2
    table[row + RECORD_PROPERTIES_LEN] = int16(segment, at)
    return table[row + RECORD_PROPERTIES_LEN] == room - topic_len


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _span_properties(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    shape: cython.p_longlong,
) -> cython.void:
    """Fills the TAGS, KEYS and UNIQ_KEY columns; the last of several equal names counts.

    Args:
        shape: the shape of an earlier row's properties in the same segment; its length is -1 if there is none. Receives
            the shape of this row's properties, unless they have more than ``SHAPE_PAIRS`` pairs.
    """
    first: cython.Py_ssize_t = table[row + RECORD_PROPERTIES_POS]
    length: cython.Py_ssize_t = table[row + RECORD_PROPERTIES_LEN]
    known: cython.bint = length == shape[SHAPE_LEN] and marks_agree(segment, first, shape[SHAPE_START], length, 2)
    pair: cython.int = 0
    start: cython.Py_ssize_t = first
    end: cython.Py_ssize_t = first + length
    stop: cython.Py_ssize_t
    value: cython.Py_ssize_t
    word: cython.longlong
    column: cython.int
    table[row + RECORD_TAGS_POS] = table[row + RECORD_KEYS_POS] = table[row + RECORD_UNIQ_KEY_POS] = 0
    table[row + RECORD_TAGS_LEN] = table[row + RECORD_KEYS_LEN] = table[row + RECORD_UNIQ_KEY_LEN] = -1
    table[row + RECORD_TAGS_CODE] = 0
    shape[SHAPE_START] = first
    while start < end:
        if known:
            stop = first + shape[SHAPE_ENDS + pair]
        else:
            stop = find(segment, 2, start, end)
            if pair < SHAPE_PAIRS:
                shape[SHAPE_ENDS + pair] = stop - first
        pair += 1
        column = -1
        value = start + 5
        # Only the pairs with these names matter, so it is enough to look for the separator 0x01 directly after such a
        # name. A pair with an empty value does not count.
        if value < stop:
            word = uint32(segment, start)
            if word == 0x54414753 and segment[start + 4] == 1:  # TAGS
                column = RECORD_TAGS_POS
            elif word == 0x4B455953 and segment[start + 4] == 1:  # KEYS
                column = RECORD_KEYS_POS
            elif word == 0x554E4951 and start + 9 < stop:  # UNIQ
                if uint32(segment, start + 4) == 0x5F4B4559 and segment[start + 8] == 1:  # _KEY
                    column = RECORD_UNIQ_KEY_POS
                    value = start + 9
        if column >= 0:
            table[row + column] = value
            table[row + column + 1] = stop - value
        start = stop + 1
    shape[SHAPE_LEN] = length if pair <= SHAPE_PAIRS else -1
    if table[row + RECORD_TAGS_LEN] > 0:
        start = table[row + RECORD_TAGS_POS]
        table[row + RECORD_TAGS_CODE] = _hash(segment, start, start + table[row + RECORD_TAGS_LEN], 0)


@cython.cfunc
def _body_is_sound(
    segment_view: memoryview, table: cython.longlong[::1], row: cython.Py_ssize_t, crc32: Callable[[memoryview], int]
) -> cython.bint:
    start: cython.Py_ssize_t = table[row + RECORD_BODY_POS]
    size: cython.Py_ssize_t = table[row + RECORD_BODY_LEN]
    if size == 0:
        return True  # RocketMQ too ignores the checksum of an empty body
    crc: cython.longlong = crc32(segment_view[start : start + size]) & 0x7FFFFFFF
    return crc == table[row + RECORD_BODY_CRC]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has_record_crc(
    segment: cython.const[cython.uchar][::1], table: cython.longlong[::1], row: cython.Py_ssize_t
) -> cython.bint:
    """Whether the record ends with a CRC property."""
    end: cython.Py_ssize_t = table[row + RECORD_POS] + table[row + RECORD_SIZE]
    return (
        table[row + RECORD_PROPERTIES_LEN] >= CRC_PROPERTY_BYTES
        and starts(segment, end - CRC_PROPERTY_BYTES, b"__CRC32#\x01")
        and segment[end - 1] == 2
    )


@cython.cfunc
@cython.exceptval(check=False)
def _lost_its_end(
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    physical_offset: cython.longlong,
    stretches: cython.longlong[::1],
) -> cython.bint:
    """Whether a record without CRC property lies in one of the ``stretches``. Rolled-back records never lose their end:
    quarantine fills gaps of the log with them, without CRC, and no reader gets them.
    """
    if (table[row + RECORD_SYS_FLAG] & TRANSACTION_ROLLBACK) == TRANSACTION_ROLLBACK:
        return False
    i: cython.Py_ssize_t
    for i in range(0, len(stretches) - 1, 2):
        if stretches[i] <= physical_offset < stretches[i + 1]:
            return True
    return False


@cython.cfunc
def _record_is_sound(
    segment: cython.const[cython.uchar][::1],
    segment_view: memoryview,
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    crc32: Callable[[memoryview], int],
) -> cython.bint:
    """Whether the digits of the record's CRC property match the bytes before it."""
    start: cython.Py_ssize_t = table[row + RECORD_POS]
    at: cython.Py_ssize_t = start + table[row + RECORD_SIZE] - CRC_PROPERTY_BYTES
    crc: cython.longlong = crc32(segment_view[start:at]) & 0x7FFFFFFF
    i: cython.Py_ssize_t
    for i in range(at + 9, at + 19):
        if segment[i] != 48 + crc % 10:
            return False
        crc //= 10
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _end_is_torn(
    segment: cython.const[cython.uchar][::1], table: cython.longlong[::1], row: cython.Py_ssize_t
) -> cython.bint:
    """Whether there is a zero byte where the CRC property belongs."""
    end: cython.Py_ssize_t = table[row + RECORD_POS] + table[row + RECORD_SIZE]
    i: cython.Py_ssize_t
    for i in range(end - min(table[row + RECORD_PROPERTIES_LEN], CRC_PROPERTY_BYTES), end):
        if segment[i] == 0:
            return True
    return False


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _crc_name_is_damaged(
    segment: cython.const[cython.uchar][::1], table: cython.longlong[::1], row: cython.Py_ssize_t
) -> cython.bint:
    """Whether the last property has the length and most of the bytes of a CRC property, but is not a valid one."""
    if table[row + RECORD_PROPERTIES_LEN] < CRC_PROPERTY_BYTES:
        return False
    end: cython.Py_ssize_t = table[row + RECORD_POS] + table[row + RECORD_SIZE]
    at: cython.Py_ssize_t = end - CRC_PROPERTY_BYTES
    if starts(segment, at, b"__CRC32#\x01") and segment[end - 1] == 2:
        return False
    alike: cython.int = (
        (segment[at] == 95)
        + (segment[at + 1] == 95)
        + (segment[at + 2] == 67)
        + (segment[at + 3] == 82)
        + (segment[at + 4] == 67)
        + (segment[at + 5] == 51)
        + (segment[at + 6] == 50)
        + (segment[at + 7] == 35)
    )
    return alike >= CRC_NAME_ALIKE
