"""Batches that are grouped by queue give the queues and arrivals that dispatch record by record gives."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.masters import MasterLog, Slave, log_bytes
from tests.unit.store.stores import message, opened

from rucola.common.sysflag import PREPARED_BIT, MessageSysFlag
from rucola.errors import DiskFullError
from rucola.store import dispatch
from rucola.store.dispatch import Arrival, Dispatcher
from rucola.store.log.mapped_file import MappedFile
from rucola.store.message_store import MessageStore
from rucola.store.queue.consume_queue import ConsumeQueue

TOPICS = [b"T%d" % number for number in range(6)] + [dispatch.SCHEDULE_TOPIC]
EXTENDED: dict[str, Any] = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 2000}


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> set[Dispatcher]:
    """Dispatchers that group nothing."""
    found: set[Dispatcher] = set()
    grouping = Dispatcher._put_grouped

    def put(self: Dispatcher, file: MappedFile, table: array[int], rows: int) -> bool:
        return self not in found and grouping(self, file, table, rows)

    monkeypatch.setattr(Dispatcher, "_put_grouped", put)
    return found


def units(store: MessageStore) -> dict[tuple[bytes, int], tuple[int, bytes]]:
    """Returns the end and the bytes of each queue."""
    found = {}
    for topic, queue_id in store.queue_names():
        queue = store._queues.get(topic, queue_id)
        content = b"".join(queue.read_units(offset, 1) for offset in range(queue.max_offset))
        found[topic, queue_id] = queue.max_offset, content
    return found


def send(store: MessageStore, random: Random, number: int, topics: int) -> None:
    topic = random.choice(TOPICS[-topics:])
    sent = message(number, topic, random.randrange(4), random.randrange(30))
    sent.sys_flag = random.choice([0] * 8 + [PREPARED_BIT, int(MessageSysFlag.TRANSACTION_ROLLBACK)])
    if topic == dispatch.SCHEDULE_TOPIC:
        sent.properties += b"DELAY\x01%d\x02" % random.choice([0, 3, 3, 30])
    store.put_message(sent)


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(40))
def test_queues_and_arrivals_are_those_of_the_log_order(seed: int, tmp_path: Path, one_by_one: set[Dispatcher]) -> None:
    """Among the operations are deletions of topics, dispatches that map few segments, and restarts."""
    plain, grouped = opened(tmp_path / "plain"), opened(tmp_path / "grouped")
    try:
        one_by_one.add(plain._dispatcher)
        random, number, topics = Random(seed), 0, 2 + seed % 6
        for _ in range(12):
            state, sent = random.getstate(), random.randrange(700)
            for store in (plain, grouped):
                random.setstate(state)
                for at in range(sent):
                    send(store, random, number + at, topics)
            number += sent
            maps_max = random.choice([1, 5, 1000])
            arrived: list[list[Arrival]] = []
            for store in (plain, grouped):
                store.dispatch(maps_max)
                while store.dispatch_paused:
                    store.dispatch(maps_max)
                assert store.dispatch_behind_bytes == 0
                arrived.append(store.take_arrivals())
            if maps_max == 1000:
                assert arrived[0] == arrived[1]
            assert dict.fromkeys(arrived[0]) == dict.fromkeys(arrived[1])
            if random.random() < 0.3:
                gone = random.choice(TOPICS)
                plain.delete_topic(gone)
                grouped.delete_topic(gone)
            if random.random() < 0.2:
                plain.shutdown()
                grouped.shutdown()
                plain, grouped = opened(tmp_path / "plain"), opened(tmp_path / "grouped")
                one_by_one.add(plain._dispatcher)
        assert units(plain) == units(grouped)
        assert plain._dispatcher.store_timestamp_ms == grouped._dispatcher.store_timestamp_ms
    finally:
        plain.shutdown()
        grouped.shutdown()


@pytest.mark.few(6)
@pytest.mark.parametrize("failing", range(12))
def test_a_full_disk_in_the_middle_of_a_group_loses_and_repeats_nothing(
    failing: int, tmp_path: Path, one_by_one: set[Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, grouped = opened(tmp_path / "plain"), opened(tmp_path / "grouped")
    one_by_one.add(plain._dispatcher)
    for store in (plain, grouped):
        for number in range(300):
            send(store, Random(number), number, 4)
    plain.dispatch()
    calls: list[ConsumeQueue] = []
    putting = ConsumeQueue.put_units

    def put(self: ConsumeQueue, content: bytearray, count: int, first: int = 0) -> None:
        calls.append(self)
        if len(calls) == failing + 1:
            putting(self, content, count // 2, first)
            raise DiskFullError("queue", "allocate", "no space left")
        putting(self, content, count, first)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "put_units", put)
        assert grouped.dispatch() == 0
    assert len(calls) == failing + 1
    told = grouped.take_arrivals()
    assert len(told) == failing
    assert grouped.dispatch() == 300
    assert {arrival[:3] for arrival in grouped.take_arrivals()} == {arrival[:3] for arrival in plain.take_arrivals()}
    assert units(plain) == units(grouped)
    plain.shutdown()
    grouped.shutdown()


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("gap", [1, -1, -20])
def test_a_queue_offset_that_does_not_follow_leaves_the_batch_to_the_log_order(
    gap: int, within: bool, tmp_path: Path, one_by_one: set[Dispatcher]
) -> None:
    """Such a record may be in a log of RocketMQ that was cut, or in one whose topic was deleted and made again. It lies
    within a batch, or begins one.
    """
    plain, grouped = opened(tmp_path / "plain"), opened(tmp_path / "grouped")
    one_by_one.add(plain._dispatcher)
    for store in (plain, grouped):
        for number in range(200):
            if number == 100:
                store._queues.next_offset_tables[b"T1"][0] += gap
                if not within:
                    store.dispatch()
            store.put_message(message(number, b"T%d" % (number % 3), 0, 20))
        assert store.dispatch() == (200 if within else 100)
    assert units(plain) == units(grouped)
    assert plain.take_arrivals() == grouped.take_arrivals()
    plain.shutdown()
    grouped.shutdown()


@pytest.mark.parametrize("deleted_at", [0, 100, 199])
def test_records_of_a_topic_that_was_deleted_before_their_dispatch_get_no_units(
    deleted_at: int, tmp_path: Path, one_by_one: set[Dispatcher]
) -> None:
    plain, grouped = opened(tmp_path / "plain"), opened(tmp_path / "grouped")
    one_by_one.add(plain._dispatcher)
    for store in (plain, grouped):
        for number in range(200):
            store.put_message(message(number, b"T%d" % (number % 3), number % 2, 20))
            if number == deleted_at:
                store.delete_topic(b"T1")
        assert store.dispatch() == 200
    assert units(plain) == units(grouped)
    assert plain.take_arrivals() == grouped.take_arrivals()
    plain.shutdown()
    grouped.shutdown()


def test_queues_that_take_records_one_by_one_are_not_grouped(tmp_path: Path, one_by_one: set[Dispatcher]) -> None:
    plain, grouped = opened(tmp_path / "plain", **EXTENDED), opened(tmp_path / "grouped", **EXTENDED)
    one_by_one.add(plain._dispatcher)
    for store in (plain, grouped):
        for number in range(200):
            store.put_message(message(number, b"T%d" % (number % 3), 0, 20))
        assert store.dispatch() == 200
        assert store.get_message(b"T1", 0, 0, 32, 1 << 20).message_count == 32
    assert units(plain) == units(grouped)
    plain.shutdown()
    grouped.shutdown()


def test_a_topic_that_begins_anew_within_a_batch_is_noticed(tmp_path: Path) -> None:
    """The other topics of the batch are left to the order of the log, too."""
    master = opened(tmp_path / "master")
    for number in range(400):
        if number == 200:
            master.delete_topic(b"T1")
        master.put_message(message(number, b"T%d" % (number % 3), number % 4, 20))
        if number == 150:
            master.dispatch()
    master.dispatch()
    slave = Slave(tmp_path / "copy")
    slave.follow(MasterLog(log_bytes(master)))
    assert units(slave.store) == units(master)
    slave.store.shutdown()
    master.shutdown()


def test_a_topic_that_begins_anew_with_a_batch_is_noticed_before_anything_is_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments with the first units of the earlier life may have expired."""
    master = opened(tmp_path / "master")
    slave = Slave(tmp_path / "copy")
    again: list[int] = []
    monkeypatch.setattr(ConsumeQueue, "put_units_again", lambda *arguments: again.append(arguments[1]))
    for life in range(2):
        for number in range(200):
            master.put_message(message(number, b"T%d" % (number % 3), number % 4, 20))
        master.dispatch()
        slave.follow(MasterLog(log_bytes(master)))
        assert units(slave.store) == units(master)
        if not life:
            master.delete_topic(b"T1")
    assert not again
    slave.store.shutdown()
    master.shutdown()


def test_a_record_costs_no_call_where_topics_and_queues_alternate(tmp_path: Path) -> None:
    large: dict[str, Any] = {
        "mapped_file_size_consume_queue": 200_000,
        "max_index_num": 40_000,
        "mapped_file_size_commit_log": 1 << 20,
    }
    store, calls = opened(tmp_path, **large), dict[int, int]()
    for rows in (100, 200, 400, 100, 200, 400):  # at first, the queues are opened
        for number in range(rows):
            store.put_message(message(number, b"T%d" % (number % 4), number // 4 % 4, 20))
        seen: list[str] = []

        def note(_frame: object, what: str, _argument: object, seen: list[str] = seen) -> None:
            seen.append(what)

        sys.setprofile(note)
        try:
            assert store.dispatch() == rows
        finally:
            sys.setprofile(None)
        calls[rows] = seen.count("call")
    assert calls[400] - calls[100] < 300 // 10  # the queues' files grow by pages
    store.shutdown()


def test_few_records_of_one_topic_are_not_grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that gets one message at a time must not pay for it."""
    store, grouped = opened(tmp_path), list[int]()
    grouping = Dispatcher._put_grouped

    def noted(self: Dispatcher, file: MappedFile, table: array[int], rows: int) -> bool:
        grouped.append(rows)
        return grouping(self, file, table, rows)

    monkeypatch.setattr(Dispatcher, "_put_grouped", noted)
    for rows, topics in ((1, 1), (31, 1), (32, 1), (6, 2), (8, 2)):
        for number in range(rows):
            store.put_message(message(number, b"T%d" % (number % topics), 0, 20))
        assert store.dispatch() == rows
    assert grouped == [32, 8]
    store.shutdown()
