"""``rucola store find`` and ``stats``: read any number of store directories without changing them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from rucola.cli import store_output as output
from rucola.cli.store_arguments import Conditions, Jobs, Json, Most, Pattern, Stores, existing
from rucola.cli.store_tasks import TaskOptions
from rucola.cli.tool import options_from_fields
from rucola.errors import ConfigError
from rucola.formats.message_id import parse_offset_message_id
from rucola.store.doctor import census
from rucola.store.offline.rows import SegmentRows

By = Annotated[str, typer.Option("--by", help="Fields to count by, separated by commas: store,topic,queue,tag,hour.")]
Plot = Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Also draw messages per hour: .png or .svg.")]
FIELDS = {"store": "store", "topic": "topic", "queue": "queue_id", "tag": "tag", "hour": "hour_ms"}


@options_from_fields
def find(
    directories: Stores,
    where: TaskOptions,
    conditions: Conditions,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Offset message id, such as 7F00000100002A9F0000000000000000.")
    ] = None,
    pattern: Pattern = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Scan the logs even if a key is given.")] = False,
    most: Most = None,
    json: Json = False,
) -> None:
    """Find messages in any number of stores. All conditions must match. Spark scans the logs, one task for each
    segment.
    """
    stores = [existing(directory) for directory in directories]
    where.only_here("--id", message_id)
    where.only_here("--no-index", no_index)
    wanted = conditions.query("--pattern", pattern)
    with where.tasks() as tasks:
        found = (
            _with_id(stores, message_id) if message_id is not None else tasks.find(stores, wanted, not no_index, most)
        )
        output.print_found(found, most, json)


def _with_id(stores: list[str], message_id: str) -> Iterable[tuple[str, SegmentRows]]:
    try:
        parse_offset_message_id(message_id)
    except ValueError as error:
        raise ConfigError("--id", message_id, "an offset message id, 32 or 56 hexadecimal digits") from error
    return census.find_id(stores, message_id)


@options_from_fields
def stats(
    directories: Stores,
    where: TaskOptions,
    by: By = "topic",
    plot: Plot = None,
    jobs: Jobs = None,
    json: Json = False,
) -> None:
    """Count messages and bytes, lags of consumers, and dead letters by reason."""
    stores, fields = [existing(directory) for directory in directories], fields_of(by)
    if plot is not None and Path(plot).suffix not in (".png", ".svg"):
        raise ConfigError("--plot", plot, "a file name that ends with .png or .svg")
    parts = census.segments_of(stores)
    tallies: list[census.Tally] = []
    dead: list[census.DeadLetters] = []
    with where.tasks(jobs) as tasks, output.steps() as advance:
        for number, (some, others) in enumerate(tasks.count(parts)):
            tallies += some
            dead += others
            advance("count", number + 1, len(parts))
    lags = [lag for store in stores for lag in census.lags(store)]
    output.print_stats(census.merged(tallies, fields), fields, dead, lags, json)
    if plot is not None:
        from rucola.cli.store_plot import draw_hours

        draw_hours(census.merged(tallies, ("topic", "hour_ms")), plot)


def fields_of(by: str) -> list[str]:
    """Converts ``by``, the value of ``--by``, to names of fields of ``Tally``.

    Raises:
        ConfigError: there is no such field.
    """
    names = [name.strip() for name in by.split(",")]
    if not set(names) <= set(FIELDS):
        raise ConfigError("--by", by, ", ".join(FIELDS))
    return [FIELDS[name] for name in names]
