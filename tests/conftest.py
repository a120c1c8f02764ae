"""Shared by all tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.kernels import COMPILED, FORMS, KERNELS

# No test may depend on the speed of the machine; what hangs is pytest-timeout's.
settings.register_profile("rucola", deadline=None)
settings.load_profile("rucola")


def pytest_report_header() -> str:
    if COMPILED == KERNELS:
        return f"kernels: {len(KERNELS)}, each tested compiled and interpreted"
    missing = sorted(set(KERNELS) - set(COMPILED))
    return f"kernels: tested interpreted only, not compiled are {', '.join(missing)}"


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Form of the kernels under test: ``"compiled"`` or ``"interpreted"``."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A test that sets up the log, as a command does, leaves the next one its own."""
    logger = logging.getLogger("rucola")
    before = logger.level, logger.propagate
    yield
    logger.setLevel(before[0])
    logger.propagate = before[1]
