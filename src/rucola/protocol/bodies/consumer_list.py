"""Response to 38 (GET_CONSUMER_LIST_BY_GROUP)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.protocol.bodies.body import Body


@dataclass(slots=True)
class GetConsumerListByGroupResponseBody(Body):
    """Client ids of the group's connected consumers; every consumer gets them in the same order."""

    consumer_id_list: list[str] = field(default_factory=list)
