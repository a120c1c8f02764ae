"""What a curve of ``bench.growth`` is, how one of its points is measured, and how it is judged."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tools.peers.packages import PeerError
from tools.peers.servers import Servers

from bench.context import Context
from bench.program import Program, Round, own_bytes

STEP_MAX = 1.2
"""Ten times the size may cost this many times as much per message; for straight lines, the largest deviation."""
JAVA_MAX_S = 600.0
"""Seconds after which the Java broker's curve ends."""
QUIET_CORES = 0.25
QUIET_MAX_S = 120.0
ROUND_MAX_S = 300.0


class Point(NamedTuple):
    """One size of a curve.

    Attributes:
        size: what the curve's unit counts.
        cpu_us: CPU time of the servers per message in microseconds.
        p99_ms: latency that 99 % of the requests do not exceed, in milliseconds.
        memory_mb: RssAnon and RssShmem of the servers.
    """

    size: int
    cpu_us: float
    p99_ms: float
    memory_mb: float


@dataclass
class Series:
    """The points of one kind of servers.

    Attributes:
        control: CPU time per message of the smallest size, measured again at the end, as a multiple of the first
            measurement; None if the series ended before.
        ended: why the series ended early; empty if it did not.
    """

    points: list[Point] = field(default_factory=list)
    control: float | None = None
    ended: str = ""


class Line(NamedTuple):
    """A straight line: the cost is ``fixed_us + slope_us * size``. ``deviation`` is the largest ratio of a measured and
    a computed cost, or its inverse.
    """

    fixed_us: float
    slope_us: float
    deviation: float


def fit_line(points: Sequence[Point]) -> Line | None:
    """Fits the line with the smallest sum of squared relative deviations; None for fewer than two sizes."""
    if len({point.size for point in points}) < 2:
        return None
    weights = [point.cpu_us**-2 for point in points]
    total = sum(weights)
    mean_x = sum(weight * point.size for weight, point in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * point.cpu_us for weight, point in zip(weights, points, strict=True)) / total
    spread = sum(weight * (point.size - mean_x) ** 2 for weight, point in zip(weights, points, strict=True))
    common = sum(
        weight * (point.size - mean_x) * (point.cpu_us - mean_y) for weight, point in zip(weights, points, strict=True)
    )
    slope = common / spread
    fixed = mean_y - slope * mean_x
    ratios = [point.cpu_us / max(fixed + slope * point.size, 1e-9) for point in points]
    return Line(fixed, slope, max(max(ratio, 1 / ratio) for ratio in ratios))


def worst_step(points: Sequence[Point], value: Callable[[Point], float] = lambda point: point.cpu_us) -> float | None:
    """Returns the largest growth of ``value`` per tenfold size, over all pairs of sizes; None for fewer than two.

    A pair that is less than tenfold counts with its whole ratio, so noise is not magnified. So does a pair that begins
    at size 0.
    """
    steps = [
        (value(later) / value(earlier)) ** (1 / max(1.0, math.log10(later.size / earlier.size) if earlier.size else 1))
        for at, earlier in enumerate(points)
        for later in points[at + 1 :]
        if later.size > earlier.size and value(earlier) > 0
    ]
    return max(steps) if steps else None


@dataclass(frozen=True)
class Curve:
    """A curve and its goal.

    Attributes:
        unit: what ``sizes`` count.
        per: what the cost is divided by.
        straight: whether the goal is a straight line instead of a constant cost.
        linear: whether the picture has plain axes instead of logarithmic ones.
        measure: yields one point for each size, and then one more of the smallest size.
    """

    name: str
    title: str
    unit: str
    sizes: tuple[int, ...]
    measure: Callable[[Growth, str, Sequence[int]], Iterator[Point]]
    per: str = "message"
    straight: bool = False
    linear: bool = False

    def verdict(self, series: Series) -> str:
        """Says whether the series reaches the goal. If it misses the goal by less than the two measurements of the
        smallest size differ, the machine was too busy to tell.
        """
        line = fit_line(series.points) if self.straight else None
        worst = line.deviation if line else None if self.straight else worst_step(series.points)
        if worst is None:
            return "too few sizes"
        if worst <= STEP_MAX:
            return "straight" if self.straight else "flat"
        noise = max(series.control, 1 / series.control) if series.control else 1.0
        return "bends" if worst > STEP_MAX * noise else "too noisy to tell"


@dataclass
class Growth:
    """Settings of one run.

    Attributes:
        maximum: largest size; None for no limit.
        age_minutes: length of the curve ``age``.
        deadline: when the current series is given up, on the monotonic clock.
    """

    context: Context
    maximum: int | None = None
    age_minutes: float = 60.0
    deadline: float = math.inf

    def show(self, text: str) -> None:
        """Sets the text of the progress line."""
        self.context.show(text)

    def check_time(self, doing: str) -> None:
        """Ends the series if it has taken too long.

        Raises:
            PeerError: the time is over.
        """
        if time.monotonic() > self.deadline:
            raise PeerError(f"given up after {JAVA_MAX_S / 60:.0f} minutes: {doing}")

    def sizes(self, curve: Curve) -> list[int]:
        """Returns the sizes of this run: none above ``maximum``; three with ``--quick``."""
        wanted = curve.sizes[:3] if self.context.quick else curve.sizes
        return [size for size in wanted if self.maximum is None or size <= self.maximum]

    def warm(self, servers: Servers, program: Program, work: Callable[[int], str]) -> None:
        """Runs a round that warms up the servers: Java compiles while it serves the first messages."""
        program.round(work(self.context.warm_up if servers.name == "java" else 5_000), ROUND_MAX_S)

    def point(
        self, servers: Servers, program: Program, size: int, work: Callable[[int], str], pilot: int = 2_000
    ) -> Point:
        """Measures one size: two rounds of ``pilot`` messages, then the rounds that count.

        Args:
            work: returns the input line for a round of a given number of messages.
        """
        program.round(work(pilot), ROUND_MAX_S)
        seconds = program.round(work(pilot), ROUND_MAX_S).seconds
        count = max(pilot, int(pilot * self.context.seconds / seconds))
        rounds = []
        for _ in range(self.context.rounds):
            self.check_time(f"at size {size:,}")
            os.sync()
            rounds.append(program.round(work(count), ROUND_MAX_S))
        return point_of(size, rounds, servers)

    def wait_quiet(self, servers: Servers, doing: str) -> None:
        """Waits until the servers have done what was asked of them: until a second costs them little CPU time."""
        end = time.monotonic() + QUIET_MAX_S
        while time.monotonic() < end:
            self.check_time(doing)
            used = servers.cpu_seconds()
            time.sleep(1)
            if servers.cpu_seconds() - used < QUIET_CORES:
                return


def point_of(size: int, rounds: Sequence[Round], servers: Servers) -> Point:
    """Returns the medians of the rounds, and the present memory."""
    return Point(
        size,
        statistics.median(each.server_us for each in rounds),
        statistics.median(each.extra["p99_us"] for each in rounds) / 1e3,
        own_bytes(servers.pids) / 1e6,
    )
