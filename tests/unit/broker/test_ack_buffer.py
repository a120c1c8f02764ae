"""Acknowledgements that are collected before they are stored: when, in which records, and what a kill leaves."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.broker.stepped import STEP_MS, SteppedBroker
from tests.unit.broker.test_wake_ups import ack, bodies, pop, revive, sent

from rucola.broker.cold_reads import ColdReads
from rucola.broker.pop import ack_buffer
from rucola.broker.pop.ack_buffer import (
    HELD_S,
    LEFT_STORED_AT_ONCE,
    MARGIN_MS,
    OPEN_AGAIN_S,
    READ_AT_ONCE,
    RETRY_MS,
    STORED_AT_ONCE,
    AckBuffer,
)
from rucola.broker.pop.ack_journal import AckJournal
from rucola.broker.pop.revive_log import ReviveLog
from rucola.errors import BrokerError, DiskError
from rucola.formats.pop import PopAck, PopKey
from rucola.formats.pop_journal import (
    FILE_NAME,
    HALF_BYTES,
    JOURNALED_ACK,
    JournaledAck,
    encode_entry,
    journaled_acks,
)
from rucola.protocol.codes import ResponseCode
from rucola.runtime.files import Files
from rucola.runtime.supervision import Supervisor
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop

HIDDEN_MS, HIDDEN_MAX_MS = 60_000, 3_600_000


class Log:
    """Takes acknowledgements, or refuses them."""

    queues = 8

    def __init__(self) -> None:
        self.stored: list[tuple[int, tuple[int, ...], bool, int]] = []
        self.refuses = False
        self.refused_queue = -1

    def put_ack(self, ack: PopAck, due_ms: int, revive_queue: int) -> int:
        if self.refuses or revive_queue == self.refused_queue:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the disk is full")
        self.stored.append((ack.key.start_offset, ack.queue_offsets, ack.batch, revive_queue))
        return 1


class Stage:
    """A buffer over a directory; each ``start`` is a new process."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / FILE_NAME
        self.clock = ManualClock(1_700_000_000_000)
        self.loop = ManualLoop(self.clock)
        self.log = Log()
        self.start()

    def start(self, enabled: bool = True, runs: bool = True) -> None:
        self.files = Files()
        self.files.hold(str(self.root))
        self.journal = AckJournal(self.files, str(self.root))
        log, clock = cast(ReviveLog, self.log), self.clock
        self.buffer = AckBuffer(log, self.journal, clock.wall_ms, clock.monotonic, HIDDEN_MAX_MS, enabled=enabled)
        self.loop = ManualLoop(clock)
        self.ready: list[int] = []
        """Number of records when the buffer was ready."""
        loop, ready = cast(Any, self.loop), lambda: self.ready.append(len(self.log.stored))
        self.buffer.start(loop, cast(ColdReads, None), Supervisor(), ready)
        if runs:
            self.loop.run()

    def key(self, start: int = 0, **changes: Any) -> PopKey:
        return PopKey("T", "G", 0, start, self.clock.wall_ms(), "b")._replace(**changes)

    def ack(self, *offsets: int, key: PopKey | None = None, hidden_ms: int = HIDDEN_MS, revive_queue: int = 3) -> bool:
        key = key or self.key()
        return self.buffer.take(key, offsets, key.pop_time_ms + hidden_ms, revive_queue)

    def passes(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000))
        self.loop.run()

    def stop(self) -> None:
        asyncio.run(self.buffer.stop())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_those_of_a_pop_become_one_record_after_half_a_second(stage: Stage) -> None:
    first, second = stage.key(10), stage.key(20)
    for offset in (12, 10, 12, 11):
        assert stage.ack(offset, key=first)
    assert stage.ack(25, key=second, revive_queue=4) and stage.ack(20, 21, key=stage.key(20, broker_name="c"))
    stage.passes(HELD_S - 0.001)
    assert stage.log.stored == []
    stage.passes(0.001)
    assert stage.log.stored == [(10, (10, 11, 12), True, 3), (20, (25,), False, 4), (20, (20, 21), True, 3)]
    assert len(stage.buffer) == 0 and stage.loop.ran and not stage.loop._calls, "nothing more is to be done"


def test_each_half_second_counts_from_its_first(stage: Stage) -> None:
    stage.ack(1)
    stage.passes(HELD_S)
    stage.passes(10)
    stage.ack(2)
    stage.passes(HELD_S - 0.001)
    assert len(stage.log.stored) == 1
    stage.passes(0.001)
    assert [offsets for _, offsets, _, _ in stage.log.stored] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"hidden_ms": MARGIN_MS - 1}),
        ({}, {"hidden_ms": HIDDEN_MAX_MS + 1}),
        ({"group": "g" * 1100}, {}),
        ({}, {"revive_queue": 8}),
        ({}, {"revive_queue": -1}),
        ({"group": "a\x01b"}, {}),
        ({"topic": "a\x02b"}, {}),
        ({"broker_name": "\ud800"}, {}),
    ],
)
def test_what_must_be_stored_at_once_is_not_taken(
    stage: Stage, changes: dict[str, Any], options: dict[str, int]
) -> None:
    assert not stage.ack(1, key=stage.key(**changes), **options)
    assert stage.ack(1, hidden_ms=MARGIN_MS) and stage.ack(1, hidden_ms=HIDDEN_MAX_MS)


def test_without_a_start_and_after_a_stop_nothing_is_taken(stage: Stage) -> None:
    assert stage.ack(1)
    stage.stop()
    assert not stage.ack(2)
    assert [offsets for _, offsets, _, _ in stage.log.stored] == [(1,)] and not stage.path.exists()
    stage.start(enabled=False)
    assert not stage.ack(3) and not stage.path.exists()


def test_a_process_that_acknowledges_nothing_has_no_file(stage: Stage) -> None:
    stage.passes(10)
    assert not any(stage.root.iterdir())
    stage.stop()
    assert not any(stage.root.iterdir())


def test_what_a_killed_process_had_is_stored_by_the_next(stage: Stage) -> None:
    stage.ack(1, 2)
    stage.ack(7, key=stage.key(5), revive_queue=0)
    stage.start()
    assert stage.log.stored == [(0, (1, 2), True, 3), (5, (7,), False, 0)] and not stage.path.exists()
    stage.start()
    assert len(stage.log.stored) == 2


def test_what_is_being_stored_and_what_came_since_outlive_a_kill(stage: Stage) -> None:
    stage.ack(1)
    stage.buffer._turn()
    stage.ack(2, key=stage.key(7))
    stage.start()
    assert [offsets for _, offsets, _, _ in stage.log.stored] == [(1,), (2,)]


def test_both_halves_of_a_killed_process_count(stage: Stage) -> None:
    stage.log.refuses = True
    stage.ack(1)
    stage.passes(HELD_S)  # they cannot be stored
    assert not stage.ack(2), "those that follow get the refusal of the log"
    stage.log.refuses = False
    stage.passes(RETRY_MS / 1000)
    assert stage.ack(3)
    stage.start()
    assert sorted({offsets for _, offsets, _, _ in stage.log.stored}) == [(1,), (3,)]


def test_a_half_that_is_used_again_holds_only_its_own_round(stage: Stage) -> None:
    for count in (3, 1, 1):
        for start in range(count):
            stage.ack(0, key=stage.key(start))
        stage.passes(HELD_S)
    assert len(list(stage.journal.left())) == 2


def test_a_log_that_refuses_is_tried_again_and_loses_nothing(stage: Stage) -> None:
    for start in range(3):
        stage.ack(start, key=stage.key(start))
    stage.log.refuses = True
    stage.passes(HELD_S)
    stage.passes(50)
    stage.log.refuses = False
    stage.passes(RETRY_MS / 1000)
    assert [start for start, _, _, _ in stage.log.stored] == [0, 1, 2]


def test_one_that_is_refused_until_its_messages_come_again_is_dropped(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.log.refused_queue = 1
    stage.ack(1, revive_queue=1)
    stage.passes(HIDDEN_MS / 1000)
    assert len(stage.buffer) == 1 and not stage.ack(2)
    stage.passes(2 * RETRY_MS / 1000)
    assert len(stage.buffer) == 0 and stage.ack(2) and "acknowledgements dropped" in caplog.text


def test_one_that_is_refused_does_not_keep_the_others_back(stage: Stage) -> None:
    stage.log.refused_queue = 1
    for start in range(4):
        stage.ack(0, key=stage.key(start), revive_queue=start)
    stage.passes(HELD_S)
    assert [start for start, _, _, _ in stage.log.stored] == [0, 2, 3]
    stage.log.refused_queue = -1
    stage.passes(RETRY_MS / 1000)
    assert [start for start, _, _, _ in stage.log.stored] == [0, 2, 3, 1]
    assert stage.ack(5)


LEFT = 3 * LEFT_STORED_AT_ONCE + 1


@pytest.fixture
def killed(stage: Stage) -> Stage:
    """A stage on which a process was killed that had as many acknowledgements as take several steps; the next one has
    begun to store them.
    """
    for start in range(LEFT):
        assert stage.ack(0, key=stage.key(start))
    assert stage.ready == [0]
    stage.start(runs=False)
    return stage


def test_what_was_left_is_stored_in_steps(killed: Stage) -> None:
    """Before, a start stored all of it in one turn of the event loop: two full halves took seconds."""
    counts = []
    while not killed.ready:
        assert not killed.ack(0, key=killed.key(9999)), "the file is needed"
        assert killed.path.exists() and not killed.journal._map
        counts.append(len(killed.log.stored))
        assert killed.buffer.work() == (None if killed.ready else 0)
    assert killed.ready == [LEFT] and not killed.path.exists()
    steps = [after - before for before, after in zip(counts, [*counts[1:], LEFT], strict=True)]
    assert max(steps) == LEFT_STORED_AT_ONCE and sum(steps) == LEFT - counts[0]
    assert [start for start, _, _, _ in killed.log.stored] == list(range(LEFT))
    assert killed.ack(0)
    killed.loop.run()
    assert killed.ready == [LEFT]


def test_a_full_journal_is_read_in_steps(stage: Stage) -> None:
    key = stage.key()
    count = 0
    while stage.ack(count, key=key):
        count += 1
    assert count > 10 * READ_AT_ONCE and stage.path.stat().st_size == 2 * HALF_BYTES
    stage.start(runs=False)
    read = [sum(map(len, stage.buffer._storing.values()))]
    while not stage.ready:
        stage.buffer.work()
        read.append(sum(map(len, stage.buffer._storing.values())))
    assert read[0] == READ_AT_ONCE and max(b - a for a, b in itertools.pairwise(read)) == READ_AT_ONCE
    assert {offset for _, offsets, _, _ in stage.log.stored for offset in offsets} == set(range(count))


@pytest.mark.parametrize("steps", range(5))
def test_a_kill_between_the_steps_loses_nothing(killed: Stage, steps: int) -> None:
    for _ in range(steps):
        killed.buffer.work()
    killed.start()
    assert {start for start, _, _, _ in killed.log.stored} == set(range(LEFT))
    assert killed.ready == [len(killed.log.stored)] and not killed.path.exists()


@pytest.mark.parametrize("steps", range(5))
def test_a_stop_between_the_steps_stores_all(killed: Stage, steps: int) -> None:
    for _ in range(steps):
        killed.buffer.work()
    was_ready = list(killed.ready)
    killed.stop()
    assert [start for start, _, _, _ in killed.log.stored] == list(range(LEFT))
    assert killed.ready == was_ready and not killed.path.exists() and not killed.ack(1)
    killed.loop.run()
    assert killed.ready == was_ready and len(killed.log.stored) == LEFT


def test_all_can_be_stored_between_the_steps(killed: Stage) -> None:
    asyncio.run(killed.buffer.store_all())
    assert (killed.ready, len(killed.log.stored)) == ([LEFT], LEFT)


def test_a_log_that_refuses_between_the_steps_keeps_the_file(killed: Stage, caplog: pytest.LogCaptureFixture) -> None:
    killed.buffer.work()
    killed.log.refuses = True
    killed.loop.run()
    assert "acknowledgements of the last process not stored" in caplog.text
    assert killed.path.exists() and killed.ready == [len(killed.log.stored)] and not killed.ack(1)
    assert len(killed.buffer) == 0
    killed.log.refuses = False
    killed.stop()
    killed.start()
    assert {start for start, _, _, _ in killed.log.stored} == set(range(LEFT))


def test_a_stop_whose_log_refuses_leaves_the_file(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.ack(1)
    stage.log.refuses = True
    stage.stop()
    assert "the next start stores them" in caplog.text and stage.journal._map is None
    stage.log.refuses = False
    stage.start()
    assert [offsets for _, offsets, _, _ in stage.log.stored] == [(1,)]


def test_a_start_whose_log_refuses_keeps_the_file_and_takes_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.ack(1)
    stage.log.refuses = True
    stage.start()
    assert "acknowledgements of the last process not stored" in caplog.text
    assert not stage.ack(2) and stage.path.exists()
    stage.log.refuses = False
    stage.stop()
    stage.start()
    assert [offsets for _, offsets, _, _ in stage.log.stored] == [(1,)]


def test_a_full_half_is_stored_early_and_a_full_journal_takes_nothing(stage: Stage) -> None:
    count = 0
    while stage.journal._half == 0:
        assert stage.ack(0, key=stage.key(count))
        count += 1
    assert len(stage.buffer._storing) == count - 1 and len(stage.buffer._collecting) == 1
    while stage.ack(0, key=stage.key(count)):
        count += 1
    assert stage.journal._position <= HALF_BYTES
    half = len(stage.buffer._storing)
    stage.loop.run()
    assert [start for start, _, _, _ in stage.log.stored] == list(range(half)), "without waiting for half a second"
    assert stage.ack(0, key=stage.key(count))
    stage.passes(HELD_S)
    assert len(stage.log.stored) == count + 1


def test_a_turn_stores_only_so_many(stage: Stage) -> None:
    for start in range(STORED_AT_ONCE + 1):
        stage.ack(0, key=stage.key(start))
    stage.clock.advance(round(HELD_S * 1000))
    assert stage.buffer.work() == 0 and len(stage.log.stored) == STORED_AT_ONCE
    assert stage.buffer.work() is None and len(stage.log.stored) == STORED_AT_ONCE + 1


def test_all_can_be_stored_while_more_come(stage: Stage) -> None:
    coming = iter(range(1, 1000))

    async def more() -> None:
        for start in coming:
            stage.ack(0, key=stage.key(start))
            await asyncio.sleep(0)

    async def play() -> None:
        stage.ack(0, key=stage.key(0))
        adding = asyncio.create_task(more())
        await stage.buffer.store_all()
        adding.cancel()

    asyncio.run(play())
    assert (0, (0,), False, 3) in stage.log.stored and len(stage.log.stored) < 10 and next(coming) < 10


def test_all_can_be_stored_now(stage: Stage) -> None:
    for start in range(STORED_AT_ONCE + 1):
        stage.ack(0, key=stage.key(start))
    asyncio.run(stage.buffer.store_all())
    assert len(stage.log.stored) == STORED_AT_ONCE + 1 and len(stage.buffer) == 0
    stage.ack(9, key=stage.key(900))
    stage.start()
    assert (900, (9,), False, 3) in stage.log.stored


@pytest.mark.parametrize("kind", ["link", "directory", "fifo", "link to nothing"])
def test_what_is_no_file_of_ours_is_left_alone(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"theirs")
    root = tmp_path / "store"
    root.mkdir()
    make: dict[str, Callable[[Path], object]] = {
        "link": lambda path: path.symlink_to(victim),
        "directory": Path.mkdir,
        "fifo": os.mkfifo,
        "link to nothing": lambda path: path.symlink_to(tmp_path / "nothing"),
    }
    make[kind](root / FILE_NAME)
    before = (root / FILE_NAME).lstat()
    stage = Stage(root)
    assert not stage.ack(1)
    stage.stop()
    assert (root / FILE_NAME).lstat() == before and victim.read_bytes() == b"theirs"
    assert not (tmp_path / "nothing").exists() and "not stored" in caplog.text


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\xff" * (2 * HALF_BYTES + 5), os.urandom(4096)])
def test_a_file_with_other_content_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    stage = Stage(tmp_path)
    assert stage.log.stored == [] and stage.ack(1)


def test_a_journal_that_cannot_be_created_is_tried_again_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def refuse() -> None:
        tries.append(stage.clock.monotonic())
        raise DiskError("there", "create", "no space", 28)

    with monkeypatch.context() as patch:
        patch.setattr(stage.journal, "open", refuse)
        assert not stage.ack(1) and not stage.ack(2) and len(tries) == 1
        assert "journal of acknowledgements not created" in caplog.text
    stage.passes(OPEN_AGAIN_S - 0.001)
    assert not stage.ack(3)
    stage.passes(0.001)
    assert stage.ack(4)


# --- the bytes


def entry(number: int) -> JournaledAck:
    key = PopKey("T", "G", 0, number, 1_700_000_000_000, "b")
    return JournaledAck(PopAck(key, (number,)), 1_700_000_060_000, number % 8)


def encoded(one: JournaledAck, round_: int) -> bytes:
    return encode_entry(round_, one.ack.key, one.ack.queue_offsets, one.due_ms, one.revive_queue)


def test_entries_come_back_as_they_were() -> None:
    entries = [entry(number) for number in range(5)]
    half = b"".join(encoded(each, 7) for each in entries)
    assert list(journaled_acks(half)) == entries
    assert list(journaled_acks(half.ljust(4096, b"\0"))) == entries
    assert half[: JOURNALED_ACK.size].hex() == "19b0e8bb000000070000018bcfe652600000000000000041"


def test_an_entry_of_another_round_ends_the_half() -> None:
    half = encoded(entry(0), 8) + encoded(entry(1), 7) + encoded(entry(2), 8)
    assert list(journaled_acks(half)) == [entry(0)]


def test_every_flipped_bit_and_every_cut_end_the_half() -> None:
    first, second = encoded(entry(0), 1), encoded(entry(1), 1)
    for cut in range(len(second)):
        assert list(journaled_acks(first + second[:cut])) == [entry(0)]
    for bit in range(32, 8 * len(second)):  # the checksum's own top bit is not stored
        flipped = bytearray(second)
        flipped[bit // 8] ^= 1 << bit % 8
        assert list(journaled_acks(first + flipped)) == [entry(0)]


# --- the broker


def test_no_message_becomes_visible_again_before_what_was_left_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker was down until after the invisible time."""
    broker, count = SteppedBroker(), 20
    sent(broker, count + 1)
    broker.passes(STEP_MS)
    for number in range(count + 1):
        popped = pop(broker, maxMsgNums=1)
        assert bodies(popped) == [b"%d" % number]
        if number:  # the first one is not acknowledged
            ack(broker, popped, number)
    assert len(services(broker)._acks) == count
    monkeypatch.setattr(ack_buffer, "LEFT_STORED_AT_ONCE", 1)
    broker.clock.advance(120_000)
    broker.kill()
    for left in range(count - 1, -1, -1):
        assert (len(services(broker)._acks), services(broker)._reviving) == (left, None)
        services(broker)._acks.work()
    assert len(services(broker)._acks) == 0 and services(broker)._reviving is not None
    revive(broker)
    assert [bytes(message.body) for message in broker.messages(b"%RETRY%cg_T")] == [b"0"]


def services(broker: SteppedBroker) -> Any:
    return broker.broker.services.pops.get()
