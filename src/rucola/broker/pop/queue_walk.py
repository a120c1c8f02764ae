"""Decides which queues a pop reads, and in which order (RocketMQ 5.3.3, ``PopMessageProcessor``; pops
by priority as in 5.5.0).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from rucola.broker.config import BrokerConfig
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.pop_topics import pop_retry_topic
from rucola.common.subscription_group import PRIORITY_FACTOR_MAX

BEGINS = 100
"""Each pop draws a random number below this value, which decides with which queue it begins."""
Place = tuple[str, int]
"""Topic and queue id."""


class QueueWalk:
    """Orders the queues. Event loop only."""

    def __init__(self, config: BrokerConfig, topics: TopicConfigManager, groups: SubscriptionGroupManager) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """The retry topics, in which unacknowledged messages are delivered again."""
        kinds = (False, True) if self._config.enable_retry_topic_v2 else (False,)
        return [pop_retry_topic(topic, group, v2) for v2 in kinds]

    def queues(self, topic: str, begin: int) -> Iterator[Place]:
        """All readable queues of a topic, beginning with queue ``begin`` modulo the number of queues; empty if there is
        no such topic.
        """
        config = self._topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        for number in range(count):
            yield topic, (begin + number) % count

    def is_by_priority(self, topic: str, group: str, order: bool, begin: int) -> bool:
        """Whether a pop reads the queues in the order of priority: ``priority.factor`` percent of the pops of a
        priority topic do, but none of those in order.
        """
        config, known = self._topics.get(topic), self._groups.table.get(group)
        if order or config is None or not config.is_priority:
            return False
        return begin < (PRIORITY_FACTOR_MAX if known is None else known.priority_factor)

    def places(
        self,
        topic: str,
        group: str,
        queue_id: int,
        order: bool,
        begin: int,
        full: Callable[[], bool],
        first: Collection[int] = (),
    ) -> Iterator[Place]:
        """Yields the queues in the sequence in which a pop reads them. ``popFromRetryProbability`` percent of the pops
        begin with the retry topic. The others end with it, unless ``full`` says that the response is complete. For pops
        by priority, this percentage is ``popFromRetryProbabilityForPriority``.

        Args:
            queue_id: -1 for all queues of the topic.
            order: whether messages are popped in order; such pops do not read the retry topic.
            begin: 0 to ``BEGINS`` - 1; decides where to begin.
            first: ids of queues that are read before all others.
        """
        config = self._config
        retry_topics = self.retry_topics(topic, group)
        retry_topic = retry_topics[begin % len(retry_topics)]
        if self.is_by_priority(topic, group, order, begin):
            retry_first = begin < config.pop_from_retry_probability_for_priority
            queues: Callable[[str], Iterator[Place]] = self._queues_by_priority
        else:
            retry_first = begin < config.pop_from_retry_probability
            queues = partial(self.queues, begin=begin)
        if retry_first and not order:
            yield from queues(retry_topic)
        if queue_id < 0:
            places = queues(topic)
            yield from sorted(places, key=lambda place: place[1] not in first) if first else places
        else:
            yield topic, queue_id
        if not retry_first and not order and not full():
            yield from queues(retry_topic)

    def _queues_by_priority(self, topic: str) -> Iterator[Place]:
        """All readable queues of a topic, the one with the highest priority first."""
        config = self._topics.get(topic)
        ids = range(config.read_queue_nums if config is not None else 0)
        for queue_id in reversed(ids) if self._config.priority_order_asc else ids:
            yield topic, queue_id
