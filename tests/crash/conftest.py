"""Shared by the crash tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of recoveries would log too many lines."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
