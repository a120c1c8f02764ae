"""Tests of playing several clients at the same time, and of what is said of their outcomes."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.conformance.grpc import clients, play
from tests.conformance.grpc.clients import Client
from tests.conformance.grpc.judge import BROKEN, CANNOT, DIFFERS, EQUAL, MEANT, NEW, verdict
from tests.conformance.grpc.outcomes import Outcomes
from tests.conformance.grpc.play import Play
from tests.conformance.grpc.scenarios import Admin
from tests.conformance.grpc.targets import Target

PROGRAM = """
import json, sys
prefix, names = sys.argv[2], sys.argv[3:]
with open(sys.argv[1], "a") as notes:
    notes.write(prefix.split("_")[1] + " " + " ".join(names) + "\\n")
for name in names:
    if name == "push" and prefix.split("_")[1] == "0":
        sys.exit("broke")
    print(json.dumps({"name": name, "saw": {"topic": "T_" + prefix + name}}), flush=True)
"""


class Scripted(Client):
    """A client whose program notes what it is asked for, and ends too early at its first ``push``."""

    def command(self) -> list[str]:
        return [sys.executable, "-S", "-c", PROGRAM]


class Silent(Admin):
    """Creates nothing."""

    def prepare(self, prefix: str, names: Sequence[str]) -> None:
        assert all(names), prefix


class Somewhere(Target):
    """A server that is not there."""

    def admin(self) -> Admin:
        return Silent("")

    def serves(self, scenario: str) -> bool:
        return scenario != "tls"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(play, "CLIENTS", (Scripted("python", "1"),))
    monkeypatch.setattr(clients, "PEERS", tmp_path)
    monkeypatch.setattr("tests.conformance.program.PEERS", tmp_path)
    return tmp_path / "notes"


def played(notes: Path, found: Outcomes) -> list[str]:
    """Plays five scenarios; returns turn and names of each program, in the order in which they started."""
    console = Console(file=io.StringIO())
    Play(Somewhere("", str(notes), ""), found, console, lambda: None, 2).play(
        [Scripted("python", "1")], ["send_fifo", "recall", "push", "restart", "tls", "raw_tls"]
    )
    return notes.read_text().splitlines() if notes.exists() else []


def test_what_broke_off_and_what_kills_the_server_is_played_alone_afterwards(notes: Path) -> None:
    found: Outcomes = {}
    first = played(notes, found)
    assert (sorted(first[:2]), first[2:]) == (["0 recall", "0 send_fifo push"], ["1 push", "1 restart"])
    assert found == {"python 1": {name: {"topic": f"T_{name}"} for name in ("send_fifo", "recall", "push", "restart")}}


def test_a_resumed_run_plays_only_what_is_missing_or_broke_off(notes: Path) -> None:
    found: Outcomes = {"python 1": {"send_fifo": {"kept": 1}, "push": {"broken": "x"}, "recall": {"kept": 2}}}
    assert played(notes, found) == ["0 push", "1 push", "1 restart"]
    assert found["python 1"]["send_fifo"] == {"kept": 1}
    notes.unlink()
    assert played(notes, found) == []


@pytest.mark.parametrize(
    ("scenario", "saw", "wanted", "official", "word", "good"),
    [
        ("push", {"a": 1}, {"a": 1}, False, EQUAL, True),
        ("push", {"a": 1}, {"a": 2}, False, DIFFERS, False),
        ("push", {"a": 1}, None, False, NEW, False),
        ("push", {"a": 1}, None, True, NEW, True),
        ("push", {"broken": "x"}, {"a": 1}, False, BROKEN, False),
        ("push", {"broken": "x"}, None, True, BROKEN, False),
        ("push", {"supported": False}, {"supported": False}, False, CANNOT, True),
        ("restart", {"lost": False}, {"lost": True}, False, MEANT, True),
        ("restart", {"lost": False}, {"lost": True}, True, DIFFERS, False),
        ("restart", {"lost": False, "sent": 1}, {"lost": True, "sent": 2}, False, DIFFERS, False),
    ],
)
def test_a_verdict(
    scenario: str, saw: dict[str, Any], wanted: dict[str, Any] | None, official: bool, word: str, good: bool
) -> None:
    found = verdict(scenario, saw, wanted, official)
    assert (found.word, found.good) == (word, good)
    assert bool(found.lines) == (word not in {EQUAL, CANNOT})


def test_a_target_serves_what_it_can() -> None:
    plain, theirs = Target("rucola", "", ""), Target("rucola-proxy", "", "", version="5.3.3")
    assert plain.serves("push") and plain.serves("priority") and not plain.serves("restart") and not plain.serves("tls")
    assert theirs.serves("push") and not theirs.serves("priority")
    assert Target("official", "", "", version="5.10.0").serves("priority")
    assert not plain.serves("accounts") and Target("rucola", "", "", guarded=True).serves("accounts")
