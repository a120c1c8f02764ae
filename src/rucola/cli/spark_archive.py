"""``rucola spark archive``, ``compact`` and ``restore``: archive topics as tables, and whole logs for a restore.

Exit codes: 0 success, 1 a broker does not answer, or messages were lost, 2 usage, 5 the store cannot be read, 6 the
disk is full or fails, 130 after Ctrl-C.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rucola.arrow.json_shape import TimeUnit
from rucola.cli.config_file import read_broker_conf
from rucola.cli.lines import print_json_line, print_text
from rucola.cli.store_arguments import Config
from rucola.cli.tool import Master
from rucola.common.json_library import orjson
from rucola.errors import ConfigError
from rucola.lake import Step, TableFormat
from rucola.lake.archiver import MESSAGES_PER_COMMIT
from rucola.lake.maintenance import TARGET_BYTES
from rucola.runtime import extras

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rucola.spark.archive.decoded_copy import Decode

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TABLE = typer.Argument(metavar="TABLE", help="Directory of the table.", show_default=False)
_STORE = typer.Option("--store", metavar="DIR", help="Store directory to read in place.")
_NO_SPARK = typer.Option("--no-spark", help="Do the work in this process, without Java.")
_FORMAT = typer.Option("--format", help="Format of the table.")
_CATALOG = typer.Option(
    "--catalog",
    metavar="NAME",
    help="For Iceberg: catalog in PyIceberg's configuration. [default: a file]",
)
_IDENTIFIER = typer.Option(
    "--identifier", metavar="NAME", help="For Iceberg: name of the table in the catalog. [default: rucola.messages]"
)
_JSON = typer.Option("--json", help="One object for each line of output.")


def archive(
    table: Annotated[str, _TABLE],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Topic; may be repeated. [default: all]")
    ] = None,
    store: Annotated[str | None, _STORE] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n", "--namesrv", metavar="ADDRESSES", help="Name servers; messages are read from their brokers."
        ),
    ] = None,
    broker_name: Annotated[
        str, typer.Option("--broker-name", metavar="NAME", help="Name of the store's broker.")
    ] = "broker-a",
    format: Annotated[TableFormat, _FORMAT] = TableFormat.DELTA,
    catalog: Annotated[str, _CATALOG] = "",
    identifier: Annotated[str, _IDENTIFIER] = "",
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Repeat at this interval, such as 10s.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Archive the whole log of --store for a restore.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Add a column, named record, with the stored bytes of each message.")
    ] = False,
    lite: Annotated[
        bool, typer.Option("--lite", help="Add columns liteTopic and liteOffset; they are null in older rows.")
    ] = False,
    decode: Annotated[
        str | None, typer.Option("--decode", metavar="FORMAT", help="Decode bodies: json, avro, protobuf or string.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="SCHEMA", help="Schema for --decode: DDL or a file.")
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", metavar="NAME", help="Message type for --decode protobuf.")
    ] = None,
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost", help="Go on without messages that are gone; a body that cannot be decompressed is null."
        ),
    ] = False,
    integer_times: Annotated[
        TimeUnit | None,
        typer.Option("--integer-times", help="For --decode json: unit of whole numbers in timestamp fields."),
    ] = None,
    messages_per_commit: Annotated[
        int, typer.Option("--messages-per-commit", min=1, help="Maximum number of messages in a commit.")
    ] = MESSAGES_PER_COMMIT,
    master: Master = None,
    no_spark: Annotated[bool, _NO_SPARK] = False,
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Copy new messages of topics into a table, each once."""
    from rucola.spark import archive as lake

    every_s = None if every is None else seconds("--every", every)
    on_step = partial(_say_step, json)
    needless = topic or namesrv or record or lite or decode or integer_times or skip_lost
    where = {"format": format, "catalog": catalog, "identifier": identifier}
    if raw and (needless or store is None):
        raise ConfigError(
            "--raw",
            "given",
            "only with --store, and without --topic, --namesrv, --record, --lite, --decode and --skip-lost",
        )
    with session(master, no_spark) as spark:
        if raw and store is not None:
            count = lake.archive_raw(
                table, store, spark=spark, broker_name=broker_name, every_s=every_s, on_step=on_step, **where
            )
        else:
            count = lake.archive(
                table,
                topic,
                spark=spark,
                store=store,
                name_server=namesrv or "",
                decode=_decoding(decode, schema, message, integer_times),
                record=record,
                messages_per_commit=messages_per_commit,
                every_s=every_s,
                on_step=on_step,
                broker_name=broker_name,
                fail_on_data_loss=not skip_lost,
                include_lite=lite,
                **where,
            )
    say(json, f"{count:,} {'rows' if raw else 'messages'} archived", {"archived": count})


def restore(
    table: Annotated[str, _TABLE],
    target: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory of the new store; it must be empty or not exist.")
    ],
    broker_name: Annotated[
        str, typer.Option("--broker-name", metavar="NAME", help="Broker of the log, if the table has several logs.")
    ] = "",
    format: Annotated[TableFormat, _FORMAT] = TableFormat.DELTA,
    catalog: Annotated[str, _CATALOG] = "",
    identifier: Annotated[str, _IDENTIFIER] = "",
    config: Config = None,
    no_rebuild: Annotated[
        bool, typer.Option("--no-rebuild", help="Only the log: build no queues and no index.")
    ] = False,
    master: Master = None,
    no_spark: Annotated[bool, _NO_SPARK] = False,
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Make a store from a table that archive --raw wrote. The new log equals the archived log byte for byte."""
    from rucola.spark import archive as lake

    with session(master, no_spark) as spark:
        conf = read_broker_conf(config)
        files = lake.restore(
            table,
            target,
            spark=spark,
            format=format,
            catalog=catalog,
            identifier=identifier,
            broker_name=broker_name,
            rebuild=not no_rebuild,
            broker_conf=conf,
        )
    for one in files:
        say(json, f"{one.sha256}  commitlog/{one.name}", one._asdict())
    size = sum(one.size for one in files)
    say(json, f"{target}: {len(files)} segments, {size / 1e6:,.1f} MB", {"segments": len(files), "size": size})


def compact(
    table: Annotated[str, _TABLE],
    format: Annotated[TableFormat, _FORMAT] = TableFormat.DELTA,
    catalog: Annotated[str, _CATALOG] = "",
    identifier: Annotated[str, _IDENTIFIER] = "",
    target_mib: Annotated[int, typer.Option("--target-mib", min=1, help="Wanted size of a file in MiB.")] = TARGET_BYTES
    >> 20,
    keep_days: Annotated[
        int | None, typer.Option("--keep-days", min=1, help="Remove messages older than this number of days.")
    ] = None,
    master: Master = None,
    no_spark: Annotated[bool, _NO_SPARK] = False,
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Join small files of a table, remove old messages (--keep-days), and delete files that are no longer needed."""
    from rucola.spark import archive as lake

    with session(master, no_spark) as spark:
        done = lake.compact(
            table,
            spark=spark,
            format=format,
            catalog=catalog,
            identifier=identifier,
            target_bytes=target_mib << 20,
            keep_days=keep_days,
        )
    text = (
        f"{done.joined} files joined into {done.made}, {done.expired} files expired, {done.deleted} old files deleted"
    )
    say(json, text, done._asdict())


@contextmanager
def session(master: str | None, no_spark: bool) -> Iterator[SparkSession | None]:
    """A Spark session that ends with the ``with`` block; None with ``--no-spark``.

    Raises:
        ConfigError: both ``--master`` and ``--no-spark`` are given.
        MissingExtraError: PySpark is not installed.
    """
    extras.require(extras.LAKE if no_spark else extras.SPARK, "rucola spark")
    if no_spark:
        if master is not None:
            raise ConfigError("--master", master, "no value, because --no-spark is given")
        yield None
        return
    from rucola.spark.session import command_session

    spark = command_session("rucola archive", master=master)
    try:
        yield spark
    finally:
        spark.stop()


def _decoding(
    format: str | None, schema: str | None, message: str | None, integer_times: TimeUnit | None
) -> Decode | None:
    if format is None:
        if integer_times is not None:
            raise ConfigError("--integer-times", integer_times, "no value without --decode json")
        return None
    from rucola.spark.decoding import decode

    return partial(decode, format=format, schema=schema, message=message, integer_times=integer_times or "")


def seconds(option: str, text: str) -> float:
    """Converts a duration with a unit, such as ``10s``, to seconds.

    Raises:
        ConfigError: ``text`` is not a whole number with a unit.
    """
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", text)
    if found is None:
        raise ConfigError(option, text, "a whole number and ms, s, m or h, such as 10s")
    return int(found[1]) * _UNITS_S[found[2]]


def say(json: bool, text: str, facts: dict[str, object]) -> None:
    """Prints one line: ``text``, or with ``json`` the facts."""
    if json:
        print_json_line(orjson.dumps(facts))
    else:
        print_text(text)
    sys.stdout.flush()


def _say_step(json: bool, step: Step) -> None:
    rate = step.messages / step.seconds if step.seconds else 0.0
    text = (
        f"commit {step.version}: {step.messages:,} messages in {step.files} files, {step.size / 1e6:,.1f} MB, "
        f"{rate:,.0f}/s, {step.lag:,} to do"
    )
    say(json, text, step._asdict())
