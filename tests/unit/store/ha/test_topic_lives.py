"""Topics that were deleted on the master and made again: the copy has the queues that the master has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.masters import MasterLog, Slave, log_bytes
from tests.unit.store.stores import crashed, message, opened, read, with_topics

from rucola.store.message_store import MessageStore
from rucola.store.verify.check import verify


class Master:
    """A store whose topics come and go."""

    def __init__(self, path: Path) -> None:
        self.store: MessageStore = opened(path)
        self.count = 0

    def send(self, count: int, topic: bytes = b"T", queues: int = 4) -> None:
        """Sends messages to the queues in turn."""
        for _ in range(count):
            self.store.put_message(message(self.count, topic, self.count % queues))
            self.count += 1
        self.store.dispatch()

    @property
    def log(self) -> MasterLog:
        return MasterLog(log_bytes(self.store))


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    found = Master(tmp_path / "master")
    yield found
    found.store.shutdown()


def rows(store: MessageStore, topic: bytes, queue_id: int) -> list[tuple[int, int, bytes]]:
    found = read(store, topic, queue_id)
    return [(one.physical_offset, one.queue_offset, one.body) for one in found]


def index_entries(store: MessageStore) -> int:
    assert store._index is not None
    return sum(file.header().index_count - 1 for file in store._index.files)


def same_queues(slave: Slave, master: Master) -> None:
    """A topic that is only deleted is still there: the log does not tell of that."""
    for name in master.store.queue_names():
        assert rows(slave.store, *name) == rows(master.store, *name)


@pytest.mark.parametrize("pieces", [1 << 30, 700])
@pytest.mark.parametrize("queues", [4, 2, 7])
def test_the_copy_has_the_queues_of_the_new_topic(tmp_path: Path, master: Master, pieces: int, queues: int) -> None:
    for number in range(3):
        master.send(30, b"other")
        master.send(50, queues=queues if number % 2 else 4)
        if number < 2:
            master.store.delete_topic(b"T")
    slave = Slave(tmp_path / "copy")
    slave.follow(master.log, pieces=pieces)
    same_queues(slave, master)
    found = slave.store.query_by_key(b"T", b"key-121").views
    slave.store.shutdown()
    assert len(found) == 1
    assert verify(with_topics(tmp_path / "copy")).clean


def test_records_of_the_new_topic_in_queues_that_were_not_used_before(tmp_path: Path, master: Master) -> None:
    """The first record of the new topic does not show that it is one."""
    master.send(10, queues=1)
    master.store.delete_topic(b"T")
    for number, queue_id in enumerate((3, 3, 2, 0, 3, 0), 100):
        master.store.put_message(message(number, b"T", queue_id))
        master.send(1, b"other", queues=1)
    slave = Slave(tmp_path / "copy")
    slave.follow(master.log)
    same_queues(slave, master)
    assert slave.store.queue_range(b"other", 0)[1] == 6
    assert index_entries(slave.store) == index_entries(master.store)
    assert slave.store.deleted_ms(b"T") == read(master.store, b"other", 0)[2].store_timestamp_ms + 1
    slave.store.shutdown()
    assert verify(with_topics(tmp_path / "copy")).clean


def test_the_place_between_the_lives_is_behind_all_old_records(tmp_path: Path, master: Master) -> None:
    for number, queue_id in enumerate((1, 0, 1, 2, 1, 3, 2, 2, 3)):
        master.store.put_message(message(number, b"T", queue_id))
    master.store.delete_topic(b"T")
    for number in range(20, 23):
        master.store.put_message(message(number, b"T", 0))
    master.store.dispatch()
    slave = Slave(tmp_path / "copy")
    slave.follow(master.log)
    same_queues(slave, master)
    assert slave.store.queue_names() == [(b"T", 0)]
    slave.store.shutdown()


def test_records_of_the_new_topic_that_were_dispatched_and_synced_before(tmp_path: Path, master: Master) -> None:
    """Recovery puts records into queues only from the watermark on; some of the new topic are before it."""
    master.send(10, queues=1)
    slave = Slave(tmp_path / "copy")
    slave.follow(master.log)
    master.store.delete_topic(b"T")
    for number, queue_id in enumerate((3, 3, 2), 100):
        master.store.put_message(message(number, b"T", queue_id))
    master.send(400, b"other")  # more than a segment
    slave.follow(master.log)
    slave.store.shutdown()
    slave = Slave(tmp_path / "copy")
    master.send(4)
    slave.connect()
    slave.link.receive(memoryview(master.log.stream(slave.link.request)))
    slave = Slave(crashed(slave.store, tmp_path / "copy", tmp_path / "killed"))
    same_queues(slave, master)
    slave.store.shutdown()


def test_the_time_of_a_deletion_lies_between_the_lives(tmp_path: Path, master: Master) -> None:
    master.send(10, queues=1)
    slave = Slave(tmp_path / "copy")
    slave.follow(master.log)
    newest = read(slave.store, b"T", 0)[-1].store_timestamp_ms
    master.store.delete_topic(b"T")
    master.send(10, queues=1)
    slave.follow(master.log)
    assert slave.store.deleted_ms(b"T") == newest + 1
    slave.store.shutdown()


def test_a_kill_before_the_new_topic_is_dispatched(tmp_path: Path, master: Master) -> None:
    master.send(40)
    slave = Slave(tmp_path / "copy")
    slave.follow(master.log)
    master.store.delete_topic(b"T")
    master.send(10)
    slave.link = slave.connect()
    slave.link.receive(memoryview(master.log.stream(slave.link.request)))
    slave = Slave(crashed(slave.store, tmp_path / "copy", tmp_path / "killed"))
    same_queues(slave, master)
    slave.store.shutdown()
    assert verify(with_topics(tmp_path / "killed")).clean


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(12))
def test_topics_that_come_and_go(tmp_path: Path, master: Master, seed: int) -> None:
    choose = random.Random(seed)
    slave = Slave(tmp_path / "copy 0")
    for number in range(1, 12):
        for _ in range(choose.randrange(1, 4)):
            master.send(choose.randrange(1, 40), choose.choice((b"T", b"U")), choose.randrange(1, 5))
            if choose.random() < 0.4:
                master.store.delete_topic(choose.choice((b"T", b"U")))
        part = master.log.stream(slave.connect().request)
        slave.take(part[: choose.randrange(len(part)) if choose.random() < 0.5 else len(part)], 5000)
        if choose.random() < 0.4:
            slave = Slave(crashed(slave.store, slave.path, tmp_path / f"copy {number}"))
    slave.follow(master.log)
    same_queues(slave, master)
    slave.store.shutdown()
    assert verify(with_topics(slave.path)).clean


def test_messages_without_a_queue_begin_nothing(tmp_path: Path, master: Master) -> None:
    """Half messages and those that are rolled back state queue offset 0."""
    master.send(8)
    for sys_flag in (4, 12):
        half = message(900, b"T", 0)
        half.sys_flag = sys_flag
        master.store.put_message(half)
    master.send(8)
    slave = Slave(tmp_path / "copy")
    slave.follow(master.log)
    same_queues(slave, master)
    assert slave.store.queue_range(b"T", 0)[1] == 4
    slave.store.shutdown()
