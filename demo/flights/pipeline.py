"""Bronze, silver and gold as functions from DataFrame to DataFrame.

`job` connects them to streams, `tables` writes their results, and tests run them on a few records.

bronze  one row per record in the log, as the source gives it, duplicates included (``rucola.spark.layers``)
silver  one row per flight: the body's columns typed, with its airline and its plane
gold    one row per carrier and month: counts and whole-minute sums, which add up from batch to batch; means come last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (the name Spark users know)

from rucola.spark.decoding import decode, without_poison

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BODY_SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour timestamp"
)
"""Columns of ``flights.csv`` as they travel in the JSON body."""

FLIGHT_COLUMNS = ("queueId", "queueOffset", "bornTimestamp", "keys", "body")
"""What silver needs of a record."""

DECODED = "decoded"
"""Name under which a stream counts its records and those that are no flight."""


def silver(records: DataFrame, airlines: DataFrame, planes: DataFrame) -> DataFrame:
    """Typed flights with airline and plane, each flight once; records that are not flights are counted and left out.

    Over a stream, the query keeps the ids of all earlier flights as state. Flights of earlier micro-batches are left
    out, and a micro-batch that runs again gives the same rows.

    Args:
        records: rows with `FLIGHT_COLUMNS`; they contain a flight twice if it was sent twice.
        airlines: ``carrier``, ``name``.
        planes: ``tailnum``, ``year``, ``manufacturer``, ``model``, ``seats``; flights with other planes keep nulls.
    """
    rows = records.select(*FLIGHT_COLUMNS).withColumnRenamed("keys", "flight_id")
    flights = without_poison(decode(rows, "json", BODY_SCHEMA, count_as=DECODED)).drop("body")
    flights = flights.dropDuplicates(["flight_id"])
    names = airlines.select("carrier", F.col("name").alias("airline"))
    listed = planes.select("tailnum", F.col("year").alias("plane_year"), "manufacturer", "model", "seats")
    return flights.join(F.broadcast(names), "carrier", "left").join(F.broadcast(listed), "tailnum", "left")


def gold(flights: DataFrame) -> DataFrame:
    """Counts and sums per carrier and month."""
    return flights.groupBy("carrier", "month").agg(
        F.first("airline", ignorenulls=True).alias("airline"),
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
        F.count("dep_delay").alias("departed"),
        _total("dep_delay").alias("departure_delay_sum_min"),
        F.count("arr_delay").alias("arrived"),
        _total("arr_delay").alias("arrival_delay_sum_min"),
        _total("seats").alias("seats"),
    )


def _total(name: str) -> Column:
    return F.coalesce(F.sum(name), F.lit(0)).cast("long")
