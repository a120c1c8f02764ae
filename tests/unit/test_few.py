"""The rows that ``make test`` leaves to ``make test-more``: each test keeps some, and both targets together run all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tests.few import cover, spread

ROOT = Path(__file__).parents[2]

TINY = """
    import pytest

    KINDS = [{"a": 1}, {"b": 2}]

    @pytest.fixture(params=["sync", "async"])
    def mode(request):
        return request.param

    @pytest.mark.few
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("event", ["nothing", "kill", "restart"])
    def test_combined(mode, kind, event): pass

    @pytest.mark.few(2)
    @pytest.mark.parametrize("seed", range(5))
    def test_seeds(seed): pass

    class TestInside:
        @pytest.mark.few(1)
        @pytest.mark.parametrize("seed", range(5))
        def test_seeds(self, seed): pass

    @pytest.mark.few
    @pytest.mark.parametrize("one", [1, True])
    @pytest.mark.parametrize("other", [1, True])
    def test_alike(one, other): pass

    @pytest.mark.parametrize("seed", range(3))
    def test_all(seed): pass
"""


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names of the tests of ``TINY``, by the expression for the option ``-m``."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    few\n    more\naddopts = --strict-markers\n")
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom tests.few import mark_more\n\n"
        "@pytest.hookimpl(tryfirst=True)\ndef pytest_collection_modifyitems(items): mark_more(items)\n"
    )
    (tmp_path / "test_tiny.py").write_text(dedent(TINY))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = {}
    for wanted in ("not more", "more"):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "-m", wanted]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        found[wanted] = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    return found


def test_both_targets_together_run_each_row_once(collected: dict[str, list[str]]) -> None:
    kept, rest = collected["not more"], collected["more"]
    assert len({*kept, *rest}) == len(kept) + len(rest) == 12 + 5 + 5 + 4 + 3
    combined = [re.findall(r"[\w]+", name.partition("[")[2]) for name in kept if name.startswith("test_combined")]
    assert len(combined) == 3
    assert {part for row in combined for part in row} == {
        "sync",
        "async",
        "kind0",
        "kind1",
        "nothing",
        "kill",
        "restart",
    }
    seeds = ["test_seeds[0]", "test_seeds[4]", "TestInside::test_seeds[0]"]
    alike = ["test_alike[1-1]", "test_alike[True-True]"]
    assert kept[3:] == [*seeds, *alike, *(f"test_all[{seed}]" for seed in range(3))]


@pytest.mark.few(1)
@pytest.mark.parametrize("row", [0, 1])
def test_rows_of_these_tests_are_marked_before_some_are_chosen(row: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("more") is not None) is (row == 1)
    assert row == 0 or request.config.option.markexpr != "not more"


def test_both_targets_run_before_a_change_lands() -> None:
    assert {"make test", "make test-more"} <= set((ROOT / ".ci/run").read_text().splitlines())


@pytest.mark.parametrize(
    ("count", "wanted", "places"),
    [(5, 1, {0}), (5, 2, {0, 4}), (9, 3, {0, 4, 8}), (10, 4, {0, 3, 6, 9}), (3, 3, {0, 1, 2}), (2, 5, {0, 1})],
)
def test_rows_are_evenly_spread(count: int, wanted: int, places: set[int]) -> None:
    assert spread(count, wanted) == places


def test_rows_that_cover_all_values() -> None:
    assert cover([]) == set()
    assert cover([["a"], ["b"]]) == {0, 1}
    assert cover([["a", 1], ["a", 2], ["b", 1], ["b", 2]]) == {0, 3}
    assert cover([["a", 1], ["b", 1], ["b", 1], ["a", 2]]) == {0, 1, 3}


def test_no_test_runs_in_make_test_more_alone() -> None:
    """What ``few`` does not keep is a row; a whole test is never left to ``make test-more``."""
    word = re.compile("mark" + r"\.more\b")
    assert [path for path in (ROOT / "tests").rglob("*.py") if word.search(path.read_text())] == []
