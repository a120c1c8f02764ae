"""What the store may do: several causes at once, and threads that meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.stores import SEGMENT, config, message

from rucola.errors import DiskError, DiskFullError
from rucola.runtime.files import Files
from rucola.store.condition import StoreCondition
from rucola.store.log.allocate import SegmentAllocator
from rucola.store.log.multi_path import MultiPathMappedFileQueue
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus, StoreState
from rucola.testing.clock import ManualClock


@pytest.fixture
def told() -> list[StoreState]:
    return []


@pytest.fixture
def condition(told: list[StoreState]) -> StoreCondition:
    condition = StoreCondition(lambda: told.append(condition.state))
    condition.start()
    return condition


def test_messages_are_taken_again_when_the_last_cause_is_gone(
    condition: StoreCondition, told: list[StoreState]
) -> None:
    condition.space_is_gone("segment")
    condition.judged(True)
    assert condition.state is StoreState.DISK_FULL
    condition.segment_made()
    assert condition.state is StoreState.DISK_FULL and condition.missing == {"ratio"}
    condition.judged(False)
    assert condition.state is StoreState.RUNNING and not condition.missing
    assert told == [StoreState.DISK_FULL, StoreState.RUNNING]


def test_what_was_not_missing_is_not_told(condition: StoreCondition, told: list[StoreState]) -> None:
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


def test_a_segment_that_is_there_but_cannot_be_mapped_is_tried_again_by_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocating thread has nothing to do: nobody would ever say that there is space again."""
    store = MessageStore(config(tmp_path), Files(), ManualClock())
    store.load()
    store.start()

    def refuse(self: object, start: int) -> None:
        raise DiskError("segment", "map", f"no memory for {start}")

    with monkeypatch.context() as patch:
        patch.setattr(MultiPathMappedFileQueue, "append", refuse)
        assert fill_segment(store) is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.state is StoreState.RUNNING
    assert store.put_message(message(1, size=1000)).status is PutMessageStatus.PUT_OK
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
