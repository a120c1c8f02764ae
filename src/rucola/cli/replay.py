"""``rucola replay``: sends messages of a store directory, or of brokers, into a topic again.

Exit codes: 0 all are sent, 1 brokers do not answer or refuse a message, 2 usage, 5 the store cannot be read, 130 after
Ctrl-C.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from rucola.cli import replay_request as on
from rucola.cli.closed_output import OutputClosedError, drop_output
from rucola.cli.exit_codes import ExitCode
from rucola.runtime import extras
from rucola.spark.replay_source import Plan, read_plan

if TYPE_CHECKING:
    import pyarrow as pa

    from rucola.spark.replay_rows import Tally

app = typer.Typer(
    name="replay",
    help="Send stored messages into a topic again.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_INTERRUPTED = 130


def run(arguments: list[str]) -> int:
    """Run ``rucola replay``; returns the exit code.

    Raises:
        RucolaError: a message could not be read or sent.
    """
    try:
        typer.main.get_command(app)(arguments, prog_name="rucola replay", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except (BrokenPipeError, OutputClosedError):
        drop_output()
    return ExitCode.CLEAN


@app.command()
def replay(
    to: on.To,
    store: on.Store = None,
    from_namesrv: on.From = None,
    topic: on.Topic = None,
    namesrv: on.Namesrv = None,
    since: on.Since = None,
    until: on.Until = None,
    keys: on.Keys = None,
    filter: on.Filter = None,
    where: on.Where = None,
    rate: on.Rate = None,
    keep_queues: on.KeepQueues = False,
    id_scope: on.IdScope = "",
    checkpoint: on.State = None,
    dry_run: on.DryRun = False,
    json: on.Json = False,
    source: on.SourceOption = None,
    sink: on.SinkOption = None,
) -> None:
    """Send stored messages into a topic again, as new messages with ids that repeat in a second run."""
    request = on.Request(**locals())
    from rucola.spark.replay_rows import COLUMNS, replay_batches

    begin_s = time.monotonic()
    chosen = any((keys, filter, where))
    with request.begin() as going, on.progress(None if chosen else going.plan.count) as advance:
        batches = _where(going.plan, where, COLUMNS) if where is not None else read_plan(going.plan, COLUMNS)

        def settled(tally: Tally) -> None:
            advance(tally.messages)
            going.settled(tally)

        tally = replay_batches(batches, going.sink, rate=rate, dry_run=dry_run, settled=settled)
    on.print_result(request, tally, going.done, time.monotonic() - begin_s)


def _where(plan: Plan, condition: str, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    extras.require(extras.SQL, "rucola replay --where")
    from rucola.arrow.columns import arrow_schema
    from rucola.arrow.schema import all_columns
    from rucola.sql.condition import chosen_by

    schema = arrow_schema(all_columns(plan.options))
    return chosen_by(condition, read_plan(plan, schema.names), schema, columns)
