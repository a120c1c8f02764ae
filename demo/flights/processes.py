"""Starts, kills and restarts the job's processes: the broker and the producers.

Children run in separate sessions, so Ctrl-C reaches only this process, which then ends them in order. However the job
ends, `Processes` ends the children that still run. The output of the children goes to files in the job's directory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .produce import Progress

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.02

STORE_CONFIG = """\
# Small files, so that the store of a demo fits a small disk, and so that it has several of each.
mappedFileSizeCommitLog=67108864
mappedFileSizeConsumeQueue=600000
maxHashSlotNum=500000
maxIndexNum=1000000
flushDiskType=SYNC_FLUSH
# As many queues as tasks run at a time, and large responses for consumers that read everything.
defaultTopicQueueNums=2
maxTransferCountOnMessageInMemory=1024
maxTransferBytesOnMessageInMemory=1048576
"""


class DemoError(Exception):
    """Raised if the job cannot continue; the text tells people what happened."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of ``rucola up``, each ``host:port``."""

    namesrv: str
    broker: str
    pid: int


class Processes:
    """All child processes of the job. The end of the ``with`` block ends the processes that still run, in reverse order
    of their start.
    """

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._running):
            end(process)

    def start(
        self, command: Sequence[str], stdout: IO[bytes] | int, stderr: IO[bytes], stdin: int
    ) -> subprocess.Popen[bytes]:
        """Starts a child that ends with the job."""
        # Children must import the same packages as this process, wherever they are started.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, start_new_session=True
        )
        self._running.append(process)
        return process


def end(process: subprocess.Popen[bytes], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Sends SIGTERM, then SIGKILL if the process does not end. Returns when the process has ended."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class BrokerProcess:
    """Runs ``rucola up`` over one store directory; a restart uses the ports of the first start."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self._processes = processes
        self._directory = directory
        self._config = directory / "broker.conf"
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses: Addresses | None = None
        self._config.write_text(STORE_CONFIG)

    @property
    def addresses(self) -> Addresses:
        """Where it listens. Only after `start`."""
        if self._addresses is None:
            raise DemoError("the broker was not started")
        return self._addresses

    def start(self) -> Addresses:
        """Starts the broker and waits until it reports that it is ready.

        Raises:
            DemoError: the broker ended, or was not ready within `START_TIMEOUT_S`.
        """
        self._starts += 1
        namesrv_port, broker_port = "0", "0"
        if self._addresses is not None:
            namesrv_port, broker_port = (_port(self._addresses.namesrv), _port(self._addresses.broker))
        command = up_command(self._directory / "store", self._config, namesrv_port, broker_port)
        output = self._directory / f"broker-{self._starts}.out"
        log = self._directory / f"broker-{self._starts}.log"
        with output.open("wb") as stdout, log.open("wb") as stderr:
            self._process = self._processes.start(command, stdout, stderr, subprocess.DEVNULL)
        ready = self._wait_ready(output, log)
        self._addresses = Addresses(str(ready["namesrv"]), str(ready["brokers"][0]), int(ready["pid"]))
        return self._addresses

    def kill(self) -> None:
        """Sends SIGKILL: no handler runs, and nothing more is written. Returns when the process is gone."""
        if self._process is None:
            raise DemoError("the broker was not started")
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """A clean stop."""
        if self._process is not None:
            end(self._process)

    def check(self) -> None:
        """Checks that the broker still runs.

        Raises:
            DemoError: the broker ended by itself.
        """
        if self._process is not None and self._process.poll() is not None:
            log = self._directory / f"broker-{self._starts}.log"
            raise DemoError(
                f"the broker ended by itself with {_exit(self._process)}: {_last_line(log)} (all of it: {log})"
            )

    def _wait_ready(self, output: Path, log: Path) -> dict[str, Any]:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            line, newline, _ = output.read_text().partition("\n")
            if newline:
                ready: dict[str, Any] = json.loads(line)
                return ready
            self.check()
            time.sleep(_POLL_S)
        raise DemoError(
            f"the broker was not ready within {START_TIMEOUT_S:.0f} s: {_last_line(log)} (all of it: {log})"
        )


def up_command(store: Path, config: Path, namesrv_port: str, broker_port: str) -> list[str]:
    """The command line of ``rucola up``; port 0 means any free port."""
    return [
        sys.executable, "-m", "rucola", "up", "--json", "--store", str(store), "--config", str(config),
        "--namesrv-port", namesrv_port, "--broker-port", broker_port, "--http-port", "0",
    ]  # fmt: skip


class ProducerProcess:
    """One producer process. A thread keeps the newest progress line that the process prints."""

    def __init__(
        self, processes: Processes, directory: Path, namesrv: str, part: int, parts: int, rows: int, rate: float
    ) -> None:
        """Starts the process.

        Args:
            rate: messages per second of this producer; with 0 it sends as fast as it can.
        """
        self._log = directory / f"producer-{part}.log"
        self._part = part
        command = [
            sys.executable, "-m", "demo.flights.produce", "--namesrv", namesrv, "--part", str(part),
            "--parts", str(parts), "--rows", str(rows), "--rate", str(rate),
        ]  # fmt: skip
        with self._log.open("wb") as stderr:
            self._process = processes.start(command, subprocess.PIPE, stderr, subprocess.PIPE)
        self._progress = Progress()
        threading.Thread(target=self._follow, name=f"producer-{part}", daemon=True).start()

    @property
    def progress(self) -> Progress:
        """The last progress line of the producer."""
        return self._progress

    def go(self) -> None:
        """Lets the producer continue after its first rows."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.done()
            raise

    def done(self) -> bool:
        """Whether the producer has ended with all its rows acknowledged.

        Raises:
            DemoError: the producer ended before that.
        """
        code = self._process.poll()
        if code is not None and code != 0:
            problem = f"producer {self._part} ended with {_exit(self._process)}"
            raise DemoError(f"{problem}: {_last_line(self._log)} (all of it: {self._log})")
        return code == 0

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._progress = Progress(**json.loads(line))


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Sends the standard error of programs that start inside the block, such as Spark's Java, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _exit(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
