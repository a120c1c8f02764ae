"""The tests of a tree that has passed them are not run again; any change runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tools import run_tests


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    packages = list(run_tests.distributions())[:2]  # reading all takes a tenth of a second each time
    monkeypatch.setattr(run_tests, "distributions", lambda: packages)
    for name in ("src/a.py", "src/__pycache__/a.pyc", "site/page.html", "docs/site/page.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".gitignore").write_text(".venv/\n__pycache__/\n*.so\n/site/\nruns\n")
    return tmp_path


def run(tree: Path, command: str = "echo run >> runs", *options: str) -> int:
    """Runs the tests of a tree; returns how often they have run."""
    run_tests.main([*options, "sh", "-c", command], tree)
    runs = tree / "runs"
    return len(runs.read_text().splitlines()) if runs.exists() else 0


def test_a_tree_that_passed_is_not_tested_again(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [run(tree), run(tree), run(tree, "echo run >> runs", "--again")] == [1, 1, 2]
    assert "this tree passed at 2" in capsys.readouterr().out


def test_each_target_is_remembered_by_itself(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("echo run >> runs", "--name", "test-more")
    assert [run(tree), run(tree, *more), run(tree), run(tree, *more)] == [1, 2, 2, 2]
    assert "make test-more: this tree passed at 2" in capsys.readouterr().out


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda tree: (tree / "src/a.py").write_text("2\n"),
    "new": lambda tree: (tree / "src/b.py").write_text(""),
    "removed": lambda tree: (tree / "src/a.py").unlink(),
    "renamed": lambda tree: (tree / "src/a.py").rename(tree / "src/b.py"),
    "mode": lambda tree: (tree / "src/a.py").chmod(0o755),
    "link": lambda tree: (tree / "src/b.py").symlink_to("a.py"),
    "folder of an ignored name elsewhere": lambda tree: (tree / "docs/site/page.html").write_text("2\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_tested(tree: Path, change: Callable[[Path], object]) -> None:
    run(tree)
    change(tree)
    assert run(tree) == 2


@pytest.mark.parametrize("name", ["src/__pycache__/a.pyc", "site/page.html", "src/a.so", ".venv/lib"])
def test_an_ignored_file_is_no_change(tree: Path, name: str) -> None:
    run(tree)
    (tree / name).write_text("2\n")
    assert run(tree) == 1


def test_another_package_is_a_change(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tree)
    monkeypatch.setattr(run_tests, "distributions", list)
    assert run(tree) == 2


def test_failed_partial_and_changed_runs_are_run_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_tests.main(["sh", "-c", "exit 3"], tree) == 3
    assert [run(tree, "echo run >> runs; exit 1"), run(tree, "echo run >> runs; echo 2 > src/a.py")] == [1, 2]
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k one")
    assert [run(tree), run(tree)] == [3, 4]
