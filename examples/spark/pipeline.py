"""A stream from topic to topic, with a checkpoint: orders as JSON in, totals as JSON out.

spark-submit examples/spark/pipeline.py 127.0.0.1:9876 /tmp/checkpoint
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rucola.spark.decoding import decode, poison_rows, without_poison

ORDERS, TOTALS, POISON = "SparkOrders", "SparkTotals", "SparkPoison"


def run(spark: SparkSession, namesrv: str, checkpoint: str) -> None:
    """Reads the messages that came since the last run."""
    where = {"nameServer": namesrv}
    orders = spark.readStream.format("rocketmq").options(**where, topic=ORDERS, startingOffsets="earliest").load()
    decoded = decode(orders, "json", "item string, price int", count_as="orders")

    def write(rows: DataFrame, batch_id: int) -> None:
        rows = rows.persist()
        totals = without_poison(rows).groupBy("item").agg(f.count("*").alias("orders"), f.sum("price").alias("total"))
        # A micro-batch that runs again sends the same ids, so readers can drop duplicates.
        messages = totals.select(
            f.to_json(f.struct("*")).alias("body"),
            f.concat_ws("-", "item", f.lit(batch_id)).alias("keys"),
        )
        sink = {**where, "idColumn": "keys", "idScope": "totals"}
        messages.write.format("rocketmq").options(**sink, topic=TOTALS).mode("append").save()
        poison_rows(rows).write.format("rocketmq").options(**where, topic=POISON).mode("append").save()
        rows.unpersist()

    writer = decoded.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    run(SparkSession.builder.appName("orders").getOrCreate(), sys.argv[1], sys.argv[2])
