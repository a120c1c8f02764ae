# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernels that make records of lite topics from send rows, without a look at their properties in Python.

Bounds checks are off. Spans are checked against the buffer before they are read, and the room before it is written.
"""

from __future__ import annotations

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

LITE_NAME_BYTES_MAX = cython.declare(cython.int, 64)
OFFSET_BYTES_MAX = cython.declare(cython.int, 19)
ENDS_BYTES = cython.declare(cython.int, 2)
"""The ends of the property before the added ones, and of the last one."""


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def find_plain_lite(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    no_wait: cython.bint,
    added_len: cython.Py_ssize_t,
    places: cython.longlong[::1],
    pairs: cython.longlong[::1],
) -> int:
    """Finds out how many rows, from ``first`` on, send a message to a lite topic that needs nothing else from the
    broker. ``inspect_rows`` has filled their traits.

    The properties of such a row are ASCII text in pairs with different names, there is room for the two that the broker
    adds, and the lite topic's name is valid.

    Args:
        no_wait: whether rows with the trait NO_WAIT count.
        added_len: length of ``head`` and ``between`` of ``write_lite_rows``.
        places: gets position and length of the lite topic's name in ``source``, for each row found.
        pairs: room for position and length of the names of one row's properties; a row with more is not found.

    Returns:
        The number of rows found, at most as many as fit into ``places``.

    Raises:
        ValueError: the rows lie outside ``table``, or a span outside ``source``.
    """
    if not 0 <= first <= last or last * ROW_WIDTH > len(table):
        raise ValueError(f"rows {first}..{last} lie outside the table")
    traits: cython.longlong
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(first, min(last, first + len(places) // 2)):
        row = i * ROW_WIDTH
        traits = table[row + FRAME_TRAITS]
        if traits != TRAIT_LITE and not (no_wait and traits == TRAIT_LITE + TRAIT_NO_WAIT):
            return i - first
        check_spans(source, table, row)
        if (
            table[row + FRAME_PROPERTIES_LEN] + added_len + LITE_NAME_BYTES_MAX + OFFSET_BYTES_MAX + ENDS_BYTES
            > PROPERTIES_BYTES_MAX - SUFFIX_BYTES_MAX
        ):
            return i - first
        if not _find_name(source, table, row, places, 2 * (i - first), pairs):
            return i - first
    return max(min(last, first + len(places) // 2) - first, 0)


@cython.cfunc
@cython.exceptval(check=False)
def _find_name(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    places: cython.longlong[::1],
    place: cython.Py_ssize_t,
    pairs: cython.longlong[::1],
) -> cython.bint:
    """Finds the lite topic of one row; False if the row is not plain."""
    at: cython.Py_ssize_t = table[row + FRAME_PROPERTIES_POS]
    last: cython.Py_ssize_t = at + table[row + FRAME_PROPERTIES_LEN]
    end: cython.Py_ssize_t
    equals: cython.Py_ssize_t
    size: cython.Py_ssize_t
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    places[place] = places[place + 1] = 0
    for i in range(at, last):
        if source[i] >= 128:
            return False
    while at < last:
        end = find(source, 2, at, last)
        equals = find(source, 1, at, end)
        size = equals - at
        if size == 0 or equals + 1 >= end or 2 * count + 1 >= len(pairs):
            return False
        for i in range(count):
            if pairs[2 * i + 1] == size and same(source, pairs[2 * i], source, at, size):
                return False
        pairs[2 * count] = at
        pairs[2 * count + 1] = size
        count += 1
        if source[at] == 95:
            if size == 12 and starts(source, at, b"__LITE_TOPIC"):
                if not _is_name(source, equals + 1, end):
                    return False
                places[place] = equals + 1
                places[place + 1] = end - equals - 1
            elif size == 13 and starts(source, at, b"__SHARDINGKEY"):
                return False
            elif size == 18 and starts(source, at, b"__STARTDELIVERTIME"):
                return False
        at = end + 1
    return places[place + 1] > 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_name(source: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether a span can be the name of a lite topic: letters, digits, ``_`` and ``-``."""
    i: cython.Py_ssize_t
    byte: cython.uchar
    if not 0 < end - start <= LITE_NAME_BYTES_MAX:
        return False
    for i in range(start, end):
        byte = source[i]
        if not (97 <= (byte | 32) <= 122 or 48 <= byte <= 57 or byte in (95, 45)):
            return False
    return True


def write_lite_rows(
    source: cython.const[cython.uchar][::1],
    table: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    head: cython.const[cython.uchar][::1],
    between: cython.const[cython.uchar][::1],
    places: cython.const[cython.longlong][::1],
    queue_offsets: cython.const[cython.longlong][::1],
    target: cython.uchar[::1],
    rows: cython.longlong[::1],
) -> int:
    """Copies rows that ``find_plain_lite`` has found, and adds light queue and offset to their properties.

    Args:
        head: added before the lite topic: the property with the light queue's name, up to the lite topic.
        between: added after it: the end of that property, and the name of the one with the offset.
        queue_offsets: the offset of each row's message in the lite topic, not negative.
        target: gets bodies and properties.
        rows: gets the rows, which refer to ``target``; only the columns of topic and sender still refer to ``source``.

    Returns:
        The number of bytes in ``target``.

    Raises:
        ValueError: a buffer is too short, or a span lies outside ``source``.
    """
    if first < 0 or count < 0 or (first + count) * ROW_WIDTH > len(table) or count * ROW_WIDTH > len(rows):
        raise ValueError(f"{count} rows from {first} on lie outside the tables")
    if 2 * count > len(places) or count > len(queue_offsets):
        raise ValueError(f"{count} rows need a place and an offset each")
    at: cython.Py_ssize_t = 0
    begin: cython.Py_ssize_t
    row: cython.Py_ssize_t
    made: cython.Py_ssize_t
    size: cython.Py_ssize_t
    column: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(count):
        row, made = (first + i) * ROW_WIDTH, i * ROW_WIDTH
        for column in range(ROW_WIDTH):
            rows[made + column] = table[row + column]
        check_spans(source, rows, made)
        size = places[2 * i + 1]
        if not 0 < size <= len(source) or not 0 <= places[2 * i] <= len(source) - size or queue_offsets[i] < 0:
            raise ValueError(f"row {first + i}: no lite topic at {places[2 * i]}, or no offset")
        size = max(table[row + FRAME_BODY_LEN], 0) + max(table[row + FRAME_PROPERTIES_LEN], 0)
        size += len(head) + places[2 * i + 1] + len(between) + OFFSET_BYTES_MAX + ENDS_BYTES
        if size > len(target) - at:
            raise ValueError(f"row {first + i} does not fit into {len(target)} bytes")
        size = max(table[row + FRAME_BODY_LEN], 0)
        copy(target, at, source, table[row + FRAME_BODY_POS], size)
        rows[made + FRAME_BODY_POS] = at
        at += size
        begin = at
        size = max(table[row + FRAME_PROPERTIES_LEN], 0)
        copy(target, at, source, table[row + FRAME_PROPERTIES_POS], size)
        at += size
        if size > 0 and target[at - 1] != 2:
            target[at] = 2
            at += 1
        copy(target, at, head, 0, len(head))
        at += len(head)
        copy(target, at, source, places[2 * i], places[2 * i + 1])
        at += places[2 * i + 1]
        copy(target, at, between, 0, len(between))
        at += len(between)
        at = _add_number(target, at, queue_offsets[i])
        target[at] = 2
        at += 1
        rows[made + FRAME_UNIQ_KEY_POS] = table[row + FRAME_UNIQ_KEY_POS] - table[row + FRAME_PROPERTIES_POS] + begin
        rows[made + FRAME_PROPERTIES_POS] = begin
        rows[made + FRAME_PROPERTIES_LEN] = at - begin
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _add_number(target: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Writes a number that is not negative, in decimal digits; returns the position after it."""
    end: cython.Py_ssize_t = at + 1
    rest: cython.longlong = value // 10
    i: cython.Py_ssize_t
    while rest > 0:
        end += 1
        rest = rest // 10
    rest = value
    i = end
    while i > at:
        i -= 1
        target[i] = 48 + rest % 10
        rest = rest // 10
    return end
