"""Topics and groups many at once: bodies of 18 and 225, answers to 201 and 353 (``protocol.md`` 2.7)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.common.data_version import DataVersion
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.body import Body


@dataclass(slots=True)
class CreateTopicListRequestBody(Body):
    """Body of 18."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


@dataclass(slots=True)
class SubscriptionGroupList(Body):
    """Body of 225."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


@dataclass(slots=True)
class GroupForbidden(Body):
    """Answer to 353."""

    group: str = ""
    topic: str = ""
    readable: bool = True


@dataclass(slots=True)
class SubscriptionGroupWrapper(Body):
    """Answer to 201: groups by name; what each is kept from reading, a bit mask by topic."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
