"""Lite topics in Spark: rows of the parent, pushed filters, a stream, and a rebuild by Spark's tasks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.unit.arrow.lite_stores import COUNT, filled, name_of, opened_lite

from rucola.common.options import options_of
from rucola.formats.light_queue import lite_topic
from rucola.spark.doctor import in_spark
from rucola.spark.pruning import prune
from rucola.store.config import MessageStoreConfig
from rucola.store.doctor.rebuild import rebuild

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lite") / "store"
    store = filled(path)
    store.delete_lite([b"Parent$s4"])
    store._keeper.sync_queues()
    store.dispatch()
    store.shutdown()
    return path


def in_topics(*names: str | None) -> int:
    return sum(name_of(number) in names for number in range(COUNT))


def test_filters_are_pushed_and_all_agree(spark: SparkSession, directory: Path) -> None:
    options = {"storePath": str(directory), "topic": "Parent", "includeLiteTopic": "true"}
    conditions = {
        "liteTopic = 's4'": in_topics("s4"),
        "liteTopic IN ('s4', 's6', 'nobody')": in_topics("s4", "s6"),
        "liteTopic IS NULL": in_topics(None),
        "liteTopic LIKE 's%' AND liteOffset = 0": len({name_of(number) for number in range(COUNT)} - {None, "größe"}),
    }
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition, count in conditions.items():
            found = prune(spark, lambda rows, condition=condition: rows.where(condition).select("liteTopic"), **options)
            assert found.count() == count, condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_stream_selects_lite_topics(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    stream = (
        spark.readStream.format("rocketmq")
        .options(storePath=str(directory), topic="Parent", startingOffsets="earliest", liteTopics="s4,s6")
        .schema("liteTopic string, liteOffset bigint, queueId int, queueOffset bigint")
        .load()
    )
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    assert query.awaitTermination(120)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert {row["liteTopic"] for row in rows} == {"s4", "s6"}
    assert len({(row["queueId"], row["queueOffset"]) for row in rows}) == len(rows) == in_topics("s4", "s6")


def test_a_rebuild_in_spark_keeps_deletions(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "store")
    shutil.rmtree(tmp_path / "store/rucola-lite/units")
    sizes = {"mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "100", "maxIndexNum": "400"}
    assert sizes.keys() <= {entry.key for entry in options_of(MessageStoreConfig)}
    report = rebuild(str(tmp_path / "store"), in_spark(spark), sizes)
    assert report.lite_topics > 5
    store = opened_lite(tmp_path / "store")
    assert store.queue_range(lite_topic(b"Parent$s4"), 0) == (in_topics("s4"), in_topics("s4"))
    assert store.queue_range(lite_topic(b"Parent$s6"), 0) == (0, in_topics("s6"))
    store.shutdown()
