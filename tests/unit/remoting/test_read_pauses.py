"""The table of reasons not to read: every event in every state."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from rucola.remoting.fairness.read_pauses import (
    NO_ROOM,
    OWED,
    OWES_LITTLE,
    OWES_MUCH,
    PAUSE,
    PEER_CAUGHT_UP,
    PEER_STOPPED,
    POSTPONED,
    RESUME,
    ROOM_GIVEN,
    ROOM_REFUSED,
    ROWS_POSTPONED,
    ROWS_SERVED,
    SERVE,
    SLOW_PEER,
    TRANSITIONS,
)

ENDS = {
    SLOW_PEER: (PEER_STOPPED, PEER_CAUGHT_UP),
    OWED: (OWES_MUCH, OWES_LITTLE),
    POSTPONED: (ROWS_POSTPONED, ROWS_SERVED),
    NO_ROOM: (ROOM_REFUSED, ROOM_GIVEN),
}
"""The event that adds each reason, and the event that removes it."""
STATES = [frozenset(some) for size in range(5) for some in combinations(ENDS, size)]


def follows(before: frozenset[int], after: frozenset[int], event: int) -> int:
    """What the connection must do after a change, in the words of the specification."""
    pauses, resumes = not before and after, before and not after
    servable = [POSTPONED in one and not one & {SLOW_PEER, OWED} for one in (before, after)]
    serves = servable[1] and (event == ROWS_POSTPONED or not servable[0])
    return (PAUSE if pauses else 0) | (RESUME if resumes else 0) | (SERVE if serves else 0)


@pytest.mark.parametrize("before", STATES, ids=lambda state: f"{sum(state):04b}")
@pytest.mark.parametrize("reason", ENDS)
def test_every_event_in_every_state(reason: int, before: frozenset[int]) -> None:
    adds, removes = ENDS[reason]
    with_it, without = before | {reason}, before - {reason}
    assert TRANSITIONS[adds][sum(before)] == (sum(with_it), follows(before, with_it, adds))
    assert TRANSITIONS[removes][sum(before)] == (sum(without), follows(before, without, removes))


def test_the_table_is_complete_and_its_bits_are_distinct() -> None:
    assert [len(line) for line in TRANSITIONS] == [16] * 8
    assert sorted(event for ends in ENDS.values() for event in ends) == list(range(8))
    assert sum(ENDS) == 15 and PAUSE | RESUME | SERVE == 7


@pytest.mark.parametrize("added", list(permutations(ENDS, 2)))
@pytest.mark.parametrize("turned", [False, True])
def test_reading_resumes_after_the_last_of_two_reasons(added: tuple[int, int], turned: bool) -> None:
    reasons, seen = 0, []
    events = [ENDS[reason][0] for reason in added]
    events += [ENDS[reason][1] for reason in (added[::-1] if turned else added)]
    for event in events:
        reasons, action = TRANSITIONS[event][reasons]
        seen.append(action & (PAUSE | RESUME))
    assert (reasons, seen) == (0, [PAUSE, 0, 0, RESUME])


@pytest.mark.parametrize(
    ("event", "before", "after", "action"),
    [
        (ROWS_POSTPONED, 0, POSTPONED, PAUSE | SERVE),
        (ROWS_POSTPONED, POSTPONED, POSTPONED, SERVE),
        (ROWS_POSTPONED, NO_ROOM, NO_ROOM | POSTPONED, SERVE),
        (ROWS_POSTPONED, SLOW_PEER, SLOW_PEER | POSTPONED, 0),
        (ROWS_POSTPONED, OWED, OWED | POSTPONED, 0),
        (PEER_CAUGHT_UP, SLOW_PEER | POSTPONED, POSTPONED, SERVE),
        (PEER_CAUGHT_UP, SLOW_PEER | OWED | POSTPONED, OWED | POSTPONED, 0),
        (OWES_LITTLE, OWED | POSTPONED, POSTPONED, SERVE),
        (OWES_LITTLE, OWED | NO_ROOM | POSTPONED, NO_ROOM | POSTPONED, SERVE),
        (ROOM_GIVEN, NO_ROOM | POSTPONED, POSTPONED, 0),
        (ROOM_GIVEN, NO_ROOM, 0, RESUME),
        (ROOM_GIVEN, 0, 0, 0),
        (ROWS_SERVED, POSTPONED | NO_ROOM, NO_ROOM, 0),
        (PEER_STOPPED, POSTPONED, POSTPONED | SLOW_PEER, 0),
    ],
)
def test_lines_of_the_table(event: int, before: int, after: int, action: int) -> None:
    assert TRANSITIONS[event][before] == (after, action)
