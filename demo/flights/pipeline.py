"""Bronze, silver and gold as functions from DataFrame to DataFrame; `job` connects them to streams.

bronze  one row per record in the log, as the source gives it, duplicates included (``rucola.spark.layers``)
silver  one row per flight: the body's columns typed, with its airline and its plane
gold    one row per carrier and month: counts and whole-minute sums, which add up from batch to batch; means come last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (the name Spark users know)

from .silver import RESULT_SCHEMA, SilverPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLIGHT_COLUMNS = ("bornTimestamp", "keys", "body")
"""What silver needs of a record."""

PARTS = 2
"""Tasks of a micro-batch. A flight belongs to the same one in every batch, so the number of a table never changes."""


def sums_of_new_flights(records: DataFrame, part: SilverPart) -> DataFrame:
    """Adds the flights of a micro-batch to silver and returns their sums, all in one job.

    Java only moves the records: each row is decoded, joined, written and counted in Arrow's columns by Python tasks.

    Args:
        records: rows with `FLIGHT_COLUMNS`; they contain a flight twice if it was sent twice.
        part: what each task does.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = records.select(F.col("keys").alias("flight_id"), "bornTimestamp", "body").repartition(PARTS, "flight_id")
    return rows.mapInArrow(part, from_arrow_schema(RESULT_SCHEMA))
