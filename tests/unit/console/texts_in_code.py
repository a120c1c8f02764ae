"""Finds the texts of the console that people read: those of templates, and those that code names as keys."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rucola.console.changes.plan import StepOutcome
from rucola.console.changes.table import CHANGES
from rucola.console.messages.way import WayKind
from rucola.console.views.messages import TRAITS, TRANSACTION
from rucola.console.views.table import VIEWS

_CALL = re.compile(r"""\bt\(\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")
_CHOICE = re.compile(r"\bt\(\s*\{(.*?)\}[\[.]", re.DOTALL)
_LOOPED = re.compile(r"{% for [^%]*? in \((\(.*?\))\)\s*%}", re.DOTALL)
_VALUE = re.compile(r':\s*"((?:[^"\\]|\\.)*)"')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def texts_in_code(package: Path) -> set[str]:
    """All keys of the catalogue."""
    found = {view.title for view in VIEWS if view.template} | {change.title for change in CHANGES.values()}
    found |= {outcome.value for outcome in StepOutcome} | {"Sign in"}
    found |= {kind.value for kind in WayKind}
    found |= {name for _, name in TRAITS} | set(TRANSACTION.values())
    for template in sorted((package / "pages" / "templates").glob("*.html")):
        found |= _of_template(template.read_text())
    for module in package.rglob("*.py"):
        found |= _of_module(ast.parse(module.read_text()))
    return found


def _of_template(text: str) -> set[str]:
    found = {first or second for first, second in _CALL.findall(text)}
    for choice in _CHOICE.findall(text):
        found |= set(_VALUE.findall(choice))
    found |= set(re.findall(r'\bt\(\{[^}]*\}\.get\([^,()]*(?:\([^)]*\))?[^,]*, "([^"]+)"\)', text)) - {"—"}
    for rows in _LOOPED.findall(text):
        if "t(" in rows:
            continue
        for row in re.findall(r"\(([^()]*)\)", rows):
            quoted = _QUOTED.findall(row)
            found |= {one for one in quoted if _is_shown(one, quoted)}
    return found


def _is_shown(one: str, row: list[str]) -> bool:
    """Of the values of a row in a loop, the second is the text; in rows about charts, the first."""
    return one == (row[0] if row[-1] in ("rate", "number", "percent") else row[1] if len(row) > 1 else None)


def _of_module(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        arguments = [one for one in node.args if not isinstance(one, ast.Starred)]
        keys: list[ast.expr] = []
        if name == "translate":
            keys = arguments[1:2]
        elif name in ("PlanError", "SignInError"):
            keys = arguments[:1]
        elif name == "ClusterProblem":
            keys = [*arguments[4:5], *arguments[7:8]]
        elif name == "problem":
            keys = [*arguments[2:3], *arguments[4:5]]
        elif name == "ChangeStep":
            keys = arguments[4:5]
        elif name == "ChangePlan":
            keys = arguments[1:2]
        elif name == "append" and arguments and isinstance(arguments[0], ast.Tuple):
            keys = arguments[0].elts[:1]
        for key in keys:
            found |= _constants(key)
    found |= _assigned(tree)
    return found - {""}


def _assigned(tree: ast.Module) -> set[str]:
    """Keys that first get a name: ``text``, ``effect``, ``step``, ``error``, headings, and what ``_button`` returns."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "effect" or (
                node.targets[0].id == "text" and isinstance(node.value, ast.Constant)
            ):
                found |= _constants(node.value)
            if node.targets[0].id == "headings" and isinstance(node.value, ast.Dict):
                found |= {text for value in node.value.values for text in _constants(value)}
        if (
            isinstance(node, ast.AnnAssign)
            and getattr(node.target, "id", "") == "notes"
            and isinstance(node.value, ast.List)
        ):
            found |= {text for one in node.value.elts if isinstance(one, ast.Tuple) for text in _constants(one.elts[0])}
        if isinstance(node, ast.FunctionDef) and node.name == "_button":
            for one in ast.walk(node):
                if isinstance(one, ast.Return) and one.value is not None:
                    found |= _constants(one.value)
    return found


def _constants(node: ast.expr) -> set[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return _constants(node.body) | _constants(node.orelse)
    return set()
