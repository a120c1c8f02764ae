"""The transformations of the pipeline, each from DataFrame to DataFrame. Both programs use them; replace them by yours.

bronze  one row per record in the log, as it is (``rucola.spark.layers``)
silver  one row per order: the body's columns typed, each order once
gold    one row per item: number of orders, and their total
poison  records that are not orders, with the reason, for a topic of their own

In a declarative pipeline, these functions must not inspect a DataFrame (``columns``, ``schema``, ``isStreaming``), nor
pass a schema as a DDL string, because Spark would have to parse it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from rucola.spark.decoding import decode, poison_rows, without_poison
from rucola.spark.repeats import drop_repeats

SCHEMA = StructType([StructField("item", StringType()), StructField("price", IntegerType())])
REPEATS_WITHIN = "10 minutes"
"""Time within which a producer repeats a send."""


def silver(records: DataFrame) -> DataFrame:
    orders = without_poison(decode(drop_repeats(records, within=REPEATS_WITHIN), "json", SCHEMA))
    return orders.select("msgId", "bornTimestamp", "item", "price")


def poison(records: DataFrame) -> DataFrame:
    return poison_rows(decode(records, "json", SCHEMA))


def gold(orders: DataFrame) -> DataFrame:
    return orders.groupBy("item").agg(f.count("*").alias("orders"), f.sum("price").alias("total"))
