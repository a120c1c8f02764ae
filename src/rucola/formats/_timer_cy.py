# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel over units of the timer log and slots of the timer wheel (``formats.timer``), all big-endian.

Bounds checks are off. Every function first checks its positions against the buffers. All divisions have non-negative
operands.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.rucola.common.kernel_bytes import *
else:
    from rucola.common.kernel_bytes import *

TIMER_UNIT_BYTES = cython.declare(cython.int, 52)
TIMER_SLOT_BYTES = cython.declare(cython.int, 32)
MAGIC_DELETE = cython.declare(cython.int, 4)
MAGIC_MAX = cython.declare(cython.int, 15)
# A literal above 31 bits is a Python object to Cython; this is a C integer.
TIMER_BLANK_MAGIC = cython.declare(cython.longlong, 0xCBD43194 - 0x100000000)
STOP_AT_LIMIT = cython.declare(cython.int, 0)
STOP_AT_BLANK = cython.declare(cython.int, 1)
STOP_AT_NO_UNIT = cython.declare(cython.int, 2)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def scan_units(
    log: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    base: cython.longlong,
    physical_end: cython.longlong,
    wheel: cython.uchar[::1],
    precision_ms: cython.longlong,
    seen_from: cython.longlong,
    seen: cython.longlong[::1],
) -> tuple[int, int, int, int]:
    """Walks the units of a segment from ``position`` on, and adds each unit to its slot of the timer wheel unless the
    slot has it already.

    Args:
        log: the segment; ``base`` is the position of its first byte in the timer log.
        physical_end: end of the commit log; the walk stops at a unit whose record reaches beyond it.
        wheel: the slots. A slot of the unit's time step is not changed if it points to that unit or a later one.
        seen_from: physical offset; records that start there or later are listed in ``seen``.
        seen: receives the physical offsets of those records; must have room for one number per unit from ``position``
            on, and for one more.

    Returns:
        The position after the last unit, the reason to stop (0: end of the segment; 1: blank; 2: no valid unit, or a
        record that reaches beyond ``physical_end``), the number of offsets in ``seen``, and the physical offset of the
        last unit's record, or -1 if there is no unit.
    """
    limit: cython.Py_ssize_t = len(log) - TIMER_UNIT_BYTES
    slots: cython.longlong = len(wheel) // TIMER_SLOT_BYTES
    stop: cython.int = STOP_AT_LIMIT
    count: cython.Py_ssize_t = 0
    last: cython.longlong = -1
    magic: cython.longlong
    physical: cython.longlong
    size: cython.longlong
    step: cython.longlong
    at: cython.Py_ssize_t
    if position < 0 or precision_ms <= 0 or slots <= 0:
        raise ValueError("position, precision or wheel out of range")
    if len(seen) < (len(log) - position) // TIMER_UNIT_BYTES + 1:
        raise ValueError("seen has no room for all units of the segment")
    while position + 16 <= len(log):
        if int32(log, position + 12) == TIMER_BLANK_MAGIC:
            stop = STOP_AT_BLANK
            break
        if position > limit:
            stop = STOP_AT_NO_UNIT
            break
        magic = int32(log, position + 12)
        physical = int64(log, position + 28)
        size = int32(log, position + 36)
        step = int64(log, position + 16) + int32(log, position + 24)
        if (
            int32(log, position) != TIMER_UNIT_BYTES
            or magic < 0
            or magic > MAGIC_MAX
            or size <= 0
            or physical < 0
            or physical + size > physical_end
            or step < 0
        ):
            stop = STOP_AT_NO_UNIT
            break
        step = step // precision_ms
        at = cython.cast(cython.Py_ssize_t, step % slots) * TIMER_SLOT_BYTES
        if int64(wheel, at) != step:
            put64(wheel, at, step)
            put64(wheel, at + 8, base + position)
            put64(wheel, at + 16, base + position)
            put32(wheel, at + 24, -1 if magic & MAGIC_DELETE else 1)
        elif int64(wheel, at + 16) < base + position:
            put64(wheel, at + 16, base + position)
            put32(wheel, at + 24, int32(wheel, at + 24) + (-1 if magic & MAGIC_DELETE else 1))
        if physical >= seen_from:
            seen[count] = physical
            count += 1
        last = physical
        position += TIMER_UNIT_BYTES
    return position, stop, count, last


def chain_units(
    log: cython.const[cython.uchar][::1],
    base: cython.longlong,
    position: cython.longlong,
    out: cython.longlong[::1],
) -> tuple[int, int]:
    """Follows a chain of units backwards through one segment.

    Args:
        log: the segment; ``base`` is the position of its first byte in the timer log.
        position: position of the newest unit to read, in the timer log.
        out: receives physical offset, record size, magic and write time of each unit.

    Returns:
        The number of units read, and the position of the next unit, which lies in another segment or did not fit into
        ``out``. The position is -1 at the end of the chain. A link that points forwards, or to bytes that are not a
        unit, ends the chain.
    """
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = len(out) // 4
    at: cython.Py_ssize_t
    before: cython.longlong
    while count < room and position >= base and position - base + TIMER_UNIT_BYTES <= len(log):
        at = cython.cast(cython.Py_ssize_t, position - base)
        if int32(log, at) != TIMER_UNIT_BYTES:
            return count, -1
        out[4 * count] = int64(log, at + 28)
        out[4 * count + 1] = int32(log, at + 36)
        out[4 * count + 2] = int32(log, at + 12)
        out[4 * count + 3] = int64(log, at + 16)
        count += 1
        before = int64(log, at + 4)
        if before >= position or before < 0:
            return count, -1
        position = before
    return count, position


def is_beyond(
    wheel: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t, log_end: cython.longlong
) -> bool:
    """Whether position ``log_end`` or a later one is in any slot between the byte positions ``start`` and ``end``."""
    at: cython.Py_ssize_t = start - start % TIMER_SLOT_BYTES
    if start < 0 or end > len(wheel):
        raise ValueError("slots out of range")
    while at + TIMER_SLOT_BYTES <= end:
        if int64(wheel, at + 16) >= log_end and int64(wheel, at) != 0:
            return True
        at += TIMER_SLOT_BYTES
    return False
