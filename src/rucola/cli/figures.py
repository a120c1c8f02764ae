"""Metrics in Prometheus' text format: what every server shows, and the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from rucola.runtime.supervision import Supervisor

S = TypeVar("S")


class Figure(NamedTuple, Generic[S]):
    """One metric of a server: its name, its description, its kind, and the function that returns its value."""

    name: str
    text: str
    kind: Callable[[str, str, float], Metric]
    value: Callable[[S], float]


def work_failures(*supervisors: Supervisor) -> Metric:
    """The failures of all periodic work."""
    family = CounterMetricFamily(
        "rucola_work_failures", "Failed runs of background jobs, labelled with the job's name.", labels=["work"]
    )
    counts = sum((supervisor.failures for supervisor in supervisors), Counter[str]())
    for work in sorted({name for supervisor in supervisors for name in supervisor.failures}):
        family.add_metric([work], counts[work])
    return family


def access_metrics(refused: int, unknown_senders: int, reload_failures: int, stale: bool) -> Iterator[Metric]:
    """What access control has refused, and whether its files are broken."""
    yield CounterMetricFamily("rucola_acl_refused", "Requests refused by access control.", refused)
    yield CounterMetricFamily(
        "rucola_acl_unknown_senders", "Requests refused because they had no valid signature.", unknown_senders
    )
    yield CounterMetricFamily(
        "rucola_acl_reload_failures", "Changed ACL files that were broken and therefore ignored.", reload_failures
    )
    yield GaugeMetricFamily(
        "rucola_acl_stale",
        "1 while the ACL files are broken and the last good accounts are in use.",
        int(stale),
    )


def metrics_of(collector: Collector) -> tuple[bytes, str]:
    """The text of all metrics, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collected(Collector):
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found


def text_of(found: list[Metric]) -> tuple[bytes, str]:
    """The text of metrics that have already been collected, and the text's content type."""
    return metrics_of(_Collected(found))
