"""Analytics beside an official master under load: ``python -m tests.conformance.analytics``.

An official broker gets 2,000 messages of 1 KiB a second. In rounds without and with ``rucola replica`` behind it, the
CPU of its threads is measured, without its compilers: these work for minutes, and differ from round to round by more
than a slave costs. Promised is what those threads cost that serve slaves. The ratio of all threads is shown, too, each
round with a replica compared with the rounds before and after it; it needs a quiet machine.

Then the program of ``docs/replica.md`` streams the copy into a table. Replica and stream are killed with SIGKILL, one
by one and both at once. At the end the table is compared with what was acknowledged.

The delay of a row is the time of its commit in the table minus its store time, by the one clock of this machine. It is
promised for rows that were stored while nothing was killed. Exit status: 0 if all promises are kept, 1 if one is not, 2
if the set-up failed.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil
from tests.conformance.delta_arrivals import arrivals, newest_stored_s
from tests.conformance.ha_master import status
from tests.conformance.paced_load import PacedLoad, Sent
from tests.conformance.replica import PROCESSES, Copy, wait
from tools.peers.packages import ROOT, PeerError
from tools.peers.servers import OURS, JavaServers, cpu_seconds

from rucola.store.offline.offline_store import OfflineStore

TOPIC = "orders"
DELAY_S_MAX, CPU_MORE_MAX = 2.0, 0.05
SLAVE_THREADS = ("AcceptSocketSer", "ReadSocketServi", "WriteSocketServ", "GroupTransferSe", "HAConnection")
"""How the official broker's threads for slaves are called, in 15 characters."""
WARM_S = 30.0
"""Seconds of load before the first round."""
AWAY_S = 3.0
"""Seconds for which a killed process is away."""
BEHIND_S = 1.5
"""The table is up to date if its newest row was stored at most so many seconds ago."""
STEADY_S = 10.0
LOOK_S = 0.25
SETTLE_S = 300.0
NEAR_BYTES = 4 << 20
"""The replica has caught up if its last report lacks less than two seconds of the load."""


class Line(NamedTuple):
    """A line of output: what was found, what is promised, and whether that holds."""

    what: str
    found: str
    promised: str = ""
    holds: bool = True


class Stream:
    """The program of the page as a process group, with its table."""

    def __init__(self, copy: Path, directory: Path) -> None:
        self.table = directory / "table"
        self._directory = directory
        self._program = directory / "stream.py"
        self._program.write_text(page_program(copy, self.table, directory / "checkpoint"))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the program."""
        with (self._directory / "stream.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(self._program)],
                env={**os.environ, **OURS},
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills driver, Java and Python workers at once; does nothing if they do not run."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def cpu_seconds(self) -> float:
        """CPU time of all its processes."""
        assert self.process is not None
        driver = psutil.Process(self.process.pid)
        return sum(cpu_seconds(one.pid) for one in [driver, *driver.children(recursive=True)])

    def settle(self, load: PacedLoad) -> None:
        """Returns when the table is up to date."""

        def reached() -> bool:
            load.check()
            if self.process is None or self.process.poll() is not None:
                lines = (self._directory / "stream.log").read_text().splitlines()
                told = [line for line in lines if not line.lstrip().startswith("at ")]
                raise PeerError("the stream ended: " + "\n".join(line[:500] for line in told[-60:]))
            time.sleep(0.5)
            return newest_stored_s(self.table) > time.time() - BEHIND_S

        wait("the table is up to date", reached, SETTLE_S)


class Scene:
    """An official master under load, a copy, and a stream.

    Attributes:
        calm: when nothing was killed, as beginnings and ends in seconds.
        ages_s: ages of the newest message that a reader of the copy saw meanwhile, in seconds.
    """

    def __init__(self, servers: JavaServers, load: PacedLoad, directory: Path) -> None:
        self._servers, self._load = servers, load
        self._store = directory / "copy"
        self.stream = Stream(self._store, directory)
        self.calm: list[tuple[float, float]] = []
        self.ages_s: list[float] = []
        self._copy: Copy | None = None

    def rounds(self, count: int, seconds: float) -> list[dict[str, float]]:
        """Measures the master's CPU, without and with a copy in turn. The first and the last round are without.

        Returns:
            CPU seconds a second of the master's threads, by their names, in each round.
        """
        found = []
        time.sleep(WARM_S)
        self._load.check()
        for number in range(2 * count + 1):
            if number % 2:
                self.start_copy()
            begun_s, begun = time.monotonic(), thread_seconds(self._servers.pids[-1])
            time.sleep(seconds)
            end, took_s = thread_seconds(self._servers.pids[-1]), time.monotonic() - begun_s
            found.append({name: (value - begun.get(name, 0.0)) / took_s for name, value in end.items()})
            print(
                f"round {number}, {'with' if number % 2 else 'without'} copy: {sum_of(found[-1]):.4f} s/s", flush=True
            )
            if number % 2:
                self.end_copy(signal.SIGTERM)
        return found

    def start_copy(self) -> None:
        """Starts the replica, and returns when it has what the master has."""
        self._copy = Copy(self._servers, self._store)
        wait("the copy is up to date", self._has_caught_up, SETTLE_S)
        time.sleep(1)

    def _has_caught_up(self) -> bool:
        return any(slave.diff < NEAR_BYTES for slave in status(self._servers).ha_connection_info)

    def copy_cpu_seconds(self) -> float:
        """CPU time of the replica."""
        assert self._copy is not None
        return cpu_seconds(self._copy.process.pid)

    def end_copy(self, number: int) -> None:
        """Sends the replica a signal, and waits for its end."""
        assert self._copy is not None
        self._copy.end(number)

    def stay_calm(self, seconds: float) -> tuple[float, float]:
        """Waits until the table is up to date and stays it, and lets everything run for a while; returns CPU seconds a
        second of stream and replica.
        """
        self.stream.settle(self._load)
        time.sleep(STEADY_S)  # Java compiles what a stream that catches up has not needed
        self.stream.settle(self._load)
        begin_s, begin_cpu_s = time.time(), (self.stream.cpu_seconds(), self.copy_cpu_seconds())
        self._look(begin_s + seconds)
        took_s, end_cpu_s = time.time() - begin_s, (self.stream.cpu_seconds(), self.copy_cpu_seconds())
        self.stream.settle(self._load)
        self.calm.append((begin_s, begin_s + took_s))
        return (end_cpu_s[0] - begin_cpu_s[0]) / took_s, (end_cpu_s[1] - begin_cpu_s[1]) / took_s

    def _look(self, until_s: float) -> None:
        """Notes from time to time how old the newest message is that a reader of the directory sees."""
        reader = OfflineStore(str(self._store))
        while time.time() < until_s:
            time.sleep(LOOK_S)
            reader.refresh()
            ends = [reader.queue_range(TOPIC, queue_id) for queue_id in reader.queues(TOPIC)]
            units = [
                unit for end in ends for unit in reader.units(TOPIC, end.queue_id, end.max_offset - 1, end.max_offset)
            ]
            newest_ms = max(reader.store_timestamp(physical_offset) for _, physical_offset, _, _ in units)
            self.ages_s.append(time.time() - newest_ms / 1000)
        reader.close()

    def kill(self, *, copy: bool = False, stream: bool = False) -> None:
        """Kills one or both, and starts them again."""
        if copy:
            self.end_copy(signal.SIGKILL)
        if stream:
            self.stream.kill()
        time.sleep(AWAY_S)
        if copy:
            self._copy = Copy(self._servers, self._store)
        if stream:
            self.stream.start()

    def finish(self) -> list[Sent]:
        """Ends the load; returns what it sent, when the table has as many rows or nothing more comes."""
        self._load.stop()
        sent = self._load.sent()
        with suppress(PeerError):
            wait("all rows", lambda: arrivals(self.stream.table).places.total() >= len(sent), SETTLE_S)
        time.sleep(3)  # what is there twice comes, too
        self.stream.kill()
        self.end_copy(signal.SIGTERM)
        return sent


def page_program(copy: Path, table: Path, checkpoint: Path) -> str:
    """The program of the page, with other paths."""
    page = (ROOT / "docs" / "replica.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, path in (("COPY", copy), ("TABLE", table), ("CHECKPOINT", checkpoint)):
        program, count = re.subn(rf'^{name} = ".*"$', f"{name} = {str(path)!r}", program, flags=re.MULTILINE)
        if count != 1:
            raise PeerError(f"the program of docs/replica.md has no line {name} = ...")
    return program


def compared(sent: list[Sent], scene: Scene) -> list[Line]:
    """Compares the table with what was sent."""
    wanted = Counter((one.queue_id, one.queue_offset, one.number) for one in sent)
    found = arrivals(scene.stream.table)
    lost, repeated = wanted - found.places, found.places - wanted
    lines = [
        Line(f"rows lost of {len(sent):,}", str(lost.total()), "0", not lost),
        Line("rows repeated, or never sent", str(repeated.total()), "0", not repeated),
    ]
    for number, (begin_s, end_s) in enumerate(scene.calm):
        delays = found.delays_s(begin_s, end_s)
        if not len(delays):
            lines.append(Line("delay of a row", "no rows", "", False))
            continue
        p50, p99 = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
        when = "before the kills" if not number else "after the kills"
        text = f"{p50:.2f} / {p99:.2f} / {delays[-1]:.2f} s"
        what = f"delay of {len(delays):,} rows {when}, p50 / p99 / max"
        lines.append(Line(what, text, f"p99 <= {DELAY_S_MAX:g} s", bool(p99 <= DELAY_S_MAX)))
    ages = sorted(scene.ages_s)
    text = f"{ages[len(ages) // 2]:.2f} / {ages[len(ages) * 99 // 100]:.2f} / {ages[-1]:.2f} s"
    lines.append(Line("age of the newest message in the directory, p50 / p99 / max", text))
    all_delays = found.delays_s(scene.calm[0][0], time.time())
    lines.append(Line("longest delay, kills included", f"{all_delays[-1]:.1f} s" if len(all_delays) else "-"))
    return lines


def thread_seconds(pid: int) -> dict[str, float]:
    """CPU seconds that the threads of a process have used, by the first 15 characters of their names; no compilers."""
    found: dict[str, float] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has just ended
            name = (thread / "comm").read_text().strip()
            if "CompilerThre" not in name:
                used_ns = int((thread / "schedstat").read_text().split()[0])
                found[name] = found.get(name, 0.0) + used_ns / 1e9
    return found


def sum_of(used: dict[str, float], names: tuple[str, ...] = ("",)) -> float:
    """CPU of the threads whose names begin so."""
    return sum(value for name, value in used.items() if name.startswith(names))


def cpu_lines(rounds: list[dict[str, float]]) -> list[Line]:
    """The master's CPU with a copy, compared with the rounds around it."""
    without, own = mean(map(sum_of, rounds[::2])), [sum_of(used, SLAVE_THREADS) for used in rounds]
    more = (mean(own[1::2]) - mean(own[::2])) / without
    totals = list(map(sum_of, rounds))
    ratios = [totals[at] / mean((totals[at - 1], totals[at + 1])) for at in range(1, len(totals), 2)]
    return [
        Line("CPU of the master without a copy", f"{without:.3f} s/s"),
        Line("more CPU of its threads for slaves", f"{more:.1%}", f"<= {CPU_MORE_MAX:.0%}", more <= CPU_MORE_MAX),
        Line("all its threads, with / without a copy", ", ".join(f"{ratio:.3f}" for ratio in ratios)),
    ]


def measured(servers: JavaServers, options: argparse.Namespace, directory: Path) -> list[Line]:
    """Runs all of it; returns the lines of the table."""
    load = PacedLoad(servers.namesrv, TOPIC, options.rate, directory / "ledger")
    PROCESSES.append(load.process)
    scene = Scene(servers, load, directory)
    try:
        lines = cpu_lines(scene.rounds(options.rounds, options.seconds)) if options.rounds else []
        scene.start_copy()
        scene.stream.start()
        scene.stream.settle(load)
        used = scene.stay_calm(options.seconds)
        for kill in ({"copy": True}, {"stream": True}, {"copy": True, "stream": True}):
            print(f"killed: {', '.join(kill)}", flush=True)
            scene.kill(**kill)
            scene.stream.settle(load)
        scene.stay_calm(options.seconds)
        lines += compared(scene.finish(), scene)
    finally:
        scene.stream.kill()
    return [*lines, Line("CPU of the stream / of the replica", f"{used[0]:.2f} / {used[1]:.2f} s/s")]


def main(arguments: list[str]) -> int:
    """Runs the scenario and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.analytics", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a round, and of a calm time")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds with a copy; 0 measures no CPU")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that the processes below end with the block
    try:
        with (
            TemporaryDirectory(prefix="rucola-analytics-") as name,
            JavaServers(store=Path(name) / "master") as servers,
        ):
            lines = measured(servers, options, Path(name))
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    finally:
        for process in PROCESSES:
            process.kill()
    for line in lines:
        print(f"{line.what:<72} {line.found:<24} {line.promised:<12}{'' if line.holds else ' MISSED'}")
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
