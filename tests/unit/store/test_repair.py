"""Repairs of damaged stores, their results, and undoing them from any moment."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from tests.crash.damages import TARGETS, damage
from tests.golden.loader import write_files
from tests.unit.store.stores import fill, opened, with_topics
from tests.unit.store.test_rebuild import OPTIONS, Killed

from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.doctor.journal import Journal
from rucola.store.doctor.rebuild import rebuild
from rucola.store.doctor.repair import repair, undo
from rucola.store.verify.check import verify

OURS = 5
"""Index of store ``ours_clean`` in the list of stores."""


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "data_sync", staticmethod(lambda _descriptor: None))
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def contents(root: Path) -> dict[str, bytes]:
    """Returns all files except the lock and those of the repair."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != "lock" and not name.startswith("repair/")}


def damaged(target: str, path: Path, store: int = OURS) -> int:
    """Writes a store with this damage; returns the seed of the variant."""
    seed = len(TARGETS) * store + TARGETS.index(target)
    write_files(damage(seed).files, path)
    return seed


CORRECTED = [
    *(target for target in TARGETS if target.startswith("log ")),
    *(target for target in TARGETS if target.startswith(("queue ", "index "))),
    "checkpoint confirm_physical_offset",
]


@pytest.mark.few(16)
@pytest.mark.parametrize("target", CORRECTED)
def test_one_damage_is_repaired_and_the_repair_undone(target: str, tmp_path: Path) -> None:
    seed = damaged(target, tmp_path)
    options = {key: value for key, value in damage(seed).base.options.items() if key != "enabledAppendPropCRC"}
    before = contents(tmp_path)
    report = repair(str(tmp_path), options=options)
    if report.found:
        assert report.left == 0, report.remaining
        assert report.changes > 0
        assert verify(str(tmp_path)).clean
        if target.startswith("log"):
            assert contents(tmp_path) == damage(seed).base.files
        undo(str(tmp_path))
    assert contents(tmp_path) == before
    assert not list((tmp_path / "repair").glob("*"))


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    damaged("log body", tmp_path)
    before = contents(tmp_path)
    report = repair(str(tmp_path), dry_run=True)
    assert (report.found, report.records_corrected, report.changes) == (1, 1, 0)
    assert contents(tmp_path) == before


def test_other_damage_is_left_and_reported(tmp_path: Path) -> None:
    damaged("log body", tmp_path)
    path = tmp_path / "commitlog/00000000000000000000"
    finding = verify(str(tmp_path)).findings[0]
    data = bytearray((tmp_path / finding.file).read_bytes())
    data[finding.position + 90] ^= 255
    (tmp_path / finding.file).write_bytes(data)
    before = contents(tmp_path)
    report = repair(str(tmp_path))
    assert path.exists() and report.left == report.found == 1 and report.changes == 0
    assert [(one.kind, one.position) for one in report.remaining] == [(finding.kind, finding.position)]
    assert contents(tmp_path) == before


class KilledAt(Files):
    """Ends the process at the n-th change of the disk."""

    left = 0

    def write_at(self, path: str, position: int, content: bytes) -> None:
        self._change()
        super().write_at(path, position, content)

    def rename(self, path: str, new_path: str) -> None:
        self._change()
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


def test_an_interrupted_repair_continues_or_is_undone(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    seed = damaged("log body", origin)
    whole = damage(seed).base.files
    options = {key: value for key, value in damage(seed).base.options.items() if key != "enabledAppendPropCRC"}
    queue = next(origin.glob("consumequeue/Orders/0/*"))
    queue.write_bytes(queue.read_bytes()[:100] + bytes(40) + queue.read_bytes()[140:])
    index = next(origin.glob("index/*"))
    index.write_bytes(index.read_bytes()[:40] + b"\1" + index.read_bytes()[41:])
    before, ended, journals = contents(origin), False, 0
    for left in (*range(6), *range(6, 400, 17)):
        killed = Path(copytree(origin, tmp_path / "killed"))
        files = KilledAt()
        files.left = left
        try:
            repair(str(killed), options=options, files=files)
            ended = True
        except Killed:
            journals += Journal.newest(Files(), str(killed)) is not None
        continued = Path(copytree(killed, tmp_path / "continued"))
        repair(str(continued), options=options)
        assert verify(str(continued)).clean
        assert {name: data for name, data in contents(continued).items() if name.startswith(("c", "a"))} == {
            name: data for name, data in whole.items() if name.startswith(("c", "a"))
        }
        for path in (killed, continued):
            if Journal.newest(Files(), str(path)) is not None:
                undo(str(path))
            rmtree(path / "rebuild", ignore_errors=True)
            assert contents(path) == before
            rmtree(path)
        if ended:
            break
    assert ended and journals > 3


def test_a_repair_is_not_undone_once_messages_were_stored(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    fill(store, 50)
    store.shutdown()
    with_topics(path)
    (queue,) = (path / "consumequeue/T0/0").iterdir()
    queue.write_bytes(bytes(20) + queue.read_bytes()[20:])
    assert repair(str(path), options=OPTIONS).left == 0
    store = opened(path)
    fill(store, 1, first=50)
    store.shutdown()
    with pytest.raises(StoreDamagedError, match="the store was used after the repair"):
        undo(str(path))
    assert verify(str(path)).clean


def test_nothing_to_undo_is_said(tmp_path: Path) -> None:
    damaged("log body", tmp_path)
    with pytest.raises(StoreDamagedError, match="there is no repair to revert"):
        undo(str(tmp_path))


def test_an_index_that_is_gone_is_built_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path, max_index_num=100)
    fill(store, 100)
    store.shutdown()
    with_topics(path)
    before = contents(path)
    rmtree(path / "index")
    assert repair(str(path), options=OPTIONS | {"maxIndexNum": "100"}).left == 0
    assert sorted(contents(path).values()) == sorted(before.values())


def test_entries_of_a_part_of_the_log_that_is_missing_stay(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    fill(store, 700)
    store.shutdown()
    with_topics(path)
    before, segment = contents(path), max((path / "commitlog").iterdir())
    content = segment.read_bytes()
    segment.unlink()
    assert repair(str(path), options=OPTIONS).left > 0
    segment.write_bytes(content)
    assert contents(path) == before
    assert verify(str(path)).clean


def test_a_rebuild_ends_the_undo(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    fill(store, 100)
    store.shutdown()
    queue = next((path / "consumequeue/T0/0").iterdir())
    queue.write_bytes(b"\1" + queue.read_bytes()[1:])
    assert repair(str(path), options=OPTIONS).changes
    rebuild(str(path), options=OPTIONS)
    before = contents(path)
    with pytest.raises(StoreDamagedError, match="the store was used after the repair"):
        undo(str(path))
    assert contents(path) == before


def test_a_store_without_a_checkpoint_is_repaired(tmp_path: Path) -> None:
    """Such as salvage makes it."""
    path = tmp_path / "store"
    store = opened(path)
    fill(store, 100)
    store.shutdown()
    with_topics(path)
    (path / "checkpoint").unlink()
    before = contents(path)
    queue = next((path / "consumequeue/T0/0").iterdir())
    queue.write_bytes(b"\1" + queue.read_bytes()[1:])
    report = repair(str(path), options=OPTIONS)
    assert [finding.file for finding in report.remaining] == ["checkpoint"]
    assert contents(path) == before


def test_entries_of_expired_messages_stay(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200)
    fill(store, 200)
    store.shutdown()
    with_topics(tmp_path)
    min((tmp_path / "commitlog").iterdir()).unlink()
    min((tmp_path / "commitlog").iterdir()).unlink()
    before = contents(tmp_path)
    files = sorted((tmp_path / "consumequeue/T0/0").iterdir())
    assert len(files) == 5
    files[-1].write_bytes(bytes(20) + files[-1].read_bytes()[20:])
    options = OPTIONS | {"mappedFileSizeCommitLog": "8192", "mappedFileSizeConsumeQueue": "200"}
    assert repair(str(tmp_path), options=options).left == 0
    assert contents(tmp_path) == before
