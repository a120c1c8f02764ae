"""``rucola up`` is killed while messages arrive, and started again on the same store: every acknowledged message
exists.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sizes import size

from rucola import Message, Producer, ProducerConfig, PullConsumer, PullStatus, SendStatus
from rucola.errors import RucolaError

SOURCE = Path(__file__).parents[2] / "src"
ROUNDS = size(2, 4)
IN_FLIGHT = 32
TIMEOUT_S = 60
CONFIG = "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"


class Server:
    """One process of ``rucola up``."""

    def __init__(self, store: Path, flush: str) -> None:
        config = store.parent / "broker.conf"
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "rucola", "up", "--json", "--store", str(store), "--config", str(config)]
        ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
        self._process = subprocess.Popen(
            [*command, *ports, "--flush", flush],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert self._process.stdout is not None
        self.namesrv: str = json.loads(self._process.stdout.readline())["namesrv"]

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        self._process.communicate(timeout=TIMEOUT_S)
        return self._process.returncode


async def send_until_killed(server: Server, round_number: int, acknowledged: set[bytes], kill_after: int) -> None:
    """Keeps sends in flight, kills the server once ``kill_after`` sends were acknowledged, and counts acknowledgements
    until the end.
    """
    config = ProducerConfig(
        retry_times_when_send_async_failed=0, retry_times_when_send_failed=0, send_msg_timeout_ms=5_000
    )
    producer = Producer("pg", server.namesrv, config)
    await producer.start()
    numbers = iter(range(1_000_000))
    killed = False
    here = 0

    async def sender() -> None:
        nonlocal killed, here
        while not killed:
            body = b"%d-%d-" % (round_number, next(numbers)) + b"x" * 500
            try:
                result = await producer.submit(Message("T", body, tags="A"))
            except RucolaError:
                return  # unknown: the message may exist or not
            if result.status is SendStatus.SEND_OK:
                acknowledged.add(body)
                here += 1
            if here >= kill_after and not killed:
                killed = True
                server.end(signal.SIGKILL)

    await asyncio.gather(*[sender() for _ in range(IN_FLIGHT)])
    assert killed
    await producer.shutdown()


async def read_all(server: Server) -> list[bytes]:
    """Returns the bodies of all messages of the topic; checks that queue offsets have no gaps."""
    bodies = []
    async with PullConsumer("cg", server.namesrv) as consumer:
        for queue in await consumer.message_queues("T"):
            queue_offset = await consumer.min_offset(queue)
            end = await consumer.max_offset(queue)
            assert queue_offset == 0
            while queue_offset < end:
                result = await consumer.pull(queue, queue_offset)
                assert result.status is PullStatus.FOUND
                for message in result.messages:
                    assert message.queue_offset == queue_offset
                    queue_offset += 1
                    bodies.append(message.body)
    return bodies


@pytest.mark.few(1)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_nothing_acknowledged_is_lost(tmp_path, flush):
    servers: list[Server] = []

    def start() -> Server:
        servers.append(Server(tmp_path / "store", flush))
        return servers[-1]

    async def scene() -> None:
        acknowledged: set[bytes] = set()
        server = start()
        for round_number in range(ROUNDS):
            await send_until_killed(server, round_number, acknowledged, 40 + 150 * round_number)
            server = start()
            found = await read_all(server)
            assert acknowledged <= set(found)
            assert len(found) == len(set(found))  # no message was sent twice
            if round_number % 2:  # after the other rounds, sends continue on a recovered store
                assert server.end(signal.SIGINT) == 0
                server = start()
        assert len(acknowledged) > ROUNDS * 40

    try:
        asyncio.run(scene())
    finally:
        servers[-1].end(signal.SIGKILL)  # a failed round leaves its server running
