"""Shared by all tests."""

from __future__ import annotations

import pytest
from tests.kernels import COMPILED, FORMS, KERNELS


def pytest_report_header() -> str:
    if COMPILED == KERNELS:
        return f"kernels: {len(KERNELS)}, each tested compiled and interpreted"
    missing = sorted(set(KERNELS) - set(COMPILED))
    return f"kernels: tested interpreted only, not compiled are {', '.join(missing)}"


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Form of the kernels under test: ``"compiled"`` or ``"interpreted"``."""
    return str(request.param)
