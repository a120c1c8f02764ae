"""The HA port of a master: sends the log to slaves, and knows what each of them has.

What bytes mean is decided in ``store.ha.master_link``; here are sockets, times and turns. Nothing runs for each
message: what was appended or synced leaves in the next iteration of the event loop, as one transfer for a slave that
has the rest. Event loop only.

Source: RocketMQ 5.3.3, ``DefaultHAService``, ``DefaultHAConnection``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final, NamedTuple, Protocol, cast

from rucola.broker.ha.slave_access import SlaveAccess
from rucola.common.hosts import join_address
from rucola.errors import AddressInUseError
from rucola.remoting.listening import listen
from rucola.remoting.peer_log import AddressLog
from rucola.remoting.tls_listener import ServerTls, TlsListener
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor
from rucola.store.ha.master_link import MasterLink, Transfer
from rucola.store.ha.sent_log import SentLog
from rucola.store.log.cold_read import ColdRead

logger = logging.getLogger(__name__)

TRANSFER_BYTES: Final = 256 * 1024
TURN_BYTES: Final = 1024 * 1024
"""Bytes that one slave gets in one iteration of the event loop; copying and sending them takes about a millisecond."""
_ALL_BYTES = 4 * TURN_BYTES
"""Bytes that all slaves get, except that each may get one transfer."""
_UNSENT_BYTES_MAX = 1024 * 1024
_REPORTS_BYTES = 8 * 1024
"""Bytes of reports that are read at a time; a slave sends a few reports in each turn."""
GATHER_S: Final = 0.005
"""How long what was appended is gathered if nobody waits for slaves. A transfer costs more CPU time than a message."""
HEARTBEAT_S: Final = 5.0
SILENCE_S: Final = 20.0
"""A slave reports at least every 5 s."""
SLAVES_MAX: Final = 64
_LOOK_S = 1.0
_BACKLOG = 64


class HaServerOptions(NamedTuple):
    """Where a master listens for slaves.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 chooses a free port.
        access: the addresses that may connect.
        tls: certificate and mode of a port that asks slaves for certificates; None without TLS.
    """

    host: str
    port: int
    access: SlaveAccess
    tls: ServerTls | None = None


class SlaveWatcher(Protocol):
    """Wants to know what slaves have."""

    @property
    def waits(self) -> bool:
        """Whether senders wait for slaves."""
        ...

    def changed(self) -> None:
        """Called when a slave came or went."""
        ...

    def acknowledged(self) -> None:
        """Called when a slave has more of the log."""
        ...

    def look(self) -> None:
        """Called once a second."""
        ...


class ChannelLink(Protocol):
    """What the connection of a slave asks and tells: see ``MasterLink``."""

    acknowledged: int
    next_offset: int
    start: int
    reason: str
    cold: ColdRead | None

    @property
    def confirmed(self) -> int:
        """Physical offset up to which senders may be told that the slave has the log."""
        ...

    def receive(self, data: bytes | memoryview) -> bool:
        """Takes bytes from the slave; returns whether it acknowledges more than before."""
        ...

    def transfer(self) -> Transfer | None:
        """Returns the next transfer, if there is one."""
        ...

    def fetched(self) -> None:
        """Notes that ``cold`` was fetched."""
        ...

    def heartbeat(self) -> bytes:
        """Returns a transfer without bytes."""
        ...

    def end(self) -> None:
        """Notes that the connection has ended."""
        ...


class HaChannel(asyncio.BufferedProtocol):
    """The connection of one slave.

    Attributes:
        address: its address, ``host:port``.
        link: what it has, and what it gets next.
        rate_bytes: bytes of the log that were handed to the socket in the last second.
    """

    def __init__(self, server: HaServer) -> None:
        self.address = ""
        self.link = server.new_link()
        self.rate_bytes = self._sent_bytes = 0
        self._server = server
        self._reports = bytearray(_REPORTS_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_paused = self._is_due = self._is_fetching = False
        self._written_s = self._read_s = server.loop.time()

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the connection, or closes it."""
        self._transport = made = cast(asyncio.Transport, transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.address = join_address(host, port)
        made.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        if reason := self._server.opened(self, host, transport.get_extra_info("peercert")):
            self.close(reason)

    def connection_lost(self, error: Exception | None) -> None:
        """Forgets the slave."""
        self._transport = None
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        """The memory into which the next reports are read."""
        return self._reports

    def buffer_updated(self, count: int) -> None:
        """Takes reports."""
        self._read_s = self._server.loop.time()
        if self._transport is None or self._transport.is_closing():
            return
        is_more = self.link.receive(memoryview(self._reports)[:count])
        if self.link.reason:
            self.close(self.link.reason)
        elif is_more:
            self._server.watcher.acknowledged()
        self.send()

    def pause_writing(self) -> None:
        """The slave does not take what was sent."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The slave goes on."""
        self._is_paused = False
        self.send()

    # --- for the server

    def send(self) -> None:
        """Sends what there is, as far as the slave takes it and the turn has room."""
        self._is_due = False
        transport, link = self._transport, self.link
        if transport is None or transport.is_closing():
            return
        left = min(TURN_BYTES, _ALL_BYTES // max(len(self._server.slaves), 1))
        while not self._is_paused and left > 0 and (transfer := link.transfer()) is not None:
            transport.writelines(transfer)
            self._sent_bytes += len(transfer.content)
            self._written_s = self._server.loop.time()
            left -= len(transfer.content)
        if link.reason:
            self.close(link.reason)
        elif link.cold is not None and not self._is_fetching:
            self._fetch(link.cold.fetch)
        elif left <= 0 and not self._is_paused:
            self.send_soon()

    def send_soon(self) -> None:
        """Calls ``send`` in the next iteration of the event loop."""
        if not self._is_due:
            self._is_due = True
            self._server.loop.call_soon(self.send)

    def look(self, now_s: float) -> None:
        """Sends a heartbeat if it is time; closes the connection of a silent slave. Called once a second."""
        self.rate_bytes, self._sent_bytes = self._sent_bytes, 0
        if now_s - self._read_s > SILENCE_S:
            self.close(f"the slave has reported nothing for {SILENCE_S:.0f} s")
        elif now_s - self._written_s > HEARTBEAT_S and not self._is_paused and self._transport is not None:
            self._transport.write(self.link.heartbeat())
            self._written_s = now_s

    def close(self, reason: str) -> None:
        """Cuts the connection, and says why in the log."""
        self._server.closed(self, reason)
        self.abort()

    def abort(self) -> None:
        """Cuts the connection. From now on nobody waits for this slave, whenever the transport says that it is lost."""
        if self._transport is not None:
            self._transport.abort()
        self._server.forget(self)

    def _fetch(self, work: Callable[[], None]) -> None:
        def done(_: asyncio.Future[None]) -> None:
            self._is_fetching = False
            self.link.fetched()
            self.send()

        self._is_fetching = True
        self._server.fetch(work).add_done_callback(done)


class HaServer:
    """The port.

    Attributes:
        log: the log that is sent.
        loop: the event loop; set by ``start``.
        port: the port; after ``start``, the one that was chosen if it was 0.
        slaves: the connected slaves.
        connections: number of connections of slaves since the start.
        watcher: as given.
        new_link: returns the object that decides for a new connection; that of a master without a controller at first.

    Args:
        log: as given.
        options: where to listen, and who may connect.
        fetch: reads from the disk in a thread.
        watcher: is told what slaves have.
        supervisor: supervises the periodic work.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        log: SentLog,
        options: HaServerOptions,
        fetch: Callable[[Callable[[], None]], asyncio.Future[None]],
        watcher: SlaveWatcher,
        supervisor: Supervisor,
    ) -> None:
        self.log, self.port = log, options.port
        self.slaves: set[HaChannel] = set()
        self.connections = 0
        self.fetch, self.watcher = fetch, watcher
        self.new_link: Callable[[], ChannelLink] = lambda: MasterLink(log, TRANSFER_BYTES)
        self._options, self._supervisor = options, supervisor
        self._log = AddressLog()
        self._server: asyncio.Server | TlsListener | None = None
        self._looking: PeriodicWork | None = None
        self._gathering: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            AddressInUseError: the port is taken.
            ConfigError: the address cannot be used for another reason.
        """
        self.loop = asyncio.get_running_loop()
        try:
            self._server = await listen(
                lambda: HaChannel(self),
                self._options.host,
                self.port,
                _BACKLOG,
                self._options.tls,
                self._log.closed,
                self._supervisor,
            )
        except AddressInUseError as error:
            raise AddressInUseError(error.address, "haListenPort") from error.__cause__
        self.port = self._server.sockets[0].getsockname()[1]
        self._looking = self._supervisor.every("look at slaves", lambda: _LOOK_S, self._look, self.loop)

    async def stop(self) -> None:
        """Closes the port, sends what there is to slaves that take it at once, and cuts their connections. Afterwards
        the log is not read.
        """
        if self._gathering is not None:
            self._gathering.cancel()
        if self._looking is not None:
            await self._looking.stop()
        if self._server is not None:
            self._server.close()
        for slave in list(self.slaves):
            slave.send()
        await asyncio.sleep(0)  # transports write at the end of a turn
        for slave in list(self.slaves):
            slave.abort()

    def grew(self) -> None:
        """Called when more of the log may leave. It leaves in the next iteration of the event loop if senders wait for
        it, otherwise a moment later.
        """
        if self.watcher.waits:
            self._send_soon()
        elif self._gathering is None and self.slaves:
            self._gathering = self.loop.call_later(GATHER_S, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._send_soon()

    def _send_soon(self) -> None:
        for slave in self.slaves:
            slave.send_soon()

    def held_offset(self, count: int, oldest_end: float = inf) -> int:
        """Physical offset up to which ``count`` slaves have confirmed the log; -1 if there are fewer. At least 1.

        Args:
            oldest_end: end of the first message in question: a slave that began behind it will never have it.
        """
        return _nth((one.link.confirmed for one in self.slaves if one.link.start < oldest_end), count)

    def reported_offset(self, count: int) -> int:
        """The same by what slaves report, which is more as long as one has only asked for what follows."""
        return _nth((slave.link.acknowledged for slave in self.slaves), count)

    # --- for the connections

    def opened(self, slave: HaChannel, host: str, certificate: Mapping[str, object] | None) -> str:
        """Takes a slave; returns why it must be closed, or an empty text.

        Args:
            certificate: the slave's checked certificate; None without TLS.
        """
        if not certificate and not self._options.access.allows(host):
            return "only loopback, the addresses in haAllowedSlaves and, over TLS, certificates may copy the log"
        if len(self.slaves) >= SLAVES_MAX:
            return f"there are {SLAVES_MAX} slaves already"
        self.slaves.add(slave)
        self.connections += 1
        event(logger, logging.INFO, "slave connected", peer=slave.address, certificate=_name_in(certificate))
        self.watcher.changed()
        return ""

    def forget(self, slave: HaChannel) -> None:
        """Notes that a slave is gone; does nothing if that is known."""
        if slave in self.slaves:
            self.slaves.remove(slave)
            slave.link.end()
            event(logger, logging.INFO, "slave gone", peer=slave.address, acknowledged=slave.link.acknowledged)
            self.watcher.changed()

    def closed(self, slave: HaChannel, reason: str) -> None:
        """Logs why a connection is closed."""
        self._log.closed(slave.address, reason)

    def _look(self) -> None:
        now_s = self.loop.time()
        for slave in list(self.slaves):
            slave.look(now_s)
        self.watcher.look()


def _name_in(certificate: Mapping[str, object] | None) -> str:
    """Returns the subject of a certificate, as text."""
    if not certificate:
        return "none"
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    return ", ".join(f"{key}={value}" for part in subject for key, value in part)


def _nth(offsets: Iterable[int], count: int) -> int:
    if count == 1:
        return max(offsets, default=-1)
    descending = sorted(offsets, reverse=True)
    return descending[count - 1] if count <= len(descending) else -1
