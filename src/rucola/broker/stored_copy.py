"""Copies stored messages for their delivery, their commit or their next check."""

from __future__ import annotations

from rucola.common.columns import RecordColumn, new_table
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_const import CRC32
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.checksum import crc32
from rucola.formats.message import walk_records
from rucola.formats.properties import decode_properties, encode_properties

_PROPERTIES_POS, _PROPERTIES_LEN = int(RecordColumn.PROPERTIES_POS), int(RecordColumn.PROPERTIES_LEN)
_BODY_POS, _BODY_LEN = int(RecordColumn.BODY_POS), int(RecordColumn.BODY_LEN)
_TOPIC_POS, _TOPIC_LEN = int(RecordColumn.TOPIC_POS), int(RecordColumn.TOPIC_LEN)
_QUEUE_ID, _SYS_FLAG, _FLAG = int(RecordColumn.QUEUE_ID), int(RecordColumn.SYS_FLAG), int(RecordColumn.MESSAGE_FLAG)
_QUEUE_OFFSET = int(RecordColumn.QUEUE_OFFSET)
_BORN_TIMESTAMP, _BORN_HOST_POS = int(RecordColumn.BORN_TIMESTAMP), int(RecordColumn.BORN_HOST_POS)
_STORE_HOST_POS, _RECONSUME_TIMES = int(RecordColumn.STORE_HOST_POS), int(RecordColumn.RECONSUME_TIMES)
_PREPARED_TRANSACTION_OFFSET = int(RecordColumn.PREPARED_TRANSACTION_OFFSET)
_BORN_HOST_V6, _STORE_HOST_V6 = int(MessageSysFlag.BORN_HOST_V6), int(MessageSysFlag.STORE_HOST_V6)


class StoredRecord:
    """A record of the log to be copied. The checksums of the record were checked when the record was read from the log.

    Attributes:
        properties: its properties, without the checksum of the record.

    Raises:
        FormatError: the bytes are not a record.
    """

    __slots__ = ("_record", "_row", "properties")

    def __init__(self, record: memoryview) -> None:
        row = new_table(1)
        count, _, _ = walk_records(record, record, 0, len(record), 0, row, 1, crc32, 0)
        if count != 1:
            raise FormatError("stored message", 0, "a record", "none")
        self._record = record
        self._row = row
        self.properties = decode_properties(self._bytes(_PROPERTIES_POS, row[_PROPERTIES_LEN]))
        self.properties.pop(CRC32, None)

    @property
    def topic(self) -> bytes:
        """Topic in which the record is stored."""
        return self._bytes(_TOPIC_POS, self._row[_TOPIC_LEN])

    @property
    def queue_id(self) -> int:
        """Queue in which the record is stored."""
        return self._row[_QUEUE_ID]

    @property
    def queue_offset(self) -> int:
        """Queue offset of the record."""
        return self._row[_QUEUE_OFFSET]

    def copy(
        self, topic: bytes, queue_id: int, properties: bytes, prepared_transaction_offset: int = 0
    ) -> StoreMessage:
        """The message with a new destination and these encoded properties."""
        row = self._row
        sys_flag = row[_SYS_FLAG]
        return StoreMessage(
            topic,
            queue_id,
            self._bytes(_BODY_POS, row[_BODY_LEN]),
            properties,
            row[_BORN_TIMESTAMP],
            self._bytes(_BORN_HOST_POS, 20 if sys_flag & _BORN_HOST_V6 else 8),
            row[_FLAG],
            sys_flag,
            row[_RECONSUME_TIMES],
            prepared_transaction_offset,
            self._bytes(_STORE_HOST_POS, 20 if sys_flag & _STORE_HOST_V6 else 8),
        )

    def same(self) -> StoreMessage:
        """The message as it is stored, without the checksum of the record."""
        properties = encode_properties(self.properties)
        return self.copy(self.topic, self.queue_id, properties, self._row[_PREPARED_TRANSACTION_OFFSET])

    def _bytes(self, column: int, length: int) -> bytes:
        start = self._row[column]
        return bytes(self._record[start : start + length])


def stored_copy(record: memoryview) -> tuple[StoreMessage, dict[str, str]]:
    """The message in ``record``, and its properties without the checksum of the old record.

    Raises:
        FormatError: the record is damaged.
    """
    stored = StoredRecord(record)
    return stored.same(), stored.properties


def own_properties(message: MessageExt) -> dict[str, str]:
    """The properties of ``message`` without the checksum of its record."""
    return {name: value for name, value in message.properties.items() if name != CRC32}
