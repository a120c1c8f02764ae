"""Ratios and budgets point in the right direction, and every kernel has a workload."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from bench import memory, report, send
from bench.context import Context
from bench.figure import Budget, Figure, at_least, at_most, cost, rate, share, within_floor
from bench.kernels import WORKLOADS
from bench.program import Round
from bench.report import SHORT, in_short, markdown, merged, number, publish, table
from bench.run import BEFORE_MIN, MEASUREMENTS, beside_before
from bench.run import main as run_bench
from tools.peers.packages import ROOT, PeerError
from tools.peers.servers import Servers


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


@pytest.mark.parametrize(("ours", "met"), [(15, True), (15.1, False)])
def test_a_floor_has_columns_of_its_own(ours: float, met: bool) -> None:
    figure = replace(cost("g", "send", ours, 60, "peer", within_floor(1.5)), floor=10)
    assert figure.met is met
    other = cost("other", "send", 1, 2, "peer")
    text = markdown([figure, replace(figure, floor=None), other], "here")
    mark = "kept" if met else "missed"
    ratio = f"{60 / ours:.3g}×"
    assert f"| send | {ours} µs | 60 µs (peer) | {ratio} | 10 µs | {ours / 10:.3g}× | ≤ 1.5 × floor | {mark} |" in text
    assert f"| send | {ours} µs | 60 µs (peer) | {ratio} |  |  | ≤ 1.5 × floor |  |" in text, "nothing to compare with"
    assert "| send | 1 µs | 2 µs (peer) | 2× |  |  |" in text, "tables without a floor have no such column"


def test_the_six_figures_of_the_page_are_those_of_the_tables() -> None:
    tables = report.PAGE.read_text().partition(report.BEGIN)[2].partition(report.END)[0]
    short = in_short(tables)
    assert len(short.splitlines()) == 2 + len(SHORT)
    assert f"{report.SHORT_BEGIN}\n{short}\n{report.SHORT_END}" in report.SHORT_PAGE.read_text()


def test_a_published_figure_comes_to_both_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, begin, end in (("PAGE", report.BEGIN, report.END), ("SHORT_PAGE", report.SHORT_BEGIN, report.SHORT_END)):
        path = tmp_path / name
        path.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
        monkeypatch.setattr(report, name, path)
    _, group, row = SHORT[-1]
    publish([rate(group, f"{row} (300 MB/s of bodies)", 30, 10, "peer"), rate("g", row, 1, 2, "peer")], "here", False)
    page, short = (tmp_path / "PAGE").read_text(), (tmp_path / "SHORT_PAGE").read_text()
    assert "old" not in page + short
    assert page.endswith(f"{report.END}\nafter\n")
    assert short.splitlines()[4] == f"| {SHORT[-1][0]} | 30/s | 10/s (peer) | 3× |"
    assert len(short.splitlines()) == 7


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


def test_the_machine_s_line_stays_while_it_is_the_same_machine() -> None:
    old = markdown([rate("first", "a", 1, 2, "peer")], "2 cores, load average before the run: 0.10")
    new = markdown([rate("second", "b", 4, 2, "peer")], "2 cores, load average before the run: 1.75")
    assert merged(old, new).startswith("Machine: 2 cores, load average before the run: 0.10.\n\n**First**")
    other = merged(old, new.replace("2 cores", "4 cores"))
    assert other.startswith("Machine: 4 cores, load average before the run: 1.75.\n")


@pytest.fixture
def no_servers(monkeypatch: pytest.MonkeyPatch) -> Context:
    """Replaces servers and load programs for measurements of sends: each round has the same result."""
    one = Round(1000, 0.5, 0.03, 0.02, {"p50_us": 1.0, "p99_us": 2.0, "p999_us": 3.0})

    class Group:
        def take(self, pids: list[int]) -> None:
            """Stands in for the same method of a control group."""

    class NoServers(Context):
        def servers(self, name: str, flush: str = "async") -> Servers:
            return cast("Servers", SimpleNamespace(name=name, namesrv="", broker="", pids=[os.getpid()]))

    program = SimpleNamespace(round=lambda _line: one)
    for name in ("java_load", "python_load"):
        monkeypatch.setattr(send, name, lambda *_arguments, **_servers: nullcontext(program))
    monkeypatch.setattr(send, "others_stopped", lambda *_programs: nullcontext())
    monkeypatch.setattr(send, "alternate", lambda *_arguments: [[one], [one]])
    monkeypatch.setattr(send, "cpu_group", lambda *_arguments: nullcontext(Group()))
    return NoServers(True, ExitStack(), lambda _text: None)


def test_each_measurement_of_sends_has_a_table_of_its_own(no_servers: Context) -> None:
    groups = [
        {figure.group for figure in measure(no_servers)}
        for measure in MEASUREMENTS.values()
        if measure.__module__ == send.__name__
    ]
    assert len(groups) == 8
    assert [len(each) for each in groups] == [1] * 8
    assert len(set.union(*groups)) == 8


def test_limited_brokers_have_the_budgets_that_were_asked_for(no_servers: Context) -> None:
    figures = list(send.measure_limited(no_servers))
    budgets = {figure.what: [each.text("") for each in figure.budgets] for figure in figures if figure.unit == "/s"}
    assert budgets == {
        "official client, 1 KiB, 64 threads": ["≥ 2.5×"],
        "official client, 1 KiB, 16 threads": [],
        "official client, 1 KiB, 1 thread": ["≥ 1.5×"],
        "our client, 1 KiB, 64 in flight": ["≥ 3×"],
        "our client, 128 B, 64 in flight": ["≥ 3×"],
    }
    assert {figure.ours for figure in figures if figure.unit == "cores"} == {0.04}


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


def test_a_store_that_the_disk_has_no_room_for_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda _path: (100 * gib, 50 * gib, 40 * gib))
    memory.check_room(str(tmp_path), 10, 4, 20 * gib)
    with pytest.raises(PeerError, match=r"up to 32\.4 GiB, the disk has room for 26\.5 GiB until 85% of it is in use"):
        memory.fill(cast("Context", None), str(tmp_path), 1000, 4, int(28.6 * gib))
    assert not list(tmp_path.iterdir())


def test_a_run_beside_an_earlier_version_judges_rates_and_costs() -> None:
    assert BEFORE_MIN == 0.97
    judged = [
        beside_before(figure)
        for figure in (
            rate("g", "as fast", 98, 100, "Java broker", at_least(3)),
            rate("g", "slower", 96, 100, "Java broker"),
            cost("g", "as cheap", 102, 100, "Java broker", at_least(4)),
            cost("g", "dearer", 104, 100, "Java broker"),
            share("g", "latency", 9, 1, "Java broker", at_most(0.5)),
        )
    ]
    assert [figure.met for figure in judged] == [True, False, True, False, None]
    assert {figure.peer_name for figure in judged} == {"before"}


def test_the_other_side_is_the_earlier_version(tmp_path: Path) -> None:
    begun: list[str] = []
    with ExitStack() as stack:
        context = Context(True, stack, begun.append, before=tmp_path)
        with pytest.raises(PeerError, match="make lint"):
            context.servers("before")
        with pytest.raises(PeerError, match="make lint"):
            context.other_store("directory")
    assert begun == ["starting before with async flush"]


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--before", ".", "start"], "cannot compare start"),
        (["--before", ".", "--publish"], "--publish is for"),
        (["--rounds", "0", "send"], "--rounds 0: at least 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_bench(arguments)
    assert refusal in capsys.readouterr().err


def test_servers_that_ended_are_told_with_their_logs(tmp_path: Path) -> None:
    """Their directories are removed when the run ends."""
    with ExitStack() as stack:
        context = Context(True, stack, lambda _text: None)
        assert context.ended_servers() == ""
        running = cast(Servers, SimpleNamespace(exit_codes=[], log=lambda: "fine"))
        ended = cast(Servers, SimpleNamespace(exit_codes=[-9], log=lambda: "last words"))
        context._servers = {("java", "async"): running, ("rucola", "async"): ended}
        assert context.ended_servers() == "; rucola ended with [-9], its log:\nlast words"
