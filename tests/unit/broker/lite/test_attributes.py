"""Attributes of the parents of lite topics, and of the groups that read them."""

from __future__ import annotations

import pytest

from rucola.broker.lite.attributes import LiteGroup, expiration_minutes, is_parent, lite_group
from rucola.broker.subscription.group_attributes import change_group_attributes
from rucola.broker.topic.topic_attributes import change_topic_attributes
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError


def group(**attributes: str) -> LiteGroup | None:
    names = {name.replace("_", "."): value for name, value in attributes.items()}
    return lite_group(SubscriptionGroupConfig("g", attributes=names))


def test_a_group_is_a_lite_group_by_its_bind_topic() -> None:
    assert group() is None and group(lite_bind_topic=" ") is None and group(lite_sub_wildcard="x") is None
    assert group(lite_bind_topic="P") == LiteGroup("P", False, False, False, 2000, None, False)


def test_all_attributes_of_a_group() -> None:
    assert group(
        lite_bind_topic="P",
        lite_sub_model="Exclusive",
        lite_sub_reset_offset_exclusive="TRUE",
        lite_sub_reset_offset_unsubscribe="true",
        lite_sub_client_quota="-1",
        lite_sub_client_max_event_cnt="10",
        lite_sub_wildcard="false",
    ) == LiteGroup("P", True, True, True, -1, 10, True)
    assert group(lite_bind_topic="P", lite_sub_client_quota="-2", lite_sub_client_max_event_cnt="9") == LiteGroup("P")


@pytest.mark.parametrize(("text", "minutes"), [("", -1), ("-1", -1), ("0", -1), ("1", 1), ("43200", 43200), ("x", -1)])
def test_a_time_to_live(text: str, minutes: int) -> None:
    config = TopicConfig("P", attributes={"message.type": "LITE", "lite.topic.expiration": text})
    assert is_parent(config) and expiration_minutes(config) == minutes
    assert not is_parent(TopicConfig("T")) and expiration_minutes(TopicConfig("T")) == -1


def test_requests_set_them() -> None:
    topic = {"message.type": "LITE", "lite.topic.expiration": "60"}
    assert change_topic_attributes(None, "+message.type=LITE,+lite.topic.expiration=60") == topic
    assert change_topic_attributes(topic, "-lite.topic.expiration") == {"message.type": "LITE"}
    wanted = {"lite.bind.topic": "P", "lite.sub.model": "Shared", "lite.sub.wildcard": "any"}
    assert change_group_attributes(None, {f"+{key}": value for key, value in wanted.items()}) == wanted


@pytest.mark.parametrize("change", ["lite.topic.expiration=-2", "lite.topic.expiration=43201", "message.type=Lite"])
def test_a_topic_refuses(change: str) -> None:
    with pytest.raises(BrokerError, match="value is not in"):
        change_topic_attributes(None, f"+{change}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lite.sub.model", "shared"),
        ("lite.sub.reset.offset.exclusive", "yes"),
        ("lite.sub.reset.offset.unsubscribe", "1"),
        ("lite.sub.client.quota", "-2"),
        ("lite.sub.client.max.event.cnt", "9"),
    ],
)
def test_a_group_refuses(key: str, value: str) -> None:
    with pytest.raises(BrokerError, match="value is not in"):
        change_group_attributes(None, {f"+{key}": value})
