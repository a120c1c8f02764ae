# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel for columns of messages: writes properties, and the members of batches, without an object for each message.

Columns have Arrow's form: the value of row i lies between ``offsets[i]`` and ``offsets[i + 1]``. Cython's bounds checks
are off. Instead, the kernel first checks that all offsets lie within the values, and computes the space that it needs;
only then does it copy values.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memchr, memcpy
    from cython.cimports.rucola.common.kernel_bytes import *
    from cython.cimports.rucola.common.kernel_records import *
    from cython.cimports.rucola.common.kernel_text import put, put_int32
else:
    from rucola.common.kernel_bytes import *
    from rucola.common.kernel_records import *
    from rucola.common.kernel_text import put, put_int32

ID_BYTES = cython.declare(cython.int, 32)
ID_PROPERTY_BYTES = cython.declare(cython.int, 42)  # id, name and two separators


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def append_property(
    offsets: cython.const[cython.int][::1],
    texts: cython.const[cython.uchar][::1],
    name: cython.const[cython.uchar][::1],
    value_offsets: cython.const[cython.int][::1],
    values: cython.const[cython.uchar][::1],
    given: cython.const[cython.uchar][::1],
    result_offsets: cython.int[::1],
) -> bytes | None:
    """Appends one property to the properties text of each row that has a value; an empty text is no value.

    Args:
        offsets: offsets of the texts before the call; one more than there are rows.
        texts: properties texts before the call.
        name: name of the property.
        value_offsets: offsets of ``values``.
        values: values of the property.
        given: for each row, 0 if the row has no value; empty if every row has a value.
        result_offsets: receives the offsets of the returned texts.

    Returns:
        The new texts of all rows; None if a value contains a separator, or the texts take more than 2 GiB.

    Raises:
        ValueError: the columns have different lengths, or offsets lie outside their values.
    """
    rows: cython.Py_ssize_t = len(offsets) - 1
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    size: cython.longlong
    if rows < 0 or len(value_offsets) != rows + 1 or len(result_offsets) != rows + 1 or len(given) not in (0, rows):
        raise ValueError("the columns have different lengths")
    _check_column(offsets, len(texts))
    _check_column(value_offsets, len(values))
    size = offsets[rows] - offsets[0] + value_offsets[rows] - value_offsets[0] + rows * (len(name) + 2)
    if size > INT32_MAX:
        return None
    if _has_separator(values, value_offsets[0], value_offsets[rows]):
        return None
    if cython.compiled:
        written = PyBytes_FromStringAndSize(cython.NULL, size)
        out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(written))
    else:
        written = out = bytearray(size)
    for row in range(rows):
        result_offsets[row] = at
        at = _copy(out, at, texts, offsets[row], offsets[row + 1])
        if value_offsets[row] < value_offsets[row + 1] and (len(given) == 0 or given[row]):
            at = _copy(out, at, name, 0, len(name))
            out[at] = 1
            at = _copy(out, at + 1, values, value_offsets[row], value_offsets[row + 1])
            out[at] = 2
            at += 1
    result_offsets[rows] = at
    return bytes(written[:at])


def pack_members(
    body_offsets: cython.const[cython.int][::1],
    bodies: cython.const[cython.uchar][::1],
    text_offsets: cython.const[cython.int][::1],
    texts: cython.const[cython.uchar][::1],
    ids: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    bytes_max: cython.longlong,
    rows_max: cython.Py_ssize_t,
) -> tuple[int, bytes]:
    """Packs rows from ``first`` on into a batch: as many as fit, but at least one.

    Args:
        body_offsets: offsets of ``bodies``; one more than there are rows.
        bodies: bodies of the messages; none is empty.
        text_offsets: offsets of ``texts``.
        texts: properties of each message, without UNIQ_KEY.
        ids: the UNIQ_KEY of each row, 32 bytes.
        first: index of the first row to pack.
        bytes_max: largest size of the request's body, in bytes.
        rows_max: largest number of messages in the batch.

    Returns:
        The index of the first row that is not in the batch, and the body of the request.

    Raises:
        ValueError: the columns have different lengths, offsets lie outside their values, or properties are too long.
    """
    rows: cython.Py_ssize_t = len(body_offsets) - 1
    last: cython.Py_ssize_t = first
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    size: cython.longlong = 0
    own: cython.longlong
    body: cython.longlong
    text: cython.longlong
    if len(text_offsets) != rows + 1 or len(ids) != rows * ID_BYTES or not 0 <= first < rows:
        raise ValueError("the columns have different lengths, or the first row lies outside them")
    _check_column(body_offsets, len(bodies))
    _check_column(text_offsets, len(texts))
    while last < rows and last - first < rows_max:
        text = text_offsets[last + 1] - text_offsets[last] + ID_PROPERTY_BYTES
        if text > PROPERTIES_BYTES_MAX:
            raise ValueError(f"the properties of row {last} take {text} bytes, the limit is 32767")
        own = BATCH_MEMBER_FIXED_BYTES + body_offsets[last + 1] - body_offsets[last] + text
        if size + own > bytes_max and last > first:
            break
        size += own
        last += 1
    if cython.compiled:
        packed = PyBytes_FromStringAndSize(cython.NULL, size)
        out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(packed))
    else:
        packed = out = bytearray(size)
    for row in range(first, last):
        body = body_offsets[row + 1] - body_offsets[row]
        text = text_offsets[row + 1] - text_offsets[row] + ID_PROPERTY_BYTES
        at = put_int32(out, at, BATCH_MEMBER_FIXED_BYTES + body + text)
        at = put_int32(out, put_int32(out, put_int32(out, at, 0), 0), 0)  # magic, checksum and flag
        at = _copy(out, put_int32(out, at, body), bodies, body_offsets[row], body_offsets[row + 1])
        out[at] = text >> 8
        out[at + 1] = text & 0xFF
        at = _copy(out, at + 2, texts, text_offsets[row], text_offsets[row + 1])
        at = put(out, at, b"UNIQ_KEY\x01", 9)
        at = _copy(out, at, ids, row * ID_BYTES, (row + 1) * ID_BYTES)
        out[at] = 2
        at += 1
    return last, packed if cython.compiled else bytes(packed)


@cython.cfunc
def _check_column(offsets: cython.const[cython.int][::1], size: cython.Py_ssize_t) -> object:
    """Raises ``ValueError`` if the offsets decrease or do not lie within ``size`` bytes."""
    row: cython.Py_ssize_t
    good: cython.bint = offsets[0] >= 0 and offsets[len(offsets) - 1] <= size
    for row in range(len(offsets) - 1):
        good = good and offsets[row] <= offsets[row + 1]
    if not good:
        raise ValueError("offsets of a column lie outside its values")
    return None


@cython.cfunc
@cython.exceptval(check=False)
def _has_separator(
    values: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    if start == end:
        return False
    if cython.compiled:
        data: cython.p_const_uchar = cython.address(values[start])
        return memchr(data, 1, end - start) != cython.NULL or memchr(data, 2, end - start) != cython.NULL
    found = bytes(values[start:end])
    return b"\x01" in found or b"\x02" in found


@cython.cfunc
@cython.exceptval(check=False)
def _copy(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    source: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    if end > start:
        if cython.compiled:
            memcpy(out + at, cython.address(source[start]), end - start)
        else:
            out[at : at + end - start] = source[start:end]
    return at + end - start
