"""Rates of topics and groups, and how their samples are taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rucola.broker.broker_stats import SAMPLE_INTERVAL_S, BrokerStats
from rucola.remoting.turn import at_once
from rucola.testing.clock import ManualClock


class Store:
    """Counts of appended messages by topic, as a store has them."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.stats = SimpleNamespace(put_messages=0, got_messages=0)
        self.asked: list[bytes] = []

    def appended_topics(self) -> list[bytes]:
        return list(self.counts)

    def appended_count(self, topic: bytes) -> int:
        self.asked.append(topic)
        return self.counts.get(topic, 0)


def stats_of(store: Any, table: dict[str, dict[int, int]], clock: ManualClock) -> BrokerStats:
    offsets: Any = SimpleNamespace(table=table)
    stats = BrokerStats(store, offsets, clock)
    stats.start()
    return stats


def test_a_step_of_a_sample_counts_one_topic_or_group() -> None:
    """Before the fix, one turn of the event loop counted everything: 0.4 s with very many topics."""
    store, table = Store(), {f"T@G{number}": {0: 5, 1: 6} for number in range(50)}
    stats = stats_of(store, table, ManualClock())
    store.counts = {b"T%d" % number: number for number in range(100)}
    steps = stats.sample()
    for number in range(100):
        next(steps)
        assert len(store.asked) == number + 1
    store.counts.clear()  # topics and groups may be deleted between two steps
    table.clear()
    at_once(steps)
    assert stats.group_gets("T", "G1") is None


def test_rates_are_differences_between_samples() -> None:
    clock, store, table = ManualClock(), Store(), {"T@G": {0: 10, 1: 20}}
    stats = stats_of(store, table, clock)
    store.counts[b"T"] = 7
    for _ in range(6):
        clock.advance(round(SAMPLE_INTERVAL_S * 1000))
        at_once(stats.sample())
    store.counts[b"T"], table["T@G"][1] = 19, 80
    clock.advance(round(SAMPLE_INTERVAL_S * 1000))
    store.asked.clear()
    puts, gets = stats.topic_puts("T"), stats.group_gets("T", "G")
    assert store.asked == [b"T"], "other topics are not counted"
    assert puts is not None and gets is not None
    assert [(rate.count, rate.seconds) for rate in puts] == [(12, 60.0), (19, 70.0), (19, 70.0)]
    assert [rate.count for rate in gets] == [60, 60, 60]
    assert stats.topic_puts("U") is None
