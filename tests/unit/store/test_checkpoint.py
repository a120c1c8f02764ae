"""RocketMQ can rely on the checkpoint if it opens the store after a crash.

After a crash, RocketMQ removes index files that are newer than the index time in the checkpoint. It dispatches again
all messages after the checkpoint's times of log and queues. The keys of the removed files are restored only if these
times are not later than the newest full index file.
"""

from __future__ import annotations

from pathlib import Path

from tests.unit.store.stores import fill, opened

from rucola.formats.checkpoint import StoreCheckpoint
from rucola.formats.index_file import IndexHeader
from rucola.store.message_store import MessageStore

ENTRIES_MAX = 400


def checkpoint_of(path: Path) -> StoreCheckpoint:
    return StoreCheckpoint.decode((path / "checkpoint").read_bytes())


def kept(store: MessageStore, path: Path) -> StoreCheckpoint:
    """Syncs log, queues and index, and lets the maintenance thread record these syncs; returns the checkpoint."""
    store._flush.flush()
    store._keeper.end()
    store._keeper.sync_queues()
    store._keeper._work()
    return checkpoint_of(path)


def full_index_times(path: Path) -> list[int]:
    headers = [IndexHeader.decode(file.read_bytes()) for file in sorted(path.glob("index/*"))]
    return [header.end_timestamp_ms for header in headers if header.index_count == ENTRIES_MAX]


def test_in_use_no_time_is_younger_than_the_newest_full_index_file(tmp_path: Path) -> None:
    store = opened(tmp_path, max_index_num=ENTRIES_MAX)
    newest = fill(store, 700)[-1].store_timestamp_ms
    checkpoint = kept(store, tmp_path)
    times = full_index_times(tmp_path)
    assert len(times) > 2 and times[-1] < newest
    assert checkpoint.physic_msg_timestamp_ms == newest
    assert checkpoint.logics_msg_timestamp_ms == checkpoint.index_msg_timestamp_ms == times[-1]
    store.shutdown()


def test_in_use_without_a_full_index_file_everything_would_be_dispatched_again(tmp_path: Path) -> None:
    store = opened(tmp_path, max_index_num=ENTRIES_MAX)
    fill(store, 50)
    checkpoint = kept(store, tmp_path)
    assert checkpoint.logics_msg_timestamp_ms == checkpoint.index_msg_timestamp_ms == 0
    store.shutdown()


def test_without_index_the_queues_count_alone(tmp_path: Path) -> None:
    store = opened(tmp_path, message_index_enable=False)
    newest = fill(store, 50)[-1].store_timestamp_ms
    assert kept(store, tmp_path).logics_msg_timestamp_ms == newest
    store.shutdown()


def test_after_a_clean_stop_all_is_there_and_the_next_start_knows_the_full_files(tmp_path: Path) -> None:
    store = opened(tmp_path, max_index_num=ENTRIES_MAX)
    newest = fill(store, 700)[-1].store_timestamp_ms
    store.shutdown()
    times = full_index_times(tmp_path)
    assert checkpoint_of(tmp_path).logics_msg_timestamp_ms == newest
    assert checkpoint_of(tmp_path).index_msg_timestamp_ms == times[-1]
    store = opened(tmp_path, max_index_num=ENTRIES_MAX)
    assert checkpoint_of(tmp_path).logics_msg_timestamp_ms == times[-1]
    assert checkpoint_of(tmp_path).index_msg_timestamp_ms == times[-1]
    store.shutdown()
    assert checkpoint_of(tmp_path).logics_msg_timestamp_ms == newest
