"""Shared by the crash tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of recoveries have nothing to tell."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
