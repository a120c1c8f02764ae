"""What a server command does before its servers run, because clients would wait for it afterwards."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import pytest

from rucola.cli import start
from rucola.cli.main import main

READY_TEXT = "rucola.cli.ready_text"


@pytest.mark.parametrize("command", ["up", "broker", "namesrv"])
@pytest.mark.parametrize("json", [False, True])
def test_modules_of_the_text_for_people_are_imported_before_the_servers_start(
    monkeypatch: pytest.MonkeyPatch, command: str, json: bool
) -> None:
    """Before the fix, the import came when the broker served already: a turn of 50 to 300 ms at every start."""
    imported: list[bool] = []

    def run_servers(_start: Any, _log: Any, **_options: Any) -> None:
        imported.append(READY_TEXT in sys.modules)

    monkeypatch.setattr(start, "run_servers", run_servers)
    monkeypatch.delitem(sys.modules, READY_TEXT, raising=False)
    ephemeral = ["--ephemeral"] if command == "up" else []
    assert main([command, *ephemeral, *(["--json"] if json else [])]) == 0
    assert imported == [not json]


def test_the_text_names_every_address(capsys: pytest.CaptureFixture[str]) -> None:
    start.say_ready(False, "rucola up", {"broker": "127.0.0.1:1", "store": "/s [dim]"}, {})
    shown = capsys.readouterr().out
    assert "rucola up" in shown and "127.0.0.1:1" in shown and "/s [dim]" in shown and shown.endswith("ready\n")
    start.prepare(Namespace(json=True))
