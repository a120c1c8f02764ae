"""The three tables on disk, and the writing of one micro-batch.

``bronze/batch=7``, ``silver/batch=7`` and ``gold/batch=7`` are what batch 7 made: Parquet directories, each replaced
as a whole. Spark runs a batch again after a failure with the same records and the same number, so writing it again
changes nothing: every table is a function of the records and of the tables of *earlier* batches. ``silver`` drops
flights that an earlier batch or the same batch already has; ``gold/batch=7`` holds all figures up to batch 7, so
readers take the newest one.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (the name Spark users know)

from . import pipeline
from .figures import FIGURES, KEY_COLUMNS, CarrierMonth
from .measure import QUANTILES, BatchReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables:
    """Bronze, silver and gold under one directory.

    `apply` is called by Spark's callback thread, one batch at a time; `reports` may be read by another.
    """

    def __init__(self, spark: SparkSession, directory: Path, source_directory: Path) -> None:
        """Args: ``directory``: the tables' own; ``source_directory``: where ``airlines.csv`` and ``planes.csv`` lie."""
        self._spark = spark
        self._directory = directory
        csv = spark.read.option("header", True).option("nullValue", "NA")
        self._airlines = csv.schema("carrier string, name string").csv(str(source_directory / "airlines.csv")).cache()
        self._planes = (
            csv.schema(
                "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, "
                "speed int, engine string"
            )
            .csv(str(source_directory / "planes.csv"))
            .cache()
        )
        self._lock = threading.Lock()
        self._reports: list[BatchReport] = []

    def apply(self, records: DataFrame, batch_id: int) -> None:
        """Writes batch ``batch_id`` into the three tables. For ``foreachBatch``."""
        started_s = time.time()
        pipeline.bronze(records).write.mode("overwrite").parquet(self._path("bronze", batch_id))
        bronze = self._spark.read.parquet(self._path("bronze", batch_id))

        flights = pipeline.silver(bronze, self._airlines, self._planes)
        if batch_id > 0:
            flights = pipeline.unseen(flights, self.silver().where(F.col("batch") < batch_id))
        flights.write.mode("overwrite").parquet(self._path("silver", batch_id))

        change = pipeline.gold(self._spark.read.parquet(self._path("silver", batch_id)))
        if batch_id > 0:
            change = pipeline.add_gold(self._spark.read.parquet(self._path("gold", batch_id - 1)), change)
        pipeline.with_means(change).coalesce(1).write.mode("overwrite").parquet(self._path("gold", batch_id))
        self._report(batch_id, started_s, time.time(), bronze)

    def silver(self) -> DataFrame:
        """All flights, each once, with the ``batch`` that brought it."""
        return self._spark.read.parquet(str(self._directory / "silver"))

    def bronze(self) -> DataFrame:
        """All records as they came."""
        return self._spark.read.parquet(str(self._directory / "bronze"))

    def gold(self) -> list[CarrierMonth]:
        """The newest figures, in order of carrier and month; empty before the first batch."""
        batches = [
            int(path.parent.name.removeprefix("batch=")) for path in self._directory.glob("gold/batch=*/_SUCCESS")
        ]
        if not batches:
            return []
        rows = self._spark.read.parquet(self._path("gold", max(batches))).select(*KEY_COLUMNS, *FIGURES).collect()
        return sorted((CarrierMonth(**row.asDict()) for row in rows), key=lambda row: row.place)

    def reports(self) -> list[BatchReport]:
        """What happened so far, one report per batch."""
        with self._lock:
            return list(self._reports)

    def _path(self, table: str, batch_id: int) -> str:
        return str(self._directory / table / f"batch={batch_id}")

    def _report(self, batch_id: int, started_s: float, committed_s: float, bronze: DataFrame) -> None:
        """Counts the batch and measures its latencies, after its commit, so that measuring is not measured."""
        born = F.unix_millis("bornTimestamp")
        # The age that a share q of the rows stays below belongs to the born time that a share 1 - q stays below.
        shares = F.array(*[F.lit(1.0 - quantile) for quantile in QUANTILES])
        row = bronze.agg(F.count("*").alias("records"), F.percentile(born, shares).alias("born_ms")).first()
        if row is None or row["born_ms"] is None:
            return
        new_flights = self._spark.read.parquet(self._path("silver", batch_id)).count()
        report = BatchReport(
            batch_id=batch_id,
            records=row["records"],
            new_flights=new_flights,
            started_s=started_s,
            committed_s=committed_s,
            latencies_s=tuple(committed_s - born_ms / 1000 for born_ms in row["born_ms"]),
        )
        with self._lock:
            self._reports = [*[old for old in self._reports if old.batch_id != batch_id], report]
