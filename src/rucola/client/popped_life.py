"""The life of a popped message in a simple consumer, as a table of states and events.

A message is *fetched* when a pop has brought it here, and *given* when the application has it. It ends as *done*, after
its acknowledgement, or as *returned*: the group gets it again. The broker hides a fetched or given message for a time;
this time is the message's lease. A lease may be renewed only while the message is given, because nothing is lost if a
message that no body has comes again soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """Where a popped message is."""

    FETCHED = "fetched"
    GIVEN = "given"
    DONE = "done"
    RETURNED = "returned"


class Event(Enum):
    """What happens to a popped message.

    GIVE: ``receive`` or a loop passes the message to the application.
    RENEW: the broker hides the message for a further time.
    DONE: the broker has stored the acknowledgement.
    GIVE_BACK: the consumer gives the message back to the group.
    EXPIRE: the lease has ended, so another consumer may have the message.
    """

    GIVE = "give"
    RENEW = "renew"
    DONE = "done"
    GIVE_BACK = "give back"
    EXPIRE = "expire"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.FETCHED, Event.GIVE): State.GIVEN,
    (State.FETCHED, Event.RENEW): State.FETCHED,
    (State.FETCHED, Event.GIVE_BACK): State.RETURNED,
    (State.FETCHED, Event.EXPIRE): State.RETURNED,
    (State.GIVEN, Event.RENEW): State.GIVEN,
    (State.GIVEN, Event.DONE): State.DONE,
    (State.GIVEN, Event.EXPIRE): State.RETURNED,
}


def after(state: State, event: Event) -> State:
    """The state that follows ``state`` after ``event``.

    Raises:
        RuntimeError: the event cannot happen in this state.
    """
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise RuntimeError(f"a message that is {state.value} cannot meet the event {event.value!r}")
    return following
