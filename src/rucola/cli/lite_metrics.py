"""Metrics of lite topics, by parent and group: there may be millions of lite topics, so their names are no labels."""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rucola.broker import Broker
from rucola.remoting.fairness.steps import Steps


def lite_metrics(broker: Broker) -> Steps[list[Metric]]:
    """The metrics of lite topics; none if the store has no lite topics."""
    topics, offsets, life = broker.store.lite, broker.services.lite_offsets, broker.running.lite_life
    if topics is None or offsets is None or life is None:
        return []
    number = GaugeMetricFamily("rucola_lite_topics", "Lite topics with messages, by parent.", labels=["topic"])
    for parent, count in topics.parents().items():
        number.add_metric([parent.decode("utf-8", "replace")], count)
    readers = broker.running.lite
    found: list[Metric] = [
        number,
        CounterMetricFamily("rucola_lite_topics_removed", "Lite topics removed since start-up.", life.removed),
        GaugeMetricFamily(
            "rucola_lite_subscriptions",
            "Lite topics to which clients subscribe, summed over all clients.",
            0 if readers is None else readers.subscription_count,
        ),
    ]
    if not broker.config.lite_lag_count_metrics_enable:
        return found
    lags: Counter[tuple[str, int]] = Counter()
    columns, parents = topics.columns, topics.names.parents
    for rows in offsets.rows():
        for group, lite_id, consumed in rows:
            end = columns.nexts[lite_id]
            lags[group, parents[lite_id]] += end - min(max(consumed, columns.starts[lite_id]), end)
        yield
    lag = GaugeMetricFamily(
        "rucola_lite_lag_messages",
        "With `liteLagCountMetricsEnable`: messages that the group has not consumed, of all lite topics of a parent in "
        "which it has an offset.",
        labels=["consumer_group", "topic"],
    )
    for (group, parent_number), count in lags.items():
        lag.add_metric([group, topics.names.parent_names[parent_number].decode("utf-8", "replace")], count)
    return [*found, lag]
