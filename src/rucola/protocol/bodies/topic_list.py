"""Bodies with lists of names: responses to 206, 224, 300, 304, 305, 311 to 313 and 343."""

from __future__ import annotations

from dataclasses import field

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.bodies.body import Body


@late_dataclass
class TopicList(Body):
    """Topic names. Only the responses to 304 and 343 have a ``broker_addr``."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@late_dataclass
class GroupList(Body):
    """Group names."""

    group_list: list[str] = field(default_factory=list)
