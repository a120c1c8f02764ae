"""Queues that follow from route data."""

from __future__ import annotations

import pytest

from rucola.client.route import default_topic_route, topic_route
from rucola.protocol.bodies.route import BrokerData, QueueData, TopicRouteData


def route(*queues: QueueData, order: str | None = None, slaves: tuple[str, ...] = ()) -> TopicRouteData:
    brokers = [
        BrokerData("c", name, {1: "127.0.0.1:2"} if name in slaves else {0: "127.0.0.1:1"})
        for name in sorted({one.broker_name for one in queues})
    ]
    return TopicRouteData(order, list(queues), brokers)


def ids(queues) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.queue_id) for queue in queues]


@pytest.mark.parametrize(
    ("data", "publish", "subscribe"),
    [
        (route(QueueData("b", 1, 2, 6), QueueData("a", 1, 1, 6)), [("a", 0), ("b", 0), ("b", 1)], [("a", 0), ("b", 0)]),
        (route(QueueData("a", 2, 2, 4)), [], [("a", 0), ("a", 1)]),
        (route(QueueData("a", 2, 2, 2)), [("a", 0), ("a", 1)], []),
        (route(QueueData("a", 1, 1, 6), slaves=("a",)), [], [("a", 0)]),
        (
            route(QueueData("a", 4, 4, 6), order="b:1;a:2;junk;x:y"),
            [("b", 0), ("a", 0), ("a", 1)],
            [("a", n) for n in range(4)],
        ),
        (route(), [], []),
    ],
)
def test_queues(data, publish, subscribe):
    found = topic_route("T", data)
    assert ids(found.publish_queues) == publish
    assert ids(found.subscribe_queues) == subscribe
    assert found.ordered is bool(data.order_topic_conf)
    assert {queue.topic for queue in found.publish_queues} <= {"T"}


def test_queues_of_a_topic_to_be_made():
    found = default_topic_route("Fresh", route(QueueData("a", 8, 16, 7), QueueData("b", 2, 3, 7)), 4)
    assert ids(found.publish_queues) == [("a", n) for n in range(4)] + [("b", n) for n in range(3)]
    assert ids(found.subscribe_queues) == [("a", n) for n in range(4)] + [("b", n) for n in range(2)]
