"""Bronze, silver and gold as functions from DataFrame to DataFrame; `job` connects them to a stream.

bronze  one row per record in the log, as the source gives it, duplicates included (``rucola.spark.layers``)
silver  one row per flight: the body's columns typed, with its airline and its plane
gold    one row per carrier and month: counts and whole-minute sums, which add up from batch to batch; means come last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.spark.layers import bronze

from .tasks import RESULT_SCHEMA, BatchTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def sums_of_new_flights(records: DataFrame, task: BatchTask) -> DataFrame:
    """Adds a micro-batch to bronze and silver and returns the sums of its new flights, all in one stage.

    Java only moves the records: Python tasks write, decode, join and count them in Arrow's columns. Nothing is
    shuffled, because both copies of a flight that was sent twice are in the same queue.

    Args:
        records: rows with ``BRONZE_COLUMNS``, each queue in one partition, as the source returns them.
        task: function that each task runs.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    return bronze(records).mapInArrow(task, from_arrow_schema(RESULT_SCHEMA))
