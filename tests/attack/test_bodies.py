"""Long bodies: each may be only as long as its request needs, and is parsed in a thread while other requests are
served.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.attack.guarded import ADMIN, ALICE, DENIED, Guarded
from tests.brokers import Cluster, run

from rucola.protocol import fastjson
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData
from rucola.protocol.body_limits import body_bytes_max
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.fairness import json_bodies
from rucola.remoting.fairness.json_bodies import AHEAD_MAX, JSON_CODES, SHORT_BYTES, JsonBodies

LONG_NAMES = [f"a-producer-group-with-a-long-name-{number}" for number in range(1000)]
HEARTBEAT = orjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": name} for name in LONG_NAMES]})


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads in which bodies were parsed."""
    names: list[str] = []
    loads = fastjson.loads

    def noted(source: Any) -> Any:
        if not isinstance(source, fastjson.ReadBody):
            names.append(threading.current_thread().name)
        return loads(source)

    monkeypatch.setattr(fastjson, "loads", noted)
    return names


@pytest.mark.parametrize("code", sorted(JSON_CODES))
def test_s15_a_body_that_is_longer_than_any_request_needs_is_not_read(
    tmp_path: Path, code: int, readers: list[str]
) -> None:
    """Before sizes were limited, parsing 16 MiB of JSON took 5 to 41 s."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            readers.clear()
            server = cluster.namesrv.address if code in (217, 322) else cluster.broker.address
            command = RemotingCommand(code, body=b'{"mqSet":[' + b"1," * (body_bytes_max(code) // 2) + b"1]}")
            answer = await cluster.client.invoke(server, command, 10_000)
            own = (RequestCode.BATCH_ACK_MESSAGE, RequestCode.LITE_SUBSCRIPTION_CTL)
            served = code < RequestCode.AUTH_CREATE_USER or code in own
            assert answer.code == (
                ResponseCode.INVALID_PARAMETER if served else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            )
            if served:
                assert f"at most {body_bytes_max(code)} bytes" in answer.remark
            assert readers == []

    run(scene())


def test_a_long_body_is_read_in_a_thread_once(tmp_path: Path, readers: list[str]) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            readers.clear()
            assert SHORT_BYTES < len(HEARTBEAT) <= body_bytes_max(RequestCode.HEART_BEAT)
            assert (await cluster.ask(RequestCode.HEART_BEAT, body=HEARTBEAT)).code == 0
            assert len(cluster.broker.services.producers.groups()) == len(LONG_NAMES)
            assert (await cluster.ask(RequestCode.HEART_BEAT, body=HEARTBEAT[:-3])).code == ResponseCode.SYSTEM_ERROR
            assert [name.startswith("rucola-json") for name in readers] == [True, True]

    run(scene())


def test_others_are_served_while_a_body_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_on = threading.Event()
    loads = fastjson.loads

    def held_up(source: Any) -> Any:
        if threading.current_thread().name.startswith("rucola-json"):
            assert read_on.wait(30)
        return loads(source)

    monkeypatch.setattr(fastjson, "loads", held_up)
    monkeypatch.setattr(json_bodies, "WAITING_BYTES_MAX", 2 * len(HEARTBEAT))

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            beats = [asyncio.create_task(cluster.ask(RequestCode.HEART_BEAT, body=HEARTBEAT)) for _ in range(3)]
            await asyncio.wait(beats, return_when=asyncio.FIRST_COMPLETED)
            refused = [beat.result().code for beat in beats if beat.done()]
            assert refused == [ResponseCode.SYSTEM_BUSY], "two bodies wait, so there is no room for a third"
            assert (await cluster.send()).code == 0
            read_on.set()
            assert sorted(answer.code for answer in await asyncio.gather(*beats)) == [0, 0, ResponseCode.SYSTEM_BUSY]
            assert (await cluster.ask(RequestCode.HEART_BEAT, body=HEARTBEAT)).code == 0, "there is room again"

    try:
        run(scene())
    finally:
        read_on.set()


def test_parsed_bodies_are_served_one_in_a_turn_and_few_are_parsed_ahead(readers: list[str]) -> None:
    """Before the fix, heartbeats with 1,000 groups each were all registered in one turn, which took up to 190 ms. With
    registrations put off to later turns, up to 1.2 GB of parsed bodies waited in memory.
    """

    async def scene() -> None:
        bodies, turn, served, most_ahead = JsonBodies(), 0, list[int](), 0
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        async def serve() -> None:
            nonlocal most_ahead
            command = RemotingCommand(RequestCode.HEART_BEAT, body=HEARTBEAT)
            await bodies.read(command)
            assert isinstance(command.body, fastjson.ReadBody)
            most_ahead = max(most_ahead, len(readers) - len(served))
            served.append(turn)

        count()
        reading = [asyncio.create_task(serve()) for _ in range(40)]
        for _ in range(20):  # one long turn after the other: the thread parses meanwhile
            time.sleep(0.005)
            await asyncio.sleep(0)
        await asyncio.gather(*reading)
        bodies.close()
        assert len(set(served)) == len(served) == 40
        assert 1 < most_ahead <= AHEAD_MAX

    asyncio.run(scene())


def test_a_heartbeat_whose_connection_ended_while_it_was_read_registers_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, clients whose heartbeat was parsed after the end of their connection were never removed: 20,000
    groups per connection stayed forever.
    """
    read_on, begun = threading.Event(), threading.Event()
    loads = fastjson.loads

    def held_up(source: Any) -> Any:
        if threading.current_thread().name.startswith("rucola-json"):
            begun.set()
            assert read_on.wait(30)
        return loads(source)

    monkeypatch.setattr(fastjson, "loads", held_up)

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            connection = await cluster.connect()
            [channel] = cluster.broker._server.channels
            connection.send(RemotingCommand(RequestCode.HEART_BEAT, body=HEARTBEAT), 1)
            await asyncio.to_thread(begun.wait, 30)
            connection.close()
            while not channel.closed:
                await asyncio.sleep(0)
            read_on.set()
            assert (await cluster.ask(RequestCode.HEART_BEAT, body=HEARTBEAT)).code == 0
            producers = cluster.broker.services.producers
            assert len(producers.groups()) == len(LONG_NAMES)
            assert producers.groups_of(channel) == 0

    try:
        run(scene())
    finally:
        read_on.set()


def test_rights_for_a_long_body_are_judged_when_it_was_read(tmp_path: Path, readers: list[str]) -> None:
    def queues(topic: str, group: str = "GA") -> bytes:
        names = [{"topic": topic, "brokerName": "b", "queueId": number} for number in range(400)]
        return orjson.dumps({"consumerGroup": group, "clientId": "c", "mqSet": names})

    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            await cluster.as_account(ADMIN, RemotingCommand(200, body=b'{"groupName":"GA"}'))
            beat = HeartbeatData("c", [], [ConsumerData("GA")]).encode()
            assert await cluster.code(ALICE, RemotingCommand(RequestCode.HEART_BEAT, body=beat)) == 0
            readers.clear()

            async def locked(account: tuple[str, str], body: bytes) -> RemotingCommand:
                assert len(body) > SHORT_BYTES
                return await cluster.as_account(account, RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body))

            answer = await locked(ALICE, queues("A"))
            assert len(orjson.loads(answer.body)["lockOKMQSet"]) == 1
            assert (await locked(ALICE, queues("B"))).code == DENIED
            assert (await locked(ALICE, queues("A", "GB"))).code == DENIED
            assert (await locked(ALICE, queues("A")[:-4])).remark == "access denied: the body cannot be read"
            assert (await locked(ADMIN, queues("B", "any"))).code == 2, "allowed, but without a heartbeat"
            too_long = b" " * body_bytes_max(RequestCode.LOCK_BATCH_MQ) + queues("A")
            assert (await locked(ALICE, too_long)).code == DENIED
            assert len(readers) == 5 and all(name.startswith("rucola-json") for name in readers)

    run(scene())
