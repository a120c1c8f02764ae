"""The log as a lakehouse: topics archived into tables of Parquet, read together with the store, and restored.

``archive`` copies new messages, in one run or continuously. ``topic_table`` reads table and store as one DataFrame.
``compact`` joins small files, and ``expire`` removes old days. ``archive_raw`` and ``restore`` copy a whole log, byte
for byte.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rucola.arrow.read_options import DEFAULT_BROKER_NAME
from rucola.spark.archive.archiver import MESSAGES_PER_COMMIT, Archiver, Decode, Step
from rucola.spark.archive.manifest_log import ManifestLog
from rucola.spark.archive.raw import RawArchiver
from rucola.spark.archive.restore import RestoredFile, write_store
from rucola.spark.archive.table_formats import TableFormat, open_table
from rucola.spark.archive.table_log import TableKind
from rucola.spark.archive.topic_table import table_over_both

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RestoredFile", "Step", "TableFormat", "archive", "archive_raw", "restore", "topic_table"]


def archive(
    table: str | os.PathLike[str],
    topic: str | Sequence[str] | None = None,
    *,
    spark: SparkSession | None = None,
    store: str | os.PathLike[str] | None = None,
    name_server: str = "",
    format: str = TableFormat.PARQUET,
    decode: Decode | None = None,
    record: bool = False,
    messages_per_commit: int = MESSAGES_PER_COMMIT,
    every_s: float | None = None,
    stop: threading.Event | None = None,
    on_step: Callable[[Step], None] | None = None,
    **options: Any,
) -> int:
    """Copies messages that are not in the table yet; returns the number of messages copied.

    The table gets each message exactly once, even if runs overlap in time or are killed.

    Args:
        table: directory of the table; the first run creates it.
        topic: one topic, or several; without it, all topics except system topics and light queues.
        spark: the session whose executors read and write; None reads and writes in this process, without Java.
        store: store directory; give either this or ``name_server``.
        name_server: name servers, `host:port` separated by `;`, to read through brokers.
        format: ``parquet``, ``delta`` (needs the extra ``lake``) or ``iceberg`` (needs the extra ``iceberg``).
        decode: adds typed columns to the rows; needs a session. Example:
            ``decode=partial(rucola.spark.decoding.decode, schema="...")``.
        record: adds column ``record``, the stored bytes of each message.
        messages_per_commit: largest number of messages in one commit.
        every_s: interval between runs, in seconds; None for a single run.
        stop: when this event is set, the function returns after the current commit.
        on_step: called with each commit.
        options: further fields of ``rucola.arrow.read_options.ReadOptions``.

    Raises:
        AnotherLogError: the store is not the one whose messages are in the table.
        ConfigError: arguments exclude each other, a topic does not exist, or a column's type differs from its type in
            the table.
        DataLossError: a queue of the store ends before its archived offset; or messages expired before they were
            archived, and ``fail_on_data_loss`` is set.
    """
    from rucola.arrow.topic_dataset import topic_options

    read = topic_options(store, topic, name_server, include_record=record, **options)
    archiver = Archiver(open_table(table, format), read, spark, decode, messages_per_commit)
    return _repeated(archiver.steps, every_s, stop, on_step)


def archive_raw(
    table: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    broker_name: str = DEFAULT_BROKER_NAME,
    commit_log_path: str = "",
    every_s: float | None = None,
    stop: threading.Event | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> int:
    """Copies new bytes of a store's commit log, and the files of its directory ``config``, into a raw table.

    Args:
        table: directory of the table, in format ``parquet``; the first run creates it.
        store: directory of the store.
        spark: the session whose executors read and write; None reads and writes in this process, without Java.
        broker_name: name of the store's broker; a table may hold the logs of several brokers.
        commit_log_path: directory of the log if it is not in ``store``; several are separated by commas.
        every_s: interval between runs, in seconds; None for a single run.
        stop: when this event is set, the function returns after the current commit.
        on_step: called with each commit.

    Returns:
        The number of new rows: records, blank records, stretches of other bytes, files of ``config``, and sizes.

    Raises:
        AnotherLogError: the store is not the one whose log is in the table.
        DataLossError: segments expired before they were archived, or the log became shorter.
        StoreDamagedError: the directory holds no store.
    """
    log = ManifestLog(os.fspath(table), TableKind.RAW)
    archiver = RawArchiver(log, os.fspath(store), spark, broker_name, commit_log_path)
    return _repeated(archiver.steps, every_s, stop, on_step)


def restore(
    table: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    broker_name: str = "",
    rebuild: bool = True,
    broker_conf: Mapping[str, str] | None = None,
) -> list[RestoredFile]:
    """Writes the log of a raw table back as a store directory; returns its segments with their SHA-256.

    The directory appears under its name only when it is complete.

    Args:
        table: directory of the table.
        target: directory of the new store; it must either be empty or not exist yet.
        spark: the session whose executors write; None writes in this process.
        broker_name: broker whose log is restored; may be empty if the table has only one log.
        rebuild: builds queues and index from the log. If the log is damaged, the broker builds them instead.
        broker_conf: entries of the broker's configuration. Without sizes of queue files and index files in it, those of
            the archived store are taken.

    Raises:
        ConfigError: the table has no log of ``broker_name``, or ``target`` is not empty.
        FormatError: a part of the log is missing in the table, or a file of the table is damaged.
    """
    log = ManifestLog(os.fspath(table), TableKind.RAW)
    return write_store(log, os.fspath(target), spark, broker_name, rebuild, broker_conf)


def _repeated(
    steps: Callable[[], Iterator[Step]],
    every_s: float | None,
    stop: threading.Event | None,
    on_step: Callable[[Step], None] | None,
) -> int:
    """Runs ``steps`` once, or with pauses of ``every_s`` seconds until ``stop`` is set; returns the number of archived
    rows.
    """
    count, stop = 0, stop or threading.Event()
    while True:
        for step in steps():
            count += step.messages
            if on_step is not None:
                on_step(step)
            if stop.is_set():
                break
        if every_s is None or stop.wait(every_s):
            return count


def topic_table(
    spark: SparkSession,
    topic: str,
    table: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    name_server: str = "",
    format: str = TableFormat.PARQUET,
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
        format: as in ``archive``.
        columns: names of the wanted columns; other columns are not read.
        decode: as in ``archive``; needed if the table has typed columns and they are wanted.
        options: further fields of ``rucola.arrow.read_options.ReadOptions``.

    Raises:
        ConfigError: a column or the topic does not exist, or ``decode`` is missing.
        DataLossError: messages expired before they were archived, and ``fail_on_data_loss`` is set.
    """
    from rucola.arrow.topic_dataset import topic_options

    read = topic_options(store, topic, name_server, **options)
    return table_over_both(spark, open_table(table, format), read, columns, decode)
