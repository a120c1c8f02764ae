"""Keeps a slave connected to its master's HA port.

One task connects, waits until the connection is of no more use, pauses and connects again. What the bytes mean is
decided in ``store.ha.slave_link``, or, behind a controller, in ``store.ha.epoch_slave``; here are the socket, the times
and the pauses. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, cast

from rucola.common.hosts import split_address
from rucola.errors import CopyRefusedError, RucolaError
from rucola.runtime.logs import event
from rucola.store.ha.slave_state import FINAL, SlaveState

logger = logging.getLogger(__name__)
RECEIVE_BYTES = 256 * 1024
"""Most bytes of one read; writing and checking them takes about a millisecond."""
CONNECT_S = 5.0
SILENCE_S = 20.0
"""Seconds without a whole header or a byte of the log after which the connection counts as lost (RocketMQ's
``haHousekeepingInterval``). A master sends a heartbeat every 5 s.
"""
REPORT_S = 5.0
"""Longest pause between two reports; a master of RocketMQ closes a connection after 20 s without one."""
_TICK_S = 1.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.5, 10.0
_UNSENT_MAX = 4096
"""Number of unsent bytes with which no further report is written: the master does not read."""
_STARTS_MAX = 10
"""Number of times that the start of the log may have expired when it is asked for."""


class CopyLink(Protocol):
    """What decides for a connection: see ``SlaveLink``."""

    @property
    def state(self) -> SlaveState:
        """What the connection is doing."""
        ...

    @property
    def request(self) -> int:
        """Physical offset that the first report asks for."""
        ...

    @property
    def reason(self) -> str:
        """Why the connection has ended."""
        ...

    @property
    def refusal(self) -> CopyRefusedError | None:
        """Why the copy must stop; None unless ``state`` is ``REFUSED``."""
        ...

    @property
    def progress(self) -> int:
        """Counts whole headers and bytes of the log."""
        ...

    @property
    def heartbeats(self) -> int:
        """Number of heartbeats since the last byte of the log."""
        ...

    @property
    def is_answered(self) -> bool:
        """Whether the next connection need not wait."""
        ...

    def report(self, flushed_offset: int) -> bytes:
        """Returns what to send next."""
        ...

    def receive(self, data: memoryview) -> None:
        """Takes bytes from the master."""
        ...

    def lost(self, reason: str) -> None:
        """Notes that the connection was closed, or that the master was silent for too long."""
        ...

    def expired(self) -> None:
        """Notes that the beginning of the log expires on the master faster than it can be asked for."""
        ...


class SlaveClient:
    """Connects to a master again and again.

    Attributes:
        connections: number of connections that were opened.
        is_copying: whether the master has proved to have the same log, and bytes are appended.
        read_s, written_s: when something was last read from a master or sent to it, on the loop's clock; 0 for never.
        received_bytes: number of bytes that were read from masters.

    Args:
        address: returns the master's HA port, ``host:port``; empty if it is not known yet. A new address counts from
            the next connection on.
        new_link: returns the object that decides for a connection, given the start to ask for.
        choose_start: returns what an empty slave asks for (``SlaveLink``).
        held_offset: returns the physical offset up to which the slave has the log, as it reports to the master.
        appended: called after bytes were taken.
        tls: encrypts each connection, verifies the master and shows the slave's certificate; None for plain ones.
    """

    def __init__(
        self,
        address: Callable[[], str],
        new_link: Callable[[int], CopyLink],
        choose_start: Callable[[], Awaitable[int]],
        held_offset: Callable[[], int],
        appended: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.connections = 0
        self._tls = tls
        self.read_s = self.written_s = 0.0
        self.received_bytes = 0
        self._address = address
        self._new_link = new_link
        self._choose_start = choose_start
        self._held_offset = held_offset
        self._appended = appended
        self._connection: _Connection | None = None
        self._soon = asyncio.Event()
        self._starts = 0
        self._reported = -1
        self._reported_s = 0.0

    @property
    def is_copying(self) -> bool:
        """Whether the master has proved to have the same log, and bytes are appended."""
        return self._connection is not None and self._connection.link.state is SlaveState.COPYING

    @property
    def has_nothing_to_copy(self) -> bool:
        """Whether the slave is empty, and its master has said that it has no bytes either."""
        connection = self._connection
        return connection is not None and connection.link.state is SlaveState.ASKING and connection.link.heartbeats > 0

    def grew(self) -> None:
        """Sends a report if the slave has more of the log than was reported."""
        connection = self._connection
        if connection is not None and self.is_copying and self._held_offset() > self._reported:
            self._report(connection)

    def connect_soon(self) -> None:
        """Ends the pause before the next connection, because there is a new address."""
        self._soon.set()

    async def run(self) -> None:
        """Copies until it is cancelled, or until the log must be cut, as the newest link says.

        Raises:
            CopyRefusedError: the copy must not go on with this master's log.
            DiskError: the slave's disk failed or is full.
        """
        pause_s = _PAUSE_MIN_S
        while True:
            link = await self._connect_once()
            if link is not None and link.refusal is not None:
                raise link.refusal
            if link is not None and link.state is SlaveState.CUTTING:
                return
            if link is not None and link.is_answered:
                continue
            pause_s = min(2 * pause_s, _PAUSE_MAX_S) if link is None or not link.progress else _PAUSE_MIN_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._soon.wait()
            self._soon.clear()

    async def _connect_once(self) -> CopyLink | None:
        """Runs one connection to its end; returns None if there was none."""
        loop, address = asyncio.get_running_loop(), self._address()
        if not address:
            return None
        host, port = split_address(address)
        try:
            link = self._new_link(await self._choose_start())
            connection = _Connection(link, self._taken, self._greeted)
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: connection, host, port, ssl=self._tls)
        except CopyRefusedError:
            raise
        except (OSError, RucolaError) as error:
            if not isinstance(error, RucolaError) or error.retriable:
                event(logger, logging.WARNING, "master not reached, tried again", address=address, error=error)
                return None
            raise
        self.connections += 1
        self._connection = connection
        event(logger, logging.INFO, "connected to master", address=address, request=link.request)
        try:
            await self._attend(connection)
        finally:
            self._connection = None
            connection.close()
        if connection.failure is not None:
            raise connection.failure
        if link.refusal is None and not link.is_answered:
            event(logger, logging.WARNING, "connection to master ended", address=address, reason=link.reason)
        return link

    async def _attend(self, connection: _Connection) -> None:
        """Sends reports and watches for silence, until the connection ends."""
        loop, link = asyncio.get_running_loop(), connection.link
        connection.write(link.report(link.request))
        self._reported, self._reported_s = link.request, loop.time()
        self.written_s = self._reported_s
        progress, progress_s, heartbeats = link.progress, loop.time(), 0
        while link.state not in FINAL and connection.failure is None:
            await asyncio.wait((connection.ended,), timeout=_TICK_S)
            now = loop.time()
            if link.progress != progress:
                progress, progress_s = link.progress, now
            elif now - progress_s > SILENCE_S:
                link.lost(f"the master was silent for {SILENCE_S:.0f} s")
            is_more = self.is_copying and self._held_offset() > self._reported  # after the comparison
            if is_more or now - self._reported_s >= REPORT_S:
                self._report(connection)
            if link.state is SlaveState.ASKING and link.heartbeats > heartbeats:
                heartbeats = link.heartbeats
                await self._check_start(link)

    def _report(self, connection: _Connection) -> None:
        held = self._held_offset()  # once: another thread syncs on
        if connection.write(connection.link.report(held)):
            self._reported = held if self.is_copying else connection.link.request
            self._reported_s = self.written_s = asyncio.get_running_loop().time()

    def _taken(self, count: int) -> None:
        self.read_s = asyncio.get_running_loop().time()
        self.received_bytes += count
        self._appended()

    def _greeted(self) -> None:
        """Asks for the log as soon as the handshake is over; RocketMQ's slave waits for its timer, 5 s."""
        if self._connection is not None:
            self._report(self._connection)

    async def _check_start(self, link: CopyLink) -> None:
        """Asks again where the log begins, because the master has sent nothing from there: it may have expired.

        Raises:
            CopyRefusedError: it expired too many times.
        """
        try:
            start = await self._choose_start()
        except RucolaError as error:
            if not error.retriable:
                raise
            return
        if start != link.request:
            self._starts += 1
            if self._starts > _STARTS_MAX:
                link.expired()
            else:
                link.lost(f"the segment at {link.request} has expired on the master")


class _Connection(asyncio.BufferedProtocol):
    """One socket. The protocol object of asyncio.

    Attributes:
        ended: done when the connection is of no more use.
        failure: the error with which the slave's disk ended it.
    """

    def __init__(self, link: CopyLink, taken: Callable[[int], None], greeted: Callable[[], None]) -> None:
        self.link = link
        self.failure: RucolaError | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken, self._greeted = taken, greeted
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        was_greeting = self.link.state is SlaveState.HANDSHAKING
        try:
            self.link.receive(self._buffer[:nbytes])
            self._taken(nbytes)
        except RucolaError as error:
            self.failure = error
        if self.failure is not None or self.link.state in FINAL:
            self.close()
            self._end()
        elif was_greeting and self.link.state is not SlaveState.HANDSHAKING:
            self._greeted()

    def connection_lost(self, exc: Exception | None) -> None:
        # It does so with a slave that may not copy, or whose certificate it refuses. A master of Rucola sends an alert.
        before = "" if self.link.progress else " before it sent anything; its log may say why"
        self.link.lost(f"the master closed the connection{before}{'' if exc is None else f': {exc}'}")
        self._end()

    def write(self, report: bytes) -> bool:
        """Sends a report, unless the master does not read; returns whether it was sent."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() > _UNSENT_MAX:
            return False
        transport.write(report)
        return True

    def close(self) -> None:
        """Closes the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
