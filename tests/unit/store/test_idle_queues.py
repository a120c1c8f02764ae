"""Unused queues close their files, and used ones keep them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from tests.brokers import Cluster, run
from tests.open_files import open_files
from tests.unit.store.stores import everything, message, opened, read

from rucola.broker.running import IDLE_LOOK_S, IDLE_SHARES
from rucola.store.message_store import MessageStore
from rucola.store.queue import consume_queue_store

QUEUES = 30
SHARES = 3


def queue_files(store: Path) -> set[str]:
    """Files of the store's queues that this process has open."""
    return {path for path in open_files() if path.startswith(f"{store}/consumequeue/")}


def look_at_all(store: MessageStore) -> None:
    for _ in range(SHARES):
        store.park_idle_queues(SHARES)


def filled(path: Path) -> MessageStore:
    store = opened(path)
    for number in range(2 * QUEUES):
        store.put_message(message(number, b"T", number % QUEUES))
        store.dispatch()
    store._keeper.sync_queues()
    return store


def test_no_file_stays_open_when_nobody_reads_or_writes(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert len(queue_files(tmp_path)) == QUEUES
    look_at_all(store)
    assert len(queue_files(tmp_path)) == QUEUES, "all were written since the last check"
    look_at_all(store)
    assert queue_files(tmp_path) == set()
    assert (store._queues._map_count, store._queues._maps) == (0, {})
    found = everything(store)
    assert len(found) == QUEUES and all(len(messages) == 2 for messages in found.values())
    store.put_message(message(99, b"T", 5))
    store.dispatch()
    assert len(read(store, b"T", 5)) == 3
    store.shutdown()


def test_queues_in_use_keep_their_files(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for _ in range(3):
        read(store, b"T", 7)
        store.put_message(message(1, b"T", 8))
        store.dispatch()
        store._keeper.sync_queues()
        look_at_all(store)
    assert {path.split("/")[-2] for path in queue_files(tmp_path)} == {"7", "8"}
    assert store._queues._map_count == 2
    store.shutdown()


def test_queues_that_wait_for_their_sync_stay_open(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.put_message(message(1, b"T", 8))
    store.dispatch()
    for _ in range(3):
        look_at_all(store)
    assert {path.split("/")[-2] for path in queue_files(tmp_path)} == {"8"}
    assert (store._queues._map_count, store._queues._held_count) == (1, 0)
    store._keeper.sync_queues()
    look_at_all(store)
    assert queue_files(tmp_path) == set()
    store.shutdown()


def test_one_look_is_at_a_share(tmp_path: Path) -> None:
    """Closing very many files must not delay requests: each step checks only a fraction of the open queues, and a round
    over all queues always has the same number of steps.
    """
    store = filled(tmp_path)
    look_at_all(store)
    for left in (20, 10, 0):
        store.park_idle_queues(SHARES)
        assert len(queue_files(tmp_path)) == left
    read(store, b"T", 7)
    for left in (1, 1, 1, 0):
        store.park_idle_queues(SHARES)
        assert len(queue_files(tmp_path)) == left
    store.shutdown()


def test_a_check_of_very_many_queues_takes_more_calls_instead_of_longer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path)
    look_at_all(store)
    monkeypatch.setattr(consume_queue_store, "_LOOKS_MAX", 4)
    left = []
    while queue_files(tmp_path):
        store.park_idle_queues(SHARES)
        left.append(len(queue_files(tmp_path)))
    assert len(left) == -(-QUEUES // 4)
    assert all(before - after <= 4 for before, after in pairwise([QUEUES, *left]))
    store.shutdown()


def test_a_topic_may_be_deleted_in_the_middle_of_a_round(tmp_path: Path) -> None:
    store = filled(tmp_path)
    look_at_all(store)
    store.park_idle_queues(SHARES)
    assert len(queue_files(tmp_path)) == 20
    store.delete_topic(b"T")
    look_at_all(store)
    assert (store._queues._map_count, store._queues._maps) == (0, {})
    store.put_message(message(1, b"U", 0))
    store.dispatch()
    store._keeper.sync_queues()
    look_at_all(store)
    look_at_all(store)
    assert store._queues._map_count == 0
    store.shutdown()


def test_a_queue_that_is_being_synced_is_left_alone(tmp_path: Path) -> None:
    store = filled(tmp_path)
    queue = store._queues.get(b"T", 3)
    store._queues._syncing = queue
    look_at_all(store)
    look_at_all(store)
    assert {path.split("/")[-2] for path in queue_files(tmp_path)} == {"3"}
    store._queues._syncing = None
    store.shutdown()


def test_a_broker_closes_them_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 30 <= IDLE_LOOK_S * IDLE_SHARES <= 120
    monkeypatch.setattr("rucola.broker.running.IDLE_LOOK_S", 0.001)

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for queue_id in range(4):
                await cluster.send("T", b"body", queue_id=queue_id)
            assert (await cluster.bodies("T", 3)) == [b"body"]
            cluster.broker.store._keeper.sync_queues()
            assert queue_files(tmp_path)
            for _ in range(5000):
                await asyncio.sleep(0.001)
                if not queue_files(tmp_path):
                    break
            assert queue_files(tmp_path) == set()
            assert (await cluster.bodies("T", 3)) == [b"body"]

    run(scene())
