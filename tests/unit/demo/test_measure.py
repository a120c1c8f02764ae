"""Rates from samples and batches."""

from __future__ import annotations

import pytest
from demo.flights.measure import BatchReport, Measurements, Sample, consume_curve, produce_curve


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
    batches = [BatchReport(0, 200, 200, 11.0, 12.0, ()), BatchReport(1, 900, 890, 12.0, 15.0, ())]
    curve = consume_curve(Measurements(begin_s=10.0, batches=batches))
    assert curve.edges_s == [0.0, 2.0, 5.0]
    assert curve.values == pytest.approx([100.0, 300.0])


def test_nothing_observed_gives_empty_curves() -> None:
    assert produce_curve(Measurements()).values == []
    assert consume_curve(Measurements()).values == []
