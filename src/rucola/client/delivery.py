"""The life of a delivery: what may happen to a message from the moment when the consumer has fetched it.

Every consumer has the same life for its messages, whoever asks for them: listeners, loops, polls, ``receive``.

- *fetched*: the message is in the consumer's memory; no code of the application has it.
- *given*: the application has it: a listener call, the body of a loop, or the caller of a poll or a ``receive``.
- *done*: consumed. Only now may a consumer offset pass the message.
- *returned*: the group gets it again: from its queue's next owner, from the retry topic, or by the next pop.

Three things follow from the state. The *offset* that may be committed is the lowest one that is fetched or given. The
*lease* of a popped message (its invisible time) is renewed while the message is given, never while it is only fetched.
The *room* that limits pulling is what fetched and given messages take.

Pulled messages have no object for their state: ``ProcessQueue`` keeps it in its containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class DeliveryState(Enum):
    """Where a message is in its life."""

    FETCHED = "fetched"
    GIVEN = "given"
    DONE = "done"
    RETURNED = "returned"


class DeliveryEvent(Enum):
    """What changes the state of a message.

    GIVE: the application gets it. FINISH: the application has handled it. GIVE_BACK: the application has not handled
    it, and this consumer gives it again before later messages. RETURN: this consumer will not give it any more.
    """

    GIVE = "give"
    FINISH = "finish"
    GIVE_BACK = "give back"
    RETURN = "return"


TRANSITIONS: Mapping[tuple[DeliveryState, DeliveryEvent], DeliveryState] = {
    (DeliveryState.FETCHED, DeliveryEvent.GIVE): DeliveryState.GIVEN,
    (DeliveryState.FETCHED, DeliveryEvent.RETURN): DeliveryState.RETURNED,
    (DeliveryState.GIVEN, DeliveryEvent.FINISH): DeliveryState.DONE,
    (DeliveryState.GIVEN, DeliveryEvent.GIVE_BACK): DeliveryState.FETCHED,
    (DeliveryState.GIVEN, DeliveryEvent.RETURN): DeliveryState.RETURNED,
}
"""Every change of state; anything else changes nothing. ``done`` and ``returned`` are final."""
