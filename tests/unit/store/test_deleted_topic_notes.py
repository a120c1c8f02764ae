"""How long the notes about deleted topics are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rucola.common.message import StoreMessage
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.topic_deletion import FILE_NAME, TopicDeletion
from rucola.testing.clock import ManualClock


@pytest.mark.parametrize(
    ("min_offset", "needed_since_ms", "kept"),
    [(99, 0, True), (99, 8000, True), (100, 7000, True), (100, 7001, False), (200, 0, True), (200, 9000, False)],
)
def test_a_note_is_kept_as_long_as_records_or_pops_from_before_are_possible(
    tmp_path: Path, min_offset: int, needed_since_ms: int, kept: bool
) -> None:
    """A checkpoint of a pop outlives the log segment of its pop, because it is stored again while it waits."""
    deletion = TopicDeletion(Files(), str(tmp_path))
    deletion.begin(b"T", 100, 7000)
    deletion.finish(b"T")
    deletion.resumed(min_offset, 1000, needed_since_ms)
    deletion.load()
    assert (deletion.times_ms, deletion.newest_ms) == (({b"T": 7000}, 7000) if kept else ({}, 0))


@pytest.mark.parametrize(("age_s", "kept"), [(0, True), (259_200 + 86_000, True), (259_200 + 87_000, False)])
def test_a_start_keeps_the_note_while_a_pop_may_wait(tmp_path: Path, age_s: int, kept: bool) -> None:
    """The longest wait is ``timerMaxDelaySec``; a broker may also have stood still for a day."""
    clock = ManualClock()
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 16)

    def opened() -> MessageStore:
        store = MessageStore(config, Files(), clock)
        store.store_host = bytes(8)
        store.load()
        return store

    store = opened()
    store.start()
    store.put_message(StoreMessage(b"U", 0, b"body", b"", 0, bytes(8)))
    now_ms = store.now_ms()
    store.shutdown()
    note = {"T": {"end": 0, "pending": False, "time": now_ms - age_s * 1000}}
    (tmp_path / FILE_NAME).write_text(json.dumps(note))
    store = opened()
    assert (store.deleted_ms(b"T") > 0) is kept
    store.shutdown()
