"""A network in memory between processes on ``SimulatedLoop``. Nothing moves by itself: a test delivers bytes in pieces
of any size, holds back one direction, and ends connections at any byte.

A connection has two directions. What a process writes waits in its direction until it is delivered. A part of it lies
in the system, and is delivered even if the process is killed; the rest is lost with the process. A peer learns of an
end only after the bytes before it. After a power cut it learns nothing, until it sends something to the host that is
back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, cast

from rucola.testing.simulated_loop import SimulatedLoop

if TYPE_CHECKING:
    from collections.abc import Iterable

Address = tuple[str, int]
Watcher = Callable[[SimulatedLoop, "SimulatedTransport", bytes], bytes]
_SYSTEM_BYTES = 2048
"""Bytes of a direction that lie in the system, and not in the process that has written them."""
_HIGH_BYTES = 4096
"""Most bytes in the process with which a protocol may write: few, because tests have small logs."""


class Direction:
    """The bytes on their way from one end of a connection to the other.

    Attributes:
        source, target: the two ends.
        waiting: bytes that were written, and not delivered.
        is_held: whether nothing is delivered, as behind a router that drops everything.
        is_lost: whether what is written reaches nobody, because the target's host has lost its power.
        is_ended: whether nothing follows ``waiting``.
        answer: the other direction, if the target's host is back and will answer that it knows no such connection.
    """

    def __init__(self, source: SimulatedTransport, target: SimulatedTransport) -> None:
        self.source, self.target = source, target
        self.waiting = bytearray()
        self.is_held = self.is_lost = self.is_ended = False
        self.answer: Direction | None = None

    @property
    def can_deliver(self) -> bool:
        """Whether ``deliver`` would do something."""
        return not self.is_held and not self.is_lost and not self.target.is_gone and bool(self.waiting or self.is_ended)

    def deliver(self, most: int) -> None:
        """Hands over up to ``most`` bytes; then the end, if nothing is left before it."""
        if not self.can_deliver:
            return
        piece = bytes(self.waiting[:most])
        del self.waiting[:most]
        if piece:
            self.target.read(piece)
            self.source.drained()
        if self.is_ended and not self.waiting:
            self.target.lose(ConnectionResetError("the peer has ended the connection"))

    def end(self, kept: int) -> None:
        """Nothing follows the first ``kept`` waiting bytes."""
        del self.waiting[kept:]
        self.is_ended = True


class SimulatedTransport(asyncio.Transport):
    """One end of a connection.

    Attributes:
        loop: the loop of its process.
        is_gone: whether its protocol was told of the end, or its process is dead.
        out: the direction in which it writes.
    """

    out: Direction

    def __init__(self, loop: SimulatedLoop, peer: Address, watcher: Watcher) -> None:
        super().__init__({"peername": peer})
        self.loop = loop
        self.is_gone = False
        self._protocol: asyncio.BufferedProtocol | None = None
        self._watcher = watcher
        self._high = _HIGH_BYTES
        self._is_closing = self._is_paused = False

    # -- asyncio -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends bytes."""
        if self._is_closing or self.is_gone or not data:
            return
        content = self._watcher(self.loop, self, bytes(data))
        if not self.out.is_ended:  # who does not know of the end yet writes in vain
            self.out.waiting += content
        if self.out.answer is not None and not self.out.answer.is_ended:
            self.out.answer.end(len(self.out.answer.waiting))
        if self.get_write_buffer_size() > self._high and not self._is_paused and self._protocol is not None:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Sends bytes."""
        self.write(b"".join(list_of_data))

    def abort(self) -> None:
        """Ends the connection at once; what lies in the process is lost."""
        if self._is_closing or self.is_gone:
            return
        self._is_closing = True
        self.out.end(_SYSTEM_BYTES)
        self.loop.call_soon(self.lose, None)

    close = abort

    def is_closing(self) -> bool:
        """Whether the connection ends or has ended."""
        return self._is_closing or self.is_gone

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets with how many bytes in the process the protocol is paused."""
        self._high = _HIGH_BYTES if high is None else min(high, _HIGH_BYTES)

    def get_write_buffer_size(self) -> int:
        """Number of bytes that lie in the process."""
        return max(len(self.out.waiting) - _SYSTEM_BYTES, 0)

    # -- the network ---------------------------------------------------------------------------------------------------

    def connect(self, protocol: asyncio.BaseProtocol) -> None:
        """Gives the connection to its protocol."""
        self._protocol = cast(asyncio.BufferedProtocol, protocol)
        self._protocol.connection_made(self)

    def read(self, piece: bytes) -> None:
        """Hands bytes over to the protocol, in the next iteration of its loop."""
        self.loop.call_soon(self._read, memoryview(piece))

    def _read(self, piece: memoryview) -> None:
        while piece and not self.is_closing() and self._protocol is not None:
            space = self._protocol.get_buffer(len(piece))
            count = min(len(space), len(piece))  # type: ignore[arg-type]
            space[:count] = piece[:count]  # type: ignore[index]
            self._protocol.buffer_updated(count)
            piece = piece[count:]

    def drained(self) -> None:
        """Lets the protocol write again, if it was paused and little is left."""
        if self._is_paused and not self.is_gone and self.get_write_buffer_size() <= self._high // 4:
            self._is_paused = False
            self.loop.call_soon(self._resume)

    def _resume(self) -> None:
        if not self.is_gone and self._protocol is not None:
            self._protocol.resume_writing()

    def lose(self, error: Exception | None) -> None:
        """Tells the protocol, once, that the connection has ended."""
        if self.is_gone:
            return
        self.loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        if not self.is_gone:
            self.is_gone = True
            if not self.out.is_ended:
                self.out.end(0)
            if self._protocol is not None:
                self._protocol.connection_lost(error)


class SimulatedServer:
    """What listens on an address. The methods of ``asyncio.Server`` and its socket that servers use."""

    def __init__(self, loop: SimulatedLoop, factory: Callable[[], asyncio.BaseProtocol], address: Address) -> None:
        self.loop, self.factory, self.address = loop, factory, address
        self.is_open = True

    @property
    def sockets(self) -> list[SimulatedServer]:
        """Itself, as the socket."""
        return [self]

    def close(self) -> None:
        """Accepts no more connections."""
        self.is_open = False

    def dup(self) -> SimulatedServer:
        """Returns itself."""
        return self

    def listen(self, backlog: int) -> None:
        """Does nothing."""

    def getsockname(self) -> Address:
        """Returns the address."""
        return self.address

    def __enter__(self) -> SimulatedServer:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing."""


class SimulatedNetwork:
    """The network of a test.

    Attributes:
        connections: the two directions of each connection, first the one to the server; the newest connection is last.
        opened: number of connections that each host has opened.
        refuses: whether connections cannot be opened.

    Args:
        watcher: called with each write, and the loop and transport that write; returns what is sent instead.
    """

    def __init__(self, watcher: Watcher = lambda _loop, _transport, data: data) -> None:
        self.connections: list[tuple[Direction, Direction]] = []
        self.opened: Counter[str] = Counter()
        self.refuses = False
        self._watcher = watcher
        self._servers: dict[Address, SimulatedServer] = {}
        self._hosts: dict[str, int] = {}

    def listen(
        self, loop: SimulatedLoop, factory: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> SimulatedServer:
        """Accepts connections to ``address`` from now on."""
        server = self._servers[address] = SimulatedServer(loop, factory, address)
        return server

    async def connect(
        self, loop: SimulatedLoop, factory: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connects to a server.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        server = self._servers.get(address)
        if self.refuses or server is None or not server.is_open or not server.loop.alive:
            raise ConnectionRefusedError(address)
        self.opened[loop.host] += 1
        here = SimulatedTransport(loop, address, self._watcher)
        there = SimulatedTransport(server.loop, (self.address_of(loop.host), self.opened.total()), self._watcher)
        here.out, there.out = Direction(here, there), Direction(there, here)
        self.connections = [
            pair for pair in self.connections if not (pair[0].target.is_gone and pair[0].source.is_gone)
        ]
        self.connections.append((here.out, there.out))
        server.loop.call_soon(lambda: there.connect(server.factory()))
        protocol = factory()
        here.connect(protocol)
        return here, protocol

    def address_of(self, host: str) -> str:
        """Returns the numeric address of a host, as its peers see it."""
        return f"10.0.1.{self._hosts.setdefault(host, len(self._hosts) + 1)}"

    def directions(self) -> Iterator[Direction]:
        """All directions of all connections."""
        for pair in self.connections:
            yield from pair

    def cut(self, connection: tuple[Direction, Direction], random: Random) -> None:
        """Ends a connection at any byte of each direction."""
        for direction in connection:
            if not direction.is_ended:
                direction.end(random.randint(0, len(direction.waiting)))

    def died(self, loop: SimulatedLoop) -> None:
        """Ends the connections of a killed process: its system still sends what it has."""
        for direction in self.directions():
            if direction.source.loop is loop and not direction.source.is_gone:
                direction.source.is_gone = True
                if not direction.is_ended:
                    direction.end(_SYSTEM_BYTES)

    def lost_power(self, loop: SimulatedLoop, random: Random) -> None:
        """Ends the connections of a host without power, before ``SimulatedLoop.kill``: nobody is told."""
        for direction in self.directions():
            if direction.source.loop is loop and not direction.source.is_gone:
                direction.source.is_gone = True
                del direction.waiting[random.randint(0, len(direction.waiting)) :]
            elif direction.target.loop is loop:
                direction.is_lost = True

    def restore_power(self, host: str) -> None:
        """A host is back: who writes to a connection that it does not know any more learns that it has ended."""
        for there, back in self.connections:
            for direction, answer in ((there, back), (back, there)):
                if direction.is_lost and direction.target.loop.host == host:
                    direction.answer = answer
                    if direction.waiting:
                        answer.end(len(answer.waiting))
