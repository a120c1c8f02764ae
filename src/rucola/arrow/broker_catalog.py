"""Plans reads through brokers, on the driver: finds queues and offsets, and divides the work among tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from rucola.arrow.broker_answers import BrokerAnswers, each
from rucola.arrow.broker_link import BrokerLink
from rucola.arrow.broker_lookup import look_up
from rucola.arrow.catalog import Bounds, Look, existing_queues, missing_topics_error, no_match_error
from rucola.arrow.offsets import Mark, queue_text
from rucola.arrow.ranges import QueueRange, SourceRange, split_queue_ranges
from rucola.arrow.read_options import ReadOptions
from rucola.client.pull_consumer import PullConsumer
from rucola.common.key_builder import REPLY_TOPIC_SUFFIX
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError, FormatError, RemotingError, RucolaError
from rucola.formats.message import decode_messages

QUEUES_AGE_MAX_S = 1.0
"""Seconds for which a list of queues is cached; a topic or queue created meanwhile is noticed after that time."""
BOUNDS_AGE_MAX_S = 0.02
"""Seconds for which bounds are cached; an idle stream asks for them about 75 times per second."""
SAMPLE_MESSAGES = 32
GONE_PATIENCE_S = 10.0
"""A queue counts as deleted if the routes lack it for this many seconds while its broker is registered."""
PAUSE_S = 0.1

logger = logging.getLogger(__name__)


class BrokerCatalog:
    """``Catalog`` over the brokers that the name servers know."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._link = BrokerLink(options)
        self._queues: list[MessageQueue] = []
        self._queues_until_s = -1.0
        self._lists_old = False
        self._brokers: frozenset[str] = frozenset()
        self._look = Look({})
        self._look_until_s = -1.0
        self._missing_since_s: dict[MessageQueue, float] = {}
        self._answers = BrokerAnswers(self._link, _bounds_of)

    def queues(self, *, all_needed: bool) -> list[MessageQueue]:
        """The readable queues of the subscription's topics."""
        self._list()
        missing = set(self._options.subscription.named_topics) - {queue.topic for queue in self._queues}
        if missing and all_needed:
            raise missing_topics_error(missing, self._link.ask(lambda consumer: consumer.topics()))
        if all_needed and self._options.subscription.pattern and not self._queues:
            pattern = self._options.subscription.pattern
            raise no_match_error(pattern, self._link.ask(lambda consumer: consumer.topics()))
        return existing_queues(self._options.subscription, self._queues, all_needed=all_needed)

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """The bounds of each queue; waits until all brokers have responded.

        Raises:
            RucolaError: a broker did not respond within the time limit.
        """
        wanted = list(queues)
        deadline_s = self._link.seconds() + self._options.retry_timeout_ms / 1000
        while (look := self.look(wanted)).waiting:
            if self._link.seconds() >= deadline_s:
                queue = min(look.waiting)
                absent = ClientError(f"broker of {queue_text(queue)} is not registered")
                raise self._answers.error_of(queue.broker_name) or absent
            self._link.wait(PAUSE_S)
        return look.bounds

    def look(self, queues: Iterable[MessageQueue]) -> Look:
        """The bounds of the queues whose brokers respond, and the queues whose brokers do not."""
        wanted = set(queues)
        now = self._link.seconds()
        if now < self._look_until_s and wanted <= self._look.bounds.keys():
            return Look({queue: self._look.bounds[queue] for queue in wanted})
        self._list()
        listed = wanted.intersection(self._queues)
        waiting = {queue for queue in wanted - listed if not self._is_gone(queue)}
        found = self._answers.look(sorted(listed))
        self._look, self._look_until_s = (
            Look(found.bounds, found.waiting | waiting),
            self._link.seconds() + BOUNDS_AGE_MAX_S,
        )
        return self._look

    def marks(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark | None]:
        """For each queue, store time and physical offset of the record at the given queue offset."""
        asked = [queue for queue in places if not self._answers.is_away(queue.broker_name)]
        answers = self._link.once(lambda consumer: each(_mark_of(consumer, queue, places[queue]) for queue in asked))
        found: dict[MessageQueue, Mark | None] = dict.fromkeys(places.keys() - set(asked))
        for queue, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Mark):
                found[queue] = answer
            elif answer is not None:
                self._answers.failed(queue.broker_name, answer)
                found[queue] = None
        return found

    def logged(self, queue: MessageQueue, queue_offset: int, mark: Mark) -> bool | None:
        """Whether the broker has the record of the mark; None if it has none there, which it need not have had."""
        place = queue.topic, queue.broker_name, mark.physical_offset
        try:
            found = self._link.once(lambda consumer: consumer.message_at(*place))
        except RucolaError:
            return None
        record = found.topic, found.queue_id, found.queue_offset, found.store_timestamp_ms
        return record == (queue.topic, queue.queue_id, queue_offset, mark.store_timestamp_ms)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset whose message was stored at or after the time."""
        return self._link.ask(lambda consumer: offset_at(consumer, queue, timestamp_ms))

    def mean_record_bytes(self, queue: MessageQueue, start: int, end: int) -> int | None:
        """Mean size of the records that one pull from ``start`` returns; None if the broker is unavailable."""
        if self._answers.is_away(queue.broker_name):
            return None
        count = min(SAMPLE_MESSAGES, end - start)
        try:
            sample = self._link.once(lambda consumer: consumer.pull_raw(queue, start, count))
        except RucolaError as error:
            self._answers.failed(queue.broker_name, error)
            return None
        return max(1, len(sample.body) // max(1, sample.next_begin_offset - start))

    def plan(self, ranges: Sequence[QueueRange]) -> list[SourceRange]:
        """One piece per queue, or several if ``records_per_partition_max`` or ``partitions_min`` requires it."""
        options = self._options
        return list(split_queue_ranges(ranges, options.partitions_min, options.records_per_partition_max))

    def holders(
        self, queues: Sequence[MessageQueue], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[MessageQueue]:
        """Returns all queues.

        To leave out queues, this method would have to search for the keys on the brokers. That takes longer than the
        requests for bounds that it would save.
        """
        return list(queues)

    def plan_lookup(
        self, ranges: Sequence[QueueRange], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[SourceRange] | None:
        """Pieces of the ranges that together hold every message with one of ``keys`` in KEYS or as UNIQ_KEY.

        Returns None if the brokers' indexes cannot be used, or if there are ``physical_offsets``: a physical offset
        does not show which broker has the record.
        """
        if any(True for _ in physical_offsets):
            return None
        found = look_up(self._link, self.marks, ranges, keys)
        return None if found is None else list(found)

    def plan_lite(self, ranges: Sequence[QueueRange], names: Collection[str]) -> None:
        """Always None: messages of a lite topic come from a broker with offsets in that topic, not in its parent."""

    def are_dense(self, ranges: Sequence[QueueRange]) -> bool:
        """Always False: brokers tell the bounds of queues, but not what is missing between them."""
        return False

    def is_batch(self, topic: str) -> bool:
        """Always False: a broker serves pulls from every type of queue."""
        return False

    def close(self) -> None:
        """Closes the connections to the brokers."""
        self._answers.close()
        self._link.close()

    def _list(self) -> None:
        """Refreshes the lists of queues and brokers if they are old. If no name server responds, the first refresh
        fails, and a later one keeps the old lists.
        """
        if self._link.seconds() < self._queues_until_s:
            return
        try:
            if self._brokers:
                self._queues, self._brokers = self._link.once(self._find_queues)
            else:
                self._queues, self._brokers = self._link.ask(self._find_queues, known=False)
        except RemotingError as error:
            if not self._brokers:
                raise
            if not self._lists_old:
                logger.warning("no name server responds; the last list of queues stays in use: %s", error)
            self._lists_old = True
        else:
            self._lists_old = False
        self._queues_until_s = self._link.seconds() + QUEUES_AGE_MAX_S
        for queue in self._missing_since_s.keys() & set(self._queues):
            del self._missing_since_s[queue]

    def _is_gone(self, queue: MessageQueue) -> bool:
        """Whether a queue that is not listed was deleted; False while its broker is not registered."""
        if queue.broker_name not in self._brokers:
            return False
        now = self._link.seconds()
        patience_s = min(GONE_PATIENCE_S, self._options.retry_timeout_ms / 1000)
        return now - self._missing_since_s.setdefault(queue, now) >= patience_s

    async def _find_queues(self, consumer: PullConsumer) -> tuple[list[MessageQueue], frozenset[str]]:
        subscription = self._options.subscription
        names: Iterable[str] = subscription.named_topics
        found: list[MessageQueue] = []
        # The list of brokers is requested before the routes, so the routes cover every listed broker. In the reverse
        # order, the queues of a broker that registers between the two requests would look deleted.
        info = await consumer.cluster_info()
        brokers = frozenset(info.broker_addr_table)
        if subscription.pattern:
            # Brokers create topics named after themselves and their cluster, and one for the cluster's replies.
            own = {
                *brokers,
                *info.cluster_addr_table,
                *(f"{name}{REPLY_TOPIC_SUFFIX}" for name in info.cluster_addr_table),
            }
            names = [topic for topic in await consumer.topics() if subscription.wants_topic(topic) and topic not in own]
        for topic in names:
            try:
                found += await consumer.message_queues(topic)
            except ClientError:
                continue  # no broker has the topic; the caller decides whether that is an error
        return found, brokers


async def offset_at(consumer: PullConsumer, queue: MessageQueue, timestamp_ms: int) -> int:
    """The first queue offset whose message was stored at or after the time; the queue's max offset if there is none."""
    found = await consumer.offset_for_time(queue, timestamp_ms)
    # Brokers of RocketMQ 4.9 return the message nearest to the time, which may be an older message.
    mark = await _mark_of(consumer, queue, found)
    return found + 1 if mark is not None and mark.store_timestamp_ms < timestamp_ms else found


async def _mark_of(consumer: PullConsumer, queue: MessageQueue, queue_offset: int) -> Mark | None:
    answer = await consumer.pull_raw(queue, queue_offset, 1)
    if not answer.body:
        # The first pull after a topic was deleted and created again tells the group to go on at offset 0.
        answer = await consumer.pull_raw(queue, queue_offset, 1)
    try:
        record = next(iter(decode_messages(answer.body, unpack=False)), None)
    except FormatError:
        return None  # the record is damaged; the task that reads the queue raises the error
    if record is None or record.queue_offset != queue_offset:
        return None
    return Mark(record.store_timestamp_ms, record.physical_offset)


async def _bounds_of(consumer: PullConsumer, queue: MessageQueue) -> Bounds:
    least, most = await asyncio.gather(consumer.min_offset(queue), consumer.max_offset(queue))
    # For a queue that never had a file, brokers return a minimum of -1, or a minimum greater than the maximum.
    return Bounds(max(0, min(least, most)), max(0, most))
