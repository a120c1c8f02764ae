"""Splits batches into single messages for consumers (RocketMQ 5.3.3, ``MessageDecoder#decodeMessage``).

A batch is a record of a BatchCQ topic that holds several messages. The body of a batch is the body of the producer's
request: messages that follow each other without gaps. A message consists of these fields, all big-endian: 4 bytes total
size, 4 magic code, 4 body checksum, 4 flag, 4 body length, the body, 2 property length, the properties.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct

from rucola.common.message import MessageExt, StoreMessage
from rucola.common.sysflag import COMPRESSION_MASK, MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.message import decode_message, decode_messages, encode_message

_FLAGS = int(MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP)
_PACKED = int(MessageSysFlag.COMPRESSED) | COMPRESSION_MASK
_HEAD = Struct(">iiiii")
_SYS_FLAG = slice(36, 40)


def decode_single_messages(records: bytes, queue_offset: int) -> list[MessageExt]:
    """Returns the messages in ``records``; of a batch, only messages from ``queue_offset`` on are returned. See
    ``decode_messages``.

    Raises:
        FormatError: a record is truncated, does not parse or has a wrong checksum, or a body cannot be decompressed.
    """
    messages = decode_messages(records)
    if any(message.sys_flag & _FLAGS == _FLAGS for message in messages):
        return decode_messages(split_inner_batches(records, queue_offset))
    return messages


def holds_batches(sys_flags: array[int]) -> bool:
    """Whether at least one of the ``sysFlag`` values belongs to a record that holds a batch."""
    return max(sys_flags, default=0) >= MessageSysFlag.INNER_BATCH and any(f & _FLAGS == _FLAGS for f in sys_flags)


def split_inner_batches(records: bytes, queue_offset: int) -> bytes:
    """Returns the records, with each batch split into one record per message. Of a batch, messages before
    ``queue_offset`` are left out.

    A damaged record is copied unchanged; whoever decodes it will report the damage.
    """
    parts: list[bytes] = []
    position = 0
    while position < len(records):
        size = int.from_bytes(records[position : position + 4], "big", signed=True)
        if size <= _SYS_FLAG.stop or size > len(records) - position:
            parts.append(records[position:])
            break
        record = records[position : position + size]
        if int.from_bytes(record[_SYS_FLAG], "big") & _FLAGS == _FLAGS:
            try:
                parts += _members(record, queue_offset)
            except FormatError:
                parts.append(record)
        else:
            parts.append(record)
        position += size
    return b"".join(parts)


def _members(record: bytes, queue_offset: int) -> list[bytes]:
    batch = decode_message(record)
    found = []
    for number, (flag, body, properties) in enumerate(_parts(batch.body)):
        if batch.queue_offset + number < queue_offset:
            continue
        message = StoreMessage(
            batch.topic.encode("utf-8", "surrogateescape"),
            batch.queue_id,
            body,
            properties,
            batch.born_timestamp_ms,
            batch.born_host,
            flag,
            batch.sys_flag & ~(_FLAGS | _PACKED),
            batch.reconsume_times,
            batch.prepared_transaction_offset,
            batch.store_host,
        )
        found.append(
            encode_message(
                message, batch.physical_offset, batch.queue_offset + number, batch.store_timestamp_ms, batch.store_host
            )
        )
    return found


def _parts(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields flag, body and properties of each message.

    Raises:
        FormatError: the lengths do not add up.
    """
    position = 0
    while position < len(body):
        if len(body) - position < _HEAD.size + 2:
            raise FormatError("inner batch", position, "a message", "the end")
        size, _, _, flag, length = _HEAD.unpack_from(body, position)
        at = position + _HEAD.size
        if not 0 <= length <= len(body) - at - 2:
            raise FormatError("inner batch", at, "a length inside the body", str(length))
        properties_at = at + length + 2
        end = properties_at + int.from_bytes(body[at + length : properties_at], "big")
        if end > len(body) or size != end - position:
            raise FormatError("inner batch", position, f"a size of {end - position}", str(size))
        yield flag, body[at : at + length], body[properties_at:end]
        position = end
