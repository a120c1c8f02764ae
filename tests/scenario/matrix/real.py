"""Servers in processes of their own, in real time: ours or the official ones. They can be killed with SIGKILL."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from tests.scenario.matrix.world import OPTIONS, World
from tools.peers.servers import JavaServers, MixedServers, Servers, port_of

from rucola import MessageExt, MessageQueue, PullConsumer

OURS = "rucola"
OFFICIAL = ("5.3.3", "5.5.0")
SETTINGS = {
    **OPTIONS,
    "flushDiskType": "ASYNC_FLUSH",
    "registerNameServerPeriod": 10_000,
    "transactionTimeOut": 3_000,
    "transactionCheckInterval": 5_000,
}
EXCLUDED = {OURS: ("shutdown", "secret"), **dict.fromkeys(OFFICIAL, ("shutdown", "secret", "topic_recreated"))}
"""Columns that do not run with these servers: they need virtual time or our file of accounts; and the official broker
keeps the offsets of a deleted topic, so that the first messages of the new one are skipped.
"""


class _Ours(MixedServers):
    """Our name server and broker, in two processes."""

    def __init__(self) -> None:
        super().__init__("rucola", ("rucola",), SETTINGS)

    def begin_broker(self) -> None:
        """Starts the broker again, on another port."""
        self.broker = self._rucola_broker("broker-rucola")

    def begin_namesrv(self) -> None:
        """Starts the name server again, on the same port."""
        self._rucola("namesrv", "--port", str(port_of(self.namesrv)))
        self._processes.insert(0, self._processes.pop())


class _Official(JavaServers):
    """The official name server and broker, in two processes."""

    def __init__(self, version: str) -> None:
        super().__init__(version=version, settings={key: f"{value}" for key, value in SETTINGS.items()
                                                    if key != "flushDiskType"})  # fmt: skip

    def begin_broker(self) -> None:
        """Starts the broker again, on the same port."""
        self.broker = self._start_broker("broker-a")

    def begin_namesrv(self) -> None:
        """Starts the name server again, on the same port."""
        self._start_namesrv()
        self._processes.insert(0, self._processes.pop())


class RealWorld(World):
    """The servers of many cells, each of which has topics and groups of its own.

    Args:
        kind: ``rucola``, or the version of the official servers.
    """

    visible_s = 25.0

    def __init__(self, kind: str) -> None:
        super().__init__(lambda: 0.0)
        self._peers: _Ours | _Official = _Ours() if kind == OURS else _Official(kind)
        self._number = 0
        # RocketMQ's broker does so if a check and the decision cross, or after it was killed.
        self.commits_again = isinstance(self._peers, _Official)

    def __enter__(self) -> RealWorld:
        self._peers.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        Servers.__exit__(self._peers, None, None, None)

    def renew(self, number: int) -> None:
        """Begins a cell: new names, and a directory of its own."""
        self.topic, self.group = f"T{number}-{os.getpid()}", f"G{number}-{os.getpid()}"
        self.home = Path(tempfile.mkdtemp(prefix="rucola-matrix-"))

    async def open_servers(self) -> None:
        """They run already."""

    async def close(self) -> None:
        """They go on to run."""

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return self._peers.namesrv

    @property
    def broker(self) -> str:
        """Address of the broker."""
        return self._peers.broker

    @property
    def broker_name(self) -> str:
        """Name of the broker."""
        return "broker-rucola" if isinstance(self._peers, _Ours) else "broker-a"

    @property
    def cluster(self) -> str:
        """Name of the broker's cluster."""
        return "DefaultCluster"

    def scaled(self, seconds: float) -> float:
        """Real time is dear."""
        return seconds / 8

    async def set_queues(self, count: int, perm: int = 6) -> None:
        """Creates the topic, or changes it; waits until the name server knows."""
        await super().set_queues(count, perm)
        await asyncio.sleep(1.0)

    async def stop_broker(self) -> None:
        """Ends the broker with SIGTERM."""
        await asyncio.to_thread(self._end, -1, False)

    async def kill_broker(self) -> None:
        """Ends the broker with SIGKILL."""
        await asyncio.to_thread(self._end, -1, True)

    async def start_broker(self) -> None:
        """Starts the broker with the same store."""
        await asyncio.to_thread(self._peers.begin_broker)

    async def stop_namesrv(self) -> None:
        """Ends the name server with SIGKILL."""
        await asyncio.to_thread(self._end, 0, True)

    async def start_namesrv(self) -> None:
        """Starts the name server on the same port."""
        await asyncio.to_thread(self._peers.begin_namesrv)

    def _end(self, which: int, with_kill: bool) -> None:
        process = self._peers._processes.pop(which)
        (process.kill if with_kill else process.terminate)()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()

    async def stored(self) -> list[MessageExt]:
        """Everything in the topic's queues."""
        found: list[MessageExt] = []
        async with PullConsumer("TOOLS_CONSUMER", self.namesrv, registers=False) as reader:
            for queue in await reader.message_queues(self.topic):
                found += await self._read(reader, queue)
        return found

    async def _read(self, reader: PullConsumer, queue: MessageQueue) -> list[MessageExt]:
        position, end = await reader.min_offset(queue), await reader.max_offset(queue)
        found: list[MessageExt] = []
        while position < end:
            result = await reader.pull(queue, position)
            found += result.messages
            position = max(result.next_begin_offset, position + 1)
        return found

    def connections(self) -> int:
        """Not known."""
        return 0

    def committed(self) -> dict[str, int]:
        """Not looked at."""
        return {}
