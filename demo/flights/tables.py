"""The tables on disk, and how one micro-batch is written.

``silver/batch=7`` holds the flights that batch 7 brought, written by its tasks; ``gold/batch=7.parquet`` holds all
figures up to batch 7, so readers take the newest one. Gold is written last and appears by a rename, which commits the
batch.
Spark runs a batch again after a failure, with the same flights and the same number. A second write changes nothing,
because silver and gold depend only on these flights and on the gold of *earlier* batches.

``bronze`` is a separate table, written by a separate query. Spark's file sink lists the files of each micro-batch
in ``bronze/_spark_metadata``, so it holds each record once.
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
from pyarrow import csv

from . import pipeline
from .figures import FIGURES, KEY_COLUMNS, SUMS, CarrierMonth, added, from_sums
from .measure import BatchReport
from .silver import SilverPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PLANE_COLUMNS = ("manufacturer", "model", "seats")


class Tables:
    """Bronze, silver and gold under one directory.

    `apply` is called by Spark's callback thread, one batch at a time; `reports` may be read by another.
    """

    def __init__(self, directory: Path, source_directory: Path) -> None:
        """Reads the tables of airlines and planes.

        Args:
            directory: directory of the three tables.
            source_directory: directory with ``airlines.csv`` and ``planes.csv``.
        """
        self._directory = directory
        (directory / "gold").mkdir(parents=True, exist_ok=True)
        self._airlines = _csv(source_directory / "airlines.csv").rename_columns(["carrier", "airline"])
        planes = _csv(source_directory / "planes.csv").select(["tailnum", "year", *PLANE_COLUMNS])
        self._planes = planes.rename_columns(["tailnum", "plane_year", *PLANE_COLUMNS])
        self._lock = threading.Lock()
        self._reports: list[BatchReport] = []

    def part(self, batch_id: int) -> SilverPart:
        """What each task of a batch does."""
        return SilverPart(self._directory / "silver", batch_id, self._airlines, self._planes)

    def apply(self, records: DataFrame, batch_id: int) -> None:
        """Adds batch ``batch_id`` to silver and gold; ``foreachBatch`` calls it.

        Args:
            records: rows with `pipeline.FLIGHT_COLUMNS`.
        """
        started_s = time.time()
        rows = pipeline.sums_of_new_flights(records, self.part(batch_id)).toArrow().to_pylist()
        poison = sum(row["poison"] for row in rows if row["poison"] is not None)
        change = added(
            [],
            [
                from_sums(row["carrier"], row["month"], row["airline"], {name: row[name] for name in SUMS})
                for row in rows
                if row["poison"] is None
            ],
        )
        self._commit_gold(batch_id, added(self._gold(before=batch_id), change))
        report = BatchReport(batch_id, sum(row.flights for row in change), started_s, time.time(), poison)
        with self._lock:
            self._reports = [*[old for old in self._reports if old.batch_id != batch_id], report]

    def silver(self, spark: SparkSession) -> DataFrame:
        """All flights, each once, with the number of the ``batch`` that brought it."""
        return spark.read.parquet(str(self._directory / "silver"))

    @property
    def bronze_directory(self) -> Path:
        """The path at which the query for records writes them."""
        return self._directory / "bronze"

    def bronze(self, spark: SparkSession) -> DataFrame:
        """All records as they arrived."""
        return spark.read.parquet(str(self.bronze_directory))

    def gold(self) -> list[CarrierMonth]:
        """The newest figures, in order of carrier and month; empty before the first batch."""
        return self._gold(before=None)

    def reports(self) -> list[BatchReport]:
        """The reports of all batches so far, one per batch."""
        with self._lock:
            return list(self._reports)

    def born_s(self) -> dict[int, list[float]]:
        """For each batch, the born times of its flights in seconds since the epoch. May be called when the queries have
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
        new = file.with_name(f".{file.name}")  # a name that readers ignore
        pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], _GOLD_SCHEMA), new)
        new.replace(file)

    def _gold_file(self, batch_id: int) -> Path:
        return self._directory / "gold" / f"batch={batch_id}.parquet"


def _csv(file: Path) -> pa.Table:
    numbers = dict.fromkeys(("year", "seats"), pa.int32())
    return csv.read_csv(
        file, convert_options=csv.ConvertOptions(column_types=numbers, null_values=["NA"], strings_can_be_null=True)
    )


def _type(name: str) -> pa.DataType:
    if name in ("carrier", "airline"):
        return pa.string()
    return pa.float64() if name not in (*SUMS, "month") else pa.int64()


_GOLD_SCHEMA = pa.schema([(name, _type(name)) for name in (*KEY_COLUMNS, *FIGURES)])
