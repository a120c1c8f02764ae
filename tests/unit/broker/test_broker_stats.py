"""Rates of topics and groups, and how their samples are taken."""

from __future__ import annotations

from tests.tables import keep_nothing

from rucola.broker.broker_stats import BrokerStats
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.remoting.fairness.steps import at_once
from rucola.store.message_store import MessageStore
from rucola.store.stats import StoreStats
from rucola.testing.clock import ManualClock


class CountingStore(MessageStore):
    """Counts of appended messages by topic, and the topics that were counted."""

    def __init__(self) -> None:
        self.stats = StoreStats()
        self.counts: dict[bytes, int] = {}
        self.counted: list[bytes] = []

    def appended_topics(self) -> list[bytes]:
        return list(self.counts)

    def appended_count(self, topic: bytes) -> int:
        self.counted.append(topic)
        return self.counts.get(topic, 0)


def test_rates_over_time() -> None:
    clock, store = ManualClock(), CountingStore()
    offsets = ConsumerOffsetManager(keep_nothing(), clock.wall_ms)
    offsets.commit("g", "T", 0, 100)
    stats = BrokerStats(store, offsets, clock)
    stats.start()
    for _ in range(12):
        clock.advance(10_000)
        store.counts[b"T"] = store.counts.get(b"T", 0) + 50
        store.stats.put_messages += 50
        offsets.commit("g", "T", 0, 100 + store.counts[b"T"] // 2)
        at_once(stats.sample())
    store.counts[b"U"] = 1
    store.counted.clear()
    minute, hour, _ = stats.topic_puts("T") or ()
    assert store.counted == [b"T"], "other topics are not counted"
    assert (minute.count, minute.seconds, minute.per_second) == (250, 50, 5.0)
    assert (hour.count, hour.seconds) == (600, 120)
    gets = (stats.group_gets("T", "g") or ())[0]
    assert (gets.count, gets.per_second) == (125, 2.5)
    assert stats.topic_puts("none") is None and stats.group_gets("none", "g") is None
    offsets.commit("g", "T", 0, 0)
    assert (stats.group_gets("T", "g") or ())[0].count == 0
    for _ in range(2):
        clock.advance(86_400_000)
        at_once(stats.sample())
    assert (stats.put_today_morning, stats.put_yesterday_morning) == (600, 600)


def test_a_step_of_a_sample_counts_one_topic_or_group() -> None:
    """Before the fix, one turn of the event loop counted everything."""
    clock, store = ManualClock(), CountingStore()
    offsets = ConsumerOffsetManager(keep_nothing(), clock.wall_ms)
    for number in range(50):
        offsets.commit(f"g{number}", "T", 0, 5)
    stats = BrokerStats(store, offsets, clock)
    stats.start()
    store.counts = {b"T%d" % number: number for number in range(100)}
    steps = stats.sample()
    for number in range(100):
        next(steps)
        assert len(store.counted) == number + 1
    store.counts.clear()  # topics and groups may be deleted between two steps
    offsets.table.clear()
    at_once(steps)
    assert stats.group_gets("T", "g1") is None
