"""The log as a lakehouse: topics archived into tables of Parquet, and whole logs that can be restored. No Spark needed.

``archive`` copies new messages, in one run or continuously. ``compact`` joins small files and removes old days.
``archive_raw`` and ``restore`` copy a whole log, byte for byte. ``rucola.spark.archive`` has the same functions for
Spark's executors, and reads table and store as one.

For example::

    from rucola.lake import archive, compact

    copied = archive("./table", "flights", store="./store")
    print(copied, compact("./table").joined)
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rucola.arrow.read_options import DEFAULT_BROKER_NAME
from rucola.errors import ConfigError, TopicsFailedError
from rucola.lake.archiver import MESSAGES_PER_COMMIT, Archiver, Copy, Step, plain_copy
from rucola.lake.maintenance import TARGET_BYTES, expire
from rucola.lake.maintenance import compact as join_files
from rucola.lake.raw_archiver import RawArchiver
from rucola.lake.restore import RestoredFile, write_store
from rucola.lake.table_formats import TableFormat, open_table
from rucola.lake.table_log import TableKind
from rucola.lake.workers import Workers, run_here
from rucola.store.doctor.staged import Runner, run_serially

__all__ = ["Maintained", "RestoredFile", "Step", "TableFormat", "archive", "archive_raw", "compact", "restore"]

logger = logging.getLogger(__name__)


class Maintained(NamedTuple):
    """What ``compact`` has done, in files.

    Attributes:
        joined: small files that were joined.
        made: files that replaced them.
        expired: files that left the table, because their day is too old.
        deleted: files that left the table, or were left by killed runs, and are now deleted.
    """

    joined: int
    made: int
    expired: int
    deleted: int


def archive(
    table: str | os.PathLike[str],
    topic: str | Sequence[str] | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    name_server: str = "",
    format: str = TableFormat.DELTA,
    catalog: str = "",
    identifier: str = "",
    storage_options: Mapping[str, str] | None = None,
    record: bool = False,
    messages_per_commit: int = MESSAGES_PER_COMMIT,
    every_s: float | None = None,
    stop: threading.Event | None = None,
    on_step: Callable[[Step], None] | None = None,
    workers: Workers = run_here,
    copy: Copy | None = None,
    **options: Any,
) -> int:
    """Copies messages that are not in the table yet; returns the number of messages copied.

    The table gets each message exactly once, even if runs overlap in time or are killed.

    Args:
        table: directory of the table, or its URL, such as ``s3://bucket/path``; the first run creates it.
        topic: one topic, or several; without it, all topics except system topics and light queues.
        store: store directory; give either this or ``name_server``.
        name_server: name servers, `host:port` separated by `;`, to read through brokers.
        format: ``delta``, or ``iceberg`` (needs the extra ``iceberg``).
        catalog: for Iceberg: name of a catalog in PyIceberg's configuration; without it, a SQLite file in the table.
        identifier: for Iceberg: namespace and name of the table in the catalog, ``rucola.messages`` by default.
        storage_options: how an object store is reached, by deltalake's names; what is missing comes from the
            environment. See ``rucola.places.storage_options.OPTIONS``.
        record: adds column ``record``, the stored bytes of each message.
        messages_per_commit: largest number of messages in one commit.
        every_s: interval between runs, in seconds; None for a single run.
        stop: when this event is set, the function returns after the current commit.
        on_step: called with each commit.
        workers: who reads and writes; this process by default.
        copy: reads and writes the messages in place of ``workers``.
        options: further fields of ``rucola.arrow.read_options.ReadOptions``.

    Raises:
        ConfigError: arguments exclude each other, or a column's type differs from its type in the table.
        TopicsFailedError: some topics failed, and the others are archived. If all have failed with errors of one
            kind, the first of these is raised. A topic fails with ``AnotherLogError`` if the store is not the one whose
            messages are in the table; with ``DataLossError`` if a queue ends before its archived offset, or if messages
            expired before they were archived and ``fail_on_data_loss`` is set; with ``ConfigError`` if it does not
            exist, if its queues are of type BatchCQ, or if the table may have its log by another broker name; or with
            the error of a damaged store. With ``every_s``, a failure is logged once, the runs go on, and the error is
            raised at the end if the last run had it.
    """
    from rucola.arrow.topic_dataset import topic_options

    read = topic_options(store, topic, name_server, include_record=record, **options)
    opened = open_table(table, format, catalog=catalog, identifier=identifier, storage_options=storage_options)
    archiver = Archiver(opened, read, copy or plain_copy(workers), messages_per_commit)
    return _repeated(archiver.steps, every_s, stop, on_step)


def archive_raw(
    table: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    format: str = TableFormat.DELTA,
    catalog: str = "",
    identifier: str = "",
    storage_options: Mapping[str, str] | None = None,
    broker_name: str = DEFAULT_BROKER_NAME,
    commit_log_path: str = "",
    every_s: float | None = None,
    stop: threading.Event | None = None,
    on_step: Callable[[Step], None] | None = None,
    workers: Workers = run_here,
) -> int:
    """Copies new bytes of a store's commit log, and the files of its directory ``config``, into a raw table.

    Args:
        table: directory of the table, or its URL, such as ``s3://bucket/path``; the first run creates it.
        store: directory of the store.
        format: as in ``archive``, also ``catalog``, ``identifier`` and ``storage_options``.
        broker_name: name of the store's broker; a table may hold the logs of several brokers.
        commit_log_path: directory of the log if it is not in ``store``; several are separated by commas.
        every_s: interval between runs, in seconds; None for a single run.
        stop: when this event is set, the function returns after the current commit.
        on_step: called with each commit.
        workers: who reads and writes; this process by default.

    Returns:
        The number of new rows: records, blank records, stretches of other bytes, files of ``config``, and sizes.

    Raises:
        AnotherLogError: the store is not the one whose log is in the table.
        DataLossError: segments expired before they were archived, or the log became shorter.
        StoreDamagedError: the directory holds no store.
    """
    opened = open_table(table, format, TableKind.RAW, catalog, identifier, storage_options)
    archiver = RawArchiver(opened, os.fspath(store), workers, broker_name, commit_log_path)
    return _repeated(archiver.steps, every_s, stop, on_step)


def restore(
    table: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: str = TableFormat.DELTA,
    catalog: str = "",
    identifier: str = "",
    storage_options: Mapping[str, str] | None = None,
    broker_name: str = "",
    rebuild: bool = True,
    broker_conf: Mapping[str, str] | None = None,
    workers: Workers = run_here,
    runner: Runner = run_serially,
) -> list[RestoredFile]:
    """Writes the log of a raw table back as a store directory; returns its segments with their SHA-256.

    The directory appears under its name only when it is complete.

    Args:
        table: directory of the table, or its URL.
        target: directory of the new store; it must either be empty or not exist yet.
        format: as in ``archive``, also ``catalog``, ``identifier`` and ``storage_options``.
        broker_name: broker whose log is restored; may be empty if the table has only one log.
        rebuild: builds queues and index from the log. If the log is damaged, the broker builds them instead.
        broker_conf: entries of the broker's configuration. Without sizes of queue files and index files in it, those of
            the archived store are taken.
        workers: who writes the log; this process by default.
        runner: who builds queues and index; this process by default.

    Raises:
        ConfigError: the table has no log of ``broker_name``, or ``target`` is not empty.
        FormatError: a part of the log is missing in the table, or a file of the table is damaged.
    """
    opened = open_table(table, format, TableKind.RAW, catalog, identifier, storage_options)
    return write_store(opened, os.fspath(target), workers, runner, broker_name, rebuild, broker_conf)


def compact(
    table: str | os.PathLike[str],
    *,
    format: str = TableFormat.DELTA,
    catalog: str = "",
    identifier: str = "",
    storage_options: Mapping[str, str] | None = None,
    target_bytes: int = TARGET_BYTES,
    keep_days: int | None = None,
    workers: Workers = run_here,
) -> Maintained:
    """Joins small files of a table, removes old days, and deletes files that nobody needs any more.

    Args:
        table: directory of the table, or its URL.
        format: as in ``archive``, also ``catalog``, ``identifier`` and ``storage_options``.
        target_bytes: desired size of a file in bytes.
        keep_days: removes messages whose day (UTC) is longer ago; None removes none.
        workers: who reads and writes; this process by default.

    Raises:
        ConfigError: ``keep_days`` is less than 1, or given for a raw table.
    """
    if keep_days is not None and keep_days < 1:
        raise ConfigError("keep_days", str(keep_days), "1 or more")
    opened = open_table(table, format, None, catalog, identifier, storage_options)
    expired = 0
    if keep_days is not None:
        expired = expire(opened, (datetime.now(UTC) - timedelta(days=keep_days)).date())
    joined = join_files(opened, workers, target_bytes)
    return Maintained(joined.before, joined.after, expired, opened.clean())


def _repeated(
    steps: Callable[[], Iterator[Step]],
    every_s: float | None,
    stop: threading.Event | None,
    on_step: Callable[[Step], None] | None,
) -> int:
    """Runs ``steps`` once, or with pauses of ``every_s`` seconds until ``stop`` is set; returns the number of archived
    rows.
    """
    if every_s is not None and not every_s > 0:
        raise ConfigError("every_s", str(every_s), "more than 0 seconds, or None for a single run")
    count, stop = 0, stop or threading.Event()
    told: set[tuple[str, str]] = set()
    while True:
        failed: TopicsFailedError | None = None
        try:
            for step in steps():
                count += step.messages
                if on_step is not None:
                    on_step(step)
                if stop.is_set():
                    break
        except TopicsFailedError as error:
            failed = error
        if failed is not None and every_s is not None:
            kinds = {(topic, type(error).__name__) for topic, error in failed.failures.items()}
            if not kinds <= told:
                logger.warning("%s; the next runs try again", failed)
            told = kinds
        if every_s is None or stop.wait(every_s):
            if failed is not None:
                raise failed.only or failed
            return count
