"""``rucola spark replay``: a replay in which tasks of Spark read and send; its source may also be a table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rucola.cli import replay_request as on
from rucola.cli.times import time_ms
from rucola.cli.tool import Master, options_from_fields
from rucola.errors import ConfigError
from rucola.spark.replay_source import Done
from rucola.spark.session import command_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rucola.spark.replay_rows import ReplayTally

STEP_S = 10
"""How long one task sends if the rate is limited, in seconds (approximate). Progress and checkpoint are updated after
each task.
"""
STEPS_MAX = 10_000


@options_from_fields
def replay(
    request: on.ReplayRequest,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="PATH",
            help="Take messages from this archive, or this Parquet table with the source's columns.",
        ),
    ] = None,
    master: Master = None,
) -> None:
    """Send stored messages again, to any topic, by tasks of Spark."""
    if table is not None:
        begin_s = time.monotonic()
        _check_table(request)
        sink_options = request.sink_options()
        spark = command_session("rucola replay", master=master)
        tally = _replay(_of_table(spark, request, table), request, sink_options, None, None)
        on.print_result(request, tally, Done({}, {}).plus(tally), time.monotonic() - begin_s)
        return

    def send(going: on.Run) -> ReplayTally:
        from rucola.spark.replay_rows import ReplayTally

        if not going.plan.ranges:
            return ReplayTally()
        rows = _of_source(command_session("rucola replay", master=master), request, going)
        total = None if _chosen(request) else going.plan.count
        tally = _replay(rows, request, request.sink_options(), going, total)
        going.settled(tally)
        return tally

    on.run_replay(request, send)


def _replay(
    rows: DataFrame, request: on.ReplayRequest, sink_options: dict[str, str], going: on.Run | None, total: int | None
) -> ReplayTally:
    from rucola.spark.replay import replay, with_keys

    if request.keys:
        rows = with_keys(rows, request.keys)
    if request.where is not None:
        rows = rows.where(request.where)
    settled = going.settled if going is not None and request.checkpoint is not None else None
    with on.progress(total) as advance:
        return replay(
            rows,
            sink_options,
            rate=request.rate,
            dry_run=request.dry_run,
            progress=advance,
            settled=settled,
        )


def _of_source(spark: SparkSession, request: on.ReplayRequest, going: on.Run) -> DataFrame:
    from rucola.spark.replay import plan_options

    tasks = spark.sparkContext.defaultParallelism
    if request.rate is not None:
        tasks = max(1, min(STEPS_MAX, int(going.plan.count / (request.rate * STEP_S))))
    options = plan_options(request.source_options(), going.plan, tasks)
    return spark.read.format("rocketmq").options(**options).load()


def _of_table(spark: SparkSession, request: on.ReplayRequest, table: str) -> DataFrame:
    from pyspark.sql import functions as f

    from rucola.lake.table_formats import found_format, open_table
    from rucola.places.storage import open_place
    from rucola.spark.archive.topic_table import archived_rows

    found = found_format(open_place(table))
    if found is None:
        rows = spark.read.parquet(table)
    else:
        # The directory also has files that belong to no commit.
        log = open_table(table, found)
        snapshot = log.snapshot()
        rows = archived_rows(spark, log, snapshot, list(snapshot.files.values()))
    if request.topic is not None:
        rows = rows.where(f.col("topic").isin(*[name.strip() for name in request.topic.split(",")]))
    if request.since is not None:
        rows = rows.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(time_ms("--since", request.since))))
    if request.until is not None:
        rows = rows.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(time_ms("--until", request.until))))
    return rows


def _check_table(request: on.ReplayRequest) -> None:
    for option, value, instead in (
        ("--store", request.store, "only without --table"),
        ("--from", request.from_namesrv, "only without --table"),
        ("--source", request.source, "only without --table"),
        ("--filter", request.filter, "only without --table; use --where instead"),
        (
            "--checkpoint",
            request.checkpoint,
            "only without --table, because a table has no order. After a failure, repeat the run; ids stay the same",
        ),
    ):
        if value:
            raise ConfigError(option, str(value), instead)


def _chosen(request: on.ReplayRequest) -> bool:
    return any((request.keys, request.filter, request.where))
