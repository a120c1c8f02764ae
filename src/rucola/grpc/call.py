"""One call of a client: its requests as they come in, and the means to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from rucola.grpc.metadata import timeout_s
from rucola.grpc.methods import UnaryMethod
from rucola.grpc.status import HEADERS, OK_TRAILERS, GrpcError, StatusCode, trailers

if TYPE_CHECKING:
    from rucola.grpc.connection import GrpcConnection
    from rucola.grpc.methods import Conversation, Method

PREFIX_BYTES = 5
"""What stands before each request and response."""
_HEAD = Struct(">BI")
"""What stands before a message: whether it is compressed, and its length."""


class GrpcCall:
    """A call, from its headers to its status. Event loop only.

    Attributes:
        stream: number of the stream.
        method: the method that is called.
        metadata: values of the fields that the server's methods want; None for absent ones.
        timeout: the time in which the client wants the answer, as it says it.
        encoding: how the client compresses requests that it marks as compressed.
        is_new: whether the method takes one request, and nothing of it came yet.
        conversation: for methods with a stream of requests.
        is_over: whether nothing more can be sent: it ended, or the client cancelled it or is gone.
        on_over: called if the client or its deadline ends the call before ``end``.
    """

    __slots__ = (
        "_connection",
        "_has_headers",
        "_held",
        "_request",
        "_timer",
        "conversation",
        "encoding",
        "is_new",
        "is_over",
        "metadata",
        "method",
        "on_over",
        "stream",
        "timeout",
    )

    def __init__(
        self,
        connection: GrpcConnection,
        stream: int,
        method: Method,
        metadata: Sequence[bytes | None],
        timeout: bytes | None,
        encoding: bytes | None,
    ) -> None:
        self.stream, self.method, self.metadata = stream, method, metadata
        self.timeout, self.encoding = timeout, encoding
        self.conversation: Conversation | None = None
        self.is_new = type(method) is UnaryMethod
        self.is_over = self._has_headers = False
        self.on_over: Callable[[], None] | None = None
        self._connection = connection
        self._held = bytearray()
        self._request: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- for handlers

    @property
    def unsent_bytes(self) -> int:
        """Bytes of this call that wait for the client's windows."""
        return 0 if self.is_over else self._connection.http2.queued_bytes(self.stream)

    @property
    def connection_unsent_bytes(self) -> int:
        """Bytes of all calls of the connection that the client did not take, as counted after the last write."""
        return self._connection.unsent_bytes

    @property
    def address(self) -> str:
        """Address of the client, ``host:port``."""
        return self._connection.address

    @property
    def secure(self) -> bool:
        """Whether the connection of the client is encrypted."""
        return self._connection.secure

    def send(self, message: bytes) -> None:
        """Sends a response; does nothing if the call is over."""
        if self.is_over:
            return
        self._begin_answer(message)
        self._connection.http2.send_data(self.stream, _HEAD.pack(0, len(message)) + message)
        self._connection.flush_soon()

    def send_all(self, messages: Iterable[bytes]) -> None:
        """Sends several responses; does nothing if the call is over."""
        if self.is_over:
            return
        parts: list[bytes] = []
        for message in messages:
            parts += (_HEAD.pack(0, len(message)), message)
        if not parts:
            return
        self._begin_answer(parts[1])
        self._connection.http2.send_data(self.stream, b"".join(parts))
        self._connection.flush_soon()

    def finish(self, messages: Iterable[bytes], lost: Callable[[int], None]) -> None:
        """Sends the last responses and ends the call; does nothing if the call is over.

        Args:
            messages: the responses.
            lost: called if the client goes before it has taken all of them, with the number of bytes that it did not
                take; each response counts with the 5 bytes before it.
        """
        if self.is_over:
            return
        messages = list(messages)
        self.send_all(messages)
        self._connection.unwritten.add(self.stream, sum(map(len, messages)) + PREFIX_BYTES * len(messages), lost)
        self.end()

    def end(self, code: StatusCode = StatusCode.OK, text: str = "") -> None:
        """Ends the call; does nothing if it is over.

        Args:
            code: its status.
            text: for a status other than OK, what the client reads.
        """
        if self.is_over:
            return
        if code == StatusCode.OK and self._has_headers:
            block = OK_TRAILERS
        else:
            if self.method.outcomes is not None:
                self.method.outcomes.ended(code)
            block = trailers(code, text, alone=not self._has_headers)
        self._connection.http2.send_headers(self.stream, block, True)
        self._connection.forget(self)
        self._connection.flush_soon()

    def answer(self, message: bytes) -> None:
        """Sends the only response and ends the call; does nothing if the call is over."""
        if self.is_over:
            return
        if (outcomes := self.method.outcomes) is not None:
            outcomes.answered(message)
        connection, stream = self._connection, self.stream
        http2 = connection.http2
        http2.send_headers(stream, HEADERS)
        http2.send_data(stream, _HEAD.pack(0, len(message)) + message)
        http2.send_headers(stream, OK_TRAILERS, True)
        connection.forget(self)
        connection.flush_soon()

    def _begin_answer(self, message: bytes) -> None:
        """Sends the headers before the first response."""
        if not self._has_headers:
            self._has_headers = True
            self._connection.http2.send_headers(self.stream, HEADERS)
            if self.method.outcomes is not None:
                self.method.outcomes.answered(message)

    # --- for the connection

    def abandoned(self) -> None:
        """Notes that the client is gone, or has cancelled the call."""
        if not self._has_headers and self.method.outcomes is not None:
            self.method.outcomes.ended(StatusCode.CANCELLED)

    def over(self) -> None:
        """Notes that nothing more can be sent."""
        self.is_over = True
        self._held, self._request = bytearray(), None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the call when its deadline passes, if it is not answered by then.

        Raises:
            GrpcError: what the client says is no time.
        """
        if self.timeout is None or self.is_over:
            return
        try:
            self._timer = loop.call_later(timeout_s(self.timeout), self._connection.expire, self)
        except ValueError as error:
            raise GrpcError(StatusCode.INTERNAL, str(error)) from None

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that are not complete."""
        return len(self._held) + len(self._request or b"")

    def take(self, data: bytes, is_last: bool) -> list[bytes]:
        """Takes bytes of requests; returns the requests that the method may handle now.

        Raises:
            GrpcError: they are no requests of this method.
        """
        self.is_new = False
        requests = self._split(data)
        if is_last and self._held:
            raise GrpcError(StatusCode.INTERNAL, "the stream of requests ends within a request")
        if self.conversation is not None:
            return requests
        if len(requests) + (self._request is not None) > 1:
            raise GrpcError(StatusCode.INTERNAL, "two requests came for a method that takes one")
        if requests:
            self._request = requests[0]
        if not is_last:
            return []
        if self._request is None:
            raise GrpcError(StatusCode.INTERNAL, "the stream of requests ended without a request")
        request, self._request = self._request, None
        return [request]

    def _split(self, data: bytes) -> list[bytes]:
        """Returns the requests that end in ``data``; keeps what belongs to the next one."""
        source: bytes | bytearray = data
        if self._held:
            self._held += data
            source = self._held
        complete = []
        position = 0
        while len(source) - position >= PREFIX_BYTES:
            length = int.from_bytes(source[position + 1 : position + PREFIX_BYTES], "big")
            self._check(source[position], length)
            end = position + PREFIX_BYTES + length
            if end > len(source):
                break
            complete.append(bytes(source[position + PREFIX_BYTES : end]))
            position = end
        if source is self._held:
            del self._held[:position]
        elif position < len(data):
            self._held = bytearray(data[position:])
        return complete

    def _check(self, flag: int, length: int) -> None:
        if flag:
            if self.encoding in (None, b"identity"):
                raise GrpcError(
                    StatusCode.INTERNAL, "a request is marked as compressed, but grpc-encoding names nothing"
                )
            given = (self.encoding or b"").decode("ascii", "replace")
            raise GrpcError(StatusCode.UNIMPLEMENTED, f"grpc-encoding {given} is not supported; allowed is identity")
        if length > self.method.message_bytes_max:
            raise GrpcError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"a request has {length} bytes; allowed are {self.method.message_bytes_max}",
            )
