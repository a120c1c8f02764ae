"""A few random schedules of changes; ``make lake`` runs 200, and longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lake.changes import Schedule
from tests.sizes import size


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [11, 3, 7, 20][: size(2, 4)])
def test_the_table_is_the_model(seed: int, tmp_path: Path) -> None:
    Schedule(tmp_path, seed, steps=10).run()
