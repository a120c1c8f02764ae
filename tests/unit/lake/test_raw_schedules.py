"""A few random schedules of a raw archive; ``make lake`` runs a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lake.raw_schedules import Schedule
from tests.sizes import size


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(1, size(4, 7)))
def test_the_log_comes_back_after_any_order_of_steps(seed: int, tmp_path: Path) -> None:
    Schedule(tmp_path, seed).run()
