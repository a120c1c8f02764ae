"""One connection of a server as a state machine (RFC 9113), without I/O and without a clock.

The owner of a socket does, for each read::

    count = socket.recv_into(connection.buffer())
    rows = connection.received(count, now_ms)
    while rows:
        ...  # the rows of connection.space.rows; connection.send_headers(), send_data(), acknowledge(), reset()
        rows = connection.more(now_ms)
    socket.send(connection.data_to_send())

What the protocol demands is sent by the connection itself: SETTINGS and its answers, answers to PING, RST_STREAM for
errors of a stream, GOAWAY for errors of the connection. Bytes of DATA are handed over as they come. The owner
acknowledges them when it has room for more; until then they count against the windows.

While its socket takes no bytes, the owner does not call ``data_to_send``. ``queued_bytes`` says what waits for the
windows of the peer.
"""

from __future__ import annotations

from array import array

from rucola.http2 import frames
from rucola.http2._exchange_cy import StreamExchange
from rucola.http2.columns import (
    ROW_CODE,
    ROW_COLUMNS,
    ROW_END,
    ROW_FLAGS,
    ROW_FLOW,
    ROW_KIND,
    ROW_LENGTH,
    ROW_POSITION,
    ROW_SCOPE,
    ROW_START,
    ROW_STREAM,
    ROW_TYPE,
    EventKind,
    Scope,
)
from rucola.http2.event_space import ROWS_MAX, EventSpace
from rucola.http2.frames import ErrorCode, FrameType, Setting
from rucola.http2.hpack import HeaderDecoder, encode_block
from rucola.http2.limits import SETTINGS_COST, UPDATE_COST, Allowance, Http2Limits
from rucola.http2.receive_buffer import ReceiveBuffer
from rucola.http2.streams import RECEIVED, StreamState

_TOO_LARGE = encode_block([(b":status", b"431")])


class _Block:
    """A header block whose last frame has not come."""

    __slots__ = ("data", "end", "frames", "scope", "stream")

    def __init__(self, stream: int, end: int, scope: int, data: bytearray) -> None:
        self.stream, self.end, self.scope, self.data, self.frames = stream, end, scope, data, 0


class Http2Connection(StreamExchange):
    """A connection from a client. ``StreamExchange`` has its streams, and the methods that send and acknowledge.

    Args:
        space: the memory for events, which connections may share. It says which fields are wanted.
        limits: what the peer is allowed.

    Attributes:
        space: as given.
    """

    __slots__ = (
        "_allowed_control",
        "_allowed_forced",
        "_allowed_quick",
        "_allowed_small",
        "_block_begun",
        "_buffer",
        "_header_decoder",
        "_is_greeted",
        "_is_settled",
        "_limits",
        "space",
    )

    def __init__(self, space: EventSpace, limits: Http2Limits) -> None:
        decoder = HeaderDecoder(space.names, limits.table_bytes, limits.list_bytes_max, space.text, space.fields)
        super().__init__(
            decoder,
            space.rows,
            space.fields,
            ROWS_MAX,
            limits.frame_bytes_max,
            space.width,
            len(space.text),
            limits.streams_max,
            limits.stream_window_bytes,
            limits.connection_window_bytes,
            limits.small_frame_bytes,
        )
        self.space, self._limits, self._header_decoder = space, limits, decoder
        self._allowed_control, self._allowed_small = Allowance(limits.control_frames), Allowance(limits.small_frames)
        self._allowed_quick, self._allowed_forced = Allowance(limits.quick_resets), Allowance(limits.forced_resets)
        self._buffer = ReceiveBuffer(limits.frame_bytes_max + frames.HEAD_BYTES)
        self._block_begun: _Block | None = None
        self._is_greeted = self._is_settled = False

    # --- what the owner calls

    def buffer(self) -> memoryview:
        """Returns the memory into which the owner reads next. The events of the last read are no longer valid."""
        return self._buffer.room()

    @property
    def is_settled(self) -> bool:
        """Whether the peer's preface is complete, with its SETTINGS."""
        return self._is_settled

    @property
    def begun_bytes(self) -> int:
        """Number of bytes of a frame, or of a header block, that is not complete."""
        block = self._block_begun
        return self._buffer.end - self._buffer.start + (0 if block is None else len(block.data) + 1)

    @property
    def source(self) -> bytearray:
        """The bytes that positions of DATA and NOT_HTTP2 refer to; other ones after each ``buffer()``."""
        return self._buffer.source

    @property
    def has_rest(self) -> bool:
        """Whether bytes of the last read wait for ``more``; they may be the beginning of a frame."""
        buffer = self._buffer
        return buffer.start < buffer.end

    def keep(self, count: int) -> None:
        """Keeps ``count`` bytes that were written to ``buffer()`` for ``more``, which must come before ``buffer()``."""
        self._buffer.add(count)

    def received(self, count: int, now_ms: int) -> int:
        """Handles ``count`` bytes that were written to ``buffer()``; returns the number of rows in ``space.rows``.

        Args:
            count: number of bytes.
            now_ms: the time, from any clock that does not go back.
        """
        self._buffer.add(count)
        return self.more(now_ms)

    def more(self, now_ms: int) -> int:
        """Handles what remains of the last read; 0 if nothing does. Call it until then. The earlier rows are gone.

        Args:
            now_ms: the time, from the same clock.
        """
        buffer, rows = self._buffer, self.space.rows
        if buffer.start == buffer.end and not self.is_noted:
            return 0
        if self.is_over:
            buffer.drop()
            return 0
        self.now_ms = now_ms
        if not self._is_greeted and not self._greet():
            return int(self.is_over)
        row: int = self.read(buffer.source, buffer.start, buffer.end)
        count: int = self.row_count
        buffer.start = self.position
        while row < count:
            base = row * ROW_COLUMNS
            if rows[base + ROW_TYPE] in _WITH_TEXT and not self.has_text():
                count, buffer.start = row, rows[base + ROW_START]
                break
            self._handle_other(base)
            row += 1
            if self.is_over:
                return row
            if self.is_plain:
                row = self.handle(buffer.source, row)
        return self._finish(count) if self.is_noted else count

    def reset(self, stream: int, code: int) -> None:
        """Ends a stream at once; what waits on it is dropped. Does nothing if the stream is gone."""
        if self.stream(stream) is not None and not self.is_over:
            self.control(frames.rst_stream(stream, code))
            self.close_stream(stream, StreamState.RESET_BY_US)

    def shut_down(self) -> None:
        """Announces that no new streams are handled (GOAWAY); those that are open go on."""
        if self.last_announced < 0 and not self.is_over:
            self.last_announced = self.last
            self.control(frames.goaway(self.last, ErrorCode.NO_ERROR))

    def close(self, code: int, debug: bytes = b"") -> None:
        """Ends the connection with GOAWAY. What comes later is not handled, and nothing else is sent.

        Args:
            code: an ``ErrorCode``.
            debug: a text for the peer's log.
        """
        if not self.is_over:
            last = self.last if self.last_announced < 0 else self.last_announced
            self.control(frames.goaway(last, code, debug))
            self.is_over = True

    # --- frames

    def _handle_other(self, base: int) -> None:
        """Handles a frame that is no usual part of a request, or that is wrong."""
        rows = self.space.rows
        kind = rows[base + ROW_TYPE]
        if not self._is_in_order(base, kind):
            self._fail(base, ErrorCode.PROTOCOL_ERROR)
        elif rows[base + ROW_SCOPE] == Scope.CONNECTION:
            self._fail(base, rows[base + ROW_CODE])
        elif kind < len(_HANDLERS):
            _HANDLERS[kind](self, base)
        elif not self._may(1):
            self._calm(base, "unknown frames")

    def _is_in_order(self, base: int, kind: int) -> bool:
        """Whether nothing comes between the frames of a block, and SETTINGS come first (RFC 9113 3.4, 6.10)."""
        if not self._is_settled:
            return kind == FrameType.SETTINGS and not self.space.rows[base + ROW_FLAGS] & frames.FLAG_ACK
        return (kind == FrameType.CONTINUATION) is (self._block_begun is not None)

    def _finish(self, count: int) -> int:
        """Checks what was counted while the rows were handled, and adds a row for each stream that has drained."""
        if count and (what := self._excess()):
            self._calm((count - 1) * ROW_COLUMNS, what)
            return count
        rows = self.space.rows
        for number, end in self.take_drained(ROWS_MAX):
            base = count * ROW_COLUMNS
            rows[base : base + ROW_COLUMNS] = _EMPTY_ROW
            rows[base + ROW_KIND], rows[base + ROW_STREAM], rows[base + ROW_END] = EventKind.WINDOW, number, end
            count += 1
        return count

    def _excess(self) -> str:
        """Returns what there was too much of; empty if all is well."""
        if self.updates or self.empty_frames or self.small_frames:
            updates, empty, small = self.updates, self.empty_frames, self.small_frames
            self.updates = self.empty_frames = self.small_frames = 0
            if not self._may(updates * UPDATE_COST + empty):
                return "empty frames, or sizes of the header table"
            if not self._allowed_small.take(self.now_ms, small):
                return "small frames"
        return "answers that are not read" if self.control_bytes > self._limits.unsent_bytes_max else ""

    def _may(self, count: int) -> bool:
        """Whether the peer may send so many more control frames."""
        if self.earned >= count:
            self.earned -= count
            return True
        return self._allowed_control.take(self.now_ms, count)

    def _fail(self, base: int, code: int, debug: bytes = b"") -> None:
        """Ends the connection for an error of the peer, and tells the owner in this row."""
        rows = self.space.rows
        rows[base + ROW_KIND], rows[base + ROW_STREAM], rows[base + ROW_CODE] = EventKind.CLOSED, 0, code
        self.close(code, debug)

    def _calm(self, base: int, what: str) -> None:
        self._fail(base, ErrorCode.ENHANCE_YOUR_CALM, f"too many: {what}".encode())

    def _reset_stream(self, base: int, number: int, code: int) -> None:
        """Ends a stream for an error of the peer, and tells the owner in this row if it knows the stream."""
        rows = self.space.rows
        if self.stream(number) is not None:
            rows[base + ROW_KIND], rows[base + ROW_STREAM], rows[base + ROW_CODE] = EventKind.RESET, number, code
        elif self._state(number) == StreamState.IDLE:
            self._fail(base, code)  # nothing may be sent on an idle stream
            return
        self.control(frames.rst_stream(number, code))
        self.close_stream(number, StreamState.RESET_BY_US)
        if not self._allowed_forced.take(self.now_ms, 1):
            self._calm(base, "errors in streams")

    def _state(self, number: int) -> StreamState:
        if (stream := self.stream(number)) is not None:
            return StreamState(stream.state)
        if number > self.last or number % 2 == 0:
            return StreamState.IDLE
        return StreamState(self.closed_state(number) or StreamState.FORGOTTEN)

    def _is_taken(self, base: int, kind: FrameType) -> bool:
        """Whether the stream of this frame takes it now; deals with it if not."""
        number = self.space.rows[base + ROW_STREAM]
        verdict = RECEIVED[self._state(number), kind]
        if verdict.scope == Scope.CONNECTION:
            self._fail(base, verdict.code)
        elif verdict.scope == Scope.STREAM:
            self._reset_stream(base, number, verdict.code)
        return verdict.is_taken

    def _greet(self) -> bool:
        """Whether the preface is complete; answers it with our SETTINGS."""
        buffer, rows, limits = self._buffer, self.space.rows, self._limits
        got = bytes(buffer.source[buffer.start : min(buffer.end, buffer.start + len(frames.PREFACE))])
        if not frames.PREFACE.startswith(got):
            rows[:ROW_COLUMNS] = _EMPTY_ROW
            rows[ROW_KIND], rows[ROW_LENGTH] = EventKind.NOT_HTTP2, buffer.end
            self.is_over = True
        if got != frames.PREFACE:
            return False
        buffer.start += len(got)
        self._is_greeted = True
        settings = [
            (Setting.HEADER_TABLE_SIZE, limits.table_bytes),
            (Setting.MAX_CONCURRENT_STREAMS, limits.streams_max),
            (Setting.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (Setting.MAX_FRAME_SIZE, limits.frame_bytes_max),
            (Setting.MAX_HEADER_LIST_SIZE, limits.list_bytes_max),
        ]
        self.control(frames.settings_frame(settings))
        if limits.connection_window_bytes > frames.WINDOW_DEFAULT:
            self.control(frames.window_update(0, limits.connection_window_bytes - frames.WINDOW_DEFAULT))
        return True

    def _on_data(self, base: int) -> None:
        """Handles DATA that ``handle`` did not take."""
        rows = self.space.rows
        self.discard(rows[base + ROW_FLOW])
        if rows[base + ROW_SCOPE]:
            self._reset_stream(base, rows[base + ROW_STREAM], rows[base + ROW_CODE])
        elif self._is_taken(base, FrameType.DATA) or self._allowed_small.take(self.now_ms, 1):
            return
        elif not self.is_over:
            self._calm(base, "DATA of streams that were reset")

    def _on_headers(self, base: int) -> None:
        rows = self.space.rows
        start = rows[base + ROW_POSITION]
        end = start + rows[base + ROW_LENGTH]
        if not rows[base + ROW_FLAGS] & frames.FLAG_END_HEADERS:
            number, is_end, scope = rows[base + ROW_STREAM], rows[base + ROW_END], rows[base + ROW_SCOPE]
            self._block_begun = _Block(number, is_end, scope, self._buffer.source[start:end])
            self.is_plain = False
        elif not self.block(self._buffer.source, base, start, end):
            self._refuse_block(base)

    def _on_continuation(self, base: int) -> None:
        rows, block, limits = self.space.rows, self._block_begun, self._limits
        assert block is not None
        if rows[base + ROW_STREAM] != block.stream:
            self._fail(base, ErrorCode.PROTOCOL_ERROR)
            return
        start = rows[base + ROW_POSITION]
        block.data += self._buffer.source[start : start + rows[base + ROW_LENGTH]]
        block.frames += 1
        if block.frames > limits.continuations_max or len(block.data) > limits.block_bytes_max:
            self._calm(base, "frames of a header block")
        elif rows[base + ROW_FLAGS] & frames.FLAG_END_HEADERS:
            self._block_begun, self.is_plain = None, True
            rows[base + ROW_END], rows[base + ROW_SCOPE] = block.end, block.scope
            rows[base + ROW_CODE] = ErrorCode.PROTOCOL_ERROR if block.scope else ErrorCode.NO_ERROR
            if not self.block(block.data, base, 0, len(block.data)):
                self._refuse_block(base)

    def _refuse_block(self, base: int) -> None:
        """Deals with a header block that is wrong, or that its stream does not take."""
        rows = self.space.rows
        number, scope, code = rows[base + ROW_STREAM], rows[base + ROW_SCOPE], rows[base + ROW_CODE]
        if scope == Scope.CONNECTION:
            self._fail(base, code)
        elif number % 2 == 0:
            self._fail(base, ErrorCode.PROTOCOL_ERROR)  # clients open streams with odd numbers
        elif scope == Scope.STREAM:
            if code == ErrorCode.NO_ERROR:
                self.send_refusal(number, _TOO_LARGE)
            self._reset_stream(base, number, code)
        else:
            self._is_taken(base, FrameType.HEADERS)

    def _on_window_update(self, base: int) -> None:
        rows = self.space.rows
        number, increment = rows[base + ROW_STREAM], rows[base + ROW_LENGTH]
        if not self._may(1):
            self._calm(base, "WINDOW_UPDATE")
        elif not number:
            if self.window + increment > frames.WINDOW_MAX:
                self._fail(base, ErrorCode.FLOW_CONTROL_ERROR)
            else:
                self.open_window(increment)
        elif self._is_taken(base, FrameType.WINDOW_UPDATE):
            stream = self.stream(number)
            if rows[base + ROW_SCOPE]:
                self._reset_stream(base, number, rows[base + ROW_CODE])
            elif stream.send_window + increment > frames.WINDOW_MAX:
                self._reset_stream(base, number, ErrorCode.FLOW_CONTROL_ERROR)
            else:
                self.open_stream_window(stream, increment)

    def _on_priority(self, base: int) -> None:
        rows = self.space.rows
        if not self._may(1):
            self._calm(base, "PRIORITY")
        elif rows[base + ROW_SCOPE]:
            self._reset_stream(base, rows[base + ROW_STREAM], rows[base + ROW_CODE])

    def _on_rst_stream(self, base: int) -> None:
        rows = self.space.rows
        number = rows[base + ROW_STREAM]
        if not self._may(1):
            self._calm(base, "RST_STREAM")
        elif self._is_taken(base, FrameType.RST_STREAM):
            is_quick = self.now_ms - self.stream(number).opened_ms < self._limits.quick_reset_ms
            rows[base + ROW_KIND] = EventKind.RESET
            self.close_stream(number, StreamState.RESET_BY_PEER)
            if is_quick and not self._allowed_quick.take(self.now_ms, 1):
                self._calm(base, "quick resets")

    def _on_settings(self, base: int) -> None:
        rows = self.space.rows
        self._is_settled = self.is_plain = True
        start = rows[base + ROW_POSITION]
        pairs = list(frames.settings_of(self._buffer.source[start : start + rows[base + ROW_LENGTH]]))
        if not self._may(SETTINGS_COST + len(pairs)):
            self._calm(base, "SETTINGS")
            return
        if rows[base + ROW_FLAGS] & frames.FLAG_ACK:
            self._header_decoder.set_limit(self._limits.table_bytes)
            return
        for name, value in pairs:
            if code := frames.error_of_setting(name, value):
                self._fail(base, code)
                return
        # The peer applies them when it gets this, and larger windows let data go out at once.
        self.control(frames.SETTINGS_ACK)
        for name, value in dict(pairs).items():  # each once, as a window takes a step for each stream
            if name == Setting.MAX_FRAME_SIZE:
                self.frame_bytes_max = value
            elif name == Setting.INITIAL_WINDOW_SIZE and not self._set_first_window(value):
                self._fail(base, ErrorCode.FLOW_CONTROL_ERROR)
                return

    def _set_first_window(self, size: int) -> bool:
        """Changes the windows of all streams; false if one would become too large."""
        change = size - self.first_window
        if any(stream.send_window + change > frames.WINDOW_MAX for stream in self.streams()):
            return False
        self.set_first_window(size)
        return True

    def _on_ping(self, base: int) -> None:
        rows = self.space.rows
        if not self._may(1):
            self._calm(base, "PING")
        elif not rows[base + ROW_FLAGS] & frames.FLAG_ACK:
            start = rows[base + ROW_POSITION]
            self.control(frames.ping_ack(bytes(self._buffer.source[start : start + 8])))

    def _on_goaway(self, base: int) -> None:
        rows = self.space.rows
        start = rows[base + ROW_POSITION]
        rows[base + ROW_LENGTH], rows[base + ROW_CODE] = frames.goaway_of(self._buffer.source[start : start + 8])
        rows[base + ROW_KIND] = EventKind.GOAWAY
        if not self._may(1):
            self._calm(base, "GOAWAY")


_EMPTY_ROW = array("q", bytes(8 * ROW_COLUMNS))
_WITH_TEXT = (FrameType.HEADERS, FrameType.CONTINUATION)
_HANDLERS = (
    Http2Connection._on_data,
    Http2Connection._on_headers,
    Http2Connection._on_priority,
    Http2Connection._on_rst_stream,
    Http2Connection._on_settings,
    Http2Connection._on_priority,  # PUSH_PROMISE, which never comes here: it is an error of the connection
    Http2Connection._on_ping,
    Http2Connection._on_goaway,
    Http2Connection._on_window_update,
    Http2Connection._on_continuation,
)
"""What handles a frame, by its type."""
