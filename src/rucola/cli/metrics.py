"""The broker's figures in Prometheus' text format, collected at each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from rucola.broker import Broker
from rucola.cli.topic_metrics import broker_metrics, group_metrics, topic_metrics
from rucola.runtime.supervision import Supervisor


class BrokerCollector(Collector):
    """Collects the figures of one broker. ``others``: supervisors of the process's other servers."""

    def __init__(self, broker: Broker, *others: Supervisor) -> None:
        self._broker = broker
        self._supervisors = (broker.services.supervisor, *others)

    def collect(self) -> Iterator[Metric]:
        """All metrics with their current values."""
        broker, store = self._broker, self._broker.store
        yield CounterMetricFamily("rucola_messages_put", "Messages stored since the start.", store.stats.put_messages)
        yield CounterMetricFamily(
            "rucola_messages_got", "Messages delivered to consumers since the start.", store.stats.got_messages
        )
        yield CounterMetricFamily(
            "rucola_bytes_got", "Bytes of messages delivered to consumers since the start.", store.stats.got_bytes
        )
        yield CounterMetricFamily(
            "rucola_damaged_messages", "Reads that found a damaged message.", store.stats.damaged_messages
        )
        yield CounterMetricFamily(
            "rucola_segments_expired",
            "Segments of the commit log removed, for whatever reason.",
            store.stats.expired_segments,
        )
        yield CounterMetricFamily(
            "rucola_segments_forced",
            "Segments removed before fileReservedTime, because the disk was full.",
            store.stats.forced_segments,
        )
        yield CounterMetricFamily(
            "rucola_consumer_offsets_clamped", "Consumer offsets corrected at the start.", broker.offsets.clamped
        )
        yield CounterMetricFamily(
            "rucola_connections_refused",
            "Connections closed at once, because there were too many.",
            broker.refused_connections,
        )
        failures = CounterMetricFamily(
            "rucola_work_failures", "Failed turns of background work, by the name of the work.", labels=["work"]
        )
        counts = sum((supervisor.failures for supervisor in self._supervisors), Counter[str]())
        for work in sorted({name for supervisor in self._supervisors for name in supervisor.failures}):
            failures.add_metric([work], counts[work])
        yield failures
        watch = broker.services.loop_watch
        yield CounterMetricFamily(
            "rucola_loop_slow_turns",
            "Turns of the event loop over 50 ms; nobody else is served in one.",
            watch.slow_turns,
        )
        access = broker.services.access
        if access is not None:
            accounts, guard = access.accounts, access.guard
            yield CounterMetricFamily("rucola_acl_refused", "Requests refused by access control.", guard.refused)
            yield CounterMetricFamily(
                "rucola_acl_unknown_senders",
                "Requests refused because they had no valid signature.",
                guard.unknown_senders,
            )
            yield CounterMetricFamily(
                "rucola_acl_reload_failures",
                "Changed ACL files that were broken and therefore ignored.",
                accounts.failures,
            )
            yield GaugeMetricFamily(
                "rucola_acl_stale",
                "1 while the ACL files are broken and the last good accounts are in use.",
                int(bool(accounts.error)),
            )
        for name, text, value in (
            (
                "rucola_loop_longest_turn_seconds",
                "Longest turn of the event loop in the last one to two minutes.",
                watch.longest_s,
            ),
            ("rucola_ready", "1 while the broker takes and delivers messages.", int(broker.ready)),
            ("rucola_commitlog_max_offset_bytes", "End of the commit log, in bytes.", store.max_offset),
            (
                "rucola_commitlog_min_offset_bytes",
                "Start of the commit log: the oldest message that is kept.",
                store.min_offset,
            ),
            (
                "rucola_commitlog_flushed_offset_bytes",
                "The commit log is on the disk up to this offset.",
                store.flushed_offset,
            ),
            (
                "rucola_dispatch_behind_bytes",
                "Bytes of the commit log that consumers cannot see yet.",
                store.dispatch_behind_bytes,
            ),
            (
                "rucola_index_behind_bytes",
                "Bytes of the commit log whose keys are not in the index yet.",
                store.index_behind_bytes,
            ),
            (
                "rucola_queue_sync_failed",
                "1 after a failed sync of queues or index: no file expires until a restart.",
                int(store.queue_sync_failed),
            ),
            (
                "rucola_commitlog_gaps",
                "Damaged parts of the commit log that the broker serves around.",
                len(store.gaps),
            ),
            ("rucola_topics", "Topics.", len(broker.topics.table)),
            ("rucola_consumer_groups", "Configured consumer groups.", len(broker.groups.table)),
            ("rucola_connections", "Open client connections.", broker.connections),
            ("rucola_pulls_held", "Pulls that wait for messages.", broker.pulls_held),
            ("rucola_sends_waiting", "Batches of sends that wait for the disk sync.", broker.sends_waiting),
        ):
            yield GaugeMetricFamily(name, text, value)
        yield from broker_metrics(broker)
        yield from topic_metrics(broker)
        yield from group_metrics(broker)


def metrics_of(collector: Collector) -> tuple[bytes, str]:
    """The text of all metrics, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry), CONTENT_TYPE_LATEST
