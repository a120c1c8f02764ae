"""Load programs: separate processes that measure one round for each input line.

A program prints a JSON line when it is ready, and one for each round with at least ``messages``, ``failed`` and
``seconds``. The CPU times of the load and of the servers are read from ``/proc`` before and after the round.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tools.peers.packages import PEERS, ROOT, SERVER_VERSION, PeerError, java_program, need
from tools.peers.servers import JAVA_OPTIONS, Servers, cpu_seconds, python_of

ROUND_TIMEOUT_S = 120.0
FAILED_SHARE_MAX = 0.01
"""Largest tolerated fraction of failed sends; the official broker refuses a send that it has not begun in 200 ms."""
HEAP = ("-Xms1g", "-Xmx1g")
SETTLE_S = 0.2
"""Seconds for which a resumed process may catch up before it is measured."""


@dataclass(frozen=True)
class Round:
    """Result of one round; CPU times are 0 if no process was watched."""

    messages: int
    seconds: float
    load_cpu_s: float
    server_cpu_s: float
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def server_us(self) -> float:
        """CPU time of the servers per message in microseconds."""
        return self.server_cpu_s / self.messages * 1e6

    @property
    def server_cores(self) -> float:
        """The average number of cores that the servers used."""
        return self.server_cpu_s / self.seconds

    @property
    def load_us(self) -> float:
        """CPU time of the load program per message in microseconds."""
        return self.load_cpu_s / self.messages * 1e6


class Watched(Protocol):
    """A server whose CPU time is measured."""

    name: str

    @property
    def pids(self) -> Sequence[int]:
        """Its processes."""

    def cpu_seconds(self) -> float:
        """CPU time of its processes so far, in seconds."""

    def settle(self) -> None:
        """Returns when it serves again after it was stopped for a while."""


class Program:
    """A load program, which runs until the ``with`` block ends.

    Attributes:
        ready: content of the first line that the program printed.
    """

    def __init__(self, command: Sequence[str], servers: Watched | None = None, tree: Path = ROOT) -> None:
        self._servers = servers
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._pending = b""
        self.ready: dict[str, float] = {}

    def __enter__(self) -> Self:
        try:
            self.ready = self._answer()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def round(self, line: str, timeout_s: float = ROUND_TIMEOUT_S) -> Round:
        """Runs one round.

        Args:
            line: the input line that starts the round.
            timeout_s: longest time in seconds until the program prints its result.

        Raises:
            PeerError: the program ended, took too long, or too many messages failed.
        """
        assert self._process.stdin is not None
        server = self._servers.cpu_seconds() if self._servers else 0.0
        load = cpu_seconds(self._process.pid)
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        facts = self._answer(timeout_s)
        load = cpu_seconds(self._process.pid) - load
        server = self._servers.cpu_seconds() - server if self._servers else 0.0
        messages, seconds = int(facts.pop("messages")), facts.pop("seconds")
        if failed := int(facts.pop("failed", 0)):
            where = self._servers.name if self._servers else "store"
            text = f"{where}: {failed} of {messages} messages failed in round {line!r}: {self._errors_text()}"
            if failed > messages * FAILED_SHARE_MAX:
                raise PeerError(text)
            print(f"bench: {text}", file=sys.stderr)
        return Round(messages, seconds, load, server, facts)

    def kill(self) -> None:
        """Kills the program, as in a crash; leave the ``with`` block directly afterwards."""
        self._process.kill()
        self._process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the program and its servers in this block, so that they get no CPU time."""
        pids = [self._process.pid, *(self._servers.pids if self._servers else ())]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def settle(self) -> None:
        """Returns when its servers serve again after ``stopped``."""
        if self._servers:
            self._servers.settle()

    def _answer(self, timeout_s: float = ROUND_TIMEOUT_S) -> dict[str, float]:
        """Returns the next JSON line; other output is skipped."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._pending.partition(b"\n")
                if newline:
                    self._pending = rest
                    if line.startswith(b"{"):
                        answer: dict[str, float] = json.loads(line)
                        return answer
                    continue
                if not selector.select(timeout_s):
                    raise PeerError(f"load program printed no result within {timeout_s:g} s\n{self._errors_text()}")
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise PeerError(f"load program printed no result\n{self._errors_text()}")
                self._pending += data

    def _errors_text(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace")

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def java_command(main: str, *arguments: str) -> list[str]:
    """Returns the command of a program in ``bench/java``, which uses the official libraries."""
    classpath = java_program(ROOT / "bench" / "java", SERVER_VERSION)
    java = need("java", "install Java 17 to run the official client")
    options = [*JAVA_OPTIONS, *HEAP, f"-Duser.home={PEERS}"]
    return [java, *options, "-cp", classpath, f"load.{main}", *arguments]


def java_load(main: str, *arguments: str, servers: Servers | None = None) -> Program:
    """Starts a program of ``bench/java``."""
    return Program(java_command(main, *arguments), servers)


def python_load(module: str, *arguments: str, servers: Servers | None = None, tree: Path = ROOT) -> Program:
    """Starts a program of ``bench`` that uses our code, from the working tree ``tree``."""
    return Program([python_of(tree), "-m", f"bench.{module}", *arguments], servers, tree)


def alternate(
    programs: Sequence[Program],
    line: Callable[[int], str],
    seconds: float,
    rounds: int,
    pilot: int,
) -> list[list[Round]]:
    """Runs rounds of several programs alternately, so that other work on the machine affects all programs.

    During a round, the other programs and their servers are stopped. An idle Java broker polls for work a thousand
    times per second. Its polls would slow down the measured program, and no figure would show it.

    Args:
        line: returns the input line for a round of a given number of messages.
        seconds: intended length of a round in seconds.
        rounds: number of rounds for each program.
        pilot: number of messages in each pilot round; these rounds warm up a program and determine its rate.

    Returns:
        The rounds of each program.
    """
    sizes = []
    for program in programs:
        with others_stopped(programs, program):
            program.round(line(pilot))
            sizes.append(max(pilot // 4, int(program.round(line(pilot)).rate * seconds)))
    results: list[list[Round]] = [[] for _ in programs]
    for _ in range(rounds):
        for program, size, result in zip(programs, sizes, results, strict=True):
            with others_stopped(programs, program):
                result.append(program.round(line(size)))
    return results


@contextmanager
def others_stopped(programs: Sequence[Program], program: Program) -> Iterator[None]:
    """Stops all ``programs`` except ``program``, and their servers, in this block; syncs earlier writes first.

    The system slows down every writer while too much data waits for the disk.
    """
    with ExitStack() as stack:
        for other in programs:
            if other is not program:
                stack.enter_context(other.stopped())
        os.sync()
        time.sleep(SETTLE_S)
        program.settle()
        yield


def median(rounds: Sequence[Round], value: Callable[[Round], float]) -> float:
    """Returns the median of ``value`` over the rounds."""
    return statistics.median(map(value, rounds))


def own_bytes(pids: Iterable[int]) -> int:
    """Returns the bytes of memory that only these processes need, without pages of files: RssAnon and RssShmem."""
    kib = 0
    for pid in pids:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        kib += int(fields["RssAnon"].split()[0]) + int(fields["RssShmem"].split()[0])
    return kib * 1024


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """Makes a directory for the store of a load program; it is removed afterwards."""
    Path(ROOT / ".bench").mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="store-", dir=ROOT / ".bench")
