"""A time limit for calls that have no time limit of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from demo.flights.deadline import deadline
from demo.flights.processes import DemoError


def test_long_work_is_interrupted() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as sleeper,
        pytest.raises(DemoError, match="starting Spark took longer than 0 s"),
    ):
        try:
            with deadline("starting Spark", 0.2):
                sleeper.wait()
        finally:
            sleeper.kill()


def test_work_that_ends_in_time_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with deadline("nothing", 30.0):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
