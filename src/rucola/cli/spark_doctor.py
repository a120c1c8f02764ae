"""The store doctor on Spark: the same jobs as in ``rucola store``, with the tasks on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rucola.cli import store_output as output
from rucola.cli.config_file import read_broker_conf
from rucola.cli.exit_codes import ExitCode
from rucola.cli.store_arguments import (
    CommitLog,
    Conditions,
    Config,
    Directory,
    DryRun,
    Json,
    Most,
    Pattern,
    Stores,
    existing,
)
from rucola.cli.store_census import By, fields_of
from rucola.cli.store_doctor import Only, SegmentBytes, Sources, Target
from rucola.cli.store_text import body_text
from rucola.cli.tool import options_from_fields
from rucola.errors import ConfigError
from rucola.runtime import extras
from rucola.store.doctor import rebuild as doctor
from rucola.store.doctor import repair as repairs
from rucola.store.doctor import salvage as salvages
from rucola.store.doctor.staged import Runner, run_serially

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark master: local[N] or spark://HOST:PORT. [default: that of spark-submit, or local[*]]",
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]


def rebuild(
    directory: Directory,
    master: Master = None,
    conf: Conf = None,
    config: Config = None,
    commit_log: CommitLog = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Build consume queues and index files again from the log. All machines must see DIR under the same path."""
    options = read_broker_conf(config)
    with runner(master, conf, dry_run) as run, output.steps() as advance:
        report = doctor.rebuild(directory, run, options, commit_log, advance, dry_run)
    output.print_summary(report, json)


def repair(
    directory: Directory,
    master: Master = None,
    conf: Conf = None,
    config: Config = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Repair what can be repaired for certain; `rucola store repair --undo` undoes the repair."""
    options = read_broker_conf(config)
    with runner(master, conf, dry_run) as run, output.steps() as advance:
        report = repairs.repair(directory, run, options, advance, dry_run)
    output.print_repair(report, json)
    return ExitCode.FAILED if report.left else ExitCode.CLEAN


def salvage(
    sources: Sources,
    target: Target,
    topic: Only = None,
    segment_bytes: SegmentBytes = 0,
    master: Master = None,
    conf: Conf = None,
    config: Config = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Save all whole records of damaged logs, partial files and images into a new store, one task for each file."""
    options = read_broker_conf(config)
    with runner(master, conf, False) as run, output.steps() as advance:
        report = salvages.salvage(sources, target, segment_bytes, topic or (), options, run, advance, dry_run)
    output.print_summary(report, json)


def verify(directories: Stores, master: Master = None, conf: Conf = None, json: Json = False) -> int:
    """Check stores, one task for each. Exits with 1 if there are findings."""
    from rucola.spark.doctor import findings

    stores = [existing(directory) for directory in directories]
    with session(master, conf) as spark:
        rows = [row.asDict() for row in findings(spark, stores).collect()]
    output.print_rows(rows, json)
    return ExitCode.FAILED if rows else ExitCode.CLEAN


def stats(directories: Stores, by: By = "topic", master: Master = None, conf: Conf = None, json: Json = False) -> None:
    """Count messages and bytes of stores, one task for each segment."""
    from rucola.spark.doctor import statistics

    stores, fields = [existing(directory) for directory in directories], fields_of(by)
    names = [{"queue_id": "queueId", "hour_ms": "hourMs"}.get(field, field) for field in fields]
    with session(master, conf) as spark:
        sums = statistics(spark, stores).groupBy(*names).agg({"messages": "sum", "bytes": "sum"}).orderBy(*names)
        rows = [
            {name.removeprefix("sum(").removesuffix(")"): value for name, value in row.asDict().items()}
            for row in sums.collect()
        ]
    output.print_rows(rows, json)


@options_from_fields
def find(
    directories: Stores,
    conditions: Conditions,
    pattern: Pattern = None,
    master: Master = None,
    conf: Conf = None,
    most: Most = None,
    json: Json = False,
) -> None:
    """Find messages in stores, one task for each segment. All conditions must match."""
    from rucola.spark import doctor as jobs

    stores = [existing(directory) for directory in directories]
    wanted = conditions.query("--pattern", pattern)
    with session(master, conf) as spark:
        found = jobs.find(spark, stores, wanted)
        rows = [row.asDict() for row in (found if most is None else found.limit(most)).collect()]
    output.print_rows([row | {"body": body_text(bytes(row["body"]))} for row in rows], json)


@contextmanager
def runner(master: str | None, conf: list[str] | None, dry_run: bool) -> Iterator[Runner]:
    """Runs the tasks of a job in Spark. A dry run has no tasks, so it starts no Spark.

    Raises:
        ConfigError: a setting is not ``KEY=VALUE``.
        MissingExtraError: PySpark is not installed.
    """
    if dry_run:
        yield run_serially
        return
    from rucola.spark.doctor import in_spark

    with session(master, conf) as spark:
        yield in_spark(spark)


@contextmanager
def session(master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """A Spark session for one command.

    Raises:
        ConfigError: a setting is not ``KEY=VALUE``.
        MissingExtraError: PySpark is not installed.
    """
    settings = {}
    for text in conf or []:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError("--conf", text, "KEY=VALUE")
        settings[key] = value
    extras.require(extras.SPARK, "rucola spark")
    from rucola.spark.session import command_session

    spark = command_session("rucola doctor", master=master, **settings)
    try:
        yield spark
    finally:
        spark.stop()
