"""Writes the tables of the documentation that follow from the code: ``python tools/generated_docs.py [--check]``.

A page below ``docs/`` holds a table between two marks; the first mark says which table:

    <!-- generated: options rucola.store.config:MessageStoreConfig -->
    <!-- end of generated -->

``KINDS`` has the words that may follow ``generated:``. With ``--check`` nothing is written, and the exit status is 1
if a table differs from the code, or if an option class or a file layout is on no page. Without ``--check`` too, it is 1
if a public name of the clients has no test in ``tests/promises.toml``, or if such a test does not exist.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from struct import calcsize
from typing import Any, TypeGuard

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rucola"
BLOCK = re.compile(r"(<!-- generated: (\S+) ?([^\n]*?) ?-->\n).*?(<!-- end of generated -->)", re.DOTALL)
_TYPES = {"b": "int8", "h": "int16", "i": "int32", "q": "int64"}
_CLIENTS = ("client", "sync")

sys.path.insert(0, str(ROOT / "src"))


@cache
def parsed(path: Path) -> ast.Module:
    """A module of the code."""
    return ast.parse(path.read_text())


def table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def named(name: str) -> Any:
    """What ``module:attribute`` is."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def options(name: str) -> str:
    """Table of the options in a configuration file."""
    from rucola.common.options import options_table

    return options_table(named(name))


def arguments(name: str) -> str:
    """Table of a Python class's options, by the names of its arguments, without those of the base class."""
    from rucola.common.options import options_of

    kind = named(name)
    inherited = {(entry.key, entry.default) for base in kind.__mro__[1:-1] for entry in options_of(base)}
    rows = [
        (f"`{entry.name}`", f"`{entry.key}`", shown(entry.show(entry.default)), entry.limits(), entry.text)
        for entry in options_of(kind)
        if (entry.key, entry.default) not in inherited
    ]
    return table(("argument", "RocketMQ's key", "default", "allowed", "meaning"), rows)


def shown(text: str) -> str:
    """A default value."""
    return f"`{text}`" if text else "empty"


def idle_keys(_: str) -> str:
    """Table of the keys in RocketMQ's ``broker.conf`` that have no effect, by reason."""
    from rucola.broker.config import BrokerConfig
    from rucola.broker.reference_keys import REFERENCE_KEYS, without_effect
    from rucola.common.options import unknown_keys
    from rucola.store.config import FORMER_KEYS, MessageStoreConfig

    keys = unknown_keys(REFERENCE_KEYS - FORMER_KEYS.keys(), BrokerConfig, MessageStoreConfig)
    reasons: dict[str, list[str]] = {}
    for key in keys:
        reasons.setdefault(without_effect([key]).rpartition(" (")[0], []).append(f"`{key}`")
    return table(("what it means here", "keys"), [(reason, " ".join(found)) for reason, found in reasons.items()])


def remote_keys(_: str) -> str:
    """Table of the options that a request can change, and who may change them."""
    from rucola.broker.processor.broker_manage import ADMINISTRATORS_KEYS, REMOTE_KEYS

    return "\n".join(
        f"- `{key}`" + " (only with access control, and only by administrators)" * (key in ADMINISTRATORS_KEYS)
        for key in sorted(REMOTE_KEYS)
    )


def layout(name: str) -> str:
    """Table of the fields in a ``Layout``."""
    declared = named(name)
    rows = []
    for field in declared.fields:
        size = str(calcsize(f">{field.code}"))
        rows.append((str(declared.position(field.name)), size, _type(field.code), f"`{field.name}`", field.meaning))
    head = f"**{declared.what[0].upper()}{declared.what[1:]}**, {declared.size} bytes (`{name.partition(':')[2]}`)\n\n"
    return head + table(("position", "bytes", "type", "field", "meaning"), rows)


def _type(code: str) -> str:
    return _TYPES.get(code, "bytes")


def exit_codes(_: str) -> str:
    """Table of the server commands' exit codes, and whether systemd restarts the broker."""
    from rucola.cli.exit_codes import ExitCode

    unit = (ROOT / "packaging" / "systemd" / "rucola-broker.service").read_text()
    final = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)[0].split()
    texts = attribute_texts(ExitCode)
    rows = [
        (str(int(code)), texts[code.name], "no" if code == ExitCode.CLEAN or str(int(code)) in final else "yes")
        for code in ExitCode
    ]
    return table(("exit code", "meaning", "systemd restarts"), rows)


def attribute_texts(kind: type) -> dict[str, str]:
    """The docstring below each member of a class, by the member's name."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    texts, name = {}, ""
    for node in body.body if isinstance(body, ast.ClassDef) else []:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts[name] = str(node.value.value)
    return texts


def metrics(_: str) -> str:
    """Table of all metrics at ``/metrics``, found in the code that creates them: name and help text."""
    rows = []
    for module in ("metrics", "topic_metrics", "door_metrics", "controller_metrics", "figures", "merged_metrics"):
        tree = parsed(SOURCE / "cli" / f"{module}.py")
        for node in ast.walk(tree):
            parts = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
            texts = [str(part.value) for part in parts[:2] if isinstance(part, ast.Constant)]
            if len(texts) == 2 and re.fullmatch("(rucola|rocketmq)_[a-z_]+", texts[0]):
                counter = isinstance(node, ast.Call) and "CounterMetricFamily" in ast.unparse(node)
                rows.append((f"`{texts[0]}{'_total' * counter}`", "counter" if counter else "gauge", texts[1]))
    return table(("metric", "kind", "meaning"), sorted(rows))


def events(part: str) -> str:
    """Table of the log events of ``servers`` or ``clients``, by level."""
    found: dict[tuple[int, str, str], set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        package = path.relative_to(SOURCE).parts[0]
        if package in ("testing", "lab", "spark") or (package in _CLIENTS) != (part == "clients"):
            continue
        for level, text, fields in _events_in(path):
            place = path.relative_to(SOURCE)
            key = (_LEVELS.index(level), text, f"[`{place}`](../src/rucola/{place})")
            found.setdefault(key, set()).update(fields)
    rows = [
        (_LEVELS[level].lower(), text, ", ".join(f"`{field}`" for field in sorted(fields)), place)
        for (level, text, place), fields in sorted(found.items())
    ]
    return table(("level", "event", "fields", "source"), rows)


_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "varies")


@cache
def _events_in(path: Path) -> list[tuple[str, str, list[str]]]:
    return list(_events_of(parsed(path)))


def _events_of(tree: ast.Module) -> Iterator[tuple[str, str, list[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "event":
            level = node.args[1].attr if isinstance(node.args[1], ast.Attribute) else "varies"
            fields = [name for keyword in node.keywords for name in _names(keyword, tree)]
            fields += ["trace"] if len(node.args) > 3 else []
            for constant in ast.walk(node.args[2]):
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    yield level, constant.value, fields


def _names(keyword: ast.keyword, tree: ast.Module) -> list[str]:
    """Log fields of an argument: its keyword or, for ``**name``, the keys of the last dictionary in ``name``."""
    if keyword.arg:
        return [keyword.arg]
    made = ast.unparse(keyword.value)
    assigned = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.lineno < keyword.lineno and made == ast.unparse(node.targets[0])
    ]
    for node in sorted(assigned, key=lambda node: node.lineno, reverse=True):
        if isinstance(node.value, ast.Dict):
            return [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
        if isinstance(node.value, ast.DictComp):
            return _constants(ast.unparse(node.value.generators[0].iter), tree)
    raise ValueError(f"line {keyword.lineno}: the fields of {made} are not found")


def _constants(name: str, tree: ast.Module) -> list[str]:
    """The texts of a tuple or set that a module names."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    return [str(part.value) for node in assigned for part in ast.walk(node.value) if isinstance(part, ast.Constant)]


def command(name: str) -> str:
    """Table of the options of ``rucola up`` and of the other server commands."""
    from rucola.cli.main import command_line

    subparsers = next(action for action in command_line()._actions if isinstance(action.choices, dict))
    choices: Any = subparsers.choices
    rows = [
        (f"`{', '.join(action.option_strings)}{f' {action.metavar}' if action.metavar else ''}`", str(action.help))
        for action in choices[name]._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    ]
    return table(("option", "meaning"), rows)


def promises(name: str) -> str:
    """Table of a client's promises: for the class and each public method, its docstring's summary and the test that
    shows it. Without a name, of the functions among the exports.
    """
    found = client_names()
    rows = [
        (f"`{call.removeprefix(f'{name}.')}`", summary(what), _test_link(call))
        for call, what in found.items()
        if (call.partition(".")[0] == name if name else inspect.isfunction(what) and "." not in call)
    ]
    return table(("name", "promise", "test"), rows)


def client_names() -> dict[str, Any]:
    """The public names of the clients: their classes, the methods of these, and the exported functions."""
    import rucola

    exported = {name: getattr(rucola, name) for name in rucola.__all__}
    found: dict[str, Any] = {}
    for name, what in exported.items():
        if inspect.isfunction(what):
            found[name] = what
        elif inspect.isclass(what) and hasattr(what, "__aenter__"):
            found[name] = what
            found.update({f"{name}.{member}": value for member, value in vars(what).items() if member[0] != "_"})
    return found


def summary(what: Any) -> str:
    """The first paragraph of a docstring, with code in Markdown's form."""
    return " ".join((inspect.getdoc(what) or "").partition("\n\n")[0].split()).replace("``", "`")


def _test_link(call: str) -> str:
    path, _, test = promised_tests().get(call, "").partition("::")
    return f"[{test.removeprefix('test_').replace('_', ' ')}](../tests/{path})" if test else "none"


@cache
def promised_tests() -> dict[str, str]:
    """``tests/promises.toml``: for each public name, the path and the name of the test that shows its promise."""
    return tomllib.loads((ROOT / "tests" / "promises.toml").read_text())


def unkept() -> Iterator[str]:
    """What is wrong in ``tests/promises.toml``: names without a test, tests and names that do not exist."""
    named, names = promised_tests(), client_names()
    yield from (f"tests/promises.toml: {call} has no test" for call in names.keys() - named.keys())
    yield from (f"tests/promises.toml: {call} is no public name" for call in named.keys() - names.keys())
    yield from (f"{call} has no docstring" for call, what in names.items() if not summary(what))
    for call, place in named.items():
        path, _, test = place.partition("::")
        file = ROOT / "tests" / path
        if not file.is_file() or not _has_test(parsed(file), test):
            yield f"tests/promises.toml: {call}: there is no test {place}"


def _has_test(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in tree.body)


KINDS: dict[str, Callable[[str], str]] = {
    "arguments": arguments,
    "command": command,
    "events": events,
    "exit-codes": exit_codes,
    "idle-keys": idle_keys,
    "remote-keys": remote_keys,
    "layout": layout,
    "metrics": metrics,
    "options": options,
    "promises": promises,
}


def rendered(text: str) -> str:
    """Returns the text of a page with all its tables generated again."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{KINDS[block[2]](block[3])}\n{block[4]}", text)


def undocumented(pages: str) -> Iterator[str]:
    """Option classes and layouts in the code that no page shows."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for kind, name in _declared(parsed(path)):
            if not re.search(rf"generated: \w+ {re.escape(module)}:{name} -->", pages):
                yield f"{kind} {module}:{name}"

    for name in client_names():
        if "." not in name and name[0].isupper() and f"generated: promises {name} -->" not in pages:
            yield f"promises {name}"


def _declared(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_is_call(line, "option") for line in node.body):
            yield "options", node.name
        elif _is_call(node, "Layout"):
            yield "layout", ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def _is_call(node: ast.stmt, name: str) -> TypeGuard[ast.Assign | ast.AnnAssign]:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == name


def main(arguments: list[str]) -> int:
    """Writes the tables, or with ``--check`` reports outdated ones; reports declarations that are on no page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table is not current")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages")
    given = parser.parse_args(arguments)
    problems, texts = [], []
    for page in sorted(given.docs.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        texts.append(text)
        if (current := rendered(text)) != text:
            problems.append(f"{page.relative_to(given.docs.parent)}: a table differs from the code; run make docs")
            if not given.check:
                page.write_text(current, encoding="utf-8")
    missing = [f"{what} is on no page below docs/" for what in undocumented("\n".join(texts))] + sorted(unkept())
    for line in (problems if given.check else []) + missing:
        print(line, file=sys.stderr)
    return 1 if missing or (problems and given.check) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
