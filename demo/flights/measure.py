"""Rates and latencies, computed from the observations of the run. Plain values and pure functions. Times are seconds
since the epoch unless noted. There is only one machine and one clock, so the born time of a record can be subtracted
from the commit time of its batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

QUANTILES = (0.5, 0.9, 0.99)
"""The quantiles of latency that are shown: 0.5 is the latency within which half of the flights reached gold."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Number of messages acknowledged, and number of flights in gold, at the time ``at_s``."""

    at_s: float
    acknowledged: int
    in_gold: int = 0


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One micro-batch, from the call that receives its records to the commit of gold.

    Attributes:
        records: number of all records, including duplicates.
        poison: number of records that are not flights.
    """

    batch_id: int
    new_flights: int
    started_s: float
    committed_s: float
    records: int = 0
    poison: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Spark's report about a finished micro-batch of flights.

    Attributes:
        records: number of records read from the broker, including duplicates.
        took_s: time from planning to the commit of its offsets, in seconds.
        behind: number of messages that the broker had but this micro-batch did not read.
    """

    batch_id: int
    records: int
    took_s: float
    behind: int


@dataclass(slots=True)
class Measurements:
    """All observations of a run. ``born_s`` holds the born times of the flights in each batch."""

    begin_s: float = 0.0
    killed_s: float | None = None
    ready_again_s: float | None = None
    published_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    batches: list[BatchReport] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    born_s: dict[int, list[float]] = field(default_factory=dict)

    def latencies_s(self, batch: BatchReport) -> list[float]:
        """For the flights of a batch, the times from birth until they are in gold, shortest first."""
        return sorted(batch.committed_s - born_s for born_s in self.born_s.get(batch.batch_id, ()))

    def all_latencies_s(self) -> list[float]:
        """For the flights of all batches, the times from birth until they are in gold, shortest first."""
        return sorted(latency for batch in self.batches for latency in self.latencies_s(batch))


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile ``share`` of ``values``, which are sorted and not empty: 0.5 gives the median."""
    return values[max(0, ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Rate:
    """The pipeline's own rate: the speed of micro-batches, without the time between them."""

    records: int
    took_s: float

    @property
    def per_second(self) -> float:
        """Records a second."""
        return self.records / self.took_s


def own_rate(seen: Measurements) -> Rate | None:
    """Records and seconds of all micro-batches of the run together; None if there were none."""
    run = {batch.batch_id for batch in seen.batches}
    records = sum(one.records for one in seen.progress if one.batch_id in run)
    took_s = sum(one.took_s for one in seen.progress if one.batch_id in run)
    return Rate(records, took_s) if records and took_s else None


@dataclass(frozen=True, slots=True)
class Curve:
    """A step curve: ``values[i]`` applies from ``edges_s[i]`` to ``edges_s[i + 1]``, in seconds since the start of the
    run.
    """

    edges_s: list[float]
    values: list[float]


def produce_curve(seen: Measurements, step_s: float = 0.5) -> Curve:
    """Step curve of messages acknowledged per second, with steps of equal width."""
    if not seen.samples:
        return Curve([0.0], [])
    times = [sample.at_s - seen.begin_s for sample in seen.samples]
    steps = max(1, int(times[-1] / step_s) + 1)
    edges = [step * step_s for step in range(steps + 1)]
    counts = [_count_at(times, seen.samples, edge) for edge in edges]
    return Curve(edges, [(after - before) / step_s for before, after in pairwise(counts)])


def consume_curve(seen: Measurements) -> Curve:
    """Step curve of the rate, in flights per second, at which flights became visible in the gold table.

    Each step is a batch: its flights divided by the time since the previous batch.
    """
    edges, values = [0.0], []
    for batch in seen.batches:
        committed = batch.committed_s - seen.begin_s
        values.append(batch.new_flights / max(committed - edges[-1], 1e-9))
        edges.append(committed)
    return Curve(edges, values)


def lag_curve(seen: Measurements) -> tuple[list[float], list[int]]:
    """Returns points in time, in seconds since the start of the run, and the backlog at each of them.

    The backlog is the number of messages that were acknowledged but not in gold.
    """
    return [one.at_s - seen.begin_s for one in seen.samples], [
        max(0, one.acknowledged - one.in_gold) for one in seen.samples
    ]


def _count_at(times: Sequence[float], samples: Sequence[Sample], at_s: float) -> float:
    """Number of messages acknowledged at time ``at_s``, interpolated between the samples before and after it."""
    after = bisect_left(times, at_s)
    if after == len(times):
        return samples[-1].acknowledged
    left_s, left = (times[after - 1], samples[after - 1].acknowledged) if after else (0.0, 0)
    right_s, right = times[after], samples[after].acknowledged
    if right_s <= left_s:
        return right
    return left + (right - left) * max(at_s - left_s, 0.0) / (right_s - left_s)
