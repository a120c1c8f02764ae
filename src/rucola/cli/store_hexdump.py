"""``rucola store hexdump``: shows the bytes of one item of a store, field by field. Each kind of item has a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rucola.cli import store_output as output
from rucola.cli.store_arguments import CommitLog, Directory, Json
from rucola.cli.tool import options_from_fields, tool_app
from rucola.errors import ConfigError
from rucola.runtime.files import Files

if TYPE_CHECKING:
    from rucola.store.offline.hexdump import Dump, Hexdump

app = tool_app("hexdump", "Show the bytes of one item of the store, field by field.")
_UNIT = "TOPIC/QUEUE/OFFSET"
Unit = Annotated[str, typer.Argument(metavar=_UNIT, help="Topic, queue id and queue offset.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class DumpedStore:
    """The store, and how to print."""

    directory: Directory
    commit_log: CommitLog = None
    json: Json = False

    def open(self) -> Hexdump:
        """Access to the items of the store."""
        from rucola.store.offline.hexdump import Hexdump

        return Hexdump(Files(), self.directory, self.commit_log)

    def show(self, dump: Dump) -> None:
        """Prints an item."""
        output.print_dump(dump, self.json)


@app.command()
@options_from_fields
def record(
    source: DumpedStore,
    physical_offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="Physical offset.", show_default=False)
    ],
) -> None:
    """Show a record of the commit log."""
    source.show(source.open().record(physical_offset))


@app.command()
@options_from_fields
def queue(source: DumpedStore, unit: Unit) -> None:
    """Show a unit of a consume queue; in a batch consume queue, the unit of the batch that has the queue offset."""
    source.show(source.open().unit(*_unit_name(unit)))


@app.command()
@options_from_fields
def queue_ext(source: DumpedStore, unit: Unit) -> None:
    """Show the extended data of a unit of a consume queue."""
    source.show(source.open().ext_unit(*_unit_name(unit)))


@app.command()
@options_from_fields
def index(
    source: DumpedStore,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the index file.", show_default=False)],
    slot: Annotated[int | None, typer.Option(min=0, help="Show this slot.")] = None,
    entry: Annotated[int | None, typer.Option(min=0, help="Show this entry.")] = None,
) -> None:
    """Show the header of an index file, or one of its slots or entries."""
    if slot is not None and entry is not None:
        raise ConfigError("--slot, --entry", "both", "at most one of them")
    items = source.open()
    if slot is not None:
        source.show(items.index_slot(name, slot))
    elif entry is not None:
        source.show(items.index_entry(name, entry))
    else:
        source.show(items.index_header(name))


@app.command()
@options_from_fields
def checkpoint(source: DumpedStore) -> None:
    """Show the file checkpoint."""
    source.show(source.open().checkpoint())


@app.command()
@options_from_fields
def timerlog(
    source: DumpedStore,
    position: Annotated[
        int, typer.Argument(metavar="POSITION", min=0, help="Position in the timer log.", show_default=False)
    ],
) -> None:
    """Show a unit of the timer log."""
    source.show(source.open().timer_unit(position))


@app.command()
@options_from_fields
def timerwheel(
    source: DumpedStore,
    step: Annotated[
        int,
        typer.Argument(
            metavar="TIME",
            min=0,
            help="In units of timerPrecisionMs (default: seconds) since 1970.",
            show_default=False,
        ),
    ],
) -> None:
    """Show the slot of the timer wheel for a time."""
    source.show(source.open().timer_slot(step))


@app.command()
@options_from_fields
def timercheck(source: DumpedStore) -> None:
    """Show the file config/timercheck."""
    source.show(source.open().timer_checkpoint())


def _unit_name(text: str) -> tuple[str, int, int]:
    topic, _, rest = text.partition("/")
    queue_id, _, queue_offset = rest.partition("/")
    if not topic or not all(part.isascii() and part.isdigit() for part in (queue_id, queue_offset)):
        raise ConfigError(_UNIT, text, "such as flights/0/7")
    return topic, int(queue_id), int(queue_offset)
