"""Runs stores with real threads for a few seconds, and kills or stops them in between; the campaign ``threads`` runs
them for longer.
"""

from __future__ import annotations

import pytest
from tests.crash.threads import run


@pytest.mark.parametrize("config", ["sync", "pool"])
def test_promises_are_kept_between_threads(config: str) -> None:
    done = run(3.0, 1, config, life_s=1.5)
    assert done["acknowledged"] > 50
    assert done["checked"] > 50
