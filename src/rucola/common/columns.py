"""Columns of the two row tables that carry messages between the layers.

One socket read contains many frames, and one range of the log many records. On the fast path neither frames nor records
become Python objects: a kernel, that is, a module that Cython can compile, writes one row of integers per frame or
record into an ``array('q')``. The layers pass this table on, together with the buffer that holds the bytes. Positions
are byte positions in that buffer; a length of -1 means that the field is absent.

``kernel_columns`` repeats the columns for kernels; ``tests/unit/test_kernels.py`` compares it with this module.
"""

from __future__ import annotations

from array import array
from enum import IntEnum

ROW_WIDTH = 40
"""Number of integers in one row of either table."""


class FrameKind(IntEnum):
    """The kind of a frame, as found by the frame scanner."""

    PLAIN = 0
    """Any frame for the general path: its header is decoded into a ``RemotingCommand``."""
    SEND = 1
    """SEND_MESSAGE_V2 (310) of a single message: all send columns are filled."""
    BATCH = 2
    """SEND_BATCH_MESSAGE (320), or 310 with ``m=true``: send columns describe the request, not its messages."""
    PULL = 3
    """PULL_MESSAGE (11) or LITE_PULL_MESSAGE (361): all pull columns are filled."""


class FrameColumn(IntEnum):
    """Columns of the frame table, one row per frame; ``protocol`` fills them, ``broker`` and ``store`` complete
    them.
    """

    KIND = 0
    CODE = 1
    OPAQUE = 2
    FLAG = 3  # Flag of the frame: bit 0 response, bit 1 oneway.
    VERSION = 4
    SERIALIZE = 5  # 0 JSON, 1 binary
    HEADER_POS = 6
    HEADER_LEN = 7
    BODY_POS = 8
    BODY_LEN = 9
    # Columns of sends and pulls.
    GROUP_POS = 10  # ``producerGroup`` or ``consumerGroup``.
    GROUP_LEN = 11
    TOPIC_POS = 12
    TOPIC_LEN = 13
    QUEUE_ID = 14
    SYS_FLAG = 15
    SAME_TOPIC = 16  # 1 if kind and topic equal those of the previous row.
    # Columns of sends.
    BORN_TIMESTAMP = 17  # In ms.
    MESSAGE_FLAG = 18
    PROPERTIES_POS = 19  # JSON escapes are already decoded, in the buffer itself.
    PROPERTIES_LEN = 20
    RECONSUME_TIMES = 21
    DEFAULT_TOPIC_POS = 22
    DEFAULT_TOPIC_LEN = 23
    DEFAULT_TOPIC_QUEUES = 24
    # Columns of sends, filled by formats.inspect_rows.
    UNIQ_KEY_POS = 25
    UNIQ_KEY_LEN = 26
    TRAITS = 27  # Bits of SendTrait.
    # Columns of sends, filled by formats.encode_rows.
    PHYSICAL_OFFSET = 28
    QUEUE_OFFSET = 29
    RECORD_SIZE = 30
    # Copied into the record by formats.encode_rows; 0 except on the store's general path, which sets it.
    PREPARED_TRANSACTION_OFFSET = 31
    # Columns of pulls; they have the same indices as columns of sends above.
    PULL_QUEUE_OFFSET = 17
    PULL_MAX_MESSAGES = 18
    PULL_EXPRESSION_POS = 19  # subscription text
    PULL_EXPRESSION_LEN = 20
    PULL_COMMIT_OFFSET = 21
    PULL_SUSPEND_TIMEOUT = 22  # ms
    PULL_SUB_VERSION = 23
    PULL_EXPRESSION_TYPE_POS = 24
    PULL_EXPRESSION_TYPE_LEN = 25


class SendTrait(IntEnum):
    """Bits of ``FrameColumn.TRAITS``: any bit except ``NO_WAIT`` sends the message to the general path."""

    NO_WAIT = 1  # The property WAIT is not "true".
    NO_UNIQ_KEY = 2  # The broker must create a unique key.
    SPECIAL = 4  # A property on which the broker acts: DELAY, TIMER_*, TRAN_MSG, POP_CK, INNER_*, __CRC32#, ...
    ILLEGAL = 8  # Body or properties exceed the limit, or there is no body.
    OTHER_QUEUE = 16  # The queue id is negative, or the topic has no such queue.
    TRANSACTION = 32  # sysFlag marks the message as part of a transaction, or as a record that holds a batch.
    PRIORITY = 64  # The message has a priority. In a batch it has no effect.
    LITE = 128  # The message names a lite topic.


class RecordColumn(IntEnum):
    """Columns of the record table, one row per commit-log record; ``formats.walk_records`` fills them."""

    RECORD_POS = 0
    RECORD_SIZE = 1
    BODY_CRC = 2
    QUEUE_ID = 3
    MESSAGE_FLAG = 4
    QUEUE_OFFSET = 5
    PHYSICAL_OFFSET = 6
    SYS_FLAG = 7
    BORN_TIMESTAMP = 8
    BORN_HOST_POS = 9  # length 20 if bit 4 of sysFlag is set, else 8
    STORE_TIMESTAMP = 10
    STORE_HOST_POS = 11  # length 20 if bit 5 of sysFlag is set, else 8
    RECONSUME_TIMES = 12
    PREPARED_TRANSACTION_OFFSET = 13
    BODY_POS = 14
    BODY_LEN = 15
    TOPIC_POS = 16
    TOPIC_LEN = 17
    PROPERTIES_POS = 18
    PROPERTIES_LEN = 19
    TAGS_POS = 20
    TAGS_LEN = 21
    TAGS_CODE = 22  # hash of TAGS, 0 without tags; the schedule topic's consume queue holds the due time instead
    KEYS_POS = 23
    KEYS_LEN = 24
    UNIQ_KEY_POS = 25
    UNIQ_KEY_LEN = 26
    SAME_TOPIC = 27  # 1: topic bytes equal those of the previous row
    # Filled by formats.lite.find_lite, where a reader needs them.
    LITE_POS = 28  # the lite topic in which the message is
    LITE_LEN = 29
    LITE_OFFSET = 30  # the message's offset in it


class WalkStop(IntEnum):
    """Why ``walk_records`` stopped; the position it returns is that of the first unread byte."""

    LIMIT = 0  # The last record ends exactly at the limit.
    TABLE_FULL = 1
    BLANK = 2  # An end-of-file record was found: continue with the next segment.
    TORN = 3  # A record starts here but is truncated, does not parse, or fails a requested check.


def new_table(rows: int) -> array[int]:
    """Returns a table of ``rows`` rows, filled with zeros."""
    return array("q", (0,)) * (ROW_WIDTH * rows)


def run_end(table: array[int], row: int, rows: int, same_topic: int) -> int:
    """Returns the end (excluded) of the rows of one topic that begin at ``row``; no Python code runs for each row.

    Args:
        rows: number of rows in the table.
        same_topic: the column SAME_TOPIC of this table.
    """
    following = (row + 1) * ROW_WIDTH + same_topic
    if row + 1 == rows or not table[following]:
        return row + 1
    same = table[following : rows * ROW_WIDTH : ROW_WIDTH]
    return row + 1 + (same.index(0) if 0 in same else len(same))
