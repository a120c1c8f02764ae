"""The page ``docs/replica.md``: its commands and its program, beside a master of ours in a process of its own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from tools.peers.servers import OURS, free_port

from rucola.common.message import Message

from .conftest import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "replica.md").read_text()
PATIENCE_S = 300


class Master(BrokerProcess):
    """A broker with a port for slaves.

    Attributes:
        ha: address of this port.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ha = f"127.0.0.1:{free_port()}"
        with self._config.open("a") as config:
            config.write(f"brokerRole=ASYNC_MASTER\nhaListenPort={self.ha.rpartition(':')[2]}\n")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[1]}"

    def orders(self, numbers: range) -> None:
        self.send_all(Message("orders", b"%d" % number) for number in numbers)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    broker = Master(tmp_path)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    begun: list[subprocess.Popen[str]] = []
    yield begun
    for process in begun:
        process.kill()
        process.communicate()


def commands(master: Master) -> list[list[str]]:
    """The commands of the page, with the addresses of the master, and directories of its own."""
    lines = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    places = {"broker1:10912": master.ha, "broker1:10911": master.address}
    places |= {"~/copy": str(master.directory / "copy"), "~/backup": str(master.directory / "backup")}
    return [[places.get(word, word) for word in shlex.split(line, comments=True)] for line in lines]


def begun(words: list[str]) -> subprocess.Popen[str]:
    assert words[0] == "rucola"
    return subprocess.Popen(
        [sys.executable, "-m", *words], env={**OURS}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def streaming(spark: SparkSession, master: Master) -> Iterator[Callable[[Counter[int]], None]]:
    """Runs the program of the page; yields a function that returns when the table has exactly these rows."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = compile(text.replace("/data/", f"{master.directory}/"), "page", "exec")
    running = threading.Thread(target=exec, args=(code, {"__name__": "__main__"}))

    def wait(wanted: Counter[int]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (found := rows(master)).total() < wanted.total():
            assert running.is_alive() and time.monotonic() < deadline
            time.sleep(0.05)
        assert found == wanted

    running.start()
    try:
        yield wait
    finally:
        for query in spark.streams.active:
            query.stop()
        running.join()


def rows(master: Master) -> Counter[int]:
    """The numbers of the messages in the table of the page."""
    table = str(master.directory / "orders")
    if not DeltaTable.is_deltatable(table):
        return Counter()
    return Counter(map(int, DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist()))


def test_the_commands_and_the_program_of_the_page(
    spark: SparkSession, master: Master, processes: list[subprocess.Popen[str]]
) -> None:
    replica, *looks, backup = commands(master)

    def start_replica() -> None:
        processes.append(begun([*replica, "--json"]))
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline(), processes[-1].communicate()

    master.orders(range(100))
    start_replica()
    with streaming(spark, master) as wait:
        wait(Counter(range(100)))
        answers = [run(words) for words in looks]
        assert [words[1] for words in looks] == ["sql", "store"] and "100" in answers[0]
        processes[-1].kill()
        processes[-1].wait()
        master.orders(range(100, 200))
        DeltaTable(str(master.directory / "orders")).optimize.compact()  # the page says so, while the stream runs
        start_replica()
        wait(Counter(range(200)))
    master.orders(range(200, 250))
    with streaming(spark, master) as wait:  # goes on at its checkpoint
        wait(Counter(range(250)))
    run(backup)
    assert (master.directory / "backup" / "consumequeue" / "orders").is_dir()


def run(words: list[str]) -> str:
    """Runs a command to its end; returns what it prints."""
    process = begun(words)
    answer, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return answer
