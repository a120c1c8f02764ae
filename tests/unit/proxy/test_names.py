"""Which names of topics and groups the door takes, and how namespaces are split off."""

from __future__ import annotations

import pytest

from rucola.common.key_builder import SYSTEM_TOPICS
from rucola.proxy import messages
from rucola.proxy.names import check_group, check_topic, resource_of
from rucola.proxy.refusal import RefusedError

EDGES = "%|azAZ09_-"
"""The first and the last character of each range that is allowed."""
OUTSIDE = ["/", ":", "@", "[", "`", "{", "^", ".", "$", "&", " ", "+", "\n", "\0", "é", "٣", "京"]


@pytest.mark.parametrize(
    "topic", ["t", "t" * 127, EDGES, "%RETRY%group", "%DLQ%group", "rmq_sy", "Rmq_sys_x", "TBW1020"]
)
def test_topics(topic):
    check_topic(topic)


@pytest.mark.parametrize(
    "topic",
    ["", " ", "t" * 128, "rmq_sys_", "rmq_sys_x", *sorted(SYSTEM_TOPICS), *[f"t{char}t" for char in OUTSIDE], "t\n"],
)
def test_topics_that_are_refused(topic):
    with pytest.raises(RefusedError) as refused:
        check_topic(topic)
    assert refused.value.code == messages.ILLEGAL_TOPIC == 40002


@pytest.mark.parametrize("group", ["g", "g" * 120, EDGES, "CID_RMQ_SY", "TBW102", "rmq_sys_x"])
def test_groups(group):
    check_group(group)


@pytest.mark.parametrize(
    "group", ["", "\t", "g" * 121, "CID_RMQ_SYS_", "CID_RMQ_SYS_x", *[f"{char}g" for char in OUTSIDE]]
)
def test_groups_that_are_refused(group):
    with pytest.raises(RefusedError) as refused:
        check_group(group)
    assert refused.value.code == messages.ILLEGAL_CONSUMER_GROUP == 40003


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "blank"),
        (300 * "é", "has 300 characters; allowed are 127"),
        ("é", "allowed are letters and digits"),
        ("TBW102", "system"),
    ],
)
def test_the_text_says_what_is_wrong(name, reason):
    with pytest.raises(RefusedError, match=reason):
        check_topic(name)


@pytest.mark.parametrize(
    ("name", "namespace", "rest"),
    [
        ("topic", "", "topic"),
        ("ns%topic", "ns", "topic"),
        ("ns%a%b", "ns", "a%b"),
        ("%topic", "", "%topic"),
        ("ns%", "", "ns%"),
        ("%RETRY%group", "", "%RETRY%group"),
        ("%RETRY%ns%group", "ns", "%RETRY%group"),
        ("%DLQ%ns%group", "ns", "%DLQ%group"),
        ("%DLQ%group", "", "%DLQ%group"),
        ("rmq_sys_a%b", "", "rmq_sys_a%b"),
        ("", "", ""),
    ],
)
def test_a_namespace_is_split_off(name, namespace, rest):
    assert resource_of(name) == messages.Resource(resource_namespace=namespace, name=rest)
