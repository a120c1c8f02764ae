"""The lakehouse on Spark: executors archive, compact and restore; ``topic_table`` reads table and store as one.

The functions are those of ``rucola.lake`` with a session, whose executors do the work. They must reach table, store and
target under the same names as the driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rucola import lake
from rucola.errors import ConfigError
from rucola.lake import Maintained, RestoredFile, Step, TableFormat
from rucola.lake.table_formats import open_table
from rucola.lake.workers import Workers, run_here
from rucola.spark.archive.decoded_copy import Decode, decoded_copy
from rucola.spark.archive.tasks import in_executors
from rucola.spark.archive.topic_table import table_over_both
from rucola.spark.doctor import in_spark
from rucola.store.doctor.staged import run_serially

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Maintained",
    "RestoredFile",
    "Step",
    "TableFormat",
    "archive",
    "archive_raw",
    "compact",
    "restore",
    "topic_table",
]


def archive(
    table: str | os.PathLike[str],
    topic: str | Sequence[str] | None = None,
    *,
    spark: SparkSession | None = None,
    decode: Decode | None = None,
    **arguments: Any,
) -> int:
    """Copies messages that are not in the table yet; returns the number of messages copied.

    Args:
        table: directory of the table; the first run creates it.
        topic: one topic, or several; without it, all topics except system topics and light queues.
        spark: the session whose executors read and write; None reads and writes in this process, without Java.
        decode: adds typed columns to the rows; needs a session. Example:
            ``decode=partial(rucola.spark.decoding.decode, schema="...")``.
        arguments: the other arguments of ``rucola.lake.archive``.

    Raises:
        ConfigError: ``decode`` is given without a session; or see ``rucola.lake.archive``, also for other errors.
    """
    if decode is None:
        return lake.archive(table, topic, workers=_workers(spark), **arguments)
    if spark is None:
        raise ConfigError("decode", "given", "only with a Spark session, because a decoder takes a DataFrame")
    return lake.archive(table, topic, copy=decoded_copy(spark, decode), **arguments)


def archive_raw(
    table: str | os.PathLike[str], store: str | os.PathLike[str], *, spark: SparkSession | None = None, **arguments: Any
) -> int:
    """``rucola.lake.archive_raw``, with the executors of a session."""
    return lake.archive_raw(table, store, workers=_workers(spark), **arguments)


def restore(
    table: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    **arguments: Any,
) -> list[RestoredFile]:
    """``rucola.lake.restore``, with the executors of a session."""
    runner = run_serially if spark is None else in_spark(spark)
    return lake.restore(table, target, workers=_workers(spark), runner=runner, **arguments)


def compact(table: str | os.PathLike[str], *, spark: SparkSession | None = None, **arguments: Any) -> Maintained:
    """``rucola.lake.compact``, with the executors of a session."""
    return lake.compact(table, workers=_workers(spark), **arguments)


def _workers(spark: SparkSession | None) -> Workers:
    return run_here if spark is None else in_executors(spark)


def topic_table(
    spark: SparkSession,
    topic: str,
    table: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    name_server: str = "",
    format: str = TableFormat.DELTA,
    catalog: str = "",
    identifier: str = "",
    storage_options: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    decode: Decode | None = None,
    **options: Any,
) -> DataFrame:
    """Returns all messages of a topic, each once: archived messages, and messages that only the store has so far.

    The rows are fixed when this function is called. Call it again for newer messages. A filter on ``storeDay`` (UTC)
    selects archived files before they are opened.

    Args:
        spark: a session.
        topic: the topic.
        table: directory of the table.
        store: store directory; give either this or ``name_server``.
        name_server: name servers, `host:port` separated by `;`, to read through brokers.
        format: as in ``archive``, also ``catalog``, ``identifier`` and ``storage_options``.
        columns: names of the wanted columns; other columns are not read.
        decode: as in ``archive``; needed if the table has typed columns and they are wanted.
        options: further fields of ``rucola.arrow.read_options.ReadOptions``.

    Raises:
        ConfigError: a column or the topic does not exist, or ``decode`` is missing.
        DataLossError: messages expired before they were archived, and ``fail_on_data_loss`` is set.
    """
    from rucola.arrow.topic_dataset import topic_options

    read = topic_options(store, topic, name_server, **options)
    log = open_table(table, format, catalog=catalog, identifier=identifier, storage_options=storage_options)
    return table_over_both(spark, log, read, columns, decode)
