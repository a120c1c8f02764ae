"""Decides which queues a pop reads, and in which order (RocketMQ 5.3.3, ``PopMessageProcessor``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rucola.broker.config import BrokerConfig
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.pop_topics import pop_retry_topic

BEGINS = 100
"""Each pop draws a random number below this value, which decides with which queue it begins."""
Place = tuple[str, int]
"""Topic and queue id."""


class QueueWalk:
    """Orders the queues. Event loop only."""

    def __init__(self, config: BrokerConfig, topics: TopicConfigManager) -> None:
        self._config = config
        self._topics = topics

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

    def places(
        self, topic: str, group: str, queue_id: int, order: bool, begin: int, full: Callable[[], bool]
    ) -> Iterator[Place]:
        """Yields the queues in the sequence in which a pop reads them. ``popFromRetryProbability`` percent of the pops
        begin with the retry topic. The others end with it, unless ``full`` says that the response is complete.

        Args:
            queue_id: -1 for all queues of the topic.
            order: whether messages are popped in order; such pops do not read the retry topic.
            begin: 0 to ``BEGINS`` - 1; decides where to begin.
        """
        retry_topics = self.retry_topics(topic, group)
        retry_topic = retry_topics[begin % len(retry_topics)]
        retry_first = begin < self._config.pop_from_retry_probability
        if retry_first and not order:
            yield from self.queues(retry_topic, begin)
        if queue_id < 0:
            yield from self.queues(topic, begin)
        else:
            yield topic, queue_id
        if not retry_first and not order and not full():
            yield from self.queues(retry_topic, begin)
