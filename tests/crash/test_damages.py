"""Runs one variant per target of ``python -m tests.crash.damages``, and checks the program itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.bitflips import STORES, whole, whole_report
from tests.crash.damage_starts import check as start_over
from tests.crash.damages import TARGETS, check, damage

from rucola.store.verify.findings import FindingKind
from rucola.store.verify.index import IndexChecks

SEEDS = [len(TARGETS) * (number % len(STORES)) + number for number in range(len(TARGETS))]
"""One seed for each target; the stores are used in turn."""
MISSED_BEFORE = [1234, 1628, 1810, 259, 142, 524]
"""Seeds of variants whose damage an earlier ``verify`` did not name."""


@pytest.mark.few(25)
@pytest.mark.parametrize("seed", [*SEEDS, *MISSED_BEFORE])
def test_the_damaged_file_and_field_are_named(seed: int, tmp_path: Path) -> None:
    result = check(damage(seed), tmp_path / "store")
    assert result.startswith(("named", "unseen")), result


@pytest.mark.parametrize("name", STORES)
def test_whole_stores_have_no_findings(name: str) -> None:
    assert whole_report(name).findings == []


@pytest.mark.parametrize("seed", [811, 836, 860, 263, 286, 313, 1415])
def test_a_start_serves_what_is_intact(seed: int, tmp_path: Path) -> None:
    """Damage: files are truncated, lost or foreign; blank records or entries have a wrong size; an entry is missing."""
    one = damage(seed)
    assert start_over(one, whole(one.base.name), tmp_path / "store").seconds > 0


def test_records_without_keys_are_found_only_beside_index_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = next(
        seed
        for seed in range(TARGETS.index("file lost"), 4000, len(TARGETS))
        if (one := damage(seed)).file.startswith("index/") and not one.unseen
    )
    assert check(damage(seed), tmp_path / "one") == "named"
    monkeypatch.setattr(IndexChecks, "_find_missing", lambda *_: None)
    assert check(damage(seed), tmp_path / "other").startswith("MISSED")
    assert FindingKind.KEYS_MISSING in damage(seed).kinds
