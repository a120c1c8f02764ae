"""One Spark session for all tests in this directory, and brokers in separate processes, which can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.leavings import for_the_session
from tests.sizes import size

from rucola.client.admin import AdminClient
from rucola.client.config import ProducerConfig
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.spark.session import local_session
from rucola.sync import Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READY_TIMEOUT_S = 300
_CALL_MS = 60_000
"""Time limit of a call to servers in other processes, which may wait long for a processor."""
_PATIENT = ProducerConfig(send_msg_timeout_ms=_CALL_MS, mq_client_api_timeout_ms=_CALL_MS, connect_timeout_ms=_CALL_MS)
_LIGHT = {
    # The usual class starts the program ``readlink`` several times for each file of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    # To compile code for each query takes longer than to interpret it for a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings that save a sixth of the processor time, all of parts in which Rucola has no share. With ``--whole``, Spark
runs as it does for users.
"""
SERVERS_VARIABLE = "RUCOLA_SPARK_TEST_SERVERS"
"""Environment variable with the version of the official servers to test against; without it, Rucola's are tested."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Starts the session; Arrow batches are checked against the schema in every query."""
    directory = tmp_path_factory.mktemp("spark")
    events = directory / "events"
    events.mkdir()
    # Workers import the package from the same directory as this process.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    session = local_session(
        "tests",
        **{
            "spark.local.dir": str(directory / "local"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(events),
            "spark.eventLog.compress": "false",
            "spark.python.worker.faulthandler.enabled": "true",
            **(_LIGHT if size(1, 0) else {}),
        },
    )
    yield session
    session.stop()


class BrokerProcess:
    """``rucola up`` on one directory; a restart uses the address of the first start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.namesrv = ""
        self._ports = ("0", "0")
        self._process: subprocess.Popen[bytes] | None = None
        self._config = directory / "broker.conf"
        self._config.write_text(
            "mappedFileSizeCommitLog=4194304\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=1000\nmaxIndexNum=20000\n"
            "enablePropertyFilter=true\n"
        )

    def start(self) -> None:
        """Starts the broker and waits until it is ready."""
        ports = ["--namesrv-port", self._ports[0], "--broker-port", self._ports[1], "--http-port", "0"]
        command = [sys.executable, "-m", "rucola", "up", "--json", "--store", str(self.store), *ports]
        command += ["--config", str(self._config)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.directory / "broker.log").read_text()
        ready = json.loads(line)
        self.namesrv = ready["namesrv"]
        self._ports = (ready["namesrv"].rpartition(":")[2], ready["brokers"][0].rpartition(":")[2])

    def kill(self) -> None:
        """Kills the process with SIGKILL; returns when it has ended."""
        assert self._process is not None
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Stops the broker cleanly; does nothing if it is not running."""
        if self._process is not None:
            self._process.terminate()
            self._end()

    def producer(self) -> Producer:
        """Returns a producer, to be used in a ``with`` block."""
        return Producer("tests", self.namesrv, _PATIENT)

    def send_all(self, messages: Iterable[Message]) -> None:
        """Sends messages of one topic; returns when all are stored and readable.

        A broker of RocketMQ adds a message to its queue shortly after the acknowledgement.
        """
        ends: dict[MessageQueue, int] = {}
        with self.producer() as producer:
            futures = []
            for message in messages:
                producer.ready()
                futures.append(producer.submit(message))
            for result in (future.result() for future in futures):
                queue = result.message_queue
                ends[queue] = max(ends.get(queue, 0), result.queue_offset + 1)
        asyncio.run(self._readable(ends))

    async def _readable(self, ends: dict[MessageQueue, int]) -> None:
        async with AdminClient(self.namesrv, _CALL_MS) as admin, asyncio.timeout(READY_TIMEOUT_S):
            topic = next(iter(ends)).topic
            while True:
                offsets = await admin.topic_offsets(topic)
                if all(queue in offsets and offsets[queue].max_offset >= end for queue, end in ends.items()):
                    return
                await asyncio.sleep(0.01)

    def _end(self) -> None:
        assert self._process is not None
        self._process.wait(READY_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


class SecondBroker:
    """A second ``rucola broker`` under the same name server."""

    def __init__(self, directory: Path, namesrv: str) -> None:
        self.store = directory / "second"
        self._config = directory / "second.conf"
        self._config.write_text(
            f"brokerName=broker-b\nlistenPort=0\nstorePathRootDir={self.store}\n"
            "mappedFileSizeCommitLog=4194304\nmaxHashSlotNum=1000\nmaxIndexNum=20000\n"
        )
        self._namesrv = namesrv
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the broker and waits until it is ready."""
        command = [sys.executable, "-m", "rucola", "broker", "--json", "-n", self._namesrv, "-c", str(self._config)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        """Kills the broker with SIGKILL; does nothing if it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(READY_TIMEOUT_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def send_signal(self, number: int) -> None:
        """Sends the process a signal, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)


def _new_broker(directory: Path) -> BrokerProcess:
    if version := os.environ.get(SERVERS_VARIABLE):
        from tests.conformance.spark import OfficialBroker

        return OfficialBroker(directory, version)
    return BrokerProcess(directory)


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for all tests; each test uses its own topics."""
    broker = _new_broker(tmp_path_factory.mktemp("broker"))
    with for_the_session():
        broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may kill."""
    broker = _new_broker(tmp_path)
    broker.start()
    yield broker
    broker.stop()
