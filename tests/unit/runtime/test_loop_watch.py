"""The watch over turns (iterations) of the event loop: on a stepped clock, and its report about a running turn."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

import pytest

from rucola.runtime.loop_watch import LoopWatch
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop
from rucola.testing.manual_worker import ManualWorker, manual_workers


class Watched:
    """A watched loop; ``start_ms`` is the rest of the turn in which the watch is started."""

    def __init__(self, start_ms: int = 0) -> None:
        self.clock = ManualClock()
        self.used_s = 0.0
        self.loop = ManualLoop(self.clock)
        with manual_workers("rucola.runtime.loop_watch"):
            self.watch = LoopWatch(self.clock.monotonic, lambda: self.used_s)
        self.watch.start(cast(Any, self.loop))
        self.clock.advance(start_ms)
        self.loop.run()

    def turn(self, milliseconds: int, look_after_ms: int = 0) -> None:
        """Runs a turn that begins when a tick is due and takes ``milliseconds``."""
        self.watch.expect_work()
        self.clock.advance(20)
        self.clock.advance(look_after_ms)
        if look_after_ms:
            worker = self.watch._worker
            assert isinstance(worker, ManualWorker)
            worker.run()
        self.clock.advance(milliseconds - look_after_ms)
        self.loop.run()


def test_the_longest_turn_is_that_of_the_last_two_minutes() -> None:
    watched = Watched()
    watched.turn(30)
    watched.turn(5)
    assert watched.watch.longest_s == pytest.approx(0.03)
    assert watched.watch.slow_turns == 0
    watched.turn(70)
    assert watched.watch.longest_s == pytest.approx(0.07)
    assert watched.watch.slow_turns == 1
    for _ in range(3100):
        watched.turn(0)
    assert watched.watch.longest_s == pytest.approx(0.07)
    for _ in range(3100):
        watched.turn(0)
    assert watched.watch.longest_s < 0.001
    watched.watch.stop()
    watched.turn(80)
    assert watched.watch.slow_turns == 1


def test_the_turn_that_starts_the_server_is_not_watched(caplog: pytest.LogCaptureFixture) -> None:
    """Before the fix, every start of a broker logged a long turn, in which the text for its user was prepared."""
    watched = Watched(start_ms=300)
    caplog.set_level(logging.INFO)
    watched.turn(0)
    assert (watched.watch.slow_turns, watched.watch.longest_s, caplog.records) == (0, 0, [])
    watched.turn(70)
    assert watched.watch.slow_turns == len(caplog.records) == 1


def test_a_watch_that_has_not_begun_can_be_stopped() -> None:
    clock = ManualClock()
    loop = ManualLoop(clock)
    watch = LoopWatch(clock.monotonic)
    watch.start(cast(Any, loop))
    watch.stop()
    clock.advance(100)
    loop.run()
    assert watch._due_s == 0.0


def test_processor_time_of_turns_is_told_beside_their_length(caplog: pytest.LogCaptureFixture) -> None:
    """The CPU time of a turn is logged with its length. The second turn is long only because it waits for a CPU; the
    third uses a usual amount of CPU time.
    """
    watched = Watched()
    caplog.set_level(logging.INFO)
    watched.turn(0)
    for milliseconds, used_s in ((60, 0.055), (90, 0.002), (30, 0.045)):
        watched.used_s += used_s
        watched.turn(milliseconds)
    assert watched.watch.longest_s == pytest.approx(0.09)
    assert watched.watch.longest_cpu_s == pytest.approx(0.055)
    assert "'took_ms': 60, 'cpu_ms': 55" in str(caplog.records[0].__dict__)


class Command:
    code = 215


def test_a_long_turn_is_logged_with_the_request_and_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()

    def serve(command: Command) -> None:
        watched.turn(90, look_after_ms=60)

    with caplog.at_level(logging.INFO, "rucola.runtime.loop_watch"):
        serve(Command())
        watched.turn(60)
        watched.clock.advance(10_000)
        watched.loop.run()
    first, later = caplog.records
    assert "request 215: " in str(first.__dict__) and "90" in str(first.__dict__)
    assert (first.levelno, later.levelno) == (logging.INFO, logging.WARNING)
    assert "unknown" in str(later.__dict__), "the watch did not check during that turn"
    assert watched.watch.slow_turns == 3


def test_the_thread_ends_with_the_watch() -> None:
    watch = LoopWatch(ManualClock().monotonic)
    watch.start(cast(Any, ManualLoop(ManualClock())))
    watch.stop()
    assert "rucola-loop-watch" not in {thread.name for thread in threading.enumerate()}
    LoopWatch(ManualClock().monotonic).stop()


def test_ticks_and_thread_rest_after_a_quiet_second_until_the_next_read() -> None:
    watched = Watched()
    worker = watched.watch._worker
    assert isinstance(worker, ManualWorker)
    for _ in range(48):
        watched.clock.advance(20)
        watched.loop.run()
    assert watched.loop._calls and not worker.rests
    for _ in range(3):
        watched.clock.advance(20)
        watched.loop.run()
    assert not watched.loop._calls and worker.rests
    watched.watch.expect_work()
    assert watched.loop._calls and not worker.rests and worker.wanted


def test_a_turn_that_begins_with_the_first_read_after_a_rest_is_measured() -> None:
    watched = rested()
    watched.watch.expect_work()
    watched.clock.advance(300)
    watched.loop.run()
    assert watched.watch.longest_s == pytest.approx(0.28)
    assert watched.watch.slow_turns == 1


def test_work_in_a_rest_is_measured_by_its_own_start_and_end(caplog: pytest.LogCaptureFixture) -> None:
    watched = rested()
    caplog.set_level(logging.INFO)

    def work() -> str:
        watched.clock.advance(70)
        watched.used_s += 0.05
        return "done"

    assert watched.watch.timed("writing of offsets", work) == "done"
    assert not watched.loop._calls
    assert (watched.watch.longest_s, watched.watch.longest_cpu_s) == (pytest.approx(0.07), pytest.approx(0.05))
    (record,) = caplog.records
    assert "work writing of offsets" in str(record.__dict__)


def test_failed_work_is_measured_too() -> None:
    watched = rested()

    def work() -> None:
        watched.clock.advance(70)
        raise OSError

    with pytest.raises(OSError):
        watched.watch.timed("a", work)
    assert watched.watch.slow_turns == 1


def test_work_is_noticed_once_while_ticks_run() -> None:
    watched = Watched()
    watched.watch.timed("a", lambda: watched.clock.advance(100))
    watched.loop.run()
    assert watched.watch.slow_turns == 1


def test_ticks_watch_a_task_for_a_moment() -> None:
    watched = rested()

    async def task() -> None:
        pass

    watched.watch.timed("a", task).close()
    watched.clock.advance(20)
    watched.loop.run()
    assert watched.loop._calls
    for _ in range(2):
        watched.clock.advance(20)
        watched.loop.run()
    assert not watched.loop._calls


def test_the_longest_turn_is_forgotten_without_ticks() -> None:
    watched = rested()
    watched.watch.timed("a", lambda: watched.clock.advance(40))
    watched.clock.advance(100_000)
    assert watched.watch.longest_s == pytest.approx(0.04)
    watched.clock.advance(25_000)
    assert watched.watch.longest_s == 0
    watched.watch.timed("a", lambda: watched.clock.advance(30))
    assert watched.watch.longest_s == pytest.approx(0.03)


def test_a_stopped_watch_expects_no_work() -> None:
    watched = rested()
    watched.watch.stop()
    watched.watch.expect_work()
    assert not watched.loop._calls


def rested() -> Watched:
    watched = Watched()
    for _ in range(60):
        watched.clock.advance(20)
        watched.loop.run()
    return watched
