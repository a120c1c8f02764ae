# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel: finds the frames of HTTP/2 in a receive buffer, and checks each for itself (RFC 9113 4.1, 6).

Whether a frame may come now is not asked here: that is for the connection, which knows its streams. The columns are
those of ``http2.columns``. No byte outside ``source[start:end]`` is read: each frame is inside before its payload is.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.rucola.http2.columns import *
else:
    from rucola.http2.columns import *

SCOPE_NONE = cython.declare(cython.int, 0)
SCOPE_STREAM = cython.declare(cython.int, 1)
SCOPE_CONNECTION = cython.declare(cython.int, 2)

HEAD_BYTES = cython.declare(cython.int, 9)
DATA = cython.declare(cython.int, 0)
HEADERS = cython.declare(cython.int, 1)
PRIORITY = cython.declare(cython.int, 2)
RST_STREAM = cython.declare(cython.int, 3)
SETTINGS = cython.declare(cython.int, 4)
PUSH_PROMISE = cython.declare(cython.int, 5)
PING = cython.declare(cython.int, 6)
GOAWAY = cython.declare(cython.int, 7)
WINDOW_UPDATE = cython.declare(cython.int, 8)
CONTINUATION = cython.declare(cython.int, 9)
FLAG_ACK = cython.declare(cython.int, 0x1)
FLAG_END_STREAM = cython.declare(cython.int, 0x1)
FLAG_PADDED = cython.declare(cython.int, 0x8)
FLAG_PRIORITY = cython.declare(cython.int, 0x20)
PROTOCOL_ERROR = cython.declare(cython.int, 1)
FRAME_SIZE_ERROR = cython.declare(cython.int, 6)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def find_frames(
    source: bytearray,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    table: cython.longlong[::1],
    rows_max: cython.Py_ssize_t,
    frame_bytes_max: cython.longlong,
) -> tuple[int, int]:
    """Writes one row for each complete frame in ``source[start:end]``, at most ``rows_max``.

    A frame that ends the connection is the last row, even if its end has not arrived. ``ROW_FLOW`` is the length of the
    payload; position and length in the row leave out padding and the fields of a priority.

    Returns:
        The number of rows, and the position of the first byte that is in no row.

    Raises:
        ValueError: if the range or the rows lie outside their buffer.
    """
    rows: cython.Py_ssize_t
    if not 0 <= start <= end <= len(source) or not 0 <= rows_max * ROW_COLUMNS <= len(table):
        raise ValueError(f"range {start}..{end} or {rows_max} rows lie outside the buffers")
    if rows_max < 1:
        return 0, start
    if cython.compiled:
        data: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyByteArray_AS_STRING(source))
        out: cython.p_longlong = cython.address(table[0])
    else:
        data = source
        out = table
    rows = find(data, start, end, out, rows_max, frame_bytes_max)
    if rows == 0:
        return 0, start
    last: cython.Py_ssize_t = (rows - 1) * ROW_COLUMNS
    if table[last + ROW_FLOW] > frame_bytes_max:
        return rows, table[last + ROW_START]
    return rows, table[last + ROW_START] + HEAD_BYTES + table[last + ROW_FLOW]


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def find(
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.p_longlong,
    rows_max: cython.Py_ssize_t,
    frame_bytes_max: cython.longlong,
) -> cython.Py_ssize_t:
    """Does the work of ``find_frames`` for other kernels, which have checked range and rows; returns the rows."""
    row: cython.Py_ssize_t = 0
    base: cython.Py_ssize_t
    position: cython.Py_ssize_t = start
    length: cython.longlong
    column: cython.Py_ssize_t
    while row < rows_max and end - position >= HEAD_BYTES:
        length = (data[position] << 16) | (data[position + 1] << 8) | data[position + 2]
        if length <= frame_bytes_max and length + HEAD_BYTES > end - position:
            break
        base = row * ROW_COLUMNS
        for column in range(ROW_COLUMNS):
            out[base + column] = 0
        out[base + ROW_START] = position
        out[base + ROW_TYPE] = data[position + 3]
        out[base + ROW_FLAGS] = data[position + 4]
        out[base + ROW_STREAM] = _word(data, position + 5) & 0x7FFFFFFF
        out[base + ROW_POSITION] = position + HEAD_BYTES
        out[base + ROW_LENGTH] = out[base + ROW_FLOW] = length
        row += 1
        if length > frame_bytes_max:
            _refuse(out, base, SCOPE_CONNECTION, FRAME_SIZE_ERROR)
        else:
            position += HEAD_BYTES + cython.cast(cython.Py_ssize_t, length)
            _check(data, out, base)
        if out[base + ROW_SCOPE] == SCOPE_CONNECTION:
            break
    return row


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _word(data: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    return (cython.cast(cython.longlong, data[at]) << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _refuse(out: cython.p_longlong, base: cython.Py_ssize_t, scope: cython.int, code: cython.int) -> cython.void:
    out[base + ROW_SCOPE] = scope
    out[base + ROW_CODE] = code


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _check(data: cython.p_const_uchar, out: cython.p_longlong, base: cython.Py_ssize_t) -> cython.void:
    """Checks the frame of a row by its type; leaves out padding and priority, and notes the end of the stream."""
    kind: cython.longlong = out[base + ROW_TYPE]
    if kind > CONTINUATION:
        return
    if kind in (SETTINGS, PING, GOAWAY):
        if out[base + ROW_STREAM] != 0:
            _refuse(out, base, SCOPE_CONNECTION, PROTOCOL_ERROR)
        elif not _is_of_size(out, base, kind):
            _refuse(out, base, SCOPE_CONNECTION, FRAME_SIZE_ERROR)
    elif kind == WINDOW_UPDATE:
        _check_window(data, out, base)
    elif out[base + ROW_STREAM] == 0 or kind == PUSH_PROMISE:
        _refuse(out, base, SCOPE_CONNECTION, PROTOCOL_ERROR)
    elif kind == PRIORITY:
        if out[base + ROW_LENGTH] != 5:
            _refuse(out, base, SCOPE_STREAM, FRAME_SIZE_ERROR)
        elif (_word(data, out[base + ROW_POSITION]) & 0x7FFFFFFF) == out[base + ROW_STREAM]:
            _refuse(out, base, SCOPE_STREAM, PROTOCOL_ERROR)
    elif kind == RST_STREAM:
        if out[base + ROW_LENGTH] != 4:
            _refuse(out, base, SCOPE_CONNECTION, FRAME_SIZE_ERROR)
        else:
            out[base + ROW_CODE] = _word(data, out[base + ROW_POSITION])
    elif kind != CONTINUATION:
        _trim(data, out, base)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _is_of_size(out: cython.p_longlong, base: cython.Py_ssize_t, kind: cython.longlong) -> cython.bint:
    """Whether SETTINGS, PING or GOAWAY has a length that such a frame may have."""
    length: cython.longlong = out[base + ROW_LENGTH]
    if kind == PING:
        return length == 8
    if kind == GOAWAY:
        return length >= 8
    return length % 6 == 0 and (length == 0 or not out[base + ROW_FLAGS] & FLAG_ACK)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _check_window(data: cython.p_const_uchar, out: cython.p_longlong, base: cython.Py_ssize_t) -> cython.void:
    """Puts the increment of WINDOW_UPDATE into the column of the length."""
    increment: cython.longlong
    if out[base + ROW_LENGTH] != 4:
        _refuse(out, base, SCOPE_CONNECTION, FRAME_SIZE_ERROR)
        return
    increment = _word(data, out[base + ROW_POSITION]) & 0x7FFFFFFF
    out[base + ROW_LENGTH] = increment
    if increment == 0:
        _refuse(out, base, SCOPE_STREAM if out[base + ROW_STREAM] else SCOPE_CONNECTION, PROTOCOL_ERROR)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _trim(data: cython.p_const_uchar, out: cython.p_longlong, base: cython.Py_ssize_t) -> cython.void:
    """Leaves out padding and priority of DATA or HEADERS."""
    flags: cython.longlong = out[base + ROW_FLAGS]
    position: cython.Py_ssize_t = out[base + ROW_POSITION]
    length: cython.longlong = out[base + ROW_LENGTH]
    padding: cython.longlong = 0
    out[base + ROW_END] = 1 if flags & FLAG_END_STREAM else 0
    if flags & FLAG_PADDED:
        if length < 1:
            _refuse(out, base, SCOPE_CONNECTION, FRAME_SIZE_ERROR)
            return
        padding = data[position]
        position += 1
        length -= 1
    if flags & FLAG_PRIORITY and out[base + ROW_TYPE] == HEADERS:
        if length < 5:
            _refuse(out, base, SCOPE_CONNECTION, FRAME_SIZE_ERROR)
            return
        if (_word(data, position) & 0x7FFFFFFF) == out[base + ROW_STREAM]:
            _refuse(out, base, SCOPE_STREAM, PROTOCOL_ERROR)
        position += 5
        length -= 5
    if padding > length:
        _refuse(out, base, SCOPE_CONNECTION, PROTOCOL_ERROR)
        return
    out[base + ROW_POSITION] = position
    out[base + ROW_LENGTH] = length - padding
