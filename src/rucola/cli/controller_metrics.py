"""Metrics of a controller. Those of the groups are there only while it leads."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rucola.cli.figures import Figure, text_of, work_failures
from rucola.controller import Controller

__all__ = ["ControllerCollector", "text_of"]

_FIGURES: tuple[Figure[Controller], ...] = (
    Figure(
        "rucola_controller_leader",
        "1 if this controller leads.",
        GaugeMetricFamily,
        lambda it: int(it.leadership.term is not None),
    ),
    Figure(
        "rucola_controller_peers",
        "Controllers with this prefix in etcd, this one included.",
        GaugeMetricFamily,
        lambda it: len(it.leadership.peers),
    ),
    Figure(
        "rucola_controller_etcd_failures",
        "Calls to etcd that were not answered, or refused.",
        CounterMetricFamily,
        lambda it: it.etcd_failures,
    ),
)
_GROUPS: tuple[Figure[Controller], ...] = (
    Figure("rucola_controller_groups", "Groups of brokers.", GaugeMetricFamily, lambda it: len(it.groups)),
    Figure(
        "rucola_controller_groups_without_master",
        "Groups that have no master although they had one.",
        GaugeMetricFamily,
        lambda it: sum(group.master_broker_id is None and group.master_epoch > 0 for group in it.groups),
    ),
    Figure(
        "rucola_controller_damaged_groups",
        "Keys in etcd that hold no group.",
        GaugeMetricFamily,
        lambda it: it.groups.damaged,
    ),
)


class ControllerCollector(Collector):
    """Collects the metrics of ``rucola controller``."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> list[Metric]:
        """All metrics with their current values."""
        it = self._controller
        is_leader = it.leadership.term is not None
        figures = _FIGURES + _GROUPS if is_leader else _FIGURES
        found = [figure.kind(figure.name, figure.text, figure.value(it)) for figure in figures]
        elections = CounterMetricFamily(
            "rucola_controller_elections", "Elections of this controller, by outcome.", labels=["outcome"]
        )
        for outcome, count in sorted(it.processor.elections.items()):
            elections.add_metric([outcome], count)
        members = [
            GaugeMetricFamily(f"rucola_controller_{name}", text, labels=["group"])
            for name, text in (
                ("brokers", "Brokers of a group."),
                ("live_brokers", "Brokers of a group whose heartbeats come."),
                ("in_sync_brokers", "Brokers of a group that are in sync with the master, the master included."),
                ("master_epoch", "Epoch of a group's master."),
            )
        ]
        if is_leader:
            live = it.brokers.counts()
            for group in it.groups:
                alive = live.get((group.cluster_name, group.broker_name), 0)
                values = (len(group.members), alive, len(group.sync_state_set), group.master_epoch)
                for family, value in zip(members, values, strict=True):
                    family.add_metric([group.broker_name], value)
        return [*found, elections, *members, work_failures(it.supervisor)]
