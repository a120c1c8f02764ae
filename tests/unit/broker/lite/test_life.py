"""The end of lite topics: by their time to live, with their parent, and the end of their names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.lite.lite_broker import GROUP, PARENT, LiteBroker

from rucola.broker.lite import life
from rucola.errors import DiskFullError

SECOND, MINUTE = 1000, 60_000


def later(broker: LiteBroker, milliseconds: int) -> None:
    """Lets time pass, and looks once."""
    broker.clock.advance(milliseconds)
    broker.look()


def made(ttl: str = "2", **options: Any) -> LiteBroker:
    """A broker that looks every second, with lite topics that live for ``ttl`` minutes."""
    broker = LiteBroker(**{"lite_ttl_check_interval_ms": SECOND, "min_lite_ttl_ms": 0} | options)
    broker.parent(PARENT, lite_topic_expiration=ttl)
    return broker


def has(broker: LiteBroker, lite: str, parent: str = PARENT) -> bool:
    broker.settle()
    low, high = broker.range(lite, parent)
    return low < high


def test_a_lite_topic_expires_with_offsets_and_readers_whether_read_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, forgotten = made(), list[int]()
    monkeypatch.setattr(broker.broker.running.lite_delivery(), "forget", forgotten.append)
    assert broker.send_lite("old").code == 0
    later(broker, 90 * SECOND)
    assert broker.send_lite("young").code == 0
    assert has(broker, "old") and has(broker, "young")
    for lite in ("old", "young"):
        broker.offsets.commit(GROUP, broker.id(lite), 0)
    later(broker, 32 * SECOND)
    assert not has(broker, "old") and has(broker, "young")
    assert forgotten == [broker.id("old")]
    assert broker.offsets.get(GROUP, broker.id("old")) == -1 and broker.offsets.get(GROUP, broker.id("young")) == 0
    assert broker.topics.parents() == {PARENT.encode(): 1}
    broker.kill()
    assert not has(broker, "old") and has(broker, "young")


def test_a_message_of_the_same_name_goes_on_at_the_next_offset() -> None:
    """Else a rebuild from the log would take the older messages instead."""
    broker = made()
    for _ in range(3):
        broker.send_lite("s")
    later(broker, 122 * SECOND)
    assert not has(broker, "s")
    broker.send_lite("s")
    assert broker.range("s") == (3, 4)
    assert broker.offsets.get(GROUP, broker.id("s")) == -1, "a group without an offset starts at the minimum"


@pytest.mark.parametrize(
    ("ttl", "options", "lives"),
    [
        ("-1", {}, True),
        ("0", {}, True),
        ("1", {"min_lite_ttl_ms": 10 * MINUTE}, True),
        ("43200", {}, True),
        ("1", {}, False),
    ],
)
def test_what_keeps_a_lite_topic(ttl: str, options: dict[str, Any], lives: bool) -> None:
    broker = made(ttl, **options)
    broker.send_lite("s")
    later(broker, 2 * MINUTE)
    assert has(broker, "s") is lives


def test_43200_minutes_are_thirty_days() -> None:
    """In RocketMQ they overflow 32 bits."""
    broker = made("43200")
    broker.send_lite("s")
    broker.broker.store.dispatch()
    broker.clock.advance(43_199 * MINUTE)
    later(broker, 2 * SECOND)
    assert has(broker, "s")
    broker.clock.advance(2 * MINUTE)
    later(broker, 2 * SECOND)
    assert not has(broker, "s")


def test_nothing_expires_soon_after_the_start() -> None:
    broker = made("1", min_lite_ttl_ms=5 * MINUTE)
    broker.send_lite("s")
    broker.settle()
    broker.clock.advance(10 * MINUTE)
    broker.restart()
    later(broker, 4 * MINUTE)
    assert has(broker, "s")
    later(broker, 2 * MINUTE)
    assert not has(broker, "s")


def test_a_message_that_arrives_during_the_look_saves_its_lite_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = made("1")
    broker.send_lite("s")
    broker.settle()
    broker.clock.advance(2 * MINUTE)
    steps = broker.broker.running.lite_life._expire()  # type: ignore[union-attr]
    next(steps)
    broker.send_lite("s")
    with pytest.raises(StopIteration):
        while True:
            next(steps)
    broker.settle()
    assert broker.range("s") == (0, 2)


def test_a_message_whose_unit_follows_later_saves_its_lite_topic() -> None:
    broker = made("1")
    broker.send_lite("s")
    broker.settle()
    broker.topics._ahead[f"{PARENT}$s".encode()] = 2
    later(broker, 2 * MINUTE)
    assert has(broker, "s")
    broker.topics._ahead.clear()
    later(broker, SECOND)
    assert not has(broker, "s")


def test_an_unknown_store_time_is_looked_at_six_times() -> None:
    broker = made("1")
    broker.send_lite("s")
    broker.settle()
    broker.topics.columns.times[broker.id("s")] = 0
    for _ in range(life.UNKNOWN_TIMES_MAX):
        later(broker, SECOND)
    assert has(broker, "s")
    later(broker, SECOND)
    assert not has(broker, "s")


def test_a_deleted_parent_takes_its_lite_topics_with_it() -> None:
    broker = made()
    broker.parent("Other")
    for number in range(150):
        broker.send_lite(f"s{number}")
    broker.send_lite("s0", topic="Other")
    broker.broker.store.dispatch()
    for number in range(0, 150, 50):
        broker.offsets.commit(GROUP, broker.id(f"s{number}"), 1)
    assert broker.delete(PARENT).code == 0
    broker.settle()
    assert broker.topics.parents() == {PARENT.encode(): 0, b"Other": 1}
    assert len(broker.offsets) == 0 and has(broker, "s0", "Other")
    broker.kill()
    assert broker.topics.parents()[b"Other"] == 1 and not has(broker, "s7") and len(broker.offsets) == 0
    broker.parent(PARENT)
    broker.send_lite("s7")
    assert broker.range("s7") == (1, 2)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_a_message_that_is_dispatched_after_the_deletion_of_its_parent_goes_too(again: bool, killed: bool) -> None:
    """It was in the log when the parent was deleted, and in no queue. Its offset is not given again."""
    broker = made()
    broker.parent("Other")
    for lite in ("old", "old", "s"):
        broker.send_lite(lite)
    broker.send_lite("s", topic="Other")
    broker.range("s")
    for lite in ("s", "late"):
        broker.send_lite(lite)
    broker.topics._arrived.clear()
    assert broker.delete(PARENT).code == 0
    assert broker.topics.arrived() in ([], [broker.id("s", "Other")])
    if again:
        broker.parent(PARENT)
        broker.send_lite("late")
        broker.broker.store.dispatch()
    if killed:
        broker.kill()
    broker.settle()
    assert broker.topics.parents() == {PARENT.encode(): int(again), b"Other": 1}
    assert broker.range("late") == (1, 1 + again) and broker.range("s") == (2, 2)
    broker.kill()
    assert broker.topics.parents() == {PARENT.encode(): int(again), b"Other": 1}


def test_a_removal_that_a_kill_interrupts_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = made()
    for lite in ("a", "b"):
        broker.send_lite(lite)
        broker.range(lite)
        broker.offsets.commit(GROUP, broker.id(lite), 1)
    broker.offsets.persist()
    with monkeypatch.context() as killed:
        killed.setattr(life.LiteLife, "remove_parent", lambda *_: iter(()))
        assert broker.delete(PARENT).code == 0
    broker.kill()
    broker.parent(PARENT)
    broker.send_lite("b")
    assert has(broker, "a") and has(broker, "b")
    broker.look()
    assert not has(broker, "a") and broker.range("b") == (1, 2), "the new parent has only its own"
    assert broker.offsets.get(GROUP, broker.id("a")) == -1
    looked: list[bytes] = []
    monkeypatch.setattr(broker.broker.store, "delete_lite_of", lambda parent, _: looked.append(parent) or [])
    broker.look()
    assert looked == [], "one look is enough"


def test_a_lite_topic_is_deleted_by_request() -> None:
    broker = made()
    for lite in ("a", "b"):
        broker.send_lite(lite)
        broker.broker.store.dispatch()
        broker.offsets.commit(GROUP, broker.id(lite), 1)
    assert broker.delete(f"%LMQ%${PARENT}$a").code == 0
    assert not has(broker, "a") and has(broker, "b")
    assert broker.offsets.get(GROUP, broker.id("a")) == -1 and broker.offsets.get(GROUP, broker.id("b")) == 1


def test_a_full_disk_lets_them_live_a_little_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = made("1")
    broker.send_lite("s")
    broker.settle()
    delete = broker.broker.store.delete_lite

    def refuse(names: Any) -> int:
        raise DiskFullError("/store", "write", "no space")

    monkeypatch.setattr(broker.broker.store, "delete_lite", refuse)
    broker.offsets.commit(GROUP, broker.id("s"), 1)
    with pytest.raises(DiskFullError):
        later(broker, 62 * SECOND)
    assert has(broker, "s") and broker.offsets.get(GROUP, broker.id("s")) == 1
    monkeypatch.setattr(broker.broker.store, "delete_lite", delete)
    later(broker, 2 * SECOND)
    assert not has(broker, "s")


def test_a_name_goes_when_the_log_has_no_record_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group's offset goes before, and for good: it would hide the first messages of a new lite topic."""
    broker = made("1")
    broker.send_lite("s")
    broker.settle()
    later(broker, 62 * SECOND)
    broker.settle()
    topics, name_id = broker.topics, broker.id("s")
    broker.offsets.commit(GROUP, name_id, 1)
    broker.passes(6 * SECOND)
    assert stored(broker)
    later(broker, 2 * SECOND)
    broker.settle()
    assert broker.id("s") == name_id, "the log may still have its record"
    topics.gone_to = topics.columns.lasts[name_id]
    forget, synced = topics.forget, []
    monkeypatch.setattr(topics, "forget", lambda names: synced.append(stored(broker)) or forget(names))
    later(broker, 3 * SECOND)
    broker.settle()
    assert synced == [False] and broker.id("s") == -1
    broker.send_lite("s")
    assert broker.range("s") == (0, 1) and broker.offsets.get(GROUP, broker.id("s")) == -1


def stored(broker: LiteBroker) -> bool:
    """Whether the disk has an offset of the group."""
    loaded = broker.offsets._files.load()
    rows = {} if loaded is None else {key: offset for key, _, offset in loaded[1]}
    return any(offset >= 0 for offset in rows.values())
