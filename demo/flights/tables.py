"""The tables on disk, and how one micro-batch is written.

``bronze/batch=7`` holds the records that batch 7 brought and ``silver/batch=7`` its flights, both written by its tasks;
``gold/batch=7.parquet`` holds all figures up to batch 7, so readers use the newest file. Gold is written last and
appears by a rename, which commits the batch.
After a failure, Spark runs a batch again with the same records and the same number. The second write changes nothing,
because the result depends only on these records and on what *earlier* batches wrote.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from . import pipeline
from .figures import FIGURES, KEY_COLUMNS, SUMS, CarrierMonth, added, from_sums
from .measure import BatchReport
from .tasks import BatchTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables:
    """Bronze, silver and gold under one directory.

    `apply` is called by Spark's callback thread, one batch at a time; `reports` may be read by another thread.
    """

    def __init__(self, directory: Path, source_directory: Path) -> None:
        """Makes the directory of gold.

        Args:
            directory: directory of the three tables.
            source_directory: directory with ``airlines.csv`` and ``planes.csv``.
        """
        self._directory = directory
        (directory / "gold").mkdir(parents=True, exist_ok=True)
        self._source_directory = source_directory
        self._lock = threading.Lock()
        self._reports: list[BatchReport] = []

    def task(self, batch_id: int) -> BatchTask:
        """The function that each task of a batch runs."""
        return BatchTask(self._directory, self._source_directory, batch_id)

    def apply(self, records: DataFrame, batch_id: int) -> None:
        """Adds batch ``batch_id`` to all three tables; ``foreachBatch`` calls it.

        Args:
            records: rows with ``BRONZE_COLUMNS``, each queue in one partition.
        """
        started_s = time.time()
        rows = pipeline.sums_of_new_flights(records, self.task(batch_id)).toArrow().to_pylist()
        counts = [row for row in rows if row["records"] is not None]
        change = added(
            [],
            [
                from_sums(row["carrier"], row["month"], row["airline"], {name: row[name] for name in SUMS})
                for row in rows
                if row["records"] is None
            ],
        )
        self._commit_gold(batch_id, added(self._gold(before=batch_id), change))
        records_of_all, poison = (sum(row[name] for row in counts) for name in ("records", "poison"))
        new_flights = sum(row.flights for row in change)
        report = BatchReport(batch_id, new_flights, started_s, time.time(), records_of_all, poison)
        with self._lock:
            self._reports = [*[old for old in self._reports if old.batch_id != batch_id], report]

    def silver(self, spark: SparkSession) -> DataFrame:
        """All flights, each once, with the number of the ``batch`` that brought it."""
        return spark.read.parquet(str(self._directory / "silver"))

    def bronze(self, spark: SparkSession) -> DataFrame:
        """All records as they arrived, with the number of their ``batch``."""
        return spark.read.parquet(str(self._directory / "bronze"))

    def gold(self) -> list[CarrierMonth]:
        """The newest figures, in order of carrier and month; empty before the first batch."""
        return self._gold(before=None)

    def reports(self) -> list[BatchReport]:
        """The reports of all batches so far, one per batch."""
        with self._lock:
            return list(self._reports)

    def born_s(self) -> dict[int, list[float]]:
        """For each batch, the born times of its flights in seconds since the epoch. Must be called after the query has
        ended.
        """
        columns = ds.dataset(self._directory / "silver", partitioning="hive").to_table(["batch", "bornTimestamp"])
        born: dict[int, list[float]] = {}
        times = columns["bornTimestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        for batch_id, born_ms in zip(columns["batch"].to_pylist(), times.to_pylist(), strict=True):
            born.setdefault(batch_id, []).append(born_ms / 1000)
        return born

    def _gold(self, before: int | None) -> list[CarrierMonth]:
        """The figures of the newest batch whose number is below ``before``."""
        numbers = [int(path.stem.removeprefix("batch=")) for path in self._directory.glob("gold/batch=*.parquet")]
        numbers = [number for number in numbers if before is None or number < before]
        if not numbers:
            return []
        return [CarrierMonth(**row) for row in pq.read_table(self._gold_file(max(numbers))).to_pylist()]

    def _commit_gold(self, batch_id: int, rows: list[CarrierMonth]) -> None:
        file = self._gold_file(batch_id)
        new = file.with_name(f".{file.name}")  # readers ignore this name
        pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], _GOLD_SCHEMA), new)
        new.replace(file)

    def _gold_file(self, batch_id: int) -> Path:
        return self._directory / "gold" / f"batch={batch_id}.parquet"


def _type(name: str) -> pa.DataType:
    if name in ("carrier", "airline"):
        return pa.string()
    return pa.float64() if name not in (*SUMS, "month") else pa.int64()


_GOLD_SCHEMA = pa.schema([(name, _type(name)) for name in (*KEY_COLUMNS, *FIGURES)])
