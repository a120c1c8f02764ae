"""Tests of the comparison of official gRPC clients' outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conformance.grpc.accepted import ACCEPTED, reason
from tests.conformance.grpc.outcomes import ABSENT, Difference, Outcomes, differences, masked, read, write
from tests.conformance.grpc.scenarios import SCENARIOS

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "grpc" / "official-5.3.3.json"


def test_texts_and_names_of_a_run_are_masked() -> None:
    saw: Any = {"code": 40402, "text": "no T_c6b0d1034_1_push", "topics": [["T_c6b0d1034_1_push", "*"]]}
    assert masked(saw) == {"code": 40402, "text": "masked", "topics": [["T_push", "*"]]}


def test_a_difference_names_the_place() -> None:
    expected = {"a": {"same": 1, "code": 20000, "list": [1, 2]}, "gone": True}
    found = {"a": {"same": 1, "code": 40402, "list": [2, 1]}, "new": None}
    assert list(differences(expected, found)) == [
        Difference("a.code", 20000, 40402),
        Difference("a.list", [1, 2], [2, 1]),
        Difference("gone", True, ABSENT),
        Difference("new", ABSENT, None),
    ]


def test_only_the_value_that_is_meant_is_accepted() -> None:
    assert reason("raw_handles", Difference("change_text", 50001, 40013)) is not None
    assert reason("raw_handles", Difference("change_text", 50001, 20000)) is None
    assert reason("raw_receive", Difference("change_text", 50001, 40013)) is None


def test_outcomes_are_read_as_written(tmp_path: Path) -> None:
    outcomes: Outcomes = {"java 5.2.0": {"push": {"messages": [["größe", 1]]}, "filter_tag": {"more": []}}}
    write(tmp_path / "new" / "outcomes.json", outcomes)
    assert read(tmp_path / "new" / "outcomes.json") == outcomes
    assert read(tmp_path / "missing.json") == {}


def test_accepted_differences_differ_from_the_official_server() -> None:
    outcomes = list(read(GOLDEN).values())
    for one in ACCEPTED:
        official = [at(saws[one.scenario], one.path) for saws in outcomes if one.scenario in saws]
        assert any(saw not in (ABSENT, one.found) for saw in official), one


def at(saw: Any, path: str) -> Any:
    """What an outcome has at a path."""
    for name in path.split("."):
        saw = saw.get(name, ABSENT)
    return saw


def test_every_kept_outcome_belongs_to_a_scenario_and_is_whole() -> None:
    for client, saws in read(GOLDEN).items():
        for name, saw in saws.items():
            assert name in SCENARIOS, (client, name)
            assert "broken" not in saw, (client, name)
