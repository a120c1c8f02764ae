"""Scripted masters: a log made by a store of ours, and the transfers in which a master sends it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.unit.store.stores import SEGMENT, config, fill, opened

from rucola.formats.ha import FIRST_BYTE, TRANSFER_HEADER
from rucola.runtime.files import Files
from rucola.store.ha.slave_link import SlaveLink
from rucola.store.ha.slave_log import SlaveLog
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

BATCH = 32_768
"""``haTransferBatchSize``."""


def header(physical_offset: int, body_bytes: int) -> bytes:
    """A header with any values."""
    return TRANSFER_HEADER.pack(physical_offset, body_bytes)


class MasterLog:
    """The bytes of a log, as a master has them.

    Attributes:
        start: physical offset of the first byte.
        content: the bytes up to the end of the log.
    """

    def __init__(self, content: bytes, start: int = 0, segment_bytes: int = SEGMENT) -> None:
        self.content = content
        self.start = start
        self.segment_bytes = segment_bytes

    @property
    def end(self) -> int:
        return self.start + len(self.content)

    def bytes_at(self, physical_offset: int, length: int) -> bytes:
        at = physical_offset - self.start
        return self.content[at : at + length]

    def transfers(self, request: int, batch: int = BATCH, end: int | None = None) -> Iterator[bytes]:
        """Yields the transfers for a request, as RocketMQ's master sends them: never across the end of a segment."""
        at, end = request, self.end if end is None else end
        if at == 0:
            at = self.end - self.end % self.segment_bytes
        while self.start <= at < end:
            length = min(batch, end - at, self.segment_bytes - at % self.segment_bytes)
            yield header(at, length) + self.bytes_at(at, length)
            at += length

    def stream(self, request: int, batch: int = BATCH, end: int | None = None) -> bytes:
        return b"".join(self.transfers(request, batch, end))

    def changed(self, physical_offset: int, content: bytes) -> MasterLog:
        """The same log with other bytes from ``physical_offset`` on."""
        at = physical_offset - self.start
        whole = self.content[:at] + content + self.content[at + len(content) :]
        return MasterLog(whole, self.start, self.segment_bytes)


def log_bytes(store: MessageStore) -> bytes:
    """The bytes of a store's log up to its end."""
    log = store._log
    parts = [bytes(file.map.view[: min(file.size, max(log.max_offset - file.start, 0))]) for file in log.segments.files]
    return b"".join(parts)


def a_log(path: Path, count: int = 600) -> MasterLog:
    """A log of ``count`` messages in two topics, in several segments."""
    store = opened(path)
    fill(store, count)
    content = log_bytes(store)
    store.shutdown()
    return MasterLog(content)


class Slave:
    """A store that follows a master without a socket.

    Attributes:
        store: the store.
        log: its log as a slave's.
        link: the newest connection.
    """

    link: SlaveLink

    def __init__(self, path: Path, files: Files | None = None, passes_damage: bool = True, **options: object) -> None:
        self.path = path
        self.store = MessageStore(config(path, **options), files or Files(), ManualClock(step_ms=1), is_copy=True)
        self.store.load()
        self.log: SlaveLog = self.store.slave_log(passes_damage)
        if not self.log.is_empty:
            self.store.start()

    def connect(self, start: int = FIRST_BYTE) -> SlaveLink:
        """Begins a connection."""
        self.link = SlaveLink(self.log, start, str(self.path))
        return self.link

    def follow(self, master: MasterLog, start: int = FIRST_BYTE, pieces: int = 1 << 30, **what: int) -> SlaveLink:
        """Connects, and takes all that the master sends, in pieces of so many bytes."""
        link = self.connect(start)
        self.take(master.stream(link.request, **what), pieces)
        return link

    def take(self, stream: bytes, pieces: int = 1 << 30) -> None:
        """Takes bytes of the newest connection, and dispatches."""
        for at in range(0, len(stream), pieces):
            self.link.receive(memoryview(stream)[at : at + pieces])
        self.store.dispatch()

    @property
    def bytes(self) -> bytes:
        return log_bytes(self.store)


class HaPort:
    """The HA port of a scripted master, in the test's event loop. Use it as ``async with``.

    Attributes:
        master: the log that it sends; may be replaced.
        address: ``host:port``.
        requests: the first report of each connection.
        reports: time on the loop's clock and value of each further report.
        silent: whether it sends nothing, not even heartbeats.
        closes_after: number of bytes after which it closes a connection; None for never.
    """

    def __init__(self, master: MasterLog, port: int = 0) -> None:
        self.master = master
        self.requests: list[int] = []
        self.reports: list[tuple[float, int]] = []
        self.silent = False
        self.closes_after: int | None = None
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._grown = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def grow(self, master: MasterLog) -> None:
        """Replaces the log, and sends what is new."""
        async with self._grown:
            self.master = master
            self._grown.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        reading = asyncio.ensure_future(self._read(reader))
        try:
            await self._send(await self._first(reader), writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            reading.cancel()
            writer.close()
            self._tasks.discard(task)

    async def _first(self, reader: asyncio.StreamReader) -> int:
        while True:
            count = len(self.requests)
            await asyncio.sleep(0.01)
            if len(self.requests) > count or reader.at_eof():
                return self.requests[-1]

    async def _read(self, reader: asyncio.StreamReader) -> None:
        self.requests.append(int.from_bytes(await reader.readexactly(8), "big", signed=True))
        while True:
            value = int.from_bytes(await reader.readexactly(8), "big", signed=True)
            self.reports.append((asyncio.get_running_loop().time(), value))

    async def _send(self, request: int, writer: asyncio.StreamWriter) -> None:
        at, sent = request, 0
        while True:
            if self.silent:
                await asyncio.sleep(1)
                continue
            stream = self.master.stream(at) if at else self.master.stream(0)
            if self.closes_after is not None and sent + len(stream) > self.closes_after:
                writer.write(stream[: self.closes_after - sent])
                await writer.drain()
                return
            writer.write(stream or header(at, 0))
            await writer.drain()
            sent += len(stream)
            at = max(at, self.master.end) if stream else at
            async with self._grown:
                with suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        await self._grown.wait()
