"""Finds messages by key through the indexes of brokers, on the driver.

A broker answers a query with records whose key has the same hash, and says up to which message its index goes. Messages
after that one are read by pulls. If an answer may be incomplete, there is no lookup, and the ranges are scanned.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from rucola.arrow.broker_link import BrokerLink
from rucola.arrow.offsets import Mark
from rucola.arrow.ranges import QueueRange
from rucola.client.pull_consumer import PullConsumer
from rucola.common.key_builder import is_light_queue
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, FormatError
from rucola.formats.message import decode_messages
from rucola.remoting.api import QueryAnswer

ANSWER_MAX = 64
"""Records that are asked for; brokers give no more (``maxMsgsNumBatch``)."""
COMPLETE_MAX = 32
"""An answer with fewer records is complete; records that have expired may be missing from others."""
QUERIES_MAX = 1000

Marks = Callable[[Mapping[MessageQueue, int]], Mapping[MessageQueue, Mark | None]]
"""The mark of the record at an offset of a queue."""
_Query = tuple[str, str, str]
"""Topic, broker name, key."""


def look_up(
    link: BrokerLink, marks: Marks, ranges: Sequence[QueueRange], keys: Iterable[str]
) -> list[QueueRange] | None:
    """Pieces of the ranges that hold all messages with one of the keys in KEYS or as UNIQ_KEY.

    Args:
        link: the brokers.
        marks: where records are in the log.
        ranges: where to look.
        keys: the keys.

    Returns:
        None if an index is of no use: a broker has none, it may have left out a record, or there are many queries.
    """
    wanted = [one for one in ranges if one.count > 0]
    places = {(one.queue.topic, one.queue.broker_name) for one in wanted}
    queries = [(topic, broker_name, key) for topic, broker_name in sorted(places) for key in sorted(set(keys))]
    if len(queries) > QUERIES_MAX or any(is_light_queue(topic) for topic, _ in places):
        return None
    newest = {one.queue.broker_name: one for one in sorted(wanted, key=lambda one: one.end)}
    try:
        # Before the queries, so that each of them sees at least this part of the index.
        indexed = link.ask(lambda consumer: _index_ends(consumer, newest))
        answers = link.ask(lambda consumer: _answers(consumer, queries))
        hits = _hits(queries, answers)
    except (BrokerError, FormatError):  # the scan reports what is wrong, if it is
        return None
    if hits is None or not all(indexed.values()):
        return None
    pieces: list[QueueRange] = []
    for one in wanted:
        end = _indexed_end(one, marks, indexed[one.queue.broker_name])
        if end is None:
            return None
        found = sorted(at for at in hits[one.queue] if one.start <= at < end)
        pieces += [QueueRange(one.queue, at, at + 1) for at in found]
        if end < one.end:
            pieces.append(QueueRange(one.queue, end, one.end))
    return pieces


async def _index_ends(consumer: PullConsumer, newest: Mapping[str, QueueRange]) -> dict[str, int]:
    """Physical offset of the newest record in the index of each broker; 0 if it is not known.

    A broker says it only if it finds something, so it is asked for the newest record of a range.
    """
    ends = {}
    for broker_name, one in newest.items():
        pulled = await consumer.pull_raw(one.queue, one.end - 1, 1)
        record = next(iter(decode_messages(pulled.body, unpack=False)), None)
        key = record.uniq_key if record is not None else None
        answer = await consumer.query_index(one.queue.topic, broker_name, key, 1) if key else None
        ends[broker_name] = answer.index_physical_offset if answer is not None else 0
    return ends


async def _answers(consumer: PullConsumer, queries: Sequence[_Query]) -> list[QueryAnswer]:
    return await asyncio.gather(*(consumer.query_index(*query, ANSWER_MAX) for query in queries))


def _hits(queries: Sequence[_Query], answers: Sequence[QueryAnswer]) -> dict[MessageQueue, set[int]] | None:
    """Offsets of the records in the answers; None if an answer may be incomplete."""
    hits: dict[MessageQueue, set[int]] = defaultdict(set)
    for (_, broker_name, _), answer in zip(queries, answers, strict=True):
        records = list(decode_messages(answer.records, unpack=False))
        if len(records) >= COMPLETE_MAX or answer.is_partial:
            return None
        for record in records:
            hits[MessageQueue(record.topic, broker_name, record.queue_id)].add(record.queue_offset)
    return hits


def _indexed_end(one: QueueRange, marks: Marks, indexed: int) -> int | None:
    """The first offset of the range whose record is stored after the one at ``indexed``; None if it is not known."""
    low, high = one.start, one.end
    at = one.end - 1  # mostly all records are in the index
    while low < high:
        mark = marks({one.queue: at}).get(one.queue)
        if mark is None:
            return None
        if mark.physical_offset <= indexed:
            low = at + 1
        else:
            high = at
        at = (low + high) // 2
    return low
