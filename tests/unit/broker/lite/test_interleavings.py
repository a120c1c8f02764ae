"""No order of the workers of lite topics loses a wake-up."""

from __future__ import annotations

import pytest
from tests.sizes import size
from tests.unit.broker.lite.interleavings import LostWakeUpError, Room
from tests.unit.broker.lite.test_delivery_world import PLANTS

from rucola.broker.lite import event_dispatcher, subscriptions

GROUPS = ("shared", "again", "owner", "all")
PLANTED_SEEDS = 60
ELSEWHERE = ("no scan for the first client of a wildcard group", "the next waiting pop is not woken")
"""Losses that need more clients or longer lives than these; the world of random orders finds them."""


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long work has a step for each name."""
    monkeypatch.setattr(subscriptions, "_NAMES_A_STEP", 1)
    for name in ("_NAMES_A_STEP", "_FOUND_A_STEP"):
        monkeypatch.setattr(event_dispatcher, name, 1)


@pytest.mark.parametrize("settings", GROUPS)
def test_no_wake_up_is_lost(settings: str) -> None:
    for seed in range(size(12, 2000)):
        room = Room(seed, settings)
        room.run()
        assert room.deliveries >= 8


@pytest.mark.few(5)
@pytest.mark.parametrize("name", [name for name in PLANTS if name not in ELSEWHERE])
def test_a_planted_loss_is_found(name: str) -> None:
    with pytest.raises((LostWakeUpError, KeyError)):  # one makes tables contradict each other
        for seed in range(PLANTED_SEEDS):
            Room(seed, GROUPS[seed % 4], PLANTS[name]).run()
