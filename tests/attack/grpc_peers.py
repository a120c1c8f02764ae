"""A gRPC server under attack: attackers that send any bytes, and a canary whose checks must be answered meanwhile."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from ssl import SSLContext
from typing import cast

import hpack
from tests.unit.grpc.services import WANTED, Service
from tests.unit.http2.wire import END_STREAM, data, headers, settings, word

from rucola.grpc.call import GrpcCall
from rucola.grpc.connection import GrpcConnection
from rucola.grpc.health import HEALTH_V1, HealthService
from rucola.grpc.methods import UnaryMethod
from rucola.grpc.reflection import ReflectionService
from rucola.grpc.server import GrpcServer
from rucola.grpc.server_options import GrpcServerOptions
from rucola.http2.frames import PREFACE, FrameType
from rucola.testing.event_loop import settle

MIB = 1 << 20
HELLO = b"\0\0\0\0\x05hello"
GREETING = PREFACE + settings()
CHECK = HEALTH_V1.path("Check").decode()


class Attacked(Service):
    """The methods of ``Service``, and one whose answer has as many MiB as its request has bytes."""

    def methods(self):  # type: ignore[no-untyped-def]
        """The methods of the service."""
        return {**super().methods(), b"/t.T/Large": UnaryMethod(self.large)}

    def large(self, call: GrpcCall, request: bytes) -> None:
        self.waiting.append(call)

        def over() -> None:
            self.waiting.remove(call)
            self.over += 1

        call.on_over = over
        call.send(bytes(len(request) * MIB))


@asynccontextmanager
async def attacked(
    options: GrpcServerOptions | None = None, clock: Callable[[], float] | None = None
) -> AsyncIterator[tuple[GrpcServer, Attacked, Canary]]:
    """A server on the running loop, its service, and a canary that was served once.

    Args:
        options: limits.
        clock: the clock of the server; None for that of the loop.
    """
    service = Attacked()
    methods = {**service.methods(), **HealthService().methods(), **ReflectionService([HEALTH_V1]).methods()}
    clock = clock or asyncio.get_running_loop().time
    server = GrpcServer(methods, "127.0.0.1", 0, clock, WANTED, options)
    await server.start()
    canary = Canary(await Attacker.open(server))
    try:
        await canary.served()
        yield server, service, canary
        await canary.served(3)
    finally:
        canary.stop()
        await server.stop(0)


class Attacker(asyncio.Protocol):
    """A connection that sends any bytes.

    Attributes:
        counts: number of frames of each type that came.
        goaway: the error code with which the server has ended the connection; -1 before.
        resets: the error code of each stream that was reset.
        answers: the fields of each stream whose answer has ended.
        ended: set when the connection has ended.
        encoder: for header blocks.
        stream: the last stream that was opened.
        connection: the server's side.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.goaway = -1
        self.resets: dict[int, int] = {}
        self.answers: dict[int, dict[str, str]] = {}
        self.ended = asyncio.Event()
        self.came = asyncio.Event()
        self.encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._rest = b""
        self.stream = -1
        self.connection: weakref.ref[GrpcConnection]
        self._transport: asyncio.Transport

    @classmethod
    async def open(
        cls, server: GrpcServer, first: bytes = GREETING, host: str = "127.0.0.1", tls: SSLContext | None = None
    ) -> Attacker:
        """Connects from a loopback address, and sends the first bytes."""
        before = set(server.connections)
        _, made = await asyncio.get_running_loop().create_connection(
            cls, "127.0.0.1", server.port, local_addr=(host, 0), ssl=tls
        )
        made.send(first)
        while first and len(server.connections) == len(before) and not made.ended.is_set():
            await asyncio.sleep(0)
        for connection in server.connections - before:
            made.connection = weakref.ref(connection)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        rest = self._rest + data if self._rest else data
        at = 0
        while len(rest) - at >= 9 and at + 9 + (length := int.from_bytes(rest[at : at + 3], "big")) <= len(rest):
            self._frame(
                rest[at + 3], rest[at + 4], int.from_bytes(rest[at + 5 : at + 9], "big"), rest[at + 9 : at + 9 + length]
            )
            at += 9 + length
        self._rest = rest[at:]
        self.came.set()

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.counts[kind] += 1
        if kind == FrameType.GOAWAY:
            self.goaway = int.from_bytes(payload[4:8], "big")
        elif kind == FrameType.RST_STREAM:
            self.resets[stream] = int.from_bytes(payload, "big")
        elif kind == FrameType.HEADERS and flags & END_STREAM:
            self.answers[stream] = dict(self._decoder.decode(payload))

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()
        self.came.set()

    def send(self, data: bytes) -> None:
        """Sends bytes, if the connection is still there."""
        if not self._transport.is_closing():
            self._transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the server has not taken yet."""
        return self._transport.get_write_buffer_size()

    def stop_reading(self) -> None:
        """Reads nothing any more."""
        self._transport.pause_reading()

    def close(self) -> None:
        """Ends the connection."""
        if not self.ended.is_set():
            self._transport.abort()

    def request(self, path: str = "/t.T/Never", body: bytes | None = HELLO, *more: tuple[str, str]) -> bytes:
        """A request on a new stream; with a body of None, headers only, and the stream stays open."""
        self.stream += 2
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        block = self.encoder.encode(
            [*fields, ("content-type", "application/grpc"), ("te", "trailers"), *more], huffman=False
        )
        return headers(self.stream, block) + (b"" if body is None else data(self.stream, body, True))


class Canary:
    """Asks for the health of the server, again and again, on a connection of its own.

    Attributes:
        attacker: the connection.
        answers: number of checks that were answered with SERVING.
    """

    def __init__(self, attacker: Attacker) -> None:
        self.attacker = attacker
        self.answers = 0
        self._answered = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        mine = self.attacker
        while True:
            mine.send(mine.request(CHECK, bytes(5)) + word(FrameType.WINDOW_UPDATE, 0, 7))
            while mine.stream not in mine.answers:
                mine.came.clear()
                await mine.came.wait()
                assert not mine.ended.is_set(), "the canary's connection has ended"
            assert mine.answers.pop(mine.stream) == {"grpc-status": "0"}
            self.answers += 1
            self._answered.set()

    def stop(self) -> None:
        """Ends the checks."""
        self._task.cancel()

    async def served(self, count: int = 2) -> None:
        """Waits for the end of so many checks. The first of two may have been answered before, so two show that the
        server still serves.
        """
        wanted = self.answers + count
        while self.answers < wanted:
            assert not self._task.done(), self._task.exception()
            self._answered.clear()
            await self._answered.wait()


async def assault(attacker: Attacker, canary: Canary, part: Callable[[int], bytes], rounds: int) -> int:
    """Sends parts of an attack until the server ends it, at most so many; the canary is served after each.

    Returns:
        Number of parts that were sent.
    """
    for number in range(rounds):
        attacker.send(part(number))
        await canary.served()
        if attacker.goaway >= 0:
            return number + 1
    return rounds


async def forgotten(server: GrpcServer, *attackers: Attacker) -> None:
    """Ends connections, and checks that the server keeps nothing of them."""
    for attacker in attackers:
        attacker.close()
    while len(server.connections) > 1:
        await settle()
    await settle()
    gc.collect()
    assert [attacker.connection() for attacker in attackers] == [None] * len(attackers)
    assert server.held_bytes == server.unsent_bytes == 0
    assert server.stream_count <= 1, "that of the canary"
    assert len(server.time_limits._silent) == 1


@contextmanager
def memory(most: int) -> Iterator[None]:
    """Checks that the memory does not grow by more than so many bytes, even for a moment."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak} bytes"
