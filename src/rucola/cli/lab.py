"""``rucola lab``: lessons that test common claims about storage engines by measurements on this machine.

Exit codes: 0 success, 1 the system is not Linux or a package is missing, 2 usage, 6 a disk error or no space, 130 after
Ctrl-C.
"""

from __future__ import annotations

import json as json_text
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from rucola.cli.fitted_table import print_fitted
from rucola.cli.terminal import Terminal
from rucola.cli.tool import run_app, tool_app
from rucola.errors import ConfigError, DiskError
from rucola.lab import report as reports
from rucola.lab.course import LESSONS, check_system, lesson_named, run_lesson
from rucola.lab.lesson import Size
from rucola.lab.machine import facts, has_no_disk
from rucola.lab.picture import check_drawing, draw
from rucola.lab.readings import REPETITIONS, Readings
from rucola.lab.text import is_listing, paragraph, tables

app = tool_app("lab", "Measure common claims about storage engines on this machine.")
_PIPE_COLUMNS = 160
_DEFAULT_OUT = "rucola-lab"

Amount = Annotated[str, typer.Option("--size", metavar="|".join(size.value for size in Size), help="Amount of work.")]
Out = Annotated[str, typer.Option("--out", metavar="DIR", help="Directory for pictures and pages.")]
Where = Annotated[
    str | None,
    typer.Option("--dir", metavar="DIR", help="Directory for temporary files; should be on a disk. [default: $TMPDIR]"),
]


def run(arguments: list[str]) -> int:
    """Runs one ``rucola lab`` command; returns the exit code.

    Raises:
        RucolaError: the command failed.
    """
    # SIGTERM raises KeyboardInterrupt, so that temporary files are removed.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_app(app, arguments)
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command("list")
def list_lessons(json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False) -> None:
    """List the lessons."""
    titles = {name: lesson_named(name).title for name in LESSONS}
    if json:
        sys.stdout.write(json_text.dumps([{"name": name, "title": titles[name]} for name in titles]) + "\n")
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("title")
    for name, title in titles.items():
        table.add_row(name, escape(title))
    Terminal().print(table)


@app.command("run")
def run_one(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a lesson.", show_default=False)],
    size: Amount = "normal",
    out: Out = _DEFAULT_OUT,
    directory: Where = None,
    moment: Annotated[
        int | None,
        typer.Option(
            "--moment", min=0, metavar="N", help="Only lesson 'crash': show all states after a power cut at moment N."
        ),
    ] = None,
) -> None:
    """Run a lesson: print its table and its findings, write its picture."""
    lesson, amount = lesson_named(name), _size(size)
    if moment is not None:
        if lesson.moment is None:
            raise ConfigError("--moment", str(moment), "only together with lesson 'crash'")
        for listing in lesson.moment(moment):
            _print_table(listing.title, listing.header, listing.rows, numbers=False)
        return
    below = _prepare(directory)
    picture = _out_directory(out) / f"{name}.png"
    readings = _measure(name, amount, below)
    _write(picture, draw(lesson, readings))
    console = Terminal()
    console.print(f"[bold]{escape(lesson.title)}[/]")
    console.print(Markdown(lesson.intro))
    for title, header, rows in tables(lesson, readings):
        console.print()
        _print_table(title, header, rows, numbers=not is_listing(title, readings))
    console.print()
    console.print(Markdown(paragraph(lesson, readings)))
    console.print(f"\npicture: {escape(str(picture))}", soft_wrap=True)


def _print_table(title: str, header: list[str], rows: list[list[str]], numbers: bool) -> None:
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=None, header_style="dim")
    for place, column in enumerate(header):
        table.add_column(escape(column), justify="right" if numbers and place else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    print_fitted(Terminal(), table)


@app.command()
def report(
    size: Amount = "normal",
    out: Out = _DEFAULT_OUT,
    directory: Where = None,
    readings_file: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Do not measure; write the pages from this readings.json."),
    ] = None,
) -> None:
    """Run all lessons; write lab.html (self-contained), README.md with pictures, and readings.json."""
    amount = _size(size)
    if readings_file is not None:
        check_drawing()
        outcome = _read(readings_file)
        target = _out_directory(out)
    else:
        below = _prepare(directory)
        target = _out_directory(out)
        machine = facts(below)
        outcome = reports.Outcome(machine, [_measure(name, amount, below) for name in LESSONS])
    for name, content in reports.pages(outcome).items():
        _write(target / name, content)
    verdicts = reports.counted(outcome)
    Terminal().print(f"{verdicts}\nreport: {escape(str(target / 'lab.html'))}", soft_wrap=True)


def _measure(name: str, size: Size, below: Path) -> Readings:
    console = Terminal(error=True)
    with _progress(console, name) as progress:
        return run_lesson(name, size, below, lambda text: console.print(escape(text), soft_wrap=True), progress)


@contextmanager
def _progress(console: Terminal, name: str) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal; otherwise prints one line at the end of the lesson."""
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("repetitions"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=REPETITIONS)

        def advance(done: int) -> None:
            bar.update(task, completed=done)
            if not console.is_terminal and done == REPETITIONS:
                console.print(f"{name}: {done} repetitions done")

        yield advance


def _prepare(directory: str | None) -> Path:
    """Checks all prerequisites before the first measurement."""
    check_system()
    check_drawing()
    below = Path(directory or tempfile.gettempdir())
    if not below.is_dir():
        raise ConfigError("--dir", str(below), "an existing directory")
    if has_no_disk(below):
        Terminal(error=True).print(
            f"{below} is a file system in memory, so the figures do not apply to a disk; see --dir"
        )
    return below


def _size(text: str) -> Size:
    try:
        return Size(text)
    except ValueError:
        raise ConfigError("--size", text, ", ".join(size.value for size in Size)) from None


def _out_directory(out: str) -> Path:
    """Creates the output directory before the measurements, so that a failure costs no time."""
    path = Path(out)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(out, "create directory", error.strerror or str(error)) from error
    if not os.access(path, os.W_OK):
        raise DiskError(out, "write", "no permission")
    return path


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DiskError(str(path), "write", error.strerror or str(error)) from error


def _read(path: str) -> reports.Outcome:
    try:
        return reports.Outcome.from_json(Path(path).read_bytes())
    except OSError as error:
        raise DiskError(path, "read", error.strerror or str(error)) from error
