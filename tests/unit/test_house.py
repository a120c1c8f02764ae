"""The counts of ``tools/house.py`` find planted places, and leave out what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import dedent

import pytest
from tools import house

Count = Callable[[list[house.Module]], Iterable[house.Place]]
FEW = "a, b, c, d, e, f, g"
CASES: dict[str, tuple[Count, str, list[str]]] = {
    "arguments": (house.many_arguments, f"def f({FEW}, h): ...", ["broker/a:1 f takes 8"]),
    "few": (house.many_arguments, f"class A:\n    def f(self, {FEW}): ...\n    def __init__(self, {FEW}, h): ...", []),
    "named": (house.many_arguments, f"def f(x, *, {FEW}): ...\ndef _g(*, {FEW}, h): ...", ["broker/a:2 _g takes 8"]),
    "names": (
        house.names_twice,
        "class A: ...\nclass _B: ...\nclass C:\n    class A: ...\nclass _B: ...",
        ["broker/a:1 A and broker/a:4 A"],
    ),
    "bare": (house.set_later, "class A:\n    x: int\ndef f(one): one.x = 1", ["broker/a:3 one.x, of A"]),
    "none": (
        house.set_later,
        "class A:\n    def __init__(self): self.x: int | None = None\ndef f(one): one.x, y = 1, 2",
        ["broker/a:3 one.x, of A"],
    ),
    "own": (
        house.set_later,
        "class A:\n    x: int\n    def f(self): self.x = 1\n@dataclass\nclass B:\n    y: int\ndef f(a): a.x = a.y = 1",
        [],
    ),
    "made inside": (
        house.set_later,
        "class A:\n    x: int\n    def copied(self):\n        made = A()\n        made.x = 1\n        return made",
        [],
    ),
    "made inside another": (
        house.set_later,
        "class A:\n    x: int\nclass B:\n    def f(self, a): a.x = 1",
        ["broker/a:4 a.x, of A"],
    ),
    "question": (house.acting_questions, "def is_late(self): self.n += 1", ["broker/a:1 is_late sets self.n"]),
    "private question": (
        house.acting_questions,
        "def _has_room(self):\n    del self.n",
        ["broker/a:2 _has_room sets self.n"],
    ),
    "property": (
        house.acting_questions,
        "class A:\n    @property\n    def size(self):\n        self.n: int = 1",
        ["broker/a:4 size sets self.n"],
    ),
    "asking": (house.acting_questions, "def is_late(self):\n    n = self.n\ndef issue(self): self.n = 1", []),
    "long": (
        house.long_functions,
        "def f():\n" + 60 * "    a()\n" + "def g():\n" + 59 * "    a()\n",
        ["broker/a:1 f has 61 lines"],
    ),
}


def module(text: str, name: str = "broker/a") -> house.Module:
    return house.Module(name, house.ast.parse(dedent(text)))


@pytest.mark.parametrize(("count", "text", "places"), CASES.values(), ids=CASES)
def test_places(count: Count, text: str, places: list[str]) -> None:
    assert [str(place) for place in count([module(text)])] == places


@pytest.mark.parametrize("name", ["cli/a", "formats/_a_cy"])
def test_commands_and_kernels_may_take_many_arguments(name: str) -> None:
    assert not list(house.many_arguments([module(f"def f({FEW}, h): ...", name)]))


def test_names_in_the_laboratory_may_stand_twice() -> None:
    assert not list(house.names_twice([module("class A: ..."), module("class A: ...", "lab/a")]))


def test_circles() -> None:
    found = [
        module("from rucola.b import x", "a"),
        module("if True:\n    from rucola import c", "b"),
        module("from rucola.a import y", "c"),
        module("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rucola.e import x", "d"),
        module("from rucola.d import z\ndef f():\n    from rucola.e import x", "e"),
    ]
    assert [place.what for place in house.circles(found)] == ["a - b - c"]


def test_docstrings_are_no_statements() -> None:
    text = '"""Text."""\nclass A:\n    """Text."""\n    x = 1\n    """Text."""\n    def f(self):\n        return ""\n'
    assert house.statements([module(text)]) == {"broker": 4}


def test_generated_words_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "docs" / "lab").mkdir(parents=True)
    (tmp_path / "README.md").write_text("one two <!-- a table: begin -->\nthree\n<!-- a table: end -->\n")
    (tmp_path / "docs" / "events.md").write_text("Generated from the code.\n")
    (tmp_path / "docs" / "lab" / "report.md").write_text("four\n")
    assert sum(house.words(tmp_path).values()) == 2


def test_generated_modules_are_not_read(tmp_path: Path) -> None:
    for name in ("sync/a.py", "store/b.py", "c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [one.name for one in house.modules(tmp_path)] == ["c", "store/b"]


def test_forbidden_counts_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text(f"class A: ...\ndef f({FEW}): ...\n")
    assert house.main(["--check"], tmp_path) == 0
    (tmp_path / "b.py").write_text(f"class A:\n    def is_late(self): self.n = 1\ndef g({FEW}, h): ...\n")
    assert house.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == (
        "arguments: b:3 g takes 8\nnames: a:1 A and b:1 A\nquestions: b:2 is_late sets self.n\n"
    )
