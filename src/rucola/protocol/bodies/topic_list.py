"""Bodies with lists of names: responses to 206, 224, 300, 304, 305, 311 to 313 and 343."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.protocol.bodies.body import Body


@dataclass(slots=True)
class TopicList(Body):
    """Topic names. Only the responses to 304 and 343 have a ``broker_addr``."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@dataclass(slots=True)
class GroupList(Body):
    """Group names."""

    group_list: list[str] = field(default_factory=list)
