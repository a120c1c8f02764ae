"""Metrics of a port for gRPC clients, of a broker or of a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rucola.cli.figures import Figure, access_metrics, text_of, work_failures
from rucola.proxy.figures import DoorFigures

if TYPE_CHECKING:
    from rucola.cli.proxy_server import ProxyServer

__all__ = ["ProxyCollector", "door_metrics", "text_of"]

_FIGURES: tuple[Figure[DoorFigures], ...] = (
    Figure(
        "rucola_grpc_connections", "Open connections of gRPC clients.", GaugeMetricFamily, lambda door: door.connections
    ),
    Figure(
        "rucola_grpc_clients",
        "gRPC clients that sent something in the last two minutes.",
        GaugeMetricFamily,
        lambda door: door.clients,
    ),
    Figure("rucola_grpc_calls", "Calls of gRPC clients since start-up.", CounterMetricFamily, lambda door: door.calls),
    Figure(
        "rucola_grpc_open_calls",
        "Calls of gRPC clients that have not ended: receives that wait, and one stream of each client.",
        GaugeMetricFamily,
        lambda door: door.open_calls,
    ),
    Figure("rucola_grpc_polls", "Receives of gRPC clients that wait.", GaugeMetricFamily, lambda door: door.polls),
    Figure(
        "rucola_grpc_renewed_handles",
        "Receipt handles that are renewed while their consumers work.",
        GaugeMetricFamily,
        lambda door: door.renewed,
    ),
    Figure(
        "rucola_grpc_unsent_bytes",
        "Bytes of answers that gRPC clients do not take.",
        GaugeMetricFamily,
        lambda door: door.unsent_bytes,
    ),
    Figure(
        "rucola_grpc_held_bytes",
        "Bytes of requests of gRPC clients that are not complete.",
        GaugeMetricFamily,
        lambda door: door.held_bytes,
    ),
)


def door_metrics(figures: DoorFigures) -> list[Metric]:
    """The metrics of a port."""
    found = [figure.kind(figure.name, figure.text, figure.value(figures)) for figure in _FIGURES]
    outcomes = CounterMetricFamily(
        "rucola_grpc_outcomes",
        "Calls of gRPC clients that were answered or ended, by method and status.",
        labels=["method", "status"],
    )
    for method, counts in figures.outcomes.items():
        for status, count in sorted(counts.items()):
            outcomes.add_metric([method, status], count)
    ends = CounterMetricFamily(
        "rucola_grpc_connections_ended",
        "Connections that were closed because of what their gRPC clients did, by reason.",
        labels=["reason"],
    )
    for reason, count in sorted(figures.ends.items()):
        ends.add_metric([reason], count)
    return [*found, outcomes, ends]


class ProxyCollector(Collector):
    """Collects the metrics of ``rucola proxy``."""

    def __init__(self, proxy: ProxyServer) -> None:
        self._proxy = proxy

    def collect(self) -> list[Metric]:
        """All metrics with their current values."""
        proxy, brokers = self._proxy, self._proxy.brokers
        door = proxy.door.figures()
        found = [
            *door_metrics(door),
            work_failures(proxy.supervisor),
            GaugeMetricFamily(
                "rucola_proxy_brokers", "Brokers with a master that the proxy knows.", brokers.known_masters
            ),
            GaugeMetricFamily(
                "rucola_proxy_brokers_not_reached",
                "Brokers to which the proxy could open no connection in the last 5 s.",
                brokers.not_reached,
            ),
            GaugeMetricFamily("rucola_proxy_links", "Connections of clients of the proxy to brokers.", door.links),
        ]
        if (accounts := proxy.accounts) is not None:
            found += access_metrics(door.refused, door.unknown_senders, accounts.failures, bool(accounts.error))
        return found
