"""A process that reads the files of a running broker must not get a record that is removed later.

The reader runs at every step of an append. A step is a line of the commit log's code or a disk call, because another
process may read between any two of them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.unit.store.stores import SEGMENT, config, message

from rucola.errors import DiskError, DiskFullError
from rucola.formats.checksum import crc32
from rucola.formats.message import CHECK_ALL
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.log import commit_log
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.results import PutMessageStatus
from rucola.testing.clock import ManualClock

ROADS: list[dict[str, Any]] = [{}, {"write_without_mmap": True}, {"transient_store_pool_enable": True}]


class Reader:
    """Reads the directory of a running store and remembers each record that it returned."""

    def __init__(self, path: Path) -> None:
        self.given: dict[int, bytes] = {}
        self.looks = 0
        self._store = OfflineStore(str(path))
        self._end = self._store.min_offset()

    def look(self) -> None:
        self.looks += 1
        store = self._store
        end = store.refresh()
        assert end >= self._end, "the end went back"
        position = self._end
        for offset in self.given:
            assert bytes(store.record_at(offset) or b"") == self.given[offset], f"the record at {offset} was taken back"
        while position < end:
            record = store.record_at(position)
            if record is None:
                position += SEGMENT - position % SEGMENT  # a blank
                continue
            self.given[position] = bytes(record)
            position += len(record)
        self._end = end

    @contextmanager
    def at_every_step(self) -> Iterator[None]:
        """Makes the reader read before each executed line of the module ``commit_log``."""

        def trace(frame: FrameType, kind: str, _: object) -> Any:
            if frame.f_code.co_filename != commit_log.__file__:
                return None
            if kind == "line":
                self.look()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def test_a_first_look_in_the_middle_of_a_record_does_not_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No watermark says yet where records with a checksum begin, so a new reader examines all records."""
    store = started(tmp_path, Disk())
    given: dict[int, bytes] = {}
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        reader = OfflineStore(str(tmp_path))
        position = 0
        while position < reader.end_offset():
            record = bytes(reader.record_at(position) or b"")
            assert given.setdefault(position, record) == record
            position += len(record)
        reader.close()

    def watched(data: memoryview) -> int:
        look()
        return crc32(data)

    monkeypatch.setattr(commit_log, "crc32", watched)
    for number in range(5):
        store.put_messages([message(number)])
        look()
    assert len(given) == 5 and looks == 15
    store.shutdown()
    look()


class Refusing(Files):
    """Files that cannot be mapped."""

    def map_file(self, path: str, size: int | None = None, writable: bool = True) -> FileMap:
        raise DiskError(path, "map", os.strerror(errno.EMFILE))


class Disk(Files):
    """A disk that lets the reader read between the parts of each write, and is full after ``room`` more bytes."""

    def __init__(self) -> None:
        self.reader: Reader | None = None
        self.room: int | None = None

    def map_file(self, path: str, size: int | None = None, writable: bool = True) -> FileMap:
        segment = super().map_file(path, size, writable)
        if "/commitlog/" in path and writable:
            write = segment.write

            def in_parts(position: int, content: bytes | memoryview) -> None:
                for start in range(0, len(content), 100):
                    if self.room is not None and self.room < start:
                        raise DiskFullError(path, "write", os.strerror(errno.ENOSPC))
                    write(position + start, content[start : start + 100])
                    if self.reader is not None:
                        self.reader.look()

            segment.write = in_parts  # type: ignore[method-assign]
        return segment


def started(path: Path, disk: Files, **options: Any) -> MessageStore:
    store = MessageStore(config(path, **options), disk, ManualClock())
    store.load()
    store.start()
    return store


def check(reader: Reader, store: MessageStore, path: Path) -> None:
    """Checks that the records that the reader got equal the stored ones, also after the store has stopped."""
    store.shutdown()
    reader.look()
    with_store = OfflineStore(str(path))
    assert reader.given
    for offset, record in reader.given.items():
        assert bytes(with_store.record_at(offset) or b"") == record
        row = with_store.log.row_at(offset, CHECK_ALL)
        assert row is not None


@pytest.mark.parametrize("options", ROADS)
def test_a_batch_that_rolls_is_not_seen_in_the_segment_it_does_not_fit_into(
    options: dict[str, Any], tmp_path: Path
) -> None:
    store = started(tmp_path, Files(), **options)
    while store.max_offset < SEGMENT - 6000:
        store.put_message(message(0, size=3000))
    reader = Reader(tmp_path)
    reader.look()
    with reader.at_every_step():
        results = store.put_messages([message(number, size=900) for number in range(9)])
    assert {result.status for result in results} == {PutMessageStatus.PUT_OK}
    assert results[0].physical_offset == SEGMENT and reader.looks > 20
    check(reader, store, tmp_path)


@pytest.mark.parametrize("options", ROADS)
def test_a_batch_with_a_message_that_cannot_be_stored_is_not_seen(options: dict[str, Any], tmp_path: Path) -> None:
    store = started(tmp_path, Files(), **options)
    store.put_message(message(0))
    reader = Reader(tmp_path)
    batch = [message(1), message(2), message(3, queue_id=70_000)]
    end = store.max_offset
    with reader.at_every_step():
        results = store.put_messages(batch)
    assert {result.status for result in results} == {PutMessageStatus.MESSAGE_ILLEGAL}
    assert store.max_offset == end and set(reader.given) <= {0}
    assert store.put_message(message(4)).queue_offset == 1
    reader.look()
    store.flush_soon()
    check(reader, store, tmp_path)


@pytest.mark.few(2)
@pytest.mark.parametrize("room", [50, 250, 450, 950])
def test_messages_written_by_one_call_that_finds_no_space_are_not_seen(room: int, tmp_path: Path) -> None:
    disk = Disk()
    store = started(tmp_path, disk, write_without_mmap=True)
    store.put_message(message(0))
    disk.reader = reader = Reader(tmp_path)
    disk.room = room
    with reader.at_every_step():
        results = store.put_messages([message(number, size=60) for number in range(1, 8)])
    assert {result.status for result in results} == {PutMessageStatus.SERVICE_NOT_AVAILABLE}
    assert set(reader.given) == {0}
    disk.room = None
    store._condition.try_again()
    with reader.at_every_step():
        assert store.put_message(message(8)).queue_offset == 1
    assert len(reader.given) == 2
    disk.reader = None
    check(reader, store, tmp_path)


@pytest.mark.parametrize("options", ROADS[:2])
def test_the_blank_record_of_a_segment_is_not_seen_before_the_next_one_is_sure(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a reader continued after a message that could not be stored, it would miss messages written there later."""
    store = started(tmp_path, Files(), **options)
    while store.max_offset < SEGMENT - 4000:
        store.put_message(message(0, size=3000))
    store._log._allocator._work()
    reader = Reader(tmp_path)
    reader.look()
    with reader.at_every_step(), monkeypatch.context() as patch:
        patch.setattr(store._log.segments, "_files", Refusing())
        assert store.put_message(message(1, size=4000)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    with reader.at_every_step():
        fits = store.put_message(message(2, size=500)).physical_offset
        assert fits < SEGMENT
        assert store.put_message(message(3, size=4000)).physical_offset == SEGMENT
    assert {fits, SEGMENT} <= set(reader.given)
    check(reader, store, tmp_path)
