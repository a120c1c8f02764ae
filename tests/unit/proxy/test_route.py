"""Routes and assignments of topics with any number of queues."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.sysflag import PermName
from rucola.protocol.bodies.route import QueueData
from rucola.proxy import messages, route
from rucola.proxy.access import DoorAccess
from rucola.proxy.brokers import TopicView, WritableQueues
from rucola.proxy.route import Routes
from rucola.remoting.fairness import steps

READ, WRITE = int(PermName.READ), int(PermName.WRITE)
MANY = 100_000


class Brokers:
    """Knows one topic and one group."""

    def __init__(self, *queues: QueueData) -> None:
        self.view = TopicView("T", {}, queues, set())

    async def topic(self, name: str) -> TopicView:
        return self.view

    async def group(self, name: str) -> SubscriptionGroupConfig:
        return SubscriptionGroupConfig(name, consume_message_orderly=True)


class Client:
    """Stands for a session."""

    account = address = ""


def routes(*queues: QueueData) -> Routes:
    return Routes(Brokers(*queues), DoorAccess(), lambda: "door:8081")  # type: ignore[arg-type]


def route_of(*queues: QueueData) -> Any:
    request = messages.QueryRouteRequest(topic=messages.Resource(name="T"))
    answer = asyncio.run(routes(*queues).route(Client(), request))  # type: ignore[arg-type]
    return messages.QueryRouteResponse.FromString(answer)


@pytest.mark.parametrize("perm", [0, READ, WRITE, READ | WRITE])
@pytest.mark.parametrize("counts", [(1, 1), (300, 2), (2, 300), (0, 1), (256, 256), (257, 257)])
def test_a_route_names_each_queue_once_with_its_permission(counts: tuple[int, int], perm: int) -> None:
    answer = route_of(QueueData("a", *counts, perm), QueueData("b", 2, 2, READ | WRITE))
    reads, writes = (counts[0] if perm & READ else 0), (counts[1] if perm & WRITE else 0)
    both = min(reads, writes)
    expected = [messages.READ] * (reads - both) + [messages.WRITE] * (writes - both) + [messages.READ_WRITE] * both
    if not expected:
        expected = [messages.NONE] * max(1, *counts)
    of_a, of_b = [
        [(one.id, one.permission) for one in answer.message_queues if one.broker.name == name] for name in "ab"
    ]
    assert of_a == list(enumerate(expected)) and of_b == [(0, messages.READ_WRITE), (1, messages.READ_WRITE)]
    for one in answer.message_queues:
        assert (one.topic.name, one.broker.endpoints.addresses[0].host) == ("T", "door")
        assert list(one.accept_message_types) == [messages.NORMAL]
    assert answer.status.code == messages.OK


def test_the_bytes_of_a_route_say_what_protobuf_says() -> None:
    answer = route_of(QueueData("a", 3, 3, READ | WRITE))
    built = messages.QueryRouteResponse(status=answer.status)
    for one in answer.message_queues:
        built.message_queues.add().CopyFrom(one)
    assert built == answer


def test_an_assignment_in_order_names_each_queue() -> None:
    request = messages.QueryAssignmentRequest(topic=messages.Resource(name="T"), group=messages.Resource(name="G"))
    served = routes(QueueData("a", 300, 1, READ), QueueData("b", 1, 1, READ | WRITE))
    data = asyncio.run(served.assignment(Client(), request))  # type: ignore[arg-type]
    answer = messages.QueryAssignmentResponse.FromString(data)
    found = [(one.message_queue.broker.name, one.message_queue.id) for one in answer.assignments]
    assert found == [("a", number) for number in range(300)] + [("b", 0)]
    assert {one.message_queue.permission for one in answer.assignments} == {messages.READ, messages.READ_WRITE}


def test_a_route_of_very_many_queues_is_written_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PIECE_S", 0.0)
    turns = itertools.count()

    async def play() -> int:
        async def others() -> None:
            while True:
                next(turns)
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        request = messages.QueryRouteRequest(topic=messages.Resource(name="T"))
        data = await routes(QueueData("a", MANY, MANY, READ | WRITE)).route(Client(), request)  # type: ignore[arg-type]
        other.cancel()
        return len(data)

    assert asyncio.run(play()) > 30 * MANY
    assert next(turns) >= MANY // route._AT_ONCE


def test_writable_queues_are_in_the_order_of_broker_and_number() -> None:
    view = TopicView("T", {}, [QueueData("b", 1, 2, WRITE), QueueData("c", 1, 9, READ), QueueData("a", 1, 3, WRITE)])
    expected = [MessageQueue("T", "a", number) for number in range(3)]
    expected += [MessageQueue("T", "b", number) for number in range(2)]
    assert list(view.writable) == expected and len(view.writable) == 5
    assert [view.writable.end_of(index) for index in range(5)] == [3, 3, 3, 5, 5]
    for index in (-1, 5):
        with pytest.raises(IndexError):
            view.writable[index]
    assert not WritableQueues("T", [QueueData("a", 1, 0, WRITE)])
    begin = next(view.turns)
    assert sorted([begin, *itertools.islice(view.turns, 4)]) == expected and next(view.turns) == begin


@pytest.mark.parametrize("avoided", [set(), {"a"}, {"b"}, {"a", "b"}])
def test_turns_take_what_is_not_avoided(avoided: set[str]) -> None:
    queues = [QueueData("a", 3, 3, WRITE), QueueData("b", 2, 2, WRITE)]
    view = TopicView("T", {}, queues, avoided)
    found = {next(view.turns).broker_name for _ in range(10)}
    assert found == ({"a", "b"} - avoided or {"a", "b"})


def test_the_next_of_very_many_queues_is_found_without_the_others() -> None:
    queues = [QueueData(name, MANY, MANY, WRITE) for name in ("a", "b", "c")]
    view = TopicView("T", {}, queues, {"a", "b"})
    assert {next(view.turns).broker_name for _ in range(10)} == {"c"}
    assert len(view.writable._made) < 20
