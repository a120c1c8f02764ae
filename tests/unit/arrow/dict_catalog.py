"""A catalog over a dict of bounds, for planning tests without store, broker or Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from rucola.arrow.catalog import Bounds, Look, existing_queues
from rucola.arrow.offsets import Mark
from rucola.arrow.ranges import QueueRange, SourceRange, split_queue_ranges
from rucola.common.message_queue import MessageQueue
from rucola.errors import RemotingConnectError
from rucola.spark.options import SourceOptions


class DictCatalog:
    """A catalog whose queues and bounds are set by the test. Message n of each queue was stored at ``1000 * n`` ms and
    has 100 bytes.
    """

    def __init__(self, options: SourceOptions, bounds: dict[MessageQueue, Bounds]) -> None:
        self.options = options
        self.table = bounds
        self.away: set[str] = set()
        """Names of brokers that do not respond."""
        self.mute: set[str] = set()
        """Names of brokers that respond only to requests for offsets."""
        self.dying: set[str] = set()
        """Names of brokers that respond to a request for bounds, and to no later request."""
        self.times: dict[MessageQueue, int] = {}
        """Store time of message 0 in a queue; 0 if not set."""
        self.in_log: dict[MessageQueue, bool] = {}
        """Queues of which it is known whether the log has their record."""
        self.closed = False

    def queues(self, *, all_needed: bool) -> list[MessageQueue]:
        return existing_queues(self.options.subscription, self.table, all_needed=all_needed)

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        wanted = list(queues)
        if away := self.away.intersection(queue.broker_name for queue in wanted):
            raise RemotingConnectError(min(away), "away for longer than retryTimeoutMs")
        return {queue: self.table[queue] for queue in wanted if queue in self.table}

    def look(self, queues: Iterable[MessageQueue]) -> Look:
        wanted = list(queues)
        waiting = frozenset(queue for queue in wanted if queue.broker_name in self.away)
        return Look(self.bounds(queue for queue in wanted if queue not in waiting), waiting)

    def marks(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark | None]:
        return {
            queue: None
            if queue.broker_name in self.away | self.dying
            else Mark(self.times.get(queue, 0) + 1000 * at, 100 * at)
            for queue, at in places.items()
            if queue in self.table and self.table[queue].min <= at < self.table[queue].max
        }

    def logged(self, queue: MessageQueue, queue_offset: int, mark: Mark) -> bool | None:
        return self.in_log.get(queue)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        least, most = self.table[queue]
        return min(max(least, -(-(timestamp_ms - self.times.get(queue, 0)) // 1000)), most)

    def mean_record_bytes(self, queue: MessageQueue, start: int, end: int) -> int | None:
        return None if queue.broker_name in self.mute else 100

    def plan(self, ranges: Sequence[QueueRange]) -> list[SourceRange]:
        return list(split_queue_ranges(ranges, self.options.partitions_min, self.options.records_per_partition_max))

    def holders(
        self, queues: Sequence[MessageQueue], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[MessageQueue]:
        return list(queues)

    def plan_lookup(self, ranges: Sequence[QueueRange], keys: Iterable[str], physical_offsets: Iterable[int]) -> None:
        return None

    def plan_lite(self, ranges: Sequence[QueueRange], names: Collection[str]) -> None:
        return None

    def are_dense(self, ranges: Sequence[QueueRange]) -> bool:
        return False

    def is_batch(self, topic: str) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
