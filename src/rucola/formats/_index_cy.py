# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel that puts keys into an index file: header, hash slots and entries as ``formats.index_file`` describes these
parts.

Bounds checks are off. Every function first checks that the file is long enough for its numbers of slots and entries,
and that the spans lie in the source. Counts and slots read from the file are checked against these numbers before use.
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

from rucola.formats._message_cy import hash_utf8

HEADER_BYTES = cython.declare(cython.int, 40)
SLOT_BYTES = cython.declare(cython.int, 4)
ENTRY_BYTES = cython.declare(cython.int, 20)
BEGIN_TIMESTAMP = cython.declare(cython.int, 0)
END_TIMESTAMP = cython.declare(cython.int, 8)
BEGIN_PHYSICAL_OFFSET = cython.declare(cython.int, 16)
END_PHYSICAL_OFFSET = cython.declare(cython.int, 24)
HASH_SLOT_COUNT = cython.declare(cython.int, 32)
INDEX_COUNT = cython.declare(cython.int, 36)


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


@cython.cfunc
@cython.inline
def _hash(
    data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t, seed: cython.longlong
) -> cython.longlong:
    value: cython.uint = low32(seed)
    at: cython.Py_ssize_t
    wide: cython.longlong
    for at in range(start, end):
        if data[at] >= 0x80:
            return hash_utf8(data, at, end, value)
        value = low32(value * 31 + data[at])
    wide = value
    return signed32(wide)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(
    index: cython.uchar[::1],
    slot_count: cython.longlong,
    entry_max: cython.longlong,
    key_hash: cython.longlong,
    physical_offset: cython.longlong,
    store_timestamp_ms: cython.longlong,
) -> cython.bint:
    """Stores one key; False if the file is full (RocketMQ 5.3.3, ``IndexFile#putKey``)."""
    count: cython.longlong = max(int32(index, INDEX_COUNT), 1)
    if count >= entry_max:
        return False
    value: cython.longlong = 0 if key_hash == -INT32_MAX - 1 else abs(key_hash)
    slot: cython.Py_ssize_t = HEADER_BYTES + SLOT_BYTES * (value % slot_count)
    previous: cython.longlong = int32(index, slot)
    if previous <= 0 or previous > count:
        previous = 0
    begin: cython.longlong = int64(index, BEGIN_TIMESTAMP)
    seconds: cython.longlong = 0
    if 0 < begin < store_timestamp_ms:
        seconds = min((store_timestamp_ms - begin) // 1000, INT32_MAX)
    entry: cython.Py_ssize_t = HEADER_BYTES + SLOT_BYTES * slot_count + ENTRY_BYTES * count
    put32(index, entry, value)
    put64(index, entry + 4, physical_offset)
    put32(index, entry + 12, seconds)
    put32(index, entry + 16, previous)
    put32(index, slot, count)
    if count <= 1:
        put64(index, BEGIN_PHYSICAL_OFFSET, physical_offset)
        put64(index, BEGIN_TIMESTAMP, store_timestamp_ms)
    if previous == 0:
        put32(index, HASH_SLOT_COUNT, int32(index, HASH_SLOT_COUNT) + 1)
    put32(index, INDEX_COUNT, count + 1)
    put64(index, END_PHYSICAL_OFFSET, physical_offset)
    put64(index, END_TIMESTAMP, store_timestamp_ms)
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _check_file(index: cython.uchar[::1], slot_count: cython.longlong, entry_max: cython.longlong) -> cython.int:
    if (
        not 0 < slot_count <= INT32_MAX
        or not 0 < entry_max <= INT32_MAX
        or len(index) < HEADER_BYTES + SLOT_BYTES * slot_count + ENTRY_BYTES * entry_max
    ):
        raise ValueError(f"{len(index)} bytes do not hold {slot_count} slots and {entry_max} entries")
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _check_span(
    source: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.int:
    if size > 0 and not (size <= len(source) and 0 <= start <= len(source) - size):
        raise ValueError(f"{size} bytes at {start} lie outside the source")
    return 0


def put_key(
    index: cython.uchar[::1],
    slot_count: cython.longlong,
    entry_max: cython.longlong,
    topic: cython.const[cython.uchar][::1],
    source: cython.const[cython.uchar][::1],
    key_pos: cython.Py_ssize_t,
    key_len: cython.Py_ssize_t,
    physical_offset: cython.longlong,
    store_timestamp_ms: cython.longlong,
) -> bool:
    """Puts the key ``topic#key`` of one record into ``index``.

    Returns:
        Whether the key was stored. False means that the file is full and was not changed.

    Raises:
        ValueError: if the file is too short for its slots and entries, or the key lies outside ``source``.
    """
    _check_file(index, slot_count, entry_max)
    _check_span(source, key_pos, key_len)
    key_hash: cython.longlong = _hash(topic, 0, len(topic), 0) * 31 + 35  # '#'
    key_hash = _hash(source, key_pos, key_pos + max(key_len, 0), key_hash)
    return _put(index, slot_count, entry_max, key_hash, physical_offset, store_timestamp_ms)


@cython.cfunc
@cython.exceptval(-9223372036854775807)
def _put_keys(
    index: cython.uchar[::1],
    slot_count: cython.longlong,
    entry_max: cython.longlong,
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    physical_offset: cython.longlong,
    skip: cython.Py_ssize_t,
    tags: cython.bint,
) -> cython.longlong:
    """Puts the keys of one record into a file that was already checked: UNIQ_KEY, then the pieces of KEYS between
    spaces (``IndexService#buildIndex``). Tags come last, in the form of a key that begins with ``T#``.

    Returns:
        The number of the record's keys, including skipped keys, if all are stored. If the file becomes full first,
        returns ``~n``, a negative number, where ``n`` is the number of keys stored so far.
    """
    topic_pos: cython.Py_ssize_t = table[row + RECORD_TOPIC_POS]
    topic_len: cython.Py_ssize_t = table[row + RECORD_TOPIC_LEN]
    uniq_pos: cython.Py_ssize_t = table[row + RECORD_UNIQ_KEY_POS]
    uniq_len: cython.Py_ssize_t = table[row + RECORD_UNIQ_KEY_LEN]
    keys_pos: cython.Py_ssize_t = table[row + RECORD_KEYS_POS]
    keys_len: cython.Py_ssize_t = table[row + RECORD_KEYS_LEN]
    tags_pos: cython.Py_ssize_t = table[row + RECORD_TAGS_POS]
    tags_len: cython.Py_ssize_t = table[row + RECORD_TAGS_LEN] if tags else 0
    store_timestamp_ms: cython.longlong = table[row + RECORD_STORE_TIMESTAMP]
    _check_span(source, topic_pos, topic_len)
    _check_span(source, tags_pos, tags_len)
    _check_span(source, uniq_pos, uniq_len)
    _check_span(source, keys_pos, keys_len)
    topic_hash: cython.longlong = _hash(source, topic_pos, topic_pos + max(topic_len, 0), 0) * 31 + 35  # '#'
    done: cython.longlong = 0
    start: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    key_hash: cython.longlong
    if uniq_len > 0:
        if skip <= 0:
            key_hash = _hash(source, uniq_pos, uniq_pos + uniq_len, topic_hash)
            if not _put(index, slot_count, entry_max, key_hash, physical_offset, store_timestamp_ms):
                return ~done
        done += 1
    if keys_len > 0:
        start = at = keys_pos
        end = keys_pos + keys_len
        while at <= end:
            if at == end or source[at] == 32:
                if at > start:
                    if done >= skip:
                        key_hash = _hash(source, start, at, topic_hash)
                        if not _put(index, slot_count, entry_max, key_hash, physical_offset, store_timestamp_ms):
                            return ~done
                    done += 1
                start = at + 1
            at += 1
    if tags_len > 0:
        if done >= skip:
            key_hash = low32((topic_hash * 31 + 84) * 31 + 35)  # 'T', '#'
            key_hash = _hash(source, tags_pos, tags_pos + tags_len, key_hash)
            if not _put(index, slot_count, entry_max, key_hash, physical_offset, store_timestamp_ms):
                return ~done
        done += 1
    return done


def put_rows(
    index: cython.uchar[::1],
    slot_count: cython.longlong,
    entry_max: cython.longlong,
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    base_offset: cython.longlong,
    from_offset: cython.longlong,
    skip: cython.Py_ssize_t = 0,
    tags: cython.bint = False,
) -> tuple[int, int]:
    """Puts the keys of the records in rows ``first`` to ``last`` (excluded), except those of rollback records.

    Args:
        entry_max: number of entries at which the file counts as full. While only a part of the file has disk blocks,
            this is the number of entries that fit into that part.
        source: the segment to which the rows refer; ``base_offset`` is the physical offset of its byte 0.
        table: rows of ``walk_records``.
        from_offset: records that start below it are skipped.
        skip: number of keys of row ``first`` that the file already holds.
        tags: also puts the tags, as RocketMQ 5.4.0 and later do.

    Returns:
        The index of the first row not completed, and the number of its keys that are stored; ``(last, 0)`` if all are
        stored.

    Raises:
        ValueError: if rows or spans lie outside their buffers, or the file is too short for its slots and entries.
    """
    _check_file(index, slot_count, entry_max)
    if not 0 <= first <= last or last * ROW_WIDTH > len(table):
        raise ValueError(f"rows {first}..{last} lie outside the table")
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    physical_offset: cython.longlong
    done: cython.longlong
    for i in range(first, last):
        row = i * ROW_WIDTH
        physical_offset = base_offset + table[row + RECORD_POS]
        if physical_offset >= from_offset and table[row + RECORD_SYS_FLAG] & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            done = _put_keys(index, slot_count, entry_max, source, table, row, physical_offset, skip, tags)
            if done < 0:
                return i, ~done
        skip = 0
    return last, 0


def gather_keys(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    base_offset: cython.longlong,
    keys_out: cython.uchar[::1],
    position: cython.Py_ssize_t,
) -> tuple[int, int]:
    """Writes a ``KEY`` for each key that ``put_rows`` would put, in the same order.

    Args:
        source: the segment to which the rows refer; ``base_offset`` is the physical offset of its byte 0.
        table: rows of ``walk_records``; ``first`` to ``last`` (excluded) are used.
        keys_out: receives the keys from byte ``position`` on.

    Returns:
        The index of the first row not taken, and the position after the last key written. A row is not taken if
        ``keys_out`` may be too small for its keys.

    Raises:
        ValueError: if rows or spans lie outside their buffers.
    """
    if not 0 <= first <= last or last * ROW_WIDTH > len(table):
        raise ValueError(f"rows {first}..{last} lie outside the table")
    if not 0 <= position <= len(keys_out):
        raise ValueError(f"position {position} lies outside the keys")
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    start: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    keys_len: cython.longlong
    uniq_len: cython.longlong
    topic_hash: cython.longlong
    physical_offset: cython.longlong
    stored_ms: cython.longlong
    for i in range(first, last):
        row = i * ROW_WIDTH
        if table[row + RECORD_SYS_FLAG] & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            continue
        keys_len = max(table[row + RECORD_KEYS_LEN], 0)
        uniq_len = table[row + RECORD_UNIQ_KEY_LEN]
        if (keys_len // 2 + 2) * ENTRY_BYTES > len(keys_out) - position:
            return i, position
        start = table[row + RECORD_TOPIC_POS]
        _check_span(source, start, table[row + RECORD_TOPIC_LEN])
        _check_span(source, table[row + RECORD_UNIQ_KEY_POS], uniq_len)
        _check_span(source, table[row + RECORD_KEYS_POS], keys_len)
        topic_hash = _hash(source, start, start + max(table[row + RECORD_TOPIC_LEN], 0), 0) * 31 + 35  # '#'
        physical_offset = base_offset + table[row + RECORD_POS]
        stored_ms = table[row + RECORD_STORE_TIMESTAMP]
        if uniq_len > 0:
            start = table[row + RECORD_UNIQ_KEY_POS]
            put32(keys_out, position, _hash(source, start, start + uniq_len, topic_hash))
            put64(keys_out, position + 4, physical_offset)
            put64(keys_out, position + 12, stored_ms)
            position += ENTRY_BYTES
        start = at = table[row + RECORD_KEYS_POS]
        end = start + keys_len
        while at <= end and keys_len > 0:
            if at == end or source[at] == 32:
                if at > start:
                    put32(keys_out, position, _hash(source, start, at, topic_hash))
                    put64(keys_out, position + 4, physical_offset)
                    put64(keys_out, position + 12, stored_ms)
                    position += ENTRY_BYTES
                start = at + 1
            at += 1
    return last, position


def put_keys(
    index: cython.uchar[::1],
    slot_count: cython.longlong,
    entry_max: cython.longlong,
    keys: cython.uchar[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
) -> int:
    """Puts the keys with indices ``first`` to ``last`` (excluded) into an index file; ``gather_keys`` wrote ``keys``.

    Returns:
        The index of the first key not put because the file is full; ``last`` if all are put.

    Raises:
        ValueError: if the file is too short for its slots and entries, or a key lies outside ``keys``.
    """
    _check_file(index, slot_count, entry_max)
    if not 0 <= first <= last or last > len(keys) // ENTRY_BYTES:
        raise ValueError(f"keys {first}..{last} lie outside {len(keys)} bytes")
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    physical_offset: cython.longlong
    stored_ms: cython.longlong
    for i in range(first, last):
        at = i * ENTRY_BYTES
        physical_offset = int64(keys, at + 4)
        stored_ms = int64(keys, at + 12)
        if not _put(index, slot_count, entry_max, int32(keys, at), physical_offset, stored_ms):
            return i
    return last


def find_broken_chain(
    index: cython.uchar[::1], slot_count: cython.longlong, entry_max: cython.longlong, heads: cython.int[::1]
) -> int:
    """Checks the entries in order of insertion: each must point to the newest earlier entry of its slot.

    Args:
        heads: receives the newest entry of each slot; one number per slot, all zero at first.

    Returns:
        The index of the first entry that points elsewhere; 0 if all entries are right but a slot is wrong; -1 if
        entries and slots are right.

    Raises:
        ValueError: if the file is too short for its slots and entries, or ``heads`` too short for the slots.
    """
    _check_file(index, slot_count, entry_max)
    if len(heads) < slot_count:
        raise ValueError(f"{len(heads)} heads do not suffice for {slot_count} slots")
    count: cython.longlong = min(int32(index, INDEX_COUNT), entry_max)
    number: cython.longlong
    slot: cython.longlong
    value: cython.longlong
    entry: cython.Py_ssize_t = HEADER_BYTES + SLOT_BYTES * slot_count
    for number in range(1, count):
        entry += ENTRY_BYTES
        value = int32(index, entry)
        if value < 0 or int32(index, entry + 16) != heads[value % slot_count]:
            return number
        heads[value % slot_count] = cython.cast(cython.int, number)
    for slot in range(slot_count):
        if int32(index, HEADER_BYTES + SLOT_BYTES * slot) != heads[slot]:
            return 0
    return -1
