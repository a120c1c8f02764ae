# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel for sends: from the bytes of a ``SendMessageRequest`` with one NORMAL message to a row of the frame table.

The kernel makes the checks of ``proxy.sending`` and writes the same properties. It returns 0 for whatever it does not
take, such as another type, an unknown field or anything wrong. The caller then takes the general path, which also words
the refusal. It takes only what protobuf accepts too: every text must be UTF-8.

The kernel uses raw pointers without bounds checks. Every length is checked against the rest of its message before it is
used, and the room in ``scratch`` before anything is written.
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
    from cython.cimports.rucola.common.kernel_records import PROPERTIES_BYTES_MAX, SUFFIX_BYTES_MAX
    from cython.cimports.rucola.common.kernel_text import *
else:
    from rucola.common.kernel_bytes import INT32_MAX
    from rucola.common.kernel_columns import *
    from rucola.common.kernel_records import PROPERTIES_BYTES_MAX, SUFFIX_BYTES_MAX
    from rucola.common.kernel_text import *

from rucola.common import message_const as _const
from rucola.common.key_builder import SYSTEM_TOPICS as _SYSTEM_TOPICS
from rucola.proxy.property_keys import RESERVED_KEYS as _RESERVED_KEYS
from rucola.proxy.property_keys import TRACE_CONTEXT as _TRACE_CONTEXT

SEND_ROOM = cython.declare(cython.int, 640)
"""Bytes that ``scratch`` needs besides those for request and host: names of properties, the topic twice, numbers."""
SEND_CODE = cython.declare(cython.int, 310)
TOPIC_BYTES_MAX = cython.declare(cython.int, 127)
PAIRS_MAX = cython.declare(cython.int, 128)
KEYS_MAX = cython.declare(cython.int, 32)
USER_BYTES_MAX = cython.declare(cython.int, 16384)
FIELD_MAX = cython.declare(cython.int, 18)
"""Greatest number of a field of ``SystemProperties`` that the kernel takes."""
SECONDS_MAX = cython.declare(cython.longlong, 253402300799)
NANOS_MAX = cython.declare(cython.longlong, 999999999)

# What is known of the message so far. A span is a start and an end; an absent text has an empty span.
_POS = cython.declare(cython.int, 0)  # position of the next byte to read
_START = cython.declare(cython.int, 1)  # span of the piece that was read last
_STOP = cython.declare(cython.int, 2)
_SEEN = cython.declare(cython.int, 3)  # bits of the fields of ``SystemProperties``
_TOPIC = cython.declare(cython.int, 4)
_BODY = cython.declare(cython.int, 6)
_TAG = cython.declare(cython.int, 8)
_ID = cython.declare(cython.int, 10)
_HOST = cython.declare(cython.int, 12)
_TRACE = cython.declare(cython.int, 14)
_SYS_FLAG = cython.declare(cython.int, 16)
_BORN_MS = cython.declare(cython.int, 17)
_ATTEMPT = cython.declare(cython.int, 18)
_KEYS = cython.declare(cython.int, 19)  # number of keys
_PAIRS = cython.declare(cython.int, 20)  # number of user properties
_USER_BYTES = cython.declare(cython.int, 21)

# Traits of a text.
_PLAIN = cython.declare(cython.int, 1)
_VISIBLE = cython.declare(cython.int, 2)
_BAR = cython.declare(cython.int, 4)

_NAME_BYTES_MAX = cython.declare(cython.int, 32)
_NAMES = cython.declare(cython.uchar[2048])
_NAMES_OF = cython.declare(cython.int[34])
"""Index in ``_NAMES`` of the first name of each length; the names of a length follow each other."""


def _fill_names() -> None:
    """Fills the tables of names that only the general path takes, as user properties or topics."""
    names = _RESERVED_KEYS | {_const.SHARDING_KEY, _TRACE_CONTEXT, _const.CHECK_IMMUNITY_TIME_IN_SECONDS}
    ordered = sorted((name.encode() for name in names | _SYSTEM_TOPICS), key=len)
    at: cython.int = 0
    length: cython.int
    for length in range(_NAME_BYTES_MAX + 1):
        _NAMES_OF[length] = at
        for name in ordered:
            if len(name) == length:
                for byte in name:
                    _NAMES[at] = byte
                    at += 1
    _NAMES_OF[_NAME_BYTES_MAX + 1] = at


_fill_names()


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def send_bytes(request_bytes: int, host_bytes: int) -> int:
    """Returns the size that ``scratch`` needs for a request and a host of these sizes."""
    return request_bytes + host_bytes + SEND_ROOM


def read_send(
    request: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    scratch: cython.uchar[::1],
    start: cython.Py_ssize_t,
    host: bytes,
    body_bytes_max: cython.longlong,
) -> int:
    """Fills row ``row`` of ``table``; its positions are in ``scratch``, which gets topic, properties and body from
    ``start`` on.

    Producer group and topic have the same span; the queue id is -1, because the door chooses the queue. Columns that
    others fill are 0.

    Args:
        request: the bytes of a ``SendMessageRequest``.
        start: position in ``scratch``; the bytes before it stay as they are.
        host: address of the client, stored if the message does not name its host; may be empty.
        body_bytes_max: largest body.

    Returns:
        The number of bytes written to ``scratch``. 0 if the request is one for the general path; then ``row`` is
        unchanged.

    Raises:
        ValueError: ``row`` lies outside the table, or ``scratch`` has fewer bytes from ``start`` on than ``send_bytes``
            says.
    """
    state: cython.longlong[22]
    keys: cython.longlong[64]
    pairs: cython.longlong[512]
    base: cython.Py_ssize_t = row * ROW_WIDTH
    position: cython.Py_ssize_t
    column: cython.Py_ssize_t
    topic_len: cython.Py_ssize_t
    body_len: cython.Py_ssize_t
    if row < 0 or base + ROW_WIDTH > len(table):
        raise ValueError(f"row {row} lies outside the table")
    if start < 0 or len(scratch) - start < len(request) + len(host) + SEND_ROOM:
        raise ValueError(f"{len(scratch)} bytes are too few for a request of {len(request)} from {start} on")
    if len(request) == 0:
        return 0
    if cython.compiled:
        data: cython.p_const_uchar = cython.address(request[0])
        out: cython.p_uchar = cython.address(scratch[start])
        peer: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(host))
        known: cython.p_longlong = state  # noqa: F821 - an array of C, declared above
        key_spans: cython.p_longlong = keys  # noqa: F821
        pair_spans: cython.p_longlong = pairs  # noqa: F821
    else:
        data, out, peer = request, memoryview(scratch)[start:], host
        known, key_spans, pair_spans = [0] * 22, [0] * 64, [0] * 512
    for column in range(22):
        known[column] = 0
    if not _read_request(data, len(request), known, key_spans, pair_spans):
        return 0
    body_len = known[_BODY + 1] - known[_BODY]
    if not 0 < body_len <= body_bytes_max:
        return 0
    topic_len = known[_TOPIC + 1] - known[_TOPIC]
    copy(out, 0, data, known[_TOPIC], topic_len)
    position = _put_properties(out, topic_len, data, known, key_spans, peer, len(host))
    position = _put_pairs(out, position, data, pair_spans, known[_PAIRS])
    if position - topic_len > PROPERTIES_BYTES_MAX - SUFFIX_BYTES_MAX:
        return 0
    copy(out, position, data, known[_BODY], body_len)
    for column in range(ROW_WIDTH):
        table[base + column] = 0
    table[base + FRAME_KIND] = KIND_SEND
    table[base + FRAME_CODE] = SEND_CODE
    table[base + FRAME_GROUP_POS] = start
    table[base + FRAME_GROUP_LEN] = topic_len
    table[base + FRAME_TOPIC_POS] = start
    table[base + FRAME_TOPIC_LEN] = topic_len
    table[base + FRAME_QUEUE_ID] = -1
    table[base + FRAME_SYS_FLAG] = known[_SYS_FLAG]
    table[base + FRAME_BORN_TIMESTAMP] = known[_BORN_MS]
    table[base + FRAME_PROPERTIES_POS] = start + topic_len
    table[base + FRAME_PROPERTIES_LEN] = position - topic_len
    table[base + FRAME_BODY_POS] = start + position
    table[base + FRAME_BODY_LEN] = body_len
    return position + body_len


# -- reading: each function returns whether the kernel takes what it has read ------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_request(
    data: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    known: cython.p_longlong,
    keys: cython.p_longlong,
    pairs: cython.p_longlong,
) -> cython.bint:
    tag: cython.int
    fields: cython.int = 0
    if _tag(data, size, known) != 10 or not _piece(data, size, known) or known[_STOP] != size:
        return False
    known[_POS] = known[_START]
    while known[_POS] < size:
        tag = _tag(data, size, known)
        if not _piece(data, size, known):
            return False
        if tag == 10 and not fields & 1:
            fields |= 1
            if not _read_topic(data, known):
                return False
        elif tag == 18:
            if not _read_pair(data, known, pairs):
                return False
        elif tag == 26 and not fields & 2:
            fields |= 2
            if not _read_system(data, known, keys):
                return False
        elif tag == 34 and not fields & 4:
            fields |= 4
            known[_BODY], known[_BODY + 1] = known[_START], known[_STOP]
        else:
            return False
    return fields == 7 and known[_USER_BYTES] <= USER_BYTES_MAX


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_topic(data: cython.p_const_uchar, known: cython.p_longlong) -> cython.bint:
    """Reads the ``Resource`` in the piece that was read last."""
    tag: cython.int
    end: cython.Py_ssize_t = known[_STOP]
    fields: cython.int = 0
    known[_POS] = known[_START]
    while known[_POS] < end:
        tag = _tag(data, end, known)
        if not _piece(data, end, known):
            return False
        if tag == 10 and not fields & 1:
            fields |= 1
            if not _text(data, known[_START], known[_STOP]):
                return False
        elif tag == 18 and not fields & 2:
            fields |= 2
            known[_TOPIC], known[_TOPIC + 1] = known[_START], known[_STOP]
        else:
            return False
    return _is_topic(data, known[_TOPIC], known[_TOPIC + 1])


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_pair(data: cython.p_const_uchar, known: cython.p_longlong, pairs: cython.p_longlong) -> cython.bint:
    """Reads a user property from the piece that was read last, and sorts it in by its key."""
    end: cython.Py_ssize_t = known[_STOP]
    key: cython.Py_ssize_t
    key_end: cython.Py_ssize_t
    order: cython.int
    at: cython.Py_ssize_t
    if known[_PAIRS] == PAIRS_MAX:
        return False
    known[_POS] = known[_START]
    if _tag(data, end, known) != 10 or not _piece(data, end, known):
        return False
    key, key_end = known[_START], known[_STOP]
    if _tag(data, end, known) != 18 or not _piece(data, end, known) or known[_STOP] != end:
        return False
    if key == key_end or known[_START] == end or not _text(data, key, key_end) or not _text(data, known[_START], end):
        return False
    if _is_taken(data, key, key_end):
        return False
    at = known[_PAIRS] * 4
    while at > 0:
        order = _compare(data, key, key_end, pairs[at - 4], pairs[at - 3])
        if order == 0:
            return False
        if order > 0:
            break
        pairs[at], pairs[at + 1], pairs[at + 2], pairs[at + 3] = (
            pairs[at - 4],
            pairs[at - 3],
            pairs[at - 2],
            pairs[at - 1],
        )
        at -= 4
    pairs[at], pairs[at + 1], pairs[at + 2], pairs[at + 3] = key, key_end, known[_START], end
    known[_PAIRS] += 1
    known[_USER_BYTES] += key_end - key + end - known[_START]
    return True


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_system(data: cython.p_const_uchar, known: cython.p_longlong, keys: cython.p_longlong) -> cython.bint:
    """Reads the ``SystemProperties`` in the piece that was read last. Each field but the keys may occur once."""
    tag: cython.int
    field: cython.int
    end: cython.Py_ssize_t = known[_STOP]
    known[_POS] = known[_START]
    while known[_POS] < end:
        tag = _tag(data, end, known)
        field = tag >> 3
        if not 0 < field <= FIELD_MAX:
            return False
        if field != 2:
            if known[_SEEN] >> field & 1:
                return False
            known[_SEEN] |= 1 << field
        if tag & 7 == 2:
            if not _piece(data, end, known) or not _system_text(data, tag, known, keys):
                return False
        elif not _system_number(data, tag, end, known):
            return False
    # message id, message type and born timestamp
    return known[_SEEN] & 0xC8 == 0xC8


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _system_text(
    data: cython.p_const_uchar, tag: cython.int, known: cython.p_longlong, keys: cython.p_longlong
) -> cython.bint:
    start: cython.Py_ssize_t = known[_START]
    stop: cython.Py_ssize_t = known[_STOP]
    traits: cython.int
    if tag == 34:
        return _read_digest(data, known)
    if tag == 58:
        return _read_born(data, known)
    traits = _text(data, start, stop)
    if not traits:
        return False
    if tag == 10:
        known[_TAG], known[_TAG + 1] = start, stop
        known[_USER_BYTES] += stop - start
        return start == stop or traits & (_VISIBLE | _BAR) == _VISIBLE
    if tag == 18:
        if not traits & _VISIBLE or known[_KEYS] == KEYS_MAX:
            return False
        keys[2 * known[_KEYS]], keys[2 * known[_KEYS] + 1] = start, stop
        known[_KEYS] += 1
        known[_USER_BYTES] += stop - start
        return True
    if tag == 26:
        known[_ID], known[_ID + 1] = start, stop
        return traits & _VISIBLE != 0
    if tag == 66:
        known[_HOST], known[_HOST + 1] = start, stop
        return start == stop or traits & _VISIBLE != 0
    known[_TRACE], known[_TRACE + 1] = start, stop
    return tag == 146


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _system_number(
    data: cython.p_const_uchar, tag: cython.int, end: cython.Py_ssize_t, known: cython.p_longlong
) -> cython.bint:
    value: cython.longlong = _varint(data, end, known, 9)
    if value < 0:
        return False
    if tag == 40:  # body encoding
        known[_SYS_FLAG] = 1 if value == 2 else 0
        return value <= 2
    if tag == 48:  # message type
        return value == 1
    if tag == 128:  # delivery attempt
        known[_ATTEMPT] = value
        return value <= INT32_MAX
    return tag == 104  # queue id, which is not used


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_digest(data: cython.p_const_uchar, known: cython.p_longlong) -> cython.bint:
    """Reads over the ``Digest`` in the piece that was read last."""
    tag: cython.int
    end: cython.Py_ssize_t = known[_STOP]
    known[_POS] = known[_START]
    while known[_POS] < end:
        tag = _tag(data, end, known)
        if tag == 8:
            if _varint(data, end, known, 9) < 0:
                return False
        elif tag != 18 or not _piece(data, end, known) or not _text(data, known[_START], known[_STOP]):
            return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_born(data: cython.p_const_uchar, known: cython.p_longlong) -> cython.bint:
    """Reads the ``Timestamp`` in the piece that was read last; it must not lie before 1970."""
    tag: cython.int
    end: cython.Py_ssize_t = known[_STOP]
    seconds: cython.longlong = 0
    nanos: cython.longlong = 0
    last: cython.int = 0
    known[_POS] = known[_START]
    while known[_POS] < end:
        tag = _tag(data, end, known)
        if tag == 8 and last == 0:
            seconds = _varint(data, end, known, 9)
        elif tag == 16 and last < 16:
            nanos = _varint(data, end, known, 9)
        else:
            return False
        if not 0 <= seconds <= SECONDS_MAX or not 0 <= nanos <= NANOS_MAX:
            return False
        last = tag
    known[_BORN_MS] = seconds * 1000 + nanos // 1000000
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _tag(data: cython.p_const_uchar, end: cython.Py_ssize_t, known: cython.p_longlong) -> cython.int:
    """Returns the tag at the position, and moves behind it; 0 if it is longer than the tag of field 31."""
    at: cython.Py_ssize_t = known[_POS]
    if at < end and data[at] < 0x80:
        known[_POS] = at + 1
        return data[at]
    if at + 1 < end and data[at + 1] == 1:
        known[_POS] = at + 2
        return data[at]  # the high bit of the first byte has the value that the second byte stands for
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _varint(
    data: cython.p_const_uchar, end: cython.Py_ssize_t, known: cython.p_longlong, bytes_max: cython.int
) -> cython.longlong:
    """Returns the number at the position, and moves behind it; -1 if it has more than ``bytes_max`` bytes."""
    at: cython.Py_ssize_t = known[_POS]
    value: cython.longlong = 0
    byte: cython.longlong
    i: cython.int
    for i in range(bytes_max):
        if at >= end:
            return -1
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            known[_POS] = at
            return value
    return -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _piece(data: cython.p_const_uchar, end: cython.Py_ssize_t, known: cython.p_longlong) -> cython.bint:
    """Reads a length and moves behind the bytes that it counts."""
    length: cython.longlong = _varint(data, end, known, 4)
    if length < 0 or length > end - known[_POS]:
        return False
    known[_START] = known[_POS]
    known[_STOP] = known[_POS] = known[_POS] + length
    return True


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _text(data: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.int:
    """Returns the traits of a text: 0 if it is not UTF-8 or has a control character. ``_VISIBLE``: it has a character
    of ASCII that is no space; ``_BAR``: it has ``|``.
    """
    traits: cython.int = _PLAIN
    size: cython.Py_ssize_t
    c: cython.int
    while at < stop:
        c = data[at]
        if c < 0x80:
            if c < 0x20 or c == 0x7F:
                return 0
            if c != 0x20:
                traits |= _VISIBLE
            if c == 0x7C:
                traits |= _BAR
            at += 1
        else:
            size = character_bytes(data, at, stop)
            if size == 0 or (c == 0xC2 and data[at + 1] < 0xA0):  # U+0080 to U+009F are control characters
                return 0
            at += size
    return traits


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _is_topic(data: cython.p_const_uchar, start: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.bint:
    """Whether the text is the name of an ordinary topic; topics that begin with ``%`` take the general path."""
    at: cython.Py_ssize_t
    c: cython.int
    if not 0 < stop - start <= TOPIC_BYTES_MAX or data[start] == 0x25:
        return False
    for at in range(start, stop):
        c = data[at]
        if not (0x61 <= c | 0x20 <= 0x7A or 0x30 <= c <= 0x39 or c in (0x5F, 0x2D, 0x25, 0x7C)):
            return False
    if stop - start >= 8 and holds(data, start, 8, b"rmq_sys_"):
        return False
    return not _is_taken(data, start, stop)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _is_taken(data: cython.p_const_uchar, start: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.bint:
    """Whether the text is one of the names that the general path looks at."""
    return stop - start <= _NAME_BYTES_MAX and is_listed(data, start, stop - start, _NAMES, _NAMES_OF)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _compare(
    data: cython.p_const_uchar,
    one: cython.Py_ssize_t,
    one_end: cython.Py_ssize_t,
    two: cython.Py_ssize_t,
    two_end: cython.Py_ssize_t,
) -> cython.int:
    """Returns a negative number, 0 or a positive one: the order of two texts by their bytes."""
    while one < one_end and two < two_end:
        if data[one] != data[two]:
            return 1 if data[one] > data[two] else -1
        one += 1
        two += 1
    return (1 if one < one_end else 0) - (1 if two < two_end else 0)


# -- writing -----------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_properties(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    known: cython.p_longlong,
    keys: cython.p_longlong,
    host: cython.p_const_uchar,
    host_len: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the properties of the system in the order of ``proxy.sending``; returns the position after them."""
    i: cython.Py_ssize_t
    if known[_TAG] < known[_TAG + 1]:
        position = _put_value(out, put(out, position, b"TAGS", 4), data, known[_TAG], known[_TAG + 1])
    if known[_KEYS] > 0:
        position = put(out, position, b"KEYS\x01", 5)
        for i in range(known[_KEYS]):
            if i > 0:
                position = put(out, position, b" ", 1)
            position = copy(out, position, data, keys[2 * i], keys[2 * i + 1] - keys[2 * i])
        position = put(out, position, b"\x02", 1)
    position = _put_value(out, put(out, position, b"UNIQ_KEY", 8), data, known[_ID], known[_ID + 1])
    position = put_decimal(out, put(out, position, b"RECONSUME_TIME\x01", 15), known[_ATTEMPT])
    position = put(out, position, b"\x02PGROUP", 7)
    position = _put_value(out, position, data, known[_TOPIC], known[_TOPIC + 1])
    if known[_TRACE] < known[_TRACE + 1]:
        position = _put_value(out, put(out, position, b"TRACE_CONTEXT", 13), data, known[_TRACE], known[_TRACE + 1])
    if known[_HOST] < known[_HOST + 1]:
        position = _put_value(out, put(out, position, b"__BORNHOST", 10), data, known[_HOST], known[_HOST + 1])
    elif host_len > 0:
        position = _put_value(out, put(out, position, b"__BORNHOST", 10), host, 0, host_len)
    position = put_decimal(out, put(out, position, b"BORN_TIMESTAMP\x01", 15), known[_BORN_MS])
    return put(out, position, b"\x02", 1)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_pairs(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    pairs: cython.p_longlong,
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes ``count`` user properties; returns the position after them."""
    i: cython.Py_ssize_t
    for i in range(count):
        position = copy(out, position, data, pairs[4 * i], pairs[4 * i + 1] - pairs[4 * i])
        position = _put_value(out, position, data, pairs[4 * i + 2], pairs[4 * i + 3])
    return position


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _put_value(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes a value and the separators around it, after the name of its property."""
    out[position] = 1
    position = copy(out, position + 1, data, start, stop - start)
    out[position] = 2
    return position + 1
