"""Clients whose connections move: to another door, or to the same one from another address."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run
from tests.unit.proxy.clusters import LIMIT_S, TwoBrokers, eventually
from tests.unit.proxy.doors import Door, DoorClient, opened

from rucola.broker.client.producer_manager import ProducerManager
from rucola.common import message_const
from rucola.common.hosts import host_text
from rucola.formats.message import decode_messages
from rucola.grpc.connection import GrpcConnection
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.proxy import messages, telemetry
from rucola.proxy.door import DoorConfig, GrpcDoor
from rucola.proxy.local import LocalBrokers
from rucola.proxy.presence import Presence
from rucola.proxy.sessions import ELSEWHERE_S, ClientSession
from rucola.remoting.fairness import steps
from rucola.testing.event_loop import advance, run_stepped, settle


@asynccontextmanager
async def two_doors(path: Path) -> AsyncIterator[tuple[Door, Door]]:
    """Two doors in front of one broker."""
    async with opened(path) as first:
        services = first.broker.services
        door = GrpcDoor(
            DoorConfig("127.0.0.1", 0),
            lambda asked: LocalBrokers(first.broker, asked),
            services.clock,
            services.supervisor,
        )
        await door.start()
        second = Door(first.cluster, door)
        try:
            yield first, second
        finally:
            for client in second.clients:
                client.close()
            await door.stop()


async def passes(seconds: float) -> None:
    """Lets time pass in small steps, as work follows work."""
    for _ in range(int(seconds * 4)):
        advance(0.25)
        await settle()


async def leaves(client: DoorClient) -> None:
    """Ends the connection of a client."""
    client.close()
    await client.lost.wait()
    await settle()


async def beats(client: DoorClient) -> int:
    """Sends a heartbeat; returns the code."""
    request = messages.HeartbeatRequest(group=messages.Resource(name="G"))
    code: int = (await client.call("Heartbeat", request)).status.code
    return code


async def finds_nothing(client: DoorClient) -> bool:
    """Whether a poll of five seconds finds no message."""
    call = client.receive("G", "T", long_polling_timeout={"seconds": 5})
    await passes(6)
    return bool((await call.all())[0].status.code == messages.MESSAGE_NOT_FOUND)


# -- messages that move ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_stream", [True, False])
def test_a_message_that_another_door_acknowledged_does_not_come_again(tmp_path: Path, has_stream: bool) -> None:
    async def play() -> None:
        async with two_doors(tmp_path) as (first, second):
            first.topic("T", queues=1)
            client = await first.client()
            if has_stream:
                await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            await client.sent("T", b"m")
            (found,) = await client.received("G", "T", auto_renew=True)
            await leaves(client)
            moved = await second.client()
            await moved.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            assert (await moved.ack("G", "T", found)).status.code == messages.OK
            await passes(130)
            assert not len(first.door.renewals) and not len(first.door.sessions)
            assert await finds_nothing(await second.client("c2"))

    run_stepped(play())


def test_a_message_that_another_door_acknowledged_does_not_come_again_when_its_client_returns(tmp_path: Path) -> None:
    async def play() -> None:
        async with two_doors(tmp_path) as (first, second):
            first.topic("T", queues=1)
            client = await first.client()
            await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            await client.sent("T", b"m")
            (found,) = await client.received("G", "T", auto_renew=True)
            await leaves(client)
            moved = await second.client()
            assert (await moved.ack("G", "T", found)).status.code == messages.OK
            await passes(ELSEWHERE_S + 1)
            back = await first.client()
            await back.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            for _ in range(7):
                await passes(10)
                await beats(back)
            request = messages.NotifyClientTerminationRequest(group=messages.Resource(name="G"))
            assert (await back.call("NotifyClientTermination", request)).status.code == messages.OK
            await passes(4)
            assert await finds_nothing(await second.client("c2"))

    run_stepped(play())


def test_a_connection_that_is_lost_and_opened_again_at_the_same_door_keeps_messages_hidden(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            door.topic("T", queues=1)
            client = await door.client()
            await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            await client.sent("T", b"m")
            (found,) = await client.received("G", "T", auto_renew=True)
            await leaves(client)
            await passes(1)
            again = await door.client()
            await again.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            for _ in range(10):
                await passes(10)
                await beats(again)
            assert await finds_nothing(await door.client("c2"))
            assert (await again.ack("G", "T", found)).status.code == messages.OK

    run_stepped(play())


def test_a_door_that_stops_leaves_the_messages_of_its_clients_to_them(tmp_path: Path) -> None:
    async def play() -> None:
        async with two_doors(tmp_path) as (first, second):
            first.topic("T", queues=1)
            client = await first.client()
            await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            await client.sent("T", b"m")
            (found,) = await client.received("G", "T", auto_renew=True)
            stopping = asyncio.ensure_future(first.door.stop())
            await passes(2)
            await stopping
            assert await finds_nothing(await second.client("c2"))
            moved = await second.client()
            assert (await moved.ack("G", "T", found)).status.code == messages.OK
            await passes(70)
            assert await finds_nothing(await second.client("c2"))

    run_stepped(play())


# -- who is asked ------------------------------------------------------------------------------------------------------


def test_only_a_producer_with_a_stream_is_asked(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            door.topic("T", kind="TRANSACTION")
            client = await door.client()
            producers = door.broker.services.producers
            stream = await client.produces("T")
            assert len(producers.clients("T")) == 1
            stream.cancel()
            await until(lambda: not producers.clients("T"))
            assert await beats(client) == messages.OK
            assert not producers.clients("T"), "a check would be lost, and counted"
            await client.produces("T")
            assert len(producers.clients("T")) == 1
            assert await beats(client) == messages.OK
            assert len(producers.clients("T")) == 1

    run(play())


def test_a_stream_that_is_lost_while_its_producer_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            lookups: list[asyncio.Event] = []
            find = LocalBrokers.broker_names

            async def slowly(brokers: LocalBrokers, topics: Any) -> Any:
                lookups.append(asyncio.Event())
                await lookups[-1].wait()
                return await find(brokers, topics)

            monkeypatch.setattr(LocalBrokers, "broker_names", slowly)
            topics = [messages.Resource(name="T")]
            call = client.settings(client_type=messages.PRODUCER, publishing=messages.Publishing(topics=topics))
            await until(lambda: bool(lookups))
            (session,) = door.door.sessions
            call.cancel()
            await until(lambda: session.stream is None)
            registered: list[str] = []
            register = ProducerManager.register

            def noted(manager: ProducerManager, group: str, channel: Any) -> None:
                registered.append(group)
                register(manager, group, channel)

            monkeypatch.setattr(ProducerManager, "register", noted)
            lookups[0].set()
            await until(lambda: bool(registered) and not door.broker.services.producers.clients("T"))

    run(play())


def test_a_stream_that_replaces_another_one_keeps_its_producer(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client, again = await door.client(), await door.client()
            stream = await client.produces("T")
            await again.produces("T")
            stream.cancel()
            assert await beats(again) == messages.OK  # the door has seen the end of the stream by now
            assert len(door.broker.services.producers.clients("T")) == 1

    run(play())


def test_a_producer_of_many_topics_that_has_a_stream_again_stays_registered(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            topics = [f"T{number}" for number in range(50)]
            client = await door.client()
            producers = door.broker.services.producers
            stream = await client.produces(*topics)
            stream.cancel()
            await until(lambda: not producers.clients("T3"))
            assert producers.clients("T49"), "one after another"
            await client.produces(*topics)
            assert await beats(client) == messages.OK
            assert all(len(producers.clients(topic)) == 1 for topic in topics)

    run(play())


def test_a_consumer_without_a_stream_is_known_again_after_a_heartbeat(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            door.topic("T")
            client = await door.client()
            stream = await client.consumes("G", "T")
            stream.cancel()
            await until(lambda: door.broker.services.consumers.group("G") is None)
            assert await beats(client) == messages.OK
            group = door.broker.services.consumers.group("G")
            assert group is not None and group.client_ids() == ["c1"]

    run(play())


def test_checks_of_a_producer_that_moved_go_to_its_new_door(tmp_path: Path) -> None:
    async def scene(brokers: TwoBrokers) -> None:
        await brokers.create("T", "TRANSACTION", names="a")
        old, new = await brokers.door(), await brokers.door()
        client = await brokers.client(old)
        await client.produces("T")
        client.close()
        moved = await brokers.client(new)
        stream = await moved.produces("T")
        producers = brokers.brokers["a"].services.producers

        async def is_known_once() -> bool:
            return len(producers.clients("T")) == 1

        await eventually(is_known_once)
        answer = await moved.sent("T", message_type=messages.TRANSACTION)
        asked = (await stream.next()).recover_orphaned_transaction_command
        assert asked.message.system_properties.message_id == answer.entries[0].message_id

    asyncio.run(played(tmp_path, scene, transaction_timeout_ms=0, transaction_check_interval_ms=50))


async def played(path: Path, scene: Callable[[TwoBrokers], Awaitable[None]], **broker: Any) -> None:
    async with TwoBrokers(path, **broker) as brokers:
        await asyncio.wait_for(scene(brokers), LIMIT_S)


async def until(holds: Callable[[], bool]) -> None:
    """Waits until something is as it must be."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0)


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
@pytest.mark.parametrize("kind", ["NORMAL", "MIXED"])
def test_messages_and_connections_show_the_address_that_a_client_has_now(tmp_path: Path, host: str, kind: str) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            door.topic("T", queues=1, kind=kind)
            client = await door.client()
            await client.consumes("G", "T")
            await client.sent("T", b"1")
            moved = DoorClient("c1")
            await asyncio.get_running_loop().create_connection(
                lambda: moved, "127.0.0.1", door.door.port, local_addr=(host, 0)
            )
            door.clients.append(moved)
            address = f"{host}:{moved._transport.get_extra_info('sockname')[1]}"
            await moved.sent("T", b"2")
            store = door.broker.store
            store.dispatch()
            found = store.get_message(b"T", 0, 0, 32, 1 << 20)
            hosts = [host_text(one.born_host) for view in found.views for one in decode_messages(view)]
            properties = [
                one.properties[message_const.BORN_HOST] for view in found.views for one in decode_messages(view)
            ]
            assert hosts[1] == properties[1] == address != hosts[0] == properties[0]
            await moved.consumes("G", "T")
            answer = await door.cluster.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
            assert answer.code == ResponseCode.SUCCESS and address.encode() in bytes(answer.body)

    run(play())


# -- many clients ------------------------------------------------------------------------------------------------------


def test_brokers_forget_many_clients_in_many_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, left = itertools.count(), []

    async def play() -> None:
        async def count() -> None:
            while True:
                next(turns)
                await asyncio.sleep(0)

        async def noted(_presence: Presence, session: ClientSession) -> None:
            left.append((next(turns), session.client_id))

        monkeypatch.setattr(Presence, "leave", noted)
        async with opened(tmp_path) as door:
            client = await door.client()
            for number in range(4):
                client.client_id = f"c{number}"
                await client.produces("T")
            counting = asyncio.ensure_future(count())
            await leaves(client)
            await until(lambda: len(left) == 4)
            counting.cancel()

    monkeypatch.setattr(telemetry, "_LEAVES_AT_ONCE", 1)
    run(play())
    assert sorted(name for _, name in left) == ["c0", "c1", "c2", "c3"]
    assert all(after > before + 1 for (before, _), (after, _) in itertools.pairwise(left)), left


def test_a_stop_tells_its_clients_in_many_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            streams = [await (await door.client(f"c{number}")).produces("T") for number in range(4)]
            told: list[int] = []

            async def watch() -> None:
                while len(told) < 100 and sum(session.stream is not None for session in door.door.sessions):
                    told.append(sum(session.stream is None or session.stream.is_over for session in door.door.sessions))
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            await asyncio.sleep(0)
            await door.door.stop()
            await watching
            assert {1, 2, 3} <= set(told), told
            for stream in streams:
                assert (await stream.next()).WhichOneof("command") == "reconnect_endpoints_command"

    monkeypatch.setattr(steps, "PIECE_S", 0.0)
    run(play())


def test_a_stop_ends_connections_in_many_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, ended = itertools.count(), []
    shut_down = GrpcConnection.shut_down

    def noted(connection: GrpcConnection) -> None:
        ended.append(next(turns))
        shut_down(connection)

    async def play() -> None:
        async def count() -> None:
            while True:
                next(turns)
                await asyncio.sleep(0)

        async with opened(tmp_path) as door:
            for number in range(4):
                await (await door.client(f"c{number}")).sent("T")
            counting = asyncio.ensure_future(count())
            await door.door.stop()
            counting.cancel()

    monkeypatch.setattr(steps, "PIECE_S", 0.0)
    monkeypatch.setattr(GrpcConnection, "shut_down", noted)
    run(play())
    assert len(ended) == 4 and all(after > before + 1 for before, after in itertools.pairwise(ended)), ended
