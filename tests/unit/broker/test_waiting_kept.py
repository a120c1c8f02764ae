"""Messages that wait inside the broker outlive the removal of old segments: by age and for lack of space, over restarts
and kills.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.crash import broker_life
from tests.unit.broker.stepped import STEP_MS, SteppedBroker
from tests.unit.broker.test_wake_ups import ack, bodies, pop, revive

from rucola.broker.timer import timer_mover
from rucola.errors import DiskError
from rucola.protocol.codes import RequestCode
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState
from rucola.testing.crash_states import crash_states
from rucola.testing.manual_worker import ManualWorker

FOUND, COMMIT = 0, 8
SEGMENT = 65536
SHORT, FULL = 86, 92
"""Percent of the disk in use: above the ratio of forced removal, and above the ratio from which sends are refused."""
Event = Callable[[SteppedBroker], None]


def nothing(_broker: SteppedBroker) -> None:
    """Lets nothing happen."""


EVENTS = pytest.mark.parametrize("event", [nothing, SteppedBroker.restart, SteppedBroker.kill])


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def broker(request: pytest.FixtureRequest) -> SteppedBroker:
    return SteppedBroker(request.param)


def fill(broker: SteppedBroker, segments: int = 5) -> None:
    """Sends other messages."""
    end = broker.broker.store.max_offset + segments * SEGMENT
    while broker.broker.store.max_offset < end:
        assert broker.send("D", bytes(3000)).code == FOUND
    broker.passes(STEP_MS)


def expire(broker: SteppedBroker, used: int = 10, looks: int = 1) -> int:
    """Lets the maintenance thread look for old segments; on the simulated disk, all files are old. Returns the offset
    where the log begins then.
    """
    broker.disk.used_percent = used
    worker = broker.broker.store._keeper._worker
    assert isinstance(worker, ManualWorker)
    for _ in range(looks):
        broker.broker.store.expire_now()
        for _ in range(3):
            worker.run()
            broker.broker.store.dispatch()
            broker.passes(10 * STEP_MS)
    return broker.broker.store.min_offset


def everything(broker: SteppedBroker, topic: str = "T") -> list[bytes]:
    return [bytes(message.body) for message in broker.messages(topic.encode())]


# -- one of each kind -------------------------------------------------------------------------------------------------


def send_timed(broker: SteppedBroker) -> Callable[[], list[bytes]]:
    broker.send(body=b"waits", TIMER_DELAY_MS="60000")
    return lambda: everything(broker)


def send_delayed(broker: SteppedBroker) -> Callable[[], list[bytes]]:
    broker.send(body=b"waits", DELAY="3")
    return lambda: everything(broker)


def send_half(broker: SteppedBroker) -> Callable[[], list[bytes]]:
    half = broker.half(body=b"waits")

    def end() -> list[bytes]:
        if not everything(broker):
            assert broker.end(half, COMMIT).code == FOUND
            broker.passes(STEP_MS)
        return everything(broker)

    return end


def send_and_pop(broker: SteppedBroker) -> Callable[[], list[bytes]]:
    broker.send(body=b"waits")
    broker.passes(STEP_MS)
    assert bodies(pop(broker, invisible_ms=50_000)) == [b"waits"]

    def revived() -> list[bytes]:
        revive(broker)
        return everything(broker, "%RETRY%cg_T")

    return revived


KINDS = pytest.mark.parametrize("send", [send_timed, send_delayed, send_half, send_and_pop])
MOVED = pytest.mark.parametrize("send", [send_timed, send_half])


@pytest.mark.few
@EVENTS
@KINDS
def test_old_segments_stay_while_a_message_waits_in_them(
    broker: SteppedBroker, send: Callable[[SteppedBroker], Callable[[], list[bytes]]], event: Event
) -> None:
    """Before, the segment went, and with it a message whose send had been acknowledged."""
    arrived = send(broker)
    broker.passes(1100)
    fill(broker)
    assert expire(broker) == 0
    event(broker)
    assert expire(broker) == 0
    broker.passes(70_000)
    assert arrived() == [b"waits"]
    check(broker)
    broker.passes(11_000)
    broker.persist()
    assert expire(broker, looks=2) >= 3 * SEGMENT, "nothing waits any more"


@pytest.mark.few
@EVENTS
@MOVED
def test_for_lack_of_space_waiting_messages_move_and_the_log_is_shortened(
    broker: SteppedBroker,
    send: Callable[[SteppedBroker], Callable[[], list[bytes]]],
    event: Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timer_mover, "MOVE_AGAIN_MS", 0)
    arrived = send(broker)
    broker.passes(1100)
    fill(broker)
    expire(broker, SHORT)
    broker.passes(2000)
    check(broker)
    broker.passes(2000)
    broker.persist()
    assert expire(broker, SHORT, 2) >= 4 * SEGMENT
    event(broker)
    assert broker.broker.store.state is StoreState.RUNNING
    broker.passes(70_000)
    assert arrived() == [b"waits"]


def check(broker: SteppedBroker) -> None:
    """Runs a round of transaction checks."""
    services = broker.broker.services
    services.halves.scan()
    running = broker.broker.running
    asyncio.run(running.transaction_checks._check(running.transactions, services.cold_reads))
    broker.passes(STEP_MS)


# -- moving timed messages --------------------------------------------------------------------------------------------


@pytest.fixture
def movable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets messages move soon after they were stored; the wheel of a stepped broker holds no hours."""
    monkeypatch.setattr(timer_mover, "MOVE_AGAIN_MS", 1000)


def shorten(broker: SteppedBroker) -> int:
    """Shortens the log for lack of space until nothing more can go."""
    for _ in range(3):
        expire(broker, SHORT)
        broker.passes(1000)
        broker.persist()
    return expire(broker, SHORT)


@pytest.mark.usefixtures("movable")
@pytest.mark.parametrize("sync", [False, True])
def test_moved_messages_come_once_in_time_and_recalled_ones_never(
    sync: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_life, "BROKER", replace(broker_life.BROKER, recall_message_enable=True))
    broker = SteppedBroker(sync)
    delays = (20_000, 30_000, 30_000, 40_000)
    sends = [
        broker.send(body=b"%d" % number, TIMER_DELAY_MS=str(delay), UNIQ_KEY=f"U{number}")
        for number, delay in enumerate(delays)
    ]
    assert sends[2].answer is not None
    recall = {"topic": "T", "recallHandle": sends[2].answer.ext_fields["recallHandle"], "producerGroup": "pg"}
    broker.passes(1100)
    assert broker.request(RequestCode.RECALL_MESSAGE, recall).code == FOUND
    broker.passes(1500)
    fill(broker, 7)
    began_ms = broker.clock.wall_ms()
    assert shorten(broker) >= 6 * SEGMENT
    service = broker.broker.services.timers.service
    assert service.pending() == 3 + 1 - 1, "the recall lowers the number, and so would a message that is counted twice"
    assert everything(broker) == []
    broker.passes(18_000 - (broker.clock.wall_ms() - began_ms))
    broker.passes(2000)
    assert everything(broker) == [b"0"]
    broker.passes(10_000)
    assert everything(broker) == [b"0", b"1"]
    broker.passes(10_000)
    assert everything(broker) == [b"0", b"1", b"3"]
    assert service.pending() == 0
    broker.passes(30_000)
    assert everything(broker) == [b"0", b"1", b"3"]
    assert "cannot be read" not in caplog.text


@pytest.mark.usefixtures("movable")
def test_a_restart_after_the_move_delivers_nothing_twice(broker: SteppedBroker) -> None:
    """The segment with the old record is still there: the lack of space has ended meanwhile."""
    broker.send(body=b"waits", TIMER_DELAY_MS="30000")
    broker.passes(2500)
    fill(broker)
    expire(broker, SHORT)
    broker.passes(1000)
    broker.persist()
    assert broker.broker.store.max_queue_offset(b"rmq_sys_wheel_timer", 0) == 2
    broker.restart()
    broker.passes(40_000)
    assert everything(broker) == [b"waits"]


@pytest.mark.few
@pytest.mark.usefixtures("movable")
@pytest.mark.parametrize("moment", range(12))
def test_a_kill_during_the_move_loses_nothing(broker: SteppedBroker, moment: int) -> None:
    for number in range(4):
        broker.send(body=b"%d" % number, TIMER_DELAY_MS=str(25_000 + 1000 * number))
    broker.passes(2500)
    fill(broker)
    broker.disk.used_percent = SHORT
    worker = broker.broker.store._keeper._worker
    assert isinstance(worker, ManualWorker)
    broker.broker.store.expire_now()
    worker.run()
    for step in range(moment):
        broker.broker.store.dispatch()
        broker.passes(20 * STEP_MS)
        if step % 3 == 2:
            broker.persist()
            broker.broker.store.expire_now()
            worker.run()
    broker.kill()
    broker.passes(40_000)
    assert sorted(set(everything(broker))) == [b"0", b"1", b"2", b"3"]


@pytest.mark.usefixtures("movable")
def test_a_power_cut_during_the_move_loses_nothing() -> None:
    """Every state in which the disk can be after the cut."""
    broker = SteppedBroker(sync_flush=True)
    broker.disk.versions = True
    for number in range(3):
        broker.send(body=b"%d" % number, TIMER_DELAY_MS=str(25_000 + 1000 * number))
    broker.passes(2500)
    fill(broker, 3)
    broker.persist()
    states = 0
    for _ in range(5):
        expire(broker, SHORT)
        broker.passes(500)
        for state in crash_states(broker.disk, Random(1), 24, 8):
            after = SteppedBroker.on(state.image, broker.clock.wall_ms())
            after.passes(40_000)
            assert sorted(set(everything(after))) == [b"0", b"1", b"2"], state.choice
            states += 1
        broker.persist()
    assert states > 20
    assert expire(broker, SHORT) >= 2 * SEGMENT


def test_an_ended_half_message_that_moved_is_known_by_its_key_only(broker: SteppedBroker) -> None:
    """Its producer names the record that was removed. Another group or another key does not end the transaction."""
    half = broker.half(body=b"waits")
    broker.passes(1100)
    fill(broker)
    expire(broker, SHORT)
    check(broker)
    broker.passes(1000)
    broker.persist()
    assert expire(broker, SHORT) >= 4 * SEGMENT
    assert half.answer is not None
    fields = {"producerGroup": "pg", "tranStateTableOffset": 0, "commitLogOffset": 0, "commitOrRollback": COMMIT}
    for wrong in ({}, {"transactionId": "other"}, {"transactionId": "half of T", "producerGroup": "other"}):
        assert broker.request(RequestCode.END_TRANSACTION, fields | wrong).code != FOUND
    assert broker.end(half, COMMIT).code == FOUND
    assert broker.end(half, COMMIT).code != FOUND
    broker.passes(100)
    assert everything(broker) == [b"waits"]
    check(broker)
    broker.restart()
    assert not broker.broker.services.halves.pending


def test_a_message_that_was_stored_within_the_hour_is_not_moved(broker: SteppedBroker) -> None:
    """Messages that fill the disk would otherwise be written again and again."""
    broker.send(body=b"waits", TIMER_DELAY_MS="30000")
    broker.passes(2500)
    fill(broker)
    assert shorten(broker) == 0
    assert broker.broker.store.max_queue_offset(b"rmq_sys_wheel_timer", 0) == 1
    broker.passes(30_000)
    assert everything(broker) == [b"waits"]


@pytest.mark.usefixtures("movable")
def test_a_message_that_is_due_soon_is_delivered_and_not_moved(broker: SteppedBroker) -> None:
    broker.send(body=b"waits", TIMER_DELAY_MS="5000")
    broker.passes(3800)
    fill(broker)
    assert expire(broker, SHORT) == 0
    broker.passes(3000)
    assert everything(broker) == [b"waits"]
    broker.persist()
    assert expire(broker, SHORT) >= 4 * SEGMENT
    assert broker.broker.store.max_queue_offset(b"rmq_sys_wheel_timer", 0) == 1


@pytest.mark.usefixtures("movable")
def test_a_move_that_the_store_refuses_is_tried_again(broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.send(body=b"waits", TIMER_DELAY_MS="30000")
    broker.passes(2500)
    fill(broker)
    mover = broker.broker.services.timers.service._mover
    monkeypatch.setattr(mover, "_put", lambda messages: 0)
    assert shorten(broker) == 0
    monkeypatch.undo()
    monkeypatch.setattr(timer_mover, "MOVE_AGAIN_MS", 1000)
    assert shorten(broker) >= 4 * SEGMENT
    broker.passes(30_000)
    assert everything(broker) == [b"waits"]


@pytest.mark.usefixtures("movable")
def test_messages_of_a_deleted_topic_are_not_moved(broker: SteppedBroker) -> None:
    broker.send(body=b"waits", TIMER_DELAY_MS="30000")
    broker.passes(2500)
    fill(broker)
    assert broker.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == FOUND
    assert shorten(broker) >= 4 * SEGMENT
    assert broker.broker.store.max_queue_offset(b"rmq_sys_wheel_timer", 0) == 1
    assert broker.broker.services.timers.service.pending() == 0


# -- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.few
@KINDS
@pytest.mark.parametrize("forcibly", [True, False])
def test_only_a_disk_on_which_nothing_can_be_stored_costs_waiting_messages(
    broker: SteppedBroker,
    send: Callable[[SteppedBroker], Callable[[], list[bytes]]],
    forcibly: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    arrived = send(broker)
    broker.passes(1100)
    fill(broker)
    retention = broker.broker.store._retention
    retention._config = replace(retention._config, clean_file_forcibly_enable=forcibly)
    caplog.set_level(logging.CRITICAL)
    begin = expire(broker, FULL)
    assert "waiting messages are removed" in caplog.text if forcibly else not caplog.text
    assert begin == (5 * SEGMENT if forcibly else 0)
    expire(broker, 10)
    assert broker.broker.store.state is StoreState.RUNNING
    if forcibly:  # the lost messages no longer hold the log
        fill(broker)
        broker.persist()
        assert expire(broker, looks=2) > begin
        return
    broker.passes(70_000)
    assert arrived() == [b"waits"]


# -- costs and defects ------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
def test_units_that_are_delivered_are_passed_once(broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the oldest waiting message does not walk through all messages each time."""
    for _ in range(300):
        broker.send(TIMER_DELAY_MS="2000")
    broker.send(TIMER_DELAY_MS="100000")
    for _ in range(300):
        broker.send(TIMER_DELAY_MS="2000")
    broker.passes(8000)
    broker.persist()
    timers = broker.broker.services.timers
    log = timers._timers._log
    seen: list[int] = []
    units_from = log.units_from
    monkeypatch.setattr(log, "units_from", lambda at, count: seen.append(at) or units_from(at, count))
    first = timers.needed_from()
    assert first is not None
    walked = len(seen)
    for _ in range(20):
        assert timers.needed_from() == first
    assert len(seen) == walked + 20
    assert set(seen[walked:]) == {seen[-1]}


def test_a_holder_that_fails_keeps_the_log_and_dispatch_goes_on(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> int:
        raise DiskError("queue", "read", "no")

    fill(broker)
    monkeypatch.setattr(broker.broker.services.schedule, "needed_from", fails)
    assert expire(broker) == 0
    assert "it is unknown what is needed" in caplog.text
    assert broker.send(body=b"after").code == FOUND
    broker.passes(STEP_MS)
    assert everything(broker) == [b"after"]
    monkeypatch.undo()
    assert expire(broker) >= 4 * SEGMENT


def test_an_acknowledged_pop_holds_nothing_when_its_time_is_over(broker: SteppedBroker) -> None:
    broker.send()
    broker.passes(STEP_MS)
    popped = pop(broker, invisible_ms=5000)
    ack(broker, popped, 0)
    broker.passes(1100)
    fill(broker)
    assert expire(broker) == 0
    broker.passes(8000)
    revive(broker)
    broker.persist()
    assert expire(broker) >= 4 * SEGMENT
    assert everything(broker, "%RETRY%cg_T") == []


def test_a_message_that_the_timer_has_not_taken_yet_holds_the_log(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.broker.services.timers._work, "_step", lambda _cold: None)
    broker.send(body=b"waits", TIMER_DELAY_MS="3000")
    broker.passes(1500)
    fill(broker)
    assert expire(broker) == 0
    monkeypatch.undo()
    broker.broker.services.timers.arrived()
    broker.passes(5000)
    assert everything(broker) == [b"waits"]


class Unsynced:
    """A store in which nothing is synced."""

    flushed_offset = 0

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.usefixtures("movable")
def test_a_copy_that_is_not_synced_does_not_stand_for_its_message(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send(body=b"waits", TIMER_DELAY_MS="30000")
    broker.passes(2500)
    broker.persist()
    fill(broker)
    mover = broker.broker.services.timers.service._mover
    monkeypatch.setattr(mover, "_store", Unsynced(broker.broker.store))
    assert expire(broker, SHORT, 2) == 0
    assert broker.broker.store.max_queue_offset(b"rmq_sys_wheel_timer", 0) == 2
    monkeypatch.setattr(mover, "_store", broker.broker.store)
    broker.passes(500)
    broker.persist()
    assert expire(broker, SHORT, 2) >= 4 * SEGMENT


def test_a_delivery_that_a_crash_would_undo_holds_the_log(broker: SteppedBroker) -> None:
    """The progress of the timer is not on the disk yet; only that it has taken the message is."""
    broker.send(body=b"waits", TIMER_DELAY_MS="4000")
    broker.passes(1500)
    broker.persist()
    broker.passes(5000)
    assert everything(broker) == [b"waits"]
    fill(broker)
    assert expire(broker) == 0
    broker.persist()
    assert expire(broker) >= 4 * SEGMENT


def test_a_record_of_the_revive_topic_holds_the_log_until_it_is_worked_off(broker: SteppedBroker) -> None:
    """It is due already, but nobody has made its message visible again."""
    broker.send(body=b"waits")
    broker.passes(STEP_MS)
    assert bodies(pop(broker, invisible_ms=3000)) == [b"waits"]
    broker.passes(5000)
    broker.persist()
    fill(broker)
    assert expire(broker) == 0
    revive(broker)
    broker.persist()
    assert everything(broker, "%RETRY%cg_T") == [b"waits"]
    broker.passes(6000)
    broker.persist()
    assert expire(broker) >= 4 * SEGMENT
