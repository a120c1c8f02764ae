"""A full disk, and syncs that fail."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from tests import places as directories
from tests.unit.store.stores import (
    SEGMENT,
    config,
    crashed,
    everything,
    fill,
    message,
    opened,
    snapshot,
    sync_config,
)

from rucola.common.columns import WalkStop
from rucola.errors import DiskError, DiskFullError, StoreDamagedError
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store import dispatch
from rucola.store.message_store import MessageStore
from rucola.store.recovery.watermark import WatermarkFile
from rucola.store.results import GetMessageStatus, PutMessageStatus, StoreState
from rucola.testing.clock import ManualClock

tmp_path = directories.tmp_path

T = b"TopicTest"
WAIT_S = 30


class SmallDisk(Files):
    """A disk that, while ``full``, refuses to allocate ranges of ``at_least`` bytes or more."""

    def __init__(self) -> None:
        self.full = False
        self.at_least = 1

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        if self.full and length >= self.at_least:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(descriptor, position, length)


class BadDisk(Files):
    """A disk on which all syncs fail while ``bad``; with ``once``, only the next one fails."""

    def __init__(self) -> None:
        self.bad = False
        self.once = False
        self.syncs = 0
        self.gate = threading.Event()
        self.gate.set()

    def data_sync(self, descriptor: int) -> None:  # type: ignore[override]
        self.gate.wait(WAIT_S)
        self.syncs += 1
        if self.bad:
            self.bad = not self.once
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(descriptor)


def test_full_disk_refuses_appends_serves_reads_and_ends_by_itself(tmp_path: Path) -> None:
    disk, woken = SmallDisk(), threading.Event()
    store = MessageStore(config(tmp_path), disk, ManualClock())
    store.listen(on_flushed=woken.set)
    store.load()
    store.start()
    disk.full, disk.at_least = True, SEGMENT
    stored = 0
    while (result := store.put_message(message(stored, size=1000))).status is PutMessageStatus.PUT_OK:
        stored += 1
        assert stored < 100
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.state is StoreState.DISK_FULL
    assert store.put_message(message(0, size=1)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.dispatch() == stored
    assert store.get_message(T, 0, 0, 32, 1 << 20).status is GetMessageStatus.FOUND
    disk.full = False
    while store.state is not StoreState.RUNNING:
        assert woken.wait(WAIT_S), "the store never leaves this state"
        woken.clear()
    result = store.put_message(message(stored, size=1000))
    assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, stored)
    assert result.physical_offset >= SEGMENT
    store.dispatch()
    seen = everything(store)
    store.shutdown()
    store = opened(tmp_path)
    assert everything(store) == seen
    store.shutdown()


def test_a_full_disk_met_in_dispatch_stops_it_there_and_goes_on_later(tmp_path: Path) -> None:
    disk, woken = SmallDisk(), threading.Event()
    store = MessageStore(config(tmp_path, flush_interval_consume_queue_ms=10), disk, ManualClock())
    store.listen(on_flushed=woken.set)
    store.load()
    store.start()
    fill(store, 10)
    store.put_message(message(1, topic=b"New"))
    disk.full = True
    assert store.dispatch() == 0
    assert store.state is StoreState.DISK_FULL
    assert store.put_message(message(2)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    disk.full = False
    woken.clear()
    assert woken.wait(WAIT_S), "no sender was told to try again"
    assert store.dispatch() == 1
    assert store.state is StoreState.RUNNING
    assert store.max_queue_offset(b"New", 0) == 1
    store.shutdown()
    assert not (tmp_path / "abort").exists()


def test_arrivals_before_a_full_disk_ended_dispatch_are_told(tmp_path: Path) -> None:
    disk = SmallDisk()
    store = opened(tmp_path, disk)
    store.put_message(message(0))
    store.dispatch()
    assert store.take_arrivals() == [(T, 0, 1, 2598902)]
    store.put_message(message(3))
    store.put_message(message(1, topic=b"New"))
    disk.full = True
    assert store.dispatch() == 0
    assert store.take_arrivals() == [(T, 0, 2, 2598902)]
    disk.full = False
    assert store.dispatch() == 2
    assert store.take_arrivals() == [(T, 0, 2, 2598902), (b"New", 0, 1, 2598903)]
    store.shutdown()


def test_a_full_disk_at_the_first_start_is_an_error_and_can_be_tried_again(tmp_path: Path) -> None:
    disk = SmallDisk()
    disk.full = True
    store = MessageStore(config(tmp_path), disk, ManualClock())
    store.load()
    with pytest.raises(DiskFullError):
        store.start()
    store.shutdown()
    opened(tmp_path).shutdown()


def test_stop_with_dispatch_behind_keeps_the_abort_marker(tmp_path: Path) -> None:
    disk = SmallDisk()
    store = opened(tmp_path, disk)
    store.put_message(message(1))
    disk.full = True
    store.shutdown()
    assert (tmp_path / "abort").exists()
    disk.full = False
    store = opened(tmp_path)
    assert store.max_queue_offset(T, 0) == 1
    store.shutdown()


def test_sync_flush_shows_nothing_before_its_sync(tmp_path: Path) -> None:
    disk, flushed = BadDisk(), threading.Event()
    store = MessageStore(sync_config(tmp_path), disk, ManualClock())
    store.listen(on_flushed=flushed.set)
    store.load()
    store.start()
    disk.gate.clear()
    result = store.put_message(message(1))
    assert result.status is PutMessageStatus.PUT_OK
    assert store.dispatch() == 0
    assert store.get_message(T, 0, 0, 1, 1000).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert store.flushed_offset == 0 < store.max_offset
    disk.gate.set()
    assert flushed.wait(WAIT_S)
    assert store.flushed_offset == store.max_offset
    assert store.dispatch() == 1
    assert store.get_message(T, 0, 0, 1, 1000).status is GetMessageStatus.FOUND
    store.shutdown()


def test_one_sync_covers_all_that_was_appended_before_it(tmp_path: Path) -> None:
    disk = BadDisk()
    told = threading.Semaphore(0)
    store = MessageStore(sync_config(tmp_path), disk, ManualClock())
    store.listen(on_flushed=told.release)
    store.load()
    store.start()
    disk.gate.clear()
    before = disk.syncs
    for number in range(64):
        store.put_message(message(number, size=100))
    disk.gate.set()
    while store.flushed_offset < store.max_offset:
        assert told.acquire(timeout=WAIT_S)
    assert disk.syncs - before <= 3
    store.shutdown()


@pytest.mark.parametrize("once", [True, False])
def test_a_failed_sync_is_never_retried_into_success(once: bool, tmp_path: Path) -> None:
    disk, told = BadDisk(), threading.Event()
    disk.once = once
    store = MessageStore(sync_config(tmp_path / "live"), disk, ManualClock())
    store.listen(on_flushed=told.set)
    store.load()
    store.start()
    good = store.put_message(message(1))
    assert told.wait(WAIT_S)
    flushed = store.flushed_offset
    assert flushed == good.physical_offset + good.size
    store.dispatch()
    told.clear()
    disk.bad = True
    store.put_message(message(2))
    assert told.wait(WAIT_S)
    assert store.state is StoreState.IO_ERROR
    for number in range(3, 6):
        assert store.put_message(message(number)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.flushed_offset == flushed
    assert store.dispatch() == 0
    assert store.get_message(T, 0, 0, 32, 1 << 20).message_count == 1
    disk.bad = False
    assert not store._flush.flush()
    image = crashed(store, tmp_path / "live", tmp_path / "image")
    assert store.flushed_offset == flushed
    assert (tmp_path / "live" / "abort").exists()
    store = opened(image)
    assert store.max_queue_offset(T, 0) in (1, 2)
    store.shutdown()


def test_a_stop_that_fails_ends_every_thread_before_it_closes_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files must not be closed while a thread may still sync them: the thread would report unsynced data as synced."""

    class Stubborn(Files):
        def remove(self, path: str) -> None:
            if "commitlog" in path:
                raise DiskError(path, "remove", os.strerror(errno.EMFILE))
            super().remove(path)

    store = opened(tmp_path, Stubborn(), transient_store_pool_enable=True)
    fill(store, 10)
    allocator = store._log._allocator
    allocator._wanted = SEGMENT
    allocator._work()
    commit, close, alive = store._flush._commit, store._log.segments.close, []
    assert commit is not None
    threads = [worker._thread for worker in (store._flush._worker, commit._worker, store._keeper._worker)]

    def closed() -> None:
        alive.extend(thread.name for thread in threads if thread.is_alive())
        close()

    monkeypatch.setattr(store._log.segments, "close", closed)
    assert all(thread.is_alive() for thread in threads)
    store.shutdown()
    assert not alive
    assert (tmp_path / "abort").exists()


def test_async_flush_syncs_by_itself_and_at_the_stop(tmp_path: Path) -> None:
    told = threading.Event()
    store = MessageStore(
        config(tmp_path, flush_interval_commit_log_ms=5, flush_commit_log_least_pages=0),
        Files(),
        ManualClock(),
    )
    store.listen(on_flushed=told.set)
    store.load()
    store.start()
    store.put_message(message(1))
    assert store.dispatch() == 1, "visible before the sync"
    assert told.wait(WAIT_S)
    assert store.flushed_offset == store.max_offset
    store.shutdown()


def test_the_watermark_never_passes_what_was_synced(tmp_path: Path) -> None:
    store = opened(tmp_path / "live", flush_interval_commit_log_ms=600_000)
    fill(store, 50)
    store._keeper._work()
    image = tmp_path / "image"
    snapshot(tmp_path / "live", image)
    watermark = WatermarkFile(Files(), str(image)).read()
    assert watermark is not None
    assert (watermark.flushed_offset, watermark.queues_offset, watermark.clean) == (0, 0, False)
    store._flush.flush()
    store._keeper.sync_queues()
    store._keeper._work()
    watermark = WatermarkFile(Files(), str(tmp_path / "live")).read()
    assert watermark is not None
    assert watermark.flushed_offset == watermark.queues_offset == store.max_offset
    store.shutdown()
    watermark = WatermarkFile(Files(), str(tmp_path / "live")).read()
    assert watermark is not None and watermark.clean and watermark.queue_count == 4


def test_a_failed_sync_of_queues_leaves_a_store_that_recovers(tmp_path: Path) -> None:
    disk = BadDisk()
    store = opened(tmp_path, disk)
    fill(store, 100)
    seen = everything(store)
    assert store._flush.flush()
    disk.bad = True
    store._keeper.sync_queues()
    disk.bad = False
    store.shutdown()
    assert (tmp_path / "abort").exists()
    store = opened(tmp_path)
    assert everything(store) == seen
    store.shutdown()


@pytest.mark.parametrize("wrong", ["twice", "walk"])
def test_dispatch_that_comes_no_further_ends_with_an_error(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of segments is wrong, for example because it has a segment twice. Before the fix, the
    call never returned.
    """
    store = opened(tmp_path)
    while store.max_offset < SEGMENT:
        store.put_message(message(0, size=3000))
    store.put_message(message(1))
    log, end = store._log, store.max_offset
    if wrong == "twice":
        log.segments.files.insert(0, log.segments.files[0])
        problem = "no such segment"
    else:
        monkeypatch.setattr(dispatch, "walk_records", lambda *place: (0, place[2], WalkStop.LIMIT))
        problem = f"no record ends before {end}"
    with pytest.raises(StoreDamagedError, match=problem):
        store._dispatcher.dispatch(end)
    assert store._dispatcher.progress.current.position == (SEGMENT if wrong == "twice" else 0)
    monkeypatch.undo()
    if wrong == "twice":
        del log.segments.files[0]
    store.shutdown()


def test_a_segment_that_does_not_follow_is_not_taken_up(tmp_path: Path) -> None:
    store = opened(tmp_path)
    segments = store._log.segments
    before = list(segments.files)
    for start in (0, 2 * SEGMENT):
        with pytest.raises(StoreDamagedError, match="not the one that follows"):
            segments.append(start)
    assert segments.files == before
    (tmp_path / "commitlog" / f"{2 * SEGMENT:020d}").unlink()
    store.shutdown()


def test_a_queue_whose_next_segment_cannot_be_mapped_has_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    fill(store, 100, topics=1, queues=1)
    queue = store._queues.get(b"T0", 0)
    mapping = Files.map_file

    def refuse(self: Files, path: str, size: int | None = None, writable: bool = True) -> FileMap:
        if "/consumequeue/" in path:
            raise DiskError(path, "map", os.strerror(errno.EMFILE))
        return mapping(self, path, size, writable)

    store.put_message(message(100, b"T0"))
    with monkeypatch.context() as patch:
        patch.setattr(Files, "map_file", refuse)
        assert store.dispatch() == 0
    assert [file.start for file in queue.segments.files] == [0]
    assert store.dispatch() == 1
    assert [file.start for file in queue.segments.files] == [0, 2000]
    store.shutdown()


def test_records_of_a_kind_end_where_nothing_follows(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_message(message(0))
    store._log.max_offset -= 1
    assert list(store.records_of_kind(0, 4, 4, b"x")) == []
    store._log.max_offset += 1
    store.shutdown()


def test_the_slots_of_an_index_file_with_holes_get_blocks_before_a_key_is_put(tmp_path: Path) -> None:
    options = {"max_hash_slot_num": 50_000, "max_index_num": 1000}
    store = opened(tmp_path, **options)
    fill(store, 1)
    store.shutdown()
    (path,) = (tmp_path / "index").iterdir()
    content = path.read_bytes()
    path.unlink()
    with path.open("wb") as file:  # as RocketMQ, which writes through a map of a file of its final length
        file.truncate(len(content))
        for start in range(0, len(content), 4096):
            if any(piece := content[start : start + 4096]):
                file.seek(start)
                file.write(piece)
    assert path.stat().st_blocks * 512 < 100_000
    store = opened(tmp_path, **options)
    assert path.stat().st_blocks * 512 < 100_000
    fill(store, 1, first=1)
    assert path.stat().st_blocks * 512 > 200_000
    store.shutdown()
