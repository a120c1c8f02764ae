"""The same pipeline as streaming queries, for results within seconds.

spark-submit examples/pipeline/stream.py 127.0.0.1:9876 /tmp/orders [SECONDS]

Without SECONDS the program processes the existing messages and ends. With SECONDS it continues, and looks for new
messages at this interval.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

sys.path.insert(0, str(Path(__file__).resolve().parent))
import orders

from rucola.spark import layers

TOPIC = "orders"


class Runner:
    """The tables in one directory: ``bronze`` and ``silver`` grow; the newest directory in ``gold`` has all totals."""

    def __init__(self, spark: SparkSession, servers: str, directory: str, seconds: float | None = None) -> None:
        self._spark = spark
        self._servers = servers
        self._directory = directory
        self._seconds = seconds

    def run(self) -> None:
        """Runs the queries one after another. If ``seconds`` was given, runs all at once until one of them fails."""
        for start in (self._bronze, self._silver, self._gold, self._poison):
            query = start()
            if self._seconds is None:
                query.awaitTermination()
        if self._seconds is not None:
            self._spark.streams.awaitAnyTermination()

    def table(self, name: str) -> DataFrame:
        """The current rows of a table."""
        return self._spark.read.parquet(f"{self._directory}/{name}")

    def totals(self) -> DataFrame:
        """The newest rows of gold."""
        batches = self.table("gold")
        newest = batches.agg({"batch": "max"}).collect()[0][0]
        return batches.where(batches["batch"] == newest).drop("batch")

    def _bronze(self) -> StreamingQuery:
        source = {"nameServer": self._servers, "topic": TOPIC, "startingOffsets": "earliest"}
        rows = self._spark.readStream.format("rocketmq").options(**source).load()
        return self._appended("bronze", layers.bronze(rows))

    def _silver(self) -> StreamingQuery:
        return self._appended("silver", orders.silver(self._growing("bronze")))

    def _gold(self) -> StreamingQuery:
        def write(rows: DataFrame, batch: int) -> None:
            rows.coalesce(1).write.mode("overwrite").parquet(f"{self._directory}/gold/batch={batch}")

        totals = orders.gold(self._growing("silver")).writeStream.outputMode("complete").foreachBatch(write)
        return self._started("gold", totals)

    def _poison(self) -> StreamingQuery:
        sink = {"nameServer": self._servers, "topic": f"{TOPIC}-poison", "idScope": "poison"}
        rows = orders.poison(self._growing("bronze"))
        return self._started("poison", rows.writeStream.format("rocketmq").options(**sink))

    def _growing(self, name: str) -> DataFrame:
        path = f"{self._directory}/{name}"
        return self._spark.readStream.schema(self._spark.read.parquet(path).schema).parquet(path)

    def _appended(self, name: str, rows: DataFrame) -> StreamingQuery:
        return self._started(name, rows.writeStream.format("parquet").option("path", f"{self._directory}/{name}"))

    def _started(self, name: str, writer: DataStreamWriter) -> StreamingQuery:
        writer = writer.option("checkpointLocation", f"{self._directory}/checkpoints/{name}")
        if self._seconds is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._seconds} seconds").start()


if __name__ == "__main__":
    # As in spark-pipeline.yml: each of Spark's default 200 partitions would write a state file in every micro-batch.
    session = SparkSession.builder.appName("orders").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    Runner(session, sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else None).run()
