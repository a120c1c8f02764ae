# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel: the streams of a connection, its windows in both directions, and the frames that a request and its answer
consist of.

``StreamExchange.handle`` takes HEADERS and DATA as long as they are what an honest peer sends. It stops at the first
frame of another type, and at the first that is wrong, which it says in the row. ``http2.connection`` does everything
else. So a request costs no step of Python, and each rule stands in one place.

What waits for the windows of the peer leaves a stream in the order in which it was handed over, so trailers wait behind
the data before them. A stream that has window of its own, but none of the connection, is in ``_waiting``; each gets one
frame in turn when the connection's window opens. A stream without window of its own is in no list, so an update of a
window costs only what it sends.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:  # interpreted, and Cython is not installed
    from rucola.common import cython_fallback as cython

from array import array
from collections import OrderedDict, deque
from typing import Any

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.rucola.http2._frames_cy import find
    from cython.cimports.rucola.http2.columns import *
else:
    from rucola.http2._frames_cy import find_frames
    from rucola.http2.columns import *

KIND_REQUEST = cython.declare(cython.int, 1)
KIND_DATA = cython.declare(cython.int, 2)
KIND_TRAILERS = cython.declare(cython.int, 3)

SCOPE_NONE = cython.declare(cython.int, 0)
SCOPE_STREAM = cython.declare(cython.int, 1)
SCOPE_CONNECTION = cython.declare(cython.int, 2)

NO_ERROR = cython.declare(cython.int, 0)
PROTOCOL_ERROR = cython.declare(cython.int, 1)
FLOW_CONTROL_ERROR = cython.declare(cython.int, 3)
REFUSED_STREAM = cython.declare(cython.int, 7)
COMPRESSION_ERROR = cython.declare(cython.int, 9)

BLOCK_TOO_LARGE = cython.declare(cython.int, 2)
BLOCK_UNREADABLE = cython.declare(cython.int, -1)

STATE_OPEN = cython.declare(cython.int, 1)
STATE_HALF_CLOSED_LOCAL = cython.declare(cython.int, 2)
STATE_HALF_CLOSED_REMOTE = cython.declare(cython.int, 3)
STATE_CLOSED = cython.declare(cython.int, 4)
STATE_RESET_BY_US = cython.declare(cython.int, 6)

TYPE_DATA = cython.declare(cython.int, 0)
TYPE_HEADERS = cython.declare(cython.int, 1)
TYPE_WINDOW_UPDATE = cython.declare(cython.int, 8)
TYPE_CONTINUATION = cython.declare(cython.int, 9)
FLAG_END_STREAM = cython.declare(cython.int, 0x1)
FLAG_END_HEADERS = cython.declare(cython.int, 0x4)

HEAD_BYTES = cython.declare(cython.int, 9)
WINDOW_DEFAULT = cython.declare(cython.int, 65535)
FRAME_BYTES_DEFAULT = cython.declare(cython.int, 16384)
EARNED_BY_REQUEST = cython.declare(cython.int, 4)
EARNED_BY_DATA = cython.declare(cython.int, 3)
# Says that our encoder uses no dynamic table. It comes before the first block of a connection, so that whatever size
# the peer sets later needs no answer (RFC 7541 4.2).
NO_TABLE = b"\x20"

_REMEMBERED = cython.declare(cython.int, 512)
_COPIED_BYTES_MAX = cython.declare(cython.int, 4096)  # DATA up to this size is copied behind the head of its frame


def _is_compiled() -> bool:
    """Whether this module runs compiled."""
    return cython.compiled


@cython.cfunc
def _head(
    length: cython.longlong, kind: cython.int, flags: cython.int, stream: cython.longlong, word: cython.longlong = -1
) -> bytes:
    """Returns the head of a frame, and its payload if that is one ``word`` of four bytes."""
    out = cython.declare(cython.uchar[13])
    out[0] = (length >> 16) & 0xFF
    out[1] = (length >> 8) & 0xFF
    out[2] = length & 0xFF
    out[3] = kind
    out[4] = flags
    out[5] = (stream >> 24) & 0xFF
    out[6] = (stream >> 16) & 0xFF
    out[7] = (stream >> 8) & 0xFF
    out[8] = stream & 0xFF
    out[9] = (word >> 24) & 0xFF
    out[10] = (word >> 16) & 0xFF
    out[11] = (word >> 8) & 0xFF
    out[12] = word & 0xFF
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, out), 9 if word < 0 else 13)
    return bytes([out[place] for place in range(9 if word < 0 else 13)])


@cython.cclass
class Stream:
    """An open or half-closed stream.

    Attributes:
        number: its identifier.
        state: a ``StreamState``.
        send_window: bytes that the peer accepts now; negative after it has made its windows smaller.
        receive_window: bytes that the peer may still send.
        unannounced: bytes that were acknowledged, but no WINDOW_UPDATE has announced.
        body_left: bytes that content-length promises and that have not come; -1 without content-length.
        opened_ms: when it was opened.
        queued_bytes: bytes that wait for the peer's windows.
        drained_bytes: how many such bytes have gone out.
        is_ended: whether the owner has handed over the last of its answer.
    """

    number = cython.declare(cython.longlong, visibility="readonly")
    state = cython.declare(cython.int, visibility="readonly")
    send_window = cython.declare(cython.longlong, visibility="readonly")
    receive_window = cython.declare(cython.longlong, visibility="readonly")
    unannounced = cython.declare(cython.longlong, visibility="readonly")
    body_left = cython.declare(cython.longlong, visibility="readonly")
    opened_ms = cython.declare(cython.longlong, visibility="readonly")
    queued_bytes = cython.declare(cython.longlong, visibility="readonly")
    drained_bytes = cython.declare(cython.longlong, visibility="readonly")
    is_ended = cython.declare(cython.bint, visibility="readonly")
    _queue: Any  # of (bytes, whether they are a block, whether they end the stream); None if nothing ever waited

    def __init__(
        self,
        number: cython.longlong,
        state: cython.int,
        send_window: cython.longlong,
        receive_window: cython.longlong,
        body_left: cython.longlong,
        opened_ms: cython.longlong,
    ) -> None:
        self.number = number
        self.state = state
        self.send_window = send_window
        self.receive_window = receive_window
        self.unannounced = 0
        self.body_left = body_left
        self.opened_ms = opened_ms
        self.queued_bytes = 0
        self.drained_bytes = 0
        self.is_ended = False
        self._queue = None


@cython.cclass
class StreamExchange:
    """Streams and windows of one connection.

    Args:
        decoder: the ``HeaderDecoder``.
        rows: rows of frames, see ``http2.columns``.
        fields: rows of fields, ``width`` columns each, to which the decoder writes.
        rows_max: largest number of rows for frames.
        largest_frame: largest payload of a frame that the peer may send.
        text_bytes: size of the text of the decoder.
        streams_max: largest number of open streams.
        stream_window: bytes that the peer may send on a new stream.
        connection_window: bytes that it may send on all streams.

    Attributes:
        now_ms: the time of this read; the connection sets it.
        last: the highest number of a stream that the peer has used.
        last_announced: the last stream of our GOAWAY; -1 before it.
        is_over: whether the connection has ended.
        is_plain: whether requests may come: after SETTINGS, and not within a header block.
        row_count: number of frames that ``read`` has found.
        position: position after them.
        text_top: where the text of this read ends.
        unended_count: number of streams that the peer has not ended.
        held_bytes: bytes of DATA that were handed over and not acknowledged.
        receive_window, unannounced: bytes that the peer may still send on all streams, and those that it may send, but
            no WINDOW_UPDATE has announced.
        window: bytes that the peer accepts on all streams together.
        first_window: bytes that the peer accepts on a new stream.
        frame_bytes_max: largest payload that the peer accepts.
        queued_bytes: bytes that wait for windows, on all streams.
        drained_bytes: how many such bytes have gone out.
        control_bytes: bytes of control frames that were not taken.
        earned, small_frames, empty_frames, updates: what limits count: control frames that go with honest work, DATA
            below ``small_bytes`` or without any byte that does not end its stream, changes of the table's size.
        is_noted: whether something was counted, or there are control frames to send, or a queue has become empty.
    """

    now_ms = cython.declare(cython.longlong, visibility="public")
    last = cython.declare(cython.longlong, visibility="public")
    last_announced = cython.declare(cython.longlong, visibility="public")
    is_over = cython.declare(cython.bint, visibility="public")
    is_plain = cython.declare(cython.bint, visibility="public")
    row_count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    text_top = cython.declare(cython.Py_ssize_t, visibility="readonly")
    unended_count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    held_bytes = cython.declare(cython.longlong, visibility="readonly")
    receive_window = cython.declare(cython.longlong, visibility="readonly")
    unannounced = cython.declare(cython.longlong, visibility="readonly")
    window = cython.declare(cython.longlong, visibility="readonly")
    first_window = cython.declare(cython.longlong, visibility="readonly")
    frame_bytes_max = cython.declare(cython.longlong, visibility="public")
    drained_bytes = cython.declare(cython.longlong, visibility="readonly")
    control_bytes = cython.declare(cython.longlong, visibility="readonly")
    earned = cython.declare(cython.longlong, visibility="public")
    small_frames = cython.declare(cython.longlong, visibility="public")
    empty_frames = cython.declare(cython.longlong, visibility="public")
    updates = cython.declare(cython.longlong, visibility="public")
    is_noted = cython.declare(cython.bint, visibility="public")
    _queued: cython.longlong
    _decoder: Any
    _rows: cython.longlong[::1]
    _fields: cython.longlong[::1]
    _rows_max: cython.Py_ssize_t
    _largest_frame: cython.longlong
    _width: cython.Py_ssize_t
    _text_max: cython.Py_ssize_t
    _streams_max: cython.Py_ssize_t
    _stream_window: cython.longlong
    _connection_window: cython.longlong
    _small_bytes: cython.longlong
    _living: dict[int, Stream]
    _closed: cython.longlong[::1]
    _chunks: list[Any]
    _waiting: Any
    _drained: list[Any]
    _has_sent_block: cython.bint

    def __init__(
        self,
        decoder,
        rows: cython.longlong[::1],
        fields: cython.longlong[::1],
        rows_max: cython.Py_ssize_t,
        largest_frame: cython.longlong,
        width: cython.Py_ssize_t,
        text_bytes: cython.Py_ssize_t,
        streams_max: cython.Py_ssize_t,
        stream_window: cython.longlong,
        connection_window: cython.longlong,
        small_bytes: cython.longlong,
    ) -> None:
        self._decoder = decoder
        self._rows = rows
        self._fields = fields
        self._rows_max = min(rows_max, len(rows) // ROW_COLUMNS)
        self._largest_frame = largest_frame
        self._width = width
        self._text_max = text_bytes - decoder.text_bytes
        self._streams_max = streams_max
        self._stream_window = max(stream_window, WINDOW_DEFAULT)  # which peers use until they have our SETTINGS
        self._connection_window = self.receive_window = connection_window
        self._small_bytes = small_bytes
        self.now_ms = self.last = self.text_top = self.held_bytes = self.control_bytes = self._queued = 0
        self.drained_bytes = 0
        self.earned = self.small_frames = self.empty_frames = self.updates = self.unannounced = 0
        self.row_count = self.position = self.unended_count = 0
        self.last_announced = -1
        self.is_over = self.is_plain = self.is_noted = self._has_sent_block = False
        self.window = self.first_window = WINDOW_DEFAULT
        self.frame_bytes_max = FRAME_BYTES_DEFAULT
        self._living = {}
        self._closed = array("q", bytes(8 * _REMEMBERED))
        self._chunks = []
        self._waiting = OrderedDict()
        self._drained = []

    # --- streams

    def stream(self, number: cython.longlong):
        """Returns an open or half-closed stream; None if there is none of this number."""
        return self._living.get(number)

    def streams(self) -> list[Stream]:
        """Returns the open and half-closed streams."""
        return list(self._living.values())

    def unended_streams(self) -> list[Stream]:
        """Returns the streams that the peer has not ended."""
        return [stream for stream in self._living.values() if stream.state < STATE_HALF_CLOSED_REMOTE]

    def queued_streams(self) -> list[Stream]:
        """Returns the streams on which something waits for the peer's windows."""
        return [stream for stream in self._living.values() if stream.queued_bytes > 0]

    @property
    def stream_count(self) -> int:
        """Number of open and half-closed streams."""
        return len(self._living)

    def closed_state(self, number: cython.longlong) -> int:
        """Returns the state in which a stream was closed; 0 if that is forgotten, or it never was open."""
        noted: cython.longlong = self._closed[(number >> 1) % _REMEMBERED]
        return noted & 7 if noted >> 3 == number else 0

    def close_stream(self, number: cython.longlong, state: cython.int) -> None:
        """Removes a stream with all that waits on it, and remembers how it was closed."""
        found = self._living.get(number)
        if found is not None:
            stream: Stream = found
            self._queued -= stream.queued_bytes
            self._waiting.pop(number, None)
        self._close(number, state)

    @cython.cfunc
    def _close(self, number: cython.longlong, state: cython.int):
        found = self._living.pop(number, None)
        if found is not None:
            stream: Stream = found
            if stream.state < STATE_HALF_CLOSED_REMOTE:
                self.unended_count -= 1
        self._closed[(number >> 1) % _REMEMBERED] = number << 3 | state

    # --- receiving

    def read(self, source: bytearray, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Finds the frames in ``source[start:end]``, and handles them as far as they are requests in order.

        Returns:
            The first row that was not handled; ``row_count`` if all were.

        Raises:
            ValueError: the range lies outside ``source``.
        """
        self.text_top = 0
        if cython.compiled:
            self._find(source, start, end)
        else:
            self.row_count, self.position = find_frames(
                source, start, end, self._rows, self._rows_max, self._largest_frame
            )
        return self.handle(source, 0) if self.is_plain else 0

    @cython.cfunc
    def _find(self, source: bytearray, start: cython.Py_ssize_t, end: cython.Py_ssize_t):
        """Calls the kernel that finds frames without a step of Python."""
        data: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyByteArray_AS_STRING(source))
        last: cython.Py_ssize_t
        if not 0 <= start <= end <= len(source):
            raise ValueError(f"range {start}..{end} lies outside the buffer")
        self.position = start
        self.row_count = find(data, start, end, cython.address(self._rows[0]), self._rows_max, self._largest_frame)
        if self.row_count > 0:
            last = (self.row_count - 1) * ROW_COLUMNS
            self.position = self._rows[last + ROW_START]
            if self._rows[last + ROW_FLOW] <= self._largest_frame:
                self.position += HEAD_BYTES + self._rows[last + ROW_FLOW]

    def handle(self, source: bytearray, first: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Handles the rows from ``first`` on, as far as they are requests in order.

        Args:
            source: the buffer in which the frames are.
            first: the first row.

        Returns:
            The first row that was not handled; ``row_count`` if all were.

        Raises:
            ValueError: ``first`` is no row.
        """
        base: cython.Py_ssize_t
        start: cython.Py_ssize_t
        row: cython.Py_ssize_t = first
        rows: cython.longlong[::1] = self._rows
        if not 0 <= first <= self.row_count:
            raise ValueError(f"no row {first}")
        while row < self.row_count:
            base = row * ROW_COLUMNS
            if rows[base + ROW_SCOPE] != SCOPE_NONE:
                break
            if rows[base + ROW_TYPE] == TYPE_DATA:
                if not self._data(base):
                    break
            elif rows[base + ROW_TYPE] == TYPE_HEADERS and rows[base + ROW_FLAGS] & FLAG_END_HEADERS:
                start = rows[base + ROW_POSITION]
                if self.text_top > self._text_max or not self._block(
                    source, base, start, start + rows[base + ROW_LENGTH]
                ):
                    break
            else:
                break
            row += 1
        return row

    def has_text(self) -> bool:
        """Whether one more block fits into the text of this read."""
        return self.text_top <= self._text_max

    def block(
        self, source: bytearray, base: cython.Py_ssize_t, start: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> bool:
        """Decodes a whole header block and handles it as the request or the trailers of the row at ``base``.

        It goes into the table of the decoder even if its stream takes no headers.

        Returns:
            Whether all is well. If not, and ``ROW_SCOPE`` says nothing, the state of the stream is the reason. An error
            of the stream with the code NO_ERROR means that the fields are larger than allowed.

        Raises:
            ValueError: the row or the block lies outside its buffer.
        """
        if base < 0 or base + ROW_COLUMNS > len(self._rows):
            raise ValueError(f"no row at {base}")
        return self._block(source, base, start, end)

    @cython.cfunc
    def _block(
        self, source: bytearray, base: cython.Py_ssize_t, start: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        rows: cython.longlong[::1] = self._rows
        fields: cython.Py_ssize_t = base // ROW_COLUMNS * self._width
        number: cython.longlong = rows[base + ROW_STREAM]
        status: cython.int
        found = self._living.get(number)
        rows[base + ROW_FIELDS] = fields
        status = self._decoder.decode(source, start, end, self.text_top, fields, found is not None)
        if status == BLOCK_UNREADABLE:
            return self._wrong(base, SCOPE_CONNECTION, COMPRESSION_ERROR)
        self.text_top = self._fields[fields + FIELDS_TEXT_END]
        if self._fields[fields + FIELDS_UPDATES] > 0:
            self.updates += self._fields[fields + FIELDS_UPDATES]
            self.is_noted = True
        if found is not None:
            return self._trailers(base, found, status)
        if number <= self.last or number % 2 == 0:
            return False
        self.last = number
        return self._open(base, status, self._fields[fields + FIELDS_CONTENT_LENGTH])

    @cython.cfunc
    def _open(self, base: cython.Py_ssize_t, status: cython.int, content_length: cython.longlong) -> cython.bint:
        rows: cython.longlong[::1] = self._rows
        number: cython.longlong = rows[base + ROW_STREAM]
        is_end: cython.bint = rows[base + ROW_END] != 0
        if self.last_announced >= 0:
            self._close(number, STATE_RESET_BY_US)  # it is not handled, as GOAWAY has said
            return True
        if rows[base + ROW_SCOPE] != SCOPE_NONE:
            return False
        if len(self._living) >= self._streams_max:
            return self._wrong(base, SCOPE_STREAM, REFUSED_STREAM)
        if status & BLOCK_TOO_LARGE:
            return self._wrong(base, SCOPE_STREAM, NO_ERROR)
        if status or (is_end and content_length > 0):
            return self._wrong(base, SCOPE_STREAM, PROTOCOL_ERROR)
        self._living[number] = Stream(
            number,
            STATE_HALF_CLOSED_REMOTE if is_end else STATE_OPEN,
            self.first_window,
            self._stream_window,
            content_length,
            self.now_ms,
        )
        if not is_end:
            self.unended_count += 1
        self.earned += EARNED_BY_REQUEST
        rows[base + ROW_KIND] = KIND_REQUEST
        return True

    @cython.cfunc
    def _trailers(self, base: cython.Py_ssize_t, stream: Stream, status: cython.int) -> cython.bint:
        rows: cython.longlong[::1] = self._rows
        if stream.state == STATE_HALF_CLOSED_REMOTE:
            return False
        if rows[base + ROW_SCOPE] != SCOPE_NONE or status or not rows[base + ROW_END] or stream.body_left > 0:
            return self._wrong(base, SCOPE_STREAM, PROTOCOL_ERROR)
        rows[base + ROW_KIND] = KIND_TRAILERS
        self._end(stream)
        return True

    @cython.cfunc
    def _data(self, base: cython.Py_ssize_t) -> cython.bint:
        """Handles DATA; false if it is wrong, or its stream takes none."""
        rows: cython.longlong[::1] = self._rows
        flow: cython.longlong = rows[base + ROW_FLOW]
        length: cython.longlong = rows[base + ROW_LENGTH]
        self.receive_window -= flow
        if self.receive_window < 0:
            return self._wrong(base, SCOPE_CONNECTION, FLOW_CONTROL_ERROR)
        found = self._living.get(rows[base + ROW_STREAM])
        if found is None:
            return False
        stream: Stream = found
        if stream.state == STATE_HALF_CLOSED_REMOTE:
            return False
        stream.receive_window -= flow
        if stream.receive_window < 0:
            return self._wrong(base, SCOPE_STREAM, FLOW_CONTROL_ERROR)
        if stream.body_left >= 0:
            stream.body_left -= length
            if stream.body_left < 0 or (rows[base + ROW_END] and stream.body_left > 0):
                return self._wrong(base, SCOPE_STREAM, PROTOCOL_ERROR)
        rows[base + ROW_KIND] = KIND_DATA
        self.held_bytes += length
        if rows[base + ROW_END]:
            self._end(stream)
        elif length == 0:
            self.empty_frames += 1
            self.is_noted = True
        elif length < self._small_bytes:
            self.small_frames += 1
            self.is_noted = True
        if length > 0:
            self.earned += EARNED_BY_DATA
        if flow > length:
            self._announce(stream, flow - length)
        return True

    @cython.cfunc
    def _end(self, stream: Stream):
        """Notes that the peer has ended a stream."""
        self.unended_count -= 1
        if stream.state == STATE_HALF_CLOSED_LOCAL:
            stream.state = STATE_CLOSED
            self._close(stream.number, STATE_CLOSED)
        else:
            stream.state = STATE_HALF_CLOSED_REMOTE

    @cython.cfunc
    def _wrong(self, base: cython.Py_ssize_t, scope: cython.int, code: cython.int) -> cython.bint:
        """Says in a row what is wrong with its frame; returns False."""
        self._rows[base + ROW_SCOPE] = scope
        self._rows[base + ROW_CODE] = code
        return False

    def acknowledge(self, number: cython.longlong, count: cython.longlong) -> None:
        """Lets the peer send as many bytes more. Each byte of DATA is acknowledged once, also of streams that are gone.

        Args:
            number: the stream of the bytes.
            count: number of bytes.

        Raises:
            ValueError: fewer bytes were handed over.
        """
        if not 0 <= count <= self.held_bytes:
            raise ValueError(f"{count} bytes cannot be acknowledged, {self.held_bytes} were handed over")
        self.held_bytes -= count
        found = self._living.get(number)
        if found is None:
            self.discard(count)
        else:
            self._announce(found, count)

    def discard(self, count: cython.longlong) -> None:
        """Lets the peer send as many bytes more, on other streams."""
        self.unannounced += count
        if self.unannounced >= self._connection_window // 2:
            self.receive_window += self.unannounced
            self.control(_head(4, TYPE_WINDOW_UPDATE, 0, 0, self.unannounced))
            self.unannounced = 0

    @cython.cfunc
    def _announce(self, stream: Stream, count: cython.longlong):
        self.discard(count)
        if stream.state >= STATE_HALF_CLOSED_REMOTE:
            return
        stream.unannounced += count
        if stream.unannounced >= self._stream_window // 2:
            stream.receive_window += stream.unannounced
            self.control(_head(4, TYPE_WINDOW_UPDATE, 0, stream.number, stream.unannounced))
            stream.unannounced = 0

    # --- sending

    def control(self, frame: bytes) -> None:
        """Sends a frame that needs no window; nothing after the end of the connection."""
        if self.is_over:
            return
        self._chunks.append(frame)
        self.control_bytes += len(frame)
        self.is_noted = True

    def data_to_send(self) -> bytes:
        """Returns the bytes that go to the peer now; the owner sends them in this order."""
        taken = b"".join(self._chunks)
        self._chunks.clear()
        self.control_bytes = 0
        return taken

    @property
    def ready_bytes(self) -> int:
        """Number of bytes that ``data_to_send`` would return."""
        return sum(map(len, self._chunks))

    def send_headers(self, number: cython.longlong, block: bytes, end_stream: cython.bint = False) -> None:
        """Sends a block from ``encode_block``, behind all that waits on the stream. Does nothing if the stream is gone.

        Args:
            number: the stream.
            block: the whole block.
            end_stream: whether the answer ends with it.

        Raises:
            ValueError: the owner has ended the stream.
        """
        found = self._living.get(number)
        if found is None or self.is_over:
            return
        stream: Stream = found
        self._check_open(stream)
        stream.is_ended = end_stream
        self.earned += EARNED_BY_REQUEST
        if stream._queue:
            self._enqueue(stream, block, True, end_stream)
            return
        self._put_block(number, block, end_stream)
        if end_stream:
            self._end_local(stream)

    def send_data(self, number: cython.longlong, data, end_stream: cython.bint = False) -> None:
        """Sends bytes; what the windows do not allow waits. Does nothing if the stream is gone.

        Args:
            number: the stream.
            data: bytes, which must not change until they have gone out.
            end_stream: whether the answer ends with them.

        Raises:
            ValueError: the owner has ended the stream.
        """
        size: cython.Py_ssize_t = len(data)
        found = self._living.get(number)
        if found is None or self.is_over:
            return
        stream: Stream = found
        self._check_open(stream)
        stream.is_ended = end_stream
        if stream._queue or size > stream.send_window or size > self.window or size > self.frame_bytes_max:
            self._enqueue(stream, memoryview(data), False, end_stream)
            self._pump(stream, 1 << 30)
            return
        self._put_data(stream, data, end_stream)
        self.earned += EARNED_BY_DATA
        if end_stream:
            self._end_local(stream)

    def send_refusal(self, number: cython.longlong, block: bytes) -> None:
        """Sends a block that is the whole answer on a stream that was not opened."""
        self._put_block(number, block, True)

    def queued_bytes(self, number: cython.longlong = 0) -> int:
        """Returns how many bytes wait for the windows of the peer, on one stream or on all."""
        found = self._living.get(number)
        if found is None:
            return 0 if number else self._queued
        stream: Stream = found
        return stream.queued_bytes

    def open_window(self, increment: cython.longlong) -> None:
        """Enlarges the window of the connection, and sends what fits: one frame of each stream in turn."""
        self.window += increment
        while self.window > 0 and self._waiting:
            _, found = self._waiting.popitem(last=False)
            stream: Stream = found
            self._pump(stream, 1)
            self._note_drained(stream)

    def open_stream_window(self, stream: Stream, increment: cython.longlong) -> None:
        """Enlarges the window of a stream, and sends what fits."""
        stream.send_window += increment
        if stream._queue and increment > 0:
            self._pump(stream, 1 << 30)
            self._note_drained(stream)

    def set_first_window(self, size: cython.longlong) -> None:
        """Changes the windows of all streams by the difference to the first window so far (RFC 9113 6.9.2)."""
        change: cython.longlong = size - self.first_window
        self.first_window = size
        for stream in self.streams():
            self.open_stream_window(stream, change)

    def take_drained(self, count: cython.Py_ssize_t) -> list[tuple[int, bool]]:
        """Returns number and end of at most ``count`` streams whose queues have become empty, each once."""
        drained = self._drained[:count]
        del self._drained[:count]
        self.is_noted = len(self._drained) > 0
        return drained

    @cython.cfunc
    def _note_drained(self, stream: Stream):
        if not stream._queue:
            self._drained.append((stream.number, stream.is_ended))
            self.is_noted = True

    @cython.cfunc
    def _check_open(self, stream: Stream):
        if stream.is_ended:
            raise ValueError(f"the answer on stream {stream.number} has ended")

    @cython.cfunc
    def _put_block(self, number: cython.longlong, block: bytes, end_stream: cython.bint):
        flags: cython.int = FLAG_END_STREAM if end_stream else 0
        kind: cython.int = TYPE_HEADERS
        at: cython.Py_ssize_t = 0
        if not self._has_sent_block:
            self._has_sent_block = True
            block = NO_TABLE + block
        size: cython.Py_ssize_t = len(block)
        while size - at > self.frame_bytes_max:
            part: bytes = block[at : at + self.frame_bytes_max]
            self._chunks.append(_head(len(part), kind, flags, number) + part)
            at += len(part)
            kind, flags = TYPE_CONTINUATION, 0
        self._chunks.append(_head(size - at, kind, flags | FLAG_END_HEADERS, number) + (block[at:] if at else block))

    @cython.cfunc
    def _put_data(self, stream: Stream, data, end_stream: cython.bint):
        size: cython.Py_ssize_t = len(data)
        head: bytes = _head(size, TYPE_DATA, FLAG_END_STREAM if end_stream else 0, stream.number)
        stream.send_window -= size
        self.window -= size
        if size <= _COPIED_BYTES_MAX:
            self._chunks.append(head + data)
        else:
            self._chunks.append(head)
            self._chunks.append(data)

    @cython.cfunc
    def _enqueue(self, stream: Stream, data, is_block: cython.bint, end_stream: cython.bint):
        if stream._queue is None:
            stream._queue = deque()
        stream._queue.append((data, is_block, end_stream))
        stream.queued_bytes += len(data)
        self._queued += len(data)

    @cython.cfunc
    def _pump(self, stream: Stream, frames: cython.longlong):
        """Sends at most so many frames of what waits on a stream."""
        size: cython.longlong
        queue = stream._queue
        while queue and frames > 0:
            data, is_block, end_stream = queue[0]
            size = len(data)
            if not is_block:
                size = min(size, stream.send_window, self.window, self.frame_bytes_max)
                if size <= 0 and len(data) > 0:
                    break
            frames -= 1
            stream.queued_bytes -= size
            stream.drained_bytes += size
            self.drained_bytes += size
            self._queued -= size
            if size < len(data):
                self._put_data(stream, data[:size], False)
                if size >= self._small_bytes:  # a peer that opens its window byte by byte earns nothing
                    self.earned += EARNED_BY_DATA
                queue[0] = (data[size:], False, end_stream)
                continue
            queue.popleft()
            if is_block:
                self._put_block(stream.number, data, end_stream)
            else:
                self._put_data(stream, data, end_stream)
                self.earned += EARNED_BY_DATA
            if end_stream:
                self._end_local(stream)
        if queue and stream.send_window > 0:
            self._waiting[stream.number] = stream

    @cython.cfunc
    def _end_local(self, stream: Stream):
        """Notes that END_STREAM has gone out."""
        if stream.state == STATE_HALF_CLOSED_REMOTE:
            stream.state = STATE_CLOSED
            self._close(stream.number, STATE_CLOSED)
        else:
            stream.state = STATE_HALF_CLOSED_LOCAL
