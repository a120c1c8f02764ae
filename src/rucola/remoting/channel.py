"""One accepted connection: reads frames into a reused buffer, collects responses, and sends them with one write.

For each read, the event loop asks for the buffer, ``SharedFrameReader`` finds the complete frames, the handler serves
them, and one write sends the collected responses. While the peer does not accept its responses, the server reads no
more requests from it.

Task rule: everything here runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import Any, Protocol, cast

from rucola.common.columns import ROW_WIDTH
from rucola.common.hosts import host_bytes, join_address
from rucola.common.kernel_columns import FRAME_FLAG, FRAME_OPAQUE
from rucola.errors import FormatError, RemotingClosedError
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.shared_reader import SharedFrameReader
from rucola.remoting.fairness.linger import Linger
from rucola.remoting.fairness.postponed_reads import PostponedReads
from rucola.remoting.fairness.turn import ANSWER_BYTES, Turn
from rucola.remoting.fairness.unsent_bytes import COUNTED_BYTES
from rucola.remoting.peer import Part
from rucola.remoting.response_future import ResponseFuture, ResponseTable
from rucola.remoting.server_options import ServerOptions

_REQUEST_BYTES = 512
"""Bytes of memory that a waiting request needs, in addition to the bytes that ``owe`` receives as ``size``."""
_FEW_ROWS = 64
"""A connection joins the second group of ``PostponedReads`` only if its last read was interrupted with more than this
number of requests left, or if that read had more than one batch. Without this limit, a producer that the server has not
served for one second would wait in the same group as connections that send thousands of requests in one read.
"""


class FramesHandler(Protocol):
    """The handler of a server's frames."""

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        """Handles complete frames that one read delivered. ``batch`` is valid only during this call;
        ``channel.put_off`` copies the rows that it postpones.

        Skip rows with bit 0 of FLAG: they are responses to ``Channel.invoke``, which were already delivered.
        """

    def rest_received(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        """Continues at row ``first``, which was given to ``channel.put_off``."""

    def channel_closed(self, channel: Channel) -> None:
        """Called once per channel, when ``channel`` has ended."""


class ChannelOwner(Protocol):
    """The server of a channel, as the channel sees it."""

    handler: FramesHandler
    options: ServerOptions
    turn: Turn
    linger: Linger
    postponed: PostponedReads

    def next_opaque(self) -> int:
        """Correlation id of the server's next request to a client."""

    def opened(self, channel: Channel) -> None:
        """Called when ``channel`` was accepted."""

    def closed(self, channel: Channel) -> None:
        """Called when ``channel`` has ended."""

    def refused(self, channel: Channel, error: FormatError) -> None:
        """Called when ``channel`` sent something that is not a frame."""

    def overrun(self, channel: Channel) -> None:
        """Called when ``channel`` accepts its responses too slowly."""

    def grew(self, channel: Channel, size: int) -> None:
        """Called when ``channel`` has ``size`` bytes of responses that were not sent yet."""

    def ask_for_room(self, channel: Channel, size: int, needed: int) -> bool:
        """True if more of a large frame may be read; ``size`` of its ``needed`` bytes have arrived. If False, the
        server calls ``room_found`` later.
        """

    def large_frame_ended(self, channel: Channel) -> None:
        """Called when a large frame of ``channel`` is complete."""


class Channel(asyncio.BufferedProtocol):
    """A client's connection, from the server's view.

    ``RemotingServer`` creates one for every accepted connection. A channel ends when either side closes it, after an
    undecodable frame, or after a timeout. ``handler.channel_closed`` is then called exactly once.

    Attributes:
        host: the peer's address in the store's format: 4 or 16 address bytes, then the port as int32.
        remote_address: the peer as ``ip:port``.
        secure: whether the connection is encrypted.
        verified: whether the peer has shown a valid certificate.
        attributes: data that the handler keeps with this connection.
        closed: whether the connection is gone.
        costly: whether the connection's last request used much processor time. If so, its next request is served only
            in a turn (iteration) of the event loop that has time left (see ``Turn``). Also True before the first
            request, because many new connections may begin with a costly request.
        held_back: whether reading is paused because too many requests of the connection wait; see ``owe``.
        framed: whether a frame was completed since ``ConnectionWatch`` last looked. Only ``ConnectionWatch`` and the
            server's check for silent connections read this attribute and all below it.
        active: whether a byte was received or sent since the server's last check.
        idle_since: time in seconds of the last check that found ``active`` set.
        begun_since: time in seconds from which ``ConnectionWatch`` counts how long a frame has been incomplete.
        stalled_since: time in seconds at which ``ConnectionWatch`` last found that the number of unsent bytes had
            fallen or was 0.
        unsent_before: number of unsent bytes when ``ConnectionWatch`` last looked; ``sys.maxsize`` if the peer has
            caught up since then (``resume_writing``).
    """

    __slots__ = (
        "_counted",
        "_frames_received",
        "_gathered_bytes",
        "_gathering",
        "_holds_room",
        "_invokes",
        "_is_begun",
        "_loop",
        "_owed",
        "_parts",
        "_paused",
        "_put_off",
        "_reader",
        "_reading",
        "_rest_is_due",
        "_server",
        "_transport",
        "_turn",
        "_waits_for_room",
        "active",
        "attributes",
        "begun_since",
        "closed",
        "costly",
        "framed",
        "held_back",
        "host",
        "idle_since",
        "remote_address",
        "secure",
        "stalled_since",
        "unsent_before",
        "verified",
    )

    def __init__(self, server: ChannelOwner, loop: asyncio.AbstractEventLoop, reader: SharedFrameReader) -> None:
        self._server = server
        self._turn = server.turn
        self._loop = loop
        self._reader = reader
        self._frames_received = server.handler.frames_received
        self._transport: asyncio.Transport | None = None
        self._parts: list[Part] = []
        self._gathering = False
        self._counted = self._gathered_bytes = 0  # the first _counted of _parts have _gathered_bytes bytes
        self._reading = True
        self._paused = False
        self._put_off: tuple[FrameBatch, int] | None = None
        self._rest_is_due = self._is_begun = False
        self.costly = True
        self._holds_room = self._waits_for_room = False
        self._owed = 0
        self.held_back = False
        self._invokes: ResponseTable | None = None
        self.active = True
        self.framed = True
        self.idle_since = self.begun_since = self.stalled_since = loop.time()
        self.unsent_before = 0
        self.closed = False
        self.host = b""
        self.remote_address = ""
        self.secure = False
        self.verified = False
        self.attributes: dict[Any, Any] = {}

    def send(self, data: Part) -> None:
        """Sends a whole frame. The bytes must not change until they are sent: pass ``bytes`` or a fresh buffer."""
        self._parts.append(data)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._flush)

    def send_parts(self, parts: Iterable[Part]) -> None:
        """Sends frames given in pieces, without joining them. The rule of ``send`` applies."""
        self._parts.extend(parts)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._flush)

    def owe(self, size: int) -> None:
        """Counts a request that waits in the server; ``size`` is the number of bytes of the request or its response
        that stay in memory. When the waiting requests take more than ``outbound_bytes_high``, reading pauses until they
        take at most a quarter of it.
        """
        self._owed += size + _REQUEST_BYTES
        if not self.held_back and self._owed > self._server.options.outbound_bytes_high:
            self.held_back = True
            self._stop_reading()

    def settle(self, size: int) -> None:
        """Releases a request that ``owe`` counted with the same ``size``, because it was answered or will never be
        answered.
        """
        self._owed -= size + _REQUEST_BYTES
        if self.held_back and self._owed <= self._server.options.outbound_bytes_high // 4:
            self.held_back = False
            self._read_on()

    def note_request(self) -> bool:
        """Notes that one more request of this read could be served. Returns whether it should wait for a later turn of
        the event loop; see ``put_off``.
        """
        self._gathered_bytes += sum(map(len, self._parts[self._counted :]))
        self._counted = len(self._parts)
        return self._gathered_bytes > ANSWER_BYTES or self._turn.note_request(self._loop)

    def took(self, seconds: float) -> None:
        """Sets ``costly`` if the last request used much processor time, otherwise clears it. ``Turn`` estimates this
        time; ``seconds`` is the elapsed time of the request.
        """
        self.costly = self._turn.was_costly(seconds, self._loop)

    def put_off(self, batch: FrameBatch, row: int) -> None:
        """Postpones row ``row`` and all rows after it: ``handler.rest_received`` gets a copy of them in a later turn.

        Reading pauses until these rows are served. The rows also wait while the peer does not accept its responses.
        """
        self._put_off = batch if batch.kept_bytes else self._reader.keep(batch), row
        if row > 0 and (batch.count - row > _FEW_ROWS or self._reader.has_more):
            self._is_begun = True
        self._stop_reading()
        self._serve_rest_soon()

    def room_found(self) -> None:
        """Called when there is memory again for the large frame that this connection has begun: resumes reading."""
        self._waits_for_room = False
        self._read_on()

    async def invoke(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Sends a request to the client and waits for the response.

        Clients drop unknown requests, so a timeout is an ordinary outcome (protocol.md 2.6).

        Args:
            command: the request; its opaque is set here.
            timeout_ms: how long to wait.

        Raises:
            RemotingTimeoutError: no response in time.
            RemotingClosedError: the connection ended first.
        """
        if self.closed:
            raise RemotingClosedError(self.remote_address)
        if self._invokes is None:
            self._invokes = ResponseTable(self._loop, self.remote_address)
        command.opaque = self._server.next_opaque()
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._invokes.add(command.opaque, ResponseFuture(future), timeout_ms)
        self.send(command.encode())
        return await future

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Sends the client a oneway request; does nothing if the connection is closed."""
        if self.closed:
            return
        command.opaque = self._server.next_opaque()
        command.flag |= FLAG_ONEWAY
        self.send(command.encode())

    def send_oneway(self, frame: bytes) -> None:
        """Sends a frame that was encoded once for many clients; otherwise like ``invoke_oneway``."""
        if not self.closed:
            self.send(frame)

    @property
    def begun_bytes(self) -> int:
        """Number of received bytes of an incomplete frame."""
        return self._reader.begun_bytes

    @property
    def is_read(self) -> bool:
        """Whether the server reads bytes that arrive; if not, reading is paused and the peer has to wait."""
        return self._reading

    @property
    def unsent_bytes(self) -> int:
        """Number of unsent bytes of responses for a slow peer; 0 unless reading is paused because of them."""
        return self._transport.get_write_buffer_size() if self._paused and self._transport is not None else 0

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes of responses that the operating system has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """Sends the collected bytes, then closes."""
        if self._parts:
            self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes without sending the remaining bytes."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.host, self.remote_address = stored_host(peer), readable_address(peer)
        self.secure = transport.get_extra_info("ssl_object") is not None
        self.verified = self.secure and bool(transport.get_extra_info("peercert"))
        options = self._server.options
        self._transport.set_write_buffer_limits(options.outbound_bytes_high, options.outbound_bytes_high // 4)
        self._server.opened(self)

    @property
    def local_address(self) -> str:
        """The address that the peer has connected to, ``ip:port``."""
        return readable_address(None if self._transport is None else self._transport.get_extra_info("sockname"))

    @property
    def descriptor(self) -> int:
        """Descriptor of the socket; -1 if there is none."""
        used = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if used is None else int(used.fileno())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the event loop: returns the buffer for the next bytes."""
        reader = self._reader
        # Some transports read once more after they were told to pause. The waiting requests must be served first.
        while self._put_off is not None or reader.has_more:
            self.costly = False
            self._serve_next()
        return reader.buffer(self._turn.is_crowded)

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop: ``nbytes`` arrived. Serves the complete frames or puts them off."""
        self.active = True
        self._gathering = True
        self._is_begun = False
        reader = self._reader
        is_large = reader.is_large and reader.wants_more
        try:
            batch = reader.received(nbytes)
            if batch is not None:
                self.framed = True
                # The last read of a large frame fills the buffer, because the buffer is as large as the frame. After
                # such a read, some event loops read the connection again at once. If the turn is over, the requests of
                # the first read are put off; this pauses reading and so prevents the second read.
                if self._turn.note_read(self._loop) or (is_large and self.note_request()):
                    self._let_wait(batch)
                else:
                    self._serve_batches(batch)
                if batch.count > 1:
                    self._server.linger.expect_more(self._loop)
        except FormatError as error:
            self._refuse(error)
        finally:
            self._flush_gathered()
        if reader.is_large or self._holds_room:
            self._large_frame()

    def pause_writing(self) -> None:
        """Called by the event loop: the peer does not accept its responses, so no more requests are read."""
        self._paused = True
        self._stop_reading()

    def resume_writing(self) -> None:
        """Called by the event loop: the peer caught up."""
        self._paused = False
        self.unsent_before = sys.maxsize
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop, once."""
        self.closed = True
        self._transport = None
        self._parts = []
        if self._put_off is not None:
            self._reader.release(self._put_off[0])
            self._put_off = None
        self._reader.close()
        if self._invokes is not None:
            self._invokes.close()
        self._server.closed(self)
        # The values may refer to this channel. Only a garbage collection would free such a cycle. If the channel has
        # already survived a full collection, the cycle would even stay until the process ends (``runtime.collector``).
        self.attributes.clear()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        self._gathering = False
        self._counted = self._gathered_bytes = 0
        transport = self._transport
        if transport is None or not parts:
            return
        self.active = True
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
        size = transport.get_write_buffer_size()
        if size > COUNTED_BYTES:
            self._server.grew(self, size)
        if self._paused and size > self._server.options.outbound_bytes_max:
            self._server.overrun(self)
            transport.abort()

    def _flush_gathered(self) -> None:
        if self._parts:
            self._flush()
        else:
            self._gathering = False

    def _refuse(self, error: FormatError) -> None:
        self._server.refused(self, error)
        self.close()

    def _serve_rest_soon(self) -> None:
        """Adds this connection to ``PostponedReads``, which will call ``_serve_rest``. Further calls until then do
        nothing.
        """
        if not self._rest_is_due:
            self._rest_is_due = True
            self._server.postponed.add(self._serve_rest, self._loop, begun=self._is_begun, costly=self.costly)

    def _serve_rest(self) -> None:
        """Serves the postponed rows. Does nothing while the peer does not accept its responses or too many of its
        requests wait; ``_read_on`` schedules this method again later.
        """
        self._rest_is_due = False
        transport = self._transport
        if self._paused or self.held_back or transport is None or transport.is_closing() or not self._has_rest():
            return
        self.costly = False  # ``PostponedReads`` calls this method only while the turn has time left
        self._serve_next()
        self._read_on()

    def _waits(self, batch: FrameBatch) -> bool:
        return self._put_off is not None and self._put_off[0] is batch

    def _has_rest(self) -> bool:
        """Whether requests of an earlier read wait for a later turn."""
        return self._put_off is not None or self._reader.has_more

    def _serve_next(self) -> None:
        """Serves the waiting requests: first the rows that were put off, then further batches."""
        put_off, self._put_off = self._put_off, None
        self._gathering = True
        try:
            if put_off is not None:
                self._server.handler.rest_received(self, *put_off)
            if self._put_off is None:
                self._serve_batches(self._reader.more())
        except FormatError as error:
            self._refuse(error)
        finally:
            if put_off is not None and not self._waits(put_off[0]):
                self._reader.release(put_off[0])
            self._flush_gathered()
        if self._holds_room or self._reader.is_large:
            self._large_frame()

    def _serve_batches(self, batch: FrameBatch | None) -> None:
        """Serves ``batch`` and the further batches of the same read, unless rows are put off or too many requests
        wait.
        """
        while batch is not None:
            if self._invokes:
                self._take_answers(batch, self._invokes)
            self._frames_received(self, batch)
            if self._put_off is not None or self.held_back:
                self._reader.set_aside()
                return
            if not self._reader.has_more:
                return
            self._is_begun = True
            batch = self._reader.more()

    def _let_wait(self, batch: FrameBatch) -> None:
        """Puts off all requests of a read; ``batch`` is the read's first batch."""
        if self._invokes:
            self._take_answers(batch, self._invokes)
        self.put_off(batch, 0)
        self._reader.set_aside()

    def _large_frame(self) -> None:
        """Accounts for an incomplete frame that has a buffer of its own, or for the end of such a frame."""
        reader = self._reader
        self._holds_room = reader.is_large and not reader.has_more
        if not self._holds_room:
            self._server.large_frame_ended(self)
        elif not self._server.ask_for_room(self, reader.begun_bytes, reader.needed_bytes):
            self._waits_for_room = True
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Resumes reading if no reason to pause remains. Requests that were put off are served first."""
        if self._paused or self.held_back or self._transport is None or self._transport.is_closing():
            return
        if self._has_rest():
            self._serve_rest_soon()
        elif not self._waits_for_room and not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _take_answers(self, batch: FrameBatch, invokes: ResponseTable) -> None:
        table = batch.table
        for row in range(batch.count):
            if table[row * ROW_WIDTH + FRAME_FLAG] & FLAG_RESPONSE:
                waiter = invokes.take(table[row * ROW_WIDTH + FRAME_OPAQUE])
                if waiter is not None:
                    waiter.answered(batch, row)


def stored_host(peer: tuple[Any, ...] | None) -> bytes:
    """A socket address as a record stores it; an IPv4 client of a dual-stack socket counts as IPv4, as with Java."""
    if not peer:
        return bytes(8)
    address = str(peer[0])
    if "." in address:
        address = address.removeprefix("::ffff:")
    return host_bytes(address, int(peer[1]))


def readable_address(peer: tuple[Any, ...] | None) -> str:
    """A socket address as ``ip:port``, IPv6 in brackets."""
    return join_address(str(peer[0]), int(peer[1])) if peer else "unknown"
