"""``rucola replay``: sends stored messages again, from a store directory or from brokers, to any topic.

Exit codes: 0 all messages are sent, 1 a broker does not answer or refuses a message, 2 usage, 5 the store cannot be
read, 130 after Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rucola.cli import replay_request as on
from rucola.cli.replay_progress import ReplayProgress, shown
from rucola.cli.tool import options_from_fields, run_app, tool_app
from rucola.runtime import extras
from rucola.spark.replay_source import Plan, read_plan

if TYPE_CHECKING:
    import pyarrow as pa

    from rucola.spark.replay_rows import ReplayTally

app = tool_app("replay", "Send stored messages again, to any topic.")


def run(arguments: list[str]) -> int:
    """Runs ``rucola replay``; returns the exit code.

    Raises:
        RucolaError: a message could not be read or sent.
    """
    return run_app(app, arguments)


@app.command()
@options_from_fields
def replay(request: on.ReplayRequest) -> None:
    """Send stored messages again, to any topic, as new messages. A second run gives them the same new ids as the
    first run.
    """
    progress = ReplayProgress()

    def send(going: on.Run) -> ReplayTally:
        from rucola.spark.replay_rows import COLUMNS, replay_batches

        progress.expect(None if request.keys else going.plan.count)
        if request.where is not None:
            batches = _where(going.plan, request.where, COLUMNS, progress)
        else:
            batches = read_plan(going.plan, COLUMNS, progress.scanned)
        return replay_batches(
            progress.matched(batches), going.sink, rate=request.rate, dry_run=request.dry_run, settled=going.settled
        )

    on.run_replay(request, send, shown(progress))


def _where(plan: Plan, condition: str, columns: tuple[str, ...], progress: ReplayProgress) -> Iterator[pa.RecordBatch]:
    extras.require(extras.SQL, "rucola replay --where")
    from rucola.arrow.columns import arrow_schema
    from rucola.arrow.schema import named_columns
    from rucola.sql.condition import chosen_by

    schema = arrow_schema(named_columns(plan.options).values())
    return chosen_by(condition, read_plan(plan, schema.names, progress.scanned), schema, columns)
