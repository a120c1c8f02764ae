"""The store time when the wall clock is unreliable."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import message, opened

from rucola.store.log.store_time import StoreTime
from rucola.testing.clock import ManualClock

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Scene:
    """A clock, and the store time that follows it; each test stores messages at several times of this clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.time = StoreTime(self.clock)
        self.newest_ms = START_MS

    def set_back(self, milliseconds: int) -> None:
        self.clock.set_wall_ms(self.clock.wall_ms() - milliseconds)

    def now(self, stored: bool = True) -> int:
        now = self.time.now_ms(self.newest_ms)
        if stored:
            self.newest_ms = max(now, self.newest_ms)
        return now

    def after(self, milliseconds: int, stored: bool = True) -> int:
        """Advances the clock; returns by how many milliseconds the store time advances meanwhile."""
        before = self.now(stored)
        self.clock.advance(milliseconds)
        return self.now(stored) - before


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(("back_ms", "per_s"), [(500, 500), (60_000, 500), (60_020, 900), (HOUR_MS, 900)])
def test_time_goes_on_more_slowly_than_the_clock(back_ms: int, per_s: int, stored: bool) -> None:
    scene = Scene()
    scene.set_back(back_ms)
    assert scene.now() == START_MS
    assert scene.after(200, stored) == per_s // 5


@pytest.mark.few
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("step_ms", [1, 1000])
def test_it_ends_when_it_was_said_to_end(step_ms: int, stored: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A clock that is 90 s behind gains 30 s in 300 s, while store time runs at 0.9 of its speed. Then it gains the
    other 60 s in 120 s, while store time runs at half speed.
    """
    caplog.set_level(logging.INFO)
    scene, last = Scene(), START_MS
    scene.set_back(90_000)
    scene.now(stored)
    (told,) = [record for record in caplog.records if "wall clock is behind" in record.message]
    fields: dict[str, Any] = told.__dict__["rucola_fields"]
    assert (fields["behind_ms"], fields["ends_in_s"]) == (90_000, 420)
    for _ in range(418_000 // step_ms):
        scene.clock.advance(step_ms)
        now = scene.now(stored)
        assert last <= now
        last = now
    assert scene.clock.wall_ms() < last
    scene.clock.advance(3000)
    assert scene.now(stored) == scene.clock.wall_ms() >= last
    assert [vars(one)["rucola_event"] for one in caplog.records][1:] == ["wall clock has caught up with store time"]
    assert scene.after(1000) == 1000


@pytest.mark.parametrize("silent_ms", [10_000, 80_000])
def test_time_goes_on_also_while_nobody_asks(silent_ms: int) -> None:
    asked, silent = Scene(), Scene()
    for scene in (asked, silent):
        scene.set_back(90_000)
        scene.now()
    for _ in range(silent_ms // 1000):
        asked.after(1000)
    silent.after(silent_ms)
    assert silent.now() == asked.now() == START_MS + silent_ms * 9 // 10


def test_a_clock_set_back_once_more_is_waited_for_from_there(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.set_back(30_000)
    assert scene.after(10_000) == 5000
    scene.set_back(HOUR_MS)
    assert scene.now() == START_MS + 5000
    assert scene.after(10_000) == 9000
    scene.set_back(5000)
    assert scene.now() == START_MS + 14_000
    told = [record.__dict__["rucola_fields"]["behind_ms"] for record in caplog.records]
    assert told == [30_000, HOUR_MS + 25_000, HOUR_MS + 29_000]


def test_corrections_of_a_time_server_are_not_told_and_each_jump_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene()
    scene.set_back(999)
    scene.after(3000)
    assert not caplog.records
    for _ in range(2):
        scene.set_back(1000)
        scene.after(500)
        scene.after(3000)
    assert len(caplog.records) == 4


def test_a_store_that_is_started_with_a_clock_that_is_behind_goes_on_from_its_newest_message(tmp_path: Path) -> None:
    clock = ManualClock(START_MS + HOUR_MS)
    store = opened(tmp_path, clock=clock)
    newest_ms = store.put_message(message(0)).store_timestamp_ms
    store.shutdown()
    clock.set_wall_ms(START_MS)
    store = opened(tmp_path, clock=clock)
    assert store.now_ms() == newest_ms
    clock.advance(1000)
    assert store.put_message(message(1)).store_timestamp_ms == newest_ms + 900
    store.shutdown()
