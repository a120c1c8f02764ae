# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel that turns a buffer of filled columns into a record batch message of Arrow's IPC format.

Bounds checks are off. Every place in the plan and in the metadata is checked against the buffer.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.rucola.common.kernel_bytes import *
    from cython.cimports.rucola.common.kernel_columns import *
    from cython.cimports.rucola.formats.kernel_plan import *
else:
    from rucola.common.kernel_bytes import *
    from rucola.common.kernel_columns import *
    from rucola.formats.kernel_plan import *

# Size in bytes of a FieldNode (rows, nulls) and of a Buffer (position, size) in the metadata.
PAIR_BYTES = cython.declare(cython.Py_ssize_t, 16)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def complete(
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    texts: cython.const[cython.uchar][::1],
    plan: cython.longlong[::1],
    metadata: cython.const[cython.uchar][::1],
    places: cython.longlong[::1],
    out: Any,
) -> int:
    """Writes the texts that all rows share, the validity bitmaps, and the metadata.

    The columns of kind ``SAME`` do not become columns of the message.

    Args:
        table: the ``rows`` rows that ``fill`` has appended; at least 1.
        texts: the texts of the columns of kind ``REPEATED``, one after the other.
        metadata: the metadata of a message with these columns, from its first byte up to its body.
        places: positions in ``metadata``, by ``MessagePlace``; the fields there are overwritten.
        out: buffer laid out by ``plan``, whose columns begin after ``len(metadata)`` bytes.

    Returns:
        The number of bytes of all values, without offsets and bitmaps.

    Raises:
        ValueError: the plan, the metadata, the texts or the rows do not fit each other or ``out``.
    """
    view = memoryview(out).cast("B")
    bytes_out: cython.uchar[::1] = view
    ints: cython.int[::1] = view.cast("i")
    body: cython.Py_ssize_t = len(metadata)
    if not 1 <= rows <= len(table) // ROW_WIDTH or len(plan) % PLAN_WIDTH or body > len(bytes_out):
        raise ValueError(f"{rows} rows, {len(plan)} integers in the plan, or {body} bytes of metadata do not fit")
    _check_metadata(plan, places, body)
    copy(bytes_out, 0, metadata, 0, body)
    _put(bytes_out, places[PLACE_ROWS], rows)
    _put(bytes_out, places[PLACE_BODY_SIZE], len(bytes_out) - body)
    node: cython.Py_ssize_t = places[PLACE_NODES]
    buffer: cython.Py_ssize_t = places[PLACE_BUFFERS]
    text: cython.Py_ssize_t = 0
    used: cython.longlong = 0
    at: cython.Py_ssize_t
    for at in range(0, len(plan), PLAN_WIDTH):
        if plan[at + PLAN_KIND] == COLUMN_SAME:
            continue
        check_places(plan, at, rows, body, len(bytes_out))
        if plan[at + PLAN_KIND] == COLUMN_REPEATED:
            if plan[at + PLAN_DETAIL] > len(texts) - text:
                raise ValueError(f"{len(texts)} bytes of texts, too few for column {at // PLAN_WIDTH}")
            _repeat(texts, text, rows, plan, at, bytes_out, ints)
            text += plan[at + PLAN_DETAIL]
        elif plan[at + PLAN_MISSING]:
            _check_validity(plan, at, rows, body, len(bytes_out))
            _put_validity(table, rows, plan, at, bytes_out)
        _put_pair(bytes_out, node, rows, plan[at + PLAN_MISSING])
        buffer = _put_buffers(plan, at, rows, body, bytes_out, buffer)
        node += PAIR_BYTES
        used += size_of_values(plan, at, rows)
    return used


@cython.cfunc
@cython.exceptval(-1)
def _check_metadata(plan: cython.longlong[::1], places: cython.longlong[::1], size: cython.Py_ssize_t) -> cython.int:
    """Checks that the fields to write lie in ``size`` bytes of metadata."""
    columns: cython.longlong = 0
    buffers: cython.longlong = 0
    kind: cython.longlong
    at: cython.Py_ssize_t
    for at in range(0, len(plan), PLAN_WIDTH):
        kind = plan[at + PLAN_KIND]
        if kind != COLUMN_SAME:
            columns += 1
            buffers += 2 if kind in (COLUMN_INT32, COLUMN_INT64) else 3
    if len(places) != PLACES:
        raise ValueError(f"{len(places)} places in the metadata, must be {PLACES}")
    if not (
        0 <= places[PLACE_ROWS] <= size - 8
        and 0 <= places[PLACE_BODY_SIZE] <= size - 8
        and 0 <= places[PLACE_NODES] <= size - PAIR_BYTES * columns
        and 0 <= places[PLACE_BUFFERS] <= size - PAIR_BYTES * buffers
    ):
        raise ValueError(f"a place lies outside the {size} bytes of metadata")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _check_validity(
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Checks that a column's validity bitmap lies between ``start`` and ``size``, and its lengths in the table."""
    if not start <= plan[at + PLAN_VALIDITY] <= size - (rows + 7) // 8 or not 0 <= plan[at + PLAN_DETAIL] < ROW_WIDTH:
        raise ValueError(f"the bitmap of column {at // PLAN_WIDTH} does not fit into out, which has {size} bytes")
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _repeat(
    texts: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
    out: cython.uchar[::1],
    ints: cython.int[::1],
) -> cython.void:
    """Writes the text at ``start`` once for each row."""
    length: cython.Py_ssize_t = plan[at + PLAN_DETAIL]
    values: cython.Py_ssize_t = plan[at + PLAN_VALUES]
    offsets: cython.Py_ssize_t = plan[at + PLAN_OFFSETS] // 4
    total: cython.Py_ssize_t = length * rows
    done: cython.Py_ssize_t = length
    i: cython.Py_ssize_t
    for i in range(rows + 1):
        ints[offsets + i] = i * length
    copy(out, values, texts, start, done)
    while done < total:  # What is written doubles with each copy.
        copy(out, values + done, out, values, min(done, total - done))
        done += min(done, total - done)
    plan[at + PLAN_DONE] = total


@cython.cfunc
@cython.exceptval(check=False)
def _put_validity(
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
    out: cython.uchar[::1],
) -> cython.void:
    """Writes one bit for each row, 1 if the row has a value."""
    column: cython.Py_ssize_t = plan[at + PLAN_DETAIL]
    place: cython.Py_ssize_t = plan[at + PLAN_VALIDITY]
    byte: cython.int = 0
    i: cython.Py_ssize_t
    for i in range(rows):
        if table[i * ROW_WIDTH + column] >= 0:
            byte |= 1 << (i & 7)
        if i & 7 == 7 or i == rows - 1:
            out[place + (i >> 3)] = byte
            byte = 0


@cython.cfunc
@cython.exceptval(check=False)
def _put_buffers(
    plan: cython.longlong[::1],
    at: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes position and size of each buffer of a column; returns the position after them."""
    kind: cython.longlong = plan[at + PLAN_KIND]
    values: cython.longlong = plan[at + PLAN_VALUES] - body
    if plan[at + PLAN_MISSING]:
        _put_pair(out, to, plan[at + PLAN_VALIDITY] - body, (rows + 7) // 8)
    else:
        _put_pair(out, to, 0, 0)
    to += PAIR_BYTES
    if kind not in (COLUMN_INT32, COLUMN_INT64):
        _put_pair(out, to, plan[at + PLAN_OFFSETS] - body, 4 * (rows + 1))
        to += PAIR_BYTES
    _put_pair(out, to, values, size_of_values(plan, at, rows))
    return to + PAIR_BYTES


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_pair(
    out: cython.uchar[::1], at: cython.Py_ssize_t, first: cython.longlong, second: cython.longlong
) -> cython.void:
    _put(out, at, first)
    _put(out, at + 8, second)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(out: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    """Writes ``value`` as little-endian, as the metadata is on all machines."""
    i: cython.Py_ssize_t
    for i in range(8):
        out[at + i] = value >> (8 * i) & 255
