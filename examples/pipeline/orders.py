"""The transformations of the pipeline, each from DataFrame to DataFrame. Both runners use them; replace them by yours.

bronze  one row per record in the log, as it is (``rucola.spark.layers``)
silver  one row per order: the body's columns typed, each order once
gold    one row per item: number of orders, and their total
poison  records that are not orders, with the reason, for a topic of their own

A declarative pipeline allows no look at a DataFrame in such a function: no ``columns``, ``schema`` or ``isStreaming``,
and no DDL, which Spark would parse.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from rucola.spark.decoding import decode, poison_rows, without_poison
from rucola.spark.repeats import drop_repeats

SCHEMA = StructType([StructField("item", StringType()), StructField("price", IntegerType())])
REPEATS_WITHIN = "10 minutes"
"""A producer that repeats a send does so within this time."""


def silver(records: DataFrame) -> DataFrame:
    orders = without_poison(decode(drop_repeats(records, within=REPEATS_WITHIN), "json", SCHEMA))
    return orders.select("msgId", "bornTimestamp", "item", "price")


def poison(records: DataFrame) -> DataFrame:
    return poison_rows(decode(records, "json", SCHEMA))


def gold(orders: DataFrame) -> DataFrame:
    return orders.groupBy("item").agg(f.count("*").alias("orders"), f.sum("price").alias("total"))
