"""Calls to a ``SimulatedDisk`` that fail: the n-th one, once or for ever."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

ANY_CALL = frozenset(
    (
        *("create", "truncate", "write", "allocate", "sync", "rename", "remove", "create directory", "sync directory"),
        *("open", "map"),
    )
)
NEEDS_SPACE = frozenset(("create", "write", "allocate", "create directory"))
NEEDS_DESCRIPTOR = frozenset(("create", "open"))
NEEDS_MEMORY = frozenset(("map",))
READS = frozenset(("read",))


class Killed(Exception):  # noqa: N818 - reads as what happened
    """The process ended here."""


class FaultPlan:
    """Given to ``SimulatedDisk.faults``.

    Attributes:
        fired: a call failed.
        count: of the calls that count, so far.

    Args:
        nth: number of the first call that fails, from 1.
        for_ever: all after it fail as well.
        number: of the error; 0 kills the process.
        kinds: calls that count.
    """

    def __init__(
        self, nth: int, for_ever: bool = False, number: int = errno.EIO, kinds: Collection[str] = ANY_CALL
    ) -> None:
        self.fired = False
        self._nth = nth
        self._for_ever = for_ever
        self._number = number
        self._kinds = kinds
        self.count = 0

    def __call__(self, kind: str, path: str) -> None:
        """Called before each call to the system; raises if this one is to fail."""
        if kind not in self._kinds:
            return
        self.count += 1
        if self.count == self._nth or (self._for_ever and self.count > self._nth):
            self.fired = True
            if not self._number:
                raise Killed(path)
            raise OSError(self._number, os.strerror(self._number), path)
