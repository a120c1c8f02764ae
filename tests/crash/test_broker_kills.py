"""Kills a broker that handles delayed, transactional and popped messages; also checks that the ledger detects a lie."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.crash.broker_kills import kill_rounds
from tests.crash.kill_ledger import Decision, Ledger, Lie


def test_answers_hold_after_a_kill(tmp_path: Path) -> None:
    ledger = kill_rounds(tmp_path, 3, [True, False, False])
    assert ledger.sent
    assert ledger.due_ms
    assert ledger.halves
    assert ledger.acknowledged


def test_popped_messages() -> None:
    ledger = Ledger(sent={"p1", "p2"})
    ledger.came("p1", 1000, 500)
    with pytest.raises(Lie, match="hidden until 1500"):
        ledger.came("p1", 1499, 500)
    ledger.came("p1", 1500, 500)
    ledger.acknowledged.add("p1")
    ledger.maybe_acknowledged.add("p1")
    with pytest.raises(Lie, match="acknowledged"):
        ledger.came("p1", 9000, 500)
    assert ledger.missing() == ["p2"]


def test_delayed_messages() -> None:
    ledger = Ledger(due_ms={"d1": 1000, "d2": 2000})
    assert not ledger.check_delayed({"d1": [1000, 1001]}, complete=False)
    assert ledger.check_delayed({"d1": [1000], "d2": [2500]}, complete=True)
    with pytest.raises(Lie, match="d1 is due at 1000"):
        ledger.check_delayed({"d1": [1000, 999]}, complete=False)
    with pytest.raises(Lie, match="lost"):
        ledger.check_delayed({"d1": [1000]}, complete=True)


@pytest.mark.parametrize("decision", Decision)
def test_half_messages(decision: Decision) -> None:
    key = f"t{decision.value}"
    ledger = Ledger(halves={key})
    right = (int(decision.outcome == 8), int(decision is Decision.NEVER))
    for found in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2)):
        committed, given_up = (Counter({key: count} if count else {}) for count in found)
        if found == right:
            assert ledger.check_halves(committed, given_up, complete=True)
        elif found == (0, 0):
            assert not ledger.check_halves(committed, given_up, complete=False)
            with pytest.raises(Lie, match="lost"):
                ledger.check_halves(committed, given_up, complete=True)
        else:
            with pytest.raises(Lie, match=decision.name):
                ledger.check_halves(committed, given_up, complete=False)


def test_questions() -> None:
    ledger = Ledger(halves={"t0"}, ended={"t0": 1})
    ledger.asked("t0", 1)
    ledger.asked("t1", 2)
    assert not ledger.check_halves(Counter(), Counter(), complete=False)
    ledger.asked("t0", 2)
    with pytest.raises(Lie, match="asked about"):
        ledger.check_halves(Counter(), Counter(), complete=False)
