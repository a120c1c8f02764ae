"""What a replay shows while it runs: how many messages it has passed and chosen, how fast, and how long it will take.

A condition may choose no message for minutes, so the messages that were passed are counted, and not only those that are
sent. On a terminal, a bar is kept up to date. Elsewhere, lines on standard error tell the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rucola.cli.closed_output import OutputClosedError
from rucola.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

    from rucola.cli.terminal import Terminal

FIRST_S = 0.5
"""When the first line is printed, in seconds after the start."""
NEXT_S = 10.0
"""Time between two lines, in seconds."""
BAR_S = 0.2
"""Time between two changes of the bar, in seconds."""


class ReplayProgress:
    """Counts of a running replay; another thread shows them.

    Attributes:
        total: number of messages to pass; None until the replay is planned, and if an index chooses messages.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._began_s = self._clock.monotonic()
        self._scanned = self._matched = 0
        self.total: int | None = None

    def expect(self, total: int | None) -> None:
        """Sets ``total``, when the replay is planned."""
        self.total = total

    def scanned(self, messages: int) -> None:
        """Adds messages that were passed, whether they are chosen or not."""
        self._scanned += messages

    def matched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields ``batches``, and counts their messages as chosen."""
        for batch in batches:
            self._matched += batch.num_rows
            yield batch

    @property
    def done(self) -> int:
        """Number of messages that were passed."""
        return self._scanned

    def text(self) -> str:
        """One line with everything that is known."""
        scanned, total = self._scanned, self.total  # the replay goes on meanwhile
        seconds = self._clock.monotonic() - self._began_s
        rate = scanned / seconds if seconds > 0 else 0.0
        of = "" if total is None else f" of {total:,}"
        facts = [f"{scanned:,}{of} messages scanned", f"{self._matched:,} matched", f"{rate:,.0f}/s"]
        if total is not None and rate > 0:
            facts.append(f"{_minutes(max(0, total - scanned) / rate)} left")
        return ", ".join(facts)


@contextmanager
def shown(progress: ReplayProgress) -> Iterator[None]:
    """Shows ``progress`` until the block ends."""
    from rucola.cli.terminal import Terminal

    console = Terminal(error=True)
    ended = threading.Event()
    show = _bar if console.is_terminal else _lines

    def run() -> None:
        with suppress(OutputClosedError):  # nobody reads it; the replay goes on
            show(progress, console, ended)

    thread = threading.Thread(target=run, name="rucola-replay-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bar(progress: ReplayProgress, console: Terminal, ended: threading.Event) -> None:
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        TextColumn("replaying"), BarColumn(), TextColumn("{task.description}"), console=console, transient=True
    ) as bar:
        task = bar.add_task("", total=None)
        while not ended.wait(BAR_S):
            bar.update(task, description=progress.text(), completed=progress.done, total=progress.total)


def _lines(progress: ReplayProgress, console: Terminal, ended: threading.Event) -> None:
    pause_s = FIRST_S
    while not ended.wait(pause_s):
        console.print(f"replaying: {progress.text()}", soft_wrap=True)
        pause_s = NEXT_S


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60:,} min {whole % 60} s"
