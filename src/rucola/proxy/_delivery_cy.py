# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel for deliveries: from a record of the commit log to the bytes of a ``ReceiveMessageResponse`` with its message.

The kernel makes of a record what ``proxy.delivery`` makes of it. It returns -1 for whatever it does not take: messages
of retry topics, with a namespace, delayed or in a transaction, with a body that must be inflated, or with anything
unusual. The caller then takes the general path.

A message contains messages whose length is written before them, so the kernel writes from the end to the beginning.
It uses raw pointers without bounds checks: the spans of the row are checked against the segment, and the room in
``scratch`` before anything is written.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.rucola.common.kernel_bytes import INT32_MAX
    from cython.cimports.rucola.common.kernel_columns import *
    from cython.cimports.rucola.common.kernel_records import PROPERTIES_BYTES_MAX
    from cython.cimports.rucola.common.kernel_text import *
else:
    from rucola.common.kernel_bytes import INT32_MAX
    from rucola.common.kernel_columns import *
    from rucola.common.kernel_records import PROPERTIES_BYTES_MAX
    from rucola.common.kernel_text import *

from rucola.common import message_const as _const
from rucola.proxy.property_keys import LITE_TOPIC as _LITE_TOPIC
from rucola.proxy.property_keys import PRIORITY as _PRIORITY
from rucola.proxy.property_keys import RESERVED_KEYS as _RESERVED_KEYS

DELIVERY_ROOM = cython.declare(cython.int, 2048)
"""Bytes that ``scratch`` needs besides those for record and handle: checksum, tags, lengths and numbers."""
CHECKSUM_BYTES = cython.declare(cython.int, 32)
PROPERTIES_MAX = cython.declare(cython.int, 64)
"""Most user properties, and most keys, that the kernel takes."""
TIME_MS_MAX = cython.declare(cython.longlong, 253402300799999)
COMPRESSED = cython.declare(cython.int, 0x001)
COMPRESSION_MASK = cython.declare(cython.int, 0x700)
COMPRESSION_ZLIB = cython.declare(cython.int, 0x300)
V6_HOSTS = cython.declare(cython.int, 0x030)

# What is known of the properties: a span is a start and an end; an absent value has an empty span.
_TAG = cython.declare(cython.int, 0)
_KEYS = cython.declare(cython.int, 2)
_ID = cython.declare(cython.int, 4)
_GROUP = cython.declare(cython.int, 6)
_TRACE = cython.declare(cython.int, 8)
_HOST = cython.declare(cython.int, 10)
_PAIRS = cython.declare(cython.int, 12)  # number of user properties

_NAME_BYTES_MAX = cython.declare(cython.int, 32)
_HIDDEN = cython.declare(cython.uchar[2048])
_HIDDEN_OF = cython.declare(cython.int[34])
"""Index in ``_HIDDEN`` of the first name of each length: reserved keys, which consumers do not get."""
_LEFT = cython.declare(cython.uchar[512])
_LEFT_OF = cython.declare(cython.int[34])
"""The same for the names in ``_LEFT``: a message with one of these properties takes the general path."""


def _fill_names() -> None:
    left = {
        *(_const.TRAN_MSG, _const.DELAY, _const.TIMER_DELIVER_MS, _const.TIMER_DELAY_SEC, _const.TIMER_DELAY_MS),
        *(_const.POP_CK, _const.DLQ_ORIGIN_TOPIC, _const.DLQ_ORIGIN_MESSAGE_ID, _PRIORITY, _LITE_TOPIC),
    }
    hidden_at: cython.int = 0
    left_at: cython.int = 0
    length: cython.int
    for length in range(_NAME_BYTES_MAX + 1):
        _HIDDEN_OF[length] = hidden_at
        _LEFT_OF[length] = left_at
        for name in sorted(_RESERVED_KEYS | {_const.SENDER}):
            if len(name) == length:
                for byte in name.encode():
                    _HIDDEN[hidden_at] = byte
                    hidden_at += 1
                    if name in left:
                        _LEFT[left_at] = byte
                        left_at += 1
    _HIDDEN_OF[_NAME_BYTES_MAX + 1] = hidden_at
    _LEFT_OF[_NAME_BYTES_MAX + 1] = left_at


_fill_names()


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def delivery_bytes(record_bytes: int, handle_bytes: int) -> int:
    """Returns the size that ``scratch`` needs for a record and a receipt handle of these sizes."""
    return record_bytes + handle_bytes + PROPERTIES_BYTES_MAX + DELIVERY_ROOM


def write_delivery(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    scratch: cython.uchar[::1],
    handle: bytes,
    checksum: bytes,
    reconsume_times: cython.longlong,
) -> int:
    """Writes the delivery of the record in ``row`` to the end of ``scratch``.

    Args:
        segment: the bytes in which the positions of ``table`` lie.
        table: rows with the columns of ``RecordColumn``.
        handle: receipt handle of the message, ASCII.
        checksum: MD5 of the body, in 32 upper-case hexadecimal digits.
        reconsume_times: deliveries before this one.

    Returns:
        The position in ``scratch`` at which the ``ReceiveMessageResponse`` begins; it ends where ``scratch`` ends.
        -1 if the record is one for the general path.

    Raises:
        ValueError: a row or a span lies outside its buffer, or ``scratch`` is smaller than ``delivery_bytes`` says.
    """
    known: cython.Py_ssize_t[13]
    pairs: cython.Py_ssize_t[256]
    base: cython.Py_ssize_t = row * ROW_WIDTH
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t = len(scratch)
    if row < 0 or base + ROW_WIDTH > len(table):
        raise ValueError(f"row {row} lies outside the table")
    _check_span(segment, table[base + RECORD_POS], table[base + RECORD_SIZE])
    _check_span(segment, table[base + RECORD_TOPIC_POS], table[base + RECORD_TOPIC_LEN])
    _check_span(segment, table[base + RECORD_BODY_POS], table[base + RECORD_BODY_LEN])
    _check_span(segment, table[base + RECORD_PROPERTIES_POS], table[base + RECORD_PROPERTIES_LEN])
    _check_span(segment, table[base + RECORD_BORN_HOST_POS], 8)
    _check_span(segment, table[base + RECORD_STORE_HOST_POS], 8)
    at = table[base + RECORD_TOPIC_LEN] + table[base + RECORD_BODY_LEN] + table[base + RECORD_PROPERTIES_LEN]
    at += table[base + RECORD_PROPERTIES_LEN]  # message group and trace context are written twice
    if len(checksum) != CHECKSUM_BYTES or end < at + len(handle) + DELIVERY_ROOM:
        raise ValueError(f"{end} bytes are too few for row {row}, or {len(checksum)} bytes are no MD5")
    if cython.compiled:
        data: cython.p_const_uchar = cython.address(segment[0])
        out: cython.p_uchar = cython.address(scratch[0])
        columns: cython.p_longlong = cython.address(table[base])
        texts: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(handle))
        digits: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(checksum))
        spans: cython.p_Py_ssize_t = known  # noqa: F821 - an array of C, declared above
        pair_spans: cython.p_Py_ssize_t = pairs  # noqa: F821
    else:
        data, out, columns, texts, digits = segment, scratch, table[base : base + ROW_WIDTH], handle, checksum
        spans, pair_spans = [0] * 13, [0] * 256
    for at in range(13):
        spans[at] = 0
    if not _is_ordinary(data, columns) or not 0 <= reconsume_times < INT32_MAX:
        return -1
    if not _read_properties(data, columns, spans, pair_spans):
        return -1
    at = _put_span(out, end, 0x22, data, columns[RECORD_BODY_POS], columns[RECORD_BODY_LEN])
    end = at
    at = _put_system(out, at, data, columns, spans, texts, len(handle), digits, reconsume_times)
    at = _put_head(out, at, 0x1A, end - at)
    at = _put_pairs(out, at, data, pair_spans, spans[_PAIRS])
    end = at
    at = _put_span(out, at, 0x12, data, columns[RECORD_TOPIC_POS], columns[RECORD_TOPIC_LEN])
    at = _put_head(out, at, 0x0A, end - at)
    return _put_head(out, at, 0x12, len(scratch) - at)


@cython.cfunc
@cython.exceptval(-1)
def _check_span(
    segment: cython.const[cython.uchar][::1], start: cython.longlong, length: cython.longlong
) -> cython.int:
    if start < 0 or length < 0 or length > len(segment) or start > len(segment) - length:
        raise ValueError(f"{length} bytes from {start} on lie outside the segment")
    return 0


# -- reading -----------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _is_ordinary(data: cython.p_const_uchar, columns: cython.p_longlong) -> cython.bint:
    """Whether topic, flags and numbers of the record need nothing of the general path."""
    start: cython.Py_ssize_t = columns[RECORD_TOPIC_POS]
    at: cython.Py_ssize_t
    sys_flag: cython.longlong = columns[RECORD_SYS_FLAG]
    kind: cython.longlong = sys_flag & COMPRESSION_MASK
    if columns[RECORD_TOPIC_LEN] == 0 or columns[RECORD_BODY_LEN] == 0 or sys_flag & V6_HOSTS:
        return False
    if sys_flag & COMPRESSED and kind not in (0, COMPRESSION_ZLIB):
        return False
    for at in range(start, start + columns[RECORD_TOPIC_LEN]):
        if data[at] >= 0x80 or data[at] == 0x25:
            return False
    return (
        columns[RECORD_QUEUE_ID] >= 0
        and columns[RECORD_QUEUE_OFFSET] >= 0
        and 0 <= columns[RECORD_BORN_TIMESTAMP] <= TIME_MS_MAX
        and 0 <= columns[RECORD_STORE_TIMESTAMP] <= TIME_MS_MAX
    )


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_properties(
    data: cython.p_const_uchar, columns: cython.p_longlong, spans: cython.p_Py_ssize_t, pairs: cython.p_Py_ssize_t
) -> cython.bint:
    """Finds the properties; if one occurs several times, the last one counts. Returns whether the kernel takes them."""
    at: cython.Py_ssize_t = columns[RECORD_PROPERTIES_POS]
    end: cython.Py_ssize_t = at + columns[RECORD_PROPERTIES_LEN]
    stop: cython.Py_ssize_t
    equals: cython.Py_ssize_t
    while at < end:
        equals = at
        while equals < end and data[equals] > 2:
            equals += 1
        stop = equals
        while stop < end and data[stop] != 2:
            stop += 1
        if at < equals < stop - 1 and data[equals] == 1:
            if not _read_property(data, at, equals, stop, spans, pairs):
                return False
        elif equals < stop and data[equals] == 0:
            return False
        at = stop + 1
    return spans[_ID] < spans[_ID + 1]


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_property(
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    equals: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    spans: cython.p_Py_ssize_t,
    pairs: cython.p_Py_ssize_t,
) -> cython.bint:
    size: cython.Py_ssize_t = equals - start
    place: cython.Py_ssize_t = -1
    user: cython.bint = True
    at: cython.Py_ssize_t
    if size <= _NAME_BYTES_MAX and is_listed(data, start, size, _HIDDEN, _HIDDEN_OF):
        user = False
        if is_listed(data, start, size, _LEFT, _LEFT_OF):
            return False
        if size == 4 and holds(data, start, 4, b"TAGS"):
            place = _TAG
        elif size == 4 and holds(data, start, 4, b"KEYS"):
            place = _KEYS
        elif size == 8 and holds(data, start, 8, b"UNIQ_KEY"):
            place = _ID
        elif size == 10 and holds(data, start, 10, b"__BORNHOST"):
            place = _HOST
        else:
            return True
    elif size == 13 and holds(data, start, 13, b"TRACE_CONTEXT"):
        place = _TRACE
    elif size == 13 and holds(data, start, 13, b"__SHARDINGKEY"):
        place = _GROUP
    if not _is_utf8(data, start, equals) or not _is_utf8(data, equals + 1, stop):
        return False
    if place >= 0:
        spans[place], spans[place + 1] = equals + 1, stop
    if place == _HOST:
        return _is_visible(data, equals + 1, stop)
    if user:
        if spans[_PAIRS] == PROPERTIES_MAX:
            return False
        at = 4 * spans[_PAIRS]
        pairs[at], pairs[at + 1], pairs[at + 2], pairs[at + 3] = start, equals, equals + 1, stop
        spans[_PAIRS] += 1
    return place != _KEYS or _is_short(data, equals + 1, stop)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _is_utf8(data: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.bint:
    size: cython.Py_ssize_t
    while at < stop:
        size = character_bytes(data, at, stop)
        if size == 0:
            return False
        at += size
    return True


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _is_visible(data: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.bint:
    """Whether the text has a character of ASCII that is neither space nor control character."""
    while at < stop:
        if 0x20 < data[at] < 0x7F:
            return True
        at += 1
    return False


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _is_short(data: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.bint:
    """Whether the value of KEYS has few separators, so that its keys have room."""
    count: cython.Py_ssize_t = 0
    while at < stop:
        if data[at] == 0x20:
            count += 1
        at += 1
    return count < PROPERTIES_MAX


# -- writing: from the end to the beginning; each function returns the position of the first byte that it has written --


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_system(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    columns: cython.p_longlong,
    spans: cython.p_Py_ssize_t,
    handle: cython.p_const_uchar,
    handle_len: cython.Py_ssize_t,
    digits: cython.p_const_uchar,
    reconsume_times: cython.longlong,
) -> cython.Py_ssize_t:
    """Writes the fields of ``SystemProperties``."""
    at = _put_span(out, at, 0x92, data, spans[_TRACE], spans[_TRACE + 1] - spans[_TRACE])
    at = _put_span(out, at, 0x8A, data, spans[_GROUP], spans[_GROUP + 1] - spans[_GROUP])
    at = _put_number(out, at, 0x80, reconsume_times + 1)
    at = _put_number(out, at, 0x70, columns[RECORD_QUEUE_OFFSET])
    at = _put_number(out, at, 0x68, columns[RECORD_QUEUE_ID])
    at = _put_span(out, at, 0x62, handle, 0, handle_len)
    at = _put_host(out, at, 0x52, data, columns[RECORD_STORE_HOST_POS], True)
    at = _put_time(out, at, 0x4A, columns[RECORD_STORE_TIMESTAMP])
    if spans[_HOST] < spans[_HOST + 1]:
        at = _put_span(out, at, 0x42, data, spans[_HOST], spans[_HOST + 1] - spans[_HOST])
    else:
        at = _put_host(out, at, 0x42, data, columns[RECORD_BORN_HOST_POS], False)
    at = _put_time(out, at, 0x3A, columns[RECORD_BORN_TIMESTAMP])
    at = _put_number(out, at, 0x30, 2 if spans[_GROUP] < spans[_GROUP + 1] else 1)  # FIFO or NORMAL
    at = _put_number(out, at, 0x28, 2 if columns[RECORD_SYS_FLAG] & COMPRESSED else 1)  # GZIP or IDENTITY
    at = _put_digest(out, at, digits)
    at = _put_span(out, at, 0x1A, data, spans[_ID], spans[_ID + 1] - spans[_ID])
    at = _put_keys(out, at, data, spans[_KEYS], spans[_KEYS + 1])
    return _put_span(out, at, 0x0A, data, spans[_TAG], spans[_TAG + 1] - spans[_TAG])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _put_varint(out: cython.p_uchar, end: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    at: cython.Py_ssize_t = end - 1
    rest: cython.longlong = value >> 7
    i: cython.Py_ssize_t
    while rest > 0:
        at -= 1
        rest >>= 7
    for i in range(at, end - 1):
        out[i] = 0x80 | (value & 0x7F)
        value >>= 7
    out[end - 1] = value
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _put_head(
    out: cython.p_uchar, at: cython.Py_ssize_t, tag: cython.int, length: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Writes what stands before ``length`` bytes."""
    return _put_varint(out, _put_varint(out, at, length), tag)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _put_number(
    out: cython.p_uchar, at: cython.Py_ssize_t, tag: cython.int, value: cython.longlong
) -> cython.Py_ssize_t:
    return _put_varint(out, _put_varint(out, at, value), tag)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_span(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    tag: cython.int,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes a field with ``length`` bytes of ``data``; nothing if there are none."""
    if length == 0:
        return at
    at -= length
    copy(out, at, data, start, length)
    return _put_head(out, at, tag, length)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_time(
    out: cython.p_uchar, end: cython.Py_ssize_t, tag: cython.int, time_ms: cython.longlong
) -> cython.Py_ssize_t:
    at: cython.Py_ssize_t = _put_number(out, end, 0x10, time_ms % 1000 * 1000000)
    at = _put_number(out, at, 0x08, time_ms // 1000)
    return _put_head(out, at, tag, end - at)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_digest(out: cython.p_uchar, end: cython.Py_ssize_t, digits: cython.p_const_uchar) -> cython.Py_ssize_t:
    at: cython.Py_ssize_t = _put_span(out, end, 0x12, digits, 0, CHECKSUM_BYTES)
    at = _put_number(out, at, 0x08, 2)  # MD5
    return _put_head(out, at, 0x22, end - at)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_decimal_before(out: cython.p_uchar, end: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    at: cython.Py_ssize_t = end - decimal_size(value)
    put_decimal(out, at, value)
    return at


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_host(
    out: cython.p_uchar,
    end: cython.Py_ssize_t,
    tag: cython.int,
    data: cython.p_const_uchar,
    host: cython.Py_ssize_t,
    with_port: cython.bint,
) -> cython.Py_ssize_t:
    """Writes an IPv4 address as text."""
    at: cython.Py_ssize_t = end
    port: cython.longlong
    i: cython.Py_ssize_t
    if with_port:
        port = data[host + 4]
        port = (port ^ 0x80) - 0x80  # signed, as in records
        port = port * 16777216 + (data[host + 5] << 16) + (data[host + 6] << 8) + data[host + 7]
        at = _put_decimal_before(out, at, port) - 1
        out[at] = COLON
    for i in range(4):
        if i > 0:
            at -= 1
            out[at] = 0x2E
        at = _put_decimal_before(out, at, data[host + 3 - i])
    return _put_head(out, at, tag, end - at)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_keys(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the keys of a text in which spaces separate them."""
    key: cython.Py_ssize_t
    while stop > start:
        key = stop
        while key > start and data[key - 1] != 0x20:
            key -= 1
        at = _put_span(out, at, 0x12, data, key, stop - key)
        stop = key - 1
    return at


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_pairs(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    pairs: cython.p_Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the user properties, of which the last of the same name counts."""
    i: cython.Py_ssize_t
    end: cython.Py_ssize_t
    for i in range(4 * (count - 1), -4, -4):
        end = at
        at = _put_span(out, at, 0x12, data, pairs[i + 2], pairs[i + 3] - pairs[i + 2])
        at = _put_span(out, at, 0x0A, data, pairs[i], pairs[i + 1] - pairs[i])
        at = _put_head(out, at, 0x12, end - at)
    return at
