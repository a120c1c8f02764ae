"""A read copies messages at once if they are in memory; otherwise they are fetched first or reported as unreadable."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
from tests import places as directories
from tests.unit.store.stores import fill, opened

from rucola.errors import DiskError
from rucola.formats.message import decode_messages
from rucola.runtime.file_map import FileMap
from rucola.store.config import CheckOnRead, DamagedMessage
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageResult, GetMessageStatus

tmp_path = directories.tmp_path

COUNT = 20
T = b"T0"


@pytest.fixture
def places(tmp_path: Path) -> list[int]:
    """Returns the physical offsets of messages in a closed store; the messages are put alternately into two queues."""
    store = opened(tmp_path)
    found = [result.physical_offset for result in fill(store, COUNT, topics=1, queues=2)]
    store.shutdown()
    return found


def get(store: MessageStore, queue_offset: int = 0, queue_id: int = 0, may_block: bool = True) -> GetMessageResult:
    return store.get_message(T, queue_id, queue_offset, 32, 1 << 20, may_block=may_block)


def offsets(result: GetMessageResult) -> list[int]:
    return [message.queue_offset for view in result.views for message in decode_messages(view)]


def unreadable(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    """Makes the disk unable to read the byte at ``position`` of any segment."""
    read = FileMap.read

    def failing(segment: FileMap, start: int, length: int) -> bytes:
        if start <= position < start + length:
            raise DiskError(segment.path, "read", "Input/output error")
        return read(segment, start, length)

    monkeypatch.setattr(FileMap, "read", failing)


def evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all pages count as not in memory."""
    monkeypatch.setattr(FileMap, "read_resident", lambda *_: False)


def resident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all pages count as in memory."""
    read = FileMap.read

    def read_resident(segment: FileMap, position: int, into: memoryview) -> bool:
        into[:] = read(segment, position, len(into))
        return True

    monkeypatch.setattr(FileMap, "read_resident", read_resident)


def test_records_in_memory_are_copied_at_once(
    places: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    resident(monkeypatch)
    monkeypatch.setattr(FileMap, "read", None)
    result = get(store, may_block=False)
    assert (result.cold, offsets(result)) == (None, list(range(COUNT // 2)))
    # A byte that changes in the file, and so in the map, does not change what was read.
    before = bytes(result.views[0])
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(b"\xff")
    assert bytes(result.views[0]) == before
    store.shutdown()


def test_other_records_are_told_and_read_by_callers_that_may_wait(
    places: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    evicted(monkeypatch)
    told = get(store, may_block=False)
    assert told.cold is not None
    assert (told.views, told.next_offset) == ([], 0)
    told.cold()
    assert offsets(get(store)) == list(range(COUNT // 2))
    store.shutdown()


def test_records_since_the_start_come_from_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    monkeypatch.setattr(FileMap, "read", None)
    evicted(monkeypatch)
    fill(store, COUNT, topics=1, queues=1)
    assert offsets(get(store, may_block=False)) == list(range(COUNT))
    store.shutdown()


@pytest.mark.parametrize("check", list(CheckOnRead))
def test_a_record_that_the_disk_cannot_read_costs_that_message_only(
    check: CheckOnRead, places: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, check_on_read=check)
    evicted(monkeypatch)
    unreadable(monkeypatch, places[6] + 10)
    told = get(store, may_block=False)
    assert told.cold is not None
    told.cold()
    assert offsets(get(store)) == [number for number in range(COUNT // 2) if number != 3]
    assert offsets(get(store, queue_id=1)) == list(range(COUNT // 2))
    assert store.stats.damaged_messages == 1
    store.shutdown()


def test_or_ends_the_read_before_it(places: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, damaged_message=DamagedMessage.STOP)
    evicted(monkeypatch)
    unreadable(monkeypatch, places[6] + 10)
    assert get(store).next_offset == 3
    assert get(store, 3).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    store.shutdown()


def test_few_sets_of_tag_codes_are_kept(tmp_path: Path) -> None:
    """Before the fix, 4,096 sets of any size were kept: consumers with ever new expressions cost 600 MB."""
    store = opened(tmp_path)
    fill(store, COUNT, topics=1)
    kept: list[weakref.ref[frozenset[int]]] = []
    for number in range(200):
        codes = frozenset(range(number, number + 1000))
        kept.append(weakref.ref(codes))
        store.get_message(T, 0, 0, 32, 1 << 20, tag_codes=codes)
    del codes
    assert 0 < sum(each() is not None for each in kept) <= 65
    store.shutdown()
