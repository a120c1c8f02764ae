"""The content of a stream's progress report, and the metrics made from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import Row

from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError
from rucola.spark.progress import ProgressPublisher, reached

QUERY_ID = "11111111-2222-3333-4444-555555555555"
Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
END = {"t": {"b": {"0": 5, "1": 7}}, "#last": {"t": {"b": {"0": [1, 2]}}}}
DASHBOARD = Path(__file__).parents[3] / "docs" / "spark-dashboard.json"


def source(end: object, newest: object) -> SimpleNamespace:
    return SimpleNamespace(endOffset=json.dumps(end), latestOffset=None if newest is None else json.dumps(newest))


def event(*sources: SimpleNamespace, name: str | None = "flights", rows: int = 12) -> Any:
    progress = SimpleNamespace(
        id=QUERY_ID,
        name=name,
        sources=list(sources),
        numInputRows=rows,
        processedRowsPerSecond=3.5,
        durationMs={"triggerExecution": 1500},
        observedMetrics={"decoding": Row(rows=12, poison=2, text="x")},
    )
    return SimpleNamespace(progress=progress)


def test_offsets_of_our_sources_only() -> None:
    kafka = source({"t": {"0": 5}}, None)
    other = SimpleNamespace(endOffset="17", latestOffset="18")
    found = reached([kafka, source(END, {"t": {"b": {"0": 9, "1": 7}}}), other, source(None, None)])
    assert found.end == {Q0: 5, Q1: 7}
    assert found.lag() == {"t": 4}
    assert reached([source(END, None)]).lag() == {"t": 0}


def test_metrics_of_a_stream() -> None:
    registry = CollectorRegistry()
    publisher = ProgressPublisher(registry=registry, query_name="flights")
    report = event(source(END, {"t": {"b": {"0": 9, "1": 7}}}))
    for one in (report, report, event(source(END, None), name="another")):
        publisher.onQueryProgress(one)

    def value(name: str, /, **labels: str) -> float | None:
        return registry.get_sample_value(f"rucola_spark_{name}", {"query": "flights", **labels})

    assert value("lag_messages", topic="t") == 4
    assert (value("rows_total"), value("batches_total")) == (24, 2)
    assert (value("batch_seconds"), value("processed_rows_per_second")) == (1.5, 3.5)
    assert value("observed", name="decoding", metric="poison") == 2
    assert registry.get_sample_value("rucola_spark_rows_total", {"query": "another"}) is None
    publisher.onQueryTerminated(SimpleNamespace(id=QUERY_ID))  # type: ignore[arg-type]
    assert value("lag_messages", topic="t") is None


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    registry = CollectorRegistry()
    ProgressPublisher(registry=registry).onQueryProgress(event(source(END, None)))
    names = {sample.name for family in registry.collect() for sample in family.samples}
    asked = set(re.findall(r"rucola_spark_\w+", DASHBOARD.read_text(encoding="utf-8")))
    assert asked
    assert asked <= names


def test_a_group_needs_a_name_server() -> None:
    with pytest.raises(ConfigError, match="both or neither"):
        ProgressPublisher(commit_group="g")
