"""A limit on the CPU time of processes, as for a container: a control group with a quota for each period.

Kubernetes writes ``cpu: 500m`` as 50,000 µs in each 100,000 µs. Once the threads of the group together have used this
time, all of them stop until the next period. Both versions of Linux's control groups are supported: 1
(``cpu.cfs_period_us``, ``cpu.cfs_quota_us``) and 2 (``cpu.max``). Only root, or a user
who owns a part of the tree, may create a group.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tools.peers.packages import PeerError

PERIOD_US = 100_000
NOT_HERE = "not measured: no control groups for CPU here"
PREFIX = "rucola-bench-"
REMOVE_TRIES = 20
REMOVE_PAUSE_S = 0.05


@dataclass(frozen=True)
class Hierarchy:
    """The mounted tree of control groups (cgroups) that limit CPU time.

    Attributes:
        version: 1 or 2, the version of control groups.
        root: where the tree is mounted.
        home: the control group of this process.
    """

    version: int
    root: Path
    home: Path

    @property
    def parents(self) -> list[Path]:
        """Control groups in which a new group may be created, the nearest first. In version 2, a group with processes
        cannot contain limited groups.
        """
        nearest = [self.home, *self.home.parents]
        return nearest[: nearest.index(self.root) + 1]


class CpuGroup:
    """A control group with a quota of CPU time; it has no processes at first."""

    def __init__(self, path: Path, home: Path) -> None:
        self._path = path
        self._home = home
        self._switched_on: Path | None = None

    def make(self, version: int, quota_us: int) -> None:
        """Creates the control group; raises OSError if the system does not allow it."""
        if version == 2:
            self._switch_on(self._path.parent / "cgroup.subtree_control")
        self._path.mkdir()
        if version == 2:
            _write(self._path / "cpu.max", f"{quota_us} {PERIOD_US}")
        else:
            _write(self._path / "cpu.cfs_period_us", str(PERIOD_US))
            _write(self._path / "cpu.cfs_quota_us", str(quota_us))

    def take(self, pids: Iterable[int]) -> None:
        """Puts these processes, their threads and their future children under the quota.

        Raises:
            PeerError: the system does not allow it, or one of the processes has ended.
        """
        for pid in pids:
            try:
                _write(self._path / "cgroup.procs", str(pid))
            except ProcessLookupError as error:
                raise PeerError(f"process {pid} has ended") from error
            except OSError as error:
                raise PeerError(f"{NOT_HERE} ({error})") from error

    def remove(self) -> None:
        """Moves the processes of this control group to the group of the bench process, then removes this group."""
        for _ in range(REMOVE_TRIES):
            with suppress(OSError):
                self._empty()
            with suppress(OSError):
                self._path.rmdir()
            if not self._path.exists():
                break
            time.sleep(REMOVE_PAUSE_S)  # A process that has just started or is about to end could not be moved.
        else:
            print(f"bench: control group {self._path} stays: it could not be removed", file=sys.stderr)
        if self._switched_on:
            with suppress(OSError):
                _write(self._switched_on, "-cpu")

    def _empty(self) -> None:
        for pid in (self._path / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                _write(self._home / "cgroup.procs", pid)

    def _switch_on(self, control: Path) -> None:
        if "cpu" not in control.read_text().split():
            _write(control, "+cpu")
            self._switched_on = control


@contextmanager
def cpu_group(name: str, cores: float, process: Path = Path("/proc/self")) -> Iterator[CpuGroup]:
    """Creates a control group with this many cores for the length of the block, and removes it at the end, also after
    an error.

    Raises:
        PeerError: such groups cannot be made here.
    """
    group = _make(name, round(cores * PERIOD_US), process)
    try:
        yield group
    finally:
        group.remove()


def hierarchy(process: Path) -> Hierarchy | None:
    """Returns the tree that limits CPU time, from ``mounts`` and ``cgroup`` of the process; None if there is none."""
    homes: dict[str, str] = {}
    for line in (process / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        homes |= dict.fromkeys(controllers.split(","), path)  # a line of version 2 does not name a controller
    for line in (process / "mounts").read_text().splitlines():
        _, mounted, kind, options, *_ = line.split()
        root = Path(mounted)
        if kind == "cgroup" and "cpu" in options.split(","):
            return Hierarchy(1, root, _below(root, homes.get("cpu", "/")))
        if kind == "cgroup2" and "cpu" in (root / "cgroup.controllers").read_text().split():
            return Hierarchy(2, root, _below(root, homes.get("", "/")))
    return None


def _below(root: Path, path: str) -> Path:
    """Returns the directory of the control group; the root if only a part of the tree is mounted."""
    home = root / path.lstrip("/")
    return home if home.is_dir() and ".." not in home.parts else root


def _make(name: str, quota_us: int, process: Path) -> CpuGroup:
    try:
        found = hierarchy(process)
    except OSError as error:
        raise PeerError(NOT_HERE) from error
    if found is None:
        raise PeerError(NOT_HERE)
    for parent in found.parents:
        _sweep(parent)
        group = CpuGroup(parent / f"{PREFIX}{os.getpid()}-{name}", found.home)
        try:
            group.make(found.version, quota_us)
        except OSError:
            group.remove()
        else:
            return group
    raise PeerError(NOT_HERE)


def _sweep(parent: Path) -> None:
    """Removes control groups left by runs that were killed."""
    for path in parent.glob(f"{PREFIX}*"):
        if not Path("/proc", path.name.removeprefix(PREFIX).partition("-")[0]).exists():
            with suppress(OSError):  # A server of the killed run still runs in the group.
                path.rmdir()


def _write(path: Path, text: str) -> None:
    """Writes with one call, because the kernel takes each write as a complete value."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
