"""Rates and latencies from what was observed during the run. Plain values and pure functions.

All times are seconds since the epoch: one machine, one clock, so that a record's born time and the moment its batch was
committed can be subtracted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

QUANTILES = (0.5, 0.9, 0.99)
"""Shares of a batch's rows that were in gold no later than the latency given for them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How many messages had been acknowledged at a moment."""

    at_s: float
    acknowledged: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One micro-batch, from its records to the commit of gold.

    ``latencies_s`` follows `QUANTILES`, from a record's born time to that commit.
    """

    batch_id: int
    records: int
    new_flights: int
    started_s: float
    committed_s: float
    latencies_s: tuple[float, ...]


@dataclass(slots=True)
class Measurements:
    """All observations of a run."""

    begin_s: float = 0.0
    killed_s: float | None = None
    ready_again_s: float | None = None
    published_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    batches: list[BatchReport] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Curve:
    """A step curve: ``values[i]`` holds from ``edges_s[i]`` to ``edges_s[i + 1]``, in seconds since the run's begin."""

    edges_s: list[float]
    values: list[float]


def produce_curve(seen: Measurements, step_s: float = 0.5) -> Curve:
    """Messages acknowledged per second, in steps of equal width."""
    if not seen.samples:
        return Curve([0.0], [])
    times = [sample.at_s - seen.begin_s for sample in seen.samples]
    steps = max(1, int(times[-1] / step_s) + 1)
    edges = [step * step_s for step in range(steps + 1)]
    counts = [_count_at(times, seen.samples, edge) for edge in edges]
    return Curve(edges, [(after - before) / step_s for before, after in pairwise(counts)])


def consume_curve(seen: Measurements) -> Curve:
    """Records per second that became visible in gold: each batch's records over the time since the batch before."""
    edges, values = [0.0], []
    for batch in seen.batches:
        committed = batch.committed_s - seen.begin_s
        values.append(batch.records / max(committed - edges[-1], 1e-9))
        edges.append(committed)
    return Curve(edges, values)


def _count_at(times: Sequence[float], samples: Sequence[Sample], at_s: float) -> float:
    """Acknowledged messages at a moment, on the straight line between the samples around it."""
    after = bisect_left(times, at_s)
    if after == len(times):
        return samples[-1].acknowledged
    left_s, left = (times[after - 1], samples[after - 1].acknowledged) if after else (0.0, 0)
    right_s, right = times[after], samples[after].acknowledged
    if right_s <= left_s:
        return right
    return left + (right - left) * max(at_s - left_s, 0.0) / (right_s - left_s)
