"""Fixtures of the crash tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Turns off the log, because thousands of recoveries would log too many lines."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
