"""The process of ``s3_proxy``: forwards requests, and reads commands from standard input, until that ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.lake.s3_proxy import Fault, Kind

_HEAD_MAX = 1 << 20
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_SLOW_DOWN_HEAD = (
    f"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: {len(_SLOW_DOWN)}\r\n\r\n".encode()
)


class Message(NamedTuple):
    """A request or an answer, as it was sent."""

    head: bytes
    body: bytes


@dataclass
class Seen:
    """A request that has arrived."""

    method: str
    target: str
    kind: Kind
    fault: Fault | None = None
    status: int = 0


@dataclass
class Plan:
    """A fault, in how many requests it comes, for which kind and keys, and for how many requests."""

    number: int
    fault: Fault
    kind: Kind | None
    times: float
    key: str
    seconds: float

    def is_due(self, request: Seen) -> bool:
        """Counts the request, and returns whether this plan is for it."""
        if self.kind not in (None, request.kind) or self.key not in unquote(request.target):
            return False
        self.number -= 1
        return -self.times < self.number <= 0


class Proxy:
    """Forwards to one server; its public methods are the commands.

    Args:
        upstream: port of the server on 127.0.0.1.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._plans: list[Plan] = []
        self._seen: list[Seen] = []
        self._held: list[asyncio.Future[bool]] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=_HEAD_MAX)

    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def plan(self, number: int, how: str, kind: str | None, times: float, key: str, seconds: float) -> None:
        self._plans.append(Plan(number, Fault[how], Kind[kind] if kind else None, times, key, seconds))

    def heal(self) -> None:
        self._plans.clear()

    def seen(self) -> list[tuple[str, str, str, int, str | None]]:
        return [
            (one.kind.name, one.method, one.target, one.status, one.fault.name if one.fault else None)
            for one in self._seen
        ]

    def forget(self) -> None:
        self._seen.clear()

    def held(self) -> int:
        return len(self._held)

    def release(self, forward: bool) -> None:
        held, self._held = self._held, []
        for decision in held:
            decision.set_result(forward)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = _Upstream(self._upstream)
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            while await self._serve(reader, writer, upstream):
                pass
        upstream.close()
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: _Upstream) -> bool:
        """Serves one request; returns False when the connection shall end."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, headers = _parsed(head)
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        message = Message(head, await _body(reader, headers))
        request = Seen(method, target, _kind(method, target, headers))
        self._seen.append(request)
        due = [plan for plan in self._plans if plan.is_due(request)]
        request.fault = Fault.HOLD if self._held else due[0].fault if due else None
        match request.fault:
            case Fault.HOLD:
                decision = asyncio.get_running_loop().create_future()
                self._held.append(decision)
                if not await decision:
                    return False
            case Fault.DELAY:
                await asyncio.sleep(due[0].seconds)
            case Fault.CUT:
                return False
        answer = _slow_down(method)
        if request.fault is not Fault.SLOW_DOWN:
            done = await upstream.ask(message, method)
            answer = answer if request.fault is Fault.SLOW_DOWN_DONE else done
        if request.fault is Fault.LOST_ANSWER:
            return False
        request.status = int(answer.head.split(b" ", 2)[1])
        writer.write(answer.head + answer.body)
        await writer.drain()
        return b"connection: close" not in answer.head.lower()


class _Upstream:
    """A connection to the server for one connection of a client."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: Message, method: str) -> Message:
        if self._writer is None or self._reader.at_eof():  # servers end connections that are long idle
            self.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_HEAD_MAX)
        self._writer.write(request.head + request.body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 100"):
            head = await self._reader.readuntil(b"\r\n\r\n")
        _, status, headers = _parsed(head)
        empty = method == "HEAD" or status in ("204", "304")
        answer = Message(head, b"" if empty else await _body(self._reader, headers))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _kind(method: str, target: str, headers: dict[str, str]) -> Kind:
    path, query = urlsplit(target)[2:4]
    asked = parse_qs(query, keep_blank_values=True)
    if "uploads" in asked or "uploadId" in asked:
        return Kind.MULTIPART
    if method == "DELETE" or (method == "POST" and "delete" in asked):
        return Kind.DELETE
    if not path.lstrip("/").partition("/")[2]:
        return Kind.LIST if method == "GET" else Kind.BUCKET
    if method != "PUT":
        return Kind.HEAD if method == "HEAD" else Kind.GET
    if "x-amz-copy-source" in headers:
        return Kind.COPY
    return Kind.CONDITIONAL_PUT if {"if-none-match", "if-match"} & headers.keys() else Kind.PUT


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
        parts.append(line)
        size = int(line.split(b";")[0], 16)
        if not size:
            break
        parts.append(await reader.readexactly(size + 2))
    while parts[-1] != b"\r\n":
        parts.append(await reader.readuntil(b"\r\n"))
    return b"".join(parts)


def _slow_down(method: str) -> Message:
    return Message(_SLOW_DOWN_HEAD, b"" if method == "HEAD" else _SLOW_DOWN)


async def _main(upstream: int) -> None:
    proxy = Proxy(upstream)
    await proxy.start()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        name, *arguments = json.loads(line)
        result: Any = getattr(proxy, name)(*arguments)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
