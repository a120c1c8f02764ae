# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernels that find the records of light queues, and their lite topics, in a record table (``formats.light_queue``).

Bounds checks are off. Every span is checked against the segment.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.rucola.common.kernel_bytes import *
    from cython.cimports.rucola.common.kernel_columns import *
else:
    from rucola.common.kernel_bytes import *
    from rucola.common.kernel_columns import *

DISPATCH_NAME_BYTES = cython.declare(cython.int, 20)
OFFSETS_NAME_BYTES = cython.declare(cython.int, 24)
LITE_HEAD_BYTES = cython.declare(cython.int, 6)
LIGHT_NAME_BYTES_MAX = cython.declare(cython.int, 255)
OFFSET_DIGITS_MAX = cython.declare(cython.int, 13)
DOLLAR = cython.declare(cython.int, 36)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def next_light(
    segment: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
) -> int:
    """Returns the first row, from ``first`` on, whose properties have a value of ``INNER_MULTI_DISPATCH``; ``rows``
    if there is none.

    Raises:
        ValueError: properties lie outside ``segment``, or the rows outside ``table``.
    """
    if first < 0 or rows > len(table) // ROW_WIDTH:
        raise ValueError(f"rows {first} to {rows} are not in a table of {len(table)} integers")
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    last: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(first, rows):
        row = i * ROW_WIDTH
        if table[row + RECORD_PROPERTIES_LEN] <= DISPATCH_NAME_BYTES:
            continue
        _check_span(len(segment), table[row + RECORD_PROPERTIES_POS], table[row + RECORD_PROPERTIES_LEN], i)
        at = table[row + RECORD_PROPERTIES_POS]
        last = at + table[row + RECORD_PROPERTIES_LEN]
        while at + DISPATCH_NAME_BYTES + 1 < last:
            if segment[at + DISPATCH_NAME_BYTES] == 1 and segment[at + DISPATCH_NAME_BYTES + 1] != 2:
                if starts(segment, at, b"INNER_MULTI_DISPATCH"):
                    return i
            at = find(segment, 2, at, last) + 1
    return rows


def find_lite(
    segment: cython.const[cython.uchar][::1], table: cython.longlong[::1], rows: cython.Py_ssize_t, offset_max: int
) -> int:
    """Writes the columns ``LITE_POS``, ``LITE_LEN`` and ``LITE_OFFSET`` of each row: the lite topic of the record's own
    topic that ``INNER_MULTI_DISPATCH`` names first with a valid offset. Without one, the length and the offset are -1.

    Args:
        offset_max: largest valid offset.

    Returns:
        The number of rows with a lite topic.

    Raises:
        ValueError: a span lies outside ``segment``, or the rows outside ``table``.
    """
    if rows < 0 or rows > len(table) // ROW_WIDTH:
        raise ValueError(f"{rows} rows do not fit into a table of {len(table)} integers")
    most: cython.longlong = offset_max
    found: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(rows):
        row = i * ROW_WIDTH
        table[row + RECORD_LITE_POS] = 0
        table[row + RECORD_LITE_LEN] = table[row + RECORD_LITE_OFFSET] = -1
        if table[row + RECORD_PROPERTIES_LEN] <= DISPATCH_NAME_BYTES + OFFSETS_NAME_BYTES:
            continue
        _check_span(len(segment), table[row + RECORD_PROPERTIES_POS], table[row + RECORD_PROPERTIES_LEN], i)
        _check_span(len(segment), table[row + RECORD_TOPIC_POS], max(table[row + RECORD_TOPIC_LEN], 0), i)
        found += _find_in(segment, table, row, most)
    return found


def find_alone(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    offset_max: int,
) -> int:
    """Writes the same columns of each row from ``first`` on, but only if the lite topic is the only light queue that
    ``INNER_MULTI_DISPATCH`` names, its name is ASCII text, and the record is of an ordinary topic. Of other rows, the
    length and the offset are -1.

    Returns:
        The number of rows with such a lite topic.

    Raises:
        ValueError: a span lies outside ``segment``, or the rows outside ``table``.
    """
    if first < 0 or rows > len(table) // ROW_WIDTH:
        raise ValueError(f"rows {first} to {rows} are not in a table of {len(table)} integers")
    most: cython.longlong = offset_max
    found: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(first, rows):
        row = i * ROW_WIDTH
        table[row + RECORD_LITE_POS] = 0
        table[row + RECORD_LITE_LEN] = table[row + RECORD_LITE_OFFSET] = -1
        if table[row + RECORD_PROPERTIES_LEN] <= DISPATCH_NAME_BYTES + OFFSETS_NAME_BYTES:
            continue
        _check_span(len(segment), table[row + RECORD_PROPERTIES_POS], table[row + RECORD_PROPERTIES_LEN], i)
        _check_span(len(segment), table[row + RECORD_TOPIC_POS], max(table[row + RECORD_TOPIC_LEN], 0), i)
        if _is_ordinary(segment, table[row + RECORD_TOPIC_POS], table[row + RECORD_TOPIC_LEN]):
            found += _find_only(segment, table, row, most)
    return found


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_ordinary(
    segment: cython.const[cython.uchar][::1], topic: cython.longlong, topic_len: cython.longlong
) -> cython.bint:
    """Whether a topic is surely none of those whose messages have no light queues."""
    if topic_len <= 0 or segment[topic] == 37:
        return False
    if topic_len >= 8 and starts(segment, topic, b"rmq_sys_"):
        return False
    return topic_len < 8 or not starts(segment, topic, b"SCHEDULE")


@cython.cfunc
@cython.exceptval(check=False)
def _find_only(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    most: cython.longlong,
) -> cython.bint:
    """Finds the lite topic of one row, if it has no other light queue; returns whether there is one."""
    at: cython.Py_ssize_t = table[row + RECORD_PROPERTIES_POS]
    last: cython.Py_ssize_t = at + table[row + RECORD_PROPERTIES_LEN]
    names: cython.Py_ssize_t = 0
    names_end: cython.Py_ssize_t = 0
    offsets: cython.Py_ssize_t = 0
    offsets_end: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    name_end: cython.Py_ssize_t
    i: cython.Py_ssize_t
    while at < last:
        end = find(segment, 2, at, last)
        name_end = find(segment, 1, at, end)
        if name_end - at == DISPATCH_NAME_BYTES and starts(segment, at, b"INNER_MULTI_DISPATCH"):
            if names > 0:
                return False
            names, names_end = name_end + 1, end
        elif name_end - at == OFFSETS_NAME_BYTES and starts(segment, at, b"INNER_MULTI_QUEUE_OFFSET"):
            if offsets > 0:
                return False
            offsets, offsets_end = name_end + 1, end
        at = end + 1
    if names == 0 or offsets == 0:
        return False
    for i in range(names, names_end):
        if segment[i] >= 128 or segment[i] == 44:
            return False
    at = _lite_in(segment, names, names_end, table[row + RECORD_TOPIC_POS], table[row + RECORD_TOPIC_LEN])
    most = _number_in(segment, offsets, offsets_end, most)
    if at == 0 or most < 0:
        return False
    table[row + RECORD_LITE_POS] = at
    table[row + RECORD_LITE_LEN] = names_end - at
    table[row + RECORD_LITE_OFFSET] = most
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _find_in(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    most: cython.longlong,
) -> cython.bint:
    """Finds the lite topic of one row; returns whether there is one."""
    at: cython.Py_ssize_t = table[row + RECORD_PROPERTIES_POS]
    last: cython.Py_ssize_t = at + table[row + RECORD_PROPERTIES_LEN]
    names: cython.Py_ssize_t = 0
    names_end: cython.Py_ssize_t = 0
    offsets: cython.Py_ssize_t = 0
    offsets_end: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    name_end: cython.Py_ssize_t
    while at < last:
        end = find(segment, 2, at, last)
        name_end = find(segment, 1, at, end)
        if name_end + 1 < end:  # a pair without a value is none; the last of equal names counts
            if name_end - at == DISPATCH_NAME_BYTES and starts(segment, at, b"INNER_MULTI_DISPATCH"):
                names, names_end = name_end + 1, end
            elif name_end - at == OFFSETS_NAME_BYTES and starts(segment, at, b"INNER_MULTI_QUEUE_OFFSET"):
                offsets, offsets_end = name_end + 1, end
        at = end + 1
    while names < names_end and offsets < offsets_end:
        end = find(segment, 44, names, names_end)
        name_end = find(segment, 44, offsets, offsets_end)
        at = _lite_in(segment, names, end, table[row + RECORD_TOPIC_POS], table[row + RECORD_TOPIC_LEN])
        if at > 0:
            table[row + RECORD_LITE_OFFSET] = _number_in(segment, offsets, name_end, most)
            if table[row + RECORD_LITE_OFFSET] >= 0:
                table[row + RECORD_LITE_POS] = at
                table[row + RECORD_LITE_LEN] = end - at
                return True
        names, offsets = end + 1, name_end + 1
    return False


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _lite_in(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    topic: cython.longlong,
    topic_len: cython.longlong,
) -> cython.Py_ssize_t:
    """Returns the position of the lite topic in the name of a light queue; 0 if it is none of ``topic``."""
    dollar: cython.Py_ssize_t = start + LITE_HEAD_BYTES + topic_len
    i: cython.Py_ssize_t
    if topic_len <= 0 or dollar + 1 >= end or end - start > LIGHT_NAME_BYTES_MAX or segment[dollar] != DOLLAR:
        return 0
    if not starts(segment, start, b"%LMQ%$") or not same(segment, start + LITE_HEAD_BYTES, segment, topic, topic_len):
        return 0
    for i in range(start + LITE_HEAD_BYTES, end):
        if segment[i] == 0 or segment[i] == 47 or segment[i] == 92 or (segment[i] == DOLLAR and i != dollar):
            return 0
    return dollar + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number_in(
    segment: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t, most: cython.longlong
) -> cython.longlong:
    """Returns the decimal number in a span; -1 if it is none, or above ``most``."""
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    if start >= end or end - start > OFFSET_DIGITS_MAX:
        return -1
    for i in range(start, end):
        if segment[i] < 48 or segment[i] > 57:
            return -1
        value = value * 10 + segment[i] - 48
    return value if value <= most else -1


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _check_span(
    size: cython.longlong, start: cython.longlong, length: cython.longlong, row: cython.Py_ssize_t
) -> cython.int:
    """Checks that the bytes of ``row`` lie in a segment of ``size`` bytes."""
    if not 0 <= length <= size or not 0 <= start <= size - length:
        raise ValueError(f"row {row}: {length} bytes at {start} lie outside the segment")
    return 0
