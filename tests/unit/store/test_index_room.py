"""The index looks for room only when its allocated blocks are full, and loses no key there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.stores import message, opened

from rucola.formats.message import decode_message
from rucola.store.index import index_service
from rucola.store.index.index_service import IndexFile
from rucola.store.log import mapped_file

STEP = 4096
ENTRIES = 1300
KEYS = 3


def test_room_is_looked_for_once_per_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    room = IndexFile.room

    def counted(file: IndexFile, entries: int) -> int:
        asked.append(entries)
        return room(file, entries)

    monkeypatch.setattr(IndexFile, "room", counted)
    monkeypatch.setattr(mapped_file, "ALLOCATION_STEP", STEP)
    store = opened(tmp_path, max_index_num=ENTRIES)
    count = 1000
    try:
        for number in range(count):
            store.put_message(message(number))
            store.dispatch()
        files = store._parts.index.files if store._parts.index is not None else []
        assert len(files) == -(-count * KEYS // (ENTRIES - 1))
        steps_a_file = -(-index_service.index_file_bytes(100, ENTRIES) // STEP)
        assert len(asked) <= len(files) * (steps_a_file + 1) < count // 10
        for number in range(0, count, 7):
            found = store.query_by_key(b"TopicTest", b"key-%d" % number, 2)
            assert [decode_message(view).queue_offset for view in found.views] == [number]
    finally:
        store.shutdown()
