"""Bytes of a connection in, frames out.

::

    0         4     5             8                  8+h
    | length | type | header len h | header (h bytes) | body |
    | int32  | u8   | u24          |                  |      |

``length`` counts what follows it, at most 16 MiB - 4; type 0 is a JSON header, 1 a binary one (``protocol.md`` 1.1).

``FrameReader`` owns one receive buffer. The transport writes into ``buffer()`` and reports with ``received``; the
frames of that read are then handled in place, before the next ``buffer()``, which may move or replace them.
"""

from __future__ import annotations

from array import array

import orjson

from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, new_table
from rucola.errors import FormatError
from rucola.protocol._frame_cy import scan_frames
from rucola.protocol.command import FLAG_RESPONSE, FRAME_BYTES_MAX, JSON, RemotingCommand, decode_header

_FIRST_BYTES = 16 * 1024
_FIRST_ROWS = 64
_ERRORS = {
    1: f"a length of 4 to {FRAME_BYTES_MAX - 4}",
    2: "serialize type 0 or 1",
    3: "a header of at least one byte inside the frame",
}

_KIND = int(FrameColumn.KIND)
_CODE = int(FrameColumn.CODE)
_OPAQUE = int(FrameColumn.OPAQUE)
_FLAG = int(FrameColumn.FLAG)
_VERSION = int(FrameColumn.VERSION)
_SERIALIZE = int(FrameColumn.SERIALIZE)
_HEADER_POS = int(FrameColumn.HEADER_POS)
_HEADER_LEN = int(FrameColumn.HEADER_LEN)
_BODY_POS = int(FrameColumn.BODY_POS)
_BODY_LEN = int(FrameColumn.BODY_LEN)
_SAME_TOPIC = int(FrameColumn.SAME_TOPIC)
_TEXT_POS = int(FrameColumn.PROPERTIES_POS)
_TEXT_LEN = int(FrameColumn.PROPERTIES_LEN)


SendAnswer = tuple[int, str, int, int, str | None, str | None]
"""Code, ``msgId``, ``queueId``, ``queueOffset``, ``transactionId`` and ``batchUniqId`` of the answer to a send."""


class FrameBatch:
    """The complete frames of one read, in order. Valid until the next ``FrameReader.buffer()``.

    Attributes:
        source: the buffer all positions in the table point into.
        view: ``source`` as a memoryview.
        table: one row of ``FrameColumn`` per frame; code, opaque, flag and version are filled in every row.
        count: number of frames.
        send_answers: of each frame what it says of a message that was sent, kept here by who reads it.
        judged: rows that access control has looked at, kept here by it.
    """

    __slots__ = ("count", "judged", "send_answers", "source", "table", "view")

    def __init__(self, source: bytearray, view: memoryview, table: array[int], count: int) -> None:
        self.send_answers: list[SendAnswer | None] | None = None
        self.judged = 0
        self.source = source
        self.view = view
        self.table = table
        self.count = count

    def command(self, row: int) -> RemotingCommand:
        """Decode frame ``row``, with a copy of its body. Works for every kind of frame.

        Raises:
            FormatError: the header is not one.
        """
        base = row * ROW_WIDTH
        body = self.table[base + _BODY_POS]
        return decode_header(
            self._header(base),
            self.table[base + _SERIALIZE],
            bytes(self.view[body : body + self.table[base + _BODY_LEN]]),
        )

    def pass_over(self, row: int) -> None:
        """Turn frame ``row`` into one that nobody serves: as if it were an answer, and no run of sends goes across."""
        base = row * ROW_WIDTH
        self.table[base + _FLAG] |= FLAG_RESPONSE
        self.table[base + _SAME_TOPIC] = 0
        if row + 1 < self.count:
            self.table[base + ROW_WIDTH + _SAME_TOPIC] = 0

    def body(self, row: int) -> memoryview:
        """The body of frame ``row``, not copied."""
        base = row * ROW_WIDTH
        position = self.table[base + _BODY_POS]
        return self.view[position : position + self.table[base + _BODY_LEN]]

    def _header(self, base: int) -> bytes:
        """The header as it came: of a hot row the kernel unescaped one text in place, which is escaped again here."""
        table = self.table
        start = table[base + _HEADER_POS]
        end = start + table[base + _HEADER_LEN]
        text_len = table[base + _TEXT_LEN]
        if table[base + _KIND] == FrameKind.PLAIN or table[base + _SERIALIZE] != JSON or text_len <= 0:
            return bytes(self.view[start:end])
        text = table[base + _TEXT_POS]
        escaped = orjson.dumps(str(self.view[text : text + text_len], "utf-8"))
        return b"".join((self.view[start:text], escaped[1:-1], self.view[text + text_len : end]))


class FrameReader:
    """The receive buffer of one connection.

    It starts small, doubles up to ``capacity`` while reads fill it, grows beyond only as the bytes of a larger frame
    arrive, and shrinks back behind that frame.

    Args:
        capacity: bytes of the buffer in ordinary use.
    """

    __slots__ = ("_capacity", "_end", "_rows", "_source", "_start", "_table", "_view", "_wanted")

    def __init__(self, capacity: int = 256 * 1024) -> None:
        self._capacity = max(capacity, 64)
        self._source = bytearray(min(_FIRST_BYTES, self._capacity))
        self._view = memoryview(self._source)
        self._table = new_table(_FIRST_ROWS)
        self._rows = _FIRST_ROWS
        self._start = 0  # of the bytes not yet handed out
        self._end = 0
        self._wanted = len(self._source)  # size of the next buffer

    @property
    def is_large(self) -> bool:
        """Whether the buffer is larger than in ordinary use, or the next one will be."""
        return self._wanted > self._capacity or len(self._source) > self._capacity

    @property
    def wants_more(self) -> bool:
        """Whether a frame that is not complete needs a larger buffer than in ordinary use."""
        return self._wanted > self._capacity

    @property
    def begun_bytes(self) -> int:
        """Bytes that are here of a frame that is not complete."""
        return self._end - self._start

    def buffer(self) -> memoryview:
        """Where the transport may write next; never empty. Ends the life of the previous batch."""
        if self._wanted != len(self._source):
            source = bytearray(self._wanted)
            source[: self._end - self._start] = self._view[self._start : self._end]
            self._source, self._view = source, memoryview(source)
        elif self._start < self._end:
            if self._start:
                self._source[: self._end - self._start] = self._view[self._start : self._end]
        else:
            self._start = self._end = 0  # as after nearly every read
            return self._view
        self._end -= self._start
        self._start = 0
        return self._view[self._end :]

    def received(self, count: int) -> FrameBatch | None:
        """Take note of ``count`` bytes written to ``buffer()``; the frames that are complete now, None without any.

        Raises:
            FormatError: what arrived is not a frame; the connection is of no more use. Frames before it in the same
                read are not handed out: nobody was told that they took effect.
        """
        self._end += count
        filled = self._end == len(self._source)
        rows, self._start, error, unread = scan_frames(self._source, self._start, self._end, self._table, self._rows)
        while rows == self._rows and not error and self._start < self._end:
            rows, error, unread = self._scan_on(rows, unread)
        if error:
            raise self._refusal(error)
        if filled or self._start != self._end or len(self._source) > self._capacity:
            self._plan(filled)
        if not rows:
            return None
        batch = FrameBatch(self._source, self._view, self._table, rows)
        if unread:
            self._read_others(batch)
        return batch

    def _scan_on(self, rows: int, unread: int) -> tuple[int, int, int]:
        """The table was full: double it and go on behind it."""
        more = new_table(self._rows)
        added, self._start, error, others = scan_frames(self._source, self._start, self._end, more, self._rows)
        self._table = self._table + more
        self._rows *= 2
        return rows + added, error, unread + others

    def _read_others(self, batch: FrameBatch) -> None:
        """Read headers of an unusual shape into their rows: whoever gets the batch relies on code, opaque and flag."""
        table = batch.table
        for row in range(batch.count):
            base = row * ROW_WIDTH
            if table[base + _FLAG] == -1:
                command = batch.command(row)
                table[base + _CODE], table[base + _OPAQUE] = command.code, command.opaque
                table[base + _FLAG], table[base + _VERSION] = command.flag, command.version

    def _plan(self, filled: bool) -> None:
        """Decide on the size of the next buffer."""
        size, rest = len(self._source), self._end - self._start
        needed = 0
        if rest >= 4:
            needed = int.from_bytes(self._view[self._start : self._start + 4], "big") + 4
        if needed > self._capacity:
            # Room is made for bytes that arrived, not for those announced: a peer cannot make us allocate by a number.
            self._wanted = min(needed, max(size, 2 * rest, self._capacity))
        elif size > self._capacity:
            self._wanted = self._capacity
        elif filled and size < self._capacity:
            self._wanted = min(2 * size, self._capacity)

    def _refusal(self, error: int) -> FormatError:
        first = bytes(self._view[self._start : min(self._start + 8, self._end)])
        return FormatError("frame", self._start, _ERRORS[error], f"bytes that start with {first.hex()}")
