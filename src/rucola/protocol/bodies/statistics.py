"""Bodies with offsets and rates of queues and groups: responses to 202, 208, 303, 315, 317 and 321 (``protocol.md``
2.8). Times are in ms, rates are per second.
"""

from __future__ import annotations

from dataclasses import field

from rucola.common.late_dataclass import late_dataclass
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.body import Body
from rucola.protocol.bodies.heartbeat import SubscriptionData


@late_dataclass
class TopicOffset(Body):
    """Minimum and maximum offset of a queue, and the store time of the newest message in the queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@late_dataclass
class TopicStatsTable(Body):
    """Response to 202 (GET_TOPIC_STATS_INFO)."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


@late_dataclass
class OffsetWrapper(Body):
    """Offsets of a group in one queue; ``last_timestamp``: store time of the last consumed message, 0 if there is none.

    Attributes:
        pull_offset: offset after the last message given to a consumer; 0 from brokers before 5.0, which do not report
            it.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0

    @property
    def inflight(self) -> int:
        """Number of messages that consumers have fetched but not yet consumed."""
        return max(self.pull_offset - self.consumer_offset, 0)


@late_dataclass
class ConsumeStats(Body):
    """Response to 208 (GET_CONSUME_STATS)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    def total_diff(self) -> int:
        """Returns the number of messages that the group has not yet consumed."""
        return sum(wrapper.broker_offset - wrapper.consumer_offset for wrapper in self.offset_table.values())

    def inflight_diff(self) -> int:
        """Returns the number of messages fetched but not yet consumed."""
        return sum(wrapper.inflight for wrapper in self.offset_table.values())


@late_dataclass
class ConsumeStatsList(Body):
    """Response to 317 (GET_BROKER_CONSUME_STATS): for each group, the group's statistics by topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str = ""
    total_diff: int = 0
    total_inflight_diff: int = 0


@late_dataclass
class BrokerStatsItem(Body):
    """The sum of a counter over an interval; ``avgpt``: average per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@late_dataclass
class BrokerStatsData(Body):
    """Response to 315 (VIEW_BROKER_STATS_DATA)."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)


@late_dataclass
class QueueTimeSpan(Body):
    """Store times of a queue's first and last message and of the group's last consumed message; ``delay_time``: age of
    the oldest unconsumed message.
    """

    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0
    min_time_stamp_str: str = ""
    max_time_stamp_str: str = ""
    consume_time_stamp_str: str = ""


@late_dataclass
class QueryConsumeTimeSpanBody(Body):
    """Response to 303 (QUERY_CONSUME_TIME_SPAN)."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


@late_dataclass
class ConsumeQueueData(Body):
    """One unit of a consume queue; ``eval``: whether the group's filter accepts the unit's filter bits."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    eval: bool = False


@late_dataclass
class QueryConsumeQueueResponseBody(Body):
    """Response to 321 (QUERY_CONSUME_QUEUE)."""

    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
