"""Fuzzes a broker and a name server through their sockets, with recorded requests that are changed at random.

Each seed determines a run of both servers with some dozens of connections. Each connection sends requests with changed
fields and bodies, in pieces of any size. Some connections end with bytes that may not be a frame. Brokers of odd seeds
have accounts; half of the requests to them are signed by an account with few rights. In each run:

* every connection ends soon after its peer has sent everything, and the server sent only frames;
* nothing is logged as a defect, no exception reaches the event loop, and no response contains a traceback;
* a well-behaved client is still served: in the end, each of its messages exists once, at its acknowledged offset.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from tests.attack.guarded import ADMIN, ALICE, Guarded, signed
from tests.brokers import Cluster
from tests.fuzz.mutation import Mutator
from tests.fuzz.rounds import Failure
from tests.fuzz.targets import recorded_frames, refused

from rucola.formats.message import decode_messages
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.frame import FrameReader

CONNECTIONS = 60
FRAMES_MAX = 10
TIMEOUT_S = 30
TOPIC = "KeptApart"
"""A topic that no recorded frame names."""


VALUES = [
    "", "-1", "0", "1", "8", "2147483647", "-2147483648", "2147483648", "9223372036854775807", "-9223372036854775808",
    "1e9", "NaN", "true", "false", "null", "A", "T", "TBW102", "%RETRY%GA", "%DLQ%GA", "../../x", "/etc/passwd", "\0",
    "\r\n", "x" * 300, "\U0001f600",
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TAGS\x01t\x02DELAY\x019\x02", "a || b",
]  # fmt: skip


class Requests:
    """Recorded requests, changed field by field, so that most of them reach their processor."""

    def __init__(self) -> None:
        commands = [refused(decode_frame, frame) for frame in recorded_frames()]  # some were recorded as invalid frames
        requests = [command for command in commands if command is not None and not command.is_response]
        self._by_code: dict[int, list[RemotingCommand]] = {}
        for request in requests:
            self._by_code.setdefault(request.code, []).append(request)
        self._codes = sorted(self._by_code)
        self._bodies = Mutator(sorted({bytes(request.body) for request in requests if request.body}))

    def draw(self, random: Random) -> RemotingCommand:
        """Returns a recorded request with some fields changed."""
        below = random.random
        code = self._codes[int(below() * len(self._codes))]
        recorded = self._by_code[code][int(below() * len(self._by_code[code]))]
        fields = dict(recorded.ext_fields)
        body = bytes(recorded.body)
        for name in list(fields):
            if below() < 0.15:
                fields[name] = VALUES[int(below() * len(VALUES))]
            elif below() < 0.03:
                del fields[name]
        if below() < 0.3:
            body = self._bodies.draw(random)
        if below() < 0.05:
            code = self._codes[int(below() * len(self._codes))]
        flag = recorded.flag if below() < 0.95 else int(below() * 4)
        opaque = int(below() * (1 << 31))
        return RemotingCommand(code, opaque, flag, "", fields, body, recorded.language, recorded.version)


class Defects(logging.Handler):
    """Collects errors that are logged with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


def run_life(seed: int) -> int:
    """Runs both servers once; returns the number of inputs."""
    defects = Defects()
    loggers = logging.getLogger("rucola"), logging.getLogger("asyncio")
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(defects)
        logger.propagate = False
    try:
        with tempfile.TemporaryDirectory(prefix="rucola-fuzz-") as folder:
            return asyncio.run(asyncio.wait_for(_life(seed, Path(folder), defects), 60 * TIMEOUT_S))
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(defects)
            logger.setLevel(level)
            logger.propagate = propagate


async def _life(seed: int, folder: Path, defects: Defects) -> int:
    random = Random(f"live {seed}")
    asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.found.append(repr(context)))
    guarded = seed % 2 == 1
    cluster: Cluster = Guarded(folder) if guarded else Cluster(folder)
    requests, frames_at_all = Requests(), Mutator(recorded_frames())
    inputs = kept = 0
    async with cluster:
        if isinstance(cluster, Guarded):
            await cluster.made(TOPIC)
        for number in range(CONNECTIONS):
            frames = []
            for _ in range(1 + int(random.random() * FRAMES_MAX)):
                command = requests.draw(random)
                if guarded and random.random() < 0.5:
                    command = signed(command, ALICE)
                frames.append(command.encode())
            if random.random() < 0.3:
                frames.append(frames_at_all.draw(random))
            inputs += len(frames)
            address = cluster.broker.address if random.random() < 0.8 else cluster.namesrv.address
            try:
                await asyncio.wait_for(_attack(address, frames, random), TIMEOUT_S)
            except Exception as error:
                raise Failure("live", seed, number, b"".join(frames)) from error
            if defects.found:
                raise Failure("live", seed, number, b"".join(frames)) from AssertionError(defects.found[0])
            if number % 10 == 9:
                assert (await _send(cluster, b"%d" % kept)).code == 0
                kept += 1
        assert await _bodies(cluster) == [b"%d" % number for number in range(kept)]
    if defects.found:
        raise Failure("live", seed, CONNECTIONS, b"") from AssertionError(defects.found[0])
    return inputs


async def _attack(address: str, frames: list[bytes], random: Random) -> None:
    """Opens one connection, sends everything, and reads until the other end closes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answers = FrameReader()
    data = b"".join(frames)
    position = 0
    try:
        while position < len(data):
            size = 1 + int(random.random() * 2 * len(data))
            writer.write(data[position : position + size])
            position += size
            await writer.drain()
        writer.write_eof()
        while heard := await reader.read(65536):
            _hear(answers, heard)
    except ConnectionError:
        pass  # the server closed the connection while we were sending
    finally:
        writer.close()


def _hear(answers: FrameReader, heard: bytes) -> None:
    while heard:
        buffer = answers.buffer()
        size = min(len(buffer), len(heard))
        buffer[:size] = heard[:size]
        heard = heard[size:]
        batch = answers.received(size)
        for row in range(batch.count if batch else 0):
            command = batch.command(row)  # type: ignore[union-attr]
            assert "Traceback" not in command.remark and "/rucola/" not in command.remark, command


async def _send(cluster: Cluster, body: bytes) -> RemotingCommand:
    return await _ask(cluster, cluster.send_command(TOPIC, body))


async def _bodies(cluster: Cluster) -> list[bytes]:
    found: list[bytes] = []
    while (answer := await _ask(cluster, cluster.pull_command(TOPIC, queue_offset=len(found)))).code == 0:
        found += [bytes(message.body) for message in decode_messages(answer.body)]
    return found


async def _ask(cluster: Any, command: RemotingCommand) -> RemotingCommand:
    if isinstance(cluster, Guarded):
        command = signed(command, ADMIN)
    return await cluster.client.invoke(cluster.broker.address, command, 10_000)
