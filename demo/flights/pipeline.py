"""Bronze, silver and gold as functions from DataFrame to DataFrame.

`tables` wires them to a stream, tests to static rows.

bronze  one row per record in the log, as the source gives it, duplicates included
silver  one row per flight: the body's columns typed, with its airline and its plane
gold    one row per carrier and month: counts and whole-minute sums, which add up from batch to batch; means come last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (the name Spark users know)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BODY_SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour timestamp"
)
"""Columns of ``flights.csv`` as they travel in the JSON body."""

BRONZE_COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp", "keys",
    "tags", "properties", "body",
)  # fmt: skip

SUMS = ("flights", "cancelled", "departed", "departure_delay_sum_min", "arrived", "arrival_delay_sum_min", "seats")
"""Columns of gold that add up."""


def bronze(records: DataFrame) -> DataFrame:
    """The columns of the ``rocketmq`` source that are kept."""
    return records.select(*BRONZE_COLUMNS)


def silver(bronze_rows: DataFrame, airlines: DataFrame, planes: DataFrame) -> DataFrame:
    """Typed flights with airline and plane, each flight once.

    Args:
        bronze_rows: records of one batch; a flight sent twice is in it twice.
        airlines: ``carrier``, ``name``.
        planes: ``tailnum``, ``year``, ``manufacturer``, ``model``, ``seats``; flights with other planes keep nulls.
    """
    # FAILFAST: a body that is not the JSON we agreed on must stop the pipeline, not turn into a row of nulls.
    body = F.from_json(F.col("body").cast("string"), BODY_SCHEMA, {"mode": "FAILFAST"})
    flights = bronze_rows.select(F.col("keys").alias("flight_id"), "queueId", "queueOffset", body.alias("row"))
    flights = flights.dropDuplicates(["flight_id"]).select("flight_id", "queueId", "queueOffset", "row.*")
    names = airlines.select("carrier", F.col("name").alias("airline"))
    listed = planes.select("tailnum", F.col("year").alias("plane_year"), "manufacturer", "model", "seats")
    return flights.join(F.broadcast(names), "carrier", "left").join(F.broadcast(listed), "tailnum", "left")


def unseen(flights: DataFrame, seen: DataFrame) -> DataFrame:
    """Flights that no earlier batch has. Args: ``seen``: ``flight_id`` of all earlier batches."""
    return flights.join(seen.select("flight_id"), "flight_id", "left_anti")


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


def add_gold(before: DataFrame, change: DataFrame) -> DataFrame:
    """Gold after a batch, from gold before it and the gold of its own flights."""
    sums = [F.sum(name).alias(name) for name in SUMS]
    rows = before.select(*change.columns).unionByName(change)
    return rows.groupBy("carrier", "month").agg(F.first("airline", ignorenulls=True).alias("airline"), *sums)


def with_means(sums: DataFrame) -> DataFrame:
    """Gold with its mean delays; null for a month without a departure (or arrival)."""
    return sums.withColumns(
        {
            "departure_delay_mean_min": _ratio("departure_delay_sum_min", "departed"),
            "arrival_delay_mean_min": _ratio("arrival_delay_sum_min", "arrived"),
        }
    )


def _total(name: str) -> Column:
    return F.coalesce(F.sum(name), F.lit(0)).cast("long")


def _ratio(total: str, count: str) -> Column:
    # An explicit case: division by zero raises under ANSI rules, which are Spark's default.
    return F.when(F.col(count) > 0, F.col(total).cast("double") / F.col(count).cast("double"))
