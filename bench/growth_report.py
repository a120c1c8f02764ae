"""Shows the curves of ``bench.growth``: as a table on the terminal, and as table and picture on two pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.growth_curves import STEP_MAX, Curve, Point, Series, fit_line, worst_step
from bench.report import PAGE, SHORT_PAGE
from bench.soak_report import BLUE, ORANGE, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEGIN, END = "<!-- figures of growth: python -m bench.growth --publish -->", "<!-- end of figures of growth -->"
PICTURE = "growth.png"
COLUMNS = 3
NAMES = {"rucola": "ours", "java": "Java"}

Results = Mapping[str, Mapping[str, Series]]
"""For each curve, by its name: the series of each kind of servers."""


def table(curves: Sequence[Curve], results: Results) -> Table:
    """Makes a table with a row for each size, and one with the verdict for each series."""
    shown = Table(header_style="bold")
    for title in ("size", "broker", "CPU", "p99", "memory"):
        shown.add_column(title, justify="left" if title == "broker" else "right")
    for curve in curves:
        shown.add_section()
        shown.add_row(f"[bold]{curve.title}[/]", "", f"µs/{curve.per}", "ms", "MB")
        for server, series in results.get(curve.name, {}).items():
            for point in series.points:
                shown.add_row(f"{point.size:,}", NAMES[server], *_cells(point))
            shown.add_row("", NAMES[server], summary(curve, series), "", "")
    return shown


def summary(curve: Curve, series: Series) -> str:
    """Says in a line how the series grows, and whether it reaches the goal."""
    texts = []
    line = fit_line(series.points) if curve.straight else None
    if line:
        slope = f"{line.slope_us * 1024:.3g} µs per KiB" if curve.unit == "bytes" else f"{line.slope_us:.3g} µs each"
        texts.append(f"{line.fixed_us:.3g} µs + {slope}, deviation {line.deviation:.2f}×")
    elif not curve.straight and (worst := worst_step(series.points)):
        late = worst_step(series.points, lambda point: point.p99_ms) or 0
        texts.append(f"{worst:.2f}× per tenfold size (p99 {late:.2f}×)")
    if series.control is not None:
        texts.append(f"smallest size again {series.control:.2f}×")
    texts.append(curve.verdict(series))
    if series.ended:
        texts.append(series.ended)
    return ", ".join(texts)


def markdown(curves: Sequence[Curve], results: Results, where: str) -> str:
    """Formats all measured curves as one table: a row for each series."""
    lines = [
        f"Machine: {where}. Goal: ten times the size costs at most {STEP_MAX}× per message, or a straight line.",
        "",
        "| grows | broker | smallest and largest size | CPU per message | p99 | memory | |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for curve in curves:
        for server, series in results.get(curve.name, {}).items():
            if series.points:
                lines.append(f"| {curve.title} | {NAMES[server]} | {_ends(series)} | {summary(curve, series)} |")
            else:
                lines.append(f"| {curve.title} | {NAMES[server]} | | | | | {series.ended or 'not measured'} |")
    return "\n".join(lines)


def publish(curves: Sequence[Curve], results: Results, where: str) -> None:
    """Rewrites the block with the table in ``docs/figures.md`` and the picture in its directory, to which
    ``docs/performance.md`` links.
    """
    draw(str(SHORT_PAGE.parent / PICTURE), curves, results)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(curves, results, where)}\n{END}{after}")


def draw(path: str, curves: Sequence[Curve], results: Results) -> None:
    """Draws all measured curves as one page of small pictures, as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")  # A server has no display.
    from matplotlib import pyplot as plt

    measured = [curve for curve in curves if any(series.points for series in results.get(curve.name, {}).values())]
    rows = max(1, -(-len(measured) // COLUMNS))
    with mpl.rc_context(STYLE):
        page, grid = plt.subplots(rows, COLUMNS, figsize=(13, 3.4 * rows), layout="constrained", squeeze=False)
        places: list[Any] = list(grid.flat)
        for axes, curve in zip(places, measured, strict=False):
            _draw_curve(axes, curve, results[curve.name])
        for axes in places[len(measured) :]:
            axes.set_visible(False)
        page.savefig(path, dpi=90)
        plt.close(page)


def _draw_curve(axes: Axes, curve: Curve, series_of: Mapping[str, Series]) -> None:
    for (server, series), colour in zip(series_of.items(), (BLUE, ORANGE), strict=False):
        sizes = [point.size for point in series.points]
        costs = [point.cpu_us for point in series.points]
        axes.plot(sizes, costs, color=colour, marker="o", markersize=4, linewidth=1.4, label=NAMES[server])
    if not curve.linear:
        axes.set_xscale("symlog" if curve.sizes[0] == 0 else "log")
    if curve.straight and not curve.linear:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.2)
    axes.set_title(curve.title, fontsize=11)
    axes.set_xlabel(curve.unit)
    axes.set_ylabel(f"µs per {curve.per}")
    axes.legend(loc="best")


def _ends(series: Series) -> str:
    """Returns the cells of the smallest and the largest size: size, CPU, p99, memory."""
    first, last = series.points[0], series.points[-1]
    pairs = zip((f"{first.size:,}", *_cells(first)), (f"{last.size:,}", *_cells(last)), strict=True)
    units = ("", " µs", " ms", " MB")
    return " | ".join(f"{least}, {most}{unit}" for (least, most), unit in zip(pairs, units, strict=True))


def _cells(point: Point) -> tuple[str, str, str]:
    return f"{point.cpu_us:,.2f}", f"{point.p99_ms:,.2f}", f"{point.memory_mb:,.0f}"
