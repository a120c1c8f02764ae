"""Citations and links have targets, and the check names those without one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGES = {
    "docs/reference/protocol.md": "## 1. Frames\n\n### 1.9 Bodies\n\nAs in section 1.9.\n\n| 7 | a code |\n",
    "docs/reference/reliability.md": "| P-18 | a promise |\n",
    "docs/reference/known_defects.md": "| 36 | a defect |\n",
    "docs/security.md": "## Attacks and their tests\n\n| S-27, S-28 | filters |\n",
    "README.md": "[attacks](docs/security.md#attacks-and-their-tests), `docs/security.md`, https://other.org/a.md 3\n",
    "src/sound.py": '"""Bodies (``protocol.md`` 1, 1.9; security.md S-27 to\nS-28).\n"""\n\nx = 1  # P-18, defect 36\n',
}
"""Pages of a repository in which all citations have targets."""


def check(tree: Path) -> list[str]:
    """Returns the output of the check for ``tree``, line by line."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_citations.py", "--check", "--root", tree],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if done.stderr else 0), done.stderr
    return done.stderr.splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in PAGES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_all_lead_somewhere() -> None:
    assert check(ROOT) == []


def test_a_sound_repository_passes(tree: Path) -> None:
    (tree / "src" / "text.py").write_text('text = "protocol.md 9.9, S-99, lost.md"\n')
    assert check(tree) == []


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("src/a.py", '"""See protocol.md 1.8."""\n', "src/a.py:1: protocol.md 1.8"),
        ("src/a.py", '"""First.\n\nThen ``protocol.md``\n1.9, 2.1.\n"""\n', "src/a.py:3: protocol.md 2.1"),
        ("src/a.py", '"""Codes: protocol.md 7."""\n', "src/a.py:1: protocol.md 7"),
        ("src/a.py", 'x = 1\n"""Of x: PLAN.md 4."""\n', "src/a.py:2: PLAN.md"),
        ("src/a.py", "x = 1\n# as in\n# protocol.md\n# 1.9 to 1.10\n", "src/a.py:3: protocol.md 1.10"),
        ("src/a.py", "x = 1  # P-19\n", "src/a.py:1: P-19"),
        ("src/a.py", '"""security.md S-29."""\n', "src/a.py:1: security.md S-29"),
        ("tests/a.py", '"""Known defect 37."""\n', "tests/a.py:1: defect 37"),
        ("docs/a.md", "# A\n\n[gone](gone.png)\n", "docs/a.md:3: gone.png"),
        ("docs/a.md", "```\n[code](x)\n```\n[lost](security.md#lost)\n", "docs/a.md:4: security.md#lost"),
        ("docs/a.md", "# A\n\n## 1. One\n\nSee section 2.\n", "docs/a.md:5: section 2 of this page"),
        ("docs/a.md", "`reference/lost.md` and `store.md`\n", "docs/a.md:1: reference/lost.md"),
    ],
)
def test_dead_citations_are_named(tree: Path, name: str, text: str, told: str) -> None:
    path = tree / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert f"{told} leads nowhere" in check(tree)


def test_the_tests_that_the_reference_names_are_there() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = {found for page in pages for found in re.findall(r"`([\w/]+\.py)::(test_\w+)`", page.read_text())}
    assert named
    missing = [f"{path}::{test}" for path, test in named if f"def {test}(" not in (ROOT / "tests" / path).read_text()]
    assert missing == []
