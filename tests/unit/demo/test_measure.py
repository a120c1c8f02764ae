"""Rates from samples and batches."""

from __future__ import annotations

import pytest
from demo.flights.measure import (
    BatchReport,
    Measurements,
    Progress,
    Sample,
    consume_curve,
    lag_curve,
    own_rate,
    produce_curve,
    quantile,
)


def test_produce_curve_of_a_steady_rate() -> None:
    seen = Measurements(begin_s=100.0, samples=[Sample(100.0 + tenth / 10, tenth * 50) for tenth in range(21)])
    curve = produce_curve(seen, step_s=0.5)
    assert curve.edges_s == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert curve.values == pytest.approx([500.0, 500.0, 500.0, 500.0, 0.0])


def test_produce_curve_shows_a_pause() -> None:
    samples = [Sample(100.0, 0), Sample(101.0, 1000), Sample(102.0, 1000), Sample(103.0, 2000)]
    curve = produce_curve(Measurements(begin_s=100.0, samples=samples), step_s=1.0)
    assert curve.values[:3] == pytest.approx([1000.0, 0.0, 1000.0])


def test_produce_curve_keeps_every_message() -> None:
    samples = [Sample(100.37, 13), Sample(100.91, 99), Sample(103.14, 1234)]
    curve = produce_curve(Measurements(begin_s=100.0, samples=samples), step_s=0.25)
    assert sum(value * 0.25 for value in curve.values) == pytest.approx(1234)


def test_consume_curve_spreads_a_batch_over_the_time_since_the_last_one() -> None:
    batches = [BatchReport(0, 200, 11.0, 12.0), BatchReport(1, 900, 12.0, 15.0)]
    curve = consume_curve(Measurements(begin_s=10.0, batches=batches))
    assert curve.edges_s == [0.0, 2.0, 5.0]
    assert curve.values == pytest.approx([100.0, 300.0])


def test_nothing_observed_gives_empty_curves() -> None:
    assert produce_curve(Measurements()).values == []
    assert consume_curve(Measurements()).values == []
    assert own_rate(Measurements()) is None


def test_latency_is_counted_by_flight_and_not_by_batch() -> None:
    batches = [BatchReport(3, 3, 11.0, 12.0), BatchReport(4, 1, 12.0, 15.0)]
    seen = Measurements(batches=batches, born_s={2: [1.0], 3: [10.0, 11.5, 9.0], 4: [14.0]})
    assert seen.latencies_s(batches[0]) == [0.5, 2.0, 3.0]
    assert seen.all_latencies_s() == [0.5, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_quantile_is_one_of_the_values(share: float, value: int) -> None:
    assert quantile(range(1, 101), share) == value


def test_own_rate_is_that_of_the_run_while_micro_batches_ran() -> None:
    batches = [BatchReport(1, 300, 11.0, 12.0), BatchReport(2, 600, 15.0, 16.0)]
    progress = [Progress(0, 9999, 9.0, 0), Progress(1, 300, 1.0, 0), Progress(2, 700, 1.5, 0)]
    rate = own_rate(Measurements(batches=batches, progress=progress))
    assert rate is not None
    assert (rate.records, rate.took_s, rate.per_second) == (1000, 2.5, 400.0)


def test_lag_is_what_was_acknowledged_and_is_not_in_gold() -> None:
    samples = [
        Sample(10.0, 0),
        Sample(11.0, 500, 100),
        Sample(12.0, 500, 501),
    ]  # stored, but the response has not arrived yet
    assert lag_curve(Measurements(begin_s=10.0, samples=samples)) == ([0.0, 1.0, 2.0], [0, 400, 0])
