"""The power fails at every step of a broker's pops, delays and transactions: all promises are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.crash.broker_promises import Broken, BrokerExplorer
from tests.crash.broker_workloads import WORKLOADS

from rucola.broker.pop.pop_offsets import PopOffsets
from rucola.broker.pop.revive_log import ReviveLog
from rucola.broker.pop.revive_service import ReviveService
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.broker.timer.timer_message_service import TimerMessageService
from rucola.broker.transaction.half_messages import HalfMessages
from rucola.broker.when_safe import WhenSafe
from rucola.store.message_store import MessageStore

SEED = 5


def explore(name: str, sync: bool, every: int = 1, quick: bool = False) -> BrokerExplorer:
    explorer = BrokerExplorer(sync, SEED, 0, every, quick)
    WORKLOADS[name](explorer.clients())
    return explorer


@pytest.mark.few
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_power_cuts(name: str, sync: bool) -> None:
    assert explore(name, sync, every=83 if sync else 97).states > 1


def answered_before_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: an acknowledgement gets its response while it is only in memory."""
    monkeypatch.setattr(WhenSafe, "__call__", lambda _, __, ___, answer, ____: answer)


def answered_and_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: an acknowledgement is not written to the log at all."""
    monkeypatch.setattr(ReviveLog, "put_ack", lambda *_: 0)


def popped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: after a crash, a group continues to pop at the offset in the file, not after its last checkpoint."""
    monkeypatch.setattr(PopOffsets, "recover", lambda *_: None)


def popped_before_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: a popped message counts as consumed before its checkpoint is on the disk."""
    advance = PopOffsets.advance
    monkeypatch.setattr(PopOffsets, "advance", lambda self, queue, offset, _: advance(self, queue, offset, 0))


def revived_before_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: a checkpoint counts as completed before the copies of its messages are on the disk."""
    settle = ReviveService.settle

    def at_once(self: ReviveService) -> None:
        self._done = type(self._done)([(0, queue_id, worked_off) for _, queue_id, worked_off in self._done])
        settle(self)

    monkeypatch.setattr(ReviveService, "settle", at_once)


def finished_only_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: after a clean stop, the next process does not know which checkpoints were completed. An earlier
    version of our broker had this defect; workload ``killed`` found it.
    """
    load = ReviveService.load

    def forget(self: ReviveService, crashed_since_ms: int | None) -> None:
        load(self, crashed_since_ms)
        if crashed_since_ms is None:
            for queue in self._queues:
                queue.finished = set()

    monkeypatch.setattr(ReviveService, "load", forget)


def ends_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: the outcome of a half message is looked up only in the op topic, which is written later."""

    def none(*_: Any) -> Iterator[memoryview]:
        return iter(())

    monkeypatch.setattr(MessageStore, "records_of_kind", none)


def half_progress_before_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: half messages count as finished before their outcome is on the disk."""
    write_ops = HalfMessages.write_ops

    def at_once(self: HalfMessages) -> None:
        write_ops(self)
        self._marks = type(self._marks)([(0, half, op) for _, half, op in self._marks])
        self.settle()

    monkeypatch.setattr(HalfMessages, "write_ops", at_once)


def delivered_before_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: delayed messages count as delivered before they are on the disk."""
    persist = ScheduleMessageService.persist

    def at_once(self: ScheduleMessageService) -> None:
        self._unsafe = type(self._unsafe)([(0, level, offset) for _, level, offset in self._unsafe])
        persist(self)

    monkeypatch.setattr(ScheduleMessageService, "persist", at_once)


def early_after_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: after start-up, messages are delivered before they are due."""
    load = TimerMessageService.load

    def behind(self: TimerMessageService) -> None:
        load(self)
        if self.pending():
            now_ms = self._wall_ms
            self._wall_ms = lambda: now_ms() + 3000

    monkeypatch.setattr(TimerMessageService, "load", behind)


DEFECTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, bool, int, str]] = [
    (answered_before_the_disk, "pop_and_ack", True, 2, "acknowledged and came again"),
    (answered_and_not_stored, "pop_and_ack", False, 2, "acknowledged and came again"),
    (popped_again, "pop_and_ack", True, 2, "came"),
    (popped_before_the_disk, "behind", False, 2, "lost"),
    (revived_before_the_disk, "behind", False, 2, "lost"),
    (finished_only_after_a_crash, "killed", True, 5, "came at"),
    (ends_forgotten, "transactions", True, 2, "half message"),
    (half_progress_before_the_disk, "transactions", False, 2, "half message"),
    (delivered_before_the_disk, "delays", False, 2, "lost"),
    (early_after_a_start, "delays", True, 2, "is due"),
]
"""Each defect, its workload, whether syncs are waited for, n for a power cut at one in n steps, and what is noticed."""


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("defect", "name", "sync", "every", "what"), DEFECTS, ids=[each[0].__name__ for each in DEFECTS]
)
def test_planted_defects_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
    defect: Callable[[pytest.MonkeyPatch], None],
    name: str,
    sync: bool,
    every: int,
    what: str,
) -> None:
    defect(monkeypatch)
    with pytest.raises(Broken, match=what):
        explore(name, sync, every=every, quick=True)
