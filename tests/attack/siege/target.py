"""The broker under attack: ``rucola up`` in a separate process, its memory, and the time that it takes to stop."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.attack.guarded import ACCOUNTS, write_accounts

CONF = """
brokerName=siege
enablePropertyFilter=true
recallMessageEnable=true
mapedFileSizeCommitLog=67108864
transactionCheckInterval=3000
"""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The ports of a broker, and whether requests to it are signed."""

    broker: str
    namesrv: str
    http: str
    guarded: bool = False
    grpc: str = ""

    def to_json(self) -> str:
        return json.dumps([self.broker, self.namesrv, self.http, self.guarded, self.grpc])

    @classmethod
    def of_json(cls, text: str) -> Addresses:
        return cls(*json.loads(text))


class Stop(NamedTuple):
    """Seconds from SIGTERM to the log line about the stop, and to the end of the process; infinite if the line or the
    end does not come.
    """

    answered_s: float
    ended_s: float


class Target:
    """One broker; use it as ``async with``."""

    def __init__(self, folder: Path, guarded: bool = False, profiled: bool = False) -> None:
        self._folder = folder
        self._profile = ["-m", "cProfile", "-o", str(folder / "profile")] if profiled else []
        self._guarded = guarded
        self._said_stopping_s: float | None = None

    async def __aenter__(self) -> Target:
        self._folder.mkdir(parents=True, exist_ok=True)
        conf = CONF
        if self._guarded:
            write_accounts(self._folder / "home", ACCOUNTS)
            conf += f"aclEnable=true\nrocketmqHome={self._folder / 'home'}\n"
        (self._folder / "broker.conf").write_text(conf)
        options = ["--store", str(self._folder / "store"), "-c", str(self._folder / "broker.conf"), "--json"]
        options += ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0", "--grpc-port", "0"]
        options += ["--flush", "async"]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *self._profile, "-m", "rucola", "up", *options, stdout=pipe, stderr=pipe
        )
        assert self._process.stdout is not None
        facts = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 60))
        self.addresses = Addresses(facts["brokers"][0], facts["namesrv"], facts["http"], self._guarded, facts["grpc"])
        self._log = asyncio.create_task(self._read_log())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._log

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None

    def memory_bytes(self) -> int:
        """Returns the bytes of resident memory without pages of mapped files, which the kernel can take back."""
        try:
            text = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return 0
        lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return int(lines["RssAnon"].split()[0]) * 1024 if "RssAnon" in lines else 0

    def processor_s(self) -> float:
        """Returns the CPU time of the process so far, in seconds."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def longest_turn_s(self) -> tuple[float, float]:
        """Returns the longest turn (iteration) of the event loop in the last one to two minutes, as the process
        measured it, and the most CPU time that a turn took. On a busy machine, only the CPU time is a property of the
        broker.
        """
        url = f"http://{self.addresses.http}/metrics"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return str(answer.read().decode())

        try:
            text = await asyncio.to_thread(read)
        except OSError:
            return float("nan"), float("nan")
        found = dict(re.findall(r"^rucola_loop_longest_(turn|turn_cpu)_seconds(?:\{.*\})? (\S+)", text, re.MULTILINE))
        return float(found.get("turn", "nan")), float(found.get("turn_cpu", "nan"))

    async def stop(self) -> Stop:
        """Sends SIGTERM and observes the process for 30 s."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), 30)
        except TimeoutError:
            return Stop(float("inf") if self._said_stopping_s is None else self._said_stopping_s - began, float("inf"))
        ended = time.monotonic() - began
        await self._log
        return Stop(ended if self._said_stopping_s is None else self._said_stopping_s - began, ended)

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        with (self._folder / "broker.log").open("ab", buffering=0) as log:
            async for line in self._process.stderr:
                if b"stopping" in line and b"SIGTERM" in line:
                    self._said_stopping_s = time.monotonic()
                log.write(line)


def processors() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
