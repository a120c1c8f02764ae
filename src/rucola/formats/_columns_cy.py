# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel that turns the rows of a record table into columns in the layout of Apache Arrow: values and int32 offsets.

Bounds checks are off. Every span is checked against the segment, and every write against the output buffer.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.rucola.common.kernel_bytes import *
    from cython.cimports.rucola.common.kernel_columns import *
    from cython.cimports.rucola.common.kernel_records import *
    from cython.cimports.rucola.formats.kernel_plan import *
else:
    from rucola.common.kernel_bytes import *
    from rucola.common.kernel_columns import *
    from rucola.common.kernel_records import *
    from rucola.formats.kernel_plan import *

# The same bit or number in each of the eight bytes of a word.
EACH_LOW = cython.declare(cython.ulonglong, 0x0101010101010101)
EACH_HIGH = cython.declare(cython.ulonglong, 0x8080808080808080)
CRC_NAME = cython.declare(cython.longlong, 0x5F5F435243333223)  # __CRC32#
WORDS_ARE_LITTLE = cython.declare(cython.bint, sys.byteorder == "little")

# `properties_json` keeps up to FORMS earlier rows as forms (templates). The length of a row's properties, modulo FORMS,
# selects the form to try. A form has the position and length of its row's properties in the segment, the position and
# length of the row's JSON object in the output, and a balance. The balance limits how often the form is replaced: each
# use adds 1, each miss subtracts 1, and each replacement subtracts FORM_COST.
FORMS = cython.declare(cython.Py_ssize_t, 8)
FORM_WIDTH = cython.declare(cython.Py_ssize_t, 5)
FORM_BYTES_MAX = cython.declare(cython.Py_ssize_t, 1024)
FORM_START = cython.declare(cython.Py_ssize_t, 0)
FORM_LEN = cython.declare(cython.Py_ssize_t, 1)
FORM_OUT = cython.declare(cython.Py_ssize_t, 2)
FORM_OUT_LEN = cython.declare(cython.Py_ssize_t, 3)
FORM_BALANCE = cython.declare(cython.Py_ssize_t, 4)
FORM_COST = cython.declare(cython.Py_ssize_t, 4)
FORM_BALANCE_MAX = cython.declare(cython.Py_ssize_t, 64)

# `fill` writes all columns of so many rows before it goes on, so that the rows are still in the processor's cache.
GROUP_ROWS = cython.declare(cython.Py_ssize_t, 256)
# Spare bytes after JSON objects, so that the last object too can be written by words.
ROOM_OF_WORDS = cython.declare(cython.Py_ssize_t, 4096)
# The times of `TIMES_MS` of `column_plan`.
TIME_MIN_MS = cython.declare(cython.longlong, -62_135_596_800_000)
TIME_MAX_MS = cython.declare(cython.longlong, 253_402_300_799_999)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def gather(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    pos_column: cython.Py_ssize_t,
    len_column: cython.Py_ssize_t,
    out: Any,
    offsets_out: cython.int[::1],
) -> int:
    """Copies one column of byte strings, each given by position and length, into ``out`` without gaps.

    A negative length counts as 0. ``offsets_out`` receives ``rows + 1`` offsets.

    Returns:
        Number of bytes written to ``out``.

    Raises:
        ValueError: a span lies outside ``segment``, the rows outside ``table``, or the result does not fit into
            ``out``, ``offsets_out`` or 31 bits.
    """
    target: cython.uchar[::1] = memoryview(out).cast("B")  # Arrow's buffers declare their bytes as signed
    _check_rows(table, rows, offsets_out)
    if not (0 <= pos_column < ROW_WIDTH and 0 <= len_column < ROW_WIDTH):
        raise ValueError(f"column {pos_column} or column {len_column} does not exist")
    room: cython.longlong = min(len(target), INT32_MAX)
    size: cython.longlong = len(segment)
    done: cython.longlong = 0
    start: cython.longlong
    length: cython.longlong
    i: cython.Py_ssize_t
    for i in range(rows):
        offsets_out[i] = done
        start = table[i * ROW_WIDTH + pos_column]
        length = table[i * ROW_WIDTH + len_column]
        if length <= 0:
            continue
        _check_span(size, start, length, i)
        if length > room - done:
            raise ValueError(f"row {i}: out has {len(target)} bytes, too few for the column")
        if cython.compiled:
            memcpy(cython.address(target[done]), cython.address(segment[start]), length)
        else:
            target[done : done + length] = segment[start : start + length]
        done += length
    offsets_out[rows] = done
    return done


def count_bytes(table: cython.longlong[::1], rows: cython.Py_ssize_t, len_column: cython.Py_ssize_t) -> tuple[int, int]:
    """Returns the total size in bytes of a column of byte strings, and the number of rows without a value (length below
    0).

    Raises:
        ValueError: the rows do not fit into ``table``, or the column does not exist.
    """
    _check_column(table, rows, len_column)
    total: cython.longlong = 0
    missing: cython.Py_ssize_t = 0
    length: cython.longlong
    i: cython.Py_ssize_t
    for i in range(rows):
        length = table[i * ROW_WIDTH + len_column]
        if length < 0:
            missing += 1
        else:
            total += length
    return total, missing


def survey(table: cython.longlong[::1], rows: cython.Py_ssize_t) -> tuple[int, bool]:
    """Returns all bits that are set in the sysFlag of any row, and whether all rows have the same topic.

    Raises:
        ValueError: the rows do not lie in ``table``.
    """
    _check_column(table, rows, RECORD_SAME_TOPIC)
    flags: cython.longlong = 0
    same_topic: cython.longlong = 1
    i: cython.Py_ssize_t
    for i in range(rows):
        flags |= table[i * ROW_WIDTH + RECORD_SYS_FLAG]
        if i:
            same_topic &= table[i * ROW_WIDTH + RECORD_SAME_TOPIC]
    return flags, same_topic != 0


def leave_out_checksums(
    segment: cython.const[cython.uchar][::1], table: cython.longlong[::1], rows: cython.Py_ssize_t
) -> None:
    """Cuts the record's checksum off the end of each row's properties. The store added the checksum, so it is no
    property of the message.

    Raises:
        ValueError: a span lies outside ``segment``, or the rows outside ``table``.
    """
    _check_column(table, rows, RECORD_PROPERTIES_LEN)
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(rows):
        row = i * ROW_WIDTH
        table[row + RECORD_PROPERTIES_LEN] = _without_checksum(
            segment, table[row + RECORD_PROPERTIES_POS], table[row + RECORD_PROPERTIES_LEN], i
        )


@cython.cfunc
@cython.inline
@cython.exceptval(-2)
def _without_checksum(
    segment: cython.const[cython.uchar][::1],
    start: cython.longlong,
    length: cython.longlong,
    row: cython.Py_ssize_t,
) -> cython.longlong:
    """Returns the length of the properties of ``row`` without the record's checksum at their end; -1 if there are no
    properties.
    """
    name: cython.Py_ssize_t
    if length < CRC_PROPERTY_BYTES:
        return max(length, -1)
    _check_span(len(segment), start, length, row)
    name = start + length - CRC_PROPERTY_BYTES
    if int64(segment, name) == CRC_NAME and segment[name + 8] == 1:
        return length - CRC_PROPERTY_BYTES
    return length


def is_ascii(data: Any) -> bool:
    """True if every byte is below 128."""
    content: cython.const[cython.uchar][::1] = memoryview(data).cast("B")
    bits: cython.uchar = 0
    i: cython.Py_ssize_t
    for i in range(len(content)):
        bits |= content[i]
    return bits < 128


def mark_intervals(
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    topics: cython.const[cython.int][::1],
    topic: cython.int,
    starts: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    keep: cython.uchar[::1],
) -> int:
    """Sets the byte in ``keep`` to 1 for each row of ``topic`` whose queue offset lies in the interval of its queue.

    Prepared and rollback records have no queue offset, so they are in no interval.

    Args:
        topics: index of each row's topic; only rows of ``topic`` are examined.
        starts, ends: the interval of each queue, indexed by queue id; the end is excluded. Queues whose id is
            ``len(starts)`` or higher have no interval.

    Returns:
        The number of rows marked.

    Raises:
        ValueError: the rows do not fit into ``table``, ``topics`` or ``keep``, or the numbers of starts and ends
            differ.
    """
    _check_column(table, rows, RECORD_SYS_FLAG)
    if rows > len(topics) or rows > len(keep) or len(starts) != len(ends):
        raise ValueError(
            f"{rows} rows do not fit into topics or keep, or there are {len(starts)} starts but {len(ends)} ends"
        )
    count: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    for i in range(rows):
        if topics[i] == topic and _is_wanted(table, i * ROW_WIDTH, starts, ends):
            keep[i] = 1
            count += 1
    return count


def mark_topic(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    topic: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    keep: cython.uchar[::1],
) -> tuple[int, int]:
    """Does the work of ``survey`` and ``mark_intervals`` in one pass, for rows that all have ``topic``.

    Sets each row's byte in ``keep`` to 1 or 0.

    Args:
        table: the rows that ``walk_records`` wrote for consecutive records.
        starts, ends: as in ``mark_intervals``.

    Returns:
        The number of rows marked, and all bits that are set in the sysFlag of any row; or (-1, 0) if a row has another
        topic. Then ``keep`` is undefined.

    Raises:
        ValueError: a span lies outside ``segment``, the rows do not fit into ``table`` or ``keep``, or the numbers of
            starts and ends differ.
    """
    _check_column(table, rows, RECORD_SAME_TOPIC)
    if rows > len(keep) or len(starts) != len(ends):
        raise ValueError(f"{rows} rows do not fit into keep, or there are {len(starts)} starts but {len(ends)} ends")
    if rows < 1 or table[RECORD_TOPIC_LEN] != len(topic):
        return -1, 0
    _check_span(len(segment), table[RECORD_TOPIC_POS], len(topic), 0)
    if not same(segment, table[RECORD_TOPIC_POS], topic, 0, len(topic)):
        return -1, 0
    count: cython.Py_ssize_t = 0
    flags: cython.longlong = 0
    i: cython.Py_ssize_t
    for i in range(rows):
        if i and not table[i * ROW_WIDTH + RECORD_SAME_TOPIC]:
            return -1, 0
        flags |= table[i * ROW_WIDTH + RECORD_SYS_FLAG]
        keep[i] = _is_wanted(table, i * ROW_WIDTH, starts, ends)
        count += keep[i]
    return count, flags


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_wanted(
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    starts: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
) -> cython.bint:
    """Whether a row's queue offset lies in the interval of its queue."""
    queue_id: cython.longlong = table[row + RECORD_QUEUE_ID]
    return (
        not table[row + RECORD_SYS_FLAG] & TRANSACTION_PREPARED
        and 0 <= queue_id < len(starts)
        and starts[queue_id] <= table[row + RECORD_QUEUE_OFFSET] < ends[queue_id]
    )


def properties_json(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    out: Any,
    offsets_out: cython.int[::1],
) -> int:
    """Writes the properties of each row as the text of a JSON object; the texts follow each other in ``out`` without
    gaps.

    A row without properties becomes ``{}``. Pairs keep their order; the last of several equal names counts. Bytes that
    are not UTF-8 become U+FFFD.

    Returns:
        The number of bytes that all texts take. If ``out`` is smaller, its content is invalid: call again with a buffer
        of that size.

    Raises:
        ValueError: a span lies outside ``segment``, the rows outside ``table`` or ``offsets_out``, or the result
            exceeds 31 bits.
    """
    target: cython.uchar[::1] = memoryview(out).cast("B")
    _check_rows(table, rows, offsets_out)
    done: cython.Py_ssize_t = 0
    forms: cython.longlong[::1] = array("q", bytes(8 * FORMS * FORM_WIDTH))
    moves: cython.short[::1] = array("h", bytes(2 * FORMS * FORM_BYTES_MAX))
    i: cython.Py_ssize_t
    for i in range(rows):
        offsets_out[i] = done
        done = _append_object(
            segment,
            table[i * ROW_WIDTH + RECORD_PROPERTIES_POS],
            table[i * ROW_WIDTH + RECORD_PROPERTIES_LEN],
            target, done, forms, moves, i,
        )  # fmt: skip
    offsets_out[rows] = done
    return done


def lay_out(
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    rows_max: cython.Py_ssize_t,
    bytes_max: cython.longlong,
    json_scale: cython.longlong,
    plan: cython.longlong[::1],
    start: cython.longlong,
) -> int:
    """Gives each column of ``plan`` its place in a buffer for ``rows_max`` rows.

    The rows that are not measured are expected to be about as long as the others.

    Args:
        rows: number of rows to measure, at least 1.
        bytes_max: largest size in bytes of a column of strings, as stored, unless the measured rows alone take more.
        json_scale: for JSON, factor by which more room is needed than one and a half times the stored length.
        start: position in the buffer at which the columns begin.

    Returns:
        The size of the buffer in bytes. It is a multiple of 64 if ``start`` is one, as are all positions.

    Raises:
        ValueError: the rows do not fit into ``table``, there are more than ``rows_max``, or the plan is invalid.
    """
    if not 1 <= rows <= rows_max:
        raise ValueError(f"{rows} rows, must be at least 1 and at most {rows_max}")
    size: cython.longlong = start
    room: cython.longlong
    kind: cython.longlong
    at: cython.Py_ssize_t
    for at in range(0, len(plan), PLAN_WIDTH):
        _check_planned(table, rows, plan, at)
        kind = plan[at + PLAN_KIND]
        room = 0
        if kind == COLUMN_INT32:
            room = 4 * rows_max
        elif kind == COLUMN_INT64:
            room = 8 * rows_max
        elif kind != COLUMN_SAME:
            if kind == COLUMN_REPEATED:
                room = plan[at + PLAN_DETAIL] * rows_max
            else:
                room = _stored_bytes(table, rows, plan[at + PLAN_DETAIL])
                if rows_max > rows:
                    room = max(room, min(room * rows_max // rows * 9 // 8 + ALIGNMENT, bytes_max))
            if kind == COLUMN_JSON:
                # For each pair, JSON has quotes, a colon and a comma where the stored form has two separators.
                room = (room * 3 // 2 + 2 * rows_max) * json_scale + ROOM_OF_WORDS
            elif kind != COLUMN_REPEATED:
                plan[at + PLAN_VALIDITY] = size
                size += _aligned((rows_max + 7) // 8)
            plan[at + PLAN_OFFSETS] = size
            size += _aligned(4 * (rows_max + 1))
        plan[at + PLAN_VALUES] = size
        plan[at + PLAN_ROOM] = room
        size += _aligned(room)
    return size


def fill(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    plan: cython.longlong[::1],
    out: Any,
) -> int:
    """Appends the rows from ``first`` up to, but not including, ``last`` to the columns of ``plan`` in ``out``.

    ``lay_out`` must have laid out the plan, and the rows before ``first`` must have been appended. Row 0 begins a new
    batch, for which the plan need not be laid out again.

    Returns:
        -1; or the position in ``plan`` of a column that has too little room. Then the columns are invalid, and must be
        laid out again.

    Raises:
        ValueError: a span lies outside ``segment``, the rows outside ``table``, or the plan does not fit ``out``.
    """
    view = memoryview(out).cast("B")
    bytes_out: cython.uchar[::1] = view
    ints: cython.int[::1] = view.cast("i")
    longs: cython.longlong[::1] = view.cast("q")
    forms: cython.longlong[::1] = array("q")
    moves: cython.short[::1] = array("h")
    at: cython.Py_ssize_t
    start: cython.Py_ssize_t
    end: cython.Py_ssize_t
    kind: cython.longlong
    if not 0 <= first <= last:
        raise ValueError(f"rows {first}..{last} do not follow each other")
    for at in range(0, len(plan), PLAN_WIDTH):
        _check_planned(table, last, plan, at)
        if first == 0:
            plan[at + PLAN_DONE] = plan[at + PLAN_MISSING] = plan[at + PLAN_BITS] = 0
        check_places(plan, at, last, 0, len(bytes_out))
        if plan[at + PLAN_KIND] == COLUMN_JSON and len(forms) == 0:
            forms = array("q", bytes(8 * FORMS * FORM_WIDTH))
            moves = array("h", bytes(2 * FORMS * FORM_BYTES_MAX))
    for start in range(first, last, GROUP_ROWS):
        end = min(start + GROUP_ROWS, last)
        for at in range(0, len(plan), PLAN_WIDTH):
            kind = plan[at + PLAN_KIND]
            if kind == COLUMN_INT32:
                _fill_int32(table, start, end, plan, at, ints)
            elif kind == COLUMN_INT64:
                _fill_int64(table, start, end, plan, at, longs)
            elif kind == COLUMN_JSON:
                if not _fill_json(segment, table, start, end, plan, at, bytes_out, ints, forms, moves):
                    return at
            elif kind == COLUMN_SAME:
                _find_same(segment, table, start, end, plan, at)
            elif kind != COLUMN_REPEATED and not _fill_bytes(segment, table, start, end, plan, at, bytes_out, ints):
                return at
    return -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _stored_bytes(
    table: cython.longlong[::1], rows: cython.Py_ssize_t, len_column: cython.Py_ssize_t
) -> cython.longlong:
    total: cython.longlong = 0
    i: cython.Py_ssize_t
    for i in range(rows):
        total += max(table[i * ROW_WIDTH + len_column], 0)
    return total


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _aligned(size: cython.longlong) -> cython.longlong:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@cython.cfunc
@cython.exceptval(-1)
def _check_planned(
    table: cython.longlong[::1], rows: cython.Py_ssize_t, plan: cython.longlong[::1], at: cython.Py_ssize_t
) -> cython.int:
    """Checks the fields that the caller sets."""
    if at + PLAN_WIDTH > len(plan):
        raise ValueError(f"a plan of {len(plan)} integers, not a multiple of {PLAN_WIDTH}")
    kind: cython.longlong = plan[at + PLAN_KIND]
    if not COLUMN_INT32 <= kind <= COLUMN_REPEATED:
        raise ValueError(f"kind {kind} does not exist")
    if kind == COLUMN_REPEATED and not 0 <= plan[at + PLAN_DETAIL] <= INT32_MAX:
        raise ValueError(f"a text of {plan[at + PLAN_DETAIL]} bytes in column {at // PLAN_WIDTH}")
    _check_column(table, rows, plan[at + PLAN_COLUMN])
    if COLUMN_BYTES <= kind <= COLUMN_JSON:
        _check_column(table, rows, plan[at + PLAN_DETAIL])
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _fill_int32(
    table: cython.longlong[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
    ints: cython.int[::1],
) -> cython.void:
    column: cython.Py_ssize_t = plan[at + PLAN_COLUMN]
    values: cython.Py_ssize_t = plan[at + PLAN_VALUES] // 4
    i: cython.Py_ssize_t
    for i in range(start, end):
        ints[values + i] = signed32(table[i * ROW_WIDTH + column])


@cython.cfunc
@cython.exceptval(check=False)
def _fill_int64(
    table: cython.longlong[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
    longs: cython.longlong[::1],
) -> cython.void:
    """Multiplies times; what is no time of a column is noted, and becomes 0."""
    column: cython.Py_ssize_t = plan[at + PLAN_COLUMN]
    factor: cython.longlong = plan[at + PLAN_DETAIL]
    values: cython.Py_ssize_t = plan[at + PLAN_VALUES] // 8
    value: cython.longlong
    i: cython.Py_ssize_t
    for i in range(start, end):
        value = table[i * ROW_WIDTH + column]
        if factor != 1:
            if value < TIME_MIN_MS or value > TIME_MAX_MS:
                value = 0
                plan[at + PLAN_BITS] = 1
            value *= factor
        longs[values + i] = value


@cython.cfunc
@cython.exceptval(-1)
def _fill_bytes(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
    out: cython.uchar[::1],
    ints: cython.int[::1],
) -> cython.int:
    """Appends byte strings; returns 0 if there is too little room."""
    pos_column: cython.Py_ssize_t = plan[at + PLAN_COLUMN]
    len_column: cython.Py_ssize_t = plan[at + PLAN_DETAIL]
    values: cython.Py_ssize_t = plan[at + PLAN_VALUES]
    offsets: cython.Py_ssize_t = plan[at + PLAN_OFFSETS] // 4
    room: cython.longlong = plan[at + PLAN_ROOM]
    done: cython.longlong = plan[at + PLAN_DONE]
    missing: cython.Py_ssize_t = 0
    size: cython.longlong = len(segment)
    place: cython.longlong
    length: cython.longlong
    bits: cython.uchar = 0
    i: cython.Py_ssize_t
    for i in range(start, end):
        ints[offsets + i] = done
        place = table[i * ROW_WIDTH + pos_column]
        length = table[i * ROW_WIDTH + len_column]
        if length <= 0:
            missing += length < 0
            continue
        _check_span(size, place, length, i)
        if length > room - done:
            return 0
        copy(out, values + done, segment, place, length)
        done += length
    ints[offsets + end] = done
    if plan[at + PLAN_KIND] == COLUMN_TEXT:
        for i in range(values + plan[at + PLAN_DONE], values + done):
            bits |= out[i]
        plan[at + PLAN_BITS] |= bits
    plan[at + PLAN_DONE] = done
    plan[at + PLAN_MISSING] += missing
    return 1


@cython.cfunc
@cython.exceptval(-1)
def _fill_json(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
    out: cython.uchar[::1],
    ints: cython.int[::1],
    forms: cython.longlong[::1],
    moves: cython.short[::1],
) -> cython.int:
    """Appends properties as JSON objects, without the record's checksum; returns 0 if there is too little room."""
    values: cython.Py_ssize_t = plan[at + PLAN_VALUES]
    offsets: cython.Py_ssize_t = plan[at + PLAN_OFFSETS] // 4
    room: cython.Py_ssize_t = plan[at + PLAN_ROOM]
    done: cython.Py_ssize_t = plan[at + PLAN_DONE]
    # The objects may take more room than there is; then they must not reach into the next column.
    target: cython.uchar[::1] = out[values : values + room]
    place: cython.longlong
    length: cython.longlong
    i: cython.Py_ssize_t
    for i in range(start, end):
        ints[offsets + i] = done
        place = table[i * ROW_WIDTH + plan[at + PLAN_COLUMN]]
        length = _without_checksum(segment, place, table[i * ROW_WIDTH + plan[at + PLAN_DETAIL]], i)
        done = _append_object(segment, place, length, target, done, forms, moves, i)
        if done > room:
            return 0
    ints[offsets + end] = done
    plan[at + PLAN_DONE] = done
    return 1


@cython.cfunc
@cython.exceptval(-1)
def _find_same(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
) -> cython.int:
    """Compares the bytes of each row with those of row 0."""
    column: cython.Py_ssize_t = plan[at + PLAN_COLUMN]
    size: cython.longlong = plan[at + PLAN_DETAIL]
    place: cython.longlong
    i: cython.Py_ssize_t
    _check_span(len(segment), table[column], size, 0)
    for i in range(start, end):
        place = table[i * ROW_WIDTH + column]
        _check_span(len(segment), place, size, i)
        if not same(segment, place, segment, table[column], size):
            plan[at + PLAN_BITS] = 1
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _append_object(
    segment: cython.const[cython.uchar][::1],
    start: cython.longlong,
    length: cython.longlong,
    out: cython.uchar[::1],
    done: cython.Py_ssize_t,
    forms: cython.longlong[::1],
    moves: cython.short[::1],
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the properties of ``row`` as a JSON object to ``out``, position ``done``; returns the position after it.

    If that position lies outside ``out``, the content of ``out`` is invalid.
    """
    size: cython.longlong = len(segment)
    end: cython.Py_ssize_t = -1
    length = max(length, 0)
    if length > 0:
        _check_span(size, start, length, row)
    if cython.compiled and WORDS_ARE_LITTLE and start + length + 8 <= size and 6 * length + 32 <= len(out) - done:
        end = _put_by_form(segment, start, length, out, done, forms, moves)
    if end < 0:
        end = _put_object(segment, start, start + length, out, done)
    if end > INT32_MAX:
        raise ValueError(f"row {row}: the column takes more than {INT32_MAX} bytes")
    return end


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _check_rows(table: cython.longlong[::1], rows: cython.Py_ssize_t, offsets_out: cython.int[::1]) -> cython.int:
    if rows < 0 or rows > len(table) // ROW_WIDTH or rows >= len(offsets_out):
        raise ValueError(f"{rows} rows do not fit into table or offsets_out")
    return 0


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


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _check_column(table: cython.longlong[::1], rows: cython.Py_ssize_t, column: cython.Py_ssize_t) -> cython.int:
    if rows < 0 or rows > len(table) // ROW_WIDTH or not 0 <= column < ROW_WIDTH:
        raise ValueError(f"{rows} rows do not fit into table, or column {column} does not exist")
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _put_object(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes one JSON object; returns the position after it."""
    repeats: cython.bint = _may_repeat(segment, start, end)
    is_first: cython.bint = True
    stop: cython.Py_ssize_t
    equals: cython.Py_ssize_t
    at = _put(out, at, 123)  # {
    while start < end:
        stop = find(segment, 2, start, end)
        equals = find(segment, 1, start, stop)
        if start < equals < stop - 1 and not (repeats and _comes_again(segment, start, equals - start, stop + 1, end)):
            if not is_first:
                at = _put(out, at, 44)  # ,
            is_first = False
            at = _put_string(segment, start, equals, out, at)
            at = _put(out, at, 58)  # :
            at = _put_string(segment, equals + 1, stop, out, at)
        start = stop + 1
    return _put(out, at, 125)  # }


@cython.cfunc
@cython.exceptval(check=False)
def _put_by_form(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
    forms: cython.longlong[::1],
    moves: cython.short[::1],
) -> cython.Py_ssize_t:
    """Writes one JSON object. In messages from the same producer, mostly only some bytes of the property values differ.
    So, where possible, the object of an earlier row is copied, and these bytes are replaced.

    Returns the same as ``_put_object_by_words``; the caller guarantees the same space.
    """
    form: cython.Py_ssize_t = (length % FORMS) * FORM_WIDTH
    kept: cython.Py_ssize_t = (length % FORMS) * FORM_BYTES_MAX
    end: cython.Py_ssize_t
    if forms[form + FORM_LEN] == length > 0:
        if _put_changes(
            segment, start, length, out, at, forms[form + FORM_START], forms[form + FORM_OUT],
            forms[form + FORM_OUT_LEN], moves, kept,
        ):  # fmt: skip
            forms[form + FORM_START] = start
            forms[form + FORM_OUT] = at
            forms[form + FORM_BALANCE] = min(forms[form + FORM_BALANCE] + 1, FORM_BALANCE_MAX)
            return at + forms[form + FORM_OUT_LEN]
    end = _put_object_by_words(segment, start, start + length, out, at)
    if 0 < length <= FORM_BYTES_MAX and end >= 0:
        # Making a form (template) takes as long as writing an object. So a form is made only while forms are used often
        # enough.
        forms[form + FORM_BALANCE] -= 1
        if forms[form + FORM_BALANCE] >= -FORM_COST:
            forms[form + FORM_BALANCE] -= FORM_COST
            forms[form + FORM_START] = start
            forms[form + FORM_OUT] = at
            forms[form + FORM_OUT_LEN] = end - at
            forms[form + FORM_LEN] = length if _learn_form(segment, start, length, moves, kept) == end - at else 0
    return end


@cython.cfunc
@cython.exceptval(check=False)
def _learn_form(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    moves: cython.short[::1],
    kept: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Fills ``moves`` from ``kept`` on: for each byte of a value, its position in the JSON object; -1 for other bytes.

    Returns:
        The length of the object; -1 unless the properties are plain pairs, each with a name and a value without
        escapes.
    """
    place: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 2  # after the brace and the first quote
    in_value: cython.bint = False
    empty: cython.bint = True
    byte: cython.int
    while place < length:
        byte = segment[start + place]
        moves[kept + place] = -1
        if byte == 2:
            if empty or not in_value:
                return -1
            at += 3  # quote, comma, quote
            in_value, empty = False, True
        elif byte == 1 and not in_value:
            if empty:
                return -1
            at += 3  # quote, colon, quote
            in_value, empty = True, True
        elif _is_plain(byte):
            if in_value:
                moves[kept + place] = at
            at += 1
            empty = False
        else:
            return -1
        place += 1
    if segment[start + length - 1] == 2:
        return at - 1  # a brace instead of comma and quote
    return -1 if empty or not in_value else at + 2


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_plain(byte: cython.int) -> cython.bint:
    """Whether a byte stands for itself in a JSON string."""
    return 32 <= byte < 128 and byte not in (34, 92)


@cython.cfunc
@cython.exceptval(check=False)
def _put_changes(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    first_out: cython.Py_ssize_t,
    out_len: cython.Py_ssize_t,
    moves: cython.short[::1],
    kept: cython.Py_ssize_t,
) -> cython.bint:
    """Copies the object of the row at ``first`` and replaces the bytes in which the row at ``start`` differs.

    Returns:
        True if the two rows differ only in plain bytes of values; otherwise False, and the output is invalid.
    """
    place: cython.Py_ssize_t = 0
    byte: cython.Py_ssize_t
    word: cython.ulonglong = 0
    other: cython.ulonglong = 0
    if cython.compiled:
        memcpy(cython.address(out[at]), cython.address(out[first_out]), out_len)
    while place < length:
        if cython.compiled:
            memcpy(cython.address(word), cython.address(segment[start + place]), 8)
            memcpy(cython.address(other), cython.address(segment[first + place]), 8)
        if word != other:
            for byte in range(place, min(place + 8, length)):
                if segment[start + byte] != segment[first + byte]:
                    if moves[kept + byte] < 0 or not _is_plain(segment[start + byte]):
                        return False
                    out[at + moves[kept + byte]] = segment[start + byte]
        place += 8
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _put_object_by_words(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the same object as ``_put_object``, in one pass and eight bytes at a time.

    The caller guarantees eight bytes in ``segment`` after ``end``, and room in ``out`` from ``at`` on for 32 bytes plus
    six for each input byte.

    Returns:
        The position after the object; -1 if a name occurs twice, a case that only ``_put_object`` handles.
    """
    seen: cython.ulonglong = 0
    bit: cython.ulonglong
    first: cython.Py_ssize_t = start
    place: cython.Py_ssize_t
    begin: cython.Py_ssize_t = at + 1
    pair: cython.Py_ssize_t = begin
    name: cython.Py_ssize_t = start
    name_end: cython.Py_ssize_t = -1  # end of the name, once the separator after it was found
    plain: cython.Py_ssize_t
    size: cython.Py_ssize_t
    byte: cython.int
    out[at] = 123  # {
    out[begin] = 34
    at = begin + 1
    while start <= end:
        plain = _put_plain_words(segment, start, end, out, at)
        at += plain - start
        start = plain
        byte = segment[start] if start < end else 2  # the end of the properties ends a pair too
        if byte == 2:
            if name < name_end < start - 1:
                # The names of RocketMQ's own properties all get different bits.
                place = segment[name] * 11 + segment[name_end - 1] * 5 + (name_end - name) * 3
                bit = cython.cast(cython.ulonglong, 1) << (place & 63)
                if seen & bit and _comes_again(segment, name, name_end - name, first, name):
                    return -1
                seen |= bit
                out[at] = 34
                pair = at + 1
            at = pair
            if at > begin:
                out[at] = 44  # ,
                at += 1
            out[at] = 34
            at += 1
            start += 1
            name, name_end = start, -1
        elif byte == 1 and name_end < 0:
            name_end = start
            out[at] = 34
            out[at + 1] = 58  # :
            out[at + 2] = 34
            at += 3
            start += 1
        else:
            size = _character(segment, start, end)
            at = _put_character(segment, start, size, out, at)
            start += size if size > 0 else -size
    out[pair] = 125  # }
    return pair + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_plain_words(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copies the bytes before the first byte that needs an escape, and up to seven more; returns that byte's position,
    or ``end``.
    """
    place: cython.Py_ssize_t = start
    word: cython.ulonglong = 0
    quote: cython.ulonglong
    backslash: cython.ulonglong
    found: cython.ulonglong
    while place < end:
        if cython.compiled:
            memcpy(cython.address(word), cython.address(segment[place]), 8)
            memcpy(cython.address(out[at + place - start]), cython.address(word), 8)
        # Sets the top bit for each byte that is 128 or more, below 32, a quote or a backslash. A borrow can set wrong
        # bits only above the first match.
        quote = word ^ (EACH_LOW * 34)
        backslash = word ^ (EACH_LOW * 92)
        found = (
            word
            | ((word - EACH_LOW * 32) & ~word)
            | ((quote - EACH_LOW) & ~quote)
            | ((backslash - EACH_LOW) & ~backslash)
        ) & EACH_HIGH
        if found:
            # Each byte before the match contributes one bit, and so does the matching byte; therefore one is
            # subtracted.
            place += ((((found & (0 - found)) - 1) & EACH_LOW) * EACH_LOW >> 56) - 1
            break
        place += 8
    return place if place < end else end


@cython.cfunc
@cython.exceptval(check=False)
def _may_repeat(
    segment: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Whether two names may be equal: False if no two names agree in a 6-bit hash of last byte and length."""
    seen: cython.ulonglong = 0
    bit: cython.ulonglong
    stop: cython.Py_ssize_t
    equals: cython.Py_ssize_t
    while start < end:
        stop = find(segment, 2, start, end)
        equals = find(segment, 1, start, stop)
        if start < equals < stop - 1:
            bit = cython.cast(cython.ulonglong, 1) << ((segment[equals - 1] * 7 + (equals - start)) & 63)
            if seen & bit:
                return True
            seen |= bit
        start = stop + 1
    return False


@cython.cfunc
@cython.exceptval(check=False)
def _comes_again(
    segment: cython.const[cython.uchar][::1],
    name: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.bint:
    """Whether a pair in ``segment[start:end]`` has the name whose ``size`` bytes begin at ``name``."""
    stop: cython.Py_ssize_t
    equals: cython.Py_ssize_t
    while start < end:
        stop = find(segment, 2, start, end)
        equals = find(segment, 1, start, stop)
        if equals - start == size and equals < stop - 1:
            if same(segment, start, segment, name, size):
                return True
        start = stop + 1
    return False


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(out: cython.uchar[::1], at: cython.Py_ssize_t, byte: cython.int) -> cython.Py_ssize_t:
    if at < len(out):
        out[at] = byte
    return at + 1


@cython.cfunc
@cython.exceptval(check=False)
def _put_string(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes ``segment[start:end]`` as a JSON string; returns the position after it."""
    plain: cython.Py_ssize_t
    size: cython.Py_ssize_t
    at = _put(out, at, 34)
    while start < end:
        plain = start
        while plain < end and 32 <= segment[plain] < 128 and segment[plain] not in (34, 92):
            plain += 1
        at = _put_bytes(segment, start, plain, out, at)
        start = plain
        if start == end:
            break
        size = _character(segment, start, end)
        at = _put_character(segment, start, size, out, at)
        start += size if size > 0 else -size
    return _put(out, at, 34)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_character(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes the special character at ``start``; ``size`` is the result of ``_character`` for it."""
    if size == 1:
        return _put_escape(out, at, segment[start])
    if size > 0:
        return _put_bytes(segment, start, start + size, out, at)
    return _put_replacement(out, at)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(
    segment: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    if start < end <= start + len(out) - at:
        if cython.compiled:
            memcpy(cython.address(out[at]), cython.address(segment[start]), end - start)
        else:
            out[at : at + end - start] = segment[start:end]
    return at + end - start


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_replacement(out: cython.uchar[::1], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Writes U+FFFD in UTF-8."""
    at = _put(out, at, 239)
    at = _put(out, at, 191)
    return _put(out, at, 189)


@cython.cfunc
@cython.exceptval(check=False)
def _put_escape(out: cython.uchar[::1], at: cython.Py_ssize_t, byte: cython.int) -> cython.Py_ssize_t:
    """Writes the escape of a quote, a backslash or a control character."""
    at = _put(out, at, 92)
    if byte in (34, 92):
        return _put(out, at, byte)
    if byte == 8:
        return _put(out, at, 98)  # b
    if byte == 9:
        return _put(out, at, 116)  # t
    if byte == 10:
        return _put(out, at, 110)  # n
    if byte == 12:
        return _put(out, at, 102)  # f
    if byte == 13:
        return _put(out, at, 114)  # r
    at = _put(out, at, 117)  # u
    at = _put(out, at, 48)
    at = _put(out, at, 48)
    at = _put(out, at, 48 + (byte >> 4))
    byte &= 15
    return _put(out, at, 48 + byte if byte < 10 else 87 + byte)


@cython.cfunc
@cython.exceptval(check=False)
def _character(
    segment: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Returns the length in bytes of the character at ``start``. If the bytes there are invalid, returns their number,
    negated.
    """
    lead: cython.uint = segment[start]
    low: cython.uint = 0x80
    high: cython.uint = 0xBF
    size: cython.Py_ssize_t
    have: cython.Py_ssize_t = 1
    if lead < 0x80:
        return 1
    # the second byte's range excludes overlong forms, surrogates and code points above U+10FFFF
    if 0xC2 <= lead <= 0xDF:
        size = 2
    elif 0xE0 <= lead <= 0xEF:
        size = 3
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
    elif 0xF0 <= lead <= 0xF4:
        size = 4
        if lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
    else:
        return -1
    while have < size and start + have < end and low <= segment[start + have] <= high:
        have += 1
        low, high = 0x80, 0xBF
    return size if have == size else -have
