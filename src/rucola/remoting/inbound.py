"""The reading half of a connection: reads frames into a shared buffer and passes them to the handler.

For each read, the event loop asks for the buffer, ``SharedFrameReader`` finds the complete frames, the handler serves
them, and the writing half sends the collected responses. Requests for which the turn has no time are postponed.

Event loop only.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar, cast

from rucola.errors import FormatError
from rucola.protocol.frame import FrameBatch
from rucola.protocol.shared_reader import SharedFrameReader
from rucola.remoting.fairness.connection_watch import ConnectionProgress
from rucola.remoting.fairness.linger import Linger
from rucola.remoting.fairness.postponed_reads import PostponedReads
from rucola.remoting.fairness.read_pauses import (
    ANSWERS_WAIT,
    OWED,
    PAUSE,
    PEER_CAUGHT_UP,
    PEER_STOPPED,
    POSTPONED,
    RESUME,
    ROOM_GIVEN,
    ROOM_REFUSED,
    ROWS_POSTPONED,
    ROWS_SERVED,
    SERVE,
    TRANSITIONS,
)
from rucola.remoting.fairness.turn import Turn
from rucola.remoting.response_future import ResponseTable

_FEW_ROWS = 64
"""A connection joins the second group of ``PostponedReads`` only if its last read was interrupted with more than this
number of requests left, or if that read had more than one batch. Without this limit, a producer that the server has not
served for one second would wait in the same group as connections that send thousands of requests in one read.
"""


class WritingHalf(Protocol):
    """What the reading half needs of the connection."""

    costly: bool
    gathering: bool
    invokes: ResponseTable | None
    progress: ConnectionProgress

    def note_request(self) -> bool:
        """See ``Channel``."""

    def flush_gathered(self) -> None:
        """See ``Outbound``."""

    def connected(self, transport: asyncio.Transport) -> None:
        """Called when the connection was accepted."""

    def ended(self) -> None:
        """Called once, when the connection is gone."""

    def close(self) -> None:
        """Sends the collected bytes, then closes."""


C = TypeVar("C", bound=WritingHalf)
C_contra = TypeVar("C_contra", bound=WritingHalf, contravariant=True)


class RowsHandler(Protocol[C_contra]):
    """Serves requests."""

    def frames_received(self, channel: C_contra, batch: FrameBatch) -> None:
        """Handles complete frames that one read delivered. ``batch`` is valid only during this call;
        ``channel.postpone`` copies the rows that it postpones.

        Skip rows with bit 0 of FLAG: they are responses to ``Channel.invoke``, which were already delivered.
        """

    def serve_rows(self, channel: C_contra, batch: FrameBatch, first: int) -> None:
        """Handles row ``first``, which was given to ``channel.postpone``, and the rows after it."""


class InboundOwner(Protocol[C_contra]):
    """What the reading half needs of the server."""

    turn: Turn
    linger: Linger
    postponed: PostponedReads

    @property
    def handler(self) -> RowsHandler[C_contra]:
        """Serves the requests."""

    def refused(self, channel: C_contra, error: FormatError) -> None:
        """Called when ``channel`` sent something that is not a frame."""

    def ask_for_room(self, channel: C_contra, size: int, needed: int) -> bool:
        """True if more of a large frame may be read; ``size`` of its ``needed`` bytes have arrived. If False, the
        server notes ``ROOM_GIVEN`` later.
        """

    def large_frame_ended(self, channel: C_contra) -> None:
        """Called when a large frame of ``channel`` is complete."""


class Inbound(asyncio.BufferedProtocol, Generic[C]):
    """What the event loop sees of a connection: it calls ``get_buffer`` and ``buffer_updated`` for each read.

    Attributes:
        reasons: why the server does not read at present, as bits (``read_pauses``); 0 if it reads.
    """

    __slots__ = (
        "_channel",
        "_frames_received",
        "_holds_room",
        "_is_begun",
        "_is_due",
        "_loop",
        "_postponed",
        "_progress",
        "_reader",
        "_server",
        "_transport",
        "_turn",
        "reasons",
    )

    def __init__(
        self, channel: C, server: InboundOwner[C], loop: asyncio.AbstractEventLoop, reader: SharedFrameReader
    ) -> None:
        self._channel = channel
        self._progress = channel.progress
        self._server = server
        self._turn = server.turn
        self._loop = loop
        self._reader = reader
        self._frames_received = server.handler.frames_received
        self._transport: asyncio.Transport | None = None
        self._postponed: tuple[FrameBatch, int] | None = None
        self._is_due = self._is_begun = self._holds_room = False
        self.reasons = 0

    def note(self, event: int) -> None:
        """Changes ``reasons`` as ``read_pauses.TRANSITIONS`` says, and does what follows."""
        self.reasons, action = TRANSITIONS[event][self.reasons]
        transport = self._transport
        if not action or transport is None or transport.is_closing():
            return
        if action & PAUSE:
            transport.pause_reading()
        elif action & RESUME:
            transport.resume_reading()
        if action & SERVE and not self._is_due:
            self._is_due = True
            costly = self._channel.costly
            self._server.postponed.add(self._serve_postponed, self._loop, begun=self._is_begun, costly=costly)

    def postpone(self, batch: FrameBatch, row: int) -> None:
        """See ``Channel.postpone``."""
        self._postponed = batch if batch.kept_bytes else self._reader.keep(batch), row
        if row > 0 and (batch.count - row > _FEW_ROWS or self._reader.has_more):
            self._is_begun = True
        self.note(ROWS_POSTPONED)

    @property
    def begun_bytes(self) -> int:
        """Number of received bytes of an incomplete frame."""
        return self._reader.begun_bytes

    def serve(self, batch: FrameBatch) -> None:
        """Serves the frames of a client in this process, or postpones them, as if one read had brought them. Not while
        there are ``reasons``.
        """
        channel = self._channel
        self._progress.active = self._progress.framed = True
        channel.gathering = True
        try:
            if self._turn.note_read(self._loop):
                self.postpone(batch, 0)
            else:
                self._frames_received(channel, batch)
        finally:
            channel.flush_gathered()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._channel.connected(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the event loop: returns the buffer for the next bytes."""
        if self.reasons:
            # Some transports read once more after they were told to pause. The postponed requests must be served first.
            while self.reasons & POSTPONED:
                self._serve_next()
        return self._reader.buffer(self._turn.is_crowded)

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop: ``nbytes`` arrived. Serves the complete frames or postpones them."""
        channel, reader, progress = self._channel, self._reader, self._progress
        progress.active = True
        channel.gathering = True
        self._is_begun = False
        is_large = reader.is_large and reader.wants_more
        try:
            batch = reader.received(nbytes)
            if batch is not None:
                progress.framed = True
                # The last read of a large frame fills the buffer, because the buffer is as large as the frame. After
                # such a read, some event loops read the connection again at once. If the turn is over, the requests of
                # the first read are postponed; this pauses reading and so prevents the second read.
                if self._turn.note_read(self._loop) or (is_large and channel.note_request()):
                    self._postpone_read(batch)
                else:
                    self._serve_batches(batch)
                if batch.count > 1:
                    self._server.linger.expect_more(self._loop)
        except FormatError as error:
            self._refuse(error)
        finally:
            channel.flush_gathered()
        if reader.is_large or self._holds_room:
            self._large_frame()

    def pause_writing(self) -> None:
        """Called by the event loop: the peer does not accept its responses, so no more requests are read."""
        self.note(PEER_STOPPED)

    def resume_writing(self) -> None:
        """Called by the event loop: the peer caught up."""
        self._progress.caught_up = True
        self.note(PEER_CAUGHT_UP)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop, once."""
        self._transport = None
        if self._postponed is not None:
            self._reader.release(self._postponed[0])
            self._postponed = None
        self._reader.close()
        self._channel.ended()
        # Only a garbage collection would free the circle of both halves. Nothing below uses the channel any more:
        # without a transport, nothing is served.
        del self._channel

    def _serve_postponed(self) -> None:
        """Serves postponed requests; ``PostponedReads`` calls this while the turn has time left. Does nothing while the
        peer is slow or too many of its requests wait: the end of this reason schedules the method again.
        """
        self._is_due = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        reasons = self.reasons
        if reasons & POSTPONED and not reasons & ANSWERS_WAIT:
            self._serve_next()

    def _serve_next(self) -> None:
        """Serves requests that were postponed: first the rows of a batch, then further batches of the same read."""
        channel, reader = self._channel, self._reader
        postponed, self._postponed = self._postponed, None
        channel.costly = False
        channel.gathering = True
        try:
            if postponed is not None:
                self._server.handler.serve_rows(channel, *postponed)
            if self._postponed is None:
                self._serve_batches(reader.more())
        except FormatError as error:
            self._refuse(error)
        finally:
            if postponed is not None and not self._waits(postponed[0]):
                reader.release(postponed[0])
            channel.flush_gathered()
        if self._holds_room or reader.is_large:
            self._large_frame()
        if self._postponed is None and not reader.has_more:
            self.note(ROWS_SERVED)

    def _waits(self, batch: FrameBatch) -> bool:
        return self._postponed is not None and self._postponed[0] is batch

    def _serve_batches(self, batch: FrameBatch | None) -> None:
        """Serves ``batch`` and the further batches of the same read, unless rows are postponed or too many requests
        wait.
        """
        channel, reader = self._channel, self._reader
        while batch is not None:
            if channel.invokes:
                channel.invokes.take_from(batch)
            self._frames_received(channel, batch)
            if self.reasons and (self._postponed is not None or self.reasons & OWED):
                reader.set_aside()
                if self._postponed is None and reader.has_more:
                    self.note(ROWS_POSTPONED)
                return
            if not reader.has_more:
                return
            self._is_begun = True
            batch = reader.more()

    def _postpone_read(self, batch: FrameBatch) -> None:
        """Postpones all requests of a read; ``batch`` is the read's first batch."""
        if self._channel.invokes:
            self._channel.invokes.take_from(batch)
        self.postpone(batch, 0)
        self._reader.set_aside()

    def _large_frame(self) -> None:
        """Accounts for an incomplete frame that has a buffer of its own, or for the end of such a frame."""
        reader, server = self._reader, self._server
        self._holds_room = reader.is_large and not reader.has_more
        if not self._holds_room:
            server.large_frame_ended(self._channel)
            self.note(ROOM_GIVEN)
        elif not server.ask_for_room(self._channel, reader.begun_bytes, reader.needed_bytes):
            self.note(ROOM_REFUSED)

    def _refuse(self, error: FormatError) -> None:
        self._server.refused(self._channel, error)
        self._channel.close()
