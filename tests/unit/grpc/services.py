"""A server with one method of each kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rucola.grpc.call import GrpcCall
from rucola.grpc.methods import Method, StreamMethod, UnaryMethod
from rucola.grpc.server import GrpcServer
from rucola.grpc.server_options import GrpcServerOptions
from rucola.grpc.status import GrpcError, StatusCode

WANTED = (b"x-mq-client-id", b"x-mq-date-time")
SMALL = GrpcServerOptions(held_bytes_max=1 << 20)


class Service:
    """Handlers, and what they saw.

    Attributes:
        metadata: fields of each call of Echo.
        waiting: calls of Never that are not over.
        over: number of calls of Never and Talk that ended otherwise than by their handler.
        finished: number of conversations in which the client finished.
        heard: the requests of conversations.
    """

    def __init__(self) -> None:
        self.metadata: list[list[bytes | None]] = []
        self.waiting: list[GrpcCall] = []
        self.over = 0
        self.finished = 0
        self.heard: list[bytes] = []

    def methods(self) -> dict[bytes, Method]:
        """The methods of the service."""
        unary: dict[str, Callable[[GrpcCall, bytes], object]] = {
            "Echo": self.echo,
            "Later": self.later,
            "Sleep": self.sleep,
            "Many": self.many,
            "Refuse": self.refuse,
            "RefuseLater": self.refuse_later,
            "Fail": self.fail,
            "FailLater": self.fail_later,
            "Never": self.never,
        }
        methods: dict[bytes, Method] = {b"/t.T/" + name.encode(): UnaryMethod(of) for name, of in unary.items()}  # type: ignore[arg-type]
        methods[b"/t.T/Talk"] = StreamMethod(lambda call: Talk(call, self))
        methods[b"/t.T/Closed"] = StreamMethod(self.closed)
        methods[b"/t.T/Small"] = UnaryMethod(self.echo, message_bytes_max=10)
        return methods

    def closed(self, call: GrpcCall) -> Talk:
        raise GrpcError(StatusCode.UNAVAILABLE, "closed")

    def echo(self, call: GrpcCall, request: bytes) -> bytes:
        self.metadata.append(list(call.metadata))
        return request

    async def later(self, call: GrpcCall, request: bytes) -> bytes:
        await asyncio.sleep(0.01)
        return request + b"!"

    async def sleep(self, call: GrpcCall, request: bytes) -> bytes:
        await asyncio.sleep(3600)
        return request

    def many(self, call: GrpcCall, request: bytes) -> None:
        for number in range(int(request)):
            call.send(b"%d" % number)
        call.end()

    def refuse(self, call: GrpcCall, request: bytes) -> bytes:
        raise GrpcError(StatusCode.FAILED_PRECONDITION, "nicht möglich, 100 %\n" + "x" * int(request or b"0"))

    async def refuse_later(self, call: GrpcCall, request: bytes) -> bytes:
        await asyncio.sleep(0)
        raise GrpcError(StatusCode.NOT_FOUND, "not there")

    def fail(self, call: GrpcCall, request: bytes) -> bytes:
        raise ValueError("a defect")

    async def fail_later(self, call: GrpcCall, request: bytes) -> bytes:
        raise ValueError("a defect")

    def never(self, call: GrpcCall, request: bytes) -> None:
        self.waiting.append(call)

        def over() -> None:
            self.waiting.remove(call)
            self.over += 1

        call.on_over = over


class Talk:
    """A conversation in which each request gets an answer; some words have a meaning."""

    def __init__(self, call: GrpcCall, service: Service) -> None:
        self._call, self._service = call, service

        def over() -> None:
            service.over += 1

        call.on_over = over

    def received(self, message: bytes) -> None:
        self._service.heard.append(message)
        if message == b"refuse":
            raise GrpcError(StatusCode.FAILED_PRECONDITION, "no more")
        if message == b"fail":
            raise ValueError("a defect")
        if message == b"end":
            self._call.end()
        self._call.send(message * 2)

    def finished(self) -> None:
        self._service.finished += 1
        self._call.end()


@asynccontextmanager
async def served(service: Service | None = None, options: GrpcServerOptions = SMALL) -> AsyncIterator[GrpcServer]:
    """A running server."""
    methods = (service or Service()).methods()
    server = GrpcServer(methods, "127.0.0.1", 0, time.monotonic, WANTED, options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)
