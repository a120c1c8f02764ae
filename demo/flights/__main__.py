"""The command ``python -m demo.flights``.

Exit: 0 all figures are equal; 1 a figure differs or the job failed; 2 usage, or there is no Java.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from .data import ROWS_ALL
from .java import EXIT_NO_JAVA, java_problem

EXIT_FAILED = 1


def main(
    rows: Annotated[int, typer.Option(min=1000, max=ROWS_ALL, help="Publish only the first N rows.")] = ROWS_ALL,
    rate: Annotated[float, typer.Option(min=0, help="Messages per second, 0 for as fast as possible.")] = 12_000.0,
    kill: Annotated[bool, typer.Option(help="Kill the broker with SIGKILL in the middle, and restart it.")] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store directory after a successful run.")] = False,
    directory: Annotated[Path, typer.Option(help="Working directory; emptied at the start.")] = Path(".demo"),
) -> None:
    """Publishes a year of flights, follows them with Spark, kills the broker half-way, and compares the result with the
    CSV.
    """
    problem = java_problem()
    if problem is not None:
        sys.stderr.write(f"demo: {problem}\n")
        raise typer.Exit(EXIT_NO_JAVA)
    signal.signal(signal.SIGTERM, _terminated)
    from .job import Job, Settings  # PySpark and matplotlib are imported only here, when they are needed.

    raise typer.Exit(Job(Settings(rows, rate, kill, keep, directory)).run())


def _terminated(number: int, frame: FrameType | None) -> None:
    """Makes SIGTERM end the job like any other exit, so that its child processes end, too."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    typer.run(main)
