"""Runs the tests many times while the machine is busy, and names those that fail only sometimes:
``python tools/repeat_tests.py [--times 20] [--burn 1] [--part all] [PYTEST ARGUMENTS]``.

Without arguments of pytest, it runs what ``make test`` and ``make test-more`` run, or one of them. The output of a
failed run is kept in ``build/repeat``. The exit status is 1 if a run failed. On Ctrl-C or SIGTERM, pytest and the busy
processes end, and the runs so far are summed up.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build/repeat"
SUITE = ("--numprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder")
"""The arguments of pytest in ``make test`` and ``make test-more``."""
PARTS = {"all": (), "test": ("-m", "not more"), "more": ("-m", "more")}
"""What ``--part`` adds to them."""

_GRACE_S = 30.0
"""Seconds that an interrupted pytest has to end its servers."""

_BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
"""Burns a core until its parent has ended, even if the parent is killed."""


class Run(NamedTuple):
    """One run.

    Attributes:
        code: the exit status of pytest.
        took_s: seconds that it took.
        errors: the first line of the error of each test that failed, by the id of the test.
        passed: ids of the other tests that ran.
    """

    code: int
    took_s: float
    errors: dict[str, str]
    passed: set[str]


def main(arguments: list[str] | None = None, kept: Path = KEPT) -> int:
    """Runs the tests as often as wanted; returns 0 if all runs passed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=20, help="number of runs (20)")
    parser.add_argument("--burn", type=int, default=1, help="number of cores that are kept busy meanwhile (1)")
    parser.add_argument("--part", choices=PARTS, default="all", help="make test, make test-more, or both (all)")
    options, wanted = parser.parse_known_args(arguments)
    kept.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    try:
        with _terminated_like_interrupted(), _burning(options.burn):
            _repeat(runs, options.times, wanted or [*SUITE, *PARTS[options.part]], kept)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 130
    finally:
        print("\n".join(summary(runs)), flush=True)
    return int(any(run.code for run in runs))


def _repeat(runs: list[Run], times: int, arguments: Sequence[str], kept: Path) -> None:
    begun = time.monotonic()
    for number in range(1, times + 1):
        elapsed, failed = time.monotonic() - begun, sum(run.code != 0 for run in runs)
        print(f"run {number} of {times}: {elapsed:.0f} s elapsed, {failed} failed so far", flush=True)
        output = kept / f"run-{number}.txt"
        runs.append(run_once(arguments, output))
        if runs[-1].code:
            print(f"run {number} of {times} failed, {len(runs[-1].errors)} tests: {output}", flush=True)
        else:
            output.unlink()


def run_once(arguments: Sequence[str], output: Path) -> Run:
    """Runs pytest once; its output goes to a file. If it is interrupted, it ends its processes first."""
    results = output.with_suffix(".xml")
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "--tb=native", *arguments]
    command += [f"--junitxml={results}", "-o", "junit_family=xunit1"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.monotonic()
    with output.open("wb") as file:
        # In a group of its own: Ctrl-C reaches pytest only through this process, and only once.
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, process_group=0)
        try:
            code = process.wait()
        finally:
            _end(process)
    errors, passed = results_of(results) if results.exists() else ({}, set())
    results.unlink(missing_ok=True)
    return Run(code, time.monotonic() - begun, errors, passed)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends pytest and its processes, if it runs."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def results_of(path: Path) -> tuple[dict[str, str], set[str]]:
    """Returns the first error lines of the tests that failed, and the ids of those that did not."""
    errors: dict[str, str] = {}
    ran = set()
    for case in ElementTree.parse(path).iter("testcase"):
        ran.add(name := _id_of(case))
        for kind in ("failure", "error"):
            if (error := case.find(kind)) is not None:
                errors.setdefault(name, error.get("message", "").partition("\n")[0])
    return errors, ran - errors.keys()


def _id_of(case: ElementTree.Element) -> str:
    """Returns the id by which pytest runs a test again."""
    file = case.get("file", "")
    module = file.removesuffix(".py").replace("/", ".")
    classes = case.get("classname", "").removeprefix(module).split(".")
    return "::".join([file, *filter(None, classes), case.get("name", "")])


def summary(runs: Sequence[Run]) -> Iterator[str]:
    """Yields the times of the runs, the tests that flicker, and those that failed whenever they ran."""
    if not runs:
        return
    times = ", ".join(f"{run.took_s:.0f}" for run in runs)
    median = statistics.median(run.took_s for run in runs)
    yield f"{len(runs)} runs, {sum(run.code != 0 for run in runs)} failed; seconds: {times}; median {median:.0f}"
    for name in sorted({name for run in runs for name in run.errors}):
        lines = [run.errors[name] for run in runs if name in run.errors]
        word = "flickers" if any(name in run.passed for run in runs) else "fails"
        yield f"{word}: {name}, failed in {len(lines)} of {len(runs)} runs, {lines[0]}"
    if nameless := sum(bool(run.code) and not run.errors for run in runs):
        yield f"failed without a failed test: {nameless} runs"


@contextmanager
def _burning(cores: int) -> Iterator[None]:
    """Keeps a number of cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", _BURN], process_group=0) for _ in range(cores)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Lets SIGTERM do what Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
