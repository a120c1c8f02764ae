"""Tests of the comparison of what two tools say of two brokers."""

from __future__ import annotations

from tests.conformance.lite.tools import CLIENT_INFO, COMMANDS, OFFICIAL, OURS, Said, plain, table


def said(**changes: list[str]) -> Said:
    """What both tools say of a broker; ``changes`` has lines by the tool's first word."""
    lines = {(tool, " ".join(command)): ["the same"] for command in COMMANDS for tool in (OFFICIAL, OURS)}
    for tool in (OFFICIAL, OURS):
        lines[tool, CLIENT_INFO] = changes.get(tool.split()[0], ["the same"])
    return Said(lines)


def test_what_no_two_brokers_have_in_common_is_masked() -> None:
    assert plain(["127.0.0.1:1  defaultRocksDB 1796091188288", "", " rucola"]) == ["ADDRESS STORE TIME", "STORE"]
    assert plain(["answered code 26 GROUP: [a] not exist."]) == plain(["answered code 26 GROUP: a does not exist"])


def test_equal_explained_and_different_lines_are_told_apart() -> None:
    theirs = said(mqadmin=["broker-a 2 TIME N/A"], rucola=["exit code 0"])
    row = f"| `{CLIENT_INFO}` "
    assert f"{row}| equal | equal |  |" in list(table(said(), said()))
    found = list(table(theirs, said(mqadmin=["broker-a 2 TIME TIME"], rucola=["exit code 1"])))
    assert f"{row}| explained | DIFFERENT | the time of the last delivery is known |" in found
    assert found[-1] == f"\n{CLIENT_INFO}:\n- exit code 0\n+ exit code 1"
    assert len(found) == 2 + len(COMMANDS) + 1
