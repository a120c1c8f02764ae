"""The main job's tables on static records: exact, and the same however often a batch is run."""

from __future__ import annotations

import datetime as dt
import json
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
    "storeTimestamp timestamp, keys string, tags string, properties string, body binary"
)
ROWS = 400


@pytest.fixture(scope="module")
def messages() -> list[FlightMessage]:
    return [message_of(row) for row in flight_rows(ROWS)]


def _records(spark: SparkSession, messages: Sequence[FlightMessage], queue_offset: int) -> DataFrame:
    now = dt.datetime.now(dt.UTC)
    rows = [
        (
            "flights",
            "broker-a",
            0,
            queue_offset + place,
            0,
            now,
            now,
            one.key,
            one.tag,
            json.dumps(one.properties),
            one.body,
        )
        for place, one in enumerate(messages)
    ]
    return spark.createDataFrame(rows, RECORDS)


def test_duplicates_and_batches_run_again_change_no_figure(
    spark: SparkSession, tmp_path: Path, messages: list[FlightMessage]
) -> None:
    tables = Tables(spark, tmp_path, data_directory())
    assert tables.gold() == []
    first = _records(spark, messages[:250] + messages[100:110], 0)  # duplicates within a batch
    second = _records(spark, messages[200:], 260)  # duplicates of the batch before
    tables.apply(first, 0)
    tables.apply(second, 1)
    tables.apply(second, 1)  # Spark repeats a batch whose end it could not record

    assert differences(tables.gold(), expected_figures(data_directory(), ROWS)) == []
    assert tables.bronze().count() == 460
    assert tables.silver().count() == ROWS
    assert [(report.batch_id, report.records, report.new_flights) for report in tables.reports()] == [
        (0, 260, 250),
        (1, 200, 150),
    ]
    assert all(0 < age_s < 120 for report in tables.reports() for age_s in report.latencies_s)


def test_silver_has_airline_and_plane(spark: SparkSession, tmp_path: Path, messages: list[FlightMessage]) -> None:
    tables = Tables(spark, tmp_path, data_directory())
    tables.apply(_records(spark, messages[:1], 0), 0)
    row = tables.silver().first()
    assert row is not None
    assert (row["flight_id"], row["airline"], row["plane_year"], row["manufacturer"], row["seats"]) == (
        "20130101-0515-UA1545-EWR", "United Air Lines Inc.", 1999, "BOEING", 149,
    )  # fmt: skip
    assert row["dep_delay"] == 2
    assert row["time_hour"].timestamp() == dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC).timestamp()


def test_a_body_that_is_no_flight_stops_the_batch(
    spark: SparkSession, tmp_path: Path, messages: list[FlightMessage]
) -> None:
    tables = Tables(spark, tmp_path, data_directory())
    broken = FlightMessage("x", "UA", b'{"year": 2013, "mon', {})
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        tables.apply(_records(spark, [*messages[:2], broken], 0), 0)
    assert tables.gold() == []
