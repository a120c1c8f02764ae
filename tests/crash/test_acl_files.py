"""ACL files that administrators change stay whole after power cuts, errors and kills."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.crash.acl_life import KINDS, AclExplorer, Holey
from tests.sizes import size

from rucola.runtime.files import Files
from rucola.testing.fault_plan import ANY_CALL, NEEDS_SPACE, FaultPlan
from rucola.testing.simulated_disk import Inode
from rucola.testing.simulated_os import SimulatedOs

SEED = 3


@pytest.mark.parametrize("kind", KINDS)
def test_power_cuts(kind: str) -> None:
    explorer = AclExplorer(kind, SEED, sample=4)
    explorer.run()
    assert explorer.states > 60


@pytest.mark.few
@pytest.mark.parametrize(
    ("number", "kinds"),
    [(0, ANY_CALL), (errno.EIO, ANY_CALL), (errno.ENOSPC, NEEDS_SPACE)],
    ids=["kill", "EIO", "ENOSPC"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_fail(kind: str, number: int, kinds: frozenset[str]) -> None:
    nth = 1
    explorer = AclExplorer(kind, SEED, sample=0)
    while explorer.run_with_faults(FaultPlan(nth, number=number, kinds=kinds)):
        nth += size(5, 1)
    assert nth > 10


def in_place(files: Files) -> None:
    """The defect: the file is overwritten in place."""

    def write(path: str, content: bytes, spare: str = "", private: bool = False) -> None:
        files.write_file(path, content)

    files.replace_file = write  # type: ignore[method-assign]


def names_not_synced(files: Files) -> None:
    """The defect: the response to a change is sent before the file's new name is on the disk."""
    files.sync_directory = lambda path: None  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("defect", [in_place, names_not_synced])
def test_planted_defects_are_noticed(defect: Callable[[Files], None], kind: str) -> None:
    with pytest.raises(Holey):
        AclExplorer(kind, SEED, sample=4, prepare=defect).run()


@pytest.mark.parametrize("kind", KINDS)
def test_content_that_is_not_synced_is_noticed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    sync = SimulatedOs.fsync

    def directories_only(self: SimulatedOs, descriptor: int) -> None:
        if not isinstance(self._open[descriptor][1], Inode):
            sync(self, descriptor)

    monkeypatch.setattr(SimulatedOs, "fsync", directories_only)
    with pytest.raises(Holey):
        AclExplorer(kind, SEED, sample=4).run()
