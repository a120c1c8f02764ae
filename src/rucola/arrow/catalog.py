"""The queues and offsets that a query needs for its plan (``Catalog``), and the rules for start and end offsets.

``Catalog`` is implemented for one store directory, for several, and for brokers; tests implement it over a dict. The
functions below are pure, except that they call a ``Catalog`` and log warnings.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rucola.arrow.offsets import EARLIEST, LATEST, Mark, QueueOffsets, queue_text
from rucola.arrow.ranges import QueueRange, SourceRange
from rucola.arrow.read_options import MissingTime, Position, ReadOptions, Subscription
from rucola.common.key_builder import is_system_topic
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, DataLossError

logger = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """The offsets that a queue holds: from ``min`` up to but not including ``max``."""

    min: int
    max: int


class Look(NamedTuple):
    """The bounds of some queues at one moment. A requested queue that is in neither field does not exist."""

    bounds: dict[MessageQueue, Bounds]
    waiting: frozenset[MessageQueue] = frozenset()
    """Queues of brokers that do not respond."""


class Catalog(Protocol):
    """The queues of a subscription, in a directory or on brokers. Used on the driver only. Methods may block, and
    repeat failed requests themselves.
    """

    def queues(self, *, all_needed: bool) -> list[MessageQueue]:
        """The existing queues of the subscription, sorted; with ``all_needed`` a missing queue raises
        ``ConfigError``.
        """

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """Bounds of each queue that exists; waits until all brokers have responded."""

    def look(self, queues: Iterable[MessageQueue]) -> Look:
        """Like ``bounds``, but waits only briefly; the queues of slow or unavailable brokers are in ``waiting``."""

    def marks(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark | None]:
        """Store time and physical offset of the record at each queue offset. A queue without a record at its offset has
        no entry. The value is None if the broker does not respond.
        """

    def logged(self, queue: MessageQueue, queue_offset: int, mark: Mark) -> bool | None:
        """Whether the log of the queue's broker has, at the mark's physical offset, a record of this queue with this
        queue offset and store time, even if the queue was deleted since. None if that cannot be told.
        """

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after the time; the queue's max offset if there is none."""

    def mean_record_bytes(self, queue: MessageQueue, start: int, end: int) -> int | None:
        """Mean record size in bytes of a sample from offset ``start`` on; at least 1, or None if the broker is
        unavailable.
        """

    def plan(self, ranges: Sequence[QueueRange]) -> list[SourceRange]:
        """Divides the ranges into pieces for tasks; the pieces depend only on ``ranges`` and the options."""

    def holders(
        self, queues: Sequence[MessageQueue], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[MessageQueue]:
        """The queues among ``queues`` that may hold a wanted message; the other queues certainly hold none.

        A message is wanted if it has one of ``keys`` in KEYS or as UNIQ_KEY, or begins at one of ``physical_offsets``.
        """

    def plan_lookup(
        self, ranges: Sequence[QueueRange], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[SourceRange] | None:
        """Pieces of the ranges that together hold every wanted message, and perhaps others; None if no index helps.

        A message is wanted if it has one of ``keys`` in KEYS or as UNIQ_KEY, or begins at one of ``physical_offsets``.
        """

    def plan_lite(self, ranges: Sequence[QueueRange], names: Collection[str]) -> list[SourceRange] | None:
        """Pieces of the ranges that together hold every message in one of the lite topics ``names`` of its topic, and
        perhaps others; None if the queues of lite topics do not help.
        """

    def are_dense(self, ranges: Sequence[QueueRange]) -> bool:
        """Whether it is known, without reading the messages, that a scan of the ranges finds one at each offset."""

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic cannot be read, because they are of type BatchCQ."""

    def close(self) -> None:
        """Frees files and connections."""


def existing_queues(
    subscription: Subscription, found: Iterable[MessageQueue], *, all_needed: bool
) -> list[MessageQueue]:
    """The queues among ``found`` that belong to the subscription, sorted.

    Raises:
        ConfigError: only with ``all_needed``: a named topic or queue does not exist, or no topic matches the pattern.
    """
    found = set(found)
    if subscription.queues:
        wanted = sorted(found.intersection(subscription.queues))
        missing = [queue for queue in subscription.queues if queue not in found]
        if missing and all_needed:
            there = ", ".join(queue_text(queue) for queue in sorted(found)) or "none yet"
            raise ConfigError("assign", ", ".join(map(queue_text, missing)), f"existing queues: {there}")
        return wanted
    wanted = sorted(queue for queue in found if subscription.wants_topic(queue.topic))
    missing_topics = sorted(set(subscription.topics) - {queue.topic for queue in wanted})
    if missing_topics and all_needed:
        raise missing_topics_error(missing_topics, (queue.topic for queue in found))
    if subscription.pattern and not wanted and all_needed:
        raise no_match_error(subscription.pattern, (queue.topic for queue in found))
    return wanted


def missing_topics_error(missing: Iterable[str], existing: Iterable[str]) -> ConfigError:
    """Reports which topics or queues are missing, and which exist."""
    topics = sorted({topic for topic in existing if not is_system_topic(topic)})
    return ConfigError("topic", ", ".join(sorted(missing)), "existing topics: " + (", ".join(topics) or "none yet"))


def no_match_error(pattern: str, existing: Iterable[str]) -> ConfigError:
    """Reports that no topic matches, and which topics exist."""
    topics = sorted({topic for topic in existing if not is_system_topic(topic)})
    allowed = "a pattern that matches a whole topic name; existing topics: " + (", ".join(topics) or "none yet")
    return ConfigError("subscribePattern", pattern, allowed)


def starting_offsets(
    options: ReadOptions, catalog: Catalog, queues: Sequence[MessageQueue], default: str
) -> QueueOffsets:
    """The start offset of each queue; ``default`` is ``earliest`` or ``latest``.

    Raises:
        ConfigError: a JSON document of offsets or times does not name exactly the subscription's queues, or a queue
            has no message at or after the starting time.
        DataLossError: a requested offset is gone or does not exist yet, and ``failOnDataLoss`` is set.
    """
    position = options.starting or Position(name=default)
    bounds = catalog.bounds(queues)
    if position.timestamp_ms is not None or position.timestamps is not None:
        return _starting_by_time(options, position, catalog, bounds)
    if position.offsets is None:
        return {queue: bounds[queue].min if position.name == "earliest" else bounds[queue].max for queue in bounds}
    _check_same_queues("startingOffsets", position.offsets, bounds)
    starting: QueueOffsets = {}
    for queue, (least, most) in bounds.items():
        wanted = {EARLIEST: least, LATEST: most}.get(position.offsets[queue], position.offsets[queue])
        starting[queue] = clamp(QueueRange(queue, wanted, wanted), bounds[queue], options.fail_on_data_loss).start
    return starting


def ending_offsets(options: ReadOptions, catalog: Catalog, queues: Sequence[MessageQueue]) -> QueueOffsets:
    """The end offset of each queue for a batch query. The offsets are determined once, so the query does not return
    messages that are stored later.

    Raises:
        ConfigError: a JSON document of offsets or times does not name exactly the subscription's queues.
    """
    position = options.ending
    bounds = catalog.bounds(queues)
    if position.timestamp_ms is not None:
        return {queue: catalog.offset_at(queue, position.timestamp_ms) for queue in bounds}
    if position.timestamps is not None:
        _check_same_queues("endingOffsetsByTimestamp", position.timestamps, bounds)
        return {queue: catalog.offset_at(queue, position.timestamps[queue]) for queue in bounds}
    if position.offsets is None:
        return {queue: bounds[queue].max for queue in bounds}
    _check_same_queues("endingOffsets", position.offsets, bounds)
    offsets = position.offsets
    return {queue: bounds[queue].max if offsets[queue] == LATEST else offsets[queue] for queue in bounds}


def checked_ranges(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    bounds: Mapping[MessageQueue, Bounds],
    fail_on_data_loss: bool,
) -> list[QueueRange]:
    """The ranges from ``start`` to ``end``, limited to the offsets that exist.

    A queue only in ``end`` is new and is read from its minimum offset. A queue only in ``start`` counts as data loss.

    Raises:
        DataLossError: requested messages do not exist and ``fail_on_data_loss`` is set.
    """
    ranges = []
    for queue in sorted({*start, *end}):
        here = bounds.get(queue, Bounds(0, 0))
        if queue not in end:
            _lost(queue, start[queue], start[queue], here, fail_on_data_loss)
            continue
        first = start.get(queue, here.min)
        if first < end[queue]:
            ranges.append(clamp(QueueRange(queue, first, end[queue]), here, fail_on_data_loss))
    return [one for one in ranges if one.count > 0]


def can_narrow(options: ReadOptions) -> bool:
    """Whether a reader may leave out queues before it knows their bounds. No queue can be left out if ``options``
    have offsets or times, which concern every queue.
    """
    positions = (options.starting or Position(), options.ending)
    return all(one.offsets is None and one.timestamp_ms is None and one.timestamps is None for one in positions)


def clamp(wanted: QueueRange, bounds: Bounds, fail_on_data_loss: bool) -> QueueRange:
    """The part of ``wanted`` that exists.

    Raises:
        DataLossError: a part does not exist, and ``fail_on_data_loss`` is set.
    """
    if bounds.min <= wanted.start and wanted.end <= bounds.max:
        return wanted
    _lost(wanted.queue, wanted.start, wanted.end, bounds, fail_on_data_loss)
    start = min(max(wanted.start, bounds.min), bounds.max)
    return QueueRange(wanted.queue, start, max(start, min(wanted.end, bounds.max)))


def _lost(queue: MessageQueue, start: int, end: int, bounds: Bounds, fail: bool) -> None:
    error = DataLossError(queue_text(queue), start, end, bounds.min, bounds.max)
    if fail:
        raise error
    logger.warning("%s; the query continues, because failOnDataLoss is off", error)


def _starting_by_time(
    options: ReadOptions, position: Position, catalog: Catalog, bounds: Mapping[MessageQueue, Bounds]
) -> QueueOffsets:
    if position.timestamps is not None:
        _check_same_queues("startingOffsetsByTimestamp", position.timestamps, bounds)
    starting: QueueOffsets = {}
    for queue in bounds:
        timestamp_ms = position.timestamps[queue] if position.timestamps is not None else position.timestamp_ms
        assert timestamp_ms is not None
        starting[queue] = catalog.offset_at(queue, timestamp_ms)
        if starting[queue] >= bounds[queue].max and options.starting_missing_time is MissingTime.ERROR:
            raise ConfigError(
                "startingTimestamp" if position.timestamps is None else "startingOffsetsByTimestamp",
                str(timestamp_ms),
                f"a time not after the last message of {queue_text(queue)}, or "
                "startingOffsetsByTimestampStrategy=latest",
            )
    return starting


def _check_same_queues(option: str, given: Mapping[MessageQueue, int], existing: Mapping[MessageQueue, object]) -> None:
    different = sorted(set(given) ^ set(existing))
    if different:
        raise ConfigError(
            option,
            ", ".join(queue_text(queue) for queue in different),
            "exactly the queues of the subscription: " + ", ".join(queue_text(queue) for queue in sorted(existing)),
        )
