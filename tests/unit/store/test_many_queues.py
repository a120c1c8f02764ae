"""Many queues: whatever is done with them, only a limited number of their files is mapped at a time, and no entry is
lost.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.open_files import open_files
from tests.unit.store.stores import crashed, everything, fill, message, opened, read, with_topics

from rucola.errors import DiskError
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.log.mapped_file import MappedFile
from rucola.store.message_store import MessageStore
from rucola.store.queue import consume_queue_store
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.verify.check import verify

MAPS_MAX = 8
ALONE = {"flush_interval_consume_queue_ms": 60_000}
"""Options with which the maintenance thread does nothing by itself."""
QUEUES = 50


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the paths of queue segments that are mapped now."""
    paths: set[str] = set()
    opening, mapping = Files.map_file, FileMap.map
    unmapping, closing = FileMap.unmap, FileMap.close

    def map_file(self: Files, path: str, size: int | None = None, writable: bool = True) -> FileMap:
        if "/consumequeue/" in path:
            paths.add(path)
        return opening(self, path, size, writable)

    def map_again(self: FileMap) -> bool:
        mapped = mapping(self)
        paths.update([self.path] * mapped)
        return mapped

    def unmap(self: FileMap) -> None:
        paths.discard(self.path)
        unmapping(self)

    def close(self: FileMap) -> None:
        paths.discard(self.path)
        closing(self)

    monkeypatch.setattr("rucola.store.opening.raise_file_limit", lambda: MAPS_MAX * 8)
    monkeypatch.setattr(Files, "map_file", map_file)
    monkeypatch.setattr(FileMap, "map", map_again)
    monkeypatch.setattr(FileMap, "unmap", unmap)
    monkeypatch.setattr(FileMap, "close", close)
    return paths


def noting(synced: list[str]) -> Callable[[ConsumeQueue], None]:
    """Returns a replacement of ``ConsumeQueue.sync`` that also records the directory of each queue not yet synced."""
    sync = ConsumeQueue.sync

    def noted(self: ConsumeQueue) -> None:
        if self.unsynced:
            synced.append(self.segments.path)
        sync(self)

    return noted


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
    assert verify(with_topics(path)).clean


def test_a_message_for_another_queue_takes_one_call(tmp_path: Path) -> None:
    store = opened(tmp_path)
    calls: dict[int, int] = {}
    for queues in (20, 40, 20, 40):  # at first, the queues are opened
        for number in range(queues):
            store.put_message(message(number, b"T", number))
        seen: list[str] = []
        sys.setprofile(lambda _frame, what, _argument, seen=seen: seen.append(what))
        try:
            assert store.dispatch() == queues
        finally:
            sys.setprofile(None)
        store.take_arrivals()
        calls[queues] = seen.count("call")
    assert calls[40] - calls[20] == 20
    store.shutdown()


def test_queues_are_kept_mapped_as_far_as_descriptors_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.store.opening.raise_file_limit", lambda: 1 << 20)
    store = opened(tmp_path)
    assert store._queues.maps_max >= 20_000
    store.shutdown()


@pytest.mark.parametrize("held_max", [3, 20, 60])
def test_entries_stored_through_a_map_given_up_are_synced(
    held_max: int, mapped: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_before = len(open_files())
    synced: list[str] = []
    store = opened(tmp_path, **ALONE)
    store._queues.held_max = held_max
    monkeypatch.setattr(ConsumeQueue, "sync", noting(synced))
    fill_all(store, 1)
    assert len(mapped) <= MAPS_MAX
    assert len(synced) == max(QUEUES - MAPS_MAX - held_max, 0)
    assert store._queues._held_count == min(held_max, QUEUES - len(mapped))
    assert store._queues.wants_sync
    store._keeper.sync_queues()
    assert set(synced) == set(map(str, tmp_path.glob("consumequeue/T/*")))
    assert (store._queues._held_count, store._queues._held) == (0, {})
    assert not store._queues.wants_sync
    assert len(open_files()) < open_before + 2 * MAPS_MAX + 8
    synced.clear()
    store._keeper.sync_queues()
    assert synced == []
    store.shutdown()


def test_a_queue_that_is_being_synced_keeps_its_map(
    mapped: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue stays mapped while it is being synced, because the maintenance thread uses the descriptor."""
    store = opened(tmp_path, **ALONE)
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
    thread = threading.Thread(target=store._keeper.sync_queues)
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


def test_a_topic_deleted_while_its_parked_queues_are_synced_does_not_end_the_syncs(
    mapped: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted topic's directory is moved before its unmapped (parked) queues are synced, so the paths of these queues
    are no longer valid.
    """
    store = opened(tmp_path, **ALONE)
    fill(store, 1, topics=1, queues=1)
    fill_all(store, 1)
    sync = ConsumeQueue.sync

    def deleting(self: ConsumeQueue) -> None:
        if self.topic == b"T0":
            store.delete_topic(b"T")
        sync(self)

    monkeypatch.setattr(ConsumeQueue, "sync", deleting)
    store._keeper.sync_queues()
    assert not store.queue_sync_failed
    store._keeper._retention.remove()
    assert not list(tmp_path.glob("deleted-queues/*"))
    assert (store._queues._held_count, store._queues._held) == (0, {})
    assert not [path for path in open_files() if path.startswith(f"{tmp_path}/deleted-queues")]
    store.shutdown()
    assert not (tmp_path / "abort").exists()


def test_a_sync_that_fails_before_a_descriptor_is_given_up_is_told_by_the_keeper(
    mapped: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path, **ALONE)
    store._queues.held_max = 1
    calls: list[str] = []

    def refuse(self: FileMap) -> None:
        if "consumequeue" in self.path:  # the flush thread may sync the log meanwhile
            calls.append(self.path)
        raise DiskError(self.path, "sync", "bad sector")

    with monkeypatch.context() as patch:
        patch.setattr(FileMap, "sync", refuse)
        fill_all(store, 2)
    assert len(mapped) <= MAPS_MAX
    assert len(calls) == 1, "the sync was tried again"
    before = store._keeper._synced
    store._keeper.sync_queues()
    assert store.queue_sync_failed and store._keeper._synced == before
    assert "new segments do not expire until a restart" in caplog.text
    assert len(everything(store)) == QUEUES
    store.shutdown()
    assert (tmp_path / "abort").exists()
    store = opened(tmp_path)
    assert store.recovered and len(everything(store)) == QUEUES
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
    """The system is told that queues and index are read at random. Otherwise, the first access to each file would also
    read the following pages, megabytes on some disks.
    """
    scattered: list[str] = []
    monkeypatch.setattr(FileMap, "expect_scattered", lambda self: scattered.append(self.path))
    store = opened(tmp_path)
    fill(store, 4)
    expected = {
        str(path) for name in ("consumequeue", "index") for path in tmp_path.glob(f"{name}/**/*") if path.is_file()
    }
    assert set(scattered) == expected and expected
    store.shutdown()


def test_a_file_given_up_without_a_sync_is_synced_by_its_own_descriptor_once(tmp_path: Path) -> None:
    synced: list[int] = []

    class Noting(Files):
        def data_sync(self, descriptor: int) -> None:  # type: ignore[override]
            synced.append(os.fstat(descriptor).st_ino)

    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    inode = path.stat().st_ino
    file = MappedFile(Noting(), str(path), 0, 4096, True, 4096)
    file.view[0] = 1
    assert file.park(unsynced=True) and file._mapped is None
    path.rename(tmp_path / "moved")
    path.write_bytes(bytes(4096))
    file.sync()
    assert synced == [inode]
    file.sync()
    assert synced == [inode] and not file.park(unsynced=False)


def test_a_file_that_comes_back_before_its_sync_is_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    file = MappedFile(Files(), str(path), 0, 4096, True, 4096)
    file.view[0] = 1
    segment = file.map
    file.park(unsynced=True)
    path.unlink()
    assert (file.view[0], file.map) == (1, segment)
    file.view[1] = 2
    file.park(unsynced=False)
    assert file._mapped is None and segment._descriptor < 0


def test_a_file_closed_while_it_is_synced_keeps_its_descriptor_until_then(tmp_path: Path) -> None:
    """If the descriptor were closed just before the call that syncs it, its number might already belong to another
    file.
    """
    path, seen = tmp_path / "file", list[int]()
    path.write_bytes(bytes(4096))

    class Closing(Files):
        def data_sync(self, descriptor: int) -> None:  # type: ignore[override]
            segment.close()
            seen.append(os.fstat(descriptor).st_ino)

    segment = Closing().map_file(str(path))
    segment.sync()
    assert seen == [path.stat().st_ino] and segment._descriptor < 0
    segment.sync()
    assert len(seen) == 1


def test_a_file_that_was_closed_after_its_sync_is_synced_by_its_new_descriptor(tmp_path: Path) -> None:
    """The maintenance thread has just synced and closed the queue's file when the file is needed again."""
    synced: list[int] = []

    class Noting(Files):
        def data_sync(self, descriptor: int) -> None:  # type: ignore[override]
            synced.append(descriptor)

    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    file = MappedFile(Noting(), str(path), 0, 4096, True, 4096)
    segment = file.map
    file.park(unsynced=True)
    assert segment.close_unmapped()
    file.view[0] = 1
    file.sync()
    assert synced == [file.map._descriptor]
    file.close()


def test_a_queue_keeps_its_maps_while_it_is_used(tmp_path: Path) -> None:
    """A queue uses more segments at once than may be mapped."""
    store = opened(tmp_path, mapped_file_size_consume_queue=200)
    store._queues.maps_max = 1
    fill(store, 60, topics=1, queues=1)
    assert len(read(store, b"T0", 0)) == 60
    store.shutdown()
    assert verify(with_topics(tmp_path)).clean


def test_free_descriptors_unmaps_half(mapped: set[str], tmp_path: Path) -> None:
    store = opened(tmp_path, **ALONE)
    store._queues.maps_max = QUEUES
    fill_all(store, 1)
    store._queues.free_descriptors()
    assert len(mapped) == store._queues.maps_max == QUEUES // 2
    store.shutdown()


def test_empty_queues_are_not_looked_up_on_the_disk_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop reads all queues of a topic, most of which may be empty; each look-up of a directory takes 30 µs."""
    store = opened(tmp_path, **ALONE)
    looked_up: list[str] = []
    for name in ("exists", "list_own_directories"):
        of_files = getattr(Files, name)

        def noted(self: Files, path: str, of_files: Callable[[Files, str], object] = of_files) -> object:
            looked_up.append(path)
            return of_files(self, path)

        monkeypatch.setattr(Files, name, noted)
    for queue_id in range(QUEUES):
        assert store.max_queue_offset(b"T0", queue_id) == 0
    assert len(looked_up) <= 2
    assert store.put_message(message(1, b"T0", 7)).queue_offset == 0
    store.dispatch()
    assert (store.max_queue_offset(b"T0", 7), store.max_queue_offset(b"T0", 8)) == (1, 0)
    looked_up.clear()
    for topic in range(consume_queue_store._LISTED_MAX):
        store.max_queue_offset(b"other%d" % topic, 0)
    assert len(store._queues._listed) <= consume_queue_store._LISTED_MAX
    assert store.max_queue_offset(b"T0", 7) == 1
    store.shutdown()
    again = opened(tmp_path, **ALONE)
    assert (again.max_queue_offset(b"T0", 7), again.max_queue_offset(b"T0", 8)) == (1, 0)
    again.shutdown()
