"""The queue of a message group is the one that RocketMQ chooses."""

from __future__ import annotations

import pytest

from rucola.common.java import consistent_hash, string_hash
from rucola.common.message_queue import MessageQueue
from rucola.proxy.queue_choice import queue_of_group

BUCKETS = (1, 2, 3, 4, 7, 8, 16, 64, 1000, 100000)
# Printed by a Java 17 program of one loop: ``Hashing.consistentHash(text.hashCode(), buckets)`` of Guava 32.0.1-jre,
# the version in RocketMQ 5.3.3.
GROUPS = [
    ("a", 97, (0, 0, 0, 0, 0, 0, 0, 29, 346, 49599)),
    ("order-1", -1207111310, (0, 0, 0, 3, 3, 3, 3, 3, 489, 12831)),
    ("order-2", -1207111309, (0, 0, 2, 2, 2, 2, 11, 46, 184, 99808)),
    ("order-17", 1234255109, (0, 1, 2, 3, 3, 3, 3, 39, 380, 97161)),
    ("group", 98629247, (0, 0, 0, 0, 0, 0, 8, 8, 391, 70558)),
    ("polygenelubricants", -2147483648, (0, 1, 2, 2, 2, 2, 2, 58, 185, 87731)),
    ("GID_flights#UA17", 1570333103, (0, 1, 1, 1, 4, 4, 4, 45, 813, 86676)),
    ("\u6771\u4eac", 841051, (0, 0, 0, 0, 0, 0, 15, 62, 489, 35728)),
    ("Z\u00fcrich", -1482116162, (0, 0, 0, 0, 0, 0, 0, 0, 308, 30014)),
    ("\ud83c\udf3f leaf", -1642194213, (0, 0, 0, 0, 5, 5, 5, 19, 680, 70011)),
    (
        "0123456789012345678901234567890123456789012345678901234567890123",
        -2103577760,
        (0, 1, 1, 1, 1, 1, 9, 58, 86, 32610),
    ),
    ("AaAaAa", 1952508096, (0, 0, 2, 2, 6, 6, 14, 40, 842, 98529)),
    ("BBBBBB", 1952508096, (0, 0, 2, 2, 6, 6, 14, 40, 842, 98529)),
    ("zzzzzz", -685785664, (0, 1, 1, 3, 3, 3, 14, 14, 901, 85836)),
]
# The same with ``Hashing.consistentHash(number, buckets)``.
NUMBERS = [
    (0, (0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
    (1, (0, 0, 0, 0, 6, 6, 6, 55, 549, 94075)),
    (-1, (0, 1, 2, 2, 2, 7, 10, 10, 313, 18311)),
    (2147483647, (0, 0, 0, 0, 0, 0, 9, 56, 231, 51833)),
    (-2147483648, (0, 1, 2, 2, 2, 2, 2, 58, 185, 87731)),
    (9223372036854775807, (0, 0, 2, 2, 2, 7, 8, 51, 972, 8550)),
    (-9223372036854775808, (0, 1, 1, 3, 5, 5, 12, 27, 453, 74317)),
    (256, (0, 1, 2, 3, 3, 3, 3, 16, 520, 86422)),
]


@pytest.mark.parametrize(("group", "java_hash", "expected"), GROUPS)
def test_groups_have_the_buckets_of_guava(group, java_hash, expected):
    group = group.encode("utf-16", "surrogatepass").decode("utf-16")
    assert string_hash(group) == java_hash
    assert tuple(consistent_hash(java_hash, buckets) for buckets in BUCKETS) == expected


@pytest.mark.parametrize(("number", "expected"), NUMBERS)
def test_numbers_have_the_buckets_of_guava(number, expected):
    assert tuple(consistent_hash(number, buckets) for buckets in BUCKETS) == expected


def test_the_queues_of_all_brokers_count_in_their_order():
    queues = sorted(MessageQueue("t", broker, number) for broker in ("b", "a") for number in (0, 1, 2, 3))
    assert [(queue.broker_name, queue.queue_id) for queue in queues[3:5]] == [("a", 3), ("b", 0)]
    chosen = {group: queue_of_group(group, queues) for group in ("a", "order-1", "order-17", "zzzzzz", "group")}
    assert chosen == {
        "a": MessageQueue("t", "a", 0),
        "order-1": MessageQueue("t", "a", 3),
        "order-17": MessageQueue("t", "a", 3),
        "zzzzzz": MessageQueue("t", "a", 3),
        "group": MessageQueue("t", "a", 0),
    }
    assert queue_of_group("\U0001f33f leaf", queues) == MessageQueue("t", "b", 1)


def test_another_queue_takes_groups_only_to_itself():
    moved = 0
    for number in range(2000):
        before, after = (consistent_hash(string_hash(f"group-{number}"), buckets) for buckets in (7, 8))
        assert after in (before, 7)
        moved += after == 7
    assert 100 < moved < 400  # an eighth is 250
