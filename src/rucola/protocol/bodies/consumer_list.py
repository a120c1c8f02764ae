"""Answer to 38."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.protocol.bodies.body import Body


@dataclass(slots=True)
class GetConsumerListByGroupResponseBody(Body):
    """Client ids of the group's live consumers; the order is the same for all of them who ask."""

    consumer_id_list: list[str] = field(default_factory=list)
