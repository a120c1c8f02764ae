"""Shows figures: as a table on the terminal and in ``docs/figures.md``, and the six main ones in
``docs/performance.md``.
"""

from __future__ import annotations

import os
import platform
import re
from itertools import groupby
from pathlib import Path

from rich.table import Table
from tools.peers.packages import ROOT

from bench.figure import Figure

PAGE = ROOT / "docs" / "figures.md"
BEGIN, END = "<!-- figures: python -m bench.run --publish -->", "<!-- end of figures -->"
SHORT_PAGE = ROOT / "docs" / "performance.md"
SHORT_BEGIN = "<!-- figures in short: python -m bench.run --publish -->"
SHORT_END = "<!-- end of figures in short -->"
SHORT = (
    (
        "CPU of the broker per message, 64 threads of the official Java client, async flush",
        "Send over TCP, official Java client 5.3.3, blocking, async flush",
        "1 KiB, 64 threads: broker CPU per message",
    ),
    (
        "Rate with every message synced to the disk, the same client",
        "Send over TCP, official Java client 5.3.3, blocking, sync flush",
        "1 KiB, 64 threads",
    ),
    (
        "Rate with half a core for the broker, async flush",
        "Send over TCP, each broker limited to half a core, async flush",
        "official client, 1 KiB, 64 threads",
    ),
    (
        "Producer to waiting push consumer, p99 at 2,000 messages a second",
        "From the producer to a waiting consumer, async flush",
        "official push consumer, 1 KiB at 2,000/s: p99",
    ),
    (
        "Open a store of 4 GiB after a kill",
        "Opening a store of 1 KiB messages, page cache warm",
        "4 GiB, after a kill",
    ),
    (
        "Spark scan of a store in place, all columns",
        "Spark scan of a store in place, local[2], into Spark's noop sink",
        "1 KiB bodies, all columns",
    ),
)
"""The six main figures: displayed name, group, and the beginning of the row's name."""
HEADING = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)
HEAD = ["| figure | ours | compared with | ratio | budget | |", "|---|---:|---:|---:|---|---|"]
FLOOR_HEAD = [
    "| figure | ours | compared with | ratio | floor | ours / floor | budget | |",
    "|---|---:|---:|---:|---:|---:|---|---|",
]
LOAD = ", load average before the run: "
MARKS = {True: "kept", False: "missed", None: ""}
COLOURS = {True: "green", False: "red", None: "default"}


def machine() -> str:
    """Returns a line that describes the machine of the measurement."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} × {model}, {memory_gib:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}{LOAD}{load:.2f}"
    )


def table(figures: list[Figure]) -> Table:
    """Makes a table of all figures, with a heading for each group."""
    shown = Table(header_style="bold")
    for title in ("figure", "ours", "compared with", "", "ratio", "floor", "× floor", "budget", ""):
        shown.add_column(title, justify="left" if title in ("figure", "", "budget") else "right")
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            shown.add_section()
            shown.add_row(f"[bold]{group}[/]")
        what, ours, peer, ratio, budget = _cells(figure)
        mark = f"[{COLOURS[figure.met]}]{MARKS[figure.met]}[/]"
        shown.add_row(f"  {what}", ours, peer, figure.peer_name, ratio, *_floor_cells(figure), budget, mark)
    return shown


def number(value: float, unit: str) -> str:
    """Formats a figure with three significant digits, with separators for thousands."""
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text}{unit if unit.startswith('/') else ' ' + unit}"


def publish(figures: list[Figure], where: str, some: bool) -> None:
    """Writes the figures between two marker comments of the page.

    Args:
        some: whether only some groups were measured; the other groups keep their tables.
    """
    before, _, rest = PAGE.read_text().partition(BEGIN)
    block, _, after = rest.partition(END)
    text = markdown(figures, where)
    tables = merged(block.strip(), text) if some else text
    PAGE.write_text(f"{before}{BEGIN}\n{tables}\n{END}{after}")
    before, _, rest = SHORT_PAGE.read_text().partition(SHORT_BEGIN)
    SHORT_PAGE.write_text(f"{before}{SHORT_BEGIN}\n{in_short(tables)}\n{SHORT_END}{rest.partition(SHORT_END)[2]}")


def in_short(tables: str) -> str:
    """Makes the table of ``SHORT`` figures from all ``tables``; figures that were not measured are left out."""
    _, *parts = HEADING.split(tables)
    groups = dict(zip(parts[::2], parts[1::2], strict=True))
    lines = ["| figure | Rucola | compared with | ratio |", "|---|---:|---:|---:|"]
    for name, group, row in SHORT:
        found = re.search(
            rf"^\| {re.escape(row)}(?: \([^|]*\))? \|([^|]*)\|([^|]*)\|([^|]*)\|", groups.get(group, ""), re.M
        )
        if found:
            lines.append(f"| {name} | {' | '.join(cell.strip() for cell in found.groups())} |")
    return "\n".join(lines)


def merged(old: str, new: str) -> str:
    """Replaces tables in ``old`` by those of the same groups in ``new``; additional tables come at the end.

    If both were measured on the same machine, the result keeps the machine's description in ``old``, because most
    tables come from that run.
    """
    (old_head, *kept), (head, *fresh) = HEADING.split(old), HEADING.split(new)
    if _same_machine(old_head, head):
        head = old_head
    tables = dict(zip(kept[::2], kept[1::2], strict=True)) | dict(zip(fresh[::2], fresh[1::2], strict=True))
    return "\n\n".join([head.strip(), *(f"**{group}**\n\n{text.strip()}" for group, text in tables.items())])


def _same_machine(one: str, other: str) -> bool:
    """Whether two lines describe the same machine; the load before the run does not count."""
    return one.partition(LOAD)[0] == other.partition(LOAD)[0]


def markdown(figures: list[Figure], where: str) -> str:
    """Formats the figures as one table for each group."""
    lines = [f"Machine: {where}."]
    for group, members in groupby(figures, lambda figure: figure.group):
        rows = list(members)
        has_floor = any(figure.floor is not None for figure in rows)
        lines += ["", f"**{group[0].upper()}{group[1:]}**", ""]
        lines += FLOOR_HEAD if has_floor else HEAD
        lines += [_line(figure, has_floor) for figure in rows]
    return "\n".join(lines)


def _line(figure: Figure, has_floor: bool) -> str:
    what, ours, peer, ratio, budget = _cells(figure)
    peer = f"{peer} ({figure.peer_name})" if peer else ""
    floor = _floor_cells(figure) if has_floor else ()
    return f"| {' | '.join((what, ours, peer, ratio, *floor, budget, MARKS[figure.met]))} |"


def _floor_cells(figure: Figure) -> tuple[str, str]:
    if figure.floor is None or figure.of_floor is None:
        return "", ""
    return number(figure.floor, figure.unit), f"{figure.of_floor:.3g}×"


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    peer = "" if figure.peer is None else number(figure.peer, figure.unit)
    ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}×"
    budget = ", ".join(each.text(figure.unit) for each in figure.budgets)
    return figure.what, number(figure.ours, figure.unit), peer, ratio, budget
