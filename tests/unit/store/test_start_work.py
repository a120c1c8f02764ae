"""What a start does depends on what the last run left unsynced, not on what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.stores import SEGMENT, config, crashed, everything, fill, message, opened

from rucola.runtime.files import Files
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.mapped_file import MappedFile
from rucola.store.message_store import MessageStore
from rucola.store.recovery import recovery
from rucola.testing.clock import ManualClock

ALONE = {"flush_interval_consume_queue_ms": 60_000}
"""Options with which the maintenance thread does nothing by itself."""


class Counting(Files):
    """Notes which files are mapped and which directories are synced."""

    def __init__(self) -> None:
        super().__init__()
        self.mapped: list[str] = []
        self.synced: list[str] = []

    def map_file(self, path: str, *arguments, **options):  # type: ignore[no-untyped-def]
        self.mapped.append(path)
        return super().map_file(path, *arguments, **options)

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def fill_queues(store: MessageStore, queues: range, topic: bytes = b"T") -> None:
    for queue_id in queues:
        store.put_message(message(queue_id, topic, queue_id))
    store.dispatch()


def started(path: Path) -> tuple[MessageStore, Counting]:
    files = Counting()
    store = MessageStore(config(path, **ALONE), files, ManualClock())
    store.load()
    return store, files


@pytest.mark.parametrize("queues", [1, 40])
def test_after_a_clean_stop_no_queue_is_opened(queues: int, tmp_path: Path) -> None:
    store = opened(tmp_path / "store", **ALONE)
    fill_queues(store, range(queues))
    store.shutdown()
    store, files = started(tmp_path / "store")
    assert [path for path in files.mapped if "/consumequeue/" in path] == []
    assert [path for path in files.synced if "/consumequeue" in path] == []
    store.shutdown()


@pytest.mark.parametrize("queues", [5, 40])
def test_after_a_kill_only_directories_of_queues_with_unsynced_entries_are_synced(queues: int, tmp_path: Path) -> None:
    store = opened(tmp_path / "store", **ALONE)
    fill_queues(store, range(queues))
    fill_queues(store, range(3), b"Quiet")
    store.shutdown()
    store = opened(tmp_path / "store", **ALONE)
    fill_queues(store, range(2, 4))
    fill_queues(store, range(queues, queues + 1))
    before = everything(store)
    image = crashed(store, tmp_path / "store", tmp_path / "image")
    store, files = started(image)
    root = f"{image}/consumequeue"
    found = {path for path in files.synced if path.startswith(root)}
    assert found == {root, f"{root}/T", f"{root}/T/2", f"{root}/T/3", f"{root}/T/{queues}"}
    assert everything(store) == before
    store.shutdown()


def test_after_a_kill_all_directories_are_synced_if_nothing_tells_what_was_synced(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", **ALONE)
    fill_queues(store, range(3))
    image = crashed(store, tmp_path / "store", tmp_path / "image")
    (image / "rucola-watermark").unlink()
    store, files = started(image)
    root = f"{image}/consumequeue"
    assert {root, f"{root}/T", *(f"{root}/T/{queue_id}" for queue_id in range(3))} <= set(files.synced)
    store.shutdown()


@pytest.mark.parametrize("messages", [700, 1400])
def test_after_a_kill_only_the_end_of_the_log_is_compared(
    messages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the limit, recovery walks through all segments since the last full index file."""
    monkeypatch.setattr(recovery, "_COMPARED_BYTES_MAX", SEGMENT)
    store = opened(tmp_path / "store", **ALONE)
    fill(store, messages)
    store.shutdown()
    store = opened(tmp_path / "store", **ALONE)
    image = crashed(store, tmp_path / "store", tmp_path / "image")
    store.shutdown()
    walked: set[int] = set()
    walk = CheckedWalk.walk

    def noted(self: CheckedWalk, file: MappedFile, *arguments):  # type: ignore[no-untyped-def]
        walked.add(file.start)
        return walk(self, file, *arguments)

    monkeypatch.setattr(CheckedWalk, "walk", noted)
    store, _ = started(image)
    newest = store.max_offset // SEGMENT * SEGMENT
    assert newest >= 3 * SEGMENT
    assert walked == {newest - SEGMENT, newest}
    store.shutdown()
