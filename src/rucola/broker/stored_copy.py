"""Makes copies of stored messages: for delivery, commit or another check."""

from __future__ import annotations

from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_const import CRC32
from rucola.formats.message import decode_message
from rucola.formats.properties import encode_properties


def stored_copy(record: memoryview) -> tuple[StoreMessage, dict[str, str]]:
    """The message in ``record``, and its properties without the checksum of the old record.

    Raises:
        FormatError: the record is damaged.
    """
    message = decode_message(record, unpack=False)
    properties = own_properties(message)
    copy = StoreMessage(
        message.topic.encode(),
        message.queue_id,
        message.body,
        encode_properties(properties),
        message.born_timestamp_ms,
        message.born_host,
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.store_host,
    )
    return copy, properties


def own_properties(message: MessageExt) -> dict[str, str]:
    """The properties of ``message`` without the checksum of its record."""
    return {name: value for name, value in message.properties.items() if name != CRC32}
