"""Sizes of tests: small in a usual run, whole with ``pytest --whole``, as in ``make campaign NAME=whole``."""

from __future__ import annotations

_whole = [False]


def use_whole(whole: bool) -> None:
    """Chooses the whole sizes, or the small ones, for the modules of tests that are imported from now on."""
    _whole[0] = whole


def size(small: int, whole: int) -> int:
    """Returns the size of a test in this run."""
    return whole if _whole[0] else small
