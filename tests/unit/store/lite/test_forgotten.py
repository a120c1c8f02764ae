"""Lite topics that are forgotten: their names, counters and ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.lite_ledger import lite_config, lite_message

from rucola.formats.light_queue import lite_topic
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.recovery import lite_recovery
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT, StoreLife, empty_disk


class Life:
    """A store whose log expires on demand."""

    def __init__(self) -> None:
        self.life = StoreLife(empty_disk(), lite_config(sync=False, segment_bytes=4096))
        self.random = Random(1)
        self.start()

    def start(self) -> None:
        self.life.load()
        self.life.store.start()

    @property
    def lite(self) -> LiteTopics:
        assert self.life.store.lite is not None
        return self.life.store.lite

    def put(self, *names: bytes) -> None:
        self.life.store.put_message(lite_message(self.random, names, size=300))
        self.life.turn()

    def settle(self) -> None:
        self.life.keep()
        self.life.dispatch()

    def make_old(self, *names: bytes) -> None:
        """Deletes topics, and lets everything up to now expire."""
        assert self.life.store.delete_lite(names) == len(names)
        self.settle()
        for _ in range(40):
            self.put(b"Other$x")
        self.life.expire()
        self.settle()

    def range(self, name: bytes) -> tuple[int, int]:
        return self.life.store.queue_range(lite_topic(name), 0)


@pytest.fixture
def one() -> Life:
    return Life()


def restart(one: Life) -> None:
    one.life.store.shutdown()
    one.start()


def kill(one: Life) -> None:
    one.start()


def test_only_old_deleted_topics_are_forgotten(one: Life) -> None:
    one.put(b"P$old", b"P$new", b"P$kept")
    assert one.lite.forgettable().names == []
    one.make_old(b"P$old", b"P$new")
    assert one.lite.forgettable().names == [b"P$old", b"P$new"]
    one.put(b"P$new")
    assert one.lite.forget([b"P$old", b"P$new", b"P$kept", b"P$unknown"]) == 1
    assert one.lite.next_offset(lite_topic(b"P$old")) == 1
    one.settle()
    assert one.lite.next_offset(lite_topic(b"P$old")) == 0
    assert one.life.store.queue_range(lite_topic(b"P$old"), 0) == (0, 0)
    assert one.range(b"P$new") == (1, 2)


@pytest.mark.parametrize("again", [restart, kill])
def test_a_forgotten_topic_begins_again_and_its_id_is_given_once_the_table_knows(
    one: Life, again: Callable[[Life], None]
) -> None:
    one.put(b"P$old", b"P$other")
    one.make_old(b"P$old")
    one.lite.forget([b"P$old"])
    one.settle()
    count = len(one.lite.names)
    one.put(b"P$early")
    assert len(one.lite.names) == count + 1  # a crash could still need the units of the old name
    again(one)
    assert one.range(b"P$old") == (0, 0)
    one.lite._table_due = True
    one.settle()
    one.put(b"P$late")
    assert len(one.lite.names) == count + 1
    one.put(b"P$old")
    for _ in range(2):
        assert (one.range(b"P$early"), one.range(b"P$late"), one.range(b"P$old")) == ((0, 1), (0, 1), (0, 1))
        assert one.range(b"P$other") in ((0, 1), (1, 1))
        again(one)
    assert f"{ROOT}/quarantine/rucola-lite" not in one.life.disk.names
    one.life.store.shutdown()
    assert FindingKind.LITE_TOPICS not in verify(ROOT, files_on(one.life.disk)).counts


def test_a_message_before_the_mark_takes_effect_keeps_the_topic(one: Life) -> None:
    one.put(b"P$old")
    one.make_old(b"P$old")
    assert one.lite.forget([b"P$old"]) == 1
    one.put(b"P$old")
    one.settle()
    assert one.range(b"P$old") == (1, 2)
    kill(one)
    assert one.range(b"P$old") == (1, 2)


def test_the_file_of_names_is_compacted_at_a_start(one: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite_recovery, "_SPARE_ENTRIES", 3)
    names = [b"P$%d" % number for number in range(12)]
    one.put(*names)
    one.make_old(*names)
    assert one.lite.forget(names) == 12
    one.settle()
    before = len(one.lite.names.blob)
    for _ in range(3):
        restart(one)
        assert len(one.lite.names.blob) < before
        assert one.lite.names.find(b"P$3") == -1
        assert one.range(b"Other$x")[1] == 40
    one.put(b"P$3")
    assert one.range(b"P$3") == (0, 1)
    kill(one)
    assert one.range(b"P$3") == (0, 1)
    assert set(one.lite.parents()) == {b"Other", b"P"}


def test_the_table_of_names_stays_small_however_many_come_and_go(tmp_path: Path) -> None:
    one = Life()
    for number in range(300):
        name = one.lite._add(b"P$%d" % number)
        one.lite.names.remove(name)
        one.lite.names.free.append(name)
    assert len(one.lite.names) == 1
    assert sum(map(len, one.lite.names._slots)) == 256 * 16
