"""Doors in front of two brokers and a name server, as clients of RocketMQ 5 see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run_virtual
from tests.unit.proxy.clusters import LIMIT_S, QUEUES, TwoBrokers, eventually

from rucola.common.sysflag import PermName
from rucola.errors import BrokerError, ConfigError
from rucola.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from rucola.proxy import cluster, cluster_link, messages
from rucola.proxy.cluster import ClusterBrokers, queues_of
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.remoting.signer import RequestSigner
from rucola.runtime.clock import SystemClock
from rucola.testing.event_loop import run_stepped

Scene = Callable[[TwoBrokers], Awaitable[None]]
OK = 20000


def play(path: Path, scene: Scene, **broker: Any) -> None:
    async def run() -> None:
        async with TwoBrokers(path, **broker) as brokers:
            await asyncio.wait_for(scene(brokers), LIMIT_S)

    run_virtual(run())


def test_a_route_has_the_queues_of_both_brokers_and_leads_to_the_door(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "FIFO")
        client = await brokers.client()
        answer = await client.route("T")
        found = [(one.broker.name, one.id, list(one.accept_message_types)) for one in answer.message_queues]
        assert found == [(name, number, [messages.FIFO]) for name in "ab" for number in range(QUEUES)]
        assert {one.broker.endpoints.addresses[0].host for one in answer.message_queues} == {"front"}

    play(tmp_path, scene)


def test_messages_go_round_all_queues_and_are_received_and_acknowledged_where_they_are(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T")
        await brokers.join("g", "T")
        door = await brokers.door()
        client = await brokers.client(door)
        for number in range(4 * QUEUES):
            answer = await client.sent("T", b"%d" % number, message_id=f"id{number}", tag="t", user={"k": "v"})
            assert (answer.status.code, answer.entries[0].message_id) == (OK, f"id{number}")
        assert await brokers.stored("T") == {"a": [2] * QUEUES, "b": [2] * QUEUES}
        (session,) = door.door.sessions
        assert door.brokers.rows(session, 1).count == 0  # the messages are encoded at once
        bodies = set()
        for name in "ab":
            got = await client.received("g", "T", broker=name)
            assert len(got) == 2 * QUEUES
            for message in got:
                bodies.add(message.body)
                assert dict(message.user_properties) == {"k": "v"}
                assert f" {name} " in message.system_properties.receipt_handle
                assert (await client.ack("g", "T", message)).status.code == OK
        assert bodies == {b"%d" % number for number in range(4 * QUEUES)}

    play(tmp_path, scene)


# Buckets of Guava for 8 queues, as in test_queue_choice.py.
GROUPS = {"a": 0, "order-2": 2, "order-1": 3, "GID_flights#UA17": 4, "\U0001f33f leaf": 5, "AaAaAa": 6}


def test_a_message_group_has_one_queue_among_those_of_all_brokers(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "FIFO")
        client = await brokers.client()
        expected = {name: [0] * QUEUES for name in "ab"}
        for group in ("a", "order-2", "order-1", "GID_flights#UA17", "\U0001f33f leaf", "AaAaAa"):
            for _ in range(2):
                answer = await client.sent("T", message_type=messages.FIFO, message_group=group)
                assert answer.status.code == OK, answer.status
            broker, queue_id = divmod(GROUPS[group], QUEUES)
            expected["ab"[broker]][queue_id] += 2
        assert await brokers.stored("T") == expected

    play(tmp_path, scene)


def test_one_door_acknowledges_what_another_one_has_delivered(tmp_path: Path) -> None:
    """The next message of an ordered queue is delivered when the one before it is acknowledged."""

    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "FIFO")
        await brokers.join("g", "T", in_order=True)
        one, other = await brokers.client(), await brokers.client()
        for number in range(3):
            await one.sent("T", b"%d" % number, message_type=messages.FIFO, message_group="GID_flights#UA17")
        taken = []
        for number in range(3):
            receiving, ending = (one, other) if number % 2 else (other, one)
            (message,) = await receiving.received("g", "T", broker="b", batch_size=1)
            assert message.body == b"%d" % number
            assert (await ending.ack("g", "T", message)).status.code == OK
            taken.append(message)

    play(tmp_path, scene)


def test_a_delayed_message_arrives_later(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "DELAY")
        await brokers.join("g", "T")
        client = await brokers.client()
        answer = await client.sent(
            "T", message_type=messages.DELAY, delivery_timestamp={"seconds": SystemClock().wall_ms() // 1000 + 2}
        )
        assert answer.status.code == OK
        polls = {asyncio.ensure_future(client.received("g", "T", broker=name)) for name in "ab"}
        (done,), _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        (message,) = done.result()
        assert (message.body, message.system_properties.HasField("delivery_timestamp")) == (b"body", True)

    play(tmp_path, scene)


def test_any_door_ends_a_transaction(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "TRANSACTION")
        await brokers.join("g", "T")
        one, other = await brokers.client(), await brokers.client()
        for body, resolution in ((b"kept", messages.COMMIT), (b"gone", messages.ROLLBACK), (b"also", messages.COMMIT)):
            answer = await one.sent("T", body, message_type=messages.TRANSACTION)
            (entry,) = answer.entries
            assert sum(map(sum, (await brokers.stored("T")).values())) == (1 if body != b"kept" else 0)
            assert await other.end("T", entry.transaction_id, entry.message_id, resolution) == OK
        places = [name for name, counts in (await brokers.stored("T")).items() if sum(counts)]
        polls = [await one.received("g", "T", broker=name) for name in places]
        assert sorted(message.body for poll in polls for message in poll) == [b"also", b"kept"]

    play(tmp_path, scene)


def test_a_broker_asks_the_producer_on_its_stream_about_a_transaction_without_outcome(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "TRANSACTION")
        await brokers.join("g", "T")
        client = await brokers.client()
        stream = await client.produces("T")
        answer = await client.sent("T", message_type=messages.TRANSACTION)
        asked = await stream.next()
        command = asked.recover_orphaned_transaction_command
        assert command.message.body == b"body"
        assert command.message.system_properties.message_id == answer.entries[0].message_id
        elsewhere = await brokers.client()
        message_id = answer.entries[0].message_id
        assert await elsewhere.end("T", command.transaction_id, message_id, messages.COMMIT) == OK
        assert sum(map(sum, (await brokers.stored("T")).values())) == 1

    play(tmp_path, scene, transaction_timeout_ms=0, transaction_check_interval_ms=50)


def test_a_broker_that_dies_gets_no_messages_until_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T")
        client = await brokers.client()
        for _ in range(2 * QUEUES):
            assert (await client.sent("T")).status.code == OK
        port = int(brokers.brokers["b"].address.rpartition(":")[2])
        await brokers.stop("b")
        codes = [(await client.sent("T")).status.code for _ in range(4 * QUEUES)]
        assert codes.count(OK) >= 4 * QUEUES - 2  # one finds the connection closed, one that nobody listens
        assert codes[-2 * QUEUES :] == [OK] * 2 * QUEUES
        await brokers.start("b", port)
        before = sum((await brokers.stored("T"))["b"])

        async def gets_messages_again() -> bool:
            brokers.later(cluster.MISSING_KEPT_S)
            assert (await client.sent("T")).status.code == OK
            return sum((await brokers.stored("T"))["b"]) > before

        await eventually(gets_messages_again)

    monkeypatch.setattr(cluster, "AVOIDED_S", 1.0)
    play(tmp_path, scene)


def test_a_broker_that_cannot_be_reached_is_passed_over_although_its_route_stays(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T")
        door = await brokers.door()
        one, other = await brokers.client(door, "one"), await brokers.client(door, "other")
        assert (await one.sent("T")).status.code == OK
        await brokers.namesrv.shutdown()
        await brokers.stop("b")
        codes = [(await one.sent("T")).status.code for _ in range(2 * QUEUES)]
        assert codes.count(OK) >= 2 * QUEUES - 2
        assert [(await other.sent("T")).status.code for _ in range(2 * QUEUES)] == [OK] * 2 * QUEUES
        brokers.namesrv = await brokers.name_server(0)

    play(tmp_path, scene)


def test_requests_are_signed_for_brokers_that_ask_who_sends_them(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: doorkeeper\n  secretKey: a-secret-of-the-door-7\n  admin: true\n"
    )
    signer = RequestSigner("doorkeeper", "a-secret-of-the-door-7", "", 1, SystemClock().wall_ms)

    async def scene(brokers: TwoBrokers) -> None:
        brokers.sign(signer)
        await brokers.create("T")
        await brokers.join("g", "T")
        signed = await brokers.client(await brokers.door(ClientOptions(signer=signer)))
        assert (await signed.sent("T")).status.code == OK
        (name,) = [name for name, counts in (await brokers.stored("T")).items() if sum(counts)]
        (message,) = await signed.received("g", "T", broker=name)
        assert (await signed.ack("g", "T", message)).status.code == OK
        assert (await (await brokers.client()).sent("T")).status.code != OK

    play(tmp_path, scene, acl_enable=True, rocketmq_home=str(tmp_path))


def test_a_broker_that_takes_nothing_gets_no_more_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T")
        client = await brokers.client()
        assert (await client.sent("T")).status.code == OK
        monkeypatch.setattr(RemotingClient, "unsent_bytes", lambda *_: cluster_link.UNSENT_BYTES_MAX + 1)
        for kind in (messages.NORMAL, messages.MESSAGE_TYPE_UNSPECIFIED):
            answer = await client.sent("T", message_type=kind)
            assert answer.status.code == messages.TOO_MANY_REQUESTS
        monkeypatch.undo()
        assert (await client.sent("T", b"after")).status.code == OK
        assert sum(map(sum, (await brokers.stored("T")).values())) == 2

    play(tmp_path, scene)


def test_a_broker_that_is_avoided_still_has_the_queues_of_its_message_groups(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "FIFO")
        door = await brokers.door()
        client = await brokers.client(door)
        assert (await client.sent("T", message_type=messages.FIFO, message_group="a")).status.code == OK
        door.brokers.unreachable("b")
        view = door.brokers.known_topic(b"T")
        assert view is not None
        assert {next(view.turns).broker_name for _ in range(3 * QUEUES)} == {"a"}
        for group in ("GID_flights#UA17", "AaAaAa"):
            assert (await client.sent("T", message_type=messages.FIFO, message_group=group)).status.code == OK
        assert await brokers.stored("T") == {"a": [1, 0, 0, 0], "b": [1, 0, 1, 0]}
        assert {next(view.turns).broker_name for _ in range(3 * QUEUES)} == {"a", "b"}  # it was reached

    play(tmp_path, scene)


def test_without_a_name_server_known_topics_are_served(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T")
        client = await brokers.client()
        assert (await client.sent("T")).status.code == OK
        port = int(brokers.namesrv.address.rpartition(":")[2])
        await brokers.namesrv.shutdown()
        for _ in range(3):
            brokers.later(60)
            assert (await client.sent("T")).status.code == OK
            assert len((await client.route("T")).message_queues) == 2 * QUEUES
            await asyncio.sleep(0.05)  # for the look-up in the background
        assert (await client.route("U")).status.code == messages.INTERNAL_SERVER_ERROR
        brokers.namesrv = await brokers.name_server(port)
        assert (await client.route("U")).status.code == messages.TOPIC_NOT_FOUND

    play(tmp_path, scene)


def test_a_topic_that_is_created_later_is_found(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        client = await brokers.client()
        assert (await client.sent("T")).status.code == messages.TOPIC_NOT_FOUND
        await brokers.create("T", names=["b"])
        assert (await client.route("T")).status.code == messages.TOPIC_NOT_FOUND  # not asked again yet
        brokers.later(2)
        assert {one.broker.name for one in (await client.route("T")).message_queues} == {"b"}
        assert (await client.sent("T")).status.code == OK

    play(tmp_path, scene)


def test_messages_for_a_poll_that_nobody_waits_for_are_soon_delivered_to_others(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", names=["a"])
        await brokers.join("g", "T")
        client, other = await brokers.client(), await brokers.client(name="other")
        poll = client.receive("g", "T", broker="a", long_polling_timeout={"seconds": 20})

        async def waits() -> bool:
            return brokers.waiting_polls("a") == 1

        await eventually(waits)
        poll.cancel()
        await asyncio.sleep(0.1)  # until the door knows
        assert (await client.sent("T")).status.code == OK
        (message,) = await other.received("g", "T", broker="a", long_polling_timeout={"seconds": 15})
        assert (message.body, message.system_properties.delivery_attempt) == (b"body", 2)

    play(tmp_path, scene)


@pytest.mark.parametrize("is_popped_before", [False, True], ids=["message after", "message before"])
@pytest.mark.parametrize("is_registered", [False, True], ids=["unknown", "registered"])
def test_a_poll_repeated_at_another_door_gets_the_messages(
    tmp_path: Path, is_registered: bool, is_popped_before: bool
) -> None:
    """The first door is stuck, or its client is. Before the fix, the poll that waited for it took the message, and the
    queue was blocked until the end of the invisible time.
    """

    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "FIFO", names=["a"])
        await brokers.join("g", "T", in_order=True)
        stuck, moved, producer = await brokers.client(), await brokers.client(), await brokers.client(name="other")
        poll: dict[str, Any] = {
            "broker": "a",
            "attempt_id": "x",
            "auto_renew": True,
            "batch_size": 1,
            "long_polling_timeout": {"seconds": 15},
        }

        async def sent() -> None:
            assert (await producer.sent("T", b"body", message_group="m")).status.code == OK

        async def waits() -> bool:
            return brokers.waiting_polls("a") == 1

        if is_registered:
            await stuck.consumes("g", "T", client_type=messages.PUSH_CONSUMER)
        if is_popped_before:
            await sent()
            (lost,) = await stuck.received("g", "T", **poll)
        else:
            first = stuck.receive("g", "T", **poll)
            await eventually(waits)
        second = moved.receive("g", "T", **poll)
        if not is_popped_before:
            begun_s = asyncio.get_running_loop().time()
            assert [one.status.code for one in (await first.all())[:1]] == [messages.MESSAGE_NOT_FOUND]
            assert asyncio.get_running_loop().time() < begun_s + 10, "before its time was over"
            assert brokers.waiting_polls("a") == 1
            await sent()
        found = (await second.all())[1].message
        assert (found.body, found.system_properties.delivery_attempt) == (b"body", 1)
        await sent()
        if is_popped_before:
            await stuck.ack("g", "T", lost)
        assert (await moved.ack("g", "T", found)).status.code == OK
        (following,) = await moved.received("g", "T", **poll | {"attempt_id": "y"})
        assert following.system_properties.queue_offset == found.system_properties.queue_offset + 1

    play(tmp_path, scene)


def test_brokers_know_each_client_and_forget_it_when_it_ends(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T")
        client = await brokers.client(name="consumer-1")
        await client.consumes("g", "T", client_type=messages.PUSH_CONSUMER)
        for broker in brokers.brokers.values():
            connection = await brokers.api.consumer_connection(broker.address, "g")
            assert [one.client_id for one in connection.connection_set] == ["consumer-1"]
            info = await brokers.api.running_info(broker.address, "g", "consumer-1", jstack=False)
            assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"  # type: ignore[index]
        request = messages.NotifyClientTerminationRequest(group=messages.Resource(name="g"))
        assert (await client.call("NotifyClientTermination", request)).status.code == OK

        async def forgotten() -> bool:
            for broker in brokers.brokers.values():
                try:
                    await brokers.api.consumer_connection(broker.address, "g")
                    return False
                except BrokerError:
                    pass
            return True

        await eventually(forgotten)

    play(tmp_path, scene)


def test_a_group_is_created_by_its_first_request_unless_brokers_refuse_that(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T")
        door = await brokers.door()
        found = await door.brokers.group("new")
        allowed = brokers.brokers["a"].config.auto_create_subscription_group
        assert (found is not None) is allowed

    play(tmp_path / "1", scene, auto_create_subscription_group=True)
    play(tmp_path / "2", scene, auto_create_subscription_group=False)


def test_a_handle_of_an_unknown_broker_is_refused(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T")
        await brokers.join("g", "T")
        client = await brokers.client()
        await client.sent("T")
        (name,) = [name for name, counts in (await brokers.stored("T")).items() if sum(counts)]
        (message,) = await client.received("g", "T", broker=name)
        handle = message.system_properties.receipt_handle
        message.system_properties.receipt_handle = handle.replace(f" {name} ", " c ")
        assert (await client.ack("g", "T", message)).status.code == messages.INTERNAL_SERVER_ERROR

    play(tmp_path, scene)


def test_a_door_needs_the_address_of_a_name_server() -> None:
    async def scene() -> None:
        with pytest.raises(ConfigError):
            ClusterBrokers("", lambda: 0.0, lambda *_: None)

    run_stepped(scene())


READ_WRITE = int(PermName.READ | PermName.WRITE)


def test_a_broker_without_a_master_takes_and_gives_nothing() -> None:
    route = TopicRouteData(
        queue_datas=[QueueData("a", 4, 4, READ_WRITE), QueueData("b", 4, 4, READ_WRITE)],
        broker_datas=[BrokerData("c", "a", {0: "h:1"}), BrokerData("c", "b", {1: "h:2"})],
    )
    assert [data.perm for data in queues_of("T", route)] == [READ_WRITE, 0]


def test_an_order_configuration_says_which_queues_take_messages() -> None:
    route = TopicRouteData(
        "b:2;c:1",
        [QueueData("a", 4, 4, READ_WRITE), QueueData("b", 4, 4, READ_WRITE)],
        [BrokerData("c", "a", {0: "h:1"}), BrokerData("c", "b", {0: "h:2"})],
    )
    assert [data.write_queue_nums for data in queues_of("T", route)] == [0, 2]
