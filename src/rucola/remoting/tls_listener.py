"""Listens with TLS, or with and without TLS on one port: a connection whose first byte is 0x16 begins with a TLS hello
(RocketMQ 5.3.3, ``NettyRemotingServer.TlsModeHandler``; protocol.md 1.8).

The first byte is read without being consumed, so both kinds of connection start from their first byte.

A peer whose handshake is refused is told why, by an alert of TLS. Event loops close the connection without sending it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rucola.errors import RucolaError
from rucola.runtime.server_handshake import alert_in
from rucola.runtime.supervision import Supervisor

_TLS_HANDSHAKE = 0x16
HANDSHAKE_TIMEOUT_S = 10.0
HANDSHAKES_MAX = 32
"""Maximum number of unfinished handshakes of one address; a peer with more does not intend to finish them."""
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 1.0
_LAST_WORDS_S = 1.0
"""How long a refused peer may go on sending: to close before would reset the connection, and lose the alert."""
_READ_BYTES, _READS_MAX = 16 * 1024, 16
"""What is read meanwhile at a time, and how often."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS settings of a server.

    Attributes:
        context: certificate and rules; or what makes them, called once in a thread, at the first handshake.
        permissive: whether plain connections are accepted, too.
    """

    context: ssl.SSLContext | Callable[[], ssl.SSLContext]
    permissive: bool = False


class TlsListener:
    """Accepts connections until ``close``. Event loop only.

    Args:
        listening: a listening socket, which this object closes.
        protocol: creates the protocol of a connection.
        tls: certificate and mode.
        supervisor: counts and logs unexpected errors, which do not stop the listener.
        failed: called with peer and reason if a handshake fails or is refused.
    """

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ServerTls,
        failed: Callable[[str, str], None],
        supervisor: Supervisor,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._protocol = protocol
        self._tls = tls
        self._failed = failed
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()
        self._context: asyncio.Future[ssl.SSLContext] | None = None
        self._shaking: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = self._loop.create_task(self._accept())

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets, like those of ``asyncio.Server``."""
        return (self._listening,)

    def close(self) -> None:
        """Accepts no more connections; closes connections whose handshake is unfinished."""
        self._accepting.cancel()
        for task in list(self._tasks):
            task.cancel()
        self._listening.close()

    async def _accept(self) -> None:
        while True:
            try:
                await self._accept_one()
            except OSError as error:  # otherwise the peer left before it was accepted
                if error.errno in _OUT_OF_FILES:
                    await asyncio.sleep(_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - an unexpected error costs one connection and not all later ones
                self._supervisor.failed("acceptance of connections", error)
                await asyncio.sleep(_PAUSE_S)

    async def _accept_one(self) -> None:
        accepted, peer = await self._loop.sock_accept(self._listening)
        host = str(peer[0])
        if self._shaking[host] >= HANDSHAKES_MAX:
            accepted.close()
            self._failed(host, f"more than {HANDSHAKES_MAX} handshakes at a time")
            return
        self._shaking[host] += 1
        task = self._loop.create_task(self._open(accepted, host))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, accepted: socket.socket, host: str) -> None:
        opened = False
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                if self._tls.permissive and await self._first_byte(accepted) != _TLS_HANDSHAKE:
                    await self._loop.connect_accepted_socket(self._protocol, accepted)
                else:
                    await self._shake_hands(accepted)
            opened = True
        except TimeoutError:
            self._failed(host, f"no handshake within {HANDSHAKE_TIMEOUT_S:.0f} s")
        except OSError as error:  # ssl.SSLError is an OSError
            self._failed(host, f"handshake failed: {_reason(error)}")
        except RucolaError as error:
            self._supervisor.failed("TLS context", error)
            self._context = None  # the next client tries again
        finally:
            self._shaking[host] -= 1
            if not self._shaking[host]:
                del self._shaking[host]
            if not opened:
                accepted.close()

    async def _shake_hands(self, accepted: socket.socket) -> None:
        """Gives a connection to its protocol after the handshake.

        Raises:
            OSError: the handshake has failed; the peer was told.
        """
        context = await self._made_context()
        with accepted.dup() as kept:  # the loop closes its own
            try:
                await self._loop.connect_accepted_socket(
                    self._protocol,
                    accepted,
                    ssl=context,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                )
            except ssl.SSLError as error:
                with suppress(OSError):  # including a timeout
                    await self._refuse(kept, alert_in(error))
                raise

    async def _refuse(self, kept: socket.socket, alert: bytes) -> None:
        """Tells a peer why, and waits a moment until it has closed."""
        if not alert:
            return
        kept.setblocking(False)
        kept.send(alert)
        kept.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_LAST_WORDS_S):
            for _ in range(_READS_MAX):
                if not await self._loop.sock_recv(kept, _READ_BYTES):
                    return
                await asyncio.sleep(0)  # what is there already is read in the same turn

    async def _made_context(self) -> ssl.SSLContext:
        context = self._tls.context
        if isinstance(context, ssl.SSLContext):
            return context
        if self._context is None:
            self._context = self._loop.run_in_executor(None, context)
        return await asyncio.shield(self._context)  # a client that leaves must not end it for the others

    async def _first_byte(self, accepted: socket.socket) -> int:
        """The first byte waiting in ``accepted``, without consuming it; -1 if the peer has closed."""
        accepted.setblocking(False)
        ready = asyncio.Event()
        self._loop.add_reader(accepted.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(accepted.fileno())
        first = accepted.recv(1, socket.MSG_PEEK)
        return first[0] if first else -1


def _reason(error: OSError) -> str:
    """Returns why a handshake failed, in the words of OpenSSL."""
    reason = str(getattr(error, "reason", None) or error) or type(error).__name__
    return f"{reason}, {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else reason
