"""Messages that are first written to memory: when readers see them, what a commit does, and which messages are lost if
the process is killed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import SEGMENT, config, contents, everything, fill, message, opened, snapshot

from rucola.errors import ConfigError, DiskError, DiskFullError
from rucola.runtime import memory
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.log import transient_store_pool
from rucola.store.log.commit import CommitService
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.transient_store_pool import TransientStorePool
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus, StoreState
from rucola.testing.clock import ManualClock
from rucola.testing.manual_worker import ManualWorker, manual_workers

WORKERS = ("rucola.store.log.allocate", "rucola.store.log.commit", "rucola.store.log.flush", "rucola.store.keeper")
FULL_SEGMENTS = 300
"""A number of messages that, written by ``fill``, take more than one segment and less than two."""


def pooled(path: Path, clock: ManualClock | None = None, **options: Any) -> MessageStore:
    """Returns a store with a pool, whose threads do nothing by themselves."""
    options = {"transient_store_pool_enable": True, "transient_store_pool_size": 2} | options
    with manual_workers(*WORKERS):
        store = MessageStore(config(path, **options), Files(), clock or ManualClock(step_ms=1))
    store.load()
    store.start()
    return store


def committer(store: MessageStore) -> CommitService:
    assert store._flush._commit is not None
    return store._flush._commit


def pool(store: MessageStore) -> TransientStorePool:
    assert store._log.pool is not None
    return store._log.pool


def test_only_what_is_committed_is_seen(tmp_path: Path) -> None:
    store = pooled(tmp_path)
    result = fill(store, 20)[-1]
    assert store.max_offset == result.physical_offset + result.size
    assert store.confirm_offset == store.dispatch_behind_bytes == 0
    assert store.message_at(0) is None and everything(store) == {}
    assert (tmp_path / "commitlog" / f"{0:020d}").read_bytes() == bytes(SEGMENT)
    assert committer(store).commit()
    assert store.confirm_offset == store.max_offset
    store.dispatch()
    assert sum(map(len, everything(store).values())) == 20
    assert store.message_at(result.physical_offset) is not None
    assert store.flushed_offset == 0
    assert store._flush.flush() and store.flushed_offset == store.max_offset
    store.shutdown()


def test_the_end_of_the_process_loses_what_was_not_committed(tmp_path: Path) -> None:
    store = pooled(tmp_path / "store")
    fill(store, 30)
    committer(store).commit()
    end = store.max_offset
    fill(store, 30, first=30)
    snapshot(tmp_path / "store", tmp_path / "killed")
    store.shutdown()
    killed = opened(tmp_path / "killed")
    assert killed.max_offset == end and sum(map(len, everything(killed).values())) == 30
    killed.shutdown()
    stopped = opened(tmp_path / "store")
    assert not stopped.recovered and sum(map(len, everything(stopped).values())) == 60
    stopped.shutdown()


@pytest.mark.parametrize("flush", FlushDiskType)
def test_the_bytes_are_those_written_through_a_map(flush: FlushDiskType, tmp_path: Path) -> None:
    for name, enabled in (("map", False), ("pool", True)):
        options = {"transient_store_pool_enable": enabled, "flush_disk_type": flush}
        store = pooled(tmp_path / name, ManualClock(), **options)
        for part in range(6):
            fill(store, 250, first=250 * part)
            store._flush.flush()
        store.dispatch()
        store.shutdown()
    through_map, through_pool = (contents(tmp_path / name) for name in ("map", "pool"))
    names = {name for name in through_map if not name.startswith(("index", "rucola", "checkpoint"))}
    assert sum(name.startswith("commitlog") for name in names) > 3
    assert {name: through_pool[name] for name in names} == {name: through_map[name] for name in names}


def test_buffers_come_back_and_without_one_a_segment_is_written_through_its_map(tmp_path: Path) -> None:
    store = pooled(tmp_path)
    log = store._log
    assert pool(store).free == 1 and log.buffered
    fill(store, FULL_SEGMENTS)
    assert pool(store).free == 0 and log.buffered
    fill(store, 150, first=FULL_SEGMENTS)
    assert not log.buffered
    # What is written through the map is in the file, but readers do not see it before the older, buffered content.
    assert log.max_offset == 0 and store.message_at(2 * SEGMENT) is None
    assert committer(store).commit()
    assert log.max_offset == log.written_offset and pool(store).free == 2
    assert store.message_at(2 * SEGMENT) is not None
    fill(store, FULL_SEGMENTS, first=FULL_SEGMENTS + 150)
    assert log.buffered and pool(store).free == 1
    store.shutdown()
    again = pooled(tmp_path)
    assert sum(map(len, everything(again).values())) == 2 * FULL_SEGMENTS + 150
    # The newest segment of the earlier process is continued through its map, without a buffer.
    assert not again._log.buffered and pool(again).free == 2
    again.shutdown()


def test_with_fast_fail_a_send_is_refused_until_a_buffer_is_free(tmp_path: Path) -> None:
    store = pooled(tmp_path, fast_fail_if_no_buffer_in_store_pool=True)
    statuses = [store.put_message(message(number)).status for number in range(800)]
    taken = statuses.index(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)
    assert set(statuses[:taken]) == {PutMessageStatus.PUT_OK} and len(set(statuses[taken:])) == 1
    assert store.state is StoreState.RUNNING and SEGMENT < store.max_offset < 2 * SEGMENT
    committer(store).commit()
    assert store.put_message(message(0)).status is PutMessageStatus.PUT_OK
    assert store._log.buffered
    store.shutdown()


def test_fast_fail_needs_a_second_buffer() -> None:
    with pytest.raises(ConfigError, match="transientStorePoolSize"):
        MessageStoreConfig(transient_store_pool_size=1, fast_fail_if_no_buffer_in_store_pool=True)


def test_with_sync_flush_one_wait_is_for_commit_and_sync(tmp_path: Path) -> None:
    store = pooled(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    fill(store, 10)
    assert store.flushed_offset == store._log.max_offset == 0
    flusher = store._flush._worker
    assert isinstance(flusher, ManualWorker) and flusher.wanted
    flusher.run()
    assert store.flushed_offset == store._log.max_offset == store.max_offset
    store.dispatch()
    assert sum(map(len, everything(store).values())) == 10
    store.shutdown()


def test_when_the_thread_commits(tmp_path: Path) -> None:
    clock = ManualClock()
    store = pooled(tmp_path, clock)
    worker = committer(store)._worker
    assert isinstance(worker, ManualWorker)
    store.put_message(message(0))
    assert worker.wanted
    worker.run()
    assert store.confirm_offset == 0
    clock.advance(200)
    worker.run()
    assert store.confirm_offset == store.max_offset > 0
    fill(store, 100)
    worker.run()
    assert store.confirm_offset == store.max_offset > 4 * 4096
    store.shutdown()
    quiet = pooled(tmp_path, wake_commit_when_put_message=False)
    quiet.put_message(message(0))
    worker = committer(quiet)._worker
    assert isinstance(worker, ManualWorker) and not worker.wanted
    # The segment that existed at the start is written through its map, so the minimum for a commit does not apply.
    worker.run()
    assert quiet.confirm_offset == quiet.max_offset
    quiet.shutdown()


@pytest.mark.parametrize(
    ("error", "state"), [(DiskError, StoreState.IO_ERROR), (DiskFullError, StoreState.RUNNING)], ids=["EIO", "ENOSPC"]
)
def test_a_commit_that_fails(
    error: type[DiskError], state: StoreState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pooled(tmp_path / "store", commit_commit_log_least_pages=0)
    fill(store, 5)
    committer(store).commit()
    end = store.max_offset
    fill(store, 5, first=5)

    def refuse(*_: object) -> None:
        raise error("segment", "write", "refused")

    worker = committer(store)._worker
    assert isinstance(worker, ManualWorker)
    with monkeypatch.context() as patch:
        patch.setattr(type(store._log.segments.files[0].map), "write", refuse)
        worker.run()
        assert store.state is state and store.confirm_offset == end
        snapshot(tmp_path / "store", tmp_path / "then")
        MessageStore.shutdown(store)
    # Messages that are not in their file are lost, so the stop was not clean.
    assert (tmp_path / "store" / "abort").exists()
    again = opened(tmp_path / "store")
    assert again.recovered and again.max_offset == end
    again.shutdown()


def test_a_commit_goes_on_when_there_is_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pooled(tmp_path)
    fill(store, 5)

    def refuse(*_: object) -> None:
        raise DiskFullError("segment", "write", "no space")

    with monkeypatch.context() as patch:
        patch.setattr(type(store._log.segments.files[0].map), "write", refuse)
        assert not committer(store).commit() and not store._flush.flush()
        assert store.flushed_offset == 0
    assert store._flush.flush() and store.flushed_offset == store.max_offset
    store.shutdown()
    assert not (tmp_path / "abort").exists()


def test_a_deleted_topic_that_comes_back_after_a_crash_is_not_deleted_again(tmp_path: Path) -> None:
    store = pooled(tmp_path / "store")
    fill(store, 10)
    committer(store).commit()
    store.dispatch()
    end = store.max_offset
    fill(store, 10, first=10)
    store.delete_topic(b"T0")
    snapshot(tmp_path / "store", tmp_path / "killed")
    committer(store).commit()
    store.dispatch()
    assert not [name for name in store.queue_names() if name[0] == b"T0"]
    store.shutdown()
    killed = opened(tmp_path / "killed")
    assert killed.max_offset == end
    assert killed.put_message(message(0, b"T0")).status is PutMessageStatus.PUT_OK
    killed.dispatch()
    assert len(everything(killed)[b"T0", 0]) == 1
    killed.shutdown()


def test_memory_that_cannot_be_locked_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    buffers = TransientStorePool(3, 8192)
    monkeypatch.setattr(transient_store_pool, "lock_memory", lambda *_: "Cannot allocate memory")
    with caplog.at_level(logging.WARNING):
        buffers.start()
    assert buffers.free == 3
    assert sum("cannot be locked" in record.getMessage() for record in caplog.records) == 1


def test_memory_is_locked_until_it_is_closed() -> None:
    buffer = memory.private_memory(16384)
    locked = _locked_kib()
    assert memory.lock_memory(buffer, 0, 16384) == ""
    assert _locked_kib() == locked + 16
    buffer.close()
    assert _locked_kib() == locked


def _locked_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmLck:")).split()[1])


def test_a_file_gives_up_the_buffer_whose_bytes_it_has(tmp_path: Path) -> None:
    buffers = TransientStorePool(1, 4096)
    buffers.start()
    file = MappedFile(Files(), str(tmp_path / "0"), 0, 4096, True, 0)
    buffer = buffers.borrow()
    file.write_behind(buffer)
    assert file.target is buffer
    assert file.committed() is buffer
    assert (file.pending, file.committed()) == (None, None)
