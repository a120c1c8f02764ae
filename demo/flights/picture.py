"""Draws one page of pictures of a run, as PNG: delays, rates, latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import MONTHS, CarrierMonth, short_name
from .measure import QUANTILES, Measurements, consume_curve, lag_curve, own_rate, produce_curve, quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DELAY_BOUND_MIN = 40.0
"""Means beyond this many minutes, early or late, share the darkest colour; the cells show their values."""

# Okabe and Ito's colours, which people with any kind of colour blindness can distinguish.
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"
_STYLE: Any = {
    "font.size": 12,
    "axes.titlesize": 14,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 11,
    "legend.frameon": False,
}


def draw(path: Path, gold: Sequence[CarrierMonth], seen: Measurements, headline: str) -> None:
    """Draws the page.

    Args:
        path: PNG file to write.
        gold: the figures of the heat maps.
        seen: the observations of the curves.
        headline: one line under the page's title.
    """
    import matplotlib as mpl

    mpl.use("Agg")  # a server has no display
    from matplotlib import pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with mpl.rc_context(_STYLE):
        page = plt.figure(figsize=(18, 12.5), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        page.suptitle("Flights from New York, 2013: through broker, clients and Spark", fontsize=20, fontweight="bold")
        halves: Any = page.subfigures(2, 1, height_ratios=(1.35, 1.0), hspace=0.03)
        upper, lower = halves
        left, right = upper.subplots(1, 2, sharey=True)
        upper.suptitle(headline, fontsize=13, color=GREY)
        _heat_map(left, gold, "departure_delay_mean_min", "Mean departure delay (minutes)")
        image = _heat_map(right, gold, "arrival_delay_mean_min", "Mean arrival delay (minutes; grey: no flights)")
        bar = upper.colorbar(image, ax=[left, right], extend="both", pad=0.01, aspect=35)
        bar.set_label("minutes late (below 0: early)")
        rates, latency, lag = lower.subplots(1, 3)
        _rates(rates, seen)
        _latency(latency, seen)
        _lag(lag, seen)
        page.savefig(path, dpi=100)
        plt.close(page)


def _heat_map(axes: Axes, gold: Sequence[CarrierMonth], figure: str, title: str) -> Any:
    """Carriers with the most flights at the top, months from left to right, the number in each cell; grey: no
    flight.
    """
    flights: dict[str, int] = {}
    names: dict[str, str] = {}
    for row in gold:
        flights[row.carrier] = flights.get(row.carrier, 0) + row.flights
        names[row.carrier] = short_name(row.airline or "")
    carriers = sorted(flights, key=lambda carrier: -flights[carrier])
    values: list[list[float | None]] = [[None] * 12 for _ in carriers]
    for row in gold:
        values[carriers.index(row.carrier)][row.month - 1] = getattr(row, figure)
    table = [[float("nan") if value is None else value for value in line] for line in values]
    axes.set_facecolor("#E4E4E4")
    image = axes.imshow(table, cmap="RdBu_r", vmin=-DELAY_BOUND_MIN, vmax=DELAY_BOUND_MIN, aspect="auto")
    for line, cells in enumerate(values):
        for month, value in enumerate(cells):
            if value is not None:
                colour = "white" if abs(value) > 0.68 * DELAY_BOUND_MIN else "black"
                axes.text(month, line, _whole(value), ha="center", va="center", color=colour)
    axes.set_title(title)
    axes.set_xticks(range(12), MONTHS)
    axes.set_yticks(range(len(carriers)), [f"{names[carrier]}  {carrier}" for carrier in carriers])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks([edge - 0.5 for edge in range(1, 12)], minor=True)
    axes.set_yticks([edge - 0.5 for edge in range(1, len(carriers))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    return image


def _whole(value: float) -> str:
    """A value as text in whole minutes, with a typographic minus sign; zero has no sign."""
    return str(round(value)).replace("-", "−")


def _rates(axes: Axes, seen: Measurements) -> None:
    produced, consumed = produce_curve(seen), consume_curve(seen)
    if produced.values:
        axes.stairs(
            produced.values,
            produced.edges_s,
            baseline=None,
            color=BLUE,
            linewidth=2.2,
            label="published (acknowledged)",
        )
    if consumed.values:
        axes.stairs(
            consumed.values,
            consumed.edges_s,
            baseline=None,
            color=ORANGE,
            linewidth=2.2,
            label="in gold (per micro-batch)",
        )
    axes.set_title("Publish and consume rate")
    axes.set_ylabel("messages per second")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _time_axis(axes, seen)


def _latency(axes: Axes, seen: Measurements) -> None:
    moments = [batch.committed_s - seen.begin_s for batch in seen.batches]
    by_batch, every = [seen.latencies_s(batch) for batch in seen.batches], seen.all_latencies_s()
    for share, colour, mark in zip(QUANTILES, (GREEN, BLUE, VERMILION), "osD", strict=True):
        values = [quantile(latencies, share) if latencies else float("nan") for latencies in by_batch]
        label = f"p{share * 100:.0f}" + (f" ({quantile(every, share):.1f} s of all flights)" if every else "")
        axes.plot(moments, values, color=colour, marker=mark, markersize=4, linewidth=2.0, label=label)
    axes.set_title("From birth until figures are in gold")
    axes.set_ylabel("seconds, per micro-batch")
    _time_axis(axes, seen)


def _lag(axes: Axes, seen: Measurements) -> None:
    moments, behind = lag_curve(seen)
    rate = own_rate(seen)
    label = "acknowledged, not yet in gold"
    if rate is not None:
        label += f"\n(own rate of the pipeline: {rate.per_second:,.0f}/s)"
    axes.fill_between(moments, behind, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(moments, behind, color=BLUE, linewidth=1.5, label=label)
    axes.set_title("Lag of gold")
    axes.set_ylabel("messages")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _time_axis(axes, seen)


def _time_axis(axes: Axes, seen: Measurements) -> None:
    """Draws the axis that both curves share: the time since the start of publishing, with marks at kill and restart."""
    axes.set_xlabel("seconds since publishing began (Spark is warm by then)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#DDDDDD")
    axes.set_axisbelow(True)
    if seen.killed_s is not None and seen.ready_again_s is not None:
        killed, again = seen.killed_s - seen.begin_s, seen.ready_again_s - seen.begin_s
        label = f"broker killed at {killed:.1f} s, ready again at {again:.1f} s"
        axes.axvspan(killed, again, color=VERMILION, alpha=0.25, linewidth=0, label=label)
        axes.axvline(killed, color=VERMILION, linewidth=1.5, linestyle="--")
        axes.axvline(again, color=VERMILION, linewidth=1.5, linestyle=":")
    if seen.published_s is not None:
        done = seen.published_s - seen.begin_s
        axes.axvline(done, color=GREY, linewidth=1.5, linestyle="-.", label=f"all published at {done:.1f} s")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16))
