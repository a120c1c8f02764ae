"""The output without a terminal, and the final table."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from demo.flights import screen
from demo.flights.figures import CarrierMonth
from demo.flights.screen import Screen, closing_table
from rich.console import Console


def _screen() -> tuple[Screen, io.StringIO]:
    text = io.StringIO()
    return Screen(Console(file=text, width=120, highlight=False)), text


def test_steps_say_when_they_begin_and_how_long_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: now.s))
    shown, text = _screen()
    with shown.step("starting rucola up"):
        assert "0.0 s  starting rucola up ..." in text.getvalue()
        now.s += 2.5
    assert "2.5 s  ✓ starting rucola up (2.5 s)" in text.getvalue()
    assert shown.steps == {"starting rucola up": 2.5}


def test_a_failed_step_is_not_ticked() -> None:
    shown, text = _screen()
    with pytest.raises(ValueError, match="broken"), shown.step("publishing"):
        raise ValueError("broken")
    assert "✓" not in text.getvalue()


def test_progress_without_a_terminal_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "PLAIN_INTERVAL_S", 0.0)
    shown, text = _screen()
    with shown.bars(1000) as bars:
        bars.update(0, 0)
        bars.update(400, 150)
    assert "published 400 of 1,000" in text.getvalue()
    assert "in gold 150" in text.getvalue()


def test_closing_table_weighs_months_by_their_flights() -> None:
    gold = [
        CarrierMonth("AA", 1, "American Airlines Inc.", 3, 1, 2, 7, 3.5, 1, -3, -3.0, 150),
        CarrierMonth("AA", 2, "American Airlines Inc.", 1, 0, 1, 8, 8.0, 1, 9, 9.0, 0),
        CarrierMonth("HA", 2, None, 9, 9, 0, 0, None, 0, 0, None, 0),
    ]
    shown, text = _screen()
    shown.console.print(closing_table(gold))
    lines = text.getvalue().splitlines()
    busiest = next(line for line in lines if "HA" in line or "AA" in line)
    assert "HA" in busiest
    assert "100.0%" in busiest
    (american,) = [line for line in lines if "AA" in line]
    assert [cell.strip() for cell in re.split(r"\s{2,}| (?= )", american.strip())] == [
        "AA", "American Airlines", "4", "25.0%", "5.0", "3.0", "Feb", "9.0",
    ]  # fmt: skip
