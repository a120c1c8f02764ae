"""The timer wheel finds the next time step that was ever used, also in a file of which most was never written."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from rucola.formats.timer import TimerSlot
from rucola.runtime.files import Files
from rucola.store.timer import timer_wheel
from rucola.store.timer.timer_wheel import TimerWheel

STEP_MS = 1000
SLOTS = 256


@pytest.fixture
def wheel(tmp_path: Path) -> TimerWheel:
    one = TimerWheel(Files(), str(tmp_path / "timerwheel"), SLOTS, STEP_MS)
    one.open()
    return one


@pytest.mark.parametrize("seed", range(8))
def test_no_used_step_is_passed(wheel: TimerWheel, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_wheel, "_SLOTS_AT_ONCE", 1 + 13 * seed)
    random = Random(seed)
    used = {random.randrange(1000, 1000 + SLOTS) for _ in range(seed * 2)}
    for number, step in enumerate(sorted(used)):
        wheel.put(TimerSlot(step, 52 * number, 52 * number, 1))
        if number == seed:
            wheel.apply(wheel.take_changes())
    for _ in range(50):
        start = random.randrange(1000, 1000 + SLOTS)
        end = random.randrange(start, 1000 + SLOTS + 1)
        found = wheel.next_used(start * STEP_MS, end * STEP_MS)
        assert found == min((step for step in used if start <= step < end), default=end) * STEP_MS
    wheel.close()


def test_what_cannot_be_read_may_be_used(wheel: TimerWheel) -> None:
    wheel.close()
    assert wheel.next_used(5000, 90_000) == 5000
