"""Each cell of the table in ``docs/lake-changes.md`` has a test that exists."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE, TESTS = ROOT / "docs" / "lake-changes.md", ROOT / "tests" / "lake_changes.toml"


def cells(text: str) -> dict[str, dict[str, str]]:
    """The cells of the first table of a page, by row and column."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def exists(test: str) -> bool:
    """Whether a file has the test, given as ``file::class::method`` or ``file::function``."""
    path, *names = test.split("::")
    if not names:
        return False
    body = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8")).body
    for name in names:
        found = [one for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == name]
        if len(found) != 1:
            return False
        body = found[0].body
    return names[-1].startswith("test_")


def problems(text: str, tests: dict[str, dict[str, str]]) -> list[str]:
    page = cells(text)
    found = [f"{row} has no tests, or no row" for row in page.keys() ^ tests.keys()]
    for row in page.keys() & tests.keys():
        for column in page[row].keys() | tests[row].keys():
            if not page[row].get(column):
                found.append(f"{row}, {column}: says nothing")
            elif not exists(tests[row].get(column, "")):
                found.append(f"{row}, {column}: has no test")
    return sorted(found)


def test_each_cell_has_a_test() -> None:
    text, tests = PAGE.read_text(encoding="utf-8"), tomllib.loads(TESTS.read_text(encoding="utf-8"))
    assert problems(text, tests) == []
    assert len(tests) == 11
    assert {len(columns) for columns in tests.values()} == {5}


def test_missing_rows_of_the_page_are_found() -> None:
    text, tests = PAGE.read_text(encoding="utf-8"), tomllib.loads(TESTS.read_text(encoding="utf-8"))
    assert problems(text.replace("| killed |", "| drowned |"), tests) == [
        "drowned has no tests, or no row",
        "killed has no tests, or no row",
    ]
    assert problems(text.replace("| whole messages only |", "| |"), tests) == ["killed, SQL: says nothing"]
    tests["killed"]["SQL"] += "_"
    del tests["killed"]["restore"]
    assert problems(text, tests) == ["killed, SQL: has no test", "killed, restore: has no test"]
