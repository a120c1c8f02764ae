"""Tables that most pipelines derive from a topic: stored records, their origins, counts, and dead letters by group.

Each function maps a DataFrame of a batch or a stream to another DataFrame, so declarative pipelines and streaming
queries can use the same functions. Functions for one business domain belong in a copy of the template
``examples/pipeline``, not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.common.key_builder import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from rucola.common.message_const import RETRY_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BRONZE_COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp", "msgId",
    "keys", "tags", "flag", "reconsumeTimes", "properties", "body",
)  # fmt: skip
"""The columns that ``bronze`` keeps. A replay and ``decode`` need no other columns."""
ORIGIN, GROUP = "originTopic", "consumerGroup"


def bronze(rows: DataFrame) -> DataFrame:
    """Selects ``BRONZE_COLUMNS``; keeps one row per record in the log, so a message that was sent twice has two rows.

    Args:
        rows: rows of ``format("rocketmq")`` with at least ``BRONZE_COLUMNS``.
    """
    return rows.select(*BRONZE_COLUMNS)


def with_origin(records: DataFrame, properties_as_map: bool = False) -> DataFrame:
    """Adds ``originTopic``, the topic that a producer sent the message to, and ``consumerGroup``.

    A message that a consumer could not process moves to the retry topic of the consumer's group, and later to the
    group's dead-letter topic. ``consumerGroup`` is this group, and null for messages in other topics.

    Args:
        records: rows with ``topic`` and ``properties``.
        properties_as_map: whether ``properties`` is a map instead of a JSON text.
    """
    from pyspark.sql import functions as f

    prefixes = "|".join((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX))
    group = f.nullif(f.regexp_extract("topic", f"^({prefixes})(.+)$", 2), f.lit(""))
    if properties_as_map:
        sent_to = f.col("properties")[RETRY_TOPIC]
    else:
        sent_to = f.get_json_object("properties", f"$.{RETRY_TOPIC}")
    origin = f.coalesce(f.when(group.isNotNull(), sent_to), "topic")
    return records.withColumn(GROUP, group).withColumn(ORIGIN, origin)


def topic_stats(records: DataFrame, every: str = "1 minute") -> DataFrame:
    """For each topic and period of store time: messages, bytes of bodies, and mean time from producer to store.

    Args:
        records: rows of ``bronze``.
        every: length of one period as a Spark interval, such as ``1 minute``.
    """
    from pyspark.sql import functions as f

    taken_ms = f.unix_millis("storeTimestamp") - f.unix_millis("bornTimestamp")
    counted = records.groupBy("topic", f.window("storeTimestamp", every).alias("_window")).agg(
        f.count("*").alias("messages"),
        f.sum(f.octet_length("body")).alias("bodyBytes"),
        f.avg(taken_ms).alias("storeDelayMs"),
    )
    return counted.select("topic", f.col("_window.start").alias("since"), "messages", "bodyBytes", "storeDelayMs")


def dead_letters(records: DataFrame) -> DataFrame:
    """Counts dead letters by consumer group and by the topic to which producers sent the messages.

    Args:
        records: rows of ``bronze``; only rows of dead-letter topics are counted.
    """
    from pyspark.sql import functions as f

    dead = with_origin(records.where(f.col("topic").startswith(DLQ_GROUP_TOPIC_PREFIX)))
    return dead.groupBy(GROUP, ORIGIN).agg(
        f.count("*").alias("messages"), f.min("storeTimestamp").alias("first"), f.max("storeTimestamp").alias("last")
    )
