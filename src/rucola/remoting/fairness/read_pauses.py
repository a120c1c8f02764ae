"""Why a server reads nothing from a connection, and what changes that.

The reasons are a set, held as the bits of an integer, because it is tested for each read. An empty set means that the
server reads. ``TRANSITIONS`` is the only place that says how a set changes:

| event | adds | removes |
|---|---|---|
| ``PEER_STOPPED``: the peer accepts no more responses | ``SLOW_PEER`` | |
| ``PEER_CAUGHT_UP`` | | ``SLOW_PEER`` |
| ``OWES_MUCH``: the waiting requests of the connection take too much memory | ``OWED`` | |
| ``OWES_LITTLE``: most of them are answered | | ``OWED`` |
| ``ROWS_POSTPONED``: requests wait for a later turn | ``POSTPONED`` | |
| ``ROWS_SERVED``: none waits any more | | ``POSTPONED`` |
| ``ROOM_REFUSED``: there is no memory for the rest of a large frame | ``NO_ROOM`` | |
| ``ROOM_GIVEN``: there is, or the frame is complete | | ``NO_ROOM`` |

What follows from a change:

- The set was empty: ``PAUSE``. It is empty again: ``RESUME``.
- Postponed requests may be served in a later turn: ``SERVE``. They may not as long as the peer is slow or too much is
  owed, because each of them would add a response. A large frame that waits for room does not hold them up.
"""

from __future__ import annotations

SLOW_PEER, OWED, POSTPONED, NO_ROOM = 1, 2, 4, 8
"""Reasons not to read."""
ANSWERS_WAIT = SLOW_PEER | OWED
"""Reasons for which postponed requests are not served either."""
(
    PEER_STOPPED,
    PEER_CAUGHT_UP,
    OWES_MUCH,
    OWES_LITTLE,
    ROWS_POSTPONED,
    ROWS_SERVED,
    ROOM_REFUSED,
    ROOM_GIVEN,
) = range(8)
PAUSE, RESUME, SERVE = 1, 2, 4
"""What the connection must do, as bits: pause reading, resume it, have its postponed requests served later."""


def _adds(event: int, reason: int) -> tuple[tuple[int, int], ...]:
    return tuple((reasons | reason, _follows(event, reasons, reasons | reason)) for reasons in range(16))


def _removes(event: int, reason: int) -> tuple[tuple[int, int], ...]:
    return tuple((reasons & ~reason, _follows(event, reasons, reasons & ~reason)) for reasons in range(16))


def _follows(event: int, before: int, after: int) -> int:
    action = 0
    if not before and after:
        action = PAUSE
    elif before and not after:
        action = RESUME
    # Requests that may be served already have their place in a later turn, unless they were postponed just now.
    if _may_serve(after) and (event == ROWS_POSTPONED or not _may_serve(before)):
        action |= SERVE
    return action


def _may_serve(reasons: int) -> bool:
    return bool(reasons & POSTPONED) and not reasons & ANSWERS_WAIT


TRANSITIONS = (
    _adds(PEER_STOPPED, SLOW_PEER),
    _removes(PEER_CAUGHT_UP, SLOW_PEER),
    _adds(OWES_MUCH, OWED),
    _removes(OWES_LITTLE, OWED),
    _adds(ROWS_POSTPONED, POSTPONED),
    _removes(ROWS_SERVED, POSTPONED),
    _adds(ROOM_REFUSED, NO_ROOM),
    _removes(ROOM_GIVEN, NO_ROOM),
)
"""``TRANSITIONS[event][reasons]``: the reasons after ``event``, and what follows."""
