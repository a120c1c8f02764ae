# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel: finds the frames in a receive buffer and reads the headers of the frequent requests.

``scan_frames`` turns the bytes of a socket read into rows (``common.columns.FrameColumn``). It reads only headers in
the form that RocketMQ's clients write. A row with any other header has the kind ``PLAIN`` and is left to the general
path, which is more tolerant. The kernel never rejects a header, only the frame around it (``protocol.md`` 1.1).

The kernel works on raw pointers without bounds checks. Every function takes the limit up to which it may read, and
``scan_frames`` derives that limit from lengths checked against the buffer.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.rucola.common.kernel_columns import *
    from cython.cimports.rucola.common.kernel_text import *
else:
    from rucola.common.kernel_columns import *
    from rucola.common.kernel_text import *


# While a header is read, this spare column of its row marks the fields read so far: bit ``1 << column`` for each field,
# and the bits ``_SEEN_ESCAPES`` and ``_SEEN_BATCH``.
_SEEN = cython.declare(cython.int, 39)
_SEEN_ESCAPES = cython.declare(cython.int, 1 << 28)
_SEEN_BATCH = cython.declare(cython.int, 1 << 29)

# The names that a request uses for its ext fields.
_NAMES_V1 = cython.declare(cython.int, 1)
_NAMES_V2 = cython.declare(cython.int, 2)
_NAMES_PULL = cython.declare(cython.int, 3)

# Description of an ext field: its column plus one of these types.
_IGNORED = cython.declare(cython.int, 0)
_NAME = cython.declare(cython.int, 0x100)  # Plain ASCII.
_TEXT = cython.declare(cython.int, 0x200)  # UTF-8, may contain escapes.
_INT = cython.declare(cython.int, 0x400)
_LONG = cython.declare(cython.int, 0x800)
_BOOLEAN = cython.declare(cython.int, 0x1000)  # Used for the batch flag only.
_COLUMN_MASK = cython.declare(cython.int, 0xFF)

_FRAME_BYTES_MAX = cython.declare(cython.longlong, 16777216)
_EXT_FIELDS_MAX = cython.declare(cython.int, 128)
_INT_MIN = cython.declare(cython.longlong, -2147483648)
_INT_MAX = cython.declare(cython.longlong, 2147483647)


# For each byte: whether it is a printable ASCII character that needs no escape in a JSON string, and its value as a
# hexadecimal digit (-1 if it is not one).
_STANDS_FOR_ITSELF = cython.declare(cython.uchar[256])
_HEX_DIGIT = cython.declare(cython.int[256])


def _fill_tables() -> None:
    byte: cython.int
    for byte in range(256):
        _STANDS_FOR_ITSELF[byte] = 0x20 <= byte <= 0x7E and byte not in (QUOTE, BACKSLASH)
        if 0x30 <= byte <= 0x39:
            _HEX_DIGIT[byte] = byte - 0x30
        elif 0x61 <= (byte | 0x20) <= 0x66:
            _HEX_DIGIT[byte] = (byte | 0x20) - 0x57
        else:
            _HEX_DIGIT[byte] = -1


_fill_tables()


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def scan_frames(
    source: cython.uchar[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    table: cython.longlong[::1],
    rows_max: cython.Py_ssize_t,
) -> tuple[int, int, int, int]:
    """Writes one row per complete frame in ``source[start:end]``.

    In every row, the columns that describe the frame are set. Code, opaque, flag and version are set only if the header
    could be read; otherwise flag is -1. In rows of kind SEND, BATCH and PULL, the text of the properties or of the
    subscription is unescaped in place: the closing quote moves to the end of the shorter text, and spaces fill the gap.

    Returns:
        ``(rows, next_position, error, unread)``. ``next_position``: position of the first byte not consumed. ``error``:
        0 if the next frame is incomplete or the table is full; otherwise the invalid part of the frame: 1 length, 2
        serialize type, 3 header length. ``unread``: the number of rows whose flag is -1.
    """
    row: cython.Py_ssize_t = 0
    base: cython.Py_ssize_t = 0
    unread: cython.Py_ssize_t = 0
    position: cython.Py_ssize_t = start
    length: cython.longlong
    header_len: cython.longlong
    if start < 0 or end > len(source) or rows_max * ROW_WIDTH > len(table):
        raise ValueError(f"range {start}..{end} or {rows_max} rows lie outside the buffers")
    if end - start < 4 or rows_max < 1:
        return 0, start, 0, 0
    if cython.compiled:
        data: cython.p_uchar = cython.address(source[0])
        out: cython.p_longlong = cython.address(table[0])
    else:
        data = source
        out = table
    while row < rows_max and end - position >= 4:
        length = _uint32(data, position)
        if length < 4 or length + 4 > _FRAME_BYTES_MAX:
            return row, position, 1, unread
        if end - position < 8:
            break
        if data[position + 4] > 1:
            return row, position, 2, unread
        header_len = _uint32(data, position + 4) & 0xFFFFFF
        if header_len == 0 or header_len > length - 4:
            return row, position, 3, unread
        if length + 4 > end - position:
            break
        unread += _read_frame(data, out, base, position, header_len, length)
        if row > 0 and out[base + FRAME_KIND] != KIND_PLAIN:
            out[base + FRAME_SAME_TOPIC] = _same_topic(data, out, base)
        position += cython.cast(cython.Py_ssize_t, length + 4)
        row += 1
        base += ROW_WIDTH
    return row, position, 0, unread


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_frame(
    data: cython.p_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
    position: cython.Py_ssize_t,
    header_len: cython.longlong,
    length: cython.longlong,
) -> cython.int:
    """Fills the row of the complete frame at ``position``; returns 1 if its header could not be read."""
    names: cython.int
    header: cython.Py_ssize_t = position + 8
    limit: cython.Py_ssize_t = header + cython.cast(cython.Py_ssize_t, header_len)
    _clear_row(table, base, 0)
    if data[position + 4] == 0:
        names = _read_json(data, table, base, header, limit)
    else:
        names = _read_binary(data, table, base, header, limit)
    if names < 0:
        _clear_row(table, base, 0)
        table[base + FRAME_FLAG] = -1
    elif names == 0 or _finish(data, table, base) == 0:
        _clear_row(table, base, FRAME_SERIALIZE)
        table[base + FRAME_KIND] = KIND_PLAIN
    table[base + FRAME_SERIALIZE] = data[position + 4]
    table[base + FRAME_HEADER_POS] = header
    table[base + FRAME_HEADER_LEN] = header_len
    table[base + FRAME_BODY_POS] = limit
    table[base + FRAME_BODY_LEN] = length - 4 - header_len
    return 1 if names < 0 else 0


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _clear_row(table: cython.p_longlong, base: cython.Py_ssize_t, column: cython.Py_ssize_t) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(base + column, base + ROW_WIDTH):
        table[i] = 0


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _finish(data: cython.p_uchar, table: cython.p_longlong, base: cython.Py_ssize_t) -> cython.int:
    """Whether all required fields are present; if so, sets the row's kind and unescapes its text. This is the last
    step, so the row cannot become invalid later.
    """
    code: cython.longlong = table[base + FRAME_CODE]
    seen: cython.longlong = table[base + _SEEN]
    required: cython.longlong = (
        (1 << FRAME_GROUP_POS) | (1 << FRAME_TOPIC_POS) | (1 << FRAME_QUEUE_ID) | (1 << FRAME_SYS_FLAG)
    )
    required |= (1 << FRAME_BORN_TIMESTAMP) | (1 << FRAME_MESSAGE_FLAG) | (1 << FRAME_DEFAULT_TOPIC_POS)
    if code in (11, 361):
        required |= (1 << FRAME_PULL_COMMIT_OFFSET) | (1 << FRAME_PULL_SUB_VERSION)
    else:
        required |= 1 << FRAME_DEFAULT_TOPIC_QUEUES
    if seen & required != required or table[base + FRAME_FLAG] & 1 or table[base + FRAME_TOPIC_LEN] == 0:
        return 0
    if code in (11, 361):
        table[base + FRAME_KIND] = KIND_PULL
        if not seen & (1 << FRAME_PULL_EXPRESSION_TYPE_POS):
            table[base + FRAME_PULL_EXPRESSION_TYPE_LEN] = -1
    else:
        # Retry topics need maxReconsumeTimes, which has no column (RocketMQ 5.3.3, SendMessageProcessor).
        if data[table[base + FRAME_TOPIC_POS]] == 0x25:
            return 0
        table[base + FRAME_KIND] = KIND_BATCH if seen & _SEEN_BATCH else KIND_SEND
        table[base + FRAME_UNIQ_KEY_LEN] = -1
    if not seen & (1 << FRAME_PROPERTIES_POS):
        table[base + FRAME_PROPERTIES_LEN] = -1
    elif seen & _SEEN_ESCAPES:
        table[base + FRAME_PROPERTIES_LEN] = _unescape(
            data,
            table[base + FRAME_PROPERTIES_POS],
            table[base + FRAME_PROPERTIES_POS] + table[base + FRAME_PROPERTIES_LEN],
        )
    table[base + _SEEN] = 0
    return 1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _same_topic(data: cython.p_uchar, table: cython.p_longlong, base: cython.Py_ssize_t) -> cython.int:
    previous: cython.Py_ssize_t = base - ROW_WIDTH
    i: cython.Py_ssize_t
    length: cython.Py_ssize_t = table[base + FRAME_TOPIC_LEN]
    here: cython.Py_ssize_t = table[base + FRAME_TOPIC_POS]
    there: cython.Py_ssize_t = table[previous + FRAME_TOPIC_POS]
    if table[previous + FRAME_KIND] != table[base + FRAME_KIND] or table[previous + FRAME_TOPIC_LEN] != length:
        return 0
    for i in range(length):
        if data[here + i] != data[there + i]:
            return 0
    return 1


# --- names and values -------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _names_of(code: cython.longlong) -> cython.int:
    """Returns which names requests with ``code`` use for their ext fields: ``_NAMES_V1``, ``_NAMES_V2`` or
    ``_NAMES_PULL``; 0 if these requests take the general path.
    """
    if code in (310, 320):
        return _NAMES_V2
    if code in (11, 361):
        return _NAMES_PULL
    if code == 10:
        return _NAMES_V1
    return 0


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _header_field(data: cython.p_uchar, key: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
    """Returns the column of a top-level field of a JSON header; -1 for extFields, 0 for an ignored field."""
    if length == 4:
        if holds(data, key, 4, b"code"):
            return FRAME_CODE
        if holds(data, key, 4, b"flag"):
            return FRAME_FLAG
    elif length == 6:
        if holds(data, key, 6, b"opaque"):
            return FRAME_OPAQUE
    elif length == 7:
        if holds(data, key, 7, b"version"):
            return FRAME_VERSION
    elif length == 9 and holds(data, key, 9, b"extFields"):
        return -1
    return 0


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _field(names: cython.int, data: cython.p_uchar, key: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
    """Returns column and type of an ext field; ``_IGNORED`` if the fast path does not use the field."""
    if names == _NAMES_V2:
        return _field_v2(data[key]) if length == 1 else _IGNORED
    if length == 5:
        if holds(data, key, 5, b"topic"):
            return FRAME_TOPIC_POS | _NAME
        if names == _NAMES_V1 and holds(data, key, 5, b"batch"):
            return _BOOLEAN
    elif length == 7:
        if holds(data, key, 7, b"queueId"):
            return FRAME_QUEUE_ID | _INT
        if holds(data, key, 7, b"sysFlag"):
            return FRAME_SYS_FLAG | _INT
    elif names == _NAMES_V1:
        return _field_v1(data, key, length)
    else:
        return _field_pull(data, key, length)
    return _IGNORED


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _field_v2(letter: cython.int) -> cython.int:
    """Returns column and type of the ext field of ``SendMessageRequestHeaderV2`` with the name ``letter``. Ignores k
    (unitMode), l (maxReconsumeTimes) and n (brokerName).
    """
    if letter == 0x61:
        return FRAME_GROUP_POS | _NAME
    if letter == 0x62:
        return FRAME_TOPIC_POS | _NAME
    if letter == 0x63:
        return FRAME_DEFAULT_TOPIC_POS | _NAME
    if letter == 0x64:
        return FRAME_DEFAULT_TOPIC_QUEUES | _INT
    if letter == 0x65:
        return FRAME_QUEUE_ID | _INT
    if letter == 0x66:
        return FRAME_SYS_FLAG | _INT
    if letter == 0x67:
        return FRAME_BORN_TIMESTAMP | _LONG
    if letter == 0x68:
        return FRAME_MESSAGE_FLAG | _INT
    if letter == 0x69:
        return FRAME_PROPERTIES_POS | _TEXT
    if letter == 0x6A:
        return FRAME_RECONSUME_TIMES | _INT
    if letter == 0x6D:
        return _BOOLEAN
    return _IGNORED


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _field_v1(data: cython.p_uchar, key: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
    """Returns column and type of an ext field of ``SendMessageRequestHeader`` (Go client, older C++ clients)."""
    if length == 4 and holds(data, key, 4, b"flag"):
        return FRAME_MESSAGE_FLAG | _INT
    if length == 10 and holds(data, key, 10, b"properties"):
        return FRAME_PROPERTIES_POS | _TEXT
    if length == 12 and holds(data, key, 12, b"defaultTopic"):
        return FRAME_DEFAULT_TOPIC_POS | _NAME
    if length == 13 and holds(data, key, 13, b"producerGroup"):
        return FRAME_GROUP_POS | _NAME
    if length == 13 and holds(data, key, 13, b"bornTimestamp"):
        return FRAME_BORN_TIMESTAMP | _LONG
    if length == 14 and holds(data, key, 14, b"reconsumeTimes"):
        return FRAME_RECONSUME_TIMES | _INT
    if length == 21 and holds(data, key, 21, b"defaultTopicQueueNums"):
        return FRAME_DEFAULT_TOPIC_QUEUES | _INT
    return _IGNORED


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _field_pull(data: cython.p_uchar, key: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
    """Returns column and type of an ext field of ``PullMessageRequestHeader``."""
    if length == 10 and holds(data, key, 10, b"maxMsgNums"):
        return FRAME_PULL_MAX_MESSAGES | _INT
    if length == 10 and holds(data, key, 10, b"subVersion"):
        return FRAME_PULL_SUB_VERSION | _LONG
    if length == 11 and holds(data, key, 11, b"queueOffset"):
        return FRAME_PULL_QUEUE_OFFSET | _LONG
    if length == 12 and holds(data, key, 12, b"commitOffset"):
        return FRAME_PULL_COMMIT_OFFSET | _LONG
    if length == 12 and holds(data, key, 12, b"subscription"):
        return FRAME_PULL_EXPRESSION_POS | _TEXT
    if length == 13 and holds(data, key, 13, b"consumerGroup"):
        return FRAME_GROUP_POS | _NAME
    if length == 14 and holds(data, key, 14, b"expressionType"):
        return FRAME_PULL_EXPRESSION_TYPE_POS | _NAME
    if length == 20 and holds(data, key, 20, b"suspendTimeoutMillis"):
        return FRAME_PULL_SUSPEND_TIMEOUT | _LONG
    return _IGNORED


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _store(
    data: cython.p_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
    field: cython.int,
    position: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.int:
    """Stores an ext field's value in the field's columns. Returns 0 if the field already has a value, or if an integer
    field's value is too large or not an integer.
    """
    column: cython.int = field & _COLUMN_MASK
    value: cython.longlong
    bit: cython.longlong = 1 << column
    if table[base + _SEEN] & bit:
        return 0
    table[base + _SEEN] |= bit
    if field & (_NAME | _TEXT):
        table[base + column] = position
        table[base + column + 1] = length
        return 1
    if field & _BOOLEAN:
        # Boolean.parseBoolean: "true", in upper or lower case, is true; anything else is false.
        if length == 4 and data[position] | 0x20 == 0x74 and data[position + 1] | 0x20 == 0x72:
            if data[position + 2] | 0x20 == 0x75 and data[position + 3] | 0x20 == 0x65:
                table[base + _SEEN] |= _SEEN_BATCH
        return 1
    value = integer(data, position, position + length)
    if value == NO_NUMBER or (field & _INT and (value < _INT_MIN or value > _INT_MAX)):
        return 0
    table[base + column] = value
    return 1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _uint32(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = data[position]
    value = (value << 8) | data[position + 1]
    value = (value << 8) | data[position + 2]
    return (value << 8) | data[position + 3]


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _int32(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = _uint32(data, position)
    return value - 2 * (_INT_MAX + 1) if value > _INT_MAX else value


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _int16(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = data[position]
    value = (value << 8) | data[position + 1]
    return value - 65536 if value >= 32768 else value


# --- JSON header ------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_json(
    data: cython.p_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
) -> cython.int:
    """Reads the JSON header in ``data[position:limit]`` into the row.

    Returns:
        Which names the header uses for its ext fields, such as ``_NAMES_V1``; 0 if requests with this code take the
        general path; -1 if the header has an unusual form.
    """
    names: cython.int = 0
    seen: cython.int = 0
    column: cython.int
    start: cython.Py_ssize_t
    key_end: cython.Py_ssize_t
    ext_position: cython.Py_ssize_t = -1
    position = _skip_space(data, position, limit)
    if position >= limit or data[position] != BRACE_OPEN:
        return -1
    while True:
        start = _skip_space(data, position + 1, limit) + 1
        key_end = _key_end(data, start, limit)
        if key_end < 0:
            return -1
        column = _header_field(data, start, key_end - start)
        start = _value_start(data, key_end + 1, limit)
        if start < 0 or (column > 0 and seen & (1 << column)) or (column < 0 and ext_position >= 0):
            return -1
        if column > 0:
            seen |= 1 << column
            position = _read_number(data, table, base + column, start, limit)
            if column == FRAME_CODE:
                names = _names_of(table[base + FRAME_CODE])
        elif column < 0 and data[start] == BRACE_OPEN:
            # The names of ext fields depend on the code: if the code comes later, the ext fields are read again.
            ext_position = start
            position = _read_fields(data, table, base, names, start, limit)
        else:
            position = _read_value(data, table, base, _IGNORED, start, limit)
        if position < 0:
            return -1
        position = _skip_space(data, position, limit)
        if position >= limit:
            return -1
        if data[position] == BRACE_CLOSE:
            break
        if data[position] != COMMA:
            return -1
    if _skip_space(data, position + 1, limit) != limit:
        return -1
    if seen != (1 << FRAME_CODE) | (1 << FRAME_OPAQUE) | (1 << FRAME_FLAG) | (1 << FRAME_VERSION):
        return -1
    if names != 0 and ext_position >= 0 and table[base + _SEEN] == 0:
        if _read_fields(data, table, base, names, ext_position, limit) < 0:
            return -1
    return names


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_number(
    data: cython.p_uchar,
    table: cython.p_longlong,
    column: cython.Py_ssize_t,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Reads a 32-bit JSON integer into ``table[column]``; returns the position after it, or -1."""
    end: cython.Py_ssize_t = _integer_end(data, position, limit)
    if end >= 0:
        table[column] = integer(data, position, end)
        if table[column] < _INT_MIN or table[column] > _INT_MAX:
            return -1
    return end


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_fields(
    data: cython.p_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
    names: cython.int,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Reads the object of ext fields that opens at ``position``; returns the position after the object, or -1.

    If ``names`` is 0, only finds the end of the object.
    """
    key: cython.Py_ssize_t
    key_end: cython.Py_ssize_t
    field: cython.int
    count: cython.int = 0
    key = _skip_space(data, position + 1, limit)
    if key < limit and data[key] == BRACE_CLOSE:
        return key + 1
    while True:
        count += 1
        key = _skip_space(data, position + 1, limit) + 1
        key_end = _key_end(data, key, limit)
        if key_end < 0 or count > _EXT_FIELDS_MAX:
            return -1
        position = _value_start(data, key_end + 1, limit)
        if position < 0:
            return -1
        field = _field(names, data, key, key_end - key) if names != 0 else _IGNORED
        position = _read_value(data, table, base, field, position, limit)
        if position < 0:
            return -1
        position = _skip_space(data, position, limit)
        if position >= limit:
            return -1
        if data[position] == BRACE_CLOSE:
            return position + 1
        if data[position] != COMMA:
            return -1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_value(
    data: cython.p_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
    field: cython.int,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Reads a string, an integer or a literal into the field's columns; returns the position after the value, or -1 if
    the value has an unusual form. The value begins at ``position``, which must be below ``limit``.
    """
    start: cython.Py_ssize_t = position
    end: cython.Py_ssize_t
    after: cython.Py_ssize_t
    if data[position] == QUOTE:
        start = position + 1
        end = _plain_end(data, start, limit)
        if end >= limit:
            return -1
        if data[end] != QUOTE:
            if field != _IGNORED and not field & _TEXT:
                return -1
            end = _text_end(data, end, limit)
            if end < 0:
                return -1
            if field != _IGNORED:
                table[base + _SEEN] |= _SEEN_ESCAPES
        after = end + 1
    else:
        end = _literal_end(data, position, limit)
        # null means that the field is absent; this is rare enough for the general path.
        if end < 0 or (field != _IGNORED and data[position] == 0x6E):
            return -1
        after = end
    if field != _IGNORED and not _store(data, table, base, field, start, end - start):
        return -1
    return after


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _skip_space(data: cython.p_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    while position < limit and data[position] <= 0x20:
        if data[position] != 0x20 and data[position] != 0x0A and data[position] != 0x0D and data[position] != 0x09:
            break
        position += 1
    return position


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _plain_end(data: cython.p_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the position of the first byte for which ``_STANDS_FOR_ITSELF`` is false; ``limit`` if there is none."""
    while position < limit and _STANDS_FOR_ITSELF[data[position]]:
        position += 1
    return position


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _key_end(data: cython.p_uchar, key: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the position of the closing quote of the key whose text starts at ``key``, or -1."""
    end: cython.Py_ssize_t
    if key >= limit or data[key - 1] != QUOTE:
        return -1
    end = _plain_end(data, key, limit)
    return end if end < limit and data[end] == QUOTE else -1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _value_start(data: cython.p_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the position at which the value after a key starts; -1 if no value starts below ``limit``."""
    position = _skip_space(data, position, limit)
    if position >= limit or data[position] != COLON:
        return -1
    position = _skip_space(data, position + 1, limit)
    return position if position < limit else -1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _integer_end(data: cython.p_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the position after the JSON integer at ``position``; -1 if there is none of at most 18 digits."""
    start: cython.Py_ssize_t
    negative: cython.bint = position < limit and data[position] == 0x2D
    if negative:
        position += 1
    start = position
    while position < limit and 0x30 <= data[position] <= 0x39:
        position += 1
    if position == start or position - start > 18:
        return -1
    # JSON allows no leading zeros, and "-0" must not be turned into "0".
    return -1 if data[start] == 0x30 and (negative or position - start > 1) else position


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _literal_end(data: cython.p_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the position after the literal (``true``, ``false`` or ``null``) or integer at ``position``; -1 if
    there is neither, or the integer has more than 18 digits.
    """
    if limit - position >= 4 and (holds(data, position, 4, b"true") or holds(data, position, 4, b"null")):
        return position + 4
    if limit - position >= 5 and holds(data, position, 5, b"false"):
        return position + 5
    return _integer_end(data, position, limit)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _text_end(data: cython.p_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the position of the closing quote of a JSON string with escapes and UTF-8, or -1 if the string is
    invalid.
    """
    step: cython.Py_ssize_t
    c: cython.int
    while position < limit:
        c = data[position]
        if c == BACKSLASH:
            step = _escape_length(data, position, limit)
        elif c == QUOTE:
            return position
        elif c < 0x20:
            return -1
        else:
            step = 1 if c < 0x80 else _utf8_length(data, position, limit)
        if step < 0:
            return -1
        position = _plain_end(data, position + step, limit)
    return -1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _hex4(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.int:
    """Returns the value of four hexadecimal digits, or a negative number if they are invalid."""
    value: cython.int = _HEX_DIGIT[data[position]] * 4096
    value |= _HEX_DIGIT[data[position + 1]] * 256
    value |= _HEX_DIGIT[data[position + 2]] * 16
    return value | _HEX_DIGIT[data[position + 3]]


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _escape_length(data: cython.p_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the length of the escape at ``position`` (2, 6, or 12 for a surrogate pair), or -1."""
    unit: cython.int
    if limit - position < 2:
        return -1
    if data[position + 1] != 0x75:
        return 2 if _short_escape(data[position + 1]) >= 0 else -1
    if limit - position < 6:
        return -1
    unit = _hex4(data, position + 2)
    if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
        return -1
    if unit < 0xD800 or unit > 0xDFFF:
        return 6
    if limit - position < 12 or data[position + 6] != BACKSLASH or data[position + 7] != 0x75:
        return -1
    unit = _hex4(data, position + 8)
    return 12 if 0xDC00 <= unit <= 0xDFFF else -1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _short_escape(letter: cython.int) -> cython.int:
    """Returns the byte that a two-character escape represents, or -1."""
    if letter in (QUOTE, BACKSLASH, 0x2F):
        return letter
    if letter == 0x6E:
        return 0x0A
    if letter == 0x74:
        return 0x09
    if letter == 0x72:
        return 0x0D
    if letter == 0x62:
        return 0x08
    if letter == 0x66:
        return 0x0C
    return -1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _utf8_length(data: cython.p_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the length of the non-ASCII UTF-8 character at ``position``; -1 if it is truncated, overlong, a surrogate
    or too large.
    """
    lead: cython.int = data[position]
    second: cython.int
    length: cython.Py_ssize_t
    i: cython.Py_ssize_t
    low: cython.int = 0x80
    high: cython.int = 0xBF
    if 0xC2 <= lead <= 0xDF:
        length = 2
    elif 0xE0 <= lead <= 0xEF:
        length = 3
        low = 0xA0 if lead == 0xE0 else 0x80
        high = 0x9F if lead == 0xED else 0xBF
    elif 0xF0 <= lead <= 0xF4:
        length = 4
        low = 0x90 if lead == 0xF0 else 0x80
        high = 0x8F if lead == 0xF4 else 0xBF
    else:
        return -1
    if limit - position < length:
        return -1
    second = data[position + 1]
    if second < low or second > high:
        return -1
    for i in range(position + 2, position + length):
        if data[i] & 0xC0 != 0x80:
            return -1
    return length


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _unescape(data: cython.p_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Replaces the escapes of the valid JSON string text ``data[position:end]`` in place; returns its new length.

    The closing quote moves to the end of the text and spaces fill the gap, so that the header remains valid JSON.
    """
    read: cython.Py_ssize_t = position
    write: cython.Py_ssize_t = position
    character: cython.int
    while read < end:
        if data[read] != BACKSLASH:
            data[write] = data[read]
            read += 1
            write += 1
        elif data[read + 1] != 0x75:
            data[write] = _short_escape(data[read + 1])
            read += 2
            write += 1
        else:
            character = _hex4(data, read + 2)
            read += 6
            if 0xD800 <= character <= 0xDBFF:
                character = 0x10000 + ((character - 0xD800) << 10) + _hex4(data, read + 2) - 0xDC00
                read += 6
            write = _put_utf8(data, write, character)
    if write < end:
        data[write] = cython.cast(cython.uchar, QUOTE)
        for read in range(write + 1, end + 1):
            data[read] = 0x20
    return write - position


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_utf8(data: cython.p_uchar, position: cython.Py_ssize_t, character: cython.int) -> cython.Py_ssize_t:
    if character < 0x80:
        data[position] = character
        return position + 1
    if character < 0x800:
        data[position] = 0xC0 | (character >> 6)
        data[position + 1] = 0x80 | (character & 0x3F)
        return position + 2
    if character < 0x10000:
        data[position] = 0xE0 | (character >> 12)
        data[position + 1] = 0x80 | ((character >> 6) & 0x3F)
        data[position + 2] = 0x80 | (character & 0x3F)
        return position + 3
    data[position] = 0xF0 | (character >> 18)
    data[position + 1] = 0x80 | ((character >> 12) & 0x3F)
    data[position + 2] = 0x80 | ((character >> 6) & 0x3F)
    data[position + 3] = 0x80 | (character & 0x3F)
    return position + 4


# --- binary header ----------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_binary(
    data: cython.p_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
) -> cython.int:
    """Reads the binary header in ``data[position:limit]`` into the row; returns the same results as ``_read_json``."""
    names: cython.int
    field: cython.int
    count: cython.int = 0
    key: cython.Py_ssize_t
    key_len: cython.longlong
    value_len: cython.longlong
    if limit - position < 21:
        return -1
    table[base + FRAME_CODE] = _int16(data, position)
    table[base + FRAME_VERSION] = _int16(data, position + 3)
    table[base + FRAME_OPAQUE] = _int32(data, position + 5)
    table[base + FRAME_FLAG] = _int32(data, position + 9)
    names = _names_of(table[base + FRAME_CODE])
    if names == 0:
        return 0
    # Requests with frequent codes have no remark.
    if _uint32(data, position + 13) != 0 or _uint32(data, position + 17) != limit - position - 21:
        return -1
    position += 21
    while position < limit:
        count += 1
        if limit - position < 2 or count > _EXT_FIELDS_MAX:
            return -1
        key = position + 2
        key_len = _int16(data, position)
        if key_len < 1 or key_len + 4 > limit - key:
            return -1
        position = key + cython.cast(cython.Py_ssize_t, key_len) + 4
        value_len = _int32(data, position - 4)
        if value_len < 0 or value_len > limit - position:
            return -1
        if _text_kind(data, key, key + cython.cast(cython.Py_ssize_t, key_len)) != 1:
            return -1
        field = _field(names, data, key, cython.cast(cython.Py_ssize_t, key_len))
        # An empty value is null, so the field is absent.
        if value_len > 0 and not _read_binary_value(
            data, table, base, field, position, position + cython.cast(cython.Py_ssize_t, value_len)
        ):
            return -1
        position += cython.cast(cython.Py_ssize_t, value_len)
    return names


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _read_binary_value(
    data: cython.p_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
    field: cython.int,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.int:
    kind: cython.int = _text_kind(data, position, end)
    if kind == 0 or (kind == 2 and field & _NAME):
        return 0
    return 1 if field == _IGNORED else _store(data, table, base, field, position, end - position)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _text_kind(data: cython.p_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """Returns 1 if the bytes are ASCII characters that need no escape in a JSON string, 2 for other valid UTF-8,
    0 otherwise.
    """
    step: cython.Py_ssize_t
    position = _plain_end(data, position, end)
    if position == end:
        return 1
    while position < end:
        step = 1 if data[position] < 0x80 else _utf8_length(data, position, end)
        if step < 0:
            return 0
        position += step
    return 2
