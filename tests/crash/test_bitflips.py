"""Runs the first variants of ``python -m tests.crash.bitflips``, and checks that this program finds planted errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.crash.bitflips import FIELDS, STORES, Violation, check, variant
from tests.sizes import size

from rucola.store.queue.placement import Placement

_ROUND = len(FIELDS) * len(STORES)
SEEDS = [len(FIELDS) * (n % len(STORES)) + n % len(FIELDS) + _ROUND * (n // len(FIELDS)) for n in range(size(20, 60))]
"""Seeds that flip bits in each field once, and in each store two or three times; whole: three times as often."""


@pytest.mark.few(10)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_costs_that_message_at_most(seed: int, tmp_path: Path) -> None:
    damaged = variant(seed)
    print(damaged.text)
    check(damaged, tmp_path / "store")


def test_all_fields_and_stores_are_among_them() -> None:
    assert {variant(seed).field for seed in SEEDS} == set(FIELDS)
    assert {variant(seed).base.name for seed in SEEDS} == set(STORES)


def test_a_word_that_is_taken_for_true_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "entry_of", lambda _self, _queue, queue_offset, *_: queue_offset)
    # This is a low bit; with a high one, the start would not end in time.
    low = re.compile(r"rocketmq.* queue_offset, bit 6\d")
    seeds = [seed for seed in range(FIELDS.index("queue_offset"), 2000, len(FIELDS)) if low.search(variant(seed).text)]
    with pytest.raises(Violation, match="lacks"):
        for seed in seeds:
            check(variant(seed), tmp_path / str(seed))
