"""The results of a soak: figures, whether it passed, the block in ``docs/figures.md``, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bench.report import PAGE
from bench.soak_ledger import quantile_ms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEGIN, END = "<!-- soak: python -m bench.soak --publish -->", "<!-- end of soak -->"
PICTURE = "soak.png"
FLAT_SHARE = 0.05
QUANTILES = (0.5, 0.99, 0.999)
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Sample:
    """One sample of the soak while it sends at its rate.

    Attributes:
        at_s: seconds since sending at the rate began.
        sent: messages acknowledged per second since the last sample.
        received: messages received for the first time, per second.
        lag: number of messages acknowledged and not yet received.
        steady: latencies, since the last sample, of messages sent after their consumer took over the queue.
        own_mb: RssAnon and RssShmem of the servers.
        resident_mb: VmRSS, which also counts the mapped pages of the log.
        cpu_share: fraction of one core that the servers used since the last sample.
        connections: number of connections to the broker.
        disk_gb: size of the store.
    """

    at_s: float
    sent: float
    received: float
    lag: int
    steady: Sequence[int]
    own_mb: float
    resident_mb: float
    cpu_share: float
    connections: int
    disk_gb: float


@dataclass
class Outcome:
    """All results of a soak.

    Attributes:
        planned_s: planned seconds of sending at the rate.
        samples: see ``Sample``.
        reasons: why sends were repeated, and how often.
        retry_reasons: why requests of consumers were repeated, and how often.
        failures: why the soak did not pass; empty if it passed.
    """

    where: str
    flush: str
    body_bytes: int
    topics: int
    producers: int
    consumers: int
    planned_s: float
    maximum: float = 0.0
    rate: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    acknowledged: int = 0
    received: int = 0
    missing: int = 0
    duplicates: int = 0
    repeated: int = 0
    retried: int = 0
    flush_late: int = 0
    left: int = 0
    died: int = 0
    killed: int = 0
    expired: int = 0
    warnings: int = 0
    steady: Sequence[int] = ()
    taken_over: Sequence[int] = ()
    reasons: dict[str, int] = field(default_factory=dict)
    retry_reasons: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def lasted_s(self) -> float:
        """Seconds for which the soak sent at its rate."""
        return self.samples[-1].at_s if self.samples else 0.0

    def thirds(self) -> tuple[float, float]:
        """The servers' mean memory in MB, without file-backed pages, in the middle and the last third of the soak."""
        values = [sample.own_mb for sample in self.samples]
        third = len(values) // 3
        return fmean(values[third : 2 * third]), fmean(values[-third:])

    def judge_memory(self) -> None:
        """Adds a failure if the memory is not flat."""
        if len(self.samples) < 6:
            self.failures.append("too short to tell whether the memory is flat")
            return
        middle, last = self.thirds()
        if abs(last / middle - 1) > FLAT_SHARE:
            self.failures.append(f"memory is not flat: {middle:.1f} MB in the middle third, {last:.1f} MB in the last")


def facts(outcome: Outcome) -> list[tuple[str, str]]:
    """Returns each figure with its name."""
    samples = outcome.samples
    rows = [
        ("length", f"{outcome.lasted_s / 60:.1f} min"),
        ("maximum rate, measured before the soak", f"{outcome.maximum:,.0f}/s"),
        ("rate of the soak: half of the maximum", f"{outcome.rate:,.0f}/s"),
        (
            "messages acknowledged, including those sent while the maximum rate was measured",
            f"{outcome.acknowledged:,}",
        ),
        ("acknowledged messages that were not received", f"{outcome.missing:,}"),
        ("received again", f"{outcome.duplicates:,} ({outcome.duplicates / max(outcome.received, 1):.2%})"),
        ("sends repeated", _counted(outcome.repeated, outcome.reasons)),
        ("consumer requests that got no response and were repeated", _counted(outcome.retried, outcome.retry_reasons)),
        ("consumers that left, and consumers that ended without notice", f"{outcome.left:,} and {outcome.died:,}"),
        ("consumer processes killed", f"{outcome.killed:,}"),
    ]
    if outcome.flush_late:
        rows.append(("answered FLUSH_DISK_TIMEOUT", f"{outcome.flush_late:,}"))
    if samples:
        lags = [sample.lag for sample in samples]
        rows += [
            (
                "connections, minimum and maximum",
                f"{_least(samples)} and {max(sample.connections for sample in samples)}",
            ),
            ("consumer lag, mean and maximum", f"{fmean(lags):,.0f} and {max(lags):,} messages"),
        ]
    for name, latencies in (
        ("messages sent after their consumer took over the queue", outcome.steady),
        ("messages sent before their consumer took over the queue", outcome.taken_over),
    ):
        if any(latencies):
            values = " / ".join(f"{quantile_ms(latencies, share):,.3g} ms" for share in QUANTILES)
            rows.append((f"end-to-end latency of {name}: p50 / p99 / p99.9", values))
    if len(samples) >= 6:
        middle, last = outcome.thirds()
        text = f"{middle:.1f} and {last:.1f} MB ({last / middle - 1:+.1%})"
        rows += [
            (
                "mean memory of the servers, without file-backed pages, in the middle and the last third of the soak",
                text,
            ),
            (
                "largest resident memory, including the log's mapped pages",
                f"{max(sample.resident_mb for sample in samples):,.0f} MB",
            ),
            ("CPU of the servers, mean", f"{fmean(sample.cpu_share for sample in samples):.0%} of a core"),
            (
                "maximum disk use; segments expired",
                f"{max(sample.disk_gb for sample in samples):.1f} GB; {outcome.expired}",
            ),
        ]
    rows.append(("log lines of the broker: errors, warnings", f"{_errors(outcome)}, {outcome.warnings}"))
    rows.append(("outcome", "passed" if not outcome.failures else "failed: " + "; ".join(outcome.failures)))
    return rows


def publish(outcome: Outcome) -> None:
    """Rewrites the block of the page, and the picture in its directory."""
    draw(PAGE.parent / PICTURE, outcome)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(outcome)}\n{END}{after}")


def markdown(outcome: Outcome) -> str:
    """Formats the figures as a table, with the picture."""
    lines = [f"Machine: {outcome.where}. {_set_up(outcome)}", "", "| figure | |", "|---|---:|"]
    lines += [f"| {name} | {value} |" for name, value in facts(outcome)]
    return "\n".join([*lines, "", f"![Rate, lag, latency and memory over the soak]({PICTURE})"])


def draw(path: Path, outcome: Outcome) -> None:
    """Draws rate, lag, latency and memory over time, as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")  # A server has no display.
    from matplotlib import pyplot as plt

    samples = outcome.samples
    minutes = [sample.at_s / 60 for sample in samples]
    with mpl.rc_context(STYLE):
        page, grid = plt.subplots(4, 1, figsize=(12, 13), sharex=True, layout="constrained")
        page.suptitle(f"Soak, {outcome.lasted_s / 60:.0f} minutes: {_set_up(outcome)}", fontsize=12, wrap=True)
        rates, lag, latency, memory = grid
        _line(rates, minutes, [sample.sent for sample in samples], GREEN, "acknowledged")
        _line(rates, minutes, [sample.received for sample in samples], BLUE, "received for the first time")
        _title(rates, "Rate", "messages a second")
        _from_zero(rates)
        _line(lag, minutes, [sample.lag for sample in samples], BLUE, "acknowledged, not received")
        _title(lag, "Consumer lag, groups of consumers coming and going", "messages")
        _from_zero(lag)
        for share, colour in zip(QUANTILES, (GREEN, BLUE, VERMILION), strict=True):
            values = [quantile_ms(sample.steady, share) or float("nan") for sample in samples]
            _line(latency, minutes, values, colour, f"p{share * 100:g}")
        latency.set_yscale("log")
        _title(latency, "From a message's due time to its arrival, consumer already running", "ms")
        _line(memory, minutes, [sample.own_mb for sample in samples], VERMILION, "RssAnon + RssShmem")
        _title(memory, "Memory of name server and broker, own", "MB")
        _from_zero(memory)
        pages = memory.twinx()
        pages.grid(visible=False)
        _line(pages, minutes, [sample.resident_mb for sample in samples], GREY, "VmRSS, with mapped pages (right)")
        _from_zero(pages)
        pages.set_ylabel("MB")
        memory.legend(handles=[*memory.get_lines(), *pages.get_lines()], loc="lower right", ncols=2)
        memory.set_xlabel("minutes")
        memory.set_xlim(left=0)
        page.savefig(path, dpi=100)
        plt.close(page)


def _line(axes: Axes, minutes: list[float], values: Sequence[float], colour: str, label: str) -> None:
    axes.plot(minutes, values, color=colour, linewidth=1.4, label=label)


def _from_zero(axes: Axes) -> None:
    """Starts the axis at zero, and leaves room for the legend above the curves."""
    axes.set_ylim(0, axes.get_ylim()[1] * 1.2)


def _title(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.legend(loc="upper right", ncols=3)


def _set_up(outcome: Outcome) -> str:
    return (
        f"{outcome.topics} topics, {outcome.producers} producers, {outcome.consumers} consumers, "
        f"{outcome.body_bytes} B bodies, {outcome.flush} flush, {outcome.rate:,.0f}/s"
    )


def _counted(count: int, reasons: dict[str, int]) -> str:
    return f"{count:,}" + "".join(f"; {times:,} × {reason}" for reason, times in sorted(reasons.items())[:5])


def _least(samples: Sequence[Sample]) -> int:
    return min(sample.connections for sample in samples)


def _errors(outcome: Outcome) -> str:
    return "some" if any("log line" in failure for failure in outcome.failures) else "0"
