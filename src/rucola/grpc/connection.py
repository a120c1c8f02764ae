"""One connection of a gRPC client: bytes become calls, and what handlers answer becomes bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from itertools import islice
from typing import TYPE_CHECKING, cast

from rucola.common.hosts import join_address
from rucola.grpc import metadata
from rucola.grpc.call import GrpcCall, GrpcPeer
from rucola.grpc.methods import Method, UnaryMethod
from rucola.grpc.status import GrpcError, StatusCode, trailers
from rucola.grpc.unwritten import UnwrittenAnswers
from rucola.http2.columns import (
    FIELD_COLUMNS,
    FIELD_ENTRY,
    FIELDS_WANTED,
    ROW_CODE,
    ROW_COLUMNS,
    ROW_END,
    ROW_FIELDS,
    ROW_KIND,
    ROW_LENGTH,
    ROW_POSITION,
    ROW_STREAM,
    EventKind,
)
from rucola.http2.connection import Http2Connection
from rucola.http2.frames import ErrorCode
from rucola.http2.hpack import encode_block
from rucola.remoting.channel import stored_host
from rucola.remoting.fairness.connection_watch import ConnectionProgress
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.grpc.server import GrpcServer
    from rucola.grpc.stream_watch import StreamWatch

logger = logging.getLogger(__name__)

_METHOD_ENTRY, _PATH_ENTRY, _TYPE_ENTRY = (
    FIELDS_WANTED + place * FIELD_COLUMNS + FIELD_ENTRY
    for place in (metadata.METHOD, metadata.PATH, metadata.CONTENT_TYPE)
)
_PREFIX_BYTES = 5
_GENTLE_S = 1.0
_LOST_S = 1.0
"""How long after its end a transport may say that it has ended; uvloop sometimes does not."""
_KNOWN_MAX = 64
_ENDED_AT_ONCE = 64
"""Number of calls of a lost connection that are ended before the time of the turn is looked at."""
_UNREAD_BYTES_MAX = 256 * 1024
"""While a client reads nothing from its socket, so many bytes of answers wait before we read nothing from it either."""
_REQUEST, _DATA, _TRAILERS = int(EventKind.REQUEST), int(EventKind.DATA), int(EventKind.TRAILERS)
_RESET, _NOT_HTTP2, _CLOSED = int(EventKind.RESET), int(EventKind.NOT_HTTP2), int(EventKind.CLOSED)
_HELLO = encode_block([(b":status", b"200"), (b"content-type", b"text/plain")])
_NOT_FOUND = encode_block([(b":status", b"404")])
_NOT_ALLOWED = encode_block([(b":status", b"405"), (b"allow", b"POST")])
_NOT_GRPC = encode_block([(b":status", b"415")])
_NO_HTTP2 = b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class GrpcConnection(asyncio.BufferedProtocol):
    """A connection. Event loop only.

    Args:
        server: the server that accepted it.

    Attributes:
        active_ms: when a byte was last received or sent.
        http2: its HTTP/2 side.
        peer: the client.
        host: its address, as records have it.
        progress: for ``ConnectionWatch``.
        held_bytes: bytes of requests that are not complete.
        stream_count: open streams, as counted after the last read or write.
        unsent_bytes: bytes of answers that the client does not take, counted likewise.
        unwritten: answers of which their callers want to know whether the client takes them.
    """

    def __init__(self, server: GrpcServer) -> None:
        self.http2 = Http2Connection(server.space, server.options.http2)
        self.peer, self.host = GrpcPeer(), b""
        self.active_ms = server.now_ms()
        self.progress = ConnectionProgress(self.active_ms / 1000)
        self.held_bytes = self.unsent_bytes = self.stream_count = 0
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, GrpcCall] = {}
        self._talks: dict[int, bool] = {}
        """The streams with any number of requests, until their client ends them, and whether a request was completed
        since the last look of ``TimeLimits``.
        """
        self.unwritten = UnwrittenAnswers()
        self._known: dict[tuple[int, int, int], Method] = {}
        self._is_reading = self._is_paused = self._is_flushing = self._is_unread = self._is_postponed = False
        self._cutting: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Address of the client, ``host:port``."""
        return self.peer.address

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the connection."""
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is of no class of asyncio
        peer = transport.get_extra_info("peername")
        self.host = stored_host(peer if isinstance(peer, tuple) else None)
        address = join_address(*peer[:2]) if isinstance(peer, tuple) else ""
        self.peer = GrpcPeer(address, transport.get_extra_info("ssl_object") is not None)
        used = transport.get_extra_info("socket")
        self._server.opened(self, -1 if used is None else used.fileno())

    def connection_lost(self, error: Exception | None) -> None:
        """Ends all calls."""
        if self._transport is None:
            return  # it was given up
        self.peer.ended_s = self._server.now_ms() / 1000
        self._transport = None
        if self._cutting is not None:
            self._cutting.cancel()
        self._end_calls()

    def _end_calls(self) -> None:
        """Ends the calls of a lost connection, as many as the turn has time for; the others in later turns."""
        server = self._server
        while self._calls:
            for call in list(islice(self._calls.values(), _ENDED_AT_ONCE)):
                self._abandon(call)
            if self._calls and server.turn.note_request(server.loop):
                server.postponed.add(self._end_calls, server.loop, begun=True, costly=False)
                return
        self.unwritten.close()
        server.lost(self)
        server.note(-self.unsent_bytes, -self.stream_count)
        self.unsent_bytes = self.stream_count = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory into which the next bytes are read."""
        while self._is_postponed:  # some transports read once more after they were told to pause
            self._is_postponed = False
            self._handle_read(self.http2.more(self._server.now_ms()))
        return self.http2.buffer()

    def buffer_updated(self, count: int) -> None:
        """Handles bytes that were read, and sends what they cause; or leaves them to a later turn."""
        server = self._server
        self.active_ms = now_ms = server.now_ms()
        if server.turn.note_read(server.loop):
            self.http2.keep(count)
            self._postpone(begun=False)
        else:
            self._handle_read(self.http2.received(count, now_ms))

    def _handle_read(self, rows: int) -> None:
        """Handles what was read, ``rows`` rows first, as long as the turn has time; the rest waits for a later turn."""
        server, http2 = self._server, self.http2
        turn, loop = server.turn, server.loop
        now_ms, must_wait = http2.now_ms, False
        self._is_reading = True
        try:
            while rows:
                self.progress.framed = True
                self._handle(rows)
                if must_wait := http2.has_rest and turn.note_request(loop):
                    break
                if rows := http2.more(now_ms):  # what comes next must know how much waits already
                    self._count_pending()
        finally:
            self._is_reading = False
        self._flush()
        if http2.is_over:
            self._close_gently()
        elif must_wait:
            self._postpone(begun=True)
        elif self.is_pending:
            server.time_limits.watch(self)

    def _postpone(self, *, begun: bool) -> None:
        """Leaves what was read to a later turn, and reads no more until then."""
        if self._transport is not None and not self._transport.is_closing():
            self._is_postponed = True
            self._transport.pause_reading()
            self._server.postponed.add(self._serve_postponed, self._server.loop, begun=begun, costly=False)

    def _serve_postponed(self) -> None:
        """Handles what was left to this turn. While the client does not read its answers, it waits on."""
        transport = self._transport
        if self._is_postponed and not self._is_unread and transport is not None and not transport.is_closing():
            self._is_postponed = False
            self._handle_read(self.http2.more(self._server.now_ms()))
            self._read_again()

    def _read_again(self) -> None:
        if self.is_read and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The client does not read; answers wait."""
        self._is_paused = True
        self._server.time_limits.watch(self)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._is_paused, self.progress.caught_up = False, True
        self._flush()
        if self._transport is not None and not self._is_paused:
            self._is_unread = False
            if self._is_postponed:
                self._postpone(begun=True)
            self._read_again()

    def eof_received(self) -> bool:
        """The client is gone."""
        return False

    # --- for calls and the server

    def flush_soon(self) -> None:
        """Sends what is queued: after the current read, else in the next turn."""
        if not self._is_reading and not self._is_flushing and self._transport is not None:
            self._is_flushing = True
            self._server.loop.call_soon(self._flush)

    def forget(self, call: GrpcCall) -> None:
        """Notes that a call was answered."""
        if not call.is_new:
            self._release(call)
        del self._calls[call.stream]
        call.over()

    def expire(self, call: GrpcCall) -> None:
        """Ends a call whose deadline has passed."""
        if not call.is_over:
            call.end(StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the answer was there")
            self._tell(call)

    def shut_down(self) -> None:
        """Takes no more calls. The connection closes when those that are open have ended."""
        self.http2.shut_down()
        self._flush()
        self._close_if_done()

    def close(self) -> None:
        """Closes the connection; what was sent still goes out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once; what was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()
            if self._cutting is not None:
                self._cutting.cancel()
            self._cutting = self._server.loop.call_later(_LOST_S, self._give_up)

    def _give_up(self) -> None:
        """Forgets the connection although its transport, that of uvloop, has not said that it is closed."""
        if self._transport is not None:
            self.connection_lost(None)

    def dismiss(self, reason: str) -> None:
        """Closes the connection with GOAWAY and a text for the log of the client."""
        self.http2.close(ErrorCode.NO_ERROR, reason.encode())
        self._flush()
        self._close_gently()

    def end_slow(self, watch: StreamWatch, now_ms: int) -> None:
        """Ends streams whose client takes nothing, or sends its request too slowly."""
        for stream in watch.stalled(self.http2, now_ms):
            self.http2.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
            if (call := self._calls.get(stream)) is not None:
                self._abandon(call)
            self.unwritten.ended(stream)
        for stream, took_ms in watch.slow(self.http2, self._calls, self._talks, self.is_read, now_ms):
            if (call := self._calls.get(stream)) is None:
                self.http2.reset(stream, ErrorCode.NO_ERROR)
            else:
                text = f"only {call.held_bytes} bytes of a request in {took_ms // 1000} s"
                self.refuse(call, GrpcError(StatusCode.RESOURCE_EXHAUSTED, text))
        self._flush()

    @property
    def is_read(self) -> bool:
        """Whether the server reads what the client sends."""
        return not (self._is_unread or self._is_postponed)

    @property
    def begun_bytes(self) -> int:
        """Number of received bytes of a frame or header block that is not complete."""
        return self.http2.begun_bytes

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that the socket does not take; 0 while it takes some."""
        return self._transport.get_write_buffer_size() if self._is_paused and self._transport is not None else 0

    @property
    def is_pending(self) -> bool:
        """Whether a frame, a request or an answer is not complete."""
        http2 = self.http2
        return (
            self.unsent_bytes > 0
            or self.held_bytes > 0
            or self._is_paused
            or http2.unended_count > len(self._talks)
            or http2.begun_bytes > 0
        )

    @property
    def calls_begun(self) -> int:
        """Number of calls that the client has begun: it numbers them 1, 3, 5 and so on."""
        last: int = self.http2.last
        return (last + 1) // 2

    @property
    def largest(self) -> GrpcCall | None:
        """The call that holds most bytes of requests that are not complete."""
        return max(self._calls.values(), key=lambda call: call.held_bytes, default=None)

    def refuse(self, call: GrpcCall, error: GrpcError) -> None:
        """Ends a call with an error. What the client still sends for it is dropped."""
        call.end(error.code, error.text)
        self._tell(call)
        self.http2.reset(call.stream, ErrorCode.NO_ERROR)

    # --- events

    def _handle(self, count: int) -> None:
        rows = self.http2.space.rows
        for base in range(0, count * ROW_COLUMNS, ROW_COLUMNS):
            kind = rows[base + ROW_KIND]
            if kind == _DATA:
                self._on_data(base)
            elif kind == _REQUEST:
                self._on_request(base)
            elif kind == _TRAILERS:
                self._on_trailers(base)
            elif kind == _RESET:
                if (call := self._calls.get(rows[base + ROW_STREAM])) is not None:
                    self._abandon(call)
                self.unwritten.ended(rows[base + ROW_STREAM])
            elif kind == _NOT_HTTP2:
                self._say_no(rows[base + ROW_LENGTH])
            elif kind == _CLOSED:
                self._server.note_end(ErrorCode(rows[base + ROW_CODE]).name)

    def _on_request(self, base: int) -> None:
        http2, server = self.http2, self._server
        rows, space = http2.space.rows, http2.space
        stream, fields = rows[base + ROW_STREAM], rows[base + ROW_FIELDS]
        numbers = space.fields
        key = (numbers[fields + _METHOD_ENTRY], numbers[fields + _PATH_ENTRY], numbers[fields + _TYPE_ENTRY])
        method = self._known.get(key) or self._look_up(stream, fields, key)
        if method is None:
            return
        if server.is_crowded and (text := self._excess()):
            http2.send_headers(stream, trailers(StatusCode.RESOURCE_EXHAUSTED, text, alone=True), True)
            http2.reset(stream, ErrorCode.NO_ERROR)
            if method.outcomes is not None:
                method.outcomes.ended(StatusCode.RESOURCE_EXHAUSTED)
            return
        timeout, encoding, *wanted = space.values(fields, server.metadata_columns)
        call = GrpcCall(self, stream, method, wanted, timeout, encoding)
        self._calls[stream] = call
        if type(method) is not UnaryMethod or rows[base + ROW_END]:
            self._begin(call, rows[base + ROW_END] == 1)

    def _look_up(self, stream: int, fields: int, key: tuple[int, int, int]) -> Method | None:
        """Returns the method that a request calls; if there is none, answers it and returns None."""
        http2, value = self.http2, self.http2.space.value
        path, name = value(fields, metadata.PATH) or b"", value(fields, metadata.METHOD)
        if name != b"POST":
            self._on_page(stream, path, name)
        elif not metadata.is_grpc(value(fields, metadata.CONTENT_TYPE)):
            http2.send_headers(stream, _NOT_GRPC, True)
        elif (method := self._server.methods.get(path)) is None:
            text = f"there is no method {path.decode('ascii', 'replace')}"
            http2.send_headers(stream, trailers(StatusCode.UNIMPLEMENTED, text, alone=True), True)
            http2.reset(stream, ErrorCode.NO_ERROR)  # what the client still sends is of no use
        else:
            if min(key) >= 0:
                if len(self._known) >= _KNOWN_MAX:  # entries leave the table, and come back with another number
                    self._known.clear()
                self._known[key] = method
            return method
        return None

    def _begin(self, call: GrpcCall, is_last: bool) -> None:
        try:
            if not isinstance(call.method, UnaryMethod):
                call.conversation = call.method.begin(call)
                if not is_last and not call.is_over:
                    self._talks[call.stream] = False
                call.wait(self._server.loop)
            if is_last:
                self._take(call, b"", True)
        except GrpcError as error:
            self.refuse(call, error)
        except Exception as error:  # noqa: BLE001 - a defect of a handler must not end the connection
            self._fail(call, error)

    def _on_data(self, base: int) -> None:
        http2, rows = self.http2, self.http2.space.rows
        stream, length = rows[base + ROW_STREAM], rows[base + ROW_LENGTH]
        position, is_last = rows[base + ROW_POSITION], rows[base + ROW_END] == 1
        call = self._calls.get(stream)
        if call is not None:
            source = http2.source
            size = int.from_bytes(source[position : position + _PREFIX_BYTES], "big")
            try:
                # One request that is uncompressed and within the limit, as nearly all are.
                if is_last and call.is_new and size == length - _PREFIX_BYTES and size <= call.method.message_bytes_max:
                    self._serve(call, bytes(source[position + _PREFIX_BYTES : position + length]))
                else:
                    self._take(call, bytes(source[position : position + length]), is_last)
            except GrpcError as error:
                self.refuse(call, error)
            except Exception as error:  # noqa: BLE001 - a defect of a handler must not end the connection
                self._fail(call, error)
        http2.acknowledge(stream, length)

    def _on_trailers(self, base: int) -> None:
        call = self._calls.get(self.http2.space.rows[base + ROW_STREAM])
        if call is not None:
            try:
                self._take(call, b"", True)
            except GrpcError as error:
                call.end(error.code, error.text)
            except Exception as error:  # noqa: BLE001 - a defect of a handler must not end the connection
                self._fail(call, error)

    def _take(self, call: GrpcCall, data: bytes, is_last: bool) -> None:
        """Gives bytes of requests to a call, and complete requests to its handler."""
        before = call.held_bytes
        try:
            requests = call.take(data, is_last)
        finally:
            if (held := call.held_bytes - before) != 0:
                self.held_bytes += held
                self._server.hold(self, held)
        conversation = call.conversation
        if conversation is None:
            for request in requests:
                self._serve(call, request)
            return
        if call.stream in self._talks:
            if is_last:
                del self._talks[call.stream]
            elif requests:
                self._talks[call.stream] = True
        if requests and self._server.is_crowded and self._reads_too_little():
            raise GrpcError(StatusCode.RESOURCE_EXHAUSTED, "the client does not read the answers to its requests")
        turn = self._server.turn
        for request in requests:
            if not call.is_over:
                turn.note_task()
                conversation.received(request)
        if is_last and not call.is_over:
            conversation.finished()

    def _serve(self, call: GrpcCall, request: bytes) -> None:
        assert isinstance(call.method, UnaryMethod)
        answer = call.method.handle(call, request)
        if type(answer) is bytes:
            call.answer(answer)
        else:
            self._server.turn.note_task()
            if answer is not None:
                assert isinstance(answer, Awaitable)
                self._server.run(self._answered(call, answer))
            call.wait(self._server.loop)

    async def _answered(self, call: GrpcCall, answer: Awaitable[bytes]) -> None:
        """Answers with the result of a handler that waits."""
        try:
            call.answer(await answer)
        except GrpcError as error:
            call.end(error.code, error.text)
        except Exception as error:  # noqa: BLE001 - a defect of a handler must not end the connection
            self._fail(call, error)

    def _fail(self, call: GrpcCall, error: Exception) -> None:
        """Ends a call whose handler has a defect."""
        event(logger, logging.ERROR, "gRPC call failed", error, remote=self.address)
        self.refuse(call, GrpcError(StatusCode.INTERNAL, "the server failed; its log says why"))

    def _on_page(self, stream: int, path: bytes, method: bytes | None) -> None:
        """Answers a browser."""
        if method != b"GET":
            self.http2.send_headers(stream, _NOT_ALLOWED, True)
        elif path != b"/":
            self.http2.send_headers(stream, _NOT_FOUND, True)
        else:
            self.http2.send_headers(stream, _HELLO)
            self.http2.send_data(stream, self._server.greeting, True)

    def _say_no(self, length: int) -> None:
        """Answers a client that speaks HTTP/1."""
        self._server.note_end("not HTTP/2")
        first = bytes(memoryview(self.http2.source)[:length])
        event(logger, logging.DEBUG, "connection does not speak HTTP/2", remote=self.address)
        if self._transport is not None and b" HTTP/1." in first[:4096]:
            self._transport.write(_NO_HTTP2)

    # --- details

    def _excess(self) -> str:
        """Of what the server has too much, and this client more than its share; empty if it may go on."""
        if self._reads_too_little():
            return "the client does not read the answers to its calls"
        streams_max = self._server.options.streams_max
        if self._server.stream_count > streams_max and self._has_share(self.http2.stream_count, streams_max):
            return "the client has too many open calls"
        return ""

    def _reads_too_little(self) -> bool:
        bytes_max = self._server.options.unsent_bytes_max
        return self._server.unsent_bytes > bytes_max and self._has_share(self.unsent_bytes, bytes_max)

    def _has_share(self, count: int, most: int) -> bool:
        """Whether this connection has at least its share of what all may have."""
        return count * len(self._server.connections) >= most

    def _release(self, call: GrpcCall) -> None:
        self._talks.pop(call.stream, None)
        if held := call.held_bytes:
            self.held_bytes -= held
            self._server.hold(self, -held)

    def _abandon(self, call: GrpcCall) -> None:
        """Ends a call on which nothing more can be sent."""
        call.abandoned()
        self.forget(call)
        self._tell(call)

    def _tell(self, call: GrpcCall) -> None:
        if call.on_over is not None:
            listener, call.on_over = call.on_over, None
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - a defect of a handler must not keep other calls from ending
                event(logger, logging.ERROR, "end of a gRPC call failed", error, remote=self.address)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is None:
            return
        if not self._is_paused and (data := self.http2.data_to_send()):
            self._transport.write(data)
            self.active_ms = self._server.now_ms()
        self.unwritten.written(self.http2)
        if self._count_pending() > _UNREAD_BYTES_MAX:
            # The client does not even read. If only its windows were closed, we would have to go on, because they open
            # with frames that we read.
            self._is_unread = True
            self._transport.pause_reading()
        self._close_if_done()

    def _count_pending(self) -> int:
        """Counts the streams, and what the client does not take; returns how much of that its windows allow."""
        http2 = self.http2
        ready, streams = http2.ready_bytes, http2.stream_count
        unsent = http2.queued_bytes() + ready
        if unsent != self.unsent_bytes or streams != self.stream_count:
            self._server.note(unsent - self.unsent_bytes, streams - self.stream_count)
            self.unsent_bytes, self.stream_count = unsent, streams
            if unsent:
                self._server.time_limits.watch(self)
        return ready

    def _close_gently(self) -> None:
        """Closes the connection after an error of the peer.

        The peer may still send. If the socket closed at once, the system would answer with a reset, and the peer would
        lose what we said. So we say that nothing more comes, and drop what we get for a moment.
        """
        if self._transport is not None and self._cutting is None:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._cutting = self._server.loop.call_later(_GENTLE_S, self.abort)

    def _close_if_done(self) -> None:
        if self._server.is_stopping and not self._calls and not self.http2.queued_bytes():
            self.close()
