"""Topics as a PyArrow dataset. DuckDB, Polars and pandas read the dataset and push projections and filters down to it.

Each scan first plans what to read, from the offsets at that time, and then reads it. Messages that a running broker
stores meanwhile belong to the next scan.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from rucola.arrow.catalog import Catalog, can_narrow, checked_ranges, ending_offsets, starting_offsets
from rucola.arrow.columns import arrow_schema
from rucola.arrow.filters import Node, values_of
from rucola.arrow.key_lookup import KeyLookup, lookup_of_columns
from rucola.arrow.lite_condition import lite_condition
from rucola.arrow.numbered_rows import QUEUE_COLUMNS, numbered_rows
from rucola.arrow.ranges import QueueRange
from rucola.arrow.read_options import ReadOptions, SchemaStyle, Subscription
from rucola.arrow.reading import open_catalog, read_range
from rucola.arrow.schema import all_columns
from rucola.arrow.selection import select_ranges, tag_expression, times_of_ranges
from rucola.arrow.virtual_dataset import VirtualDataset
from rucola.common.local_path import local_path
from rucola.errors import ConfigError

ALL_TOPICS = r"(?!%LMQ%)(%RETRY%|%DLQ%)?(?s:.*)"
"""As the pattern of a ``Subscription``, matches all topics except system topics and light queues. Messages in light
queues belong to other topics, too. Names may have any characters, such as a line break.
"""

logger = logging.getLogger(__name__)


class TopicDataset(VirtualDataset):
    """A dataset of messages; a scan reads only the requested columns, and only pieces that may match the filter.

    A filter on ``topic``, ``queueId``, ``queueOffset`` and ``storeTimestamp`` limits the ranges that are read. A filter
    on ``tags`` chooses records by the entries of the queue. A filter on ``keys`` or ``msgId`` uses the index of a
    store. A filter on ``liteTopic`` chooses records before their columns are built, and for a few names uses the
    store's queues of lite topics. A scan of topics, queues and offsets reads no message of a store whose queues have an
    entry for each.

    Args:
        options: where and what to read.
        use_index: whether key lookups may use the store's index. If a broker ran with ``messageIndexEnable=false`` for
            a while, the index lacks the messages of that time.
    """

    def __init__(self, options: ReadOptions, use_index: bool = True) -> None:
        super().__init__(arrow_schema(all_columns(options)), "queueOffset")
        self._options = options
        self._use_index = use_index

    def batches(self, schema: pa.Schema, node: Node | None) -> Iterator[pa.RecordBatch]:
        """Yields the messages that exist now and may pass the filter."""
        options = self._options
        if node is not None and options.expression.matches_all:
            tags = values_of(node, "tags")
            expression = None if tags is None else tag_expression(tags)
            if expression is not None:
                options = replace(options, expression=expression)
        if node is not None and options.include_lite:
            options = replace(options, lite=lite_condition(node))
        catalog = open_catalog(options)
        try:
            keys, ids = (None, None) if node is None else (values_of(node, "keys"), values_of(node, "msgId"))
            lookup = lookup_of_columns(keys, ids) if self._use_index else None
            ranges = _ranges(options, catalog, lookup)
            if node is not None:
                ranges = select_ranges(node, ranges, catalog)
            if _is_in_queues(options, schema.names) and catalog.are_dense(ranges):
                return numbered_rows(schema, ranges)
            found = None if lookup is None else catalog.plan_lookup(ranges, *lookup)
            if found is None and options.lite.names is not None:
                found = catalog.plan_lite(ranges, options.lite.names)
            pieces = catalog.plan(ranges) if found is None else found
        finally:
            catalog.close()
        return (batch for piece in pieces for batch in read_range(options, schema, piece))

    def extent(self) -> Extent | None:
        """Number, offsets and store times of all messages that exist now; None if the queues do not show them.

        Of a large topic, the store times of a sample are looked at. They must not step back.
        """
        if not _is_in_queues(self._options, QUEUE_COLUMNS):
            return None
        catalog = open_catalog(self._options)
        try:
            ranges = _ranges(self._options, catalog, None)
            if not catalog.are_dense(ranges):
                return None
            if not ranges:
                return Extent(0)
            times = times_of_ranges(ranges, catalog)
        finally:
            catalog.close()
        offsets = min(one.start for one in ranges), max(one.end for one in ranges) - 1
        return None if times is None else Extent(sum(one.count for one in ranges), offsets, times)


class Extent(NamedTuple):
    """Number of messages, and their least and greatest values; the values are None without messages."""

    messages: int
    offsets: tuple[int, int] | None = None
    store_timestamps_ms: tuple[int, int] | None = None

    def value(self, function: str, column: str = "") -> int | None:
        """The number of messages for ``count``; otherwise ``min`` or ``max`` of a column, times in microseconds."""
        if function == "count":
            return self.messages
        both, unit = (self.offsets, 1) if column == "queueOffset" else (self.store_timestamps_ms, 1000)
        return None if both is None else both[function == "max"] * unit


def topic_options(
    store: str | os.PathLike[str] | None, topic: str | Sequence[str] | None, name_server: str, **more: Any
) -> ReadOptions:
    """Makes the options of a reader.

    Args:
        store: store directory.
        topic: one topic, or several; None for all topics except system topics and light queues.
        name_server: name servers, `host:port` separated by `;`, to read through brokers.
        more: further fields of ``ReadOptions``.

    Raises:
        ConfigError: not exactly one of ``store`` and ``name_server`` is given, or ``topic`` is or contains an empty
            name, or is an empty sequence.
    """
    if (store is None) is not bool(name_server):
        raise ConfigError(
            "store, name_server", "both" if name_server else "neither", "exactly one of store and name_server"
        )
    topics = (topic,) if isinstance(topic, str) else tuple(topic or ())
    if topic is not None and not all(topics or [""]):
        raise ConfigError("topic", "", "a topic name, several topic names, or None for all topics")
    everything = Subscription(pattern=ALL_TOPICS)
    subscription = everything if topic is None else Subscription(topics=tuple(sorted(set(topics))))
    path = "" if store is None else str(Path(local_path("store", os.fspath(store))).expanduser())
    return ReadOptions(store_path=path, name_server=name_server, subscription=subscription, **more)


def _ranges(options: ReadOptions, catalog: Catalog, lookup: KeyLookup | None) -> list[QueueRange]:
    """The ranges of all messages that the queues hold now; with ``lookup``, only queues that may hold a wanted
    message.
    """
    queues = catalog.queues(all_needed=not options.subscription.pattern)
    if options.subscription.pattern:
        batched = {topic for topic in {queue.topic for queue in queues} if catalog.is_batch(topic)}
        if batched:
            logger.warning("topics left out, because their queues are of type BatchCQ: %s", ", ".join(sorted(batched)))
            queues = [queue for queue in queues if queue.topic not in batched]
    if lookup is not None and can_narrow(options):
        queues = catalog.holders(queues, *lookup)
    start = starting_offsets(options, catalog, queues, "earliest")
    end = ending_offsets(options, catalog, queues)
    return checked_ranges(start, end, catalog.bounds(queues), options.fail_on_data_loss)


def _is_in_queues(options: ReadOptions, columns: Iterable[str]) -> bool:
    """Whether the queues alone have all columns, and show which messages are wanted."""
    is_everything = options.expression.matches_all and options.lite.matches_all and not options.keys
    return is_everything and options.schema_style is SchemaStyle.ROCKETMQ and QUEUE_COLUMNS.issuperset(columns)
