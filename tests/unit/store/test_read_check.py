"""P-18: a message that was damaged on the disk costs only that message."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import SEGMENT, fill, opened

from rucola.formats.consume_queue import UNIT
from rucola.formats.message import decode_messages
from rucola.store.config import CheckOnRead, DamagedMessage
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageStatus

COUNT = 40
VICTIM = 17
OTHERS = [number for number in range(COUNT) if number != VICTIM]
T = b"T0"


def rotten(path: Path, **options: Any) -> MessageStore:
    """Makes a store in which one byte of message ``VICTIM`` is changed, in a segment that is not read at start-up."""
    store = opened(path)
    place = fill(store, COUNT, topics=1, queues=1)[VICTIM].physical_offset + 100
    while store.max_offset < SEGMENT:
        fill(store, 50, topics=1, queues=1, first=1000)
    store.shutdown()
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    return opened(path, **options)


def pulled(store: MessageStore, max_messages: int = 3) -> list[int]:
    """Pulls repeatedly, up to ``COUNT`` or until a pull does not advance; returns the queue offsets of all messages."""
    found: list[int] = []
    at = 0
    while at < COUNT:
        result = store.get_message(T, 0, at, min(max_messages, COUNT - at), 1 << 20)
        got = [message.queue_offset for view in result.views for message in decode_messages(view)]
        assert (result.message_count, result.message_bytes) == (len(got), sum(map(len, result.views)))
        found += got
        if result.next_offset == at:
            assert result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE
            break
        at = result.next_offset
    return found


@pytest.mark.parametrize("max_messages", [1, 3, 32])
@pytest.mark.parametrize("check", [CheckOnRead.OLD, CheckOnRead.ALL])
def test_only_the_damaged_message_is_left_out(
    check: CheckOnRead, max_messages: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = rotten(tmp_path, check_on_read=check)
    with caplog.at_level(logging.ERROR):
        assert pulled(store, max_messages) == OTHERS
        assert pulled(store, max_messages) == OTHERS
    assert [vars(record)["rucola_event"] for record in caplog.records] == ["damaged message is not delivered"]
    assert store.stats.damaged_messages == 2
    result = store.get_message(T, 0, VICTIM, 1, 1 << 20)
    assert (result.status, result.next_offset) == (GetMessageStatus.MESSAGE_WAS_REMOVING, VICTIM + 1)
    assert store.query_by_key(T, b"key-%d" % VICTIM).views == []
    assert len(store.query_by_key(T, b"key-%d" % (VICTIM + 1)).views) == 1
    store.shutdown()


def test_a_pull_may_end_before_it(tmp_path: Path) -> None:
    store = rotten(tmp_path, damaged_message=DamagedMessage.STOP)
    assert pulled(store) == list(range(VICTIM))
    assert store.get_message(T, 0, VICTIM - 2, 32, 1 << 20).next_offset == VICTIM
    assert pulled(store)[-1] == VICTIM - 1
    assert store.get_message(T, 0, VICTIM + 1, 2, 1 << 20).message_count == 2
    store.shutdown()


def test_without_the_check_it_is_delivered_as_it_is(tmp_path: Path) -> None:
    store = rotten(tmp_path, check_on_read=CheckOnRead.NONE)
    assert store.get_message(T, 0, VICTIM - 1, 3, 1 << 20).message_count == 3
    assert store.stats.damaged_messages == 0
    store.shutdown()


@pytest.mark.parametrize("unit", [(0, 0), (3, 1), (1 << 40, 0), (VICTIM, -5)])
def test_a_unit_that_points_at_another_record_gives_no_message(unit: tuple[int, int], tmp_path: Path) -> None:
    """If a unit points to a wrong record, the messages before and after it are delivered, but not the wrong record."""
    store = opened(tmp_path)
    places = fill(store, COUNT, topics=2, queues=2)
    store.shutdown()
    number, more = unit
    place = places[number].physical_offset if number < COUNT else number
    name = tmp_path / "consumequeue" / "T1" / "0" / f"{0:020d}"
    content = bytearray(name.read_bytes())
    content[60:80] = UNIT.struct.pack(place, places[number % COUNT].size + more, 0)
    name.write_bytes(content)
    store = opened(tmp_path)
    found = [
        (message.topic, message.queue_id, message.queue_offset)
        for view in store.get_message(b"T1", 0, 0, 10, 1 << 20).views
        for message in decode_messages(view)
    ]
    assert found == [("T1", 0, at) for at in range(10) if at != 3]
    store.shutdown()


def test_messages_of_this_life_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    fill(store, COUNT, topics=1, queues=1)
    monkeypatch.setattr("rucola.store.read_check.ReadCheck.keep_sound", None)
    assert pulled(store) == list(range(COUNT))
    store.shutdown()
