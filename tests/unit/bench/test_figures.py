"""Ratios and budgets point in the right direction, and every kernel has a workload."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import pytest
from bench.figure import Budget, Figure, at_least, at_most, cost, rate, share
from bench.kernels import WORKLOADS
from bench.report import markdown, merged, number, table
from bench.run import MEASUREMENTS
from tools.peers.packages import ROOT


@pytest.mark.parametrize(
    ("figure", "ratio", "met"),
    [
        (rate("g", "more is better", 30_000, 10_000, "peer", at_least(2.5)), 3.0, True),
        (rate("g", "more is better", 10_000, 30_000, "peer", at_least(0.5)), 1 / 3, False),
        (cost("g", "less is better, peer / ours", 10, 40, "peer", at_least(4)), 4.0, True),
        (cost("g", "less is better, peer / ours", 11, 40, "peer", at_least(4)), 40 / 11, False),
        (cost("g", "own bound", 7.9, 40, "peer", Budget("ours", "max", 8)), 40 / 7.9, True),
        (cost("g", "one of two missed", 9, 90, "peer", at_least(4), Budget("ours", "max", 8)), 10.0, False),
        (share("g", "less is better, ours / peer", 2, 5, "peer", at_most(0.5)), 0.4, True),
        (share("g", "less is better, ours / peer", 3, 5, "peer", at_most(0.5)), 0.6, False),
        (rate("g", "no budget", 1, 2, "peer"), 0.5, None),
    ],
)
def test_ratio_and_budget(figure: Figure, ratio: float, met: bool | None) -> None:
    assert figure.ratio == pytest.approx(ratio)
    assert figure.met is met
    assert figure.as_json()["met"] is met


def test_a_missed_budget_is_shown() -> None:
    figures = [rate("slow things", "slow", 1, 2, "peer", at_least(3))]
    assert [list(column.cells)[-1] for column in table(figures).columns][-1] == "[red]missed[/]"
    assert markdown(figures, "here").splitlines()[-1] == "| slow | 1/s | 2/s (peer) | 0.5× | ≥ 3× | missed |"


def test_figures_of_some_groups_leave_the_others() -> None:
    old = markdown([rate("first", "a", 1, 2, "peer"), rate("second", "b", 1, 2, "peer")], "old machine")
    new = markdown([rate("second", "b", 4, 2, "peer"), rate("third", "c", 1, 2, "peer")], "new machine")
    expected = [rate("first", "a", 1, 2, "peer"), rate("second", "b", 4, 2, "peer"), rate("third", "c", 1, 2, "peer")]
    assert merged(old, new) == markdown(expected, "new machine")
    assert merged("", new) == new


def test_numbers_keep_three_digits() -> None:
    assert number(123_456.7, "/s") == "123,457/s"
    assert number(3.14159, "µs") == "3.14 µs"


def test_every_kernel_is_measured() -> None:
    kernels = {
        str(path.relative_to(ROOT / "src")).removesuffix(".py").replace("/", ".")
        for path in (ROOT / "src" / "rucola").glob("*/_*_cy.py")
    }
    assert {module for module, _, _ in WORKLOADS} == kernels
    assert "kernels" in MEASUREMENTS


@pytest.mark.parametrize(("module", "workload"), [(module, workload) for module, _, workload in WORKLOADS])
def test_every_kernel_s_workload_runs(module: str, workload: Callable[[ModuleType], Callable[[], object]]) -> None:
    workload(importlib.import_module(module))()
