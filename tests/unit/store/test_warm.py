"""The next segment is warmed up in the allocating thread; no append waits for that, and no byte is lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import SEGMENT, config, everything, fill

from rucola.errors import DiskError
from rucola.formats.segment_name import segment_name
from rucola.runtime import file_map
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType
from rucola.store.log import warm
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock
from rucola.testing.manual_worker import ManualWorker, manual_workers

WORKERS = ("rucola.store.log.allocate", "rucola.store.log.flush", "rucola.store.keeper")
HALF = 130
"""A number of messages that, written by ``fill``, take more than half a segment and less than a whole one."""


@pytest.fixture(autouse=True)
def locked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Replaces the call that locks memory, and shortens the steps of the warm-up; returns position and length of each
    locked part.
    """
    calls: list[tuple[int, int]] = []

    def lock_memory(_buffer: object, position: int, length: int) -> str:
        calls.append((position, length))
        return ""

    monkeypatch.setattr(file_map, "lock_memory", lock_memory)
    monkeypatch.setattr(warm, "_STEP_BYTES", SEGMENT // 4)
    monkeypatch.setattr(warm, "_ZEROS", bytes(SEGMENT // 4))
    return calls


def warming(path: Path, **options: Any) -> MessageStore:
    with manual_workers(*WORKERS):
        store = MessageStore(config(path, warm_maped_file_enable=True, **options), Files(), ManualClock(step_ms=1))
    store.load()
    store.start()
    return store


def allocate(store: MessageStore) -> None:
    worker = store._log._allocator._worker
    assert isinstance(worker, ManualWorker)
    worker.run()


def test_the_next_segment_is_locked_piece_by_piece_and_stays_empty(
    tmp_path: Path, locked: list[tuple[int, int]]
) -> None:
    store = warming(tmp_path)
    allocate(store)
    assert locked == []
    fill(store, HALF)
    allocate(store)
    following = tmp_path / "commitlog" / segment_name(SEGMENT)
    assert locked == [(at * SEGMENT // 4, SEGMENT // 4) for at in range(4)]
    assert following.read_bytes() == bytes(SEGMENT)
    allocate(store)
    assert len(locked) == 4
    store.shutdown()
    assert not following.exists()


def test_at_most_the_segment_in_use_and_the_next_are_held(tmp_path: Path) -> None:
    store = warming(tmp_path)
    warmer = store._log._allocator._warmer
    assert warmer is not None
    for part in range(12):
        fill(store, HALF, first=part * HALF)
        allocate(store)
        assert len(warmer._held) <= 2
    assert len({segment.path for segment in warmer._held}) == 2
    assert sum(map(len, everything(store).values())) == 12 * HALF
    store.shutdown()
    assert not warmer._held


def test_an_append_that_needs_the_segment_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = warming(tmp_path)
    fill(store, HALF)
    steps: list[int] = []

    def meanwhile(_segment: FileMap, position: int, _length: int) -> str:
        steps.append(position)
        if len(steps) == 2:
            fill(store, 2 * HALF, first=HALF)
        return ""

    monkeypatch.setattr(FileMap, "lock", meanwhile)
    allocate(store)
    assert store.max_offset > SEGMENT and len(steps) == 2
    assert sum(map(len, everything(store).values())) == 3 * HALF
    store.shutdown()


@pytest.mark.parametrize("flush", FlushDiskType)
def test_syncs_on_the_way(flush: FlushDiskType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # There are four steps of four pages; pages left over at the end are synced as well.
    for pages, expected in ((8, 2), (4, 4), (16, 1), (100, 1), (12, 2)):
        store = warming(tmp_path / str(pages), flush_disk_type=flush, flush_least_pages_when_warm_maped_file=pages)
        fill(store, HALF)
        done: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(FileMap, "sync", lambda segment, done=done: done.append(segment.path))
            allocate(store)
        assert len(done) == (expected if flush is FlushDiskType.SYNC_FLUSH else 0)
        store.shutdown()


def test_a_lock_that_is_refused_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_map, "lock_memory", lambda *_: "Cannot allocate memory")
    store = warming(tmp_path)
    with caplog.at_level(logging.WARNING):
        for part in range(6):
            fill(store, HALF, first=part * HALF)
            allocate(store)
    assert sum("cannot be locked" in record.getMessage() for record in caplog.records) == 1
    assert sum(map(len, everything(store).values())) == 6 * HALF
    store.shutdown()


def test_a_write_that_fails_leaves_the_segment_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = warming(tmp_path)
    fill(store, HALF)

    def refuse(*_: object) -> None:
        raise DiskError("segment", "write", "refused")

    with monkeypatch.context() as patch:
        patch.setattr(FileMap, "write", refuse)
        allocate(store)
    fill(store, 2 * HALF, first=HALF)
    assert sum(map(len, everything(store).values())) == 3 * HALF
    store.shutdown()
