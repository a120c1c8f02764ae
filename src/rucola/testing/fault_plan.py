"""Makes system calls on a ``SimulatedDisk`` fail: only the n-th call, or the n-th call and all later calls."""

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
        fired: whether the plan has made a call fail.
        count: number of calls so far whose kind is in ``kinds``, including those that failed.

    Args:
        nth: number of the first call that fails, counted from 1.
        for_ever: whether all later counted calls fail too.
        number: error number (errno) with which a call fails; 0 kills the process instead.
        kinds: kinds of calls that the plan counts. Other calls never fail.
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

    def end(self) -> None:
        """From now on, no call fails: there is room again, or the disk was repaired."""
        self._kinds = ()

    def __call__(self, kind: str, path: str) -> None:
        """Called before each system call; raises the error with which this call must fail, if any."""
        if kind not in self._kinds:
            return
        self.count += 1
        if self.count == self._nth or (self._for_ever and self.count > self._nth):
            self.fired = True
            if not self._number:
                raise Killed(path)
            raise OSError(self._number, os.strerror(self._number), path)
