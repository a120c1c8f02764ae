"""How fast a slave catches up with an official master whose log is in memory: the official slave and ours in turn.

Both begin with the first MiB of the log, since an official slave without records takes only the newest segment. It
counts as caught up when the last entry of each queue is there. Ours must also have written everything to the disk: its
process has ended.

The second pair of rows is the transfer alone. The official slave cannot be kept from dispatching: it counts as done
when it has reported the end of the log, whatever its queues have; what its dispatch has cost until then is in its CPU
time. Ours receives, checks and writes (``load_transfer``), and dispatches nothing; its start is in its time.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.peers.packages import PeerError
from tools.peers.servers import OURS, cpu_seconds

from bench.context import Context
from bench.figure import Figure, at_least, at_most, rate, share
from bench.large_store import QUEUES, SEGMENT_BYTES, write_log
from bench.pairs import JavaPair, held_offsets, replica_command
from bench.program import scratch_directory

GROUP = "catching up with an official master, log in memory, queues and index included"
GIB, GIB_QUICK = 4, 1
TOPICS, BODY_BYTES = 4, 1024
RECORD_BYTES = 1210
"""About the size of a record."""
BEGUN_BYTES = 1 << 20
ENTRY_BYTES, ENTRIES = 20, 300_000
"""Size of an entry of a queue, and number of entries in a file."""
CATCH_UP_S = 300.0
_LOOK_S = 0.02


class Course(NamedTuple):
    """One catching up: bytes, seconds, and seconds of CPU time of the slave."""

    log_bytes: int
    seconds: float
    cpu_s: float


def measure(context: Context) -> Iterator[Figure]:
    """Measures rate and CPU time of both slaves."""
    gib = GIB_QUICK if context.quick else GIB
    messages = gib * (1 << 30) // RECORD_BYTES // (TOPICS * QUEUES) * TOPICS * QUEUES
    with scratch_directory() as scratch:
        store = Path(scratch) / "master"
        context.show("catching up: writing the log")
        end = write_log(store, messages, TOPICS, BODY_BYTES)
        shutil.rmtree(store / "config", ignore_errors=True)
        context.show("catching up: the official master builds its queues")
        with JavaPair("async", "ASYNC_MASTER", store, with_slave=False) as master:
            _wait(store, messages, "the master")
            ours: list[Course] = []
            theirs: list[Course] = []
            our_transfers: list[Course] = []
            their_transfers: list[Course] = []
            for _ in range(context.rounds):
                context.show("catching up: ours")
                ours.append(_ours(master, Path(scratch) / "ours", end, messages))
                context.show("catching up: ours, without dispatch")
                our_transfers.append(_our_transfer(master, Path(scratch) / "ours", end))
                context.show("catching up: the official slave")
                transfer, course = _official(master, end, messages)
                their_transfers.append(transfer)
                theirs.append(course)
    yield from _figures(f"{gib} GiB", ours, theirs)
    yield from _figures(f"{gib} GiB, without dispatch", our_transfers, their_transfers)


def _figures(what: str, ours: list[Course], theirs: list[Course]) -> Iterator[Figure]:
    speeds = [statistics.median(one.log_bytes / one.seconds for one in side) / 1e6 for side in (ours, theirs)]
    yield rate(GROUP, what, speeds[0], speeds[1], "Java slave", at_least(1.5), unit="MB/s")
    cpus = [statistics.median(one.cpu_s for one in side) for side in (ours, theirs)]
    yield share(GROUP, f"{what}: CPU of the slave", cpus[0], cpus[1], "Java slave", at_most(1 / 3), unit="s")


def _ours(master: JavaPair, store: Path, end: int, messages: int) -> Course:
    """From the start of our process to its end."""
    _begin(master.store, store)
    began = time.perf_counter()
    command = [*replica_command(master.ha, master.broker, store), "--until", "now"]
    process = subprocess.Popen(
        command, env={**os.environ, **OURS}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    if process.returncode or not _has_queues(store, messages):
        raise PeerError(f"the replica ended with {process.returncode}, or without all queues")
    shutil.rmtree(store)
    return Course(end - BEGUN_BYTES, seconds, used.ru_utime + used.ru_stime)


def _our_transfer(master: JavaPair, store: Path, end: int) -> Course:
    """From the start of our process to the end of the log."""
    _begin(master.store, store)
    began = time.perf_counter()
    command = [sys.executable, "-m", "bench.load_transfer", master.ha, str(store), str(end)]
    with subprocess.Popen(command, env={**os.environ, **OURS}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        process.kill()
    if not line:
        raise PeerError("the copy without dispatch ended early")
    shutil.rmtree(store)
    return Course(end - BEGUN_BYTES, seconds, json.loads(line)["cpu_s"])


def _official(master: JavaPair, end: int, messages: int) -> tuple[Course, Course]:
    """From the first byte that the slave reports to the end of the log, and to the last entry of its queues."""
    _begin(master.store, master.slave_store)
    master.start_slave()
    assert master.slave is not None
    while (first := min(held_offsets(master.broker)[:-1], default=0)) <= BEGUN_BYTES:
        time.sleep(_LOOK_S)
    began, cpu_s = time.perf_counter(), cpu_seconds(master.slave.pid)

    def course() -> Course:
        assert master.slave is not None
        return Course(end - first, time.perf_counter() - began, cpu_seconds(master.slave.pid) - cpu_s)

    while min(held_offsets(master.broker)[:-1], default=0) < end:
        if time.perf_counter() - began > CATCH_UP_S:
            raise PeerError(f"the official slave has not the whole log after {CATCH_UP_S:g} s")
        time.sleep(_LOOK_S)
    transfer = course()
    _wait(master.slave_store, messages, "the official slave")
    whole = course()
    master.stop_slave()
    shutil.rmtree(master.slave_store)
    return transfer, whole


def _begin(master: Path, store: Path) -> None:
    """Makes a directory whose log has the beginning of the master's, and reads the master's log into memory."""
    os.sync()
    for path in sorted((master / "commitlog").iterdir()):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    directory = store / "commitlog"
    directory.mkdir(parents=True)
    with (master / "commitlog" / f"{0:020d}").open("rb") as source:
        content = source.read(BEGUN_BYTES)
    content = content[: len(content) - len(content) % int.from_bytes(content[:4], "big")]  # all are equally long
    with (directory / f"{0:020d}").open("wb") as file:
        file.write(content)
        file.truncate(SEGMENT_BYTES)


def _wait(store: Path, messages: int, who: str) -> None:
    deadline = time.monotonic() + CATCH_UP_S
    while not _has_queues(store, messages):
        if time.monotonic() > deadline:
            raise PeerError(f"{who} has not all queues after {CATCH_UP_S:g} s")
        time.sleep(_LOOK_S)


def _has_queues(store: Path, messages: int) -> bool:
    """Whether the last entry of each queue is there."""
    last = messages // (TOPICS * QUEUES) - 1
    file_start, entry = last // ENTRIES * ENTRIES * ENTRY_BYTES, last % ENTRIES
    for topic in range(TOPICS):
        for queue in range(QUEUES):
            path = store / "consumequeue" / f"topic-{topic:03d}" / str(queue) / f"{file_start:020d}"
            try:
                with path.open("rb") as file:
                    file.seek(entry * ENTRY_BYTES)
                    if not any(file.read(ENTRY_BYTES)):
                        return False
            except FileNotFoundError:
                return False
    return True
