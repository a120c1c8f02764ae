"""Reads messages that wait in the timer topic, and converts them to the messages that are delivered."""

from __future__ import annotations

from rucola.broker.schedule.delay_rewrite import PARSED_MAP_CAPACITY
from rucola.common.columns import RecordColumn, new_table
from rucola.common.message import StoreMessage
from rucola.common.message_const import (
    CRC32,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
)
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.checksum import crc32
from rucola.formats.message import walk_records
from rucola.formats.properties import decode_properties, encode_properties, java_order

_PROPERTIES_POS, _PROPERTIES_LEN = int(RecordColumn.PROPERTIES_POS), int(RecordColumn.PROPERTIES_LEN)
_BODY_POS, _BODY_LEN = int(RecordColumn.BODY_POS), int(RecordColumn.BODY_LEN)
_TOPIC_POS, _TOPIC_LEN = int(RecordColumn.TOPIC_POS), int(RecordColumn.TOPIC_LEN)
_QUEUE_ID, _SYS_FLAG, _FLAG = int(RecordColumn.QUEUE_ID), int(RecordColumn.SYS_FLAG), int(RecordColumn.MESSAGE_FLAG)
_QUEUE_OFFSET = int(RecordColumn.QUEUE_OFFSET)
_BORN_TIMESTAMP, _BORN_HOST_POS = int(RecordColumn.BORN_TIMESTAMP), int(RecordColumn.BORN_HOST_POS)
_STORE_HOST_POS, _RECONSUME_TIMES = int(RecordColumn.STORE_HOST_POS), int(RecordColumn.RECONSUME_TIMES)
_BORN_HOST_V6, _STORE_HOST_V6 = int(MessageSysFlag.BORN_HOST_V6), int(MessageSysFlag.STORE_HOST_V6)


class WaitingMessage:
    """A record of the timer topic. Its checksums were checked when it was read from the log.

    Attributes:
        properties: its properties, without the checksum of the record.

    Raises:
        FormatError: it is not a record.
    """

    __slots__ = ("_record", "_row", "properties")

    def __init__(self, record: memoryview) -> None:
        row = new_table(1)
        count, _, _ = walk_records(record, record, 0, len(record), 0, row, 1, crc32, 0)
        if count != 1:
            raise FormatError("waiting message", 0, "a record", "none")
        self._record = record
        self._row = row
        self.properties = decode_properties(self._bytes(_PROPERTIES_POS, row[_PROPERTIES_LEN]))
        self.properties.pop(CRC32, None)

    @property
    def topic(self) -> bytes:
        """Physical offset of the record."""
        return self._bytes(_TOPIC_POS, self._row[_TOPIC_LEN])

    @property
    def queue_offset(self) -> int:
        """Queue offset in the timer topic."""
        return self._row[_QUEUE_OFFSET]

    def delivered(self, enqueue_ms: int, dequeue_ms: int, roll: bool) -> StoreMessage:
        """The message for its consumers, or for the timer topic again if its time is still far away.

        Args:
            enqueue_ms: time when it was taken from the queue; 2^63 - 1 if it was due then.
            dequeue_ms: current time.

        Raises:
            FormatError: it does not name its destination.
        """
        row, properties = self._row, self.properties
        properties[TIMER_ENQUEUE_MS] = str(enqueue_ms)
        properties[TIMER_DEQUEUE_MS] = str(dequeue_ms)
        if roll:
            topic, queue_id = self._bytes(_TOPIC_POS, row[_TOPIC_LEN]), row[_QUEUE_ID]
            times = properties.get(TIMER_ROLL_TIMES, "0")
            properties[TIMER_ROLL_TIMES] = str(int(times) + 1 if times.isascii() and times.isdigit() else 1)
        else:
            try:
                topic, queue_id = properties[REAL_TOPIC].encode(), int(properties[REAL_QID])
            except (KeyError, ValueError) as error:
                raise FormatError("waiting message", 0, "topic and queue to go to", repr(error)) from error
        sys_flag = row[_SYS_FLAG]
        return StoreMessage(
            topic,
            queue_id,
            self._bytes(_BODY_POS, row[_BODY_LEN]),
            encode_properties(java_order(properties.items(), PARSED_MAP_CAPACITY)),
            row[_BORN_TIMESTAMP],
            self._bytes(_BORN_HOST_POS, 20 if sys_flag & _BORN_HOST_V6 else 8),
            row[_FLAG],
            sys_flag,
            row[_RECONSUME_TIMES],
            0,
            self._bytes(_STORE_HOST_POS, 20 if sys_flag & _STORE_HOST_V6 else 8),
        )

    def _bytes(self, column: int, length: int) -> bytes:
        start = self._row[column]
        return bytes(self._record[start : start + length])
