"""Bodies with many topics or groups: requests 18 and 225, responses to 201 and 353 (``protocol.md`` 2.7)."""

from __future__ import annotations

from dataclasses import field

from rucola.common.data_version import DataVersion
from rucola.common.late_dataclass import late_dataclass
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.body import Body


@late_dataclass
class CreateTopicListRequestBody(Body):
    """Body of request 18 (UPDATE_AND_CREATE_TOPIC_LIST)."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


@late_dataclass
class SubscriptionGroupList(Body):
    """Body of request 225 (UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


@late_dataclass
class GroupForbidden(Body):
    """Response to 353 (UPDATE_AND_GET_GROUP_FORBIDDEN)."""

    group: str = ""
    topic: str = ""
    readable: bool = True


@late_dataclass
class SubscriptionGroupWrapper(Body):
    """Response to 201 (GET_ALL_SUBSCRIPTIONGROUP_CONFIG): groups by name, and for each group and topic the permissions
    that the group lacks (``PermName`` bits).
    """

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
