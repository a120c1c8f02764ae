"""The recorded progress of queues and index is never ahead of the syncs, whenever the maintenance thread runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from tests.unit.store.stores import HOST, opened

from rucola.common.message import StoreMessage
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.log import commit_log
from rucola.testing.crash_states import crash_states
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.store_life import ROOT, StoreLife, empty_disk

CONFIG = MessageStoreConfig(
    store_path_root_dir=ROOT,
    mapped_file_size_commit_log=1 << 18,
    mapped_file_size_consume_queue=20 * 560,
    max_hash_slot_num=1100,
    max_index_num=9000,
    flush_disk_type=FlushDiskType.SYNC_FLUSH,
    flush_consume_queue_thorough_interval_ms=1,
)


def message(number: int, queue_id: int = 0) -> StoreMessage:
    properties = b"KEYS\x01key%d\x02UNIQ_KEY\x01%010x\x02" % (number, number)
    return StoreMessage(b"Topic", queue_id, b"body %d" % number, properties, number, HOST)


def keeper_at(life: StoreLife, wanted: Callable[[str, str], bool]) -> list[str]:
    """Runs the maintenance thread's work once at each disk call for which ``wanted`` is true; returns these calls."""
    seen: list[str] = []

    def observe(kind: str, path: str) -> None:
        if wanted(kind, path):
            life.disk.observer = None
            seen.append(f"{kind} {path}")
            life.keep()
            life.disk.observer = observe

    life.disk.observer = observe
    return seen


def after_power_cut(life: StoreLife) -> StoreLife:
    """Recovers the store from the synced content, and compares it with the promises."""
    life.disk.observer = None
    for state in crash_states(life.disk, Random(1), 0):
        again = StoreLife(SimulatedDisk.of(state.image), life.config, life.model)
        again.open()
    return again


@pytest.mark.parametrize("index", [True, False])
def test_units_of_a_dispatch_of_two_batches_are_recorded_after_their_sync(index: bool) -> None:
    """The second batch creates a new file of the queue, after the dispatch position has passed the first batch."""
    life = StoreLife(empty_disk(), replace(CONFIG, message_index_enable=index))
    life.open()
    for number in range(603):
        life.put(message(number))
    life.flush()
    steps = keeper_at(life, lambda kind, path: "/consumequeue/" in path)
    life.dispatch()
    assert any(step.endswith("/00000000000000011200") for step in steps)
    after_power_cut(life)


def keyed(number: int, count: int) -> StoreMessage:
    keys = b" ".join(b"k%d-%d" % (number, key) for key in range(count))
    return replace(message(number), properties=b"KEYS\x01%b\x02" % keys)


@pytest.mark.parametrize("stop", [True, False])
def test_keys_put_after_the_keeper_passed_in_the_middle_are_synced(stop: bool) -> None:
    """The maintenance thread runs while blocks are allocated for the keys. Before the fix, the file then counted as
    clean, although the keys were not synced.
    """
    life = StoreLife(empty_disk(), CONFIG)
    life.open()
    for number in range(3):
        life.put(keyed(number, 1000))
    life.turn()
    life.put(keyed(3, 100))
    life.flush()
    steps = keeper_at(life, lambda kind, path: kind == "allocate" and "/index/" in path)
    life.dispatch()
    life.disk.observer = None
    assert len(steps) == 1
    if stop:
        life.stop()
    again = after_power_cut(life)
    assert again.store.recovered is not stop
    assert len(again.store.query_by_key(b"Topic", b"k3-99").views) == 1


def test_dispatch_that_fails_half_way_leaves_what_it_wrote_to_be_synced() -> None:
    life = StoreLife(empty_disk(), CONFIG)
    life.open()
    for number in range(3):
        life.put(message(number))
    life.flush()
    life.dispatch()
    life.keep()
    life.put(message(3))
    life.put(message(4, queue_id=1))
    life.flush()

    def refuse(kind: str, path: str) -> None:
        if "/Topic/1" in path:
            raise OSError(28, "no space")

    life.disk.faults = refuse
    assert life.store.dispatch() == 0
    published = life.store._dispatcher.progress
    (queue,) = published._queues
    assert (queue.queue_id, queue.max_offset) == (0, 4) and not life.store._dispatcher._touched
    life.disk.faults = None
    life.dispatch()
    life.keep()
    assert life.store._keeper._synced == published.current
    after_power_cut(life)


@pytest.mark.parametrize("new_queue", [False, True])
def test_records_dispatched_while_the_keeper_syncs_count_after_their_own_sync(new_queue: bool) -> None:
    life = StoreLife(empty_disk(), CONFIG)
    life.open()
    for number in range(3):
        life.put(message(number))
    life.flush()
    life.dispatch()
    taken = life.store._dispatcher.progress.current

    def go_on(kind: str, path: str) -> None:
        if kind == "sync" and "/consumequeue/" in path:
            life.disk.observer = None
            life.put(message(3, queue_id=int(new_queue)))
            life.flush()
            life.dispatch()

    life.disk.observer = go_on
    life.keep()
    assert life.disk.observer is None
    synced = life.store._keeper._synced
    assert (synced.position, synced.index_position) == (taken.position, taken.index_position)
    assert synced.queue_count == taken.queue_count == 1
    assert life.store._dispatcher.progress.current.position > taken.position
    after_power_cut(life)


def test_queues_that_could_not_be_synced_are_told_once_and_never_synced_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a failed sync, the system counts the lost pages as clean, so another sync would succeed without them."""
    life = StoreLife(empty_disk(), CONFIG)
    life.open()
    life.put(message(0))
    life.turn()
    life.keep()
    before = life.store._keeper._synced
    life.put(message(1))
    life.turn()
    later: list[str] = []

    def refuse(kind: str, path: str) -> None:
        if kind == "sync" and "/consumequeue/" in path:
            raise OSError(5, "input/output error")

    def note(kind: str, path: str) -> None:
        if kind == "sync" and ("/consumequeue/" in path or "/index/" in path):
            later.append(path)

    life.disk.faults = refuse
    life.keep()
    life.disk.faults, life.disk.observer = None, note
    for number in range(2, 5):
        life.put(message(number))
        life.turn()
        life.keep()
    assert life.store._keeper._synced == before
    life.stop()
    assert later == []
    assert [entry.levelname for entry in caplog.records if entry.name == "rucola.store.keeper"] == ["CRITICAL"]
    again = after_power_cut(life)
    assert again.store.recovered
    assert again.store.max_queue_offset(b"Topic", 0) == 5


def test_queues_that_went_are_published_without_a_message() -> None:
    """The removal of queues is recorded at once. Otherwise, the next process would not find these queues and would
    rebuild all others.
    """
    life = StoreLife(empty_disk(), CONFIG)
    life.open()
    for number in range(4):
        life.put(message(number, queue_id=number))
    life.turn()
    life.keep()
    assert life.store._keeper._synced.queue_count == 4
    life.delete(b"Topic")
    life.keep()
    assert life.store._keeper._synced.queue_count == 0


@pytest.mark.parametrize("pooled", [False, True])
def test_the_flushed_time_is_never_newer_than_what_is_flushed(pooled: bool, tmp_path: Path) -> None:
    """A flush may run between any two lines of an append. RocketMQ reads the flushed time from the checkpoint."""
    store = opened(tmp_path, transient_store_pool_enable=pooled, flush_interval_commit_log_ms=60_000)
    times = {0: 0}
    flushes = 0

    def trace(frame: FrameType, kind: str, _: object) -> Any:
        nonlocal flushes
        if frame.f_code.co_filename != commit_log.__file__:
            return None
        if kind == "line" and threading.current_thread() is threading.main_thread():
            flushes += 1
            if flushes % 59:  # flush only now and then, so that data waits
                return trace
            store._flush.flush()
            newest_ms = times.get(store._flush.flushed_offset)
            assert newest_ms is None or store._flush.flushed_timestamp_ms <= newest_ms
        return trace

    before = sys.gettrace()
    for number in range(400):
        sys.settrace(trace)
        try:
            result = store.put_message(replace(message(number), body=bytes(1000)))
        finally:
            sys.settrace(before)
        times[result.physical_offset + result.size] = result.store_timestamp_ms
    assert flushes > 1000
    store.shutdown()


def test_an_index_file_goes_when_it_is_on_the_disk(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_interval_consume_queue_ms=60_000)
    for number in range(700):
        store.put_message(message(number))
    store.dispatch()
    index = store._index
    assert index is not None and len(index.files) == 4
    assert index.detach_before(store.max_offset) == []
    store._keeper.sync_queues()
    assert index.full_timestamp_ms == index.files[2].header().end_timestamp_ms
    assert len(index.detach_before(store.max_offset)) == 3
    store.shutdown()
