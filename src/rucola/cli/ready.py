"""Reports that servers run: as text for people, or as JSON for scripts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping

from rucola.cli.closed_output import drop_output
from rucola.common.json_library import orjson
from rucola.runtime.machine import process_id


def prepare(options: Namespace) -> None:
    """Imports what ``say_ready`` needs, before servers start."""
    if not options.json:
        _ready_text()


def say_ready(json: bool, title: str, lines: dict[str, str], facts: Mapping[str, object]) -> None:
    """Reports that all servers run, with their addresses: as text for people, or with ``json`` as JSON for scripts."""
    text = orjson.dumps({"pid": process_id(), **facts}).decode() if json else _ready_text()(title, lines)
    try:
        print(text, flush=True)  # noqa: T201 - this is the output
    except BrokenPipeError:  # nobody reads the output any more; the servers keep running
        drop_output()


def _ready_text() -> Callable[[str, dict[str, str]], str]:
    """The function that writes the text for people. Its import takes 50 ms and more. The commands call this before they
    start servers, because afterwards the import would delay the first clients.
    """
    from rucola.cli.ready_text import ready_text

    return ready_text
