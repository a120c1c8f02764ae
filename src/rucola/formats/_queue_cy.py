# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel for consume-queue units. A unit has 20 bytes: physical offset i64, record size i32, tags code i64, big-endian.

Bounds checks are off. Every function first checks its positions against the buffers.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.rucola.common.kernel_bytes import *
    from cython.cimports.rucola.common.kernel_columns import *
    from cython.cimports.rucola.common.kernel_records import *
else:
    from rucola.common.kernel_bytes import *
    from rucola.common.kernel_columns import *
    from rucola.common.kernel_records import *

UNIT_BYTES = cython.declare(cython.int, 20)
# the size field of formats.consume_queue.PRE_FILL_UNIT
PRE_FILL_SIZE = cython.declare(cython.longlong, 0x7FFFFFFF)
# formats.consume_queue: QueueColumn and CollectedColumn
QUEUE_WIDTH = cython.declare(cython.int, 9)
COLLECTED_WIDTH = cython.declare(cython.int, 5)
# For Cython, a literal of more than 31 bits is a Python object; these are C integers.
FNV_START = cython.declare(cython.longlong, 2166136261)
FNV_PRIME = cython.declare(cython.longlong, 16777619)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


def put_unit(
    units: cython.uchar[::1],
    position: cython.Py_ssize_t,
    physical_offset: cython.longlong,
    size: cython.longlong,
    tags_code: cython.longlong,
) -> None:
    """Writes one unit at byte ``position`` of ``units``.

    Raises:
        ValueError: if the unit does not fit there.
    """
    if not 0 <= position <= len(units) - UNIT_BYTES:
        raise ValueError(f"a unit at position {position} does not fit into {len(units)} bytes")
    put32(units, position, physical_offset >> 32)
    put32(units, position + 4, physical_offset)
    put32(units, position + 8, size)
    put32(units, position + 12, tags_code >> 32)
    put32(units, position + 16, tags_code)


def gather_units(
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
    base_offset: cython.longlong,
    units_out: cython.uchar[::1],
) -> tuple[int, int, bool]:
    """Makes the units of one queue from the records in rows ``first`` to ``last`` (excluded), all of the same topic.

    Args:
        table: rows of ``walk_records``; prepared and rollback records are skipped.
        queue_id: the queue; rows of other queues are skipped.
        queue_offset: queue offset of the first unit to make; the others must follow without a gap.
        base_offset: physical offset of byte 0 of the segment.
        units_out: receives the units from byte 0 on; must have room for one unit per row.

    Returns:
        The number of units, or -1 if the queue offsets have a gap; the tags code of the last unit; whether all units
        have this tags code.

    Raises:
        ValueError: if the rows lie outside the table, or ``units_out`` is too small.
    """
    if not 0 <= first <= last or last * ROW_WIDTH > len(table):
        raise ValueError(f"rows {first}..{last} lie outside the table")
    if len(units_out) < (last - first) * UNIT_BYTES:
        raise ValueError(f"{last - first} units do not fit into {len(units_out)} bytes")
    count: cython.longlong = 0
    tags_code: cython.longlong = 0
    same: cython.bint = True
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    physical_offset: cython.longlong
    for i in range(first, last):
        row = i * ROW_WIDTH
        if table[row + RECORD_QUEUE_ID] != queue_id or table[row + RECORD_SYS_FLAG] & TRANSACTION_PREPARED:
            continue
        if table[row + RECORD_QUEUE_OFFSET] != queue_offset + count:
            return -1, tags_code, same
        if count > 0 and table[row + RECORD_TAGS_CODE] != tags_code:
            same = False
        tags_code = table[row + RECORD_TAGS_CODE]
        physical_offset = base_offset + table[row + RECORD_POS]
        at = count * UNIT_BYTES
        put32(units_out, at, physical_offset >> 32)
        put32(units_out, at + 4, physical_offset)
        put32(units_out, at + 8, table[row + RECORD_SIZE])
        put32(units_out, at + 12, tags_code >> 32)
        put32(units_out, at + 16, tags_code)
        count += 1
    return count, tags_code, same


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _topic_hash(
    segment: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.longlong:
    """FNV-1a, 32 bits."""
    value: cython.longlong = FNV_START
    at: cython.Py_ssize_t
    for at in range(start, start + size):
        value = low32((value ^ segment[at]) * FNV_PRIME)
    return value


def collect_units(
    segment: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    rows: cython.Py_ssize_t,
    base_offset: cython.longlong,
    slots: cython.longlong[::1],
    queues: cython.longlong[::1],
    queue_count: cython.longlong,
    collected: cython.longlong[::1],
    count: cython.longlong,
) -> tuple[int, int, int]:
    """Adds the queues of the records to ``queues``, and the fields of each record's unit to ``collected``; prepared and
    rollback records have no unit.

    Args:
        segment: the bytes that hold the records, and the topics of the queues already in ``queues``.
        table: rows of ``walk_records``; the first ``rows`` are used.
        base_offset: physical offset of byte 0 of ``segment``.
        slots: hash table of the queues, its length a power of two; all zero at first.
        queues: receives a row of ``QueueColumn`` for each queue; at most half as many queues as there are slots.
        queue_count: number of queues already in ``queues``.
        collected: receives a row of ``CollectedColumn`` for each unit.
        count: number of units already in ``collected``.

    Returns:
        The number of rows taken, the number of queues, and the number of units. Fewer rows than ``rows`` are taken if
        one of the tables is full.

    Raises:
        ValueError: if the tables do not fit together, or a topic lies outside the segment.
    """
    if not 0 <= rows * ROW_WIDTH <= len(table):
        raise ValueError(f"{rows} rows do not fit into the table")
    slot_mask: cython.longlong = len(slots) - 1
    queues_max: cython.longlong = len(queues) // QUEUE_WIDTH
    count_max: cython.longlong = len(collected) // COLLECTED_WIDTH
    if len(slots) == 0 or len(slots) & slot_mask or 2 * queues_max > len(slots):
        raise ValueError(f"{len(slots)} slots do not suffice for {queues_max} queues")
    if not 0 <= queue_count <= queues_max or not 0 <= count <= count_max:
        raise ValueError(f"{queue_count} queues and {count} units do not fit into their tables")
    length: cython.longlong = len(segment)
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    topic_pos: cython.longlong
    topic_len: cython.longlong
    queue_id: cython.longlong
    queue_offset: cython.longlong
    topic_hash: cython.longlong = 0
    hashed: cython.bint = False
    slot: cython.longlong
    number: cython.longlong
    for i in range(rows):
        row = i * ROW_WIDTH
        topic_pos = table[row + RECORD_TOPIC_POS]
        topic_len = table[row + RECORD_TOPIC_LEN]
        if not 0 <= topic_len <= length or not 0 <= topic_pos <= length - topic_len:
            raise ValueError(f"the topic of row {i} lies outside the segment")
        if not (hashed and table[row + RECORD_SAME_TOPIC]):
            topic_hash = _topic_hash(segment, topic_pos, topic_len)
            hashed = True
        if table[row + RECORD_SYS_FLAG] & TRANSACTION_PREPARED:
            continue
        queue_id = table[row + RECORD_QUEUE_ID]
        slot = low32((topic_hash + queue_id) * FNV_PRIME) & slot_mask
        while True:
            number = slots[slot] - 1
            if number < 0 or number >= queue_count:
                break
            at = number * QUEUE_WIDTH
            if queues[at + 2] == queue_id and queues[at + 1] == topic_len:
                if same(segment, queues[at], segment, topic_pos, topic_len):
                    break
            slot = (slot + 1) & slot_mask
        if count == count_max or (number < 0 and queue_count == queues_max):
            return i, queue_count, count
        queue_offset = table[row + RECORD_QUEUE_OFFSET]
        if number < 0:
            number = queue_count
            queue_count += 1
            slots[slot] = queue_count
            at = number * QUEUE_WIDTH
            queues[at] = topic_pos
            queues[at + 1] = topic_len
            queues[at + 2] = queue_id
            queues[at + 3] = 0
            queues[at + 4] = queues[at + 5] = queue_offset
            queues[at + 6] = queues[at + 8] = 0
            queues[at + 7] = table[row + RECORD_TAGS_CODE]
        at = number * QUEUE_WIDTH
        queues[at + 3] += 1
        queues[at + 6] += queues[at + 5] != queue_offset
        queues[at + 5] = queue_offset + 1
        queues[at + 8] += queues[at + 7] != table[row + RECORD_TAGS_CODE]
        at = count * COLLECTED_WIDTH
        collected[at] = number
        collected[at + 1] = queue_offset
        collected[at + 2] = base_offset + table[row + RECORD_POS]
        collected[at + 3] = table[row + RECORD_SIZE]
        collected[at + 4] = table[row + RECORD_TAGS_CODE]
        count += 1
    return rows, queue_count, count


def sort_units(
    collected: cython.longlong[::1],
    count: cython.longlong,
    queues: cython.longlong[::1],
    queue_count: cython.longlong,
    places: cython.longlong[::1],
    units_out: cython.uchar[::1],
    offsets_out: cython.longlong[::1],
) -> None:
    """Writes units from the fields that ``collect_units`` collected, one queue after another; the units of a queue keep
    the order of the log.

    Args:
        places: has one number per queue; receives the total number of units of the queue and all queues before it.
        units_out: receives ``count`` units.
        offsets_out: receives the queue offset of each unit.

    Raises:
        ValueError: if an array is too short, or a unit belongs to none of the queues.
    """
    if not 0 <= count <= len(collected) // COLLECTED_WIDTH or not 0 <= queue_count <= len(queues) // QUEUE_WIDTH:
        raise ValueError(f"collected is too short for {count} units, or queues for {queue_count} queues")
    if len(places) < queue_count or len(units_out) // UNIT_BYTES < count or len(offsets_out) < count:
        raise ValueError(f"{count} units of {queue_count} queues do not fit into places, units_out or offsets_out")
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    place: cython.longlong = 0
    number: cython.longlong
    for i in range(queue_count):
        places[i] = place
        place += queues[i * QUEUE_WIDTH + 3]
    for i in range(count):
        at = i * COLLECTED_WIDTH
        number = collected[at]
        if not 0 <= number < queue_count or not 0 <= places[number] < count:
            raise ValueError(f"unit {i} does not belong to one of {queue_count} queues")
        place = places[number]
        places[number] = place + 1
        offsets_out[place] = collected[at + 1]
        place *= UNIT_BYTES
        put32(units_out, place, collected[at + 2] >> 32)
        put32(units_out, place + 4, collected[at + 2])
        put32(units_out, place + 8, collected[at + 3])
        put32(units_out, place + 12, collected[at + 4] >> 32)
        put32(units_out, place + 16, collected[at + 4])


@cython.cclass
class PullLimits:
    """Limits for one pull: which part of the log it may return, and how much of it.

    Attributes:
        physical_min, physical_max: range of the log; a unit whose record lies outside is skipped.
        memory_from: records at or above this physical offset count as being in memory.
        memory_count_max, memory_bytes_max: limits while the next record is in memory.
        disk_count_max, disk_bytes_max: limits while the next record is on disk.
    """

    physical_min = cython.declare(cython.longlong, visibility="readonly")
    physical_max = cython.declare(cython.longlong, visibility="readonly")
    memory_from = cython.declare(cython.longlong, visibility="readonly")
    memory_count_max = cython.declare(cython.longlong, visibility="readonly")
    memory_bytes_max = cython.declare(cython.longlong, visibility="readonly")
    disk_count_max = cython.declare(cython.longlong, visibility="readonly")
    disk_bytes_max = cython.declare(cython.longlong, visibility="readonly")

    def __init__(
        self,
        physical_min: cython.longlong,
        physical_max: cython.longlong,
        memory_from: cython.longlong,
        memory_count_max: cython.longlong,
        memory_bytes_max: cython.longlong,
        disk_count_max: cython.longlong,
        disk_bytes_max: cython.longlong,
    ) -> None:
        self.physical_min = physical_min
        self.physical_max = physical_max
        self.memory_from = memory_from
        self.memory_count_max = memory_count_max
        self.memory_bytes_max = memory_bytes_max
        self.disk_count_max = disk_count_max
        self.disk_bytes_max = disk_bytes_max


def select_units(
    units: cython.const[cython.uchar][::1],
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    columns_out: cython.longlong[::1],
    max_messages: cython.longlong,
    max_bytes: cython.longlong,
    scan_bytes_max: cython.longlong,
    tag_codes: cython.longlong[::1],
    limits: PullLimits,
) -> tuple[int, int, int]:
    """Chooses the messages of one pull from the units in ``units[position:limit]``.

    Follows RocketMQ 5.3.3, ``DefaultMessageStore#getMessage`` and ``isTheBatchFull``: the first message always fits.

    Args:
        columns_out: receives physical offset and size of each chosen unit; selection also ends when it is full. If a
            unit's size is negative or too large for the log, the number of bytes from the record to the end of the log
            is written instead. A reader that checks the record replaces this number by the record's own size.
        max_messages: the client's limit.
        max_bytes: the client's byte limit, already clamped.
        scan_bytes_max: largest number of bytes of units to examine.
        tag_codes: sorted hashes (signed 32-bit) of the wanted tags; empty for all. They are compared with the low 32
            bits of a unit's tags code.
        limits: the part of the log to choose from, and limits that depend on where a record is.

    Returns:
        The number of chosen units, the number of examined units (the next pull starts after the last of them), and the
        number of examined units that matched but have no record in the log.

    Raises:
        ValueError: if the positions lie outside ``units``.
    """
    if not 0 <= position <= limit <= len(units):
        raise ValueError(f"positions {position}..{limit} lie outside the {len(units)} bytes of units")
    start: cython.Py_ssize_t = position
    count: cython.longlong = 0
    missing: cython.longlong = 0
    collected: cython.longlong = 0
    room: cython.longlong = len(columns_out) // 2
    codes: cython.Py_ssize_t = len(tag_codes)
    physical_offset: cython.longlong
    size: cython.longlong
    while position + UNIT_BYTES <= limit and position - start < scan_bytes_max:
        physical_offset = int64(units, position)
        size = int32(units, position + 8)
        if count > 0:
            if count + 1 > max_messages or collected + size > max_bytes or collected >= max_bytes or count >= room:
                break
            if physical_offset >= limits.memory_from:
                if collected + size > limits.memory_bytes_max or count >= limits.memory_count_max:
                    break
            elif collected + size > limits.disk_bytes_max or count >= limits.disk_count_max:
                break
        elif room == 0:
            break
        if codes == 0 or _holds(tag_codes, codes, int32(units, position + 16)):
            if not limits.physical_min <= physical_offset < limits.physical_max or size in (0, PRE_FILL_SIZE):
                missing += 1
            else:
                if size < 0 or size > limits.physical_max - physical_offset:
                    size = limits.physical_max - physical_offset
                columns_out[2 * count] = physical_offset
                columns_out[2 * count + 1] = size
                count += 1
                collected += size
        position += UNIT_BYTES
    return count, (position - start) // UNIT_BYTES, missing


def merge_neighbours(
    pairs: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    end: cython.longlong,
    slices_out: cython.longlong[::1],
) -> tuple[int, int, int]:
    """Joins adjacent records in one part of the log into slices (contiguous byte ranges).

    Args:
        pairs: physical offset and size of each record, as ``select_units`` chose them; those from ``first`` to ``last``
            (excluded) are used.
        end: physical offset where the part ends; the first record begins before it. Bytes from ``end`` on are left out.
        slices_out: receives physical offset and size of each slice.

    Returns:
        Index of the first record that does not begin in the part, number of slices, and sum of the slices' sizes. The
        part starts with the record ``first``.

    Raises:
        ValueError: if the records lie outside ``pairs``, or ``slices_out`` is too small.
    """
    if not 0 <= first <= last <= len(pairs) // 2 or last - first > len(slices_out) // 2:
        raise ValueError(f"records {first}..{last} lie outside pairs, or do not fit into slices_out")
    if first < last and pairs[2 * first] >= end:
        raise ValueError(f"record {first} does not begin before {end}")
    slices: cython.Py_ssize_t = 0
    size: cython.longlong
    total: cython.longlong = 0
    begin: cython.longlong
    stop: cython.longlong = 0
    low: cython.longlong = pairs[2 * first] if first < last else end
    while first < last:
        begin = pairs[2 * first]
        size = pairs[2 * first + 1]
        if not low <= begin < end:
            break
        size = min(max(size, 0), end - begin)
        if slices > 0 and begin == stop:
            slices_out[2 * slices - 1] += size
        else:
            slices_out[2 * slices] = begin
            slices_out[2 * slices + 1] = size
            slices += 1
        total += size
        stop = begin + size
        first += 1
    return first, slices, total


def join_slices(
    part: cython.const[cython.uchar][::1],
    part_start: cython.longlong,
    slices: cython.longlong[::1],
    count: cython.Py_ssize_t,
    total: cython.Py_ssize_t,
) -> bytes:
    """Copies ``count`` slices of a part of the log into one buffer, without gaps.

    Args:
        part: bytes of the log from physical offset ``part_start`` on.
        slices: physical offset and size of each.
        total: the sum of their sizes.

    Raises:
        ValueError: if a slice lies outside the part, or the sizes do not add up.
    """
    if not 0 <= count <= len(slices) // 2:
        raise ValueError(f"{count} slices lie outside the table")
    room: cython.longlong = total
    length: cython.longlong = len(part)
    start: cython.longlong
    size: cython.longlong
    i: cython.Py_ssize_t
    for i in range(count):
        start = slices[2 * i] - part_start
        size = slices[2 * i + 1]
        if not 0 <= size <= length or not 0 <= start <= length - size:
            raise ValueError(f"slice {i}: {size} bytes at {start} lie outside the part")
        room -= size
    if room != 0:
        raise ValueError(f"the slices do not take {total} bytes")
    if cython.compiled:
        joined: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
        target: cython.p_char = PyBytes_AS_STRING(joined)
        for i in range(count):
            size = slices[2 * i + 1]
            if size > 0:
                memcpy(target, cython.address(part[slices[2 * i] - part_start]), size)
                target += size
    else:
        copied = bytearray()
        for i in range(count):
            start = slices[2 * i] - part_start
            copied += part[start : start + slices[2 * i + 1]]
        joined = bytes(copied)
    return joined


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _holds(sorted_codes: cython.longlong[::1], size: cython.Py_ssize_t, code: cython.longlong) -> cython.bint:
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = size
    middle: cython.Py_ssize_t
    while low < high:
        middle = (low + high) // 2
        if sorted_codes[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low < size and sorted_codes[low] == code
