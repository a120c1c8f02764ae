"""Which records of the revive topic the service reads, and which progress it records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rucola.broker.pop import revive_service
from rucola.broker.pop.revive_log import checkpoint_due_ms
from rucola.broker.pop.revive_queue import WaitingCheckpoint
from rucola.broker.pop.revive_service import DECIDED_AT_ONCE, READ_AT_ONCE, ReviveService
from rucola.formats.pop import PopAck, PopCheckpoint, PopKey


def checkpoint(number: int, pop_time_ms: int = 1_000) -> PopCheckpoint:
    return PopCheckpoint(PopKey("T", "cg", 0, number, pop_time_ms, "broker-a"), 500, (0,))


class Log:
    """A revive topic with one queue."""

    topic, queues = "revive", 1

    def __init__(self, count: int, low: int = 0) -> None:
        self.low, self.records = low, [checkpoint(number) for number in range(count)]

    def min_offset(self, _queue_id: int) -> int:
        return self.low

    def max_offset(self, _queue_id: int) -> int:
        return len(self.records)

    def read(self, _queue_id: int, queue_offset: int, _cold: object = None) -> tuple[PopCheckpoint, int]:
        assert queue_offset >= self.low, f"{queue_offset} has expired"
        return self.records[queue_offset], 2_000


class Offsets:
    """Stands in for the table of consumer offsets, and keeps the offsets that the service records."""

    def __init__(self, worked_off: int | None = None) -> None:
        self.worked_off = worked_off
        self.recorded: list[int] = []

    def query(self, *_key: object) -> int | None:
        return self.worked_off

    def commit(self, _group: str, _topic: str, _queue_id: int, offset: int) -> None:
        self.worked_off = offset
        self.recorded.append(offset)


def dispatched_store() -> Any:
    return SimpleNamespace(
        max_offset=700, confirm_offset=700, dispatch_behind_bytes=0, flushed_offset=699, queue_names=list
    )


class Scene:
    """The revive service with a given log. The broker does not know the group, so a checkpoint is completed without
    copies of its messages.
    """

    def __init__(self, log: Log, worked_off: int | None = None, delivered_until_ms: int = 10_000) -> None:
        self.store = dispatched_store()
        self.log = log
        self.delivered_until_ms = delivered_until_ms
        self.offsets = Offsets(worked_off)
        unknown: Any = SimpleNamespace(get=lambda _name: None, table={})
        revive_log: Any = log
        offsets: Any = self.offsets
        self.service = ReviveService(
            self.store,
            revive_log,
            offsets,
            unknown,
            unknown,
            lambda: None,
            lambda _cold: self.delivered_until_ms,
            False,
        )


@pytest.mark.parametrize(
    ("delivered_until_ms", "crashed_since_ms", "due_ms", "since_ms"),
    [
        (10_000, None, 12_000, 10_000),
        (10_000, 8_000, 12_000, 8_000),
        (10_000, 12_000, 14_000, 10_000),
        (10_000, 8_000, 5_000, 5_000),
    ],
)
def test_finished_checkpoints_are_looked_for_since_the_oldest_that_may_appear_again(
    monkeypatch: pytest.MonkeyPatch, delivered_until_ms: int, crashed_since_ms: int | None, due_ms: int, since_ms: int
) -> None:
    asked: list[int] = []

    def newest(_store: object, _topic: bytes, _queue_id: int, since: int) -> list[Any]:
        asked.append(since)
        return []

    monkeypatch.setattr(revive_service, "newest_messages", newest)
    log = Log(1)
    log.records = [checkpoint(0, due_ms - checkpoint_due_ms(checkpoint(0, 0)))]
    Scene(log, delivered_until_ms=delivered_until_ms).service.load(crashed_since_ms)
    assert asked == [since_ms]


@pytest.fixture
def nothing_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revive_service, "newest_messages", lambda *_: [])


@pytest.mark.usefixtures("nothing_finished")
def test_expired_records_are_passed_over() -> None:
    log = Log(5)
    scene = Scene(log)
    scene.service.load(None)
    log.low = 3
    assert not scene.service.work()
    scene.store.flushed_offset = 700
    scene.service.settle()
    assert scene.offsets.recorded == [4]


@pytest.mark.usefixtures("nothing_finished")
def test_nothing_is_completed_before_all_records_are_read() -> None:
    scene = Scene(Log(2 * READ_AT_ONCE + 1))
    scene.service.load(None)
    scene.store.flushed_offset = 700
    assert scene.service.work()
    assert scene.offsets.recorded == []
    while scene.service.work():
        pass
    assert scene.offsets.recorded[-1] == 2 * READ_AT_ONCE


@pytest.mark.usefixtures("nothing_finished")
def test_a_call_reads_and_completes_a_limited_number() -> None:
    """Before the fix, a call completed everything that was due, and all clients waited for more than a second."""
    log = Log(READ_AT_ONCE)
    scene = Scene(log)
    scene.service.load(None)
    scene.store.flushed_offset = 700
    assert scene.service.work()
    completed = scene.offsets.recorded[0] + 1
    assert completed == DECIDED_AT_ONCE // 2, "a checkpoint and its message count as two"
    log.records += [checkpoint(number) for number in range(READ_AT_ONCE, 3 * READ_AT_ONCE)]
    before = scene.service._queues[0].next_offset
    assert scene.service.work()
    assert scene.service._queues[0].next_offset - before == READ_AT_ONCE + 1
    while scene.service.work():
        pass
    assert scene.offsets.recorded[-1] == 3 * READ_AT_ONCE - 1


@pytest.mark.usefixtures("nothing_finished")
def test_checkpoints_that_cannot_be_completed_wait_for_the_next_interval() -> None:
    scene = Scene(Log(2))
    scene.service.load(None)
    large = PopCheckpoint(PopKey("T", "cg", 0, 0, 1_000, "broker-a"), 500, tuple(range(2 * DECIDED_AT_ONCE)))
    scene.log.records[0] = large
    tried: list[PopKey] = []

    def refused(waiting: WaitingCheckpoint, _cold: object) -> bool:
        tried.append(waiting.checkpoint.key)
        return False

    scene.service._revive = refused  # type: ignore[method-assign]
    assert not scene.service.work(), "otherwise the work would be repeated without a pause"
    assert tried == [large.key]
    del scene.service._revive
    assert scene.service.work() and not scene.service.work()


@pytest.mark.usefixtures("nothing_finished")
def test_after_a_change_of_the_clock_decisions_begin_anew() -> None:
    scene = Scene(Log(READ_AT_ONCE), delivered_until_ms=10_000)
    scene.service.load(None)
    assert scene.service.work()
    scene.delivered_until_ms = 20_000
    scene.log.records.append(checkpoint(READ_AT_ONCE, 15_000))
    scene.service.look_again()
    while scene.service.work():
        pass
    assert scene.service._queues[0].worked_off() == READ_AT_ONCE


@pytest.mark.usefixtures("nothing_finished")
def test_progress_is_recorded_once_and_when_the_copies_are_on_the_disk() -> None:
    scene = Scene(Log(2))
    scene.service.load(None)
    scene.service.work()
    assert scene.offsets.recorded == []
    scene.store.flushed_offset = 700
    scene.service.settle()
    assert scene.offsets.recorded == [1]
    scene.offsets.worked_off = None
    scene.service.work()
    assert scene.offsets.recorded == [1]


class OneOfTwoQueues(Log):
    """A revive topic whose second queue is empty."""

    queues = 2

    def max_offset(self, queue_id: int) -> int:
        return 0 if queue_id else len(self.records)


@pytest.mark.usefixtures("nothing_finished")
def test_all_queues_are_read_before_a_decision() -> None:
    scene = Scene(OneOfTwoQueues(READ_AT_ONCE))
    scene.service.load(None)
    scene.store.flushed_offset = 700
    assert scene.service.work()
    assert scene.offsets.recorded == []


@pytest.mark.usefixtures("nothing_finished")
def test_acknowledgements_without_checkpoint_do_not_hold_up_the_queue_for_ever() -> None:
    log = Log(2)
    ack: Any = PopAck(PopKey("T", "cg", 0, 77, 1_000, "broker-a"), (77,))
    log.records.insert(0, ack)
    scene = Scene(log)
    scene.service.load(None)
    scene.store.flushed_offset = 700
    assert not scene.service.work()
    assert scene.offsets.recorded == [2]
