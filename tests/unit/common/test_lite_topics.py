"""Tests of the names of lite topics, and of the queue of the parent to which a lite topic belongs."""

from __future__ import annotations

import pytest

from rucola import ClientError, Message
from rucola.common.java import string_hash
from rucola.common.lite_topics import check_lite_topic, lite_queue_offset, lite_queue_topic, lite_shard


@pytest.mark.parametrize(
    ("lite_topic", "shards"),
    [
        ("session-1", (3, 3, 10, 98)),
        ("user_42", (0, 0, 10, 814)),
        ("abc", (0, 7, 8, 379)),
        ("polygenelubricants", (2, 2, 2, 185)),  # its hash code is the lowest one, -2^31
    ],
)
def test_a_lite_topic_belongs_to_the_queue_that_guava_finds(lite_topic, shards):
    assert tuple(lite_shard(lite_topic, queues) for queues in (4, 8, 16, 1000)) == shards
    assert lite_shard(lite_topic, 1) == 0


def test_a_further_queue_takes_lite_topics_only_for_itself():
    assert string_hash("polygenelubricants") == -(1 << 31)
    for number in range(500):
        before, after = (lite_shard(f"session-{number}", queues) for queues in (7, 8))
        assert after in (before, 7)


@pytest.mark.parametrize("name", ["a", "A_-9", "x" * 64])
def test_names(name):
    assert check_lite_topic(name) == name
    assert Message("agents", lite_topic=name).lite_topic == name


@pytest.mark.parametrize("name", ["", " ", "x" * 65, "ü", "a.b", "a$b", "a/b", "..", "a\n", "a,b", 5, None, b"a"])
def test_refused_names(name):
    with pytest.raises(ClientError, match="lite topic"):
        check_lite_topic(name)
    if name is not None:
        with pytest.raises(ClientError, match="lite topic"):
            Message("agents", lite_topic=name)


def test_a_forwarded_message_leaves_its_lite_topic():
    message = Message("agents", b"x", lite_topic="session-1")
    assert message.properties == {"__LITE_TOPIC": "session-1"}
    received = message.properties | {"MSG_REGION": "R", "TRACE_ON": "true", "own": "1"}
    assert Message("other", b"x", properties=received).properties == {"own": "1"}
    message.lite_topic = None
    assert message.properties == {}


@pytest.mark.parametrize(
    ("names", "offsets", "found"),
    [
        ("%LMQ%$agents$a", "7", 7),
        ("x,%LMQ%$agents$a,%LMQ%b", ",11,3", 11),
        ("%LMQ%$agents$a", "", None),
        ("%LMQ%$agents$a", "-1", None),
        ("%LMQ%$agents$ab", "7", None),
        ("", "", None),
    ],
)
def test_the_offset_in_a_light_queue(names, offsets, found):
    properties = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    assert lite_queue_offset(properties, lite_queue_topic("agents", "a")) == found
