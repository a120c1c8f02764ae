"""Response to 38 (GET_CONSUMER_LIST_BY_GROUP)."""

from __future__ import annotations

from dataclasses import field

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.bodies.body import Body


@late_dataclass
class GetConsumerListByGroupResponseBody(Body):
    """Client ids of the group's connected consumers; every consumer gets them in the same order."""

    consumer_id_list: list[str] = field(default_factory=list)
