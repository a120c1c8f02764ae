"""Many queues: only so many of their files are mapped at a time, whatever is done with them, and nothing is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.unit.store.stores import crashed, everything, fill, message, opened, read

from rucola.runtime.files import Files, MappedSegment
from rucola.store.log.mapped_file import MappedFile
from rucola.store.message_store import MessageStore
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.verify.check import verify

MAPS_MAX = 8
QUEUES = 50


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths of the queue segments that are mapped now."""
    paths: set[str] = set()
    opening, closing = Files.open_segment, MappedSegment.close

    def open_segment(self: Files, path: str, size: int | None = None, writable: bool = True) -> MappedSegment:
        if "/consumequeue/" in path:
            paths.add(path)
        return opening(self, path, size, writable)

    def close(self: MappedSegment) -> None:
        paths.discard(self.path)
        closing(self)

    monkeypatch.setattr("rucola.store.opening.raise_file_limit", lambda: MAPS_MAX * 4)
    monkeypatch.setattr(Files, "open_segment", open_segment)
    monkeypatch.setattr(MappedSegment, "close", close)
    return paths


def fill_all(store: MessageStore, rounds: int) -> None:
    for number in range(rounds * QUEUES):
        store.put_message(message(number, b"T", number % QUEUES))
        store.dispatch()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_few_are_mapped_and_all_are_served(how: str, mapped: set[str], tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    most = 0
    for _ in range(3):
        fill_all(store, 1)
        most = max(most, len(mapped))
    assert MAPS_MAX // 2 < most <= MAPS_MAX
    before = everything(store)
    assert len(before) == QUEUES and all(len(messages) == 3 for messages in before.values())
    assert len(mapped) <= MAPS_MAX
    if how == "killed":
        path = crashed(store, tmp_path / "store", tmp_path / "copy")
    else:
        store.shutdown()
        path = tmp_path / "store"
    store = opened(path)
    assert len(mapped) <= MAPS_MAX
    fill_all(store, 2)
    assert {name: messages[:3] for name, messages in everything(store).items()} == before
    assert len(mapped) <= MAPS_MAX
    store.shutdown()
    assert verify(str(path)).clean


def test_what_was_stored_through_a_map_given_up_is_synced(
    mapped: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(MappedSegment, "sync", lambda self: synced.append(self.path))
    monkeypatch.setattr(Files, "sync_file", lambda self, path: synced.append(path))
    store = opened(tmp_path)
    fill_all(store, 1)
    assert len(mapped) <= MAPS_MAX
    synced.clear()
    store._queues.sync()
    assert sorted(synced) == sorted(map(str, tmp_path.glob("consumequeue/T/*/*")))
    synced.clear()
    store._queues.sync()
    assert synced == []
    store.shutdown()


def test_a_queue_that_is_being_synced_keeps_its_map(
    mapped: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper's thread works on the descriptor meanwhile."""
    store = opened(tmp_path)
    fill(store, 1, topics=1, queues=1)
    reached, go_on = threading.Event(), threading.Event()
    sync = ConsumeQueue.sync

    def slow(self: ConsumeQueue) -> None:
        if self.topic == b"T0":
            reached.set()
            assert go_on.wait(10)
            assert any("/T0/" in path for path in mapped)
        sync(self)

    monkeypatch.setattr(ConsumeQueue, "sync", slow)
    thread = threading.Thread(target=store._queues.sync)
    thread.start()
    assert reached.wait(10)
    fill_all(store, 2)
    assert len(mapped) <= MAPS_MAX
    go_on.set()
    thread.join(10)
    assert not thread.is_alive()
    fill_all(store, 1)
    assert not any("/T0/" in path for path in mapped)
    assert len(read(store, b"T0", 0)) == 1
    store.shutdown()


def test_a_deleted_topic_counts_no_more(mapped: set[str], tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill_all(store, 1)
    store.delete_topic(b"T")
    assert (store._queues._map_count, store._queues._maps) == (0, {})
    fill_all(store, 1)
    assert all(len(messages) == 1 for messages in everything(store).values())
    store.shutdown()


def test_only_queues_and_index_are_read_here_and_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first touch of each brings as much as the disk reads ahead, megabytes on some."""
    scattered: list[str] = []
    monkeypatch.setattr(MappedSegment, "expect_scattered", lambda self: scattered.append(self.path))
    store = opened(tmp_path)
    fill(store, 4)
    expected = {
        str(path) for name in ("consumequeue", "index") for path in tmp_path.glob(f"{name}/**/*") if path.is_file()
    }
    assert set(scattered) == expected and expected
    store.shutdown()


def test_a_file_given_up_without_a_sync_is_opened_for_it_once(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "file"
    path.write_bytes(bytes(4096))
    file = MappedFile(files, str(path), 0, 4096, True, 4096)
    file.view[0] = 1
    file.park()
    file.sync()
    path.unlink()
    file.sync()
    assert file._segment is None
