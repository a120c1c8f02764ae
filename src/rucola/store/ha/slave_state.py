"""The states of one connection of a slave to its master, and what leads from one to the next.

A connection begins in ``ASKING`` if the slave has no record yet, otherwise in ``COMPARING``. Only in ``PROVING`` and
``COPYING`` do bytes of the master reach the slave's log. Once the logs have parted, and the slave may rejoin,
connections begin in ``SEARCHING`` until the last common record is known. Behind a controller, each connection begins in
``HANDSHAKING``. The page on architecture has the table as a picture.
"""

from __future__ import annotations

from enum import Enum


class SlaveState(Enum):
    """What a connection is doing."""

    HANDSHAKING = "handshaking"
    """The master says which epochs its log has."""
    ASKING = "asking"
    """The slave has no record, and waits for the first bytes of the log."""
    PROVING = "proving"
    """The first record must prove that these bytes are the beginning of a segment."""
    COMPARING = "comparing"
    """The master sends again what the slave has; both must be equal."""
    SEARCHING = "searching"
    """One record is compared, to find the last one that both have."""
    COPYING = "copying"
    """Bytes are appended to the slave's log."""
    ENDED = "ended"
    """The connection is of no more use; the slave connects again."""
    CUTTING = "cutting"
    """The last common record is known; the slave cuts its log behind it, and connects again."""
    REFUSED = "refused"
    """The slave must not go on with this log; no other connection helps."""


class SlaveEvent(Enum):
    """What happened on a connection."""

    NEW = "slave has no record"
    AGREED = "epochs agree"
    SURPLUS = "slave has more than is common"
    BYTES = "first bytes"
    PROVED = "first record is sound"
    EQUAL = "all bytes are equal"
    DIFFERENT = "bytes differ"
    NOTHING_THERE = "master has nothing there"
    PARTED = "logs part, and the slave may rejoin"
    FOUND = "last common record is found"
    NOTHING_COMMON = "no record is common"
    MISPLACED = "start is no segment's start"
    DAMAGED = "a record is damaged"
    STUCK = "damage cannot be passed"
    DISORDER = "transfer is not the next one"
    LOST = "connection is lost"


TRANSITIONS: dict[tuple[SlaveState, SlaveEvent], SlaveState] = {
    (SlaveState.HANDSHAKING, SlaveEvent.NEW): SlaveState.ASKING,
    (SlaveState.HANDSHAKING, SlaveEvent.AGREED): SlaveState.COMPARING,
    (SlaveState.HANDSHAKING, SlaveEvent.SURPLUS): SlaveState.CUTTING,
    (SlaveState.HANDSHAKING, SlaveEvent.NOTHING_COMMON): SlaveState.REFUSED,
    (SlaveState.HANDSHAKING, SlaveEvent.DISORDER): SlaveState.ENDED,
    (SlaveState.HANDSHAKING, SlaveEvent.LOST): SlaveState.ENDED,
    (SlaveState.ASKING, SlaveEvent.BYTES): SlaveState.PROVING,
    (SlaveState.ASKING, SlaveEvent.MISPLACED): SlaveState.REFUSED,
    (SlaveState.ASKING, SlaveEvent.NOTHING_THERE): SlaveState.REFUSED,
    (SlaveState.ASKING, SlaveEvent.DISORDER): SlaveState.ENDED,
    (SlaveState.ASKING, SlaveEvent.LOST): SlaveState.ENDED,
    (SlaveState.PROVING, SlaveEvent.PROVED): SlaveState.COPYING,
    (SlaveState.PROVING, SlaveEvent.DAMAGED): SlaveState.ENDED,
    (SlaveState.PROVING, SlaveEvent.STUCK): SlaveState.REFUSED,
    (SlaveState.PROVING, SlaveEvent.DISORDER): SlaveState.ENDED,
    (SlaveState.PROVING, SlaveEvent.LOST): SlaveState.ENDED,
    (SlaveState.COMPARING, SlaveEvent.EQUAL): SlaveState.COPYING,
    (SlaveState.COMPARING, SlaveEvent.DIFFERENT): SlaveState.REFUSED,
    (SlaveState.COMPARING, SlaveEvent.NOTHING_THERE): SlaveState.REFUSED,
    (SlaveState.COMPARING, SlaveEvent.DISORDER): SlaveState.ENDED,
    (SlaveState.COMPARING, SlaveEvent.LOST): SlaveState.ENDED,
    (SlaveState.COMPARING, SlaveEvent.PARTED): SlaveState.ENDED,
    (SlaveState.SEARCHING, SlaveEvent.EQUAL): SlaveState.ENDED,
    (SlaveState.SEARCHING, SlaveEvent.DIFFERENT): SlaveState.ENDED,
    (SlaveState.SEARCHING, SlaveEvent.NOTHING_THERE): SlaveState.ENDED,
    (SlaveState.SEARCHING, SlaveEvent.FOUND): SlaveState.CUTTING,
    (SlaveState.SEARCHING, SlaveEvent.NOTHING_COMMON): SlaveState.REFUSED,
    (SlaveState.SEARCHING, SlaveEvent.DISORDER): SlaveState.ENDED,
    (SlaveState.SEARCHING, SlaveEvent.LOST): SlaveState.ENDED,
    (SlaveState.COPYING, SlaveEvent.DAMAGED): SlaveState.ENDED,
    (SlaveState.COPYING, SlaveEvent.STUCK): SlaveState.REFUSED,
    (SlaveState.COPYING, SlaveEvent.DISORDER): SlaveState.ENDED,
    (SlaveState.COPYING, SlaveEvent.LOST): SlaveState.ENDED,
}
"""For each state and event, the next state. All other pairs are defects."""
FINAL = frozenset({SlaveState.ENDED, SlaveState.CUTTING, SlaveState.REFUSED})


def after(state: SlaveState, event: SlaveEvent) -> SlaveState:
    """Returns the state that follows ``state`` when ``event`` happens.

    Raises:
        ValueError: this event cannot happen in this state.
    """
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise ValueError(f"{event.value!r} cannot happen while {state.value}")
    return following
