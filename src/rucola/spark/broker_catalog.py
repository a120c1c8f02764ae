"""Brokers as a place to read from, driver side: which queues there are, what they hold, and one task per piece."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rucola.client.pull_consumer import PullConsumer
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError
from rucola.spark.broker_link import BrokerLink
from rucola.spark.catalog import Bounds, existing_queues, missing_topics_error
from rucola.spark.options import SourceOptions
from rucola.spark.ranges import QueueRange, SourceRange, split_queue_ranges

QUEUES_AGE_MAX_S = 1.0
"""How long a list of queues is used; a topic or queue made meanwhile is seen after that."""
BOUNDS_AGE_MAX_S = 0.02
"""How long bounds are used; an idle stream asks some 75 times a second."""
SAMPLE_MESSAGES = 32


class BrokerCatalog:
    """``Catalog`` over the brokers that the name servers know."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._link = BrokerLink(options)
        self._queues: list[MessageQueue] = []
        self._queues_until_s = -1.0
        self._bounds: dict[MessageQueue, Bounds] = {}
        self._bounds_until_s = -1.0

    def queues(self, *, all_needed: bool) -> list[MessageQueue]:
        """Readable queues of the subscription's topics."""
        if self._link.seconds() >= self._queues_until_s:
            self._queues = self._link.ask(self._find_queues, known=False)
            self._queues_until_s = self._link.seconds() + QUEUES_AGE_MAX_S
        missing = set(self._options.subscription.named_topics) - {queue.topic for queue in self._queues}
        if missing and all_needed:
            raise missing_topics_error(missing, self._link.ask(lambda consumer: consumer.topics()))
        return existing_queues(self._options.subscription, self._queues, all_needed=all_needed)

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """Bounds of each queue; brokers that do not answer are waited for."""
        wanted = list(queues)
        if self._link.seconds() >= self._bounds_until_s or not self._bounds.keys() >= set(wanted):

            async def ask(consumer: PullConsumer) -> list[Bounds]:
                return await asyncio.gather(*(_bounds_of(consumer, queue) for queue in wanted))

            self._bounds = dict(zip(wanted, self._link.ask(ask), strict=True))
            self._bounds_until_s = self._link.seconds() + BOUNDS_AGE_MAX_S
        return {queue: self._bounds[queue] for queue in wanted}

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First offset stored at or after the time."""
        return self._link.ask(lambda consumer: consumer.offset_for_time(queue, timestamp_ms))

    def mean_record_bytes(self, queue: MessageQueue, start: int, end: int) -> int:
        """Mean size of the records that one pull from ``start`` gives."""
        count = min(SAMPLE_MESSAGES, end - start)
        sample = self._link.ask(lambda consumer: consumer.pull_raw(queue, start, count))
        return max(1, len(sample.body) // max(1, sample.next_begin_offset - start))

    def plan(self, ranges: Sequence[QueueRange]) -> list[SourceRange]:
        """One piece per queue, cut by the limit on records."""
        options = self._options
        return list(split_queue_ranges(ranges, options.partitions_min, options.records_per_partition_max))

    def close(self) -> None:
        """Leaves the brokers."""
        self._link.close()

    async def _find_queues(self, consumer: PullConsumer) -> list[MessageQueue]:
        subscription = self._options.subscription
        names: Iterable[str] = subscription.named_topics
        if subscription.pattern:
            names = [topic for topic in await consumer.topics() if subscription.wants_topic(topic)]
        found: list[MessageQueue] = []
        for topic in names:
            try:
                found += await consumer.message_queues(topic)
            except ClientError:
                continue  # no broker has the topic; whether that is an error is the caller's to say
        return found


async def _bounds_of(consumer: PullConsumer, queue: MessageQueue) -> Bounds:
    least, most = await asyncio.gather(consumer.min_offset(queue), consumer.max_offset(queue))
    # Brokers answer a minimum of -1 or above the maximum for a queue that never had a file.
    return Bounds(max(0, min(least, most)), max(0, most))
