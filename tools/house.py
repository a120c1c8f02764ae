"""Counts what makes the house hard to live in. ``python tools/house.py [NAME]`` prints the counts, or a count's places.

With ``--check``, the places of what must not be there are errors: ``NEVER``.

Each count is of ``src/rucola`` without the generated ``sync``:

- ``arguments``: functions with more than 7 arguments; without kernels, commands, constructors, and public functions
  whose arguments from the fourth on must be named;
- ``names``: public names of classes that stand twice; without ``lab`` and ``testing``;
- ``later``: attributes that a class declares without a value, or as None, and that only others set;
- ``questions``: functions named ``is_``, ``has_`` or ``can_``, and properties, that set attributes;
- ``long``: functions of more than 60 lines;
- ``circles``: modules that import each other in a circle at import time;
- ``statements``: statements without docstrings;
- ``words``: words of pages written by hand.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rucola"
ARGUMENTS_MAX, POSITIONAL_MAX, LINES_MAX = 7, 3, 60
ACTING = ("is_", "has_", "can_")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A parsed module; ``name`` is its path below the source, without the suffix."""

    name: str
    tree: ast.Module


class Place(NamedTuple):
    """Something that is counted, and where."""

    module: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.what}"


def modules(source: Path = SOURCE) -> list[Module]:
    """All modules written by hand."""
    found = [
        Module(str(path.relative_to(source).with_suffix("")), ast.parse(path.read_text()))
        for path in sorted(source.rglob("*.py"))
    ]
    return [one for one in found if not one.name.startswith("sync/")]


def functions(module: Module) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """All functions of a module, each with the class that it belongs to."""

    def walk(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[tuple[ast.ClassDef | None, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield owner, child
                yield from walk(child, None)
            else:
                yield from walk(child, child if isinstance(child, ast.ClassDef) else owner)

    yield from walk(module.tree, None)


def many_arguments(found: list[Module]) -> Iterator[Place]:
    """Functions that take more than ``ARGUMENTS_MAX``."""
    for module in found:
        if module.name.startswith("cli/") or module.name.endswith("_cy"):
            continue
        for owner, one in functions(module):
            positional = [*one.args.posonlyargs, *one.args.args]
            if owner is not None and positional and positional[0].arg in ("self", "cls"):
                positional = positional[1:]
            count = len(positional) + len(one.args.kwonlyargs)
            is_face = not one.name.startswith("_") and one.args.kwonlyargs and len(positional) <= POSITIONAL_MAX
            if count > ARGUMENTS_MAX and one.name not in ("__init__", "__new__") and not is_face:
                yield Place(module.name, one.lineno, f"{one.name} takes {count}")


def names_twice(found: list[Module]) -> Iterator[Place]:
    """Public classes whose name another one has."""
    places = defaultdict(list)
    for module in found:
        if not module.name.startswith(("lab/", "testing/")):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(Place(module.name, node.lineno, node.name))
    for several in places.values():
        if len(several) > 1:
            yield Place(several[0].module, several[0].line, f"{several[0].what} and {', '.join(map(str, several[1:]))}")


def set_later(found: list[Module]) -> Iterator[Place]:
    """Attributes that a class declares without a value, or as None, and that only others set."""
    owners = _left_open(found)
    seen = set()
    for module in found:
        made = _made_inside(module, owners)
        for target in _targets(module.tree):
            is_own = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
            is_own = is_own or id(target) in made.get(target.attr, ())
            if not is_own and target.attr in owners and target.attr not in seen:
                seen.add(target.attr)
                yield Place(module.name, target.lineno, f"{ast.unparse(target)}, of {' or '.join(owners[target.attr])}")


def _made_inside(module: Module, owners: Mapping[str, list[str]]) -> dict[str, set[int]]:
    """The assignments in the body of the class itself, which makes or copies its own objects there."""
    inside: dict[str, set[int]] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            for target in _targets(node):
                if node.name in owners.get(target.attr, ()):
                    inside.setdefault(target.attr, set()).add(id(target))
    return inside


def _left_open(found: list[Module]) -> dict[str, list[str]]:
    """The attributes that their own class never gives a value but None, each with its classes."""
    open_ones: dict[str, list[str]] = {}
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not _has_made_constructor(node):
                declared, given = set[str](), set[str]()
                for one in ast.walk(node):
                    if isinstance(one, ast.AnnAssign | ast.Assign):
                        is_open = one.value is None or (isinstance(one.value, ast.Constant) and one.value.value is None)
                        names = {ast.unparse(target) for target in _assigned(one)}
                        own = {name.removeprefix("self.") for name in names if name.startswith("self.")}
                        (declared if is_open else given).update(own | (names if one in node.body else set()))
                for name in declared - given:
                    open_ones.setdefault(name, []).append(node.name)
    return open_ones


def _assigned(node: ast.AnnAssign | ast.Assign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _has_made_constructor(node: ast.ClassDef) -> bool:
    """Whether declarations without values are arguments of a constructor, or no attributes at all."""
    made = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
    return any(name in made for name in ("dataclass", "NamedTuple", "TypedDict", "Protocol", "Enum"))


def _targets(tree: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that are assigned in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        else:
            continue
        for target in targets:
            yield from (
                one
                for one in ast.walk(target)
                if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store | ast.Del)
            )


def acting_questions(found: list[Module]) -> Iterator[Place]:
    """Questions and properties that set attributes."""
    for module in found:
        for _, one in functions(module):
            is_property = any(
                ast.unparse(decorator) in ("property", "cached_property") for decorator in one.decorator_list
            )
            if one.name.lstrip("_").startswith(ACTING) or is_property:
                for target in _targets(one):
                    yield Place(module.name, target.lineno, f"{one.name} sets {ast.unparse(target)}")


def long_functions(found: list[Module]) -> Iterator[Place]:
    """Functions of more than ``LINES_MAX`` lines."""
    for module in found:
        for _, one in functions(module):
            lines = (one.end_lineno or one.lineno) - one.lineno + 1
            if lines > LINES_MAX:
                yield Place(module.name, one.lineno, f"{one.name} has {lines} lines")


def circles(found: list[Module]) -> Iterator[Place]:
    """Circles of modules that import each other at import time, without what only the type checker imports."""
    known = {one.name.replace("/", ".").removesuffix(".__init__"): one for one in found}
    imports = {name: sorted(set(_imported(module.tree, known)) - {name}) for name, module in known.items()}
    reached: dict[str, set[str]] = {}
    for name, first in imports.items():
        waiting, seen = list(first), set[str]()
        while waiting:
            if (at := waiting.pop()) not in seen:
                seen.add(at)
                waiting += imports[at]
        reached[name] = seen
    told: set[str] = set()
    for name in sorted(imports):
        if name in reached[name] and name not in told:
            circle = sorted(one for one in reached[name] if name in reached[one])
            told |= set(circle)
            yield Place(known[name].name, 1, " - ".join(circle))


def _imported(tree: ast.AST, known: dict[str, Module]) -> Iterator[str]:
    """The modules of ours that a tree imports when it is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rucola"):
            base = (node.module or "").removeprefix("rucola").lstrip(".")
            for one in node.names:
                inner = f"{base}.{one.name}".lstrip(".")
                if inner in known or base in known:
                    yield inner if inner in known else base
        else:
            yield from _imported(node, known)


def statements(found: list[Module]) -> Counter[str]:
    """The number of statements without docstrings, by package."""
    counts: Counter[str] = Counter()
    for module in found:
        for node in ast.walk(module.tree):
            is_text = (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            )
            if isinstance(node, ast.stmt) and not is_text:
                counts[module.name.partition("/")[0]] += 1
    return counts


def words(root: Path = ROOT) -> Counter[str]:
    """The number of words of the pages, without what is generated."""
    counts: Counter[str] = Counter()
    for path in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        text = path.read_text()
        if "lab" in path.relative_to(root).parts or "generated" in text[:300].lower():
            continue
        written = re.sub(r"<!-- [\w ]+: begin -->.*?<!-- [\w ]+: end -->", "", text, flags=re.DOTALL)
        counts[str(path.relative_to(root))] = len(written.split())
    return counts


PLACES = {
    "arguments": many_arguments,
    "names": names_twice,
    "later": set_later,
    "questions": acting_questions,
    "long": long_functions,
    "circles": circles,
}
NEVER = ("arguments", "names", "questions", "circles")
SUMS: dict[str, Callable[[list[Module]], Counter[str]]] = {"statements": statements, "words": lambda _: words()}


def main(arguments: list[str] | None = None, source: Path = SOURCE) -> int:
    """Prints the counts, or the places of one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("name", nargs="?", choices=[*PLACES, *SUMS])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    name, found = options.name, modules(source)
    if options.check:
        wrong = [f"{one}: {place}" for one in NEVER for place in PLACES[one](found)]
        print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
        return 1 if wrong else 0
    if name in PLACES:
        print(*PLACES[name](found), sep="\n")
    elif name in SUMS:
        print(*(f"{count:7,} {what}" for what, count in SUMS[name](found).most_common()), sep="\n")
    else:
        for one, places in PLACES.items():
            print(f"{one:12}{len(list(places(found))):9,}")
        for one, counts in SUMS.items():
            print(f"{one:12}{sum(counts(found).values()):9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
