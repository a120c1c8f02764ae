"""A limit on CPU time works with either version of control groups, and is always removed at the end."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import cpu_limit
from bench.cpu_limit import NOT_HERE, PREFIX, cpu_group
from tools.peers.packages import PeerError

OURS, OTHER = 111, 222


class Tree:
    """A directory that stands in for the system's tree of control groups, with the behaviour that plain files lack.

    Attributes:
        process: replaces ``/proc/self``.
        quotas: quotas of removed groups, by name, at the time of their removal.
    """

    def __init__(self, directory: Path, version: int, homes: str, options: str = "rw,cpu") -> None:
        self.root = directory / "tree"
        self.process = directory / "process"
        self.process.mkdir()
        self.version = version
        self.quotas: dict[str, str] = {}
        kind = "cgroup2" if version == 2 else "cgroup"
        (self.process / "mounts").write_text(f"proc /proc proc rw 0 0\nnone {self.root} {kind} {options} 0 0\n")
        (self.process / "cgroup").write_text(homes)

    def add(self, path: str, processes: str = "", switched: str = "") -> Path:
        """Adds a group that exists before the test."""
        group = self.root / path
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text(processes)
        (group / "cgroup.controllers").write_text("cpu memory")
        (group / "cgroup.subtree_control").write_text(switched)
        return group

    def mkdir(self, path: Path) -> None:
        os.mkdir(path)  # noqa: PTH102
        (path / "cgroup.procs").touch()
        switched = self.version == 2 and "cpu" in (path.parent / "cgroup.subtree_control").read_text()
        for name in ("cpu.cfs_period_us", "cpu.cfs_quota_us") if self.version == 1 else ("cpu.max",) * switched:
            (path / name).touch()

    def rmdir(self, path: Path) -> None:
        if (path / "cgroup.procs").read_text():
            raise OSError(errno.EBUSY, "busy")
        self.quotas[path.name.rpartition("-")[2]] = " ".join(
            each.read_text() for each in sorted(path.glob("cpu.*"), key=lambda each: each.name)
        )
        shutil.rmtree(path)

    def write(self, path: Path, text: str) -> None:
        if not path.exists():
            raise PermissionError(errno.EACCES, "denied")
        if path.name == "cgroup.procs":
            for procs in self.root.rglob("cgroup.procs"):
                procs.write_text("".join(f"{pid}\n" for pid in procs.read_text().split() if pid != text))
            path.write_text(f"{path.read_text()}{text}\n")
        elif path.name == "cgroup.subtree_control":
            if (path.parent / "cgroup.procs").read_text() and path.parent != self.root:
                raise OSError(errno.EBUSY, "busy")
            path.write_text("cpu" if text == "+cpu" else "")
        else:
            path.write_text(text)

    def groups(self) -> list[str]:
        """Returns the names of the created groups that still exist."""
        return [path.name for path in self.root.rglob(f"{PREFIX}*")]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tree]:
    """Creates a tree and uses it instead of the system's."""

    def planted(*arguments: Any) -> Tree:
        tree = Tree(tmp_path, *arguments)

        class TreePath(type(tmp_path)):  # type: ignore[misc]
            def mkdir(self) -> None:
                tree.mkdir(Path(self))

            def rmdir(self) -> None:
                tree.rmdir(Path(self))

        monkeypatch.setattr(cpu_limit, "Path", TreePath)
        monkeypatch.setattr(cpu_limit, "_write", tree.write)
        return tree

    return planted


def test_version_1_beside_this_process(plant: Callable[..., Tree]) -> None:
    tree = plant(1, "3:memory:/else\n1:cpu,cpuacct:/home\n0::/\n", "rw,relatime,cpu,cpuacct")
    home = tree.add("home", f"{OURS}\n{OTHER}\n")
    with cpu_group("one", 0.5, tree.process) as group:
        group.take([OURS])
        (made,) = home.glob(f"{PREFIX}*")
        assert (made / "cgroup.procs").read_text() == f"{OURS}\n"
        assert (home / "cgroup.procs").read_text() == f"{OTHER}\n"
    assert tree.quotas == {"one": "100000 50000"}
    assert (home / "cgroup.procs").read_text() == f"{OTHER}\n{OURS}\n"
    assert not tree.groups()


def test_version_2_in_the_next_group_that_may_have_limited_parts(plant: Callable[..., Tree]) -> None:
    tree = plant(2, "0::/slice/session\n", "rw")
    tree.add("")
    slice_ = tree.add("slice")
    session = tree.add("slice/session", f"{OURS}\n")
    with cpu_group("one", 0.25, tree.process) as one, cpu_group("two", 1.5, tree.process):
        one.take([OURS])
        assert {path.parent for path in tree.root.rglob(f"{PREFIX}*")} == {slice_}
        assert (slice_ / "cgroup.subtree_control").read_text() == "cpu"
    assert tree.quotas == {"one": "25000 100000", "two": "150000 100000"}
    assert (session / "cgroup.procs").read_text() == f"{OURS}\n"
    assert (slice_ / "cgroup.subtree_control").read_text() == "", (
        "the controller was switched on for this group, so it is off again"
    )
    assert not tree.groups()


def test_a_failure_leaves_no_group(plant: Callable[..., Tree]) -> None:
    tree = plant(1, "1:cpu:/\n")
    tree.add("", f"{OURS}\n")
    with pytest.raises(KeyboardInterrupt), cpu_group("one", 0.5, tree.process) as group:
        group.take([OURS])
        raise KeyboardInterrupt
    assert (tree.root / "cgroup.procs").read_text() == f"{OURS}\n"
    assert not tree.groups()


def test_the_rest_of_a_killed_run_is_removed(plant: Callable[..., Tree]) -> None:
    tree = plant(1, "1:cpu:/\n")
    tree.add("")
    ended = tree.add(f"{PREFIX}0-one")
    running = tree.add(f"{PREFIX}{os.getpid()}-other")
    with cpu_group("one", 0.5, tree.process):
        assert not ended.exists()
        assert running.exists()


@pytest.mark.parametrize(
    ("version", "homes", "options"),
    [(2, "0::/\n", "rw"), (1, "1:memory:/\n", "rw,memory"), (1, "1:cpu:/\n", "rw,cpu")],
    ids=["the group may not be written", "no group is for CPU", "gone"],
)
def test_without_such_groups_it_says_so(
    plant: Callable[..., Tree], version: int, homes: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = plant(version, homes, options)
    if version == 2:
        tree.add("")

        def refuse(_path: Path, _text: str) -> None:
            raise PermissionError(errno.EACCES, "denied")

        monkeypatch.setattr(cpu_limit, "_write", refuse)
    with pytest.raises(PeerError, match=f"^{NOT_HERE}$"), cpu_group("one", 0.5, tree.process):
        pass
    assert not tree.groups()


def test_a_process_that_ended_is_named(plant: Callable[..., Tree], monkeypatch: pytest.MonkeyPatch) -> None:
    tree = plant(1, "1:cpu:/\n")
    tree.add("")
    with cpu_group("one", 0.5, tree.process) as group:

        def refuse(_path: Path, _text: str) -> None:
            raise ProcessLookupError(errno.ESRCH, "none")

        monkeypatch.setattr(cpu_limit, "_write", refuse)
        with pytest.raises(PeerError, match=f"process {OURS} has ended"):
            group.take([OURS])
