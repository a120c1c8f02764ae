"""The one replay of ``rucola replay`` and ``rucola spark replay``: its options, its course and its output. The commands
add only who reads and sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rucola.cli.lines import print_json_line, print_text
from rucola.cli.times import time_ms
from rucola.common.json_library import orjson
from rucola.errors import ConfigError
from rucola.runtime.files import Files
from rucola.spark.options import SourceOptions, parse_options
from rucola.spark.replay_source import Checkpoint, Done, Plan, plan_replay
from rucola.spark.sink_options import SinkOptions, parse_sink_options

if TYPE_CHECKING:
    from rucola.spark.replay_rows import ReplayTally

SAVE_S = 1.0
"""Minimum number of seconds between two saves of the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """One command line; each field is an option."""

    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Topic to send to.", show_default=False)]
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="DIR", help="Take messages from the files of this store directory."),
    ] = None
    from_namesrv: Annotated[
        str | None,
        typer.Option("--from", metavar="ADDRESSES", help="Take messages from the brokers of these name servers."),
    ] = None
    topic: Annotated[str | None, typer.Option("--topic", help="Topics to take messages from, separated by commas.")] = (
        None
    )
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n", "--namesrv", metavar="ADDRESSES", help="Name servers to send to. [default: those of --from]"
        ),
    ] = None
    since: Annotated[
        str | None, typer.Option(help="Stored at or after this time: ISO 8601 (UTC), or milliseconds.")
    ] = None
    until: Annotated[str | None, typer.Option(help="Stored before this time.")] = None
    keys: Annotated[
        list[str] | None, typer.Option("--key", help="Only messages with this key or id; may be repeated.")
    ] = None
    filter: Annotated[
        str | None, typer.Option("--filter", help="Tags separated by ||, or a condition in SQL92 over the properties.")
    ] = None
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="CONDITION", help="A condition in SQL over the columns of the messages."),
    ] = None
    rate: Annotated[float | None, typer.Option("--rate", help="Limit in messages a second. [default: no limit]")] = None
    keep_queues: Annotated[
        bool, typer.Option("--keep-queues", help="Keep the queue id of each message, and the order of each queue.")
    ] = False
    id_scope: Annotated[
        str, typer.Option("--id-scope", help="Text in every new message id; different texts give different ids.")
    ] = ""
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="FILE", help="Record in this file what was sent; the next run continues from there."
        ),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the messages and send none.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source", metavar="NAME=VALUE", help="An option of Spark's source; NAME=@FILE reads VALUE from a file."
        ),
    ] = None
    sink: Annotated[
        list[str] | None,
        typer.Option("--sink", metavar="NAME=VALUE", help="An option of Spark's sink; see --source."),
    ] = None

    def source_options(self) -> dict[str, str]:
        """The options of the source, by the names that Spark uses.

        Raises:
            ConfigError: an option is wrong.
        """
        if self.store is not None and not Files().is_directory(self.store):
            raise ConfigError("--store", self.store, "an existing directory")
        given = {
            "storePath": str(Path(self.store).expanduser()) if self.store is not None else "",
            "nameServer": self.from_namesrv or "",
            "topic": self.topic or "",
            "subExpression": self.filter or "",
            "startingTimestamp": str(time_ms("--since", self.since)) if self.since is not None else "",
            "endingTimestamp": str(time_ms("--until", self.until)) if self.until is not None else "",
            "startingOffsetsByTimestampStrategy": "latest",
        }
        return {name: value for name, value in given.items() if value} | _pairs("--source", self.source)

    def sink_options(self) -> dict[str, str]:
        """The options of the sink, by the names that Spark uses.

        Raises:
            ConfigError: an option is wrong.
        """
        if self.rate is not None and self.rate <= 0:
            raise ConfigError("--rate", str(self.rate), "a number of messages a second, above 0")
        given = {
            "nameServer": self.namesrv or self.from_namesrv or ("none in a dry run" if self.dry_run else ""),
            "topic": self.to,
            "idScope": self.id_scope,
            "queueColumn": "queueId" if self.keep_queues else "",
        }
        options = {name: value for name, value in given.items() if value} | _pairs("--sink", self.sink)
        if "nameServer" not in options:
            raise ConfigError("--namesrv", "", "the name servers to send to")
        if self.checkpoint is not None and parse_sink_options(options).dead_letter_path:
            raise ConfigError(
                "deadLetterPath", "given", "no value with --checkpoint; use deadLetterTopic, or no --checkpoint"
            )
        return options

    def parsed(self) -> tuple[SourceOptions, SinkOptions]:
        """The checked options of source and sink."""
        return parse_options(self.source_options()), parse_sink_options(self.sink_options())

    def begin(self) -> Run:
        """Plans the replay, or the rest of an interrupted replay."""
        options, sink = self.parsed()
        state = None
        if self.checkpoint is not None and not self.dry_run:
            selected = (self.store, self.from_namesrv, self.topic, self.since, self.until, self.filter, self.where)
            replay = {
                "from": repr((*selected, self.keys, [text for text in self.source or [] if "@" not in text])),
                "to": sink.topic,
                "idScope": sink.id_scope,
                "queueColumn": sink.queue_column,
            }
            state = Checkpoint(self.checkpoint, replay)
        done = state.load() if state is not None else None
        plan = plan_replay(options, self.keys or (), done)
        return Run(plan, sink, state, done or Done.nothing(plan))


class Run:
    """A running replay, to be used in a ``with`` block; the end of the block saves the checkpoint, even after an error.

    Args:
        plan: what to read.
        sink: where to send.
        state: the checkpoint, if there is one.
        done: what earlier runs have done.
    """

    def __init__(self, plan: Plan, sink: SinkOptions, state: Checkpoint | None, done: Done) -> None:
        self.plan = plan
        self.sink = sink
        self._state = state
        self._before = done
        self.done = done
        self._saved_s = time.monotonic()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    def settled(self, tally: ReplayTally) -> None:
        """Records what this run has sent so far."""
        self.done = self._before.plus(tally)
        if time.monotonic() - self._saved_s >= SAVE_S:
            self._save()

    def _save(self) -> None:
        if self._state is not None:
            self._state.save(self.done)
            self._saved_s = time.monotonic()


def run_replay(
    request: ReplayRequest, send: Callable[[Run], ReplayTally], shown: AbstractContextManager[None] | None = None
) -> None:
    """Runs one command line.

    Args:
        send: reads and sends the planned messages; returns their counts.
        shown: shows the progress until the messages are sent.
    """
    begin_s = time.monotonic()
    with shown or nullcontext(), request.begin() as going:
        tally = send(going)
    print_result(request, tally, going.done, time.monotonic() - begin_s)


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar if standard error is a terminal; yields a function that takes the number of messages so
    far.

    Args:
        total: number of messages to send; None if this number is unknown because a condition selects messages.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from rucola.cli.terminal import Terminal

    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Terminal(error=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("replaying", total=total)
        yield lambda messages: bar.update(task, completed=messages)


def print_result(request: ReplayRequest, tally: ReplayTally, done: Done, seconds: float) -> None:
    """Prints queue by queue what was sent or, in a dry run, what would be sent."""
    if request.json:
        facts = {"messages": tally.messages, "refused": tally.refused, "bodyBytes": tally.body_bytes}
        facts |= {"messagesOfAllRuns": done.messages}
        queues = tally.table.sort_by([("topic", "ascending"), ("brokerName", "ascending"), ("queueId", "ascending")])
        content = {"dryRun": request.dry_run, "to": request.to, **facts, "queues": queues.to_pylist()}
        print_json_line(orjson.dumps(content, option=orjson.OPT_UTC_Z))
        return
    size = f"{tally.messages - tally.refused:,} messages, {tally.body_bytes:,} bytes of bodies"
    refused = f"; {tally.refused:,} refused" if tally.refused else ""
    if request.dry_run:
        _print_queues(tally)
        print_text(f"would send to {request.to}: {size}{refused}")
        return
    earlier = f"; sent or refused in all runs: {done.messages:,}" if done.messages > tally.messages else ""
    print_text(f"sent to {request.to}: {size} in {seconds:.1f} s{refused}{earlier}")


def _print_queues(tally: ReplayTally) -> None:
    from rich.table import Table

    from rucola.cli.terminal import Terminal

    table = Table("topic", "broker", "queue", "messages", "offsets", "first", "last", box=None, pad_edge=False)
    for row in sorted(tally.table.to_pylist(), key=lambda one: (one["topic"], one["brokerName"], one["queueId"])):
        numbers = f"{row['messages']:,}", f"{row['firstOffset']} to {row['endOffset'] - 1}"
        times = (f"{row[name]:%Y-%m-%d %H:%M:%S}" for name in ("firstTimestamp", "lastTimestamp"))
        table.add_row(row["topic"], row["brokerName"], str(row["queueId"]), *numbers, *times)
    Terminal().print(table)


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(option, name, "NAME=VALUE, or NAME=@FILE")
        if value.startswith("@"):
            try:
                value = Path(value[1:]).expanduser().read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(option, value, f"a file with the value of {name} ({error})") from error
        found[name] = value
    return found
