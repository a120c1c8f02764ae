# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel for many lite topics: finds names in their blob, reads units, and scans columns (``formats.lite``).

Bounds checks are off. Every function checks its positions, and every id that it reads, against the buffers.
"""

from __future__ import annotations

from collections.abc import Callable

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.rucola.common.kernel_bytes import *
else:
    from rucola.common.kernel_bytes import *

NAME_HEAD_BYTES = cython.declare(cython.int, 5)
NAME_CRC_BYTES = cython.declare(cython.int, 4)
LITE_UNIT_BYTES = cython.declare(cython.int, 40)
LITE_CRC_AT = cython.declare(cython.int, 36)
REMOVED = cython.declare(cython.longlong, 4294967295)
BEGINS = cython.declare(cython.longlong, 4294967295)
DOLLAR = cython.declare(cython.int, 36)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hash(
    data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, size: cython.Py_ssize_t, seed: cython.longlong
) -> cython.longlong:
    value: cython.longlong = low32(seed ^ 2166136261)
    i: cython.Py_ssize_t
    for i in range(at, at + size):
        value = low32((value ^ data[i]) * 16777619)
    value = low32((value ^ (value >> 15)) * 739982445)
    return value ^ (value >> 13)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _length(blob: cython.const[cython.uchar][::1], position: cython.longlong) -> cython.Py_ssize_t:
    """Length of the name at ``position``; -1 if it does not lie in the blob."""
    if position + NAME_HEAD_BYTES > len(blob):
        return -1
    size: cython.Py_ssize_t = blob[position + 4]
    return size if position + NAME_HEAD_BYTES + size <= len(blob) else -1


def hash_name(name: cython.const[cython.uchar][::1], seed: cython.longlong) -> int:
    """Returns the hash of a name, 32 bits."""
    return _hash(name, 0, len(name), seed)


def find_name(
    slots: cython.const[cython.uint][::1],
    blob: cython.const[cython.uchar][::1],
    positions: cython.const[cython.uint][::1],
    name: cython.const[cython.uchar][::1],
    name_hash: cython.longlong,
) -> int:
    """Returns the id of ``name``; -1 if the table does not have it.

    Args:
        slots: a hash table of ids plus one, 0 in free slots; its length is a power of two.
        positions: for each id, the position of its name in ``blob``.
    """
    count: cython.Py_ssize_t = len(slots)
    size: cython.Py_ssize_t = len(name)
    at: cython.Py_ssize_t = (name_hash >> 8) & (count - 1)
    _step: cython.Py_ssize_t
    value: cython.longlong
    position: cython.longlong
    for _step in range(count):
        value = slots[at]
        if value == 0:
            return -1
        if value <= len(positions):
            position = positions[value - 1]
            if _length(blob, position) == size and same(blob, position + NAME_HEAD_BYTES, name, 0, size):
                return value - 1
        at = (at + 1) & (count - 1)
    return -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _insert(slots: cython.uint[::1], value: cython.longlong, name_hash: cython.longlong) -> cython.bint:
    count: cython.Py_ssize_t = len(slots)
    at: cython.Py_ssize_t = (name_hash >> 8) & (count - 1)
    _step: cython.Py_ssize_t
    for _step in range(count):
        if slots[at] == 0:
            slots[at] = value
            return True
        at = (at + 1) & (count - 1)
    return False


def insert_name(slots: cython.uint[::1], name_id: cython.longlong, name_hash: cython.longlong) -> bool:
    """Puts an id into the table; False if the table is full."""
    return _insert(slots, name_id + 1, name_hash)


def remove_name(slots: cython.uint[::1], name_id: cython.longlong, name_hash: cython.longlong) -> bool:
    """Takes an id out of the table, where its slot stays in use; False if the table does not have it."""
    count: cython.Py_ssize_t = len(slots)
    at: cython.Py_ssize_t = (name_hash >> 8) & (count - 1)
    _step: cython.Py_ssize_t
    for _step in range(count):
        if slots[at] == 0:
            return False
        if slots[at] == name_id + 1:
            slots[at] = REMOVED
            return True
        at = (at + 1) & (count - 1)
    return False


def refill_slots(
    slots: cython.uint[::1],
    old: cython.const[cython.uint][::1],
    blob: cython.const[cython.uchar][::1],
    positions: cython.const[cython.uint][::1],
    seed: cython.longlong,
) -> int:
    """Puts the ids of table ``old`` into the empty table ``slots``; returns their number."""
    done: cython.longlong = 0
    i: cython.Py_ssize_t
    value: cython.longlong
    position: cython.longlong
    size: cython.Py_ssize_t
    for i in range(len(old)):
        value = old[i]
        if 0 < value <= len(positions):
            position = positions[value - 1]
            size = _length(blob, position)
            if size >= 0 and _insert(slots, value, _hash(blob, position + NAME_HEAD_BYTES, size, seed)):
                done += 1
    return done


def hash_names(
    blob: cython.const[cython.uchar][::1],
    positions: cython.const[cython.uint][::1],
    seed: cython.longlong,
    nexts: cython.const[cython.longlong][::1],
    hashes: cython.uint[::1],
    counts: cython.uint[::1],
) -> None:
    """Writes the hash of each name in use, and how many names have each value of the hash's low 8 bits.

    Args:
        nexts: for each id its next queue offset; 0 if the id is not in use.

    Raises:
        ValueError: a buffer is too short.
    """
    if len(hashes) < len(positions) or len(counts) < 256:
        raise ValueError("the hashes need more room")
    i: cython.Py_ssize_t
    value: cython.longlong
    position: cython.longlong
    for i in range(len(positions)):
        position = positions[i]
        value = _hash(blob, position + NAME_HEAD_BYTES, max(_length(blob, position), 0), seed)
        hashes[i] = value
        if i < len(nexts) and nexts[i] > 0:
            counts[value & 255] += 1


def fill_slots(
    slots: cython.uint[::1],
    hashes: cython.const[cython.uint][::1],
    nexts: cython.const[cython.longlong][::1],
    part: cython.longlong,
) -> None:
    """Puts every id in use whose hash has the low 8 bits ``part`` into the empty table ``slots``."""
    i: cython.Py_ssize_t
    for i in range(min(len(hashes), len(nexts))):
        if hashes[i] & 255 == part and nexts[i] > 0:
            _insert(slots, i + 1, hashes[i])


def walk_names(
    blob: cython.const[cython.uchar][::1],
    view: memoryview,
    position: cython.Py_ssize_t,
    positions: cython.uint[::1],
    count: cython.Py_ssize_t,
    crc32: Callable[[memoryview], int],
) -> tuple[int, int, int]:
    """Reads names until one is not whole, or ``positions`` is full.

    Args:
        view: the same bytes as ``blob``.
        position: where an entry begins.
        count: number of ids so far.
        positions: gets the position of each name; the later one counts if two have the same id.

    Returns:
        The position after the last entry, the number of ids, and the number of entries.
    """
    size: cython.Py_ssize_t
    end: cython.Py_ssize_t
    name_id: cython.longlong
    entries: cython.longlong = 0
    while position >= 0:
        size = _length(blob, position)
        end = position + NAME_HEAD_BYTES + size
        if size <= 0 or end + NAME_CRC_BYTES > len(blob):
            break
        name_id = uint32(blob, position)
        if name_id > count or name_id >= len(positions):
            break
        if uint32(blob, end) != crc32(view[position:end]):
            break
        positions[name_id] = position
        count = max(count, name_id + 1)
        entries += 1
        position = end + NAME_CRC_BYTES
    return position, count, entries


def set_parents(
    blob: cython.const[cython.uchar][::1],
    positions: cython.const[cython.uint][::1],
    first: cython.Py_ssize_t,
    parent: cython.const[cython.uchar][::1],
    number: cython.longlong,
    parents: cython.uint[::1],
) -> int:
    """Notes ``number`` as the parent of each name from id ``first`` on that begins with ``parent`` and ``$``; returns
    the first id whose name does not.
    """
    size: cython.Py_ssize_t = len(parent)
    position: cython.longlong
    while first < len(positions) and first < len(parents):
        position = positions[first] + NAME_HEAD_BYTES
        if _length(blob, position - NAME_HEAD_BYTES) <= size or blob[position + size] != DOLLAR:
            break
        if not same(blob, position, parent, 0, size):
            break
        parents[first] = number
        first += 1
    return first


def check_units(
    data: cython.const[cython.uchar][::1],
    view: memoryview,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    id_limit: cython.longlong,
    physical_offset: cython.longlong,
    crc32: Callable[[memoryview], int],
) -> tuple[int, int]:
    """Reads units until one is damaged, has an unknown id, or lies before its predecessor in the log.

    Args:
        view: the same bytes as ``data``.
        id_limit: number of known ids.
        physical_offset: that of the unit before the first one.

    Returns:
        The position after the last good unit, and its physical offset.
    """
    place: cython.longlong
    end = min(end, len(data))
    while 0 <= start <= end - LITE_UNIT_BYTES:
        if uint32(data, start) >= id_limit or uint32(data, start + LITE_CRC_AT) != crc32(
            view[start : start + LITE_CRC_AT]
        ):
            break
        place = (int64(data, start + 8) >> 8) & 72057594037927935
        if place < physical_offset:
            break
        physical_offset = place
        start += LITE_UNIT_BYTES
    return start, physical_offset


def apply_units(
    data: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    cell: cython.longlong,
    marks_only: cython.bint,
    nexts: cython.longlong[::1],
    starts: cython.longlong[::1],
    lasts: cython.longlong[::1],
    times: cython.uint[::1],
    checksums: cython.const[cython.uint][::1],
) -> int:
    """Brings the columns up to date with good units; returns the number of units that changed a row.

    Args:
        cell: number of the unit at ``start``.
        marks_only: whether only start marks count.
        checksums: CRC-32 of each name.
    """
    done: cython.longlong = 0
    i: cython.longlong
    size: cython.longlong
    offset: cython.longlong
    rows: cython.Py_ssize_t = min(len(nexts), len(starts), len(lasts), len(times), len(checksums))
    end = min(end, len(data))
    while 0 <= start <= end - LITE_UNIT_BYTES:
        i = uint32(data, start)
        size = int32(data, start + 4)
        offset = (low32(data[start + 15]) << 32) | uint32(data, start + 16)
        if i < rows and size == 0:
            if uint32(data, start + 20) == checksums[i]:
                starts[i] = max(starts[i], offset)
                nexts[i] = max(nexts[i], offset)
                done += 1
        elif i < rows and size < 0:
            if uint32(data, start + 20) == checksums[i] and lasts[i] <= cell:
                starts[i] = nexts[i] = lasts[i] = times[i] = 0
                done += 1
        elif i < rows and not marks_only and lasts[i] <= cell:
            if uint32(data, start + 28) == 0 and uint32(data, start + 32) == BEGINS:
                starts[i] = offset
                nexts[i] = offset + 1
            else:
                nexts[i] = max(nexts[i], offset + 1)
            lasts[i] = cell + 1
            times[i] = uint32(data, start + 24)
            done += 1
        cell += 1
        start += LITE_UNIT_BYTES
    return done


def checksum_names(
    blob: cython.const[cython.uchar][::1],
    view: memoryview,
    positions: cython.const[cython.uint][::1],
    first: cython.Py_ssize_t,
    checksums: cython.uint[::1],
    crc32: Callable[[memoryview], int],
) -> None:
    """Writes the CRC-32 of each name from id ``first`` on."""
    i: cython.Py_ssize_t
    position: cython.Py_ssize_t
    for i in range(first, min(len(positions), len(checksums))):
        position = positions[i]
        checksums[i] = crc32(
            view[position + NAME_HEAD_BYTES : position + NAME_HEAD_BYTES + max(_length(blob, position), 0)]
        )


def read_links(
    data: cython.const[cython.uchar][::1], view: memoryview, at: cython.Py_ssize_t, crc32: Callable[[memoryview], int]
) -> tuple[int, int, int, int]:
    """Returns physical offset, queue offset, and the distances to the previous unit and to the unit to jump to, of the
    unit at ``at``; a distance is 0 if there is none. The first number is -1 if the checksum is wrong.

    Args:
        view: the same bytes as ``data``.

    Raises:
        ValueError: the unit lies outside ``data``.
    """
    if at < 0 or at + LITE_UNIT_BYTES > len(data):
        raise ValueError(f"no unit at {at} in {len(data)} bytes")
    if uint32(data, at + LITE_CRC_AT) != crc32(view[at : at + LITE_CRC_AT]):
        return -1, 0, 0, 0
    place: cython.longlong = (int64(data, at + 8) >> 8) & 72057594037927935
    queue_offset: cython.longlong = (low32(data[at + 15]) << 32) | uint32(data, at + 16)
    back: cython.longlong = uint32(data, at + 28)
    jump: cython.longlong = uint32(data, at + 32)
    return place, queue_offset, back, 0 if jump == BEGINS and back == 0 else jump


def write_unit(
    data: cython.uchar[::1],
    view: memoryview,
    at: cython.Py_ssize_t,
    name_id: cython.longlong,
    size: cython.longlong,
    physical_offset: cython.longlong,
    queue_offset: cython.longlong,
    tags_code: cython.longlong,
    store_time_s: cython.longlong,
    back: cython.longlong,
    jump: cython.longlong,
    crc32: Callable[[memoryview], int],
) -> None:
    """Writes a unit. The numbers are valid values of its fields.

    Args:
        view: the same bytes as ``data``.
        jump: the field; 2**32 - 1, with ``back`` 0, in a unit that begins its topic.

    Raises:
        ValueError: it does not fit into ``data``.
    """
    if at < 0 or at + LITE_UNIT_BYTES > len(data):
        raise ValueError(f"no room for a unit at {at} in {len(data)} bytes")
    put32(data, at, name_id)
    put32(data, at + 4, size)
    put64(data, at + 8, (physical_offset << 8) | (queue_offset >> 32))
    put32(data, at + 16, queue_offset)
    put32(data, at + 20, tags_code)
    put32(data, at + 24, store_time_s)
    put32(data, at + 28, back)
    put32(data, at + 32, jump)
    put32(data, at + LITE_CRC_AT, crc32(view[at : at + LITE_CRC_AT]))


def rows_above(
    lasts: cython.const[cython.longlong][::1], limit: cython.longlong, first: cython.Py_ssize_t, out: cython.uint[::1]
) -> tuple[int, int]:
    """Finds rows from ``first`` on whose last unit has a number of ``limit`` or more, until ``out`` is full.

    Returns:
        The next row to look at, and the number of rows found.
    """
    done: cython.Py_ssize_t = 0
    while first < len(lasts) and done < len(out):
        if lasts[first] > limit:
            out[done] = first
            done += 1
        first += 1
    return first, done


def count_live(
    nexts: cython.const[cython.longlong][::1],
    starts: cython.const[cython.longlong][::1],
    parents: cython.const[cython.uint][::1],
    counts: cython.longlong[::1],
) -> None:
    """Adds to ``counts`` how many names of each parent have messages above their start."""
    i: cython.Py_ssize_t
    for i in range(min(len(nexts), len(starts), len(parents))):
        if nexts[i] > starts[i] and parents[i] < len(counts):
            counts[parents[i]] += 1


def find_rows(
    nexts: cython.const[cython.longlong][::1],
    starts: cython.const[cython.longlong][::1],
    times: cython.const[cython.uint][::1],
    parents: cython.const[cython.uint][::1],
    limits: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    out: cython.uint[::1],
) -> tuple[int, int]:
    """Finds names with messages above their start whose newest message is older than its parent's limit.

    Args:
        limits: for each parent a time in seconds; 0 finds none.
        first, last: the rows to look at; ``last`` is excluded.

    Returns:
        The next row to look at, and the number of ids in ``out``.
    """
    done: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t = max(first, 0)
    last = min(last, len(nexts), len(starts), len(times), len(parents))
    while i < last and done < len(out):
        if parents[i] < len(limits) and times[i] < limits[parents[i]] and nexts[i] > starts[i]:
            out[done] = i
            done += 1
        i += 1
    return i, done
