# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel over messages to be stored: reads the properties of send rows, expands batches into rows, and computes how
many rows fit into a segment.

Tables are ``array('q')`` with the columns of ``rucola.common.columns``. Bounds checks are off: spans are checked
against the buffer before they are read, and lengths inside a batch against the rest of its body.
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


BROKERS_FLAGS = cython.declare(cython.int, 0x8C)
"""Bits of sysFlag that no plain send has: the transaction state, and the mark of a record that holds a batch."""
KEYS_PLAIN_BYTES = cython.declare(cython.int, 2047)
"""Longest value of KEYS with at most 1,024 keys, whatever its keys are; longer ones are counted by the broker."""


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


@cython.cfunc
def _traits(source: cython.const[cython.uchar][::1], table: cython.longlong[::1], row: cython.Py_ssize_t) -> cython.int:
    """Reads the properties of one row, fills its UNIQ_KEY columns, and returns the traits that follow from them."""
    start: cython.Py_ssize_t = table[row + FRAME_PROPERTIES_POS]
    end: cython.Py_ssize_t = start + table[row + FRAME_PROPERTIES_LEN]
    stop: cython.Py_ssize_t
    equals: cython.Py_ssize_t
    size: cython.Py_ssize_t
    first: cython.uchar
    no_wait: cython.bint = False
    traits: cython.int = TRAIT_NO_UNIQ_KEY
    table[row + FRAME_UNIQ_KEY_POS] = 0
    table[row + FRAME_UNIQ_KEY_LEN] = -1
    while start < end:
        stop = find(source, 2, start, end)
        equals = find(source, 1, start, stop)
        if start < equals < stop - 1:  # a name, and at least one byte of value
            size = equals - start
            first = source[start]
            if size == 8 and first == 85 and starts(source, start, b"UNIQ_KEY"):
                table[row + FRAME_UNIQ_KEY_POS] = equals + 1
                table[row + FRAME_UNIQ_KEY_LEN] = stop - equals - 1
                traits &= ~TRAIT_NO_UNIQ_KEY
            elif size == 4 and first == 87 and starts(source, start, b"WAIT"):
                no_wait = not _is_true(source, equals + 1, stop)
            elif size == 4 and first == 75 and stop - equals > KEYS_PLAIN_BYTES + 1:
                if starts(source, start, b"KEYS"):
                    traits |= TRAIT_SPECIAL
            else:
                traits |= _trait(source, start, size)
        start = stop + 1
    if no_wait:
        traits |= TRAIT_NO_WAIT
    return traits


@cython.cfunc
def _is_true(source: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """``Boolean.parseBoolean``: whether the text is "true", ignoring case."""
    return (
        end - start == 4
        and (source[start] | 32) == 116
        and (source[start + 1] | 32) == 114
        and (source[start + 2] | 32) == 117
        and (source[start + 3] | 32) == 101
    )


@cython.cfunc
def _trait(source: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
    """The trait that follows from a property of this name: SPECIAL if the broker acts on it, drops or refuses it
    (DELAY, TRAN_MSG, and all that are not KEPT in ``common.system_properties``), PRIORITY, LITE, or 0. Four bytes are
    too short for all of these, so KEYS and TAGS cost one comparison.
    """
    if size < 5:
        return 0
    first: cython.uchar = source[start]
    special: cython.bint = False
    if first == 84:  # T
        special = (
            (size > 6 and starts(source, start, b"TIMER_"))
            or (size == 8 and (starts(source, start, b"TRAN_MSG") or starts(source, start, b"TRACE_ON")))
            or (size == 23 and starts(source, start, b"TRANSACTION_CHECK_TIMES"))
            or (size == 26 and starts(source, start, b"TRAN_PREPARED_QUEUE_OFFSET"))
        )
    elif first == 82:  # R
        special = (size == 10 and starts(source, start, b"REAL_TOPIC")) or (
            size == 8 and starts(source, start, b"REAL_QID")
        )
    elif first == 73:  # I
        special = size > 6 and starts(source, start, b"INNER_")
    elif first == 68:  # D
        special = (size == 5 and starts(source, start, b"DELAY")) or (size == 8 and starts(source, start, b"DUP_INFO"))
    elif first == 80:  # P
        special = (
            (size == 6 and starts(source, start, b"POP_CK"))
            or (size == 13 and starts(source, start, b"POP_CK_OFFSET"))
            or (size == 15 and starts(source, start, b"PUSH_REPLY_TIME"))
        )
    elif first == 77:  # M
        special = size == 10 and starts(source, start, b"MSG_REGION")
    elif first == 67:  # C
        special = size == 7 and starts(source, start, b"CLUSTER")
    elif first == 49:  # 1
        special = size == 12 and starts(source, start, b"1ST_POP_TIME")
    elif first == 95:  # _
        if size == 18 and starts(source, start, b"_SYS_MSG_PRIORITY_"):
            return TRAIT_PRIORITY
        if size == 12 and starts(source, start, b"__LITE_TOPIC"):
            return TRAIT_LITE
        special = (size == 8 and starts(source, start, b"__CRC32#")) or (
            size == 15 and starts(source, start, b"__RUCOLA_SENDER")
        )
    return TRAIT_SPECIAL if special else 0


def inspect_rows(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    body_bytes_max: cython.longlong,
    queue_count: cython.longlong,
) -> int:
    """Reads the properties of the send rows ``first`` to ``last`` (excluded); fills UNIQ_KEY_POS, UNIQ_KEY_LEN and
    TRAITS.

    A row also gets the trait ILLEGAL if its body is empty or longer than ``body_bytes_max``, or if a suffix of
    ``SUFFIX_BYTES_MAX`` bytes would make its properties too long. The general path decides which response such a row
    gets.

    Args:
        queue_count: valid queue ids are 0 to ``queue_count - 1``.

    Returns:
        All traits found, or-ed together. 0 means that every row may take the fast path.

    Raises:
        ValueError: if the rows lie outside ``table``, or a span outside ``source``.
    """
    if not 0 <= first <= last or last * ROW_WIDTH > len(table):
        raise ValueError(f"rows {first}..{last} lie outside the table")
    every: cython.int = 0
    traits: cython.int
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for i in range(first, last):
        row = i * ROW_WIDTH
        check_spans(source, table, row)
        traits = _traits(source, table, row)
        if (
            not 0 < table[row + FRAME_BODY_LEN] <= body_bytes_max
            or table[row + FRAME_PROPERTIES_LEN] > PROPERTIES_BYTES_MAX - SUFFIX_BYTES_MAX
        ):
            traits |= TRAIT_ILLEGAL
        if not 0 <= table[row + FRAME_QUEUE_ID] < queue_count:
            traits |= TRAIT_OTHER_QUEUE
        if table[row + FRAME_SYS_FLAG] & BROKERS_FLAGS:
            traits |= TRAIT_TRANSACTION
        table[row + FRAME_TRAITS] = traits
        every |= traits
    return every


def expand_batch(
    source: cython.const[cython.uchar][::1],
    envelope_table: cython.longlong[::1],
    row: cython.Py_ssize_t,
    members_table: cython.longlong[::1],
    rows_max: cython.Py_ssize_t,
) -> int:
    """Makes one send row for each message in the body of a batch. The envelope is the request that carries the batch:
    row ``row`` of ``envelope_table``.

    Flag, body and properties come from the message, all other columns from the envelope. ``body length // 22`` rows
    always suffice.

    Returns:
        The number of messages; -1 if the lengths inside the body do not add up; -2 if there are more than ``rows_max``.

    Raises:
        ValueError: if a row lies outside its table, or the body outside ``source``.
    """
    if row < 0 or (row + 1) * ROW_WIDTH > len(envelope_table) or not 0 <= rows_max * ROW_WIDTH <= len(members_table):
        raise ValueError("rows lie outside their table")
    envelope: cython.Py_ssize_t = row * ROW_WIDTH
    check_spans(source, envelope_table, envelope)
    at: cython.Py_ssize_t = envelope_table[envelope + FRAME_BODY_POS]
    end: cython.Py_ssize_t = at + max(envelope_table[envelope + FRAME_BODY_LEN], 0)
    body_len: cython.longlong
    properties_len: cython.longlong
    member: cython.Py_ssize_t
    column: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    while at < end:
        if end - at < BATCH_MEMBER_FIXED_BYTES:
            return -1
        body_len = int32(source, at + 16)
        if not 0 <= body_len <= end - at - BATCH_MEMBER_FIXED_BYTES:
            return -1
        properties_len = int16(source, at + 20 + body_len)
        if (
            not 0 <= properties_len <= end - at - BATCH_MEMBER_FIXED_BYTES - body_len
            or int32(source, at) != BATCH_MEMBER_FIXED_BYTES + body_len + properties_len
        ):
            return -1
        if count == rows_max:
            return -2
        member = count * ROW_WIDTH
        for column in range(ROW_WIDTH):
            members_table[member + column] = envelope_table[envelope + column]
        members_table[member + FRAME_KIND] = KIND_SEND
        members_table[member + FRAME_SAME_TOPIC] = 1 if count > 0 else 0
        members_table[member + FRAME_MESSAGE_FLAG] = int32(source, at + 12)
        members_table[member + FRAME_BODY_POS] = at + 20
        members_table[member + FRAME_BODY_LEN] = body_len
        members_table[member + FRAME_PROPERTIES_POS] = at + 22 + body_len
        members_table[member + FRAME_PROPERTIES_LEN] = properties_len
        count += 1
        at += BATCH_MEMBER_FIXED_BYTES + body_len + properties_len
    return count


def fit_rows(
    source: cython.const[cython.uchar][::1],
    table: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    space: cython.longlong,
    topic_len: cython.Py_ssize_t,
    queue_count: cython.Py_ssize_t,
    born_len: cython.Py_ssize_t,
    store_len: cython.Py_ssize_t,
    suffix: cython.const[cython.uchar][::1],
    record_crc: cython.bint,
) -> int:
    """Returns the index of the row at which ``encode_rows`` would stop if it had ``space`` bytes; writes nothing.

    The arguments are those of ``encode_rows``, with lengths in place of byte strings.

    Raises:
        ValueError: ``encode_rows`` would raise this error before it stops.
    """
    if not 0 <= first <= last or last * ROW_WIDTH > len(table):
        raise ValueError(f"rows {first}..{last} lie outside the table")
    suffix_len: cython.Py_ssize_t = len(suffix)
    if not 0 < topic_len <= 32767 or born_len not in (8, 20) or store_len not in (8, 20):
        raise ValueError(f"a topic of {topic_len} bytes or hosts of {born_len} and {store_len} cannot be stored")
    if suffix_len > SUFFIX_BYTES_MAX:
        raise ValueError(f"a property suffix of {suffix_len} bytes is too long")
    fixed: cython.Py_ssize_t = RECORD_FIXED_BYTES + born_len + store_len + topic_len
    fixed += 2 if topic_len > TOPIC_BYTES_V1_MAX else 1
    more: cython.Py_ssize_t = suffix_len
    if record_crc:
        more += CRC_PROPERTY_BYTES
        if suffix_len > 0 and suffix[suffix_len - 1] != 2:
            more += 1
    end: cython.Py_ssize_t = last
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    own_len: cython.longlong
    for i in range(first, last):
        row = i * ROW_WIDTH
        check_spans(source, table, row)
        if not 0 <= table[row + FRAME_QUEUE_ID] < queue_count:
            raise ValueError(f"row {i}: queue {table[row + FRAME_QUEUE_ID]} does not exist")
        own_len = max(table[row + FRAME_PROPERTIES_LEN], 0)
        if own_len > 0 and more > 0 and source[table[row + FRAME_PROPERTIES_POS] + own_len - 1] != 2:
            own_len += 1
        if own_len + more > PROPERTIES_BYTES_MAX:
            raise ValueError(f"row {i}: properties of {own_len + more} bytes cannot be stored")
        space -= fixed + max(table[row + FRAME_BODY_LEN], 0) + own_len + more
        if space < BLANK_BYTES and end == last:
            end = i
    return end
