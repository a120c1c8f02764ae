"""The broker's metrics in Prometheus' text format, collected at each request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rucola.broker import Broker
from rucola.broker.acl.access import BrokerAccess
from rucola.cli.door_metrics import door_metrics
from rucola.cli.figures import Figure, access_metrics, text_of, work_failures
from rucola.cli.lite_metrics import lite_metrics
from rucola.cli.topic_metrics import broker_metrics, group_metrics, topic_metrics
from rucola.proxy.figures import DoorFigures
from rucola.remoting.fairness.steps import Steps, at_once
from rucola.runtime.supervision import Supervisor

if TYPE_CHECKING:
    from rucola.proxy.beside import DoorBeside


__all__ = ["BrokerCollector", "text_of"]

_FIGURES: tuple[Figure[Broker], ...] = (
    Figure(
        "rucola_messages_put",
        "Messages stored since start-up.",
        CounterMetricFamily,
        lambda broker: broker.store.stats.put_messages,
    ),
    Figure(
        "rucola_messages_got",
        "Messages delivered to consumers since start-up.",
        CounterMetricFamily,
        lambda broker: broker.store.stats.got_messages,
    ),
    Figure(
        "rucola_bytes_got",
        "Bytes of messages delivered to consumers since start-up.",
        CounterMetricFamily,
        lambda broker: broker.store.stats.got_bytes,
    ),
    Figure(
        "rucola_damaged_messages",
        "Reads that found a damaged message.",
        CounterMetricFamily,
        lambda broker: broker.store.stats.damaged_messages,
    ),
    Figure(
        "rucola_messages_set_aside",
        "Messages that were passed over because they can never be delivered or checked.",
        CounterMetricFamily,
        lambda broker: broker.store.stats.set_aside_messages,
    ),
    Figure(
        "rucola_segments_expired",
        "Segments of the commit log removed, for whatever reason.",
        CounterMetricFamily,
        lambda broker: broker.store.stats.expired_segments,
    ),
    Figure(
        "rucola_segments_forced",
        "Segments removed before fileReservedTime, because the disk was nearly full.",
        CounterMetricFamily,
        lambda broker: broker.store.stats.forced_segments,
    ),
    Figure(
        "rucola_consumer_offsets_clamped",
        "Consumer offsets corrected at start-up.",
        CounterMetricFamily,
        lambda broker: broker.offsets.clamped,
    ),
    Figure(
        "rucola_connections_refused",
        "New connections that were closed because too many were open.",
        CounterMetricFamily,
        lambda broker: broker.refused_connections,
    ),
    Figure(
        "rucola_loop_slow_turns",
        "Iterations of the event loop longer than 50 ms; during each of them, no other request is served.",
        CounterMetricFamily,
        lambda broker: broker.services.loop_watch.slow_turns,
    ),
    Figure(
        "rucola_loop_longest_turn_seconds",
        "Longest iteration of the event loop in the last one to two minutes.",
        GaugeMetricFamily,
        lambda broker: broker.services.loop_watch.longest_s,
    ),
    Figure(
        "rucola_loop_longest_turn_cpu_seconds",
        "Longest processor time of one iteration of the event loop in the last one to two minutes. If this time is "
        "much shorter than rucola_loop_longest_turn_seconds, the thread waited for a processor or for the disk.",
        GaugeMetricFamily,
        lambda broker: broker.services.loop_watch.longest_cpu_s,
    ),
    Figure(
        "rucola_ready",
        "1 while the broker takes and delivers messages.",
        GaugeMetricFamily,
        lambda broker: broker.ready,
    ),
    Figure(
        "rucola_commitlog_max_offset_bytes",
        "End of the commit log, in bytes.",
        GaugeMetricFamily,
        lambda broker: broker.store.max_offset,
    ),
    Figure(
        "rucola_commitlog_min_offset_bytes",
        "Start of the commit log: physical offset of its oldest byte.",
        GaugeMetricFamily,
        lambda broker: broker.store.min_offset,
    ),
    Figure(
        "rucola_commitlog_flushed_offset_bytes",
        "Offset up to which the commit log is synced.",
        GaugeMetricFamily,
        lambda broker: broker.store.flushed_offset,
    ),
    Figure(
        "rucola_dispatch_behind_bytes",
        "Bytes of the commit log that consumers cannot see yet.",
        GaugeMetricFamily,
        lambda broker: broker.store.dispatch_behind_bytes,
    ),
    Figure(
        "rucola_index_behind_bytes",
        "Bytes of the commit log whose keys are not in the index yet.",
        GaugeMetricFamily,
        lambda broker: broker.store.index_behind_bytes,
    ),
    Figure(
        "rucola_queue_sync_failed",
        "1 after a failed sync of queues or index; until a restart, only segments synced before the failure expire.",
        GaugeMetricFamily,
        lambda broker: broker.store.queue_sync_failed,
    ),
    Figure(
        "rucola_commitlog_gaps",
        "Damaged parts of the commit log, which the broker skips.",
        GaugeMetricFamily,
        lambda broker: len(broker.store.gaps),
    ),
    Figure("rucola_topics", "Topics.", GaugeMetricFamily, lambda broker: len(broker.topics.table)),
    Figure(
        "rucola_consumer_groups",
        "Configured consumer groups.",
        GaugeMetricFamily,
        lambda broker: len(broker.groups.table),
    ),
    Figure("rucola_connections", "Open client connections.", GaugeMetricFamily, lambda broker: broker.connections),
    Figure("rucola_pulls_held", "Pulls that wait for messages.", GaugeMetricFamily, lambda broker: broker.pulls_held),
    Figure(
        "rucola_sends_waiting",
        "Batches of responses (mostly to send requests) that wait until the log is synced, or until slaves have it.",
        GaugeMetricFamily,
        lambda broker: broker.sends_waiting,
    ),
    Figure("rucola_slaves", "Connected slaves.", GaugeMetricFamily, lambda broker: broker.slaves),
    Figure(
        "rucola_slave_behind_bytes",
        "Bytes of the commit log that the slave lacks that lacks most; 0 without slaves.",
        GaugeMetricFamily,
        lambda broker: broker.slave_behind_bytes,
    ),
    Figure(
        "rucola_in_sync",
        "0 on a slave that is not connected to its master or lacks more than 256 MiB of its log, otherwise 1.",
        GaugeMetricFamily,
        lambda broker: not broker.not_in_sync,
    ),
    Figure(
        "rucola_behind_master_bytes",
        "Bytes of the master's log that a slave lacks, as it finds every 10 s; 0 on a master.",
        GaugeMetricFamily,
        lambda broker: broker.master_behind_bytes,
    ),
    Figure(
        "rucola_slave_behind_seconds",
        "Store time of the newest message minus that of the oldest one that the slave lacks that lacks most; 0 without "
        "slaves, NaN if the disk would have to be read.",
        GaugeMetricFamily,
        lambda broker: broker.slave_behind_seconds,
    ),
    Figure(
        "rucola_slave_connections",
        "Connections of slaves since start-up.",
        CounterMetricFamily,
        lambda broker: broker.slave_connections,
    ),
    Figure(
        "rucola_in_sync_replicas",
        "Brokers that are in sync: this one, and the slaves that lack less than 256 MiB.",
        GaugeMetricFamily,
        lambda broker: broker.in_sync_replicas,
    ),
    Figure(
        "rucola_pop_acks_buffered",
        "Pops with acknowledgements that are kept in a file and not in the log yet.",
        GaugeMetricFamily,
        lambda broker: broker.acks_buffered,
    ),
)


class BrokerCollector(Collector):
    """Collects the metrics of one broker.

    Args:
        others: supervisors of the process's other servers.
        door: its port for gRPC clients, if it has one.
    """

    def __init__(self, broker: Broker, *others: Supervisor, door: DoorBeside | None = None) -> None:
        self._broker, self._door = broker, door
        self._supervisors = (broker.services.supervisor, *others)

    def collect(self) -> Iterator[Metric]:
        """All metrics with their current values."""
        return iter(at_once(self.steps()))

    def steps(self) -> Steps[list[Metric]]:
        """Collects the same metrics in steps, between which the event loop serves requests."""
        broker = self._broker
        found = [figure.kind(figure.name, figure.text, figure.value(broker)) for figure in _FIGURES]
        door = DoorFigures() if self._door is None else self._door.figures()
        if self._door is not None:
            found += door_metrics(door)
        found.append(_role(broker))
        found.append(work_failures(*self._supervisors))
        if broker.services.access is not None:
            found += _access_metrics(broker.services.access, door)
        found += broker_metrics(broker)
        yield
        found += yield from topic_metrics(broker)
        yield
        found += yield from group_metrics(broker)
        yield
        found += yield from lite_metrics(broker)
        return found


def _role(broker: Broker) -> Metric:
    family = GaugeMetricFamily("rucola_broker_role", "1, labelled with the broker's role.", labels=["role"])
    family.add_metric([broker.config.broker_role], 1)
    return family


def _access_metrics(access: BrokerAccess, door: DoorFigures) -> Iterator[Metric]:
    accounts, guard = access.accounts, access.guard
    refused, unknown = guard.refused + door.refused, guard.unknown_senders + door.unknown_senders
    return access_metrics(refused, unknown, accounts.failures, bool(accounts.error))
