"""Runs the first variants of ``python -m tests.crash.lost_ends``, and checks the program itself."""

from __future__ import annotations

import pytest
from tests.crash.lost_ends import base, variant


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", range(24))
def test_no_reader_delivers_wrong_bytes_of_a_stretch(seed: int) -> None:
    outcome = variant(seed)
    assert not [reader for inside, reader in outcome.wrong if inside], outcome.text
    assert not outcome.missed, outcome.text


def test_the_store_has_stretches_and_gaps_between_them() -> None:
    store = base()
    assert len(store.stretches) == 6
    inside = [store.is_inside(place) for place in sorted(store.records)]
    assert inside == [False] * 60 + [True] * 90 + [False] * 40 + [True] * 80 + [False] * 40 + [True] * 90


def test_outside_of_stretches_lost_ends_are_delivered_as_before() -> None:
    assert any(variant(seed).wrong for seed in range(1, 24, 2))
