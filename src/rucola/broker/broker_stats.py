"""Recent throughput of a broker: how many messages each topic received and each group consumed in the last minute, hour
and day (RocketMQ 5.3.3, ``BrokerStatsManager``, ``BrokerStats``). Event loop only.

Topics and groups have no counters of their own: their rates are differences between current and earlier queue offsets
or consumer offsets. The rates of a group therefore count commits, which lag its pulls by up to its clients'
``persistConsumerOffsetInterval``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.common.key_builder import topic_at_group
from rucola.remoting.fairness.steps import Steps, at_once
from rucola.runtime.clock import Clock, local_time_digits
from rucola.store.message_store import MessageStore

SAMPLE_INTERVAL_S = 10.0
_WINDOWS = ((6, 1), (6, 60), (24, 360))
"""For minute, hour and day: the number of samples kept, and how many samples are taken for each sample that is kept."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The growth of a counter over ``seconds``."""

    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        """The rate per second; 0 if no time has passed."""
        return self.count / self.seconds if self.seconds > 0 else 0.0


class _Sample(NamedTuple):
    at_s: float
    puts: Mapping[bytes, int]
    offsets: Mapping[str, int]
    put_total: int
    got_total: int


class BrokerStats:
    """Takes samples and compares them with current values."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsetManager, clock: Clock) -> None:
        self._store = store
        self._offsets = offsets
        self._clock = clock
        self._samples: list[deque[_Sample]] = []
        self._taken = 0
        self._day = ""
        self.started_ms = 0
        self.put_yesterday_morning = self.got_yesterday_morning = 0
        self.put_today_morning = self.got_today_morning = 0
        """The totals at midnight; 0 before the first midnight."""

    def start(self) -> None:
        """Takes the first sample; call it once the store is loaded."""
        self.started_ms = self._clock.wall_ms()
        first = at_once(self._look())
        self._samples = [deque([first], maxlen=kept) for kept, _ in _WINDOWS]
        self._day = local_time_digits(self._clock.wall_ms())[:8]

    def sample(self) -> Steps[None]:
        """Takes a sample in steps, between which other requests are served; call it every ``SAMPLE_INTERVAL_S``."""
        self._taken += 1
        due = [window for window, (_, every) in zip(self._samples, _WINDOWS, strict=True) if self._taken % every == 0]
        now = yield from self._look()
        for window in due:
            window.append(now)
        day = local_time_digits(self._clock.wall_ms())[:8]
        if day != self._day:
            self._day = day
            self.put_yesterday_morning, self.got_yesterday_morning = self.put_today_morning, self.got_today_morning
            self.put_today_morning, self.got_today_morning = now.put_total, now.got_total

    def topic_puts(self, topic: str) -> tuple[Rate, Rate, Rate] | None:
        """Rates of messages stored in a topic in the last minute, hour and day; None if no message was stored since
        start-up.
        """
        key = topic.encode("utf-8", "surrogateescape")
        now = self._store.appended_count(key)
        return self._rates(now, lambda sample: sample.puts.get(key, 0)) if now else None

    def group_gets(self, topic: str, group: str) -> tuple[Rate, Rate, Rate] | None:
        """Rates at which a group consumed messages of a topic, for the same periods; None if the group never committed
        an offset for the topic.
        """
        key = topic_at_group(topic, group)
        queues = self._offsets.table.get(key)
        if queues is None:
            return None
        now = sum(queues.values())
        return self._rates(now, lambda sample: sample.offsets.get(key, now))

    def broker_puts(self) -> tuple[Rate, Rate, Rate]:
        """Rates of messages stored in all topics in the last minute, hour and day."""
        return self._rates(self._store.stats.put_messages, lambda sample: sample.put_total)

    def broker_gets(self) -> tuple[Rate, Rate, Rate]:
        """Rates of messages handed to all consumers in the last minute, hour and day."""
        return self._rates(self._store.stats.got_messages, lambda sample: sample.got_total)

    def _rates(self, now: int, then: Callable[[_Sample], int]) -> tuple[Rate, Rate, Rate]:
        at_s = self._clock.monotonic()
        # A reset that moves offsets back does not count as consumption.
        rates = [Rate(max(now - then(window[0]), 0), at_s - window[0].at_s) for window in self._samples]
        return rates[0], rates[1], rates[2]

    def _look(self) -> Steps[_Sample]:
        store, table = self._store, self._offsets.table
        puts: dict[bytes, int] = {}
        for topic in store.appended_topics():
            puts[topic] = store.appended_count(topic)
            yield
        offsets: dict[str, int] = {}
        for key in list(table):
            offsets[key] = sum(table.get(key, {}).values())
            yield
        stats = store.stats
        return _Sample(self._clock.monotonic(), puts, offsets, stats.put_messages, stats.got_messages)
