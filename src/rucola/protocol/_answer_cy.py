# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel: writes the responses to successful sends.

One call writes the responses for all rows of one socket read; ``answers.SendAnswers`` prepares the constant parts. The
kernel uses raw pointers without bounds checks: ``encode_send_answers`` first compares the space it may need with the
size of ``out``.
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


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def send_answers_bytes_max(
    table: cython.longlong[::1], first: cython.Py_ssize_t, last: cython.Py_ssize_t, constant_bytes: cython.Py_ssize_t
) -> int:
    """Returns an upper bound for the number of bytes that ``encode_send_answers`` writes; ``constant_bytes`` is the
    size of the constant parts of one response.
    """
    total: cython.longlong = 0
    row: cython.Py_ssize_t
    if first < 0 or last * ROW_WIDTH > len(table):
        raise ValueError(f"rows {first}..{last} lie outside of the table")
    for row in range(first, last):
        total += constant_bytes + 256
        if table[row * ROW_WIDTH + FRAME_UNIQ_KEY_LEN] > 0:
            total += 6 * table[row * ROW_WIDTH + FRAME_UNIQ_KEY_LEN]
    return total


def encode_send_answers(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    json_head: bytes,
    json_middle: bytes,
    json_tail: bytes,
    binary_head: bytes,
    binary_fields: bytes,
) -> int:
    """Writes the response frames for rows ``first`` to ``last`` (excluded) to ``out[position:]``; none for oneway rows.

    Args:
        source: the buffer that holds the rows' unique keys.
        out: should have ``send_answers_bytes_max`` bytes after ``position``.
        json_head: the header up to and including the store host in ``msgId``.
        json_middle: the header from the last ext value to ``opaque``.
        json_tail: the header after ``opaque``.
        binary_head: code, language, version.
        binary_fields: ext fields up to and including the store host in ``msgId``.

    Returns:
        The position after the last frame. If ``out`` may be too small, nothing is written; the result is
        ``send_answers_bytes_max``, negated.
    """
    row: cython.Py_ssize_t
    start: cython.Py_ssize_t
    needed: cython.Py_ssize_t
    constants: cython.Py_ssize_t = len(json_head) + len(json_middle) + len(json_tail) + len(binary_fields)
    if position < 0 or position > len(out):
        raise ValueError(f"position {position} lies outside of out")
    needed = send_answers_bytes_max(table, first, last, constants)
    if needed > len(out) - position:
        return -needed
    for row in range(first, last):
        start = row * ROW_WIDTH
        if table[start + FRAME_UNIQ_KEY_LEN] > 0 and (
            table[start + FRAME_UNIQ_KEY_POS] < 0
            or table[start + FRAME_UNIQ_KEY_POS] + table[start + FRAME_UNIQ_KEY_LEN] > len(source)
        ):
            raise ValueError(f"unique key of row {row} lies outside of the source")
    if first >= last:
        return position
    if cython.compiled:
        data: cython.p_const_uchar = cython.address(source[0]) if len(source) > 0 else cython.NULL
        rows: cython.p_longlong = cython.address(table[0])
        target: cython.p_uchar = cython.address(out[0])
    else:
        data = source
        rows = table
        target = out
    for row in range(first, last):
        if rows[row * ROW_WIDTH + FRAME_FLAG] & 2:
            continue
        start = position
        if rows[row * ROW_WIDTH + FRAME_SERIALIZE] == 0:
            position = put(target, position + 8, json_head, len(json_head))
            position = _put_json_answer(target, position, data, rows, row * ROW_WIDTH)
            position = put(target, position, json_middle, len(json_middle))
            position = put_decimal(target, position, rows[row * ROW_WIDTH + FRAME_OPAQUE])
            position = put(target, position, json_tail, len(json_tail))
        else:
            position = put(target, position + 8, binary_head, len(binary_head))
            position = put_int32(target, position, rows[row * ROW_WIDTH + FRAME_OPAQUE])
            position = put(target, position + 12, binary_fields, len(binary_fields))
            position = _put_binary_answer(target, position, data, rows, row * ROW_WIDTH)
            put_int32(target, start + 17, 1)
            put_int32(target, start + 21, 0)
            put_int32(target, start + 25, position - start - 29)
        put_int32(target, start, position - start - 4)
        put_int32(target, start + 4, (position - start - 8) | (rows[row * ROW_WIDTH + FRAME_SERIALIZE] << 24))
    return position


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_json_answer(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the rest of ``msgId`` and the other ext fields, without the last closing quote."""
    i: cython.Py_ssize_t
    key: cython.Py_ssize_t = table[base + FRAME_UNIQ_KEY_POS]
    position = _put_hex(out, position, table[base + FRAME_PHYSICAL_OFFSET], 16)
    position = put(out, position, b'","queueId":"', 13)
    position = put_decimal(out, position, table[base + FRAME_QUEUE_ID])
    position = put(out, position, b'","queueOffset":"', 17)
    position = put_decimal(out, position, table[base + FRAME_QUEUE_OFFSET])
    if table[base + FRAME_UNIQ_KEY_LEN] > 0:
        position = put(out, position, b'","transactionId":"', 19)
        for i in range(key, key + table[base + FRAME_UNIQ_KEY_LEN]):
            if data[i] < 0x20:
                position = put(out, position, b"\\u00", 4)
                position = _put_hex(out, position, data[i], 2)
                continue
            if data[i] == QUOTE or data[i] == BACKSLASH:
                out[position] = 0x5C
                position += 1
            out[position] = data[i]
            position += 1
    return position


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_binary_answer(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    table: cython.p_longlong,
    base: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the rest of ``msgId`` and the other ext fields."""
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    key: cython.Py_ssize_t = table[base + FRAME_UNIQ_KEY_POS]
    position = _put_hex(out, position, table[base + FRAME_PHYSICAL_OFFSET], 16)
    start = put(out, position, b"\x00\x07queueId", 9) + 4
    position = put_decimal(out, start, table[base + FRAME_QUEUE_ID])
    put_int32(out, start - 4, position - start)
    start = put(out, position, b"\x00\x0bqueueOffset", 13) + 4
    position = put_decimal(out, start, table[base + FRAME_QUEUE_OFFSET])
    put_int32(out, start - 4, position - start)
    if table[base + FRAME_UNIQ_KEY_LEN] > 0:
        position = put(out, position, b"\x00\x0dtransactionId", 15)
        position = put_int32(out, position, table[base + FRAME_UNIQ_KEY_LEN])
        for i in range(key, key + table[base + FRAME_UNIQ_KEY_LEN]):
            out[position] = data[i]
            position += 1
    return position


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _put_hex(
    out: cython.p_uchar, position: cython.Py_ssize_t, value: cython.longlong, digits: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Writes ``value`` as upper-case hexadecimal digits, with leading zeros."""
    i: cython.Py_ssize_t
    nibble: cython.int
    for i in range(position + digits - 1, position - 1, -1):
        nibble = value & 0xF
        out[i] = 0x30 + nibble if nibble < 10 else 0x37 + nibble
        value >>= 4
    return position + digits
