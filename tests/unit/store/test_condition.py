"""The state of the store with several causes at once, and with threads that run concurrently."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import SEGMENT, config, message, opened

from rucola.errors import DiskError, DiskFullError, TooManyFilesError
from rucola.runtime import file_map
from rucola.runtime.disk_calls import disk_error
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.condition import StoreCondition
from rucola.store.log.allocate import SegmentAllocator
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus, StoreState
from rucola.testing.clock import ManualClock


@pytest.fixture
def told() -> list[StoreState]:
    return []


@pytest.fixture
def condition(told: list[StoreState]) -> StoreCondition:
    condition = StoreCondition()
    condition.listen(lambda: told.append(condition.state))
    condition.start()
    return condition


def test_messages_are_taken_again_when_the_last_cause_is_gone(
    condition: StoreCondition, told: list[StoreState], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    condition.space_is_gone("segment")
    condition.judged(True)
    assert condition.state is StoreState.DISK_FULL
    condition.segment_made()
    assert condition.state is StoreState.DISK_FULL and condition.missing == {"ratio"}
    condition.judged(False)
    assert condition.state is StoreState.RUNNING and not condition.missing
    assert told == [StoreState.DISK_FULL, StoreState.RUNNING]
    assert [(record.levelname, vars(record)["rucola_event"]) for record in caplog.records] == [
        ("ERROR", "disk full, store is read-only"),
        ("INFO", "space is back, store takes messages again"),
    ]


def test_a_recovery_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = opened(tmp_path)
    assert store.put_message(message(0)).status is PutMessageStatus.PUT_OK
    store.shutdown()
    (tmp_path / "abort").touch()  # as after a kill
    opened(tmp_path).shutdown()
    loaded = [
        vars(record)["rucola_fields"] for record in caplog.records if vars(record)["rucola_event"] == "store loaded"
    ]
    assert [(fields["unclean"], fields["records_checked"]) for fields in loaded] == [(False, 0), (True, 1)]


def test_space_that_was_not_missing_is_not_told(condition: StoreCondition, told: list[StoreState]) -> None:
    condition.judged(False)
    condition.segment_made()
    condition.try_again()
    assert told == []


def test_an_error_is_left_by_a_restart_only(condition: StoreCondition) -> None:
    condition.space_is_gone("write")
    assert condition.fail() and not condition.fail()
    condition.try_again()
    condition.space_is_gone("segment")
    condition.segment_made()
    assert condition.state is StoreState.IO_ERROR
    assert condition.stop() and not condition.stop()
    assert condition.state is StoreState.STOPPED


def test_somebody_is_told_to_dispatch_until_there_is_space(condition: StoreCondition, told: list[StoreState]) -> None:
    condition.space_is_gone("dispatch")
    for _ in range(2):
        condition.try_again()
    assert told == [StoreState.DISK_FULL] * 2
    condition.space_is_back("dispatch")
    condition.try_again()
    assert told[2:] == [StoreState.RUNNING]


def fill_segment(store: MessageStore) -> PutMessageStatus:
    for number in range(SEGMENT // 1000 + 1):
        status = store.put_message(message(number, size=1000)).status
        if status is not PutMessageStatus.PUT_OK:
            break
    return status


class CannotMap(Files):
    """Files on which segments of the log cannot be opened or mapped while ``error`` is set."""

    def __init__(self) -> None:
        self.error = 0
        self.at = ""

    def map_file(self, path: str, size: int | None = None, writable: bool = True) -> FileMap:
        with pytest.MonkeyPatch.context() as patch:
            if self.error and "/commitlog/" in path:
                patch.setattr(file_map.os if self.at == "open" else file_map.mmap, self.at, self._refuse)
            return super().map_file(path, size, writable)

    def _refuse(self, *_: object, **__: object) -> None:
        raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("options", [{}, {"write_without_mmap": True}, {"transient_store_pool_enable": True}])
@pytest.mark.parametrize(("at", "error"), [("open", errno.EMFILE), ("open", errno.EIO), ("mmap", errno.ENOMEM)])
def test_a_segment_that_is_there_but_cannot_be_mapped_is_tried_again_by_the_next_append(
    at: str, error: int, options: dict[str, Any], tmp_path: Path
) -> None:
    """Each append tries again to map a segment. The allocating thread has nothing to do, so it would never notice that
    segments can be mapped again.
    """
    disk = CannotMap()
    store = MessageStore(config(tmp_path, **options), disk, ManualClock())
    store.load()
    store.start()
    disk.error, disk.at = error, at
    assert fill_segment(store) is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.state is StoreState.RUNNING
    end = store.max_offset
    for number in range(2):
        assert store.put_message(message(number, size=1000)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert [file.start for file in store._log.segments.files] == [0]
    assert store.max_offset == end
    disk.error = 0
    assert store.put_message(message(1, size=1000)).physical_offset == SEGMENT
    assert [file.start for file in store._log.segments.files] == [0, SEGMENT]
    assert fill_segment(store) is PutMessageStatus.PUT_OK
    store.flush_soon()
    store.shutdown()
    store = opened(tmp_path)
    assert not store.recovered
    assert [file.start for file in store._log.segments.files] == [0, SEGMENT, 2 * SEGMENT]
    store.shutdown()


def test_a_segment_that_could_not_be_mapped_before_a_clean_stop_is_made_again(tmp_path: Path) -> None:
    """A segment that could not be mapped leaves an empty file. If it stayed in the list of segments, no later segment
    could be added.
    """
    disk = CannotMap()
    store = MessageStore(config(tmp_path), disk, ManualClock())
    store.load()
    store.start()
    disk.error, disk.at = errno.ENOMEM, "mmap"
    assert fill_segment(store) is PutMessageStatus.SERVICE_NOT_AVAILABLE
    disk.error = 0
    store.shutdown()
    store = opened(tmp_path)
    assert not store.recovered
    assert fill_segment(store) is PutMessageStatus.PUT_OK
    assert [file.start for file in store._log.segments.files] == [0, SEGMENT, 2 * SEGMENT]
    store.shutdown()


def test_a_segment_made_between_the_refusal_and_its_note_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MessageStore(config(tmp_path), Files(), ManualClock())
    store.load()
    store.start()
    note = StoreCondition.space_is_gone

    def made_meanwhile(self: StoreCondition, cause: str, error: DiskFullError | None = None) -> None:
        store._log._allocator._failed = False
        note(self, cause, error)  # type: ignore[arg-type]

    def refuse(self: SegmentAllocator, start: int) -> None:
        self._failed = True
        raise DiskFullError("segment", "allocate", f"no space for {start}")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentAllocator, "take", refuse)
        patch.setattr(StoreCondition, "space_is_gone", made_meanwhile)
        assert fill_segment(store) is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.state is StoreState.RUNNING
    assert store.put_message(message(1, size=1000)).status is PutMessageStatus.PUT_OK
    store.shutdown()


class FewDescriptors(Files):
    """Files of a process that may map only ``room`` more segments of queues: beyond, ``at`` fails with ``error``."""

    def __init__(self, at: str = "open", error: int = errno.EMFILE) -> None:
        self.at, self.error = at, error
        self.room = 1000
        self.mapped: set[FileMap] = set()

    def map_file(self, path: str, size: int | None = None, writable: bool = True) -> FileMap:
        if "/consumequeue/" not in path:
            return super().map_file(path, size, writable)
        self.mapped = {segment for segment in self.mapped if segment._mapped}
        with pytest.MonkeyPatch.context() as patch:
            if len(self.mapped) >= self.room:
                patch.setattr(file_map.os if self.at == "open" else file_map.mmap, self.at, self._refuse)
            segment = super().map_file(path, size, writable)
        self.mapped.add(segment)
        return segment

    def _refuse(self, *_: object, **__: object) -> None:
        raise OSError(self.error, os.strerror(self.error))


LACKS = [("open", errno.EMFILE), ("open", errno.ENFILE), ("open", errno.ENOMEM), ("mmap", errno.ENOMEM)]


def started_with(disk: Files, path: Path) -> MessageStore:
    store = MessageStore(config(path), disk, ManualClock())
    store.load()
    store.start()
    return store


@pytest.mark.parametrize(("at", "error"), LACKS)
def test_messages_reach_their_queues_once_there_are_descriptors_and_memory(
    at: str, error: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A lack of memory is not a broken disk: the store takes messages all the time, and delivers them later."""
    disk = FewDescriptors(at, error)
    store = started_with(disk, tmp_path)
    assert store.put_message(message(0, queue_id=0)).status is PutMessageStatus.PUT_OK
    disk.room = 0
    for number in range(1, 4):
        assert store.put_message(message(number, queue_id=number)).status is PutMessageStatus.PUT_OK
        assert store.dispatch() == 0
    assert store.state is StoreState.RUNNING
    assert store.max_queue_offset(b"TopicTest", 0) == 0
    told = [vars(record)["rucola_event"] for record in caplog.records if "is left" in record.getMessage()]
    descriptors = "no file descriptor is left, messages reach their queues later; raise the limit of open files"
    memory = "no memory is left to map queues, messages reach them later"
    assert told == [memory if error == errno.ENOMEM else descriptors]
    disk.room = 1000
    assert store.dispatch() == 4
    assert [store.max_queue_offset(b"TopicTest", queue_id) for queue_id in range(4)] == [1] * 4
    store.shutdown()
    store = opened(tmp_path)
    assert not store.recovered
    store.shutdown()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOENT, errno.EACCES])
def test_other_errors_of_a_queue_end_the_appends(error: int, tmp_path: Path) -> None:
    disk = FewDescriptors("open", error)
    store = started_with(disk, tmp_path)
    disk.room = 0
    assert store.put_message(message(0)).status is PutMessageStatus.PUT_OK
    assert store.dispatch() == 0
    assert store.state is StoreState.IO_ERROR
    disk.room = 1000
    store.shutdown()


@pytest.mark.parametrize("operation", ["sync", "write", "replace", "rename"])
def test_a_write_or_sync_without_memory_is_not_repeated(operation: str) -> None:
    """Nobody knows then what is on the disk."""
    error = disk_error("file", operation, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    assert type(error) is DiskError


@pytest.mark.parametrize(("at", "error"), LACKS)
def test_queues_that_are_not_in_use_give_their_descriptors(at: str, error: int, tmp_path: Path) -> None:
    disk = FewDescriptors(at, error)
    disk.room = 8
    store = started_with(disk, tmp_path)
    for number in range(40):
        assert store.put_message(message(number, queue_id=number % 20)).status is PutMessageStatus.PUT_OK
        assert store.dispatch() == 1
        assert store.dispatch_behind_bytes == 0
    assert [store.max_queue_offset(b"TopicTest", queue_id) for queue_id in range(20)] == [2] * 20
    store.shutdown()
    store = opened(tmp_path)
    assert not store.recovered
    store.shutdown()


def test_a_dispatch_is_asked_for_until_there_are_descriptors(condition: StoreCondition, told: list[StoreState]) -> None:
    condition.resources_are_gone(TooManyFilesError("queue", "map", os.strerror(errno.EMFILE)))
    for _ in range(2):
        condition.try_again()
    assert told == [StoreState.RUNNING] * 2
    condition.resources_are_back()
    condition.try_again()
    assert len(told) == 2
