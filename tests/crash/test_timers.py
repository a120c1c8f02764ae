"""The power fails at one in a few steps with timed messages (with ``--whole`` at every step): none is lost, none is
early, and none comes after its recall.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.timer_life import Broken, TimerExplorer, TimerLife, check
from tests.sizes import size

from rucola.store.timer.timer_store import TimerStore
from rucola.store.timer.timer_wheel import TimerWheel

ONE_IN = size(10, 1)
"""The power fails at one in this many steps."""


def come_and_go(life: TimerLife) -> None:
    """Several messages are due in the same time step, one is due at once, and one is recalled. Their units extend over
    two segments of the timer log.
    """
    life.open()
    for number in range(5):
        life.wait(f"a{number}", 2000 + 1000 * (number // 2))
    life.turn()
    life.write()
    life.wait("late", 0)
    life.wait("gone", 4000)
    life.wait("go", 0, withdraws="gone")
    life.turn(1000)
    life.wait("b0", 3000)
    life.turn(1000)
    life.write()
    life.turn(2000)
    life.wait("b1", 1000)
    life.turn(1000)
    life.write()
    life.turn(3000)
    life.stop()


def roll(life: TimerLife) -> None:
    """One message is due later than a unit can express, so it is rolled."""
    life.open()
    life.wait("far", 25_000)
    life.wait("near", 3000)
    life.turn()
    life.write()
    life.turn(11_000)
    life.turn(1000)
    life.write()
    life.turn(12_000)
    life.turn(2000)
    life.write()


def killed(life: TimerLife) -> None:
    """The process is killed after a delivery, before the progress is written. It starts again, is stopped cleanly, and
    starts once more.
    """
    life.open()
    for number in range(10):
        life.wait(f"k{number}", 2000)
    life.turn()
    life.turn(3000)
    life.open()
    life.turn()
    life.write()
    life.wait("second", 1000)
    life.turn()
    life.stop()
    life.open()
    life.turn(2000)
    life.write()


def unflushed(life: TimerLife) -> None:
    """Progress is written while deliveries are not on the disk yet."""
    life.open()
    for number in range(3):
        life.wait(f"u{number}", 1000 * number)
    life.flush()
    life.work()
    life.write()
    for _ in range(3):
        life.clock.advance(1500)
        life.work()
        life.write()
    life.flush()
    life.work()
    life.write()


WORKLOADS = {work.__name__: work for work in (come_and_go, roll, killed, unflushed)}


def explore(
    workload: Callable[[TimerLife], None],
    sync: bool,
    seed: int = 5,
    sample: int = 1,
    interleaved: bool = False,
    every: int = 1,
) -> TimerExplorer:
    explorer = TimerExplorer(sync, seed, sample, interleaved, every)
    life = explorer.life()
    workload(life)
    life.finish()
    came = life.came()
    check(life.promises, came, came)
    assert "gone" not in came
    return explorer


@pytest.mark.few(2)
@pytest.mark.parametrize(("number", "name"), list(enumerate(WORKLOADS)))
def test_power_cuts(number: int, name: str) -> None:
    assert explore(WORKLOADS[name], number % 2 == 0, every=ONE_IN).states > 20


@pytest.mark.few(2)
@pytest.mark.parametrize("name", WORKLOADS)
def test_power_cuts_while_the_threads_go_on_in_turns(name: str) -> None:
    assert explore(WORKLOADS[name], len(name) % 2 == 0, interleaved=True, sample=0, every=ONE_IN).states > 20


def count_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: a message counts as delivered before its delivery is on the disk."""
    changes = TimerStore.changes
    monkeypatch.setattr(TimerStore, "changes", lambda self, _, now_ms: changes(self, 1 << 60, now_ms))


def wheel_before_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: a wheel is trusted although it points to units that the disk does not have."""
    monkeypatch.setattr(TimerWheel, "is_beyond", lambda *_: False)
    put = TimerWheel.put

    def at_once(self: TimerWheel, slot: object) -> None:
        put(self, slot)  # type: ignore[arg-type]
        self.apply(self.take_changes())

    monkeypatch.setattr(TimerWheel, "put", at_once)


def forget_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: messages that are already in the timer wheel are added again."""
    monkeypatch.setattr(TimerStore, "known", lambda *_: False)


def skip_what_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: a start continues from the current time, not from the time of the last delivery."""
    monkeypatch.setattr(TimerStore, "_first_time", lambda self, _, __, now_ms: now_ms - now_ms % 1000)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("defect", "name", "sync"),
    [
        (count_too_early, "unflushed", False),
        (wheel_before_log, "come_and_go", False),
        (forget_known, "killed", True),
        (skip_what_was_due, "come_and_go", True),
    ],
)
def test_planted_defects_are_noticed(
    monkeypatch: pytest.MonkeyPatch, defect: Callable[[pytest.MonkeyPatch], None], name: str, sync: bool
) -> None:
    defect(monkeypatch)
    with pytest.raises(Broken):
        explore(WORKLOADS[name], sync, sample=6, every=ONE_IN)
