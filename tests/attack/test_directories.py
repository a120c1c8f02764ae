"""Seeded cases of hostile store directories; ``tests.attack.directories`` runs as many as wanted."""

from __future__ import annotations

import sys

import pytest
from tests.attack.directories import case_of, check
from tests.sizes import size

SEEDS = range(1, 1 + size(20, 100))


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, FIFOs and another user")
@pytest.mark.parametrize("first", SEEDS[::10])
def test_no_command_leaves_its_directory(first: int) -> None:
    for seed in range(first, first + 10):
        check(case_of(seed))
