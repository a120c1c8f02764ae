"""Metrics by topic and consumer group under the names of RocketMQ 5.x (``BrokerMetricsManager``), so that dashboards
for RocketMQ's brokers also work with Rucola's.

A broker may have very many topics. Only the topics with the most messages since start-up are listed; a separate
metric counts the others. The lag of a group is listed while one of its consumers is connected and, unlike in RocketMQ,
while its consumers are away, for the topics in which it has committed offsets: then the lag grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, heappushpop
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rucola.broker import Broker
from rucola.common.key_builder import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_system_topic,
)
from rucola.remoting.fairness.steps import Steps

TOPICS_MAX = 1000
"""At most this many topics, this many groups, and this many pairs of group and topic are listed."""

_STEP = 64
"""Number of queues, or of groups that need no look, in one step."""
_NODE = ("cluster", "node_type", "node_id")


def topic_metrics(broker: Broker, topics_max: int = TOPICS_MAX) -> Steps[list[Metric]]:
    """Messages stored since start-up, by topic. Each step counts one topic."""
    listed: list[tuple[int, bytes]] = []
    left_out = 0
    for name in broker.store.appended_topics():
        count = broker.store.appended_count(name)
        if count and len(listed) < topics_max:
            heappush(listed, (count, name))
        elif count:
            heappushpop(listed, (count, name))
            left_out += 1
        yield
    family = CounterMetricFamily(
        "rocketmq_messages_in",
        "Messages stored since start-up, by topic.",
        labels=(*_NODE, "topic", "is_system"),
    )
    node = _node(broker)
    for count, name in sorted(listed, reverse=True):
        topic = name.decode("utf-8", "replace")
        family.add_metric((*node, topic, _bool(is_system_topic(topic))), count)
    topics_out = GaugeMetricFamily(
        "rucola_topics_not_listed",
        "Topics that got messages since start-up, but are left out of /metrics.",
        left_out,
    )
    return [family, topics_out]


def group_metrics(broker: Broker, pairs_max: int = TOPICS_MAX) -> Steps[list[Metric]]:
    """Members of the groups with connected consumers; lag and messages in flight of these and of the groups whose
    consumers are away. A step may have to search the disk for the files of queues that the broker has not used since
    its start-up.
    """
    node, services = _node(broker), broker.services
    connections = GaugeMetricFamily(
        "rocketmq_consumer_connections",
        "Connected consumers, by group.",
        labels=(*_NODE, "consumer_group", "consume_mode"),
    )
    labels = (*_NODE, "consumer_group", "topic", "is_retry")
    lag = GaugeMetricFamily(
        "rocketmq_consumer_lag_messages", "Messages that the group has not consumed yet.", labels=labels
    )
    inflight = GaugeMetricFamily(
        "rocketmq_consumer_inflight_messages", "Messages delivered to the group and not consumed yet.", labels=labels
    )
    groups = services.consumers.groups()
    left_out = pairs = 0
    for group in list(islice(groups, pairs_max)):
        mode = "push" if group.consume_type == "CONSUME_PASSIVELY" else "pull"
        connections.add_metric((*node, group.group, mode), len(group.clients))
        for topic in list(group.subscriptions):
            if pairs >= pairs_max:
                left_out += 1
                continue
            pairs += 1
            behind, handed_out = yield from _behind(broker, group.group, topic)
            lag.add_metric((*node, group.group, topic, _is_retry(topic)), behind)
            inflight.add_metric((*node, group.group, topic, _is_retry(topic)), handed_out)
            yield
    connected = {group.group for group in groups}
    for number, key in enumerate(list(services.offsets.table)):
        topic, _, name = key.rpartition("@")
        known = name in services.groups.table and topic in services.topics.table
        if known and name not in connected and not name.startswith(SYSTEM_GROUP_PREFIX):
            if pairs >= pairs_max:
                left_out += 1
            else:
                pairs += 1
                behind, _ = yield from _behind(broker, name, topic)
                lag.add_metric((*node, name, topic, _is_retry(topic)), behind)
        if number % _STEP == 0:
            yield
    subscriptions_out = GaugeMetricFamily(
        "rucola_subscriptions_not_listed",
        "Pairs of group and topic left out of /metrics.",
        left_out,
    )
    groups_out = GaugeMetricFamily(
        "rucola_groups_not_listed", "Connected groups that are left out of /metrics.", max(len(groups) - pairs_max, 0)
    )
    return [connections, lag, inflight, subscriptions_out, groups_out]


def broker_metrics(broker: Broker) -> Iterator[Metric]:
    """RocketMQ's metrics for the whole broker."""
    node, store = _node(broker), broker.store
    for name, text, value in (
        ("rocketmq_broker_permission", "4 readable, 2 writable, 6 both.", broker.config.broker_permission),
        ("rocketmq_topic_number", "Topics.", len(broker.topics.table)),
        ("rocketmq_consumer_group_number", "Configured consumer groups.", len(broker.groups.table)),
        (
            "rocketmq_half_messages",
            "Transactional messages without a commit or rollback yet.",
            len(broker.services.halves.pending),
        ),
        ("rocketmq_storage_size", "Bytes of the commit log.", store.max_offset - store.min_offset),
        (
            "rocketmq_storage_flush_behind_bytes",
            "Bytes of the commit log that are not synced yet.",
            max(store.max_offset - store.flushed_offset, 0),
        ),
        (
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes of the commit log that consumers cannot see yet.",
            store.dispatch_behind_bytes,
        ),
    ):
        family = GaugeMetricFamily(name, text, labels=_NODE)
        family.add_metric(node, value)
        yield family


def _behind(broker: Broker, group: str, topic: str) -> Steps[tuple[int, int]]:
    """Returns how many messages of the topic the group has not consumed, and how many of these messages were delivered
    to the group.
    """
    config = broker.topics.get(topic)
    if config is None:
        return 0, 0
    offsets, name = broker.offsets, topic.encode("utf-8", "surrogateescape")
    behind = handed_out = 0
    for queue_id in range(config.read_queue_nums):
        consumed = offsets.query(group, topic, queue_id)
        if consumed is None:
            consumed = broker.store.min_queue_offset(name, queue_id)
        behind += max(broker.store.max_queue_offset(name, queue_id) - consumed, 0)
        handed_out += max(offsets.query_pulled(group, topic, queue_id) - consumed, 0)
        if queue_id % _STEP == _STEP - 1:
            yield
    return behind, handed_out


def _node(broker: Broker) -> tuple[str, str, str]:
    return broker.config.broker_cluster_name, "broker", broker.config.broker_name


def _is_retry(topic: str) -> str:
    return _bool(topic.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)))


def _bool(value: bool) -> str:
    return "true" if value else "false"
