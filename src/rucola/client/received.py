"""Messages as a consumer receives them: decoded only as far as their attributes are read.

A pull may return many records. ``walk_records`` finds and checks them, and fills a table row for each. A message is
then one object with the bytes of its record and its table row. An attribute is decoded when it is first read, and then
kept.
"""

from __future__ import annotations

from array import array
from typing import Any

from rucola.common import message_const
from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.common.message import MessageExt
from rucola.common.sysflag import TRANSACTION_MASK, MessageSysFlag
from rucola.errors import FormatError, UnreadableBodyError
from rucola.formats.checksum import crc32
from rucola.formats.compression import decompress
from rucola.formats.inner_batch import holds_batches, split_inner_batches
from rucola.formats.message import CHECK_BODY_CRC, CHECK_RECORD_CRC, walk_records
from rucola.formats.properties import decode_properties

_ROWS = 64
_RECORD_POS = int(RecordColumn.RECORD_POS)
_RECORD_SIZE = int(RecordColumn.RECORD_SIZE)
_SYS_FLAG = int(RecordColumn.SYS_FLAG)
_QUEUE_OFFSET = int(RecordColumn.QUEUE_OFFSET)
_NUMBERS = {
    "queue_id": int(RecordColumn.QUEUE_ID),
    "physical_offset": int(RecordColumn.PHYSICAL_OFFSET),
    "flag": int(RecordColumn.MESSAGE_FLAG),
    "body_crc": int(RecordColumn.BODY_CRC),
    "sys_flag": int(RecordColumn.SYS_FLAG),
    "born_timestamp_ms": int(RecordColumn.BORN_TIMESTAMP),
    "store_timestamp_ms": int(RecordColumn.STORE_TIMESTAMP),
    "reconsume_times": int(RecordColumn.RECONSUME_TIMES),
    "prepared_transaction_offset": int(RecordColumn.PREPARED_TRANSACTION_OFFSET),
}


class PullOrigin:
    """Data shared by all messages of one answer.

    Attributes:
        broker_name: name of the broker.
        min_offset: first queue offset that the broker still had; None if the answer does not tell.
        max_offset: queue offset of the next message to be stored; None if the answer does not tell.
        pop_group: the group that popped the messages; None if they were not popped.
    """

    __slots__ = ("broker_name", "max_offset", "min_offset", "pop_group")

    def __init__(
        self,
        broker_name: str,
        min_offset: int | None = None,
        max_offset: int | None = None,
        pop_group: str | None = None,
    ) -> None:
        self.broker_name, self.min_offset, self.max_offset = broker_name, min_offset, max_offset
        self.pop_group = pop_group


class ReceivedMessage(MessageExt):
    """A ``MessageExt`` whose attributes are decoded when they are first read. It can be modified like any other
    message, except ``queue_offset`` and ``store_size``.

    In addition to the stored properties, a pulled message has MIN_OFFSET and MAX_OFFSET of the queue at that time. A
    body that cannot be decompressed raises ``UnreadableBodyError`` whenever it is read; all other attributes can be
    read. ``of_records`` makes the objects.
    """

    __slots__ = ("__weakref__", "_origin", "_record", "_row")

    _origin: PullOrigin
    _record: bytes
    _row: array[int]

    def __getattr__(self, name: str) -> Any:
        """Decodes an attribute at its first use."""
        column = _NUMBERS.get(name)
        if column is not None:
            value: Any = self._row[column]
        elif name == "body":
            value = self._unpacked(self._span(RecordColumn.BODY_POS, self._row[RecordColumn.BODY_LEN]))
        elif name == "properties":
            value = self._properties()
        elif name == "topic":
            value = self._span(RecordColumn.TOPIC_POS, self._row[RecordColumn.TOPIC_LEN]).decode("utf-8", "replace")
        elif name == "broker_name":
            value = self._origin.broker_name
        elif name == "born_host":
            value = self._span(RecordColumn.BORN_HOST_POS, self._host_len(MessageSysFlag.BORN_HOST_V6))
        elif name == "store_host":
            value = self._span(RecordColumn.STORE_HOST_POS, self._host_len(MessageSysFlag.STORE_HOST_V6))
        else:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        setattr(self, name, value)
        return value

    @property
    def transaction_id(self) -> str | None:
        """For a transactional message, the transaction id that its sender set."""
        return self.uniq_key if self.sys_flag & TRANSACTION_MASK else None

    def _span(self, pos_column: int, length: int) -> bytes:
        position = self._row[pos_column] - self._row[_RECORD_POS]
        return self._record[position : position + length]

    def _host_len(self, flag: int) -> int:
        return 20 if self._row[RecordColumn.SYS_FLAG] & flag else 8

    def _properties(self) -> dict[str, str]:
        stored = decode_properties(self._span(RecordColumn.PROPERTIES_POS, self._row[RecordColumn.PROPERTIES_LEN]))
        if self._origin.min_offset is not None:
            stored[message_const.MIN_OFFSET] = str(self._origin.min_offset)
        if self._origin.max_offset is not None:
            stored[message_const.MAX_OFFSET] = str(self._origin.max_offset)
        return stored

    def _unpacked(self, body: bytes) -> bytes:
        """Returns the decompressed body.

        Raises:
            UnreadableBodyError: it cannot be decompressed. Without the error, the application would take compressed
                bytes for the message.
        """
        sys_flag = self._row[RecordColumn.SYS_FLAG]
        if not sys_flag & MessageSysFlag.COMPRESSED:
            return body
        try:
            return decompress(body, sys_flag)
        except FormatError as error:
            raise UnreadableBodyError(self.topic, self.queue_id, self.queue_offset, str(error)) from error

    def __repr__(self) -> str:
        try:
            return super().__repr__()
        except UnreadableBodyError as error:
            return (
                f"MessageExt(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
                f"physical_offset={self.physical_offset}, msg_id={self.msg_id!r}, body=<{error.reason}>, "
                f"properties={self.properties!r})"
            )

    @classmethod
    def of_records(cls, records: bytes, origin: PullOrigin, queue_offset: int = 0) -> list[MessageExt]:
        """Decodes the messages in the body of a pull or pop response, and checks their checksums.

        Args:
            queue_offset: the requested offset. A batch may begin at a lower offset; its messages below ``queue_offset``
                are left out.

        Raises:
            FormatError: a record is truncated, does not parse or has a wrong checksum.
        """
        view = memoryview(records)
        end = len(records)
        table = new_table(_ROWS)
        messages: list[MessageExt] = []
        new = cls.__new__
        position = 0
        while True:
            rows, position, stop = walk_records(
                view, view, position, end, 0, table, _ROWS, crc32, CHECK_BODY_CRC | CHECK_RECORD_CRC
            )
            if holds_batches(table[_SYS_FLAG : rows * ROW_WIDTH : ROW_WIDTH]):
                single = split_inner_batches(records, queue_offset)
                if single != records:
                    return cls.of_records(single, origin)
            for base in range(0, rows * ROW_WIDTH, ROW_WIDTH):
                # Sets only what every consumer needs, without calls of __init__ and QueueOffset, which take twice the
                # time.
                message = new(cls)
                message._row = row = table[base : base + ROW_WIDTH]
                message._origin = origin
                message.queue_offset = row[_QUEUE_OFFSET]  # type: ignore[assignment]
                message.store_size = size = row[_RECORD_SIZE]
                first = row[_RECORD_POS]
                message._record = records[first : first + size]
                messages.append(message)
            if stop == WalkStop.LIMIT:
                return messages
            if stop != WalkStop.TABLE_FULL:
                got = "an end-of-file record" if stop == WalkStop.BLANK else "a truncated or damaged one"
                raise FormatError("commit log record", position, "a whole, undamaged record", got)


def pop_group(message: MessageExt) -> str | None:
    """The group that popped ``message`` or the message of which it is a copy; None if this is not known."""
    return message._origin.pop_group if isinstance(message, ReceivedMessage) else None
