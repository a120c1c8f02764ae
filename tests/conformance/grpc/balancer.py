"""A TCP balancer that is no friend of long connections: each new connection goes to a random server that listens, and
at random times one of the connections is cut, so that its client moves.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

_READ_BYTES = 64 * 1024


class Balancer:
    """The balancer, on a thread of its own. Use it as ``with``.

    Args:
        ports: ports of 127.0.0.1 to which connections go.
        cut_s: mean time between two cuts.
        seed: of the choices.

    Attributes:
        address: where it listens, ``host:port``.
        taken: connections by port.
        cuts: connections that were cut.
    """

    address: str

    def __init__(self, ports: Sequence[int], cut_s: float, seed: int = 1) -> None:
        self._ports, self._cut_s = list(ports), cut_s
        self._random = random.Random(seed)
        self._open: list[asyncio.StreamWriter] = []
        self._ready = threading.Event()
        self._stopped: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="balancer")
        self.taken: Counter[int] = Counter()
        self.cuts = 0
        self.cutting = True

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        cutting = asyncio.create_task(self._cut())
        await self._stopped.wait()
        cutting.cancel()
        server.close()
        while self._open:
            for writer in self._open:
                writer.transport.abort()
            await asyncio.sleep(0.1)

    async def _cut(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / self._cut_s))
            if self._open and self.cutting:
                self._random.choice(self._open).transport.abort()
                self.cuts += 1

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        try:
            for port in self._random.sample(self._ports, len(self._ports)):
                with suppress(OSError):
                    there, back = await asyncio.open_connection("127.0.0.1", port)
                    self.taken[port] += 1
                    await self._carry(reader, back, there, writer)
                    return
        finally:
            self._open.remove(writer)
            writer.transport.abort()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Carries bytes both ways until one side ends."""
        ways = [asyncio.create_task(_pump(reader, back)), asyncio.create_task(_pump(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            back.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
