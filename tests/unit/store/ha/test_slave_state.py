"""The table of a slave's states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rucola.store.ha.slave_state import FINAL, TRANSITIONS, SlaveEvent, SlaveState, after


def test_every_state_is_reached_and_every_event_used() -> None:
    begins = {SlaveState.HANDSHAKING, SlaveState.ASKING, SlaveState.COMPARING, SlaveState.SEARCHING}
    assert begins | set(TRANSITIONS.values()) == set(SlaveState)
    assert {event for _, event in TRANSITIONS} == set(SlaveEvent)


def test_final_states_are_never_left() -> None:
    assert {state for state, _ in TRANSITIONS} == set(SlaveState) - FINAL


def test_bytes_are_appended_only_after_the_log_was_proved() -> None:
    ways = {(state, event) for (state, event), following in TRANSITIONS.items() if following is SlaveState.COPYING}
    assert ways == {(SlaveState.PROVING, SlaveEvent.PROVED), (SlaveState.COMPARING, SlaveEvent.EQUAL)}


def test_each_connection_can_be_lost() -> None:
    for state in set(SlaveState) - FINAL:
        assert after(state, SlaveEvent.LOST) is SlaveState.ENDED
        assert after(state, SlaveEvent.DISORDER) is SlaveState.ENDED


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (SlaveState.REFUSED, SlaveEvent.LOST),
        (SlaveState.ASKING, SlaveEvent.EQUAL),
        (SlaveState.COPYING, SlaveEvent.PROVED),
    ],
)
def test_other_pairs_are_defects(state: SlaveState, event: SlaveEvent) -> None:
    with pytest.raises(ValueError, match="cannot happen"):
        after(state, event)


def test_the_picture_on_the_page_of_architecture_shows_the_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "ARCHITECTURE.md").read_text()
    picture = page.split("stateDiagram-v2")[1].split("```")[0]
    drawn = {(one, other) for one, other in re.findall(r"(\w+) --> (\w+)", picture)}
    ways = {(state.value, following.value) for (state, _), following in TRANSITIONS.items()}
    assert drawn <= ways
    assert {way for way in ways - drawn if way[1] != "ended"} == {("asking", "refused")}
