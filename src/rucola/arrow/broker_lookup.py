"""Finds messages by key through the indexes of brokers, on the driver.

A broker's query response contains records whose key has the same hash, and the physical offset up to which the index
goes. Later messages are read by pulls. If a response may be incomplete, there is no lookup, and the ranges are scanned.
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
"""Largest number of records that a query requests; brokers return no more (``maxMsgsNumBatch``)."""
COMPLETE_MAX = 32
"""A response with fewer records has all records of the key. A larger one may lack some, because the broker's limit also
counts expired records.
"""
QUERIES_MAX = 1000

Marks = Callable[[Mapping[MessageQueue, int]], Mapping[MessageQueue, Mark | None]]
"""Function that returns store time and physical offset of the record at each given queue offset."""
_Query = tuple[str, str, str]
"""Topic, broker name, key."""


def look_up(
    link: BrokerLink, marks: Marks, ranges: Sequence[QueueRange], keys: Iterable[str]
) -> list[QueueRange] | None:
    """Finds pieces of ``ranges`` that together hold every message with one of ``keys`` in KEYS or as UNIQ_KEY.

    Args:
        link: connection to the brokers.
        marks: function that finds store time and physical offset of records.
        ranges: where to look.
        keys: wanted keys.

    Returns:
        The pieces. None if the indexes cannot be used, for example because a broker has none, a response may lack a
        record, or there would be too many queries.
    """
    wanted = [one for one in ranges if one.count > 0]
    places = {(one.queue.topic, one.queue.broker_name) for one in wanted}
    queries = [(topic, broker_name, key) for topic, broker_name in sorted(places) for key in sorted(set(keys))]
    if len(queries) > QUERIES_MAX or any(is_light_queue(topic) for topic, _ in places):
        return None
    newest = {one.queue.broker_name: one for one in sorted(wanted, key=lambda one: one.end)}
    try:
        # The ends of the indexes are read first, so that each query covers the indexes at least up to these ends.
        indexed = link.ask(lambda consumer: _index_ends(consumer, newest))
        answers = link.ask(lambda consumer: _answers(consumer, queries))
        hits = _hits(queries, answers)
    except (BrokerError, FormatError):  # the scan reports the problem if it persists
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
    """For each broker name, the physical offset of the newest record in the index; 0 if it is not known.

    A broker reports this offset only if a query finds a record, so each query is for the newest record of a range.
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
    """For each queue, the offsets of the records in the responses; None if a response may be incomplete."""
    hits: dict[MessageQueue, set[int]] = defaultdict(set)
    for (_, broker_name, _), answer in zip(queries, answers, strict=True):
        records = list(decode_messages(answer.records, unpack=False))
        if len(records) >= COMPLETE_MAX or answer.is_partial:
            return None
        for record in records:
            hits[MessageQueue(record.topic, broker_name, record.queue_id)].add(record.queue_offset)
    return hits


def _indexed_end(one: QueueRange, marks: Marks, indexed: int) -> int | None:
    """The first offset in ``one`` whose record comes after physical offset ``indexed``; None if it is not known."""
    low, high = one.start, one.end
    at = one.end - 1  # usually all records are in the index
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
