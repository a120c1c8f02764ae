"""A proxy before an S3 server that counts requests, fails chosen ones, and can hold them while a process is killed.

Requests and answers pass unchanged, also the header ``Host``, which is signed: clients use the proxy's ``endpoint``
with the server's keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Self, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from tests.lake.s3_server import S3Server

T = TypeVar("T")

_HEAD_MAX = 1 << 20
_TIMEOUT_S = 30.0
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


class Fault(Enum):
    """What happens to a request."""

    SLOW_DOWN = "503 instead of forwarding it"
    SLOW_DOWN_DONE = "503 after the server has done it"
    CUT = "the connection ends instead of forwarding it"
    LOST_ANSWER = "the connection ends after the server has done it"
    DELAY = "it is forwarded later"
    HOLD = "it waits, and each later one, until it is released"


class Kind(Enum):
    """Kind of a request. A conditional put has ``If-None-Match`` or ``If-Match``; ``MULTIPART`` is each request of
    an upload in parts.
    """

    LIST = "list"
    GET = "get"
    HEAD = "head"
    PUT = "put"
    CONDITIONAL_PUT = "conditional put"
    COPY = "copy"
    MULTIPART = "multipart"
    DELETE = "delete"
    BUCKET = "bucket"


@dataclass
class Request:
    """A request that has arrived; ``status`` is what the client was answered, 0 if nothing."""

    method: str
    target: str
    headers: dict[str, str]
    fault: Fault | None = None
    status: int = 0

    @property
    def key(self) -> str:
        """Bucket and key."""
        return unquote(urlsplit(self.target).path).lstrip("/")

    @property
    def kind(self) -> Kind:
        query = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        if "uploads" in query or "uploadId" in query:
            return Kind.MULTIPART
        if self.method == "DELETE" or (self.method == "POST" and "delete" in query):
            return Kind.DELETE
        if not self.key.partition("/")[2]:
            return Kind.LIST if self.method == "GET" else Kind.BUCKET
        if self.method != "PUT":
            return Kind.HEAD if self.method == "HEAD" else Kind.GET
        if "x-amz-copy-source" in self.headers:
            return Kind.COPY
        return Kind.CONDITIONAL_PUT if {"if-none-match", "if-match"} & self.headers.keys() else Kind.PUT

    def __str__(self) -> str:
        fault = f", {self.fault.name}" if self.fault else ""
        return f"{self.kind.value} {self.key or self.target}: {self.status}{fault}"


@dataclass
class _Plan:
    """A fault, in how many requests it comes, and for how many."""

    number: int
    fault: Fault
    kind: Kind | None
    times: float
    key: str
    seconds: float

    def is_due(self, request: Request) -> bool:
        """Counts the request, and returns whether this plan is for it."""
        if self.kind not in (None, request.kind) or self.key not in request.key:
            return False
        self.number -= 1
        self.times -= self.number <= 0
        return self.number <= 0 <= self.times


class _Message(NamedTuple):
    head: bytes
    body: bytes


class FaultyS3:
    """The proxy, in a thread of its own; use it as ``with``. It has what clients need of a server: ``endpoint``,
    ``access_key``, ``secret``, ``region``.
    """

    def __init__(self, server: S3Server) -> None:
        self.access_key, self.secret, self.region = server.access_key, server.secret, server.region
        _, _, port = server.endpoint.rpartition(":")
        self._upstream = "127.0.0.1", int(port)
        self._lock = threading.Condition()
        self._plans: list[_Plan] = []
        self._seen: list[Request] = []
        self._held: list[tuple[Request, asyncio.Future[bool]]] = []
        self._frozen = False

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3-proxy")
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._run(asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=_HEAD_MAX))
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def fail(
        self,
        number: int,
        how: Fault,
        kind: Kind | None = None,
        *,
        times: float = 1,
        key: str = "",
        seconds: float = 0.1,
    ) -> None:
        """Plans a fault for the request that is ``number``-th from now; 1 is the next one.

        Args:
            kind: requests of other kinds are not counted.
            times: for so many requests; ``math.inf`` for all that follow.
            key: only requests whose bucket and key contain this are counted.
            seconds: of ``Fault.DELAY``.
        """
        with self._lock:
            self._plans.append(_Plan(number, how, kind, times, key, seconds))

    def heal(self) -> None:
        """Forgets faults that are planned."""
        with self._lock:
            self._plans.clear()

    @property
    def requests(self) -> list[Request]:
        """Requests in the order in which they came, since the last ``forget``."""
        with self._lock:
            return list(self._seen)

    def counts(self) -> Counter[Kind]:
        return Counter(one.kind for one in self.requests)

    def forget(self) -> None:
        """Requests are listed anew from here on."""
        with self._lock:
            self._seen.clear()

    def wait_held(self, timeout_s: float = _TIMEOUT_S) -> Request:
        """Waits until a request is held, and returns the first one.

        Raises:
            TimeoutError: none came.
        """
        with self._lock:
            if not self._lock.wait_for(lambda: self._held, timeout_s):
                raise TimeoutError("no request was held; came: " + "; ".join(map(str, self._seen)))
            return self._held[0][0]

    def release(self, *, forward: bool = True) -> None:
        """Lets go what is held: forwards it, or ends its connection, as if it had never arrived. Later requests pass
        again.
        """
        with self._lock:
            held, self._held, self._frozen = self._held, [], False
        for _, decision in held:
            self._loop.call_soon_threadsafe(_decide, decision, forward)

    def _run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(_TIMEOUT_S)

    async def _close(self) -> None:
        self._server.close()
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream = _Upstream(*self._upstream)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                while await self._serve(reader, writer, upstream):
                    pass
        finally:
            upstream.close()
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: _Upstream) -> bool:
        """Serves one request; returns False when the connection shall end."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, headers = _parsed(head)
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, headers)
        request = Request(method, target, headers)
        decision, seconds = self._arrived(request)
        how = request.fault
        if how is Fault.DELAY:
            await asyncio.sleep(seconds)
        if how is Fault.HOLD and not await decision:
            return False
        if how is Fault.CUT:
            return False
        if how is Fault.SLOW_DOWN:
            answer = _slow_down(method)
        else:
            answer = await upstream.ask(_Message(head, body), method)
            if how is Fault.LOST_ANSWER:
                return False
            if how is Fault.SLOW_DOWN_DONE:
                answer = _slow_down(method)
        request.status = int(answer.head.split(b" ", 2)[1])
        writer.write(answer.head + answer.body)
        await writer.drain()
        return b"connection: close" not in answer.head.lower()

    def _arrived(self, request: Request) -> tuple[asyncio.Future[bool], float]:
        """Counts a request and notes the fault that it gets. Returns what decides about it if it is held, and for how
        many seconds it is delayed.
        """
        decision: asyncio.Future[bool] = self._loop.create_future()
        with self._lock:
            self._seen.append(request)
            due = [plan for plan in self._plans if plan.is_due(request)]
            request.fault = Fault.HOLD if self._frozen else due[0].fault if due else None
            if request.fault is Fault.HOLD:
                self._frozen = True
                self._held.append((request, decision))
                self._lock.notify_all()
        return decision, due[0].seconds if due else 0.0


class _Upstream:
    """A connection to the server for one connection of a client."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: _Message, method: str) -> _Message:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address, limit=_HEAD_MAX)
        self._writer.write(request.head + request.body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 100"):
            head = await self._reader.readuntil(b"\r\n\r\n")
        _, status, headers = _parsed(head)
        empty = method == "HEAD" or status in ("204", "304")
        answer = _Message(head, b"" if empty else await _body(self._reader, headers))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Returns the first two words of the first line, and the headers with names in lower case."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    words = first.split(" ")
    return words[0], words[1], {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """Reads a body as it was sent, with the sizes of its chunks if it has chunks."""
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        parts.append(line)
        if not size:
            break
        parts.append(await reader.readexactly(size + 2))
    while parts[-1] != b"\r\n":
        parts.append(await reader.readuntil(b"\r\n"))
    return b"".join(parts)


def _slow_down(method: str) -> _Message:
    body = b"" if method == "HEAD" else _SLOW_DOWN
    head = f"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: {len(_SLOW_DOWN)}\r\n\r\n"
    return _Message(head.encode(), body)


def _decide(decision: asyncio.Future[bool], forward: bool) -> None:
    if not decision.done():
        decision.set_result(forward)
