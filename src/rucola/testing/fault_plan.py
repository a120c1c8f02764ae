"""Makes calls of a ``SimulatedDisk`` fail: only the n-th call, or the n-th and all later ones."""

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


class Killed(Exception):  # noqa: N818 - the name says what happened
    """The simulated process was killed at this call."""


class FaultPlan:
    """A callable for ``SimulatedDisk.faults``.

    Attributes:
        fired: whether a call failed.
        count: number of counted calls so far.

    Args:
        nth: number of the first call that fails, counted from 1.
        for_ever: whether all later calls fail too.
        number: error number (errno) of the failure; 0 kills the process instead.
        kinds: kinds of calls that are counted.
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
        """Called before each system call; raises if this call must fail."""
        if kind not in self._kinds:
            return
        self.count += 1
        if self.count == self._nth or (self._for_ever and self.count > self._nth):
            self.fired = True
            if not self._number:
                raise Killed(path)
            raise OSError(self._number, os.strerror(self._number), path)
