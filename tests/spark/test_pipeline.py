"""The template of a pipeline: its streaming runner, and the functions that every pipeline uses."""

from __future__ import annotations

import datetime as dt
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rucola.common.message import Message
from rucola.spark import layers

from .test_sink import messages_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .conftest import BrokerProcess

pytestmark = pytest.mark.spark

TEMPLATE = Path(__file__).resolve().parents[2] / "examples" / "pipeline"


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("stream", TEMPLATE / "stream.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_runner_fills_every_table(
    spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path, template: Any
) -> None:
    """``make campaign NAME=clusters`` runs the streaming runner twice, and the declarative one."""
    bodies = (b'{"item":"tea","price":3}', b"no JSON", b'{"item":"tea","price":4}', b'{"item":"bun","price":1}')
    with shared_broker.producer() as producer:
        producer.send_batch([Message(template.TOPIC, body) for body in bodies])
    runner = template.Runner(spark, shared_broker.namesrv, str(tmp_path))
    runner.run()
    assert sorted(map(tuple, runner.totals().collect())) == [("bun", 1, 1), ("tea", 2, 7)]
    assert (runner.table("bronze").count(), runner.table("silver").count()) == (4, 3)
    (letter,) = messages_of(shared_broker, "orders-poison", 1)
    assert letter.body == b"no JSON"
    assert "JSON" in letter.properties["POISON_ERROR"]


def test_where_messages_come_from(spark: SparkSession) -> None:
    now = dt.datetime(2026, 1, 31, 12, 0, 30, tzinfo=dt.UTC)
    born = now - dt.timedelta(milliseconds=20)
    sent = '{"RETRY_TOPIC":"orders"}'
    given = [("orders", "{}"), ("%RETRY%billing", sent), ("%DLQ%billing", sent), ("%DLQ%billing", "{}")]
    rows = [(topic, properties, born, now, bytearray(b"xy")) for topic, properties in given]
    ddl = "topic string, properties string, bornTimestamp timestamp, storeTimestamp timestamp, body binary"
    records = spark.createDataFrame(rows, ddl).cache()
    origins = layers.with_origin(records).select("topic", "originTopic", "consumerGroup")
    assert [tuple(row) for row in origins.collect()] == [
        ("orders", "orders", None),
        ("%RETRY%billing", "orders", "billing"),
        ("%DLQ%billing", "orders", "billing"),
        ("%DLQ%billing", "%DLQ%billing", "billing"),
    ]
    letters = layers.dead_letters(records).orderBy("originTopic").select("consumerGroup", "originTopic", "messages")
    assert [tuple(row) for row in letters.collect()] == [("billing", "%DLQ%billing", 1), ("billing", "orders", 1)]
    stats = layers.topic_stats(records.where("topic = '%DLQ%billing'")).collect()
    assert [tuple(row)[0::2] for row in stats] == [("%DLQ%billing", 2, 20.0)]
    assert stats[0]["bodyBytes"] == 4
    as_map = records.selectExpr("topic", "map('RETRY_TOPIC', 'orders') AS properties").where("topic like '%RETRY%'")
    assert [row.originTopic for row in layers.with_origin(as_map, properties_as_map=True).collect()] == ["orders"]
    records.unpersist()
