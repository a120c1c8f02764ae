"""The tables of the demo's main job are exact, however often a flight is sent or a batch is run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from demo.flights.compare import differences
from demo.flights.data import FlightMessage, data_directory, flight_rows, message_of
from demo.flights.expected import expected_figures
from demo.flights.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RECORDS = (
    "topic string, brokerName string, queueId int, queueOffset bigint, physicalOffset bigint, bornTimestamp timestamp, "
    "storeTimestamp timestamp, msgId string, keys string, tags string, flag int, reconsumeTimes int, "
    "properties string, body binary"
)
ROWS = 400


@pytest.fixture(scope="module")
def messages() -> list[FlightMessage]:
    return [message_of(row) for row in flight_rows(ROWS)]


def _records(spark: SparkSession, messages: Sequence[FlightMessage], queue_offset: int = 0) -> DataFrame:
    now = dt.datetime.now(dt.UTC)
    rows = [
        ("flights", "broker-a", 0, queue_offset + place, 0, now, now, "", one.key, one.tag, 0, 0, "{}", one.body)
        for place, one in enumerate(messages)
    ]
    return spark.createDataFrame(rows, RECORDS)


def _run(spark: SparkSession, tables: Tables, directory: Path) -> None:
    """Runs the pipeline on the new files in ``directory/records``."""
    records = spark.readStream.schema(RECORDS).parquet(str(directory / "records"))
    writer = records.writeStream.foreachBatch(tables.apply)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(300)


def test_duplicates_and_batches_run_again_change_no_figure(
    spark: SparkSession, tmp_path: Path, messages: list[FlightMessage]
) -> None:
    tables = Tables(tmp_path, data_directory())
    assert tables.gold() == []
    broken = FlightMessage("x", "UA", b'{"year": 2013, "mon', {})
    records = [*messages[:250], *messages[100:110], broken]  # duplicates, and records that are not flights
    _records(spark, records).coalesce(1).write.parquet(str(tmp_path / "records"))
    _run(spark, tables, tmp_path)
    _records(spark, messages[200:], 261).coalesce(1).write.mode("append").parquet(str(tmp_path / "records"))
    _run(spark, tables, tmp_path)  # duplicates of the previous batch
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    _run(spark, tables, tmp_path)  # Spark repeats a batch whose end it could not record

    assert differences(tables.gold(), expected_figures(data_directory(), ROWS)) == []
    assert tables.silver(spark).count() == ROWS
    bronze = tables.bronze(spark).select("queueOffset")
    assert (bronze.count(), bronze.distinct().count()) == (461, 461)
    found = [(one.batch_id, one.records, one.new_flights, one.poison) for one in tables.reports()]
    assert found == [(0, 261, 250, 1), (1, 200, 150, 0)]
    born_s = tables.born_s()
    assert {batch: len(times) for batch, times in born_s.items()} == {0: 250, 1: 150}
    assert all(0 < report.committed_s - min(born_s[report.batch_id]) < 120 for report in tables.reports())
