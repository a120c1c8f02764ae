"""Tests of the comparison of lives of lite topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conformance.lite import peers
from tests.conformance.lite.compare import Difference, differences, masked, seen
from tests.conformance.lite.explained import EXPLAINED, judged
from tests.conformance.lite.record import GOLDEN, KINDS, MORE, SCENARIOS
from tests.conformance.lite.recording import write


def note(who: str, said: str, **more: Any) -> dict[str, Any]:
    return {"wire": "note", "who": who, "said": said, **more}


def test_what_no_two_lives_have_in_common_is_masked() -> None:
    assert masked("send P: 01AB34CD56EF7890AB34CD56EF7890AB34") == "send P: ID"
    assert masked("topics of vm@24666@12@uxhera9bx: a") == "topics of CLIENT: a"
    assert masked("127.0.0.3:43907   2  2026-12-01 02:18:17,114") == "ADDRESS 2 TIME"
    assert masked("Min Unconsumed Timestamp: 1796091188288 (316 s ago)") == "Min Unconsumed Timestamp: TIME"
    assert masked("error ClientException\tsomething [code=40020] else") == "error ClientException [code=40020"
    assert masked("[owner, all, small]") == "[all,owner,small]"


def test_deliveries_are_compared_without_their_order(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.xz"
    records = [note("java", "A has seen", seen=["a:2:1", "a:1:1"]), note("life", "waits 3 s"), {"wire": "grpc"}]
    write(path, [*records, note("mqadmin", "x printed", printed="#Head  A\n\n a  1")], {})
    assert seen(path) == ["java: A has seen a:1:1 a:2:1", "mqadmin: x printed", "  #Head A", "  a 1"]


def test_a_send_that_the_relay_could_not_pass_on_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.xz"
    refused = note(
        "java", "send P: error StatusRuntimeException\tUNAVAILABLE: failed to connect to all addresses; last"
    )
    write(path, [note("java", "send P a"), refused, note("java", "send P a"), note("java", "send P: ok")], {})
    assert seen(path) == ["java: send P a", "java: send P: ok"]


def test_as_many_lines_in_place_of_others_are_differences_of_their_own() -> None:
    assert differences(["a", "b", "c"], ["a", "B", "C"]) == [Difference("b", "B"), Difference("c", "C")]
    assert differences(["a", "b"], ["a", "x", "y", "z"]) == [Difference("b", "x\ny\nz")]
    assert differences(["a", "b"], ["a"]) == [Difference("b", "")]
    assert not differences(["a"], ["a"])


def test_a_difference_is_explained_in_its_scenario_only() -> None:
    better = Difference("by hand: the same again: 42902", "by hand: the same again: 20000")
    assert judged("quota", 9, [better]).word == "explained"
    assert judged("expire", 9, [better]).word == "DIFFERENT"
    assert judged("quota", 9, [better, Difference("a", "b")]).unexplained == (Difference("a", "b"),)
    assert judged("quota", 9, []).word == "equal"


def test_what_is_lost_is_never_explained() -> None:
    lost = Difference("java: A has seen a:1:1", "java: A has seen")
    assert all(judged(name, 1, [lost]).unexplained for name in SCENARIOS | MORE)


def test_each_explanation_belongs_to_a_scenario() -> None:
    assert {entry.scenario for entry in EXPLAINED} <= set(SCENARIOS | MORE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_life_is_equal_to_itself(kind: str) -> None:
    names = [name for name in SCENARIOS | MORE if (GOLDEN / kind / f"{name}{peers.SUFFIX}").exists()]
    verdicts = [peers.verdict(name, GOLDEN / kind) for name in names]
    assert [one.word for one in verdicts if one is not None] == ["equal"] * len(names)


def test_another_life_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [note("java", "A has seen", seen=["a:1:1"])]
    write(tmp_path / f"reconnect{peers.SUFFIX}", lines, {})
    assert peers.main(["--found", str(tmp_path)]) == 1
    assert "| reconnect | 1 | DIFFERENT |  |" in capsys.readouterr().out
    assert peers.main(["--found", str(tmp_path / "empty")]) == 1
