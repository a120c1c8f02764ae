"""Shows the progress of topics and groups (RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests 202, 208, 303, 315, 317,
321).

The figures of many queues are gathered in pieces, so those in one response may come from slightly different times.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from functools import partial

from rucola.broker.broker_stats import Rate
from rucola.broker.offset.consumer_offset_manager import topics_by_group
from rucola.broker.processor.pieces import Pieces
from rucola.broker.processor.responses import success
from rucola.broker.services import BrokerServices
from rucola.common.message_queue import MessageQueue
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError
from rucola.protocol.bodies import Body
from rucola.protocol.bodies.statistics import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueData,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GroupTopicRequestHeader,
    QueryConsumeQueueRequestHeader,
    TopicRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rucola.remoting.fairness.steps import Steps
from rucola.remoting.server import Channel
from rucola.runtime.clock import local_time_digits
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError

_UNITS_MAX = 1024
"""Maximum number of consume-queue units in one response."""


class StatisticsProcessor:
    """Gathers the figures from queue offsets, store times and message rates."""

    def __init__(self, services: BrokerServices, address: str) -> None:
        self._config = services.config
        self._address = address
        self._store = services.store
        self._topics = services.topics
        self._groups = services.groups
        self._consumers = services.consumers
        self._offsets = services.offsets
        self._stats = services.stats
        self._clock = services.clock
        self._pieces = Pieces(services.cold_reads)

    def topic_stats(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 202: the offsets of a topic."""
        return self._pieces.answer(command, partial(self._topic_stats, command))

    def consume_stats(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 208: the progress of a group."""
        return self._pieces.answer(command, partial(self._consume_stats, command))

    def all_consume_stats(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 317: the progress of all groups."""
        return self._pieces.answer(command, partial(self._all_consume_stats, command))

    def time_span(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 303: the time span of the messages of a topic."""
        return self._pieces.answer(command, partial(self._time_span, command))

    def _topic_stats(self, command: RemotingCommand, cold: ColdRecords) -> Steps[Body]:
        topic = self._topic(TopicRequestHeader.from_ext_fields(command.ext_fields).topic)
        name = topic.topic_name.encode()
        table = {}
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
            maximum = self._store.max_queue_offset(name, queue_id)
            newest_ms = self._store_time(name, queue_id, maximum - 1, cold)
            offset = TopicOffset(self._store.min_queue_offset(name, queue_id), maximum, newest_ms)
            table[self._queue(topic.topic_name, queue_id)] = offset
            yield
        rates = self._stats.topic_puts(topic.topic_name)
        return TopicStatsTable(table, rates[0].per_second if rates else 0.0)

    def _consume_stats(self, command: RemotingCommand, cold: ColdRecords) -> Steps[Body]:
        header = GetConsumeStatsRequestHeader.from_ext_fields(command.ext_fields)
        group = header.consumer_group
        listed = [name for name in (header.topic_list or "").split(";") if name.strip()]
        result = ConsumeStats()
        for name in listed or ([header.topic] if header.topic else self._offsets.topics_of(group)):
            topic = self._topics.get(name)
            # Topics that the request lists are included, even if the group no longer subscribes to them.
            if topic is not None and (listed or self._consumers.reads(group, name)):
                yield from self._add_progress(result, group, topic, cold)
        return result

    def _all_consume_stats(self, command: RemotingCommand, cold: ColdRecords) -> Steps[Body]:
        ordered_only = GetConsumeStatsInBrokerHeader.from_ext_fields(command.ext_fields).is_order
        result = ConsumeStatsList(broker_addr=self._address)
        topics = topics_by_group(self._offsets.table)
        for group in list(self._groups.table):
            listed: list[ConsumeStats] = []
            yield
            for name in topics.get(group, ()):
                topic = self._topics.get(name)
                if topic is None or (ordered_only and not topic.order) or not self._consumers.reads(group, name):
                    continue
                listed.append(ConsumeStats())
                yield from self._add_progress(listed[-1], group, topic, cold)
            result.consume_stats_list.append({group: listed})
            result.total_diff += sum(entry.total_diff() for entry in listed)
            result.total_inflight_diff += sum(entry.inflight_diff() for entry in listed)
        return result

    def _time_span(self, command: RemotingCommand, cold: ColdRecords) -> Steps[Body]:
        header = GroupTopicRequestHeader.from_ext_fields(command.ext_fields)
        topic = self._topic(header.topic)
        spans = []
        for queue_id in range(topic.write_queue_nums):
            spans.append(self._span(topic.topic_name, header.group, queue_id, cold))
            yield
        return QueryConsumeTimeSpanBody(spans)

    def broker_stats(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 315: TOPIC_PUT_NUMS of a topic, GROUP_GET_NUMS of ``topic@group``, BROKER_PUT_NUMS and
        BROKER_GET_NUMS.
        """
        header = ViewBrokerStatsDataRequestHeader.from_ext_fields(command.ext_fields)
        rates = self._rates(header.stats_name, header.stats_key)
        if rates is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        # Messages are counted one by one, so the average count per update is one.
        items = [BrokerStatsItem(rate.count, rate.per_second, float(rate.count > 0)) for rate in rates]
        return success(command, None, BrokerStatsData(*items))

    def consume_queue(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 321: units of a consume queue."""
        header = QueryConsumeQueueRequestHeader.from_ext_fields(command.ext_fields)
        name = header.topic.encode("utf-8", "surrogateescape")
        if header.index < 0 or header.count < 0:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "index and count must not be negative")
        topic = self._topics.get(header.topic)
        if topic is None or not 0 <= header.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!")
        minimum = self._store.min_queue_offset(name, header.queue_id)
        maximum = self._store.max_queue_offset(name, header.queue_id)
        body = QueryConsumeQueueResponseBody(min_queue_index=minimum, max_queue_index=maximum)
        first = max(header.index, minimum)
        for queue_offset in range(first, min(first + min(header.count, _UNITS_MAX), maximum)):
            body.queue_data.append(ConsumeQueueData(*self._store.queue_unit(name, header.queue_id, queue_offset)))
        if header.consumer_group:
            info = self._consumers.group(header.consumer_group)
            body.subscription_data = info.subscriptions.get(header.topic) if info is not None else None
            body.filter_data = "null"  # RocketMQ's text for a group without filter bits
        return success(command, None, body)

    def _add_progress(self, result: ConsumeStats, group: str, topic: TopicConfig, cold: ColdRecords) -> Steps[None]:
        name = topic.topic_name.encode()
        for queue_id in range(topic.read_queue_nums):
            consumed = max(self._offsets.query(group, topic.topic_name, queue_id) or 0, 0)
            result.offset_table[self._queue(topic.topic_name, queue_id)] = OffsetWrapper(
                self._store.max_queue_offset(name, queue_id),
                consumed,
                self._offsets.query_pulled(group, topic.topic_name, queue_id),
                self._store_time(name, queue_id, consumed - 1, cold),
            )
            yield
        rates = self._stats.group_gets(topic.topic_name, group)
        result.consume_tps += rates[0].per_second if rates else 0.0

    def _span(self, topic: str, group: str, queue_id: int, cold: ColdRecords) -> QueueTimeSpan:
        name = topic.encode()
        first = self._store.min_queue_offset(name, queue_id)
        end = self._store.max_queue_offset(name, queue_id)
        consumed = self._offsets.query(group, topic, queue_id) or 0
        first_ms = self._store_time(name, queue_id, first, cold)
        consumed_ms = self._store_time(name, queue_id, consumed - 1, cold) if consumed > 0 else first_ms
        next_ms = self._store_time(name, queue_id, consumed, cold)
        span = QueueTimeSpan(self._queue(topic, queue_id), first_ms, self._store_time(name, queue_id, end - 1, cold))
        span.consume_time_stamp = consumed_ms
        span.delay_time = max(self._clock.wall_ms() - next_ms, 0) if consumed < end and next_ms else 0
        span.min_time_stamp_str = _time_text(span.min_time_stamp)
        span.max_time_stamp_str = _time_text(span.max_time_stamp)
        span.consume_time_stamp_str = _time_text(consumed_ms)
        return span

    def _rates(self, name: str, key: str) -> tuple[Rate, Rate, Rate] | None:
        if name == "TOPIC_PUT_NUMS":
            return self._stats.topic_puts(key)
        if name == "GROUP_GET_NUMS":
            topic, _, group = key.partition("@")
            return self._stats.group_gets(topic, group)
        if key == self._config.broker_cluster_name and name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            return self._stats.broker_puts() if name == "BROKER_PUT_NUMS" else self._stats.broker_gets()
        return None

    def _topic(self, name: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._config.broker_name, queue_id)

    def _store_time(self, topic: bytes, queue_id: int, queue_offset: int, cold: ColdRecords) -> int:
        """Store time of the message at ``queue_offset``; 0 if there is no such message, or if the message must be
        fetched from the disk. ``cold`` collects the messages to fetch; they are fetched together later.
        """
        with suppress(NotInMemoryError):
            return max(self._store.store_time_at(topic, queue_id, queue_offset, cold), 0) if queue_offset >= 0 else 0
        return 0


def _time_text(wall_ms: int) -> str:
    """``yyyy-MM-dd#HH:mm:ss:SSS`` in local time."""
    d = local_time_digits(wall_ms)
    return f"{d[:4]}-{d[4:6]}-{d[6:8]}#{d[8:10]}:{d[10:12]}:{d[12:14]}:{d[14:]}"
