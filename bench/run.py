"""``python -m bench.run [--quick] [NAME ...]``: measures, prints each figure with its ratio and budget.

Results also go to ``.bench/results.json``. A missed budget is printed as missed; the exit status is 0 unless something
could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.table import Table
from tools.peers.packages import ROOT, PeerError

from bench import kernels, receive, scan, send, start, store
from bench.context import Context
from bench.figure import Figure

RESULTS = ROOT / ".bench" / "results.json"
WIDTH = 150
"""Columns of the report where there is no terminal to ask."""
MEASUREMENTS: dict[str, Callable[[Context], Iterator[Figure]]] = {
    "kernels": kernels.measure,
    "scan": scan.measure,
    "start": start.measure,
    "store": store.measure,
    "send": send.measure_client,
    "send-frames": send.measure_frames,
    "send-java": send.measure_java,
    "pull": receive.measure,
    "send-sync": send.measure_sync,
}


def main(arguments: list[str]) -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round each: a rough look")
    parser.add_argument("name", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.name if name not in MEASUREMENTS]:
        parser.error(f"no measurement {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(f"[bold]{machine()}[/]")
    failed: list[str] = []
    figures: list[Figure] = []
    begin = time.monotonic()
    with console.status("starting") as status, ExitStack() as stack:
        context = Context(options.quick, stack, _shower(console, status))
        for name in options.name or MEASUREMENTS:
            try:
                figures.extend(MEASUREMENTS[name](context))
            except PeerError as error:
                failed.append(f"{name}: {error}")
        status.update("stopping the servers")
    console.print(report(figures))
    missed = [figure for figure in figures if figure.met is False]
    for figure in missed:
        console.print(f"[red]budget missed:[/] {figure.group}: {figure.what}")
    kept = sum(figure.met is True for figure in figures)
    console.print(f"{kept} budgets kept, {len(missed)} missed, in {time.monotonic() - begin:.0f} s")
    save(figures, options.quick)
    for text in failed:
        print(f"bench: {text}", file=sys.stderr)
    return 1 if failed else 0


def machine() -> str:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} × {model}, {memory_gib:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, load before {load:.2f}"
    )


def report(figures: list[Figure]) -> Table:
    """All figures, a heading for each group."""
    table = Table(header_style="bold")
    for title in ("figure", "ours", "compared with", "", "ratio", "budget", ""):
        table.add_column(title, justify="right" if title in ("ours", "compared with", "ratio") else "left")
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            table.add_section()
            table.add_row(f"[bold]{group}[/]")
        budget = ", ".join(each.text(figure.unit) for each in figure.budgets)
        mark = {True: "[green]kept[/]", False: "[red]missed[/]", None: ""}[figure.met]
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}×"
        peer = "" if figure.peer is None else number(figure.peer, figure.unit)
        table.add_row(f"  {figure.what}", number(figure.ours, figure.unit), peer, figure.peer_name, ratio, budget, mark)
    return table


def number(value: float, unit: str) -> str:
    """Three significant digits, thousands apart."""
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text}{unit if unit.startswith('/') else ' ' + unit}"


def save(figures: list[Figure], quick: bool) -> None:
    """Write the results for later comparison."""
    RESULTS.parent.mkdir(exist_ok=True)
    content = {"machine": machine(), "quick": quick, "figures": [figure.as_json() for figure in figures]}
    RESULTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _shower(console: Console, status: Status) -> Callable[[str], None]:
    """Progress: the status line on a terminal, else a line each."""
    begin = time.monotonic()

    def show(text: str) -> None:
        if console.is_terminal:
            status.update(text)
        else:
            print(f"{time.monotonic() - begin:4.0f} s  {text}", file=sys.stderr)

    return show


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
