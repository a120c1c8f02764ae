"""Splits the byte stream of a connection into frames.

::

    0         4     5             8                  8+h
    | length | type | header len h | header (h bytes) | body |
    | int32  | u8   | u24          |                  |      |

``length`` is the number of bytes after this field, at most 16 MiB - 4. Type 0 means a JSON header, type 1 a binary
header (``protocol.md`` 1.1).

``FrameReader`` owns one receive buffer. The transport writes into ``buffer()``; the connection then calls ``received``,
which returns the complete frames. The connection must handle the frames before it calls ``buffer()`` again, because new
bytes may then overwrite them.
"""

from __future__ import annotations

from array import array

from rucola.common.columns import ROW_WIDTH, FrameKind, new_table
from rucola.common.json_library import orjson
from rucola.common.kernel_columns import (
    FRAME_BODY_LEN,
    FRAME_BODY_POS,
    FRAME_CODE,
    FRAME_FLAG,
    FRAME_HEADER_LEN,
    FRAME_HEADER_POS,
    FRAME_KIND,
    FRAME_OPAQUE,
    FRAME_PROPERTIES_LEN,
    FRAME_PROPERTIES_POS,
    FRAME_SAME_TOPIC,
    FRAME_SERIALIZE,
    FRAME_VERSION,
)
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


SendAnswer = tuple[int, str, int, int, str | None, str | None]
"""Code, ``msgId``, ``queueId``, ``queueOffset``, ``transactionId`` and ``batchUniqId`` of the response to a send."""


class FrameBatch:
    """Complete frames of one socket read, in order. A batch is valid until the next ``buffer()`` or ``more()`` of its
    reader, or of any reader that shares the buffer.

    Attributes:
        source: the buffer to which all positions in the table refer.
        view: ``source`` as a memoryview.
        table: one row of ``FrameColumn`` per frame; code, opaque, flag and version are filled in every row.
        count: number of frames.
        send_answers: the send results in the frames, cached here by the client.
        judged: number of rows that access control has examined. Used only by access control.
        account: the account that sent the examined requests. Used only by access control.
        hashing: what access control knows about the next request, whose body is hashed in several turns; or None.
        kept_bytes: size in bytes of a copied batch (``SharedFrameReader.keep``); 0 for a batch in its reader's memory.
    """

    __slots__ = ("account", "count", "hashing", "judged", "kept_bytes", "send_answers", "source", "table", "view")

    def __init__(self, source: bytearray, view: memoryview, table: array[int], count: int) -> None:
        self.send_answers: list[SendAnswer | None] | None = None
        self.judged = 0
        self.account = ""
        self.hashing: object = None
        self.kept_bytes = 0
        self.source = source
        self.view = view
        self.table = table
        self.count = count

    def keep_answers(self, answers: list[SendAnswer | None]) -> list[SendAnswer | None]:
        """Sets ``send_answers``, and returns them."""
        self.send_answers = answers
        return answers

    def vouch(self, account: str) -> None:
        """Marks all frames as examined, and sent by ``account``."""
        self.judged, self.account = self.count, account

    def hash_with(self, hashing: object) -> None:
        """Sets ``hashing``."""
        self.hashing = hashing

    def take_hashing(self) -> object:
        """Returns ``hashing``, which is then None."""
        hashing, self.hashing = self.hashing, None
        return hashing

    @property
    def end(self) -> int:
        """Position after the last frame in ``source``."""
        base = (self.count - 1) * ROW_WIDTH
        return self.table[base + FRAME_BODY_POS] + self.table[base + FRAME_BODY_LEN]

    def command(self, row: int) -> RemotingCommand:
        """Decodes frame ``row``, with a copy of its body. Accepts every kind of frame.

        Raises:
            FormatError: the header is invalid.
        """
        base = row * ROW_WIDTH
        body = self.table[base + FRAME_BODY_POS]
        return decode_header(
            self._header(base),
            self.table[base + FRAME_SERIALIZE],
            bytes(self.view[body : body + self.table[base + FRAME_BODY_LEN]]),
            self.table[base + FRAME_FLAG] & FLAG_RESPONSE != 0,
        )

    def head(self, row: int) -> RemotingCommand:
        """As ``command``, but without the body."""
        base = row * ROW_WIDTH
        return decode_header(self._header(base), self.table[base + FRAME_SERIALIZE], b"")

    def pass_over(self, row: int) -> None:
        """Marks frame ``row`` as a response, so that it is not served. Consecutive sends to one topic are served as one
        run; such a run now ends before ``row``, and the next run begins after ``row``.
        """
        base = row * ROW_WIDTH
        self.table[base + FRAME_FLAG] |= FLAG_RESPONSE
        self.table[base + FRAME_SAME_TOPIC] = 0
        if row + 1 < self.count:
            self.table[base + ROW_WIDTH + FRAME_SAME_TOPIC] = 0

    def body(self, row: int) -> memoryview:
        """Returns the body of frame ``row`` without copying it."""
        base = row * ROW_WIDTH
        position = self.table[base + FRAME_BODY_POS]
        return self.view[position : position + self.table[base + FRAME_BODY_LEN]]

    def _header(self, base: int) -> bytes:
        """Returns a header with the same content as the received one. In a JSON header, ``scan_frames`` has unescaped
        the properties of a send or the subscription of a pull in place; this method escapes that text again.
        """
        table = self.table
        start = table[base + FRAME_HEADER_POS]
        end = start + table[base + FRAME_HEADER_LEN]
        text_len = table[base + FRAME_PROPERTIES_LEN]
        if table[base + FRAME_KIND] == FrameKind.PLAIN or table[base + FRAME_SERIALIZE] != JSON or text_len <= 0:
            return bytes(self.view[start:end])
        text = table[base + FRAME_PROPERTIES_POS]
        escaped = orjson.dumps(str(self.view[text : text + text_len], "utf-8"))
        return b"".join((self.view[start:text], escaped[1:-1], self.view[text + text_len : end]))


class FrameReader:
    """The receive buffer of one connection.

    It starts small and doubles up to ``capacity`` while reads fill it. Beyond ``capacity`` it grows only as the bytes
    of a larger frame arrive, and it shrinks again after that frame.

    Args:
        capacity: largest size in bytes as long as no frame needs more.
    """

    __slots__ = ("_capacity", "_end", "_rows", "_source", "_start", "_table", "_view", "_wanted")

    def __init__(self, capacity: int = 256 * 1024) -> None:
        self._capacity = max(capacity, 64)
        self._source = bytearray(min(_FIRST_BYTES, self._capacity))
        self._view = memoryview(self._source)
        self._table = new_table(_FIRST_ROWS)
        self._rows = _FIRST_ROWS
        self._start = 0  # first byte not yet returned in a batch
        self._end = 0
        self._wanted = len(self._source)  # size of the next buffer

    @property
    def wants_more(self) -> bool:
        """Whether an incomplete frame needs a buffer larger than ``capacity``."""
        return self._wanted > self._capacity

    @property
    def begun_bytes(self) -> int:
        """Number of bytes received so far of an incomplete frame."""
        return self._end - self._start

    def buffer(self) -> memoryview:
        """Returns the memory into which the transport may write next; never empty. Invalidates the previous batch."""
        if self._wanted != len(self._source):
            source = bytearray(self._wanted)
            source[: self._end - self._start] = self._view[self._start : self._end]
            self._source, self._view = source, memoryview(source)
        elif self._start < self._end:
            if self._start:
                # A slice of the view is not a copy, so the bytes are moved in place. A slice of the bytearray would be
                # a copy.
                self._view[: self._end - self._start] = self._view[self._start : self._end]
        else:
            self._start = self._end = 0  # the usual case after a read
            return self._view
        self._end -= self._start
        self._start = 0
        return self._view[self._end :]

    def received(self, count: int) -> FrameBatch | None:
        """Accounts for ``count`` bytes written to ``buffer()``; returns the frames that are now complete, or None if
        there are none.

        Raises:
            FormatError: the bytes are not a frame; the connection must be closed. Earlier frames of the same read are
                dropped. This is safe, because no response has confirmed them.
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
        """Doubles the size of the full table, and scans frames into the new rows."""
        more = new_table(self._rows)
        added, self._start, error, others = scan_frames(self._source, self._start, self._end, more, self._rows)
        self._table = self._table + more
        self._rows *= 2
        return rows + added, error, unread + others

    def _read_others(self, batch: FrameBatch) -> None:
        """Fills code, opaque, flag and version in the rows of frames whose headers ``scan_frames`` could not read."""
        table = batch.table
        for row in range(batch.count):
            base = row * ROW_WIDTH
            if table[base + FRAME_FLAG] == -1:
                command = batch.command(row)
                table[base + FRAME_CODE], table[base + FRAME_OPAQUE] = command.code, command.opaque
                table[base + FRAME_FLAG], table[base + FRAME_VERSION] = command.flag, command.version

    def _plan(self, filled: bool) -> None:
        """Chooses the size of the next buffer."""
        size, rest = len(self._source), self._end - self._start
        needed = 0
        if rest >= 4:
            needed = int.from_bytes(self._view[self._start : self._start + 4], "big") + 4
        if needed > self._capacity:
            # Beyond the capacity, memory is allocated in proportion to the bytes that have arrived, not to the length
            # that the frame announces.
            self._wanted = min(needed, max(size, 2 * rest, self._capacity))
        elif size > self._capacity:
            self._wanted = self._capacity
        elif filled and size < self._capacity:
            self._wanted = min(2 * size, self._capacity)

    def _refusal(self, error: int) -> FormatError:
        first = bytes(self._view[self._start : min(self._start + 8, self._end)])
        return FormatError("frame", self._start, _ERRORS[error], f"bytes that start with {first.hex()}")
