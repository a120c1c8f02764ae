# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel for a producer: writes the properties and the header of a send request, and reads the responses.

The kernel handles what nearly every message needs. It returns None for anything else, such as a property name with a
separator or a response in an unusual form. The caller then takes the general path, which also reports errors.

The kernel uses raw pointers without bounds checks. Before it writes, it computes the space that it needs. Before it
reads the header of a response, it checks that the header lies within the buffer. It never reads beyond the header.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeASCII
    from cython.cimports.rucola.common.kernel_columns import *
    from cython.cimports.rucola.common.kernel_text import *
else:
    from rucola.common.kernel_columns import *
    from rucola.common.kernel_text import *


_ROOM = cython.declare(cython.Py_ssize_t, 8192)
_LAST = cython.declare(cython.Py_ssize_t, 32)  # bytes reserved for separators and for WAIT at the end


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def encode_properties(properties: object) -> bytes | None:
    """Returns the properties as a JSON string; appends WAIT=true unless they contain WAIT.

    Returns:
        None if the properties are not a dict of strings, contain a separator, an empty name or value or a lone
        surrogate, or take more than a few kilobytes.
    """
    room: cython.uchar[8192]
    position: cython.Py_ssize_t = 1
    if type(properties) is not dict:
        return None
    pairs: dict[Any, Any] = properties
    if cython.compiled:
        out: cython.p_uchar = room  # noqa: F821 - an array of C, declared above
    else:
        out = bytearray(_ROOM)
    out[0] = QUOTE
    try:
        for name, value in pairs.items():
            if type(name) is not str or type(value) is not str or not name or not value:
                return None
            position = _put_text(out, position, name)
            if position == 0:
                return None
            position = _put_text(out, put(out, position, b"\\u0001", 6), value)
            if position == 0:
                return None
            position = put(out, position, b"\\u0002", 6)
    except UnicodeEncodeError:
        return None
    if "WAIT" not in pairs:
        position = put(out, position, b"WAIT\\u0001true\\u0002", 20)
    out[position] = QUOTE
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, out), position + 1)
    return bytes(out[: position + 1])


def encode_send_head(
    head: bytes,
    sys_flag: cython.longlong,
    born_timestamp_ms: cython.longlong,
    message_flag: cython.longlong,
    properties: bytes,
    frame_flag: cython.longlong,
    opaque: cython.longlong,
    body_bytes: cython.longlong,
) -> bytes:
    """Returns the frame of a send request without its body; the body's ``body_bytes`` bytes must follow.

    Args:
        head: the header up to the value of sysFlag.
        sys_flag: the message's sysFlag.
        born_timestamp_ms: the message's born time.
        message_flag: the application's flag.
        properties: the properties as a JSON string.
        frame_flag: 0, or 2 for oneway.
        opaque: correlation id.
        body_bytes: length of the body.
    """
    size: cython.Py_ssize_t = 8 + len(head) + len(properties) + 7 + 7 + 6 + 9 + 30 + 48
    position: cython.Py_ssize_t
    size += decimal_size(sys_flag) + decimal_size(born_timestamp_ms) + decimal_size(message_flag)
    size += decimal_size(frame_flag) + decimal_size(opaque)
    if cython.compiled:
        frame = PyBytes_FromStringAndSize(cython.NULL, size)
        out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(frame))
    else:
        frame = out = bytearray(size)
    position = put_int32(out, 0, size - 4 + body_bytes)
    position = put_int32(out, position, size - 8)  # the top byte of the header length, 0, means JSON
    position = put(out, position, head, len(head))
    position = put_decimal(out, position, sys_flag)
    position = put(out, position, b'","g":"', 7)
    position = put_decimal(out, position, born_timestamp_ms)
    position = put(out, position, b'","h":"', 7)
    position = put_decimal(out, position, message_flag)
    position = put(out, position, b'","i":', 6)
    position = put(out, position, properties, len(properties))
    position = put(out, position, b'},"flag":', 9)
    position = put_decimal(out, position, frame_flag)
    position = put(out, position, b',"language":"PYTHON","opaque":', 30)
    position = put_decimal(out, position, opaque)
    put(out, position, b',"serializeTypeCurrentRPC":"JSON","version":479}', 48)
    if cython.compiled:
        return frame
    return bytes(frame)


def read_send_answers(
    source: cython.const[cython.uchar][::1], table: cython.longlong[::1], rows: cython.Py_ssize_t
) -> list[tuple[int, str, int, int, str | None, str | None] | None]:
    """Reads the results of sends from the responses in the first ``rows`` rows.

    Returns:
        For each row: the code, ``msgId``, ``queueId``, ``queueOffset``, ``transactionId`` and ``batchUniqId``; the last
        two may be None. The whole entry is None if the frame is not a response, if ``msgId``, ``queueId`` or
        ``queueOffset`` is missing or invalid, or if the header has an unusual form. In the usual form, brokers write
        JSON that begins with ``code`` and then ``extFields``.

    Raises:
        ValueError: the rows lie outside the table, or a header outside the buffer.
    """
    row: cython.Py_ssize_t
    base: cython.Py_ssize_t
    start: cython.Py_ssize_t
    end: cython.Py_ssize_t
    answers: list[Any] = []
    if rows * ROW_WIDTH > len(table):
        raise ValueError(f"{rows} rows lie outside the table")
    if rows < 1 or len(source) < 1:
        return answers
    if cython.compiled:
        data: cython.p_const_uchar = cython.address(source[0])
    else:
        data = source
    for row in range(rows):
        base = row * ROW_WIDTH
        start = table[base + FRAME_HEADER_POS]
        end = start + table[base + FRAME_HEADER_LEN]
        if start < 0 or end > len(source):
            raise ValueError(f"header of row {row} lies outside the source")
        if table[base + FRAME_SERIALIZE] == 0 and table[base + FRAME_FLAG] & 1:
            answers.append(_read_answer(data, table[base + FRAME_CODE], start, end))
        else:
            answers.append(None)
    return answers


@cython.cfunc
def _read_answer(
    data: cython.p_const_uchar, code: cython.longlong, position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> object:
    key: cython.Py_ssize_t
    key_end: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    msg_id: cython.Py_ssize_t = 0
    msg_id_end: cython.Py_ssize_t = 0
    transaction_id: cython.Py_ssize_t = 0
    transaction_id_end: cython.Py_ssize_t = 0
    batch_id: cython.Py_ssize_t = 0
    batch_id_end: cython.Py_ssize_t = 0
    queue_id: cython.longlong = NO_NUMBER
    queue_offset: cython.longlong = NO_NUMBER
    if not _holds(data, position, end, b'{"code":', 8):
        return None
    position += 8
    while position < end and data[position] != COMMA:
        position += 1
    if not _holds(data, position, end, b',"extFields":{', 14):
        return None
    position += 13
    while data[position] != BRACE_CLOSE:
        key = position + 2
        key_end = _plain_end(data, key, end)
        start = key_end + 3
        if start >= end or data[position + 1] != QUOTE or data[key_end + 1] != COLON or data[key_end + 2] != QUOTE:
            return None
        stop = _plain_end(data, start, end)
        if stop + 1 >= end or (data[stop + 1] != COMMA and data[stop + 1] != BRACE_CLOSE):
            return None
        if _is(data, key, key_end, b"msgId", 5):
            msg_id, msg_id_end = start, stop
        elif _is(data, key, key_end, b"queueId", 7):
            queue_id = integer(data, start, stop)
        elif _is(data, key, key_end, b"queueOffset", 11):
            queue_offset = integer(data, start, stop)
        elif _is(data, key, key_end, b"transactionId", 13):
            transaction_id, transaction_id_end = start, stop
        elif _is(data, key, key_end, b"batchUniqId", 11):
            batch_id, batch_id_end = start, stop
        position = stop + 1
    if msg_id == 0 or NO_NUMBER in (queue_id, queue_offset):
        return None
    return (
        code,
        _text(data, msg_id, msg_id_end),
        queue_id,
        queue_offset,
        None if transaction_id == 0 else _text(data, transaction_id, transaction_id_end),
        None if batch_id == 0 else _text(data, batch_id, batch_id_end),
    )


@cython.cfunc
def _text(data: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> object:
    if cython.compiled:
        return PyUnicode_DecodeASCII(cython.cast(cython.p_char, data) + start, end - start, cython.NULL)
    return str(bytes(data[start:end]), "ascii")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _plain_end(data: cython.p_const_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the position of the closing quote of a text of printable ASCII without escapes; ``end`` if there is
    none.
    """
    c: cython.int
    while position < end:
        c = data[position]
        if c == QUOTE:
            return position
        if c < 0x20 or c > 0x7E or c == BACKSLASH:
            return end
        position += 1
    return end


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _holds(
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    text: cython.p_const_char,
    length: cython.Py_ssize_t,
) -> cython.bint:
    """Whether ``text`` is at ``position`` and at least one byte follows it before ``end``."""
    return position + length < end and holds(data, position, length, text)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _is(
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    text: cython.p_const_char,
    length: cython.Py_ssize_t,
) -> cython.bint:
    return end - start == length and holds(data, start, length, text)


@cython.cfunc
@cython.exceptval(-1)
def _put_text(out: cython.p_uchar, position: cython.Py_ssize_t, text: object) -> cython.Py_ssize_t:
    """Writes ``text`` with the escapes of a JSON string; returns 0 if it contains a separator or might not fit."""
    size: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    c: cython.uchar
    if cython.compiled:
        data: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(size))
    else:
        data = text.encode()
        size = len(data)
    if 6 * size > _ROOM - _LAST - position:
        return 0
    for i in range(size):
        c = cython.cast(cython.uchar, data[i])
        if c < 0x20:
            if c in (1, 2):
                return 0
            position = put(out, position, b"\\u00", 4)
            out[position] = 0x30 + (c >> 4)
            c &= 0xF
            out[position + 1] = 0x30 + c if c < 10 else 0x57 + c
            position += 2
            continue
        if c in (QUOTE, BACKSLASH):
            out[position] = 0x5C
            position += 1
        out[position] = c
        position += 1
    return position
