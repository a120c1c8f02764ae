"""The services of the gRPC door with a broker in the same process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run
from tests.unit.proxy.doors import opened, send_request

from rucola.proxy import messages
from rucola.proxy.door import NOT_SERVED

NAME = messages.Resource


def resource(name: str) -> Any:
    return messages.Resource(name=name)


# -- route and assignment ----------------------------------------------------------------------------------------------


def endpoints(host: str = "front.example", port: int = 18081) -> Any:
    return messages.Endpoints(scheme=messages.DOMAIN_NAME, addresses=[messages.Address(host=host, port=port)])


@pytest.mark.parametrize(
    ("read", "write", "perm", "expected"),
    [
        (2, 2, 6, ["READ_WRITE"] * 2),
        (3, 1, 6, ["READ", "READ", "READ_WRITE"]),
        (1, 3, 6, ["WRITE", "WRITE", "READ_WRITE"]),
        (2, 3, 4, ["READ"] * 2),
        (2, 3, 2, ["WRITE"] * 3),
        (2, 3, 0, ["NONE"] * 3),
    ],
)
def test_route(tmp_path: Path, read: int, write: int, perm: int, expected: list[str]) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            door.topic("T", read=read, write=write, perm=perm, kind="MIXED")
            client = await door.client()
            answer = await client.call(
                "QueryRoute", messages.QueryRouteRequest(topic=resource("T"), endpoints=endpoints())
            )
            assert answer.status.code == messages.OK
            queues = answer.message_queues
            assert [queue.id for queue in queues] == list(range(len(expected)))
            assert [queue.permission for queue in queues] == [getattr(messages, name) for name in expected]
            for queue in queues:
                assert (queue.topic.name, queue.broker.name, queue.broker.id) == ("T", "broker-a", 0)
                assert queue.broker.endpoints == endpoints()
                assert list(queue.accept_message_types) == [1, 2, 3, 4]

    run(play())


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [("", [1]), ("NORMAL", [1]), ("FIFO", [2]), ("DELAY", [3]), ("TRANSACTION", [4]), ("PRIORITY", [6]), ("ODD", [0])],
)
def test_kinds_of_messages_in_a_route(tmp_path: Path, kind: str, accepted: list[int]) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            door.topic("T", kind=kind)
            client = await door.client()
            answer = await client.call(
                "QueryRoute", messages.QueryRouteRequest(topic=resource("T"), endpoints=endpoints())
            )
            assert list(answer.message_queues[0].accept_message_types) == accepted

    run(play())


def test_route_names_the_advertised_address(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path, advertised="[::1]:99") as door:
            door.topic("T")
            client = await door.client()
            answer = await client.call(
                "QueryRoute", messages.QueryRouteRequest(topic=resource("T"), endpoints=endpoints())
            )
            found = answer.message_queues[0].broker.endpoints
            assert (found.scheme, found.addresses[0].host, found.addresses[0].port) == (messages.IPv6, "::1", 99)

    run(play())


def test_refused_routes(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            for name, code in (
                ("Unknown", messages.TOPIC_NOT_FOUND),
                ("", messages.ILLEGAL_TOPIC),
                ("a b", messages.ILLEGAL_TOPIC),
                ("RMQ_SYS_TRANS_HALF_TOPIC", messages.ILLEGAL_TOPIC),
            ):
                request = messages.QueryRouteRequest(topic=resource(name), endpoints=endpoints())
                answer = await client.call("QueryRoute", request)
                assert answer.status.code == code and answer.status.message and not answer.message_queues
            answer = await client.call("QueryRoute", messages.QueryRouteRequest(topic=resource("T")))
            own = answer.message_queues[0].broker.endpoints
            assert (own.scheme, own.addresses[0].host, own.addresses[0].port) == (1, "127.0.0.1", door.door.port)
            del door.broker.topics.table["T"]
            answer = await client.call(
                "QueryRoute", messages.QueryRouteRequest(topic=resource("T"), endpoints=endpoints())
            )
            assert answer.status.code == messages.TOPIC_NOT_FOUND, "a deleted topic"

    run(play())


def test_assignment(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=3)
            door.topic("W", perm=2)
            door.group("F", consume_message_orderly=True)

            async def assigned(topic: str, group: str) -> Any:
                request = messages.QueryAssignmentRequest(
                    topic=resource(topic), group=resource(group), endpoints=endpoints()
                )
                return await client.call("QueryAssignment", request)

            for group, ids in (("G", [-1]), ("F", [0, 1, 2])):
                answer = await assigned("T", group)
                assert [one.message_queue.id for one in answer.assignments] == ids
                queue = answer.assignments[0].message_queue
                assert (queue.permission, queue.broker.name, queue.broker.endpoints) == (
                    messages.READ_WRITE,
                    "broker-a",
                    endpoints(),
                )
            assert (await assigned("W", "G")).status.code == messages.FORBIDDEN
            assert (await assigned("U", "G")).status.code == messages.TOPIC_NOT_FOUND
            assert (await assigned("T", "")).status.code == messages.ILLEGAL_CONSUMER_GROUP

    run(play())


# -- who calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_id", ["", " ", "x" * 256, "ä"])
def test_every_call_names_a_client(tmp_path: Path, client_id: str) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client(client_id)
            door.topic("T")
            answer = await client.call("Heartbeat", messages.HeartbeatRequest())
            assert answer.status.code == messages.CLIENT_ID_REQUIRED
            assert (await client.sent("T")).status.code == messages.CLIENT_ID_REQUIRED
            found = await client.receive("G", "T").all()
            assert found[0].status.code == messages.CLIENT_ID_REQUIRED
            ack = messages.AckMessageRequest(topic=resource("T"), group=resource("G"))
            assert (await client.call("AckMessage", ack)).status.code == messages.CLIENT_ID_REQUIRED
            telemetry = client.settings()
            assert [answer.status.code for answer in await telemetry.all()] == [messages.CLIENT_ID_REQUIRED]
            assert telemetry.status == 0 and not len(door.door.sessions)

    run(play())


def test_methods_that_are_not_served(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            for name in NOT_SERVED:
                call = client.begin(name, messages.HeartbeatRequest())
                assert await call.all() == [] and call.status == 12

    run(play())


# -- settings, heartbeat, termination ----------------------------------------------------------------------------------


def test_settings_of_a_producer(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            call = client.settings(
                client_type=messages.PRODUCER,
                publishing=messages.Publishing(topics=[resource("T")], max_body_size=5),
                request_timeout={"seconds": 3},
                user_agent=messages.UA(language=messages.PYTHON, version="5.1.2"),
                metric=messages.Metric(on=True),
                client_properties={"team": "a"},
            )
            answer = await call.next()
            settings = answer.settings
            assert answer.status.code == messages.OK
            assert settings.publishing.max_body_size == 4 << 20 and settings.publishing.validate_message_type
            assert [topic.name for topic in settings.publishing.topics] == ["T"]
            backoff = settings.backoff_policy
            assert backoff.max_attempts == 3 and backoff.WhichOneof("strategy") == "exponential_backoff"
            exponential = backoff.exponential_backoff
            assert (exponential.initial.nanos, exponential.max.seconds, exponential.multiplier) == (10_000_000, 1, 2.0)
            assert settings.request_timeout.seconds == 3 and not settings.metric.on
            assert settings.user_agent.version == "5.1.2" and dict(settings.client_properties) == {"team": "a"}
            assert door.broker.services.producers.clients("T"), "registered under the topic"

    run(play())


def test_settings_of_a_consumer(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            door.group("F", consume_message_orderly=True, retry_max_times=4)
            door.group("E", group_retry_policy={"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 7000}})
            door.group("C", group_retry_policy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1500, 3000]}})

            async def told(group: str) -> Any:
                subscription = messages.Subscription(
                    group=resource(group), subscriptions=[messages.SubscriptionEntry(topic=resource("T"))]
                )
                call = client.settings(client_type=messages.PUSH_CONSUMER, subscription=subscription)
                return (await call.next()).settings

            settings = await told("F")
            assert settings.subscription.fifo and settings.subscription.receive_batch_size == 32
            assert settings.subscription.long_polling_timeout.seconds == 20
            assert settings.subscription.group.name == "F" and len(settings.subscription.subscriptions) == 1
            backoff = settings.backoff_policy
            assert backoff.max_attempts == 5 and len(backoff.customized_backoff.next) == 18
            assert [backoff.customized_backoff.next[place].seconds for place in (0, 3, 17)] == [1, 30, 7200]
            backoff = (await told("E")).backoff_policy
            assert backoff.exponential_backoff.initial.seconds == 7 and backoff.exponential_backoff.max.seconds == 7200
            backoff = (await told("C")).backoff_policy
            assert [step.seconds + step.nanos / 1e9 for step in backoff.customized_backoff.next] == [1.5, 3.0]
            settings = await told("New")
            assert settings.backoff_policy.max_attempts == 17 and not settings.subscription.fifo

    run(play())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "neither"),
        ({"publishing": messages.Publishing(topics=[resource("a b")])}, "topic"),
        ({"subscription": messages.Subscription(group=resource(""))}, "group"),
        (
            {
                "client_type": messages.PULL_CONSUMER,
                "subscription": messages.Subscription(group=resource("G")),
            },
            "client%20type%204",
        ),
        (
            {
                "client_type": messages.LITE_PUSH_CONSUMER,
                "subscription": messages.Subscription(group=resource("G")),
            },
            "lite.bind.topic",
        ),
        (
            {
                "subscription": messages.Subscription(
                    group=resource("G"),
                    subscriptions=[
                        messages.SubscriptionEntry(
                            topic=resource("T"), expression=messages.FilterExpression(type=1, expression=" | ")
                        )
                    ],
                )
            },
            "",
        ),
        ({"publishing": messages.Publishing(), "client_properties": {"1x": "v"}}, "client%20property"),
        ({"publishing": messages.Publishing(), "client_properties": {"k": "v" * 257}}, "client%20property"),
        ({"publishing": messages.Publishing(), "client_properties": {f"k{n}": "v" for n in range(33)}}, "33"),
        ({"publishing": messages.Publishing(topics=[resource("T")] * 1025)}, "1025"),
    ],
)
def test_refused_settings_end_the_stream(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            call = client.settings(**fields)
            assert await call.all() == []
            assert call.status == 3 and text in call.text

    run(play())


def test_heartbeat_and_termination(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            consumers = door.broker.services.consumers
            unknown = await client.call("Heartbeat", messages.HeartbeatRequest(group=resource("G")))
            assert unknown.status.code == messages.UNRECOGNIZED_CLIENT_TYPE
            telemetry = await client.consumes("G", "T")
            assert consumers.group("G").client_ids() == ["c1"]
            for group, code in (("G", messages.OK), ("", messages.ILLEGAL_CONSUMER_GROUP)):
                answer = await client.call("Heartbeat", messages.HeartbeatRequest(group=resource(group)))
                assert answer.status.code == code
            request = messages.NotifyClientTerminationRequest(group=resource("G"))
            assert (await client.call("NotifyClientTermination", request)).status.code == messages.OK
            while consumers.group("G") is not None and consumers.group("G").client_ids():
                await asyncio.sleep(0)
            assert (
                await client.call("NotifyClientTermination", request)
            ).status.code == messages.UNRECOGNIZED_CLIENT_TYPE
            assert telemetry.status is None

    run(play())


# -- sends -------------------------------------------------------------------------------------------------------------


def test_a_message_there_and_back(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            await client.consumes("G", "T")
            answer = await client.sent(
                "T", b"hello", user={"x": "1", "Zürich": "ä"}, tag="red", keys=["k1", "k2"], trace_context="tc"
            )
            (entry,) = answer.entries
            assert (answer.status.code, entry.status.code, entry.message_id) == (
                messages.OK,
                messages.OK,
                "id-68656c6c6f",
            )
            (found,) = await client.received("G", "T")
            system = found.system_properties
            assert (found.topic.name, found.body, dict(found.user_properties)) == (
                "T",
                b"hello",
                {"x": "1", "Zürich": "ä", "TRACE_CONTEXT": "tc"},
            )
            assert (system.tag, list(system.keys), system.message_id) == ("red", ["k1", "k2"], "id-68656c6c6f")
            assert (system.delivery_attempt, system.message_type, system.trace_context) == (1, messages.NORMAL, "tc")
            assert system.born_timestamp.seconds == 1_700_000_000
            acked = await client.ack("G", "T", found)
            assert acked.status.code == messages.OK and acked.entries[0].status.code == messages.OK
            assert acked.entries[0].message_id == "id-68656c6c6f"
            again = await client.ack("G", "T", found)
            assert again.status.code == messages.OK, "acknowledging twice"

    run(play())


def test_many_sends_of_a_turn_are_stored_in_turn_on_all_queues(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=3)
            door.topic("U", queues=1)
            calls = [
                client.begin("SendMessage", send_request("TU"[number % 5 == 0], b"%d" % number))
                for number in range(600)
            ]
            for number, call in enumerate(calls):
                (answer,) = await call.all()
                assert answer.status.code == messages.OK
                assert answer.entries[0].message_id == f"id-{(b'%d' % number).hex()}"
            stored = [len(await door.cluster.bodies("T", queue)) for queue in range(3)]
            assert sum(stored) == 480 and max(stored) - min(stored) <= 1
            assert [int(body) for body in await door.cluster.bodies("U")] == list(range(0, 600, 5))

    run(play())


def test_refused_sends(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            door.topic("F", kind="FIFO")
            door.topic("R", perm=4)
            for request, code in (
                (messages.SendMessageRequest(), messages.MESSAGE_CORRUPTED),
                (send_request("U"), messages.TOPIC_NOT_FOUND),
                (send_request("T", b""), messages.MESSAGE_BODY_EMPTY),
                (send_request("T", b"x" * ((4 << 20) + 1)), messages.MESSAGE_BODY_TOO_LARGE),
                (send_request("F"), messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
                (send_request("T", message_group="g"), messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
                (send_request("R"), messages.FORBIDDEN),
                (send_request("T", user={"TAGS": "x"}), messages.ILLEGAL_MESSAGE_PROPERTY_KEY),
                (send_request("T", lite_topic="l"), messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
                (send_request("T", lite_topic="l/"), messages.ILLEGAL_LITE_TOPIC),
            ):
                answer = await client.call("SendMessage", request)
                assert answer.status.code == code and answer.status.message, answer
            assert await door.cluster.bodies("T") == await door.cluster.bodies("T", 1) == []

    run(play())


def test_a_request_with_several_messages(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            request = messages.SendMessageRequest()
            for body in (b"1", b"2", b"3"):
                request.messages.append(send_request("T", body).messages[0])
            answer = await client.call("SendMessage", request)
            assert answer.status.code == messages.OK
            assert [entry.message_id for entry in answer.entries] == ["id-31", "id-32", "id-33"]
            assert [entry.offset for entry in answer.entries] == [0, 1, 2]
            assert await door.cluster.bodies("T") == [b"1", b"2", b"3"]

    run(play())


def test_groups_of_messages_keep_their_queue(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("F", queues=4, kind="FIFO")
            for number in range(40):
                body = b"%d" % number
                answer = await client.sent("F", body, message_group=f"g{number % 5}", message_type=messages.FIFO)
                assert answer.status.code == messages.OK
            queues = [[int(body) for body in await door.cluster.bodies("F", queue)] for queue in range(4)]
            for group in range(5):
                (holder,) = [queue for queue in queues if any(number % 5 == group for number in queue)]
                assert [number for number in holder if number % 5 == group] == list(range(group, 40, 5))

    run(play())


def test_priorities_choose_the_queue(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("P", queues=3, kind="PRIORITY")
            for priority in (0, 1, 2, 9):
                answer = await client.sent("P", b"%d" % priority, priority=priority, message_type=messages.PRIORITY)
                assert answer.status.code == messages.OK
            assert [await door.cluster.bodies("P", queue) for queue in range(3)] == [[b"0"], [b"1"], [b"2", b"9"]]

    run(play())


def test_large_messages(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            await client.consumes("G", "T")
            bodies = [bytes([65 + number]) * size for number, size in enumerate((60_000, 300_000, 3_000_000))]
            for body in bodies:
                assert (await client.sent("T", body)).status.code == messages.OK
            found: list[Any] = []
            while len(found) < 3:
                found += await client.received("G", "T")
            assert [one.body for one in found] == bodies

    run(play())
