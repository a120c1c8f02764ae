"""The pipeline for ``spark-pipelines``: its tables, and the function that makes each of them."""

import sys
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import orders

from rucola.spark import layers

spark = SparkSession.active()
SERVERS = spark.conf.get("orders.nameServer") or ""
TOPIC = spark.conf.get("orders.topic") or ""


def records() -> DataFrame:
    """The rows of the topic. Silver and poison also read these rows instead of bronze: when Spark 4.3 analyses
    ``withColumn``, ``drop`` or ``dropDuplicates``, it does not know the pipeline's tables yet and reports
    TABLE_OR_VIEW_NOT_FOUND.
    """
    source = {"nameServer": SERVERS, "topic": TOPIC, "startingOffsets": "earliest"}
    return layers.bronze(spark.readStream.format("rocketmq").options(**source).load())


@dp.table
def bronze() -> DataFrame:
    return records()


@dp.table
def silver() -> DataFrame:
    return orders.silver(records())


@dp.materialized_view
def gold() -> DataFrame:
    return orders.gold(spark.read.table("silver"))


@dp.materialized_view
def topic_stats() -> DataFrame:
    return layers.topic_stats(spark.read.table("bronze"))


dp.create_sink("poison", "rocketmq", {"nameServer": SERVERS, "topic": f"{TOPIC}-poison", "idScope": "poison"})


@dp.append_flow(target="poison", name="poison_rows")
def poison() -> DataFrame:
    return orders.poison(records())
