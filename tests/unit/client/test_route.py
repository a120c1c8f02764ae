"""Queues that follow from route data."""

from __future__ import annotations

import asyncio

import pytest

from rucola.client.route import default_topic_route, topic_route
from rucola.errors import ClientError, FormatError
from rucola.protocol.bodies.route import QUEUES_MAX, BrokerData, QueueData, TopicRouteData
from rucola.remoting.client import RemotingClient
from rucola.remoting.name_server_api import NameServerApi


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
        (route(QueueData("a", 1, 1, 6), order="a:4000000;a:131073;a:-1;a:٣;a:" + "4" * 5000), [], [("a", 0)]),
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


def test_an_order_configuration_of_more_queues_than_a_topic_can_have_is_refused():
    half = QUEUES_MAX // 2
    assert (
        len(topic_route("T", route(QueueData("a", 1, 1, 6), order=f"a:{half};b:{half}")).publish_queues) == QUEUES_MAX
    )
    with pytest.raises(ClientError, match="names more than 131072 queues"):
        topic_route("T", route(QueueData("a", 1, 1, 6), order=f"a:{half};b:{half};c:1"))


@pytest.mark.parametrize("numbers", [(1 << 31, 4), (4, 1 << 31), (QUEUES_MAX, 4)])
def test_a_route_with_more_queues_than_a_topic_can_have_is_refused_before_they_are_listed(numbers):
    """An evil name server says it; clients, brokers and administration keep what they knew."""

    class Told(RemotingClient):
        async def invoke(self, address, command, timeout_ms):
            read, write = numbers
            return command.answer(0, body=route(QueueData("a", read, write, 6), QueueData("b", 1, 1, 6)).encode())

    with pytest.raises(FormatError, match="at most 131072 queues"):
        asyncio.run(NameServerApi(Told()).route_info("127.0.0.1:9876", "T"))


def test_a_route_of_as_many_queues_as_allowed_is_believed():
    data = route(QueueData("a", QUEUES_MAX - 1, -5, 6), QueueData("b", 1, QUEUES_MAX, 6))
    data.check_size()
