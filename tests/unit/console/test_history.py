"""The history: minutes of series, bounded in age and bytes, alive after a restart and after damage."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from rucola.console.history import DAYS_MAX, History
from rucola.errors import DiskError

MINUTE = 60_000
HOUR = 60 * MINUTE
NOW = 480_000 * HOUR


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(str(tmp_path))


def test_values_come_back_by_minute(history: History) -> None:
    history.add("prod\n", NOW, {"in": 1.5, "lag": 7})
    history.add("prod\n", NOW + 2 * MINUTE, {"in": 2.5})
    history.add("prod\n", NOW + 2 * MINUTE, {"in": 3.5})
    expected = [(NOW, 1.5), (NOW + MINUTE, None), (NOW + 2 * MINUTE, 3.5)]
    assert history.read("prod\n", "in", NOW - HOUR, NOW + HOUR) == expected
    assert history.read("prod\n", "lag", NOW - HOUR, NOW + HOUR) == [(NOW, 7.0)]
    assert history.read("prod\n", "in", NOW + MINUTE, NOW + HOUR) == [(NOW + 2 * MINUTE, 3.5)]


def test_another_account_sees_nothing(history: History) -> None:
    history.add("prod\nalice", NOW, {"in": 1.0})
    assert history.read("prod\n", "in", 0, 2 * NOW) == []
    assert history.read("test\nalice", "in", 0, 2 * NOW) == []


def test_it_survives_a_restart_within_the_hour(tmp_path: Path) -> None:
    first = History(str(tmp_path))
    first.add("prod\n", NOW, {"in": 1.0})
    first.close()
    second = History(str(tmp_path))
    second.add("prod\n", NOW + MINUTE, {"in": 2.0})
    assert second.read("prod\n", "in", NOW, NOW + HOUR) == [(NOW, 1.0), (NOW + MINUTE, 2.0)]


def test_a_gap_of_hours_stays_a_gap(history: History) -> None:
    history.add("prod\n", NOW, {"in": 1.0})
    history.add("prod\n", NOW + 3 * HOUR, {"in": 2.0})
    found = history.read("prod\n", "in", NOW, NOW + 4 * HOUR)
    assert len(found) == 181 and [value for _, value in found if value is not None] == [1.0, 2.0]


def test_old_hours_go(history: History) -> None:
    history.add("prod\n", NOW, {"in": 1.0})
    history.add("prod\n", NOW + DAYS_MAX * 24 * HOUR, {"in": 2.0})
    assert [value for _, value in history.read("prod\n", "in", 0, 2 * NOW)] == [2.0]


def test_the_file_is_bounded(tmp_path: Path) -> None:
    history = History(str(tmp_path), bytes_max=200_000)
    for hour in range(12):
        history.add("prod\n", NOW + hour * HOUR, {f"topic/{number}/in": 1.0 for number in range(100)})
    found = history.read("prod\n", "topic/0/in", 0, 2 * NOW)
    hours = {at // HOUR for at, value in found if value is not None}
    assert NOW // HOUR + 11 in hours and NOW // HOUR not in hours, "the oldest hours go, the newest stay"
    history.close()
    assert (tmp_path / "history.sqlite").stat().st_size <= 230_000


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"not a database, but long enough to look at" * 100)
    history = History(str(tmp_path))
    history.add("prod\n", NOW, {"in": 1.0})
    assert history.read("prod\n", "in", NOW, NOW) == [(NOW, 1.0)]
    assert (tmp_path / "history.sqlite.damaged").exists()


def test_an_error_of_the_disk_is_named(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(history, "_store", fail)
    with pytest.raises(DiskError, match="disk is full"):
        history.add("prod\n", NOW, {"in": 1.0})
