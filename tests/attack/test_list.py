"""Every attack that this project prevents has a test in this directory that states its number, and is in
docs/security.md.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ANSWERED = {*range(1, 50), 54, 55, 56, *range(61, 66)}
"""Numbers of the attacks in ``docs/security.md``; 50 to 53 and 57 to 60 are unused."""


def test_each_attack_has_a_test_and_a_line() -> None:
    names = re.findall(r"def test_(\w+)", "".join(path.read_text() for path in HERE.glob("test_*.py")))
    tested = {int(number) for name in names for number in re.findall(r"(?<![a-z0-9])s(\d\d)(?=_)", name)}
    table = (HERE.parents[1] / "docs" / "security.md").read_text().split("## Attacks and their tests")[1]
    lines = [line.split("|")[1] for line in table.splitlines() if line.startswith("| S-")]
    described = {int(number) for line in lines for number in re.findall(r"S-(\d\d)", line)}
    assert (sorted(ANSWERED - tested), sorted(ANSWERED - described)) == ([], [])


def test_the_tests_that_are_named_are_there() -> None:
    text = (HERE.parents[1] / "docs" / "security.md").read_text()
    tests = HERE.parent
    everywhere = "".join(path.read_text() for path in tests.rglob("test_*.py"))
    for path in set(re.findall(r"`((?:attack|unit|crash)/\w[\w/]*\.py)", text)):
        assert (tests / path).exists(), path
    for name in set(re.findall(r"test_s?\w+", text.split("## Attacks and their tests")[1])):
        if not (tests / "attack" / f"{name}.py").exists():
            assert f"def {name}" in everywhere or any(tests.rglob(f"{name}.py")), name
