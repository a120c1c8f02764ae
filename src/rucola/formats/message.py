"""Records of the commit log, and codecs for one message object at a time.

Source: RocketMQ 5.3.3, ``MessageExtEncoder``, ``MessageDecoder``, ``CommitLog#checkMessageAndReturnSize``. All integers
are signed and big-endian. ``B`` and ``S`` are the sizes of born host and store host: 20 for IPv6, 8 for IPv4. Bit 4 of
sysFlag marks the born host as IPv6, bit 5 the store host. ``T`` is 1 in version 1 and 2 in version 2, which is used for
topics longer than 127 bytes.

======================= ===== =======================================================================================
position                bytes field
======================= ===== =======================================================================================
0                       48    ``RECORD_HEAD``: size of the record, magic, low 31 bits of the body's CRC-32, queue
                              id, user flag, queue offset, own physical offset, sysFlag, born time in ms
48                      B     born host: address, then port as 32 bits
48 + B                  8     store time in ms
56 + B                  S     store host, in the same form
56 + B + S              16    ``RECORD_MIDDLE``: reconsume times, prepared transaction offset, body length L
72 + B + S              L     body as it was received, perhaps compressed
72 + B + S + L          T     topic length t
72 + B + S + L + T      t     topic, UTF-8
72 + B + S + L + T + t  2     properties length p, at most 32,767
74 + B + S + L + T + t  p     properties (``formats.properties``), the record CRC last if there is one
======================= ===== =======================================================================================

A segment ends with a blank record, ``BLANK``. Its size is the space left in the segment; the bytes after its 8 header
bytes are arbitrary. The record CRC is the property ``__CRC32#``: the low 31 bits of the CRC-32 of all bytes of the
record before the property. It is written as ten decimal digits, least significant first.
"""

from __future__ import annotations

from array import array
from typing import Final

from rucola.common.columns import ROW_WIDTH, FrameColumn, RecordColumn, WalkStop, new_table
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.formats._message_cy import RecordPlacement, encode_rows, hash_utf8, walk_records, write_blank
from rucola.formats._send_cy import expand_batch, fit_rows, inspect_rows
from rucola.formats.checksum import crc32
from rucola.formats.compression import decompress
from rucola.formats.layout import Field, Layout
from rucola.formats.properties import decode_properties

__all__ = [
    "BATCH_MEMBER_HEAD",
    "BLANK",
    "CHECK_ALL",
    "CHECK_BODY_CRC",
    "CHECK_CRC_NAME",
    "CHECK_PHYSICAL_OFFSET",
    "CHECK_RECORD_CRC",
    "CHECK_TORN_END",
    "CRC_PROPERTY_BYTES",
    "CRC_PROPERTY_NAME",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "RECORD_BYTES_MIN",
    "RECORD_HEAD",
    "RECORD_MIDDLE",
    "ROWS_MAX",
    "RecordPlacement",
    "decode_message",
    "decode_messages",
    "encode_message",
    "encode_rows",
    "expand_batch",
    "fill_row",
    "fit_rows",
    "hash_utf8",
    "inspect_rows",
    "message_from_row",
    "walk_records",
    "write_blank",
]

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124

RECORD_HEAD: Final = Layout(
    "commit log record, head",
    48,
    Field("total_size", "i", "Size of the whole record in bytes."),
    Field("magic", "i", "Version of the record: `MAGIC_V1` or `MAGIC_V2`."),
    Field("body_crc", "i", "Low 31 bits of the body's CRC-32."),
    Field("queue_id", "i", "Queue of the topic."),
    Field("flag", "i", "User flag that the producer set."),
    Field("queue_offset", "q", "Queue offset: index of the message in its queue."),
    Field("physical_offset", "q", "Offset of this record in the commit log."),
    Field("sys_flag", "i", "Bits: compressed body, transaction state, IPv6 hosts."),
    Field("born_timestamp_ms", "q", "Time at which the producer created the message, ms since 1970."),
)
RECORD_MIDDLE: Final = Layout(
    "commit log record, after the hosts",
    16,
    Field("reconsume_times", "i", "Number of times that consumers sent the message back."),
    Field(
        "prepared_transaction_offset",
        "q",
        "Physical offset of the half message that this record commits or rolls back; else 0.",
    ),
    Field("body_length", "i", "Bytes of the body."),
)
BLANK: Final = Layout(
    "end-of-file record",
    8,
    Field("space_left", "i", "Number of bytes from the start of this record to the end of the segment."),
    Field("magic", "i", "`MAGIC_BLANK`."),
)
BATCH_MEMBER_HEAD: Final = Layout(
    "member of a batch in a request, fields before the body",
    20,
    Field("total_size", "i", "Bytes of the member."),
    Field("magic", "i", "0."),  # 0
    Field("body_crc", "i", "0."),  # 0
    Field("flag", "i", "User flag that the producer set."),
    Field("body_length", "i", "Bytes of the body."),
)

CHECK_BODY_CRC: Final = 1
CHECK_RECORD_CRC: Final = 2
CHECK_PHYSICAL_OFFSET: Final = 4
CHECK_TORN_END: Final = 8
"""Also checks whether a crash may have torn a record. If the page with the record's checksum is lost, the record looks
like one without a checksum.
"""
CHECK_CRC_NAME: Final = 16
"""Also checks the name of the checksum property; used by ``verify``. If the name is damaged, the property looks like
any other property.
"""
CHECK_ALL: Final = CHECK_BODY_CRC | CHECK_RECORD_CRC | CHECK_PHYSICAL_OFFSET
"""The names that begin with ``CHECK`` are bits of ``walk_records``'s argument ``check``."""

CRC_PROPERTY_NAME: Final = b"__CRC32#\x01"
CRC_PROPERTY_BYTES: Final = 20
"""Length in bytes of the checksum property, the last property of a record: name, separator, ten digits, separator."""

ROWS_MAX: Final = 512
"""Number of records that the store walks at a time; their rows fit into the cache of the CPU."""
RECORD_BYTES_MIN: Final = 91
"""Size in bytes of the smallest record."""


def encode_message(
    message: StoreMessage,
    physical_offset: int,
    queue_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
    record_crc: bool = False,
) -> bytes:
    """Encodes one message as a commit-log record.

    Args:
        queue_offset: ignored for prepared and rollback messages, whose records hold 0.
        store_host: store host for a message that has none.
        record_crc: whether to append the record CRC property.

    Raises:
        ValueError: the topic, the properties or a host cannot be stored.
    """
    source = bytearray(message.body + message.properties)
    table = new_table(1)
    fill_row(table, 0, message, 0)
    queue_offsets = array("q", bytes(8 * message.queue_id + 8))
    queue_offsets[message.queue_id] = queue_offset
    segment = bytearray(len(source) + len(message.topic) + 256)
    encode_rows(
        source,
        memoryview(source),
        table,
        0,
        1,
        segment,
        memoryview(segment),
        RecordPlacement(0, len(segment), physical_offset, store_timestamp_ms, record_crc),
        message.topic,
        queue_offsets,
        message.born_host,
        message.store_host or store_host,
        b"",
        crc32,
    )
    return bytes(segment[: table[FrameColumn.RECORD_SIZE]])


def fill_row(table: array[int], row: int, message: StoreMessage, body_position: int) -> None:
    """Describes ``message`` in row ``row`` of ``table`` for ``encode_rows``. In the source of ``encode_rows``, the body
    of the message begins at ``body_position``, and the properties follow the body.
    """
    base = row * ROW_WIDTH
    table[base + FrameColumn.QUEUE_ID] = message.queue_id
    table[base + FrameColumn.SYS_FLAG] = message.sys_flag
    table[base + FrameColumn.BORN_TIMESTAMP] = message.born_timestamp_ms
    table[base + FrameColumn.MESSAGE_FLAG] = message.flag
    table[base + FrameColumn.BODY_POS] = body_position
    table[base + FrameColumn.BODY_LEN] = len(message.body)
    table[base + FrameColumn.PROPERTIES_POS] = body_position + len(message.body)
    table[base + FrameColumn.PROPERTIES_LEN] = len(message.properties)
    table[base + FrameColumn.RECONSUME_TIMES] = message.reconsume_times
    table[base + FrameColumn.PREPARED_TRANSACTION_OFFSET] = message.prepared_transaction_offset


def decode_message(record: bytes | bytearray | memoryview, unpack: bool = True) -> MessageExt:
    """Returns the single message in ``record``.

    Raises:
        FormatError: as in ``decode_messages``, or ``record`` does not hold exactly one record.
    """
    messages = decode_messages(record, unpack)
    if len(messages) != 1:
        raise FormatError("commit log record", 0, "one record", f"{len(messages)} records")
    return messages[0]


def decode_messages(records: bytes | bytearray | memoryview, unpack: bool = True) -> list[MessageExt]:
    """Returns the messages in consecutive records, for example in the body of a pull response. Checksums are checked.

    Args:
        unpack: whether to decompress compressed bodies.

    Raises:
        FormatError: a record is truncated, does not parse or has a wrong checksum, or a body cannot be decompressed.
    """
    view = memoryview(records)
    table = new_table(64)
    messages: list[MessageExt] = []
    position = 0
    while True:
        rows, position, stop = walk_records(view, view, position, len(view), 0, table, 64, crc32, 3)
        messages += [message_from_row(view, table, row, unpack) for row in range(rows)]
        if stop == WalkStop.LIMIT:
            return messages
        if stop != WalkStop.TABLE_FULL:
            got = "an end-of-file record" if stop == WalkStop.BLANK else "a truncated or damaged one"
            raise FormatError("commit log record", position, "a whole, undamaged record", got)


def message_from_row(
    source: bytes | bytearray | memoryview, table: array[int], row: int, unpack: bool = True
) -> MessageExt:
    """Returns the message that ``walk_records`` found in ``source`` and described in row ``row`` of ``table``.

    Raises:
        FormatError: the body cannot be decompressed.
    """
    base = row * ROW_WIDTH
    fields = table[base : base + ROW_WIDTH]

    def span(pos_column: RecordColumn, length: int) -> bytes:
        return bytes(source[fields[pos_column] : fields[pos_column] + length])

    sys_flag = fields[RecordColumn.SYS_FLAG]
    body = span(RecordColumn.BODY_POS, fields[RecordColumn.BODY_LEN])
    if unpack and sys_flag & MessageSysFlag.COMPRESSED:
        body = decompress(body, sys_flag)
    return MessageExt(
        span(RecordColumn.TOPIC_POS, fields[RecordColumn.TOPIC_LEN]).decode("utf-8", "replace"),
        body,
        flag=fields[RecordColumn.MESSAGE_FLAG],
        properties=decode_properties(span(RecordColumn.PROPERTIES_POS, fields[RecordColumn.PROPERTIES_LEN])),
        queue_id=fields[RecordColumn.QUEUE_ID],
        queue_offset=fields[RecordColumn.QUEUE_OFFSET],
        physical_offset=fields[RecordColumn.PHYSICAL_OFFSET],
        store_size=fields[RecordColumn.RECORD_SIZE],
        body_crc=fields[RecordColumn.BODY_CRC],
        sys_flag=sys_flag,
        born_timestamp_ms=fields[RecordColumn.BORN_TIMESTAMP],
        born_host=span(RecordColumn.BORN_HOST_POS, 20 if sys_flag & MessageSysFlag.BORN_HOST_V6 else 8),
        store_timestamp_ms=fields[RecordColumn.STORE_TIMESTAMP],
        store_host=span(RecordColumn.STORE_HOST_POS, 20 if sys_flag & MessageSysFlag.STORE_HOST_V6 else 8),
        reconsume_times=fields[RecordColumn.RECONSUME_TIMES],
        prepared_transaction_offset=fields[RecordColumn.PREPARED_TRANSACTION_OFFSET],
    )
