"""The checks of documentation pages find planted errors, and the current pages have none."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
from tools import check_docs, generated_docs

ROOT = Path(__file__).parents[2]
CHANGES = "# Changelog\n\n## 2\n\n- new\n\n## 1\n" + 50 * "- old\n"


def check(main: Callable[[list[str]], int], *arguments: str) -> list[str]:
    """Returns the output of a check, line by line."""
    out = StringIO()
    with redirect_stderr(out):
        code = main(["--check", *arguments])
    assert code == (1 if out.getvalue() else 0)
    return out.getvalue().splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Makes a repository without errors."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# All\n\nOne [page](docs/start.md).\n")
    (tmp_path / "docs" / "start.md").write_text("# Start\n\nShort.\n")
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    return tmp_path


def test_nothing_is_wrong_with_the_pages() -> None:
    assert check(check_docs.main) == []


def test_a_sound_repository_passes(tree: Path) -> None:
    long = 130 * "x"
    page = f"```\nlong {long}\n```\n| a {long} |\n{long}\n"
    page += f"<!-- generated: x y -->\nlong {long}\n<!-- end of generated -->\n"
    words = 590 * "word "
    (tree / "docs" / "start.md").write_text(f"{page}\n```text\n{words}\n```\n" + 118 * "word word word word word\n")
    assert check(check_docs.main, "--root", str(tree)) == []


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("docs/start.md", 121 * "word word word word word\n", "docs/start.md:1: has 605 words; 600 are allowed"),
        ("docs/start.md", f"# A\n\n{'a' * 60} {'b' * 60}\n", "docs/start.md:3: has 121 characters; 120 are allowed"),
        ("docs/start.md", f"```\n\n```\n- {'a' * 60} {'b' * 60}\n", "docs/start.md:4: has 123 characters; 120"),
        ("README.md", f"{'a' * 60} {'b' * 60}\n", "README.md:1: has 121 characters; 120 are allowed"),
        ("CHANGELOG.md", CHANGES + f"{'a' * 60} {'b' * 60}\n", "CHANGELOG.md:58: has 121 characters; 120 are allowed"),
        ("docs/new.md", "# New\n", "docs/new.md:1: has no budget of words in tools/check_docs.py"),
        ("CHANGELOG.md", f"# C\n\n## 2\n{31 * '- x' + chr(10)}{31 * ('- x' + chr(10))}", "CHANGELOG.md:1: its first"),
    ],
)
def test_faults_are_named(tree: Path, name: str, text: str, told: str) -> None:
    (tree / name).write_text(text)
    found = check(check_docs.main, "--root", str(tree))
    assert any(line.startswith(told) for line in found), found


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """Makes a copy of the pages that have generated tables."""
    return shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("lab", "reference", "*.png"))


def test_an_option_and_a_layout_without_their_page_are_named(docs: Path) -> None:
    page = docs / "configuration.md"
    page.write_text(page.read_text().replace("options rucola.store.config:MessageStoreConfig", "idle-keys"))
    (docs / "formats" / "timer.md").write_text("# Timer\n")
    found = check(generated_docs.main, "--docs", str(docs))
    assert "options rucola.store.config:MessageStoreConfig is on no page below docs/" in found
    assert "layout rucola.formats.timer:TIMER_SLOT is on no page below docs/" in found


@pytest.mark.parametrize(
    ("page", "row"),
    [
        ("configuration.md", "| `flushDiskType` |"),
        ("formats/commit-log.md", "| 28 | 8 | int64 | `physical_offset` |"),
        ("metrics.md", "| `rucola_ready` |"),
        ("log-events.md", "| critical | sync failed"),
        ("log-events.md", "| warning | bytes of the log copied to quarantine | `length`"),
        ("log-events.md", "| info | change asked for | `consumerGroup`"),
        ("log-events.md", "| warning | listener failed | `attempt`, `count`, `ids`, `queue`, `topic`, `trace` |"),
        ("operations.md", "| 5 | The store is damaged"),
        (
            "client-promises.md",
            "| `send_oneway` | Sends one message without requesting a response; a loss is not noticed. | [",
        ),
        ("client-promises.md", "| `drop_repeats` | Wraps `listener` "),
    ],
)
def test_a_row_that_a_page_lacks_comes_back(page: str, row: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert f"\n{row}" in text
    lines = text.splitlines(keepends=True)
    assert generated_docs.rendered("".join(line for line in lines if not line.startswith(row))) == text


@pytest.mark.few
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"Producer.send" =', '"Producer.sned" =', "tests/promises.toml: Producer.send has no test"),
        ('"Producer.send" =', '"Producer.sned" =', "tests/promises.toml: Producer.sned is no public name"),
        ('::test_send"', '::test_sned"', "Producer.send: there is no test unit/client/test_producer.py::test_sned"),
        ("test_repeats.py", "test_none.py", "drop_repeats: there is no test unit/client/test_none.py::test_a_consumed"),
    ],
)
@pytest.mark.parametrize("checks", [True, False])
def test_a_promise_without_a_test_is_named(
    old: str, new: str, told: str, checks: bool, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (ROOT / "tests" / "promises.toml").read_text()
    assert old in given
    monkeypatch.setattr(generated_docs, "promised_tests", lambda: tomllib.loads(given.replace(old, new)))
    out = StringIO()
    with redirect_stderr(out):
        assert generated_docs.main(["--docs", str(docs), *(["--check"] if checks else [])]) == 1
    assert told in out.getvalue()


def test_a_class_whose_promises_no_page_shows_is_named(docs: Path) -> None:
    page = docs / "client-promises.md"
    page.write_text(page.read_text().replace("generated: promises SimpleConsumer", "generated: promises"))
    assert "promises SimpleConsumer is on no page below docs/" in check(generated_docs.main, "--docs", str(docs))


def test_a_table_that_is_not_current_is_named(docs: Path) -> None:
    page = docs / "formats" / "index.md"
    page.write_text(page.read_text().replace("int64", "int32"))
    assert "docs/formats/index.md: a table differs from the code; run make docs" in check(
        generated_docs.main, "--docs", str(docs)
    )
    assert generated_docs.main(["--docs", str(docs)]) == 0
    assert page.read_text() == (ROOT / "docs" / "formats" / "index.md").read_text()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ('"""Text."""\n\n\ndef public() -> None:\n    return\n', "D103"),
        ('"""Text."""\n\n\nclass Public:\n    """Text."""\n\n    def public(self) -> None:\n        return\n', "D102"),
        ("X = 1\n", "D100"),
        ('"""Text."""\n\n\ndef _private() -> None:\n    return\n', ""),
    ],
)
def test_a_public_name_without_docstring_is_named(source: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format=concise", "--stdin-filename=src/rucola/new.py", "-"],
        input=source,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r" (D\d+) ", done.stdout) == ([told] if told else []), done.stdout + done.stderr
