"""The output of the job: one line per finished step, progress while a step runs, and the table at the end.

On a terminal, progress is shown as live bars; elsewhere (the log of a build server), as one plain line every few
seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .figures import MONTHS, CarrierMonth, mean, short_name

PLAIN_INTERVAL_S = 5.0
RATE_WINDOW_S = 2.0


class Screen:
    """The terminal. Used by one thread."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._begin_s = time.monotonic()
        self.steps: dict[str, float] = {}
        """How long each finished step took, in seconds."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Shows that ``name`` is running, then how long it took."""
        begin_s = time.monotonic()
        if not self.console.is_terminal:
            self.console.print(f"{self._clock()}  {name} ...")
        with self.console.status(f"{name} ..."):
            yield
        self.finished(name, time.monotonic() - begin_s)

    def finished(self, name: str, took_s: float, detail: str = "") -> None:
        """Shows that a step is done."""
        self.steps[name] = took_s
        self.console.print(
            f"{self._clock()}  [green]✓[/] {name} [dim]({took_s:.1f} s)[/]{'  ' + detail if detail else ''}"
        )

    def note(self, text: str, style: str = "bold yellow") -> None:
        """Reports an event that is not a step."""
        self.console.print(f"{self._clock()}  [{style}]{text}[/]", soft_wrap=True)

    def error(self, text: str) -> None:
        """Reports that the job failed, or that a figure differs."""
        self.console.print(f"[bold red]demo:[/] {text}", soft_wrap=True)

    @contextmanager
    def bars(self, total: int) -> Iterator[Bars]:
        """Shows two progress bars while the block runs: messages acknowledged, and flights in gold."""
        bars = Bars(self, total)
        with bars.live:
            yield bars

    def _clock(self) -> str:
        return f"[dim]{time.monotonic() - self._begin_s:6.1f} s[/]"

    def plain(self, text: str) -> None:
        """A line of progress, for output that is not a terminal."""
        self.console.print(f"{self._clock()}  {text}")


class Bars:
    """The two progress bars: messages acknowledged, and flights in gold."""

    def __init__(self, screen: Screen, total: int) -> None:
        self._screen = screen
        self._total = total
        self.live = Progress(
            SpinnerColumn(), TextColumn("{task.description:>10}"), BarColumn(40), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>11}"), TimeElapsedColumn(),
            console=screen.console, transient=True, disable=not screen.console.is_terminal,
        )  # fmt: skip
        self._published = self.live.add_task("published", total=total, rate="")
        self._in_gold = self.live.add_task("in gold", total=total, rate="")
        self._window: list[tuple[float, int]] = []
        self._plain_at_s = time.monotonic() + PLAIN_INTERVAL_S

    def update(self, published: int, in_gold: int) -> None:
        """Shows new counts."""
        now_s = time.monotonic()
        self._window = [*[point for point in self._window if now_s - point[0] < RATE_WINDOW_S], (now_s, published)]
        (first_s, first), (last_s, last) = self._window[0], self._window[-1]
        rate = (last - first) / (last_s - first_s) if last_s > first_s else 0.0
        self.live.update(self._published, completed=published, rate=f"{rate:,.0f}/s")
        self.live.update(self._in_gold, completed=in_gold)
        if not self._screen.console.is_terminal and now_s >= self._plain_at_s:
            self._plain_at_s = now_s + PLAIN_INTERVAL_S
            self._screen.plain(f"published {published:,} of {self._total:,} ({rate:,.0f}/s), in gold {in_gold:,}")


def closing_table(gold: Sequence[CarrierMonth]) -> Table:
    """A table with one line per carrier for the whole year, busiest carrier first; it fits 80 columns."""
    table = Table(
        title="Gold by carrier: flights from New York in 2013, mean delays in minutes",
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("", no_wrap=True)
    table.add_column("airline", no_wrap=True)
    for name in ("flights", "cancelled", "departure", "arrival", "worst month"):
        table.add_column(name, justify="right", no_wrap=True)
    carriers: dict[str, list[CarrierMonth]] = {}
    for row in gold:
        carriers.setdefault(row.carrier, []).append(row)
    for carrier, rows in sorted(carriers.items(), key=lambda item: -sum(row.flights for row in item[1])):
        flights, cancelled = sum(row.flights for row in rows), sum(row.cancelled for row in rows)
        departure = mean(sum(row.departure_delay_sum_min for row in rows), sum(row.departed for row in rows))
        arrival = mean(sum(row.arrival_delay_sum_min for row in rows), sum(row.arrived for row in rows))
        table.add_row(
            carrier,
            short_name(rows[0].airline or ""),
            f"{flights:,}",
            f"{cancelled / flights:.1%}",
            _delay(departure),
            _delay(arrival),
            _worst(rows),
        )
    return table


def _worst(rows: Sequence[CarrierMonth]) -> str:
    """The month with the largest mean delay of arrivals, and this delay."""
    delays = [(row.arrival_delay_mean_min, row.month) for row in rows if row.arrival_delay_mean_min is not None]
    if not delays:
        return "-"
    delay, month = max(delays)
    return f"{MONTHS[month - 1]} {_delay(delay):>5}"


def _delay(minutes: float | None) -> str:
    return "-" if minutes is None else f"{minutes:.1f}"
