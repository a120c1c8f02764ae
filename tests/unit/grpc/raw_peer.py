"""A client that sends what it likes and a connection of the server, without sockets; tests move the clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
from tests.unit.grpc.services import WANTED, Service

from rucola.grpc.connection import GrpcConnection
from rucola.grpc.server import GrpcServer
from rucola.grpc.server_options import GrpcServerOptions
from rucola.testing.clock import ManualClock

POST = {":method": "POST", ":scheme": "http", ":authority": "x", ":path": "/t.T/Echo"}
GRPC = {"content-type": "application/grpc", "te": "trailers"}
HELLO = b"\0\0\0\0\x05hello"


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.ended = self.closed = self.aborted = False
        self.reads = True
        self.waiting = 0

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 50_000) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class Peer:
    """A client made of the library h2, and our connection, without sockets."""

    def __init__(self, held_bytes_max: int = 1 << 20) -> None:
        self.service = Service()
        methods = self.service.methods()
        options = GrpcServerOptions(held_bytes_max=held_bytes_max)
        self.clock = ManualClock()
        server = GrpcServer(methods, "127.0.0.1", 0, self.clock.monotonic, WANTED, options)
        self.soon: list[Callable[[], None]] = []
        loop = SimpleNamespace(call_soon=self._soon, call_later=self._later, time=self.clock.monotonic)
        server.loop = cast(Any, loop)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.cancelled = 0
        self.connection, self.transport = GrpcConnection(server), Transport()
        self.connection.connection_made(cast(Any, self.transport))
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(validate_outbound_headers=False))
        self.client.initiate_connection()
        self._stream = -1

    def _soon(self, work: Callable[..., None], *arguments: object) -> None:
        self.soon.append(lambda: work(*arguments))

    def _later(self, delay_s: float, work: Callable[..., None], *arguments: object) -> SimpleNamespace:
        self.timers.append((delay_s, lambda: work(*arguments)))
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1

    def feed(self, data: bytes) -> None:
        """Gives bytes to the connection, as a socket would."""
        while data:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def events(self) -> list[h2.events.Event]:
        """Sends what the client has to send; returns what the answers mean to it."""
        self.feed(self.client.data_to_send())
        answer = bytes(self.transport.written)
        self.transport.written.clear()
        return list(self.client.receive_data(answer))

    def ask(self, fields: dict[str, str], *data: bytes, end: bool = True) -> dict[str, Any]:
        """Sends a request; returns the fields of the answer, and its data under ``data``."""
        self._stream += 2
        self.client.send_headers(self._stream, list(fields.items()), end_stream=end and not data)
        for number, part in enumerate(data, 1):
            self.client.send_data(self._stream, part, end_stream=end and number == len(data))
        answer: dict[str, Any] = {"data": b""}
        for event in self.events():
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                answer |= {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h2.events.DataReceived):
                answer["data"] += event.data
            elif isinstance(event, h2.events.StreamReset):
                answer["reset"] = event.error_code
        return answer


def echo_of(size: int) -> bytes:
    """A request, or a response, of so many zeros."""
    return b"\0" + size.to_bytes(4, "big") + bytes(size)
