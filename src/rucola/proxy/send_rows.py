"""Messages on their way to a broker, as rows of the frame table: the form in which a broker takes its own clients'.

A row is begun by ``read`` or ``put``, then placed on a queue by ``place`` or given up. Rows that follow each other and
go to the same topic are stored together.
"""

from __future__ import annotations

from rucola.common.columns import ROW_WIDTH, new_table
from rucola.common.kernel_columns import (
    FRAME_BODY_LEN,
    FRAME_BODY_POS,
    FRAME_BORN_TIMESTAMP,
    FRAME_CODE,
    FRAME_GROUP_LEN,
    FRAME_GROUP_POS,
    FRAME_KIND,
    FRAME_OPAQUE,
    FRAME_PROPERTIES_LEN,
    FRAME_PROPERTIES_POS,
    FRAME_QUEUE_ID,
    FRAME_RECONSUME_TIMES,
    FRAME_SAME_TOPIC,
    FRAME_SYS_FLAG,
    FRAME_TOPIC_LEN,
    FRAME_TOPIC_POS,
    KIND_SEND,
)
from rucola.protocol.codes import RequestCode
from rucola.proxy._send_cy import read_send, send_bytes
from rucola.proxy.sending import SentMessage

ROWS_MAX = 256
ROOM_BYTES = 256 * 1024
"""Bytes for rows at first."""
_SEND = int(RequestCode.SEND_MESSAGE_V2)


class SendRows:
    """Rows, and the bytes to which they refer.

    Args:
        room: number of bytes.

    Attributes:
        source: the bytes of all rows.
        view: ``source`` as a memoryview.
        table: the rows, as in a ``FrameBatch``.
        count: number of placed rows.
        end: where the bytes of the next row begin.
    """

    __slots__ = ("_begun", "_topic", "count", "end", "source", "table", "view")

    def __init__(self, room: int = ROOM_BYTES) -> None:
        self.source = bytearray(room)
        self.view = memoryview(self.source)
        self.table = new_table(ROWS_MAX)
        self.count = self.end = self._begun = 0
        self._topic = b""

    def has_room(self, request_bytes: int, host_bytes: int) -> bool:
        """Whether one more request of this size fits."""
        return self.count < ROWS_MAX and self.end + send_bytes(request_bytes, host_bytes) <= len(self.source)

    def read(self, request: bytes, host: bytes, body_bytes_max: int) -> bool:
        """Begins a row from the bytes of a ``SendMessageRequest``; returns whether the kernel takes it."""
        self._begun = read_send(request, self.table, self.count, self.source, self.end, host, body_bytes_max)
        return self._begun > 0

    def put(self, message: SentMessage) -> None:
        """Begins a row with a message that has passed the checks. There must be room for it."""
        table, base, at = self.table, self.count * ROW_WIDTH, self.end
        for column in range(base, base + ROW_WIDTH):
            table[column] = 0
        topic = message.topic.encode()
        table[base + FRAME_KIND], table[base + FRAME_CODE] = KIND_SEND, _SEND
        table[base + FRAME_SYS_FLAG] = message.sys_flag
        table[base + FRAME_BORN_TIMESTAMP] = message.born_timestamp_ms
        table[base + FRAME_RECONSUME_TIMES] = message.reconsume_times
        table[base + FRAME_GROUP_POS], table[base + FRAME_GROUP_LEN] = at, len(topic)
        for position, length, text in (
            (FRAME_TOPIC_POS, FRAME_TOPIC_LEN, topic),
            (FRAME_PROPERTIES_POS, FRAME_PROPERTIES_LEN, message.properties),
            (FRAME_BODY_POS, FRAME_BODY_LEN, message.body),
        ):
            table[base + position], table[base + length] = at, len(text)
            self.source[at : at + len(text)] = text
            at += len(text)
        self._begun = at - self.end

    @property
    def topic(self) -> bytes:
        """Topic of the row that was begun."""
        base = self.count * ROW_WIDTH
        start = self.table[base + FRAME_TOPIC_POS]
        return bytes(self.view[start : start + self.table[base + FRAME_TOPIC_LEN]])

    def place(self, topic: bytes, queue_id: int) -> None:
        """Places the row that was begun on a queue of its topic; it counts from now on."""
        base = self.count * ROW_WIDTH
        self.table[base + FRAME_QUEUE_ID] = queue_id
        self.table[base + FRAME_SAME_TOPIC] = int(self.count > 0 and topic == self._topic)
        self._topic = topic
        self.end += self._begun
        self.count += 1

    def number(self, opaque: int) -> None:
        """Sets the number of the request in the newest row."""
        self.table[(self.count - 1) * ROW_WIDTH + FRAME_OPAQUE] = opaque

    def take_back(self) -> None:
        """Removes the newest row."""
        self.count -= 1
        base = self.count * ROW_WIDTH
        self.end = self.table[base + FRAME_TOPIC_POS]
        self._topic = b""

    def clear(self) -> None:
        """Removes all rows."""
        self.count = self.end = 0
