"""The pipeline in examples/spark: two runs over one checkpoint, and the content of its topics afterwards."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rucola.common.message import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .conftest import BrokerProcess

pytestmark = pytest.mark.spark

PIPELINE = Path(__file__).resolve().parents[2] / "examples" / "spark" / "pipeline.py"


def test_pipeline_goes_on_where_it_ended(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pipeline", PIPELINE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    def orders(*bodies: bytes) -> None:
        with shared_broker.producer() as producer:
            producer.send_batch([Message(example.ORDERS, body) for body in bodies])
        example.run(spark, shared_broker.namesrv, str(tmp_path / "checkpoint"))

    def bodies(topic: str) -> list[bytes]:
        rows = spark.read.format("rocketmq").options(nameServer=shared_broker.namesrv, topic=topic).load()
        return [bytes(row.body) for row in rows.orderBy("keys").select("body").collect()]

    orders(b'{"item":"tea","price":3}', b"no JSON", b'{"item":"tea","price":4}')
    orders(b'{"item":"tea","price":5}', b'{"item":"bun","price":1}')
    assert [json.loads(body) for body in bodies(example.TOTALS)] == [
        {"item": "bun", "orders": 1, "total": 1},
        {"item": "tea", "orders": 2, "total": 7},
        {"item": "tea", "orders": 1, "total": 5},
    ]
    assert bodies(example.POISON) == [b"no JSON"]
