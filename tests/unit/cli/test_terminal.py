"""Names and texts from anybody cannot control the terminal: one gate for tables, one for all other lines."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from rich.table import Table
from rich.text import Text
from tests.unit.store.stores import HOST, opened

from rucola.cli import lines, main
from rucola.cli.store_text import shown
from rucola.cli.terminal import Terminal
from rucola.common.message import StoreMessage

SOURCES = Path(lines.__file__).parent
EVIL = "T\x1b]0;owned\x07\x9b31m\x7f\u202e\u2066\r"
SEEN = "T\\x1b]0;owned\\x07\\x9b31m\\x7f\\u202e\\u2066\\r"


def controls(text: str) -> set[str]:
    return {char for char in text if not char.isprintable() and char not in "\n\t"}


def test_only_two_modules_print() -> None:
    """Others would have to remember the gate at each place."""
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if path.name not in ("terminal.py", "fitted_table.py"):
            imported = [
                node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "rich.console"
            ]
            assert not imported, f"{path}: use rucola.cli.terminal"
        if path.name != "lines.py":
            for node in ast.walk(tree):
                is_error = (
                    isinstance(node, ast.Attribute) and node.attr == "stderr" and ast.unparse(node.value) == "sys"
                )
                flushed = is_error and "sys.stderr.flush()" in path.read_text()
                assert not is_error or flushed, f"{path}: use rucola.cli.lines.print_error"


@pytest.mark.parametrize("colours", [False, True])
def test_a_name_in_a_table_that_nobody_escaped(colours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    terminal = Terminal()
    terminal._force_terminal = colours
    table = Table("name")
    table.add_row(Text(EVIL), style="bold")
    with terminal.capture() as captured:
        terminal.print(table)
        terminal.print(Text(EVIL))
        terminal.print(f"first\nsecond {EVIL}")
    printed = captured.get()
    assert printed.count("\\x9b31m\\x7f\\u202e\\u2066") == 3
    assert "first\nsecond" in printed
    assert not controls(printed) or colours
    assert "\x1b]0" not in printed
    assert not controls(printed.replace("\x1b[", ""))


def test_lines_of_errors_and_texts(capsys: pytest.CaptureFixture[str]) -> None:
    lines.print_error(f"{EVIL}\nrucola: forged")
    assert capsys.readouterr().err == "rucola: " + SEEN.removesuffix("\\r") + " rucola: forged\n"
    lines.print_text(f"a\tb\n{EVIL}")
    assert capsys.readouterr().out == f"a\tb\n{SEEN}\n"


def test_json_keeps_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    import orjson

    value = {"name": EVIL, "wide": "\U000e0001é"}
    lines.print_json_line(orjson.dumps(value))
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert not controls(out)
    assert "é" in out


def test_shown_is_unambiguous() -> None:
    assert shown("\x9b") == "\\x9b"
    assert shown("\u202e") == "\\u202e"
    assert shown("\udc9b") == "\\udc9b"
    assert shown("[bold]é") == "[bold]é"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    one = opened(path)
    text = f"KEYS\x01{EVIL}\x02{EVIL}\x01{EVIL}\x02".encode()
    one.put_message(StoreMessage(EVIL.encode(), 0, EVIL.encode(), text, 1, HOST))
    one.dispatch()
    one.shutdown()
    (next((path / "index").iterdir())).rename(path / "index" / ("20260101000000001" + EVIL))
    return path


def run_on_terminal(*arguments: str) -> str:
    """Returns what the command writes to a terminal, without styles."""
    child, ours = pty.fork()
    if not child:
        _be_the_command(arguments)
    content = _all_of(ours)
    os.waitpid(child, 0)
    return content.replace("\r\n", "\n")


def run(*arguments: str) -> str:
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(theirs, 1)
        os.dup2(theirs, 2)
        _be_the_command(arguments)
    os.close(theirs)
    content = _all_of(ours)
    os.waitpid(child, 0)
    return content


def _be_the_command(arguments: tuple[str, ...]) -> NoReturn:
    """Continues a forked process as the command; a new interpreter would import everything again."""
    code: object = 70
    try:
        os.environ.update(NO_COLOR="1", TERM="dumb")
        sys.argv = ["rucola", *arguments]
        warnings.simplefilter("ignore")
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", errors="backslashreplace")  # noqa: SIM115
        main.run()
    except SystemExit as end:
        code = end.code
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 71)


def _all_of(descriptor: int) -> str:
    content = b""
    with suppress(OSError):  # the end of the output of a terminal
        while part := os.read(descriptor, 65536):
            content += part
    os.close(descriptor)
    return content.decode("utf-8", "surrogateescape")


@pytest.mark.few
@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("command", ["ls", "info", "cat", "verify", "grep", "find", "stats"])
def test_commands_on_a_store_with_such_names(store: Path, command: str, form: tuple[str, ...]) -> None:
    more = {"cat": ("--topic", EVIL), "grep": ("owned",), "find": ("--key", EVIL)}.get(command, ())
    printed = (run_on_terminal if form else run)("store", command, str(store), *more, *form)
    assert printed and not controls(printed)


def test_error_lines_name_such_files(store: Path, tmp_path: Path) -> None:
    (store / "commitlog" / EVIL).write_bytes(b"stray")
    conf = tmp_path / f"{EVIL}.conf"
    conf.write_text(f"mappedFileSizeCommitLog=65536\n{EVIL}=1\n")
    free = ("--namesrv-port", "0", "--broker-port", "0", "--http-port", "0")
    for arguments in (
        ("up", "--store", str(store), *free),
        ("up", "--store", str(store), "-c", str(conf), *free),
        ("broker", "-c", str(tmp_path / EVIL)),
        ("store", "ls", str(tmp_path / EVIL)),
        ("store", EVIL),
        ("store", "cat", str(store), f"--{EVIL}"),
        ("mqadmin", EVIL),
        ("mqadmin", "topicStatus", "-t", EVIL, "-n", EVIL),
        (EVIL,),
        ("sql", f"select {EVIL}", "--store", str(store)),
        ("spark", EVIL),
        ("replay", str(tmp_path / EVIL), EVIL),
    ):
        printed = run(*arguments)
        assert printed and not controls(printed), arguments
