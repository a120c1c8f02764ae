"""Offsets that an administrator sets, either in the broker or through the group's clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import COMMIT, SUBSCRIPTION, SUSPEND, Cluster, run_virtual

from rucola.broker.processor import offset_reset
from rucola.broker.topic.topic_removal import TopicRemoval
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import RemotingError
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from rucola.protocol.bodies.offsets import GetConsumerStatusBody, ResetOffsetBody, ResetOffsetBodyForC
from rucola.protocol.codes import LanguageCode, RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.offset import ResetOffsetRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.fairness import steps
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError


async def fill(cluster: Cluster) -> None:
    """Puts five messages into queue 0 and three into queue 1; the group has read two in queue 0 and one in queue 1."""
    cluster.broker.topics.update(TopicConfig("T", 2, 2, 6))
    cluster.broker.groups.update(SubscriptionGroupConfig("cg"))
    for queue_id, count in ((0, 5), (1, 3)):
        for _ in range(count):
            await cluster.send("T", queue_id=queue_id)
    cluster.broker.offsets.commit("cg", "T", 0, 2)
    cluster.broker.offsets.commit("cg", "T", 1, 1)


async def reset(
    cluster: Cluster, timestamp: int = -1, language: LanguageCode = LanguageCode.JAVA, **more: object
) -> RemotingCommand:
    fields = ResetOffsetRequestHeader("T", "cg", timestamp, True).to_ext_fields() | {
        name: str(value) for name, value in more.items()
    }
    command = RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext_fields=fields, language=language)
    return await cluster.client.invoke(cluster.broker.address, command, 5000)


async def committed(cluster: Cluster, queue_id: int = 0) -> str:
    answer = await cluster.ask(14, {"consumerGroup": "cg", "topic": "T", "queueId": str(queue_id)})
    return answer.ext_fields["offset"]


def test_the_next_pull_hears_of_it(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await fill(cluster)
            answer = await reset(cluster)
            assert (answer.code, answer.remark) == (0, "")
            assert ResetOffsetBody.decode(answer.body).offset_table == {
                MessageQueue("T", "broker-a", 0): 5, MessageQueue("T", "broker-a", 1): 3
            }  # fmt: skip
            assert (await committed(cluster), await committed(cluster, 1)) == ("5", "3")
            commit = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "1"}
            ignored = await cluster.ask(15, commit)
            assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
            told = await cluster.pull("T", 0, 2, sys_flag=SUBSCRIPTION | COMMIT, commit_offset=1)
            assert (told.code, told.remark) == (21, "OFFSET_RESET")
            wanted = {"nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5"}
            assert {name: told.ext_fields[name] for name in wanted} == wanted
            assert await committed(cluster) == "5"
            assert (await cluster.pull("T", 0, 2)).code == 0
            await cluster.ask(15, commit)
            assert await committed(cluster) == "1"

    run_virtual(scene())


def test_a_waiting_pull_hears_of_it_at_once(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await fill(cluster)
            flags = SUBSCRIPTION | SUSPEND
            held = asyncio.ensure_future(cluster.pull("T", 0, 5, sys_flag=flags, suspend_ms=60_000))
            other = asyncio.ensure_future(cluster.pull("T", 0, 5, sys_flag=flags, suspend_ms=60_000, group="other"))
            while cluster.broker.pulls_held < 2:
                await asyncio.sleep(0)
            await reset(cluster, 0)
            answer = await held
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (21, "0")
            assert not other.done()
            await cluster.send("T")
            assert (await other).code == 0

    run_virtual(scene())


@pytest.mark.parametrize(
    ("more", "code", "answered"),
    [
        ({"queueId": 0, "offset": 3}, 0, {0: 3}),
        ({"queueId": 0, "offset": 6}, 0, {0: 6}),
        ({"queueId": 1, "offset": -1}, 0, {1: 0}),
        ({"queueId": 1}, 0, {1: 0}),
        ({}, 0, {0: 0, 1: 0}),
        ({"queueId": 0, "offset": 7}, 1, "Target offset 7 not in consume queue range [0-5]"),
        ({"topic": "none"}, 17, "Topic none does not exist"),
        ({"group": "none"}, 26, "Group none does not exist"),
    ],
)
def test_offsets_are_reset(tmp_path, more, code, answered):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await fill(cluster)
            answer = await reset(cluster, 1000, **more)
            assert answer.code == code
            if code:
                assert answer.remark == answered
            else:
                table = ResetOffsetBody.decode(answer.body).offset_table
                assert {queue.queue_id: offset for queue, offset in table.items()} == answered

    run_virtual(scene())


async def consumer(cluster: Cluster, told: list[RemotingCommand], version: int = 479) -> RemotingClient:
    client = RemotingClient()

    def take(_address: str, command: RemotingCommand) -> RemotingCommand:
        told.append(command)
        table = {MessageQueue("T", "broker-a", 0): 4}
        return command.answer(0, body=GetConsumerStatusBody(table).encode())

    for code in (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT):
        client.register_processor(code, take)
    data = ConsumerData("cg", subscription_data_set=[SubscriptionData("T", "*")])
    beat = RemotingCommand(34, body=HeartbeatData("c1", [], [data]).encode(), version=version)
    await client.invoke(cluster.broker.address, beat, 5000)
    return client


def test_by_the_clients(tmp_path):
    """The clients reset their offsets themselves, as with brokers of 4.9. C++ clients get the offsets as a list."""

    async def scene() -> None:
        async with Cluster(tmp_path, use_server_side_reset_offset=False) as cluster:
            await fill(cluster)
            answer = await reset(cluster)
            assert (answer.code, answer.remark) == (
                206, "Consumer not online, so can not reset offset, Group: cg Topic: T Timestamp: -1"
            )  # fmt: skip
            told: list[RemotingCommand] = []
            client = await consumer(cluster, told)
            answer = await reset(cluster)
            assert (answer.code, answer.remark) == (0, "not set any response code")
            while not told:
                await asyncio.sleep(0)
            assert told[0].ext_fields == {
                "topic": "T", "group": "cg", "timestamp": "-1", "isForce": "false", "queueId": "-1"
            }  # fmt: skip
            assert bytes(told[0].body) == bytes(answer.body)
            assert await committed(cluster) == "2"
            await reset(cluster, language=LanguageCode.CPP)
            while len(told) < 2:
                await asyncio.sleep(0)
            first = ResetOffsetBodyForC.decode(told[1].body).offset_table[0]
            assert (first.topic, first.broker_name, first.queue_id, first.offset) == ("T", "broker-a", 0, 5)
            assert ResetOffsetBody.decode((await reset(cluster, isForce="false")).body).offset_table == {
                MessageQueue("T", "broker-a", 0): 2, MessageQueue("T", "broker-a", 1): 1
            }  # fmt: skip
            await client.close()
            cluster.broker.groups.update(SubscriptionGroupConfig("new"))
            answer = await reset(cluster, group="new")
            assert (answer.code, answer.remark) == (1, "THe consumer group <new> not exist")

    run_virtual(scene())


def test_offsets_of_the_clients(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await fill(cluster)
            assert (await cluster.ask(223, {"topic": "T", "group": "cg"})).code == 1
            told: list[RemotingCommand] = []
            client = await consumer(cluster, told)
            answer = await cluster.ask(223, {"topic": "T", "group": "cg"})
            assert answer.code == 0
            table = {MessageQueue("T", "broker-a", 0): 4}
            assert GetConsumerStatusBody.decode(answer.body) == GetConsumerStatusBody({}, {"c1": table})
            assert told[0].ext_fields == {"topic": "T", "group": "cg"}
            none = await cluster.ask(223, {"topic": "T", "group": "cg", "clientAddr": "other"})
            assert GetConsumerStatusBody.decode(none.body) == GetConsumerStatusBody()
            await client.close()
            old = await consumer(cluster, told, version=20)
            answer = await cluster.ask(223, {"topic": "T", "group": "cg"})
            assert (answer.code, answer.remark[:44]) == (1, "the client does not support this feature. ve")
            await old.close()

    run_virtual(scene())


def test_a_forbidden_pull_says_what_forbids_it(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await fill(cluster)
            client = await consumer(cluster, [])
            cluster.broker.groups.forbidden["cg"] = {"T": 4}
            answer = await cluster.pull(sys_flag=0)
            assert (answer.code, answer.ext_fields) == (16, {"forbiddenType": "5"})
            assert answer.remark == "the consumer group[cg] is forbidden for topic[T]"
            cluster.broker.groups.update(SubscriptionGroupConfig("cg", consume_enable=False))
            assert (await cluster.pull()).ext_fields == {"forbiddenType": "2"}
            cluster.broker.topics.update(TopicConfig("T", 2, 2, 2))
            assert (await cluster.pull(group="other")).ext_fields == {"forbiddenType": "3"}
            await client.close()

    run_virtual(scene())


WIDE = 300


@asynccontextmanager
async def wide(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[tuple[Cluster, list[int]]]:
    """A cluster with a topic of ``WIDE`` queues with a message each. In the list is, for each turn of a reset, the
    number of queues that were looked at. A look at the clock always finds that the turn is over.
    """
    monkeypatch.setattr(steps, "PIECE_S", -1.0)
    async with Cluster(path, **options) as cluster:
        await cluster.broker.topics.update(TopicConfig("T", WIDE, WIDE, 6))
        cluster.broker.groups.update(SubscriptionGroupConfig("cg"))
        await asyncio.gather(*[cluster.send("T", queue_id=queue_id) for queue_id in range(WIDE)])
        store, looks = cluster.broker.store, list[int]()
        while store.dispatch_behind_bytes:
            await asyncio.sleep(0.001)
        find = store.max_queue_offset

        def counted(topic: bytes, queue_id: int) -> int:
            if not looks or queue_id == 0:
                looks.append(0)
                asyncio.get_running_loop().call_soon(ended)
            looks[-1] += 1
            return find(topic, queue_id)

        def ended() -> None:
            if len(looks) < WIDE:
                looks.append(0)
                asyncio.get_running_loop().call_soon(ended)

        monkeypatch.setattr(store, "max_queue_offset", counted)
        yield cluster, looks
        monkeypatch.setattr(store, "max_queue_offset", find)


@pytest.mark.parametrize("by_clients", [False, True])
def test_the_queues_of_a_wide_topic_take_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_clients: bool
) -> None:
    """Before the fix, the reset of a topic with 4,096 queues took a turn of 120 ms."""

    async def scene() -> None:
        async with wide(tmp_path, monkeypatch, use_server_side_reset_offset=not by_clients) as (cluster, looks):
            if by_clients:
                for queue_id in range(WIDE):
                    cluster.broker.offsets.commit("cg", "T", queue_id, 0)
            answer = await reset(cluster)
            assert answer.code == (206 if by_clients else 0)
            assert max(looks) <= 2 and sum(looks) >= WIDE
            if not by_clients:
                assert set(ResetOffsetBody.decode(answer.body).offset_table.values()) == {1}
                assert {int(await committed(cluster, queue_id)) for queue_id in (0, 7, WIDE - 1)} == {1}

    run_virtual(scene())


def test_a_queue_is_looked_at_once_however_often_the_disk_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await fill(cluster)
            store = cluster.broker.store

            def cold_twice(_topic: bytes, queue_id: int, _time_ms: int, *, cold: ColdRecords) -> int:
                looks.append(queue_id)
                if queue_id == 1 and looks.count(1) < 3:
                    raise NotInMemoryError(cold)
                return 7

            monkeypatch.setattr(store, "offset_by_time", cold_twice)
            answer = await reset(cluster, timestamp=5)
            assert set(ResetOffsetBody.decode(answer.body).offset_table.values()) == {7}
            assert looks == [0, 1, 1, 1]

    run_virtual(scene())


async def begun(looks: list[int]) -> None:
    while sum(looks) < 10:
        await asyncio.sleep(0)


def test_changes_while_a_reset_looks_at_the_queues_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with wide(tmp_path, monkeypatch) as (cluster, looks):
            removal = TopicRemoval(cluster.broker.services, cluster.broker.running.hold)
            first = asyncio.ensure_future(reset(cluster))
            await begun(looks)
            assert cluster.broker.offsets.query("cg", "T", 0) is None, "nothing is set before everything is found"
            second = asyncio.ensure_future(reset(cluster, queueId=3, offset=0))
            assert [(await first).code, (await second).code] == [0, 0]
            assert [cluster.broker.offsets.query("cg", "T", queue_id) for queue_id in (2, 3)] == [1, 0], (
                "in their order"
            )

            looks.clear()
            again = asyncio.ensure_future(reset(cluster))
            await begun(looks)
            removal.remove("T")
            assert ((await again).code, cluster.broker.offsets.query("cg", "T", 0)) == (17, None), "the topic is gone"

            await cluster.broker.topics.update(TopicConfig("T", WIDE, WIDE, 6))
            await cluster.send("T")
            looks.clear()
            again = asyncio.ensure_future(reset(cluster))
            await begun(looks)
            removal.remove("T")
            cluster.broker.topics.update(TopicConfig("T", 2, 2, 6))
            assert set(ResetOffsetBody.decode((await again).body).offset_table.values()) == {0}, "another topic"
            assert cluster.broker.offsets.table["T@cg"] == {0: 0, 1: 0}

            await cluster.broker.topics.update(TopicConfig("T", WIDE, WIDE, 6))
            looks.clear()
            again = asyncio.ensure_future(reset(cluster))
            await begun(looks)
            cluster.broker.groups.delete("cg")
            assert (await again).code == 26, "the group is gone"

    run_virtual(scene())


def test_a_reset_ends_without_its_connection_and_not_after_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with wide(tmp_path, monkeypatch) as (cluster, looks):
            connection = await cluster.connect()
            fields = ResetOffsetRequestHeader("T", "cg", -1, True).to_ext_fields()
            connection.send(RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext_fields=fields), 1)
            await begun(looks)
            connection.close()
            while cluster.broker.offsets.query("cg", "T", 0) is None:
                await asyncio.sleep(0)
            assert set(cluster.broker.offsets.table["T@cg"].values()) == {1} and len(looks) > 10

            async def for_ever(_steps: Any) -> None:
                asked.set()
                await asyncio.Event().wait()

            asked = asyncio.Event()
            monkeypatch.setattr(offset_reset, "in_turns", for_ever)
            stopped = asyncio.ensure_future(reset(cluster, queueId=0, offset=0))
            await asked.wait()
            await cluster.stop_broker()
            with contextlib.suppress(RemotingError):
                assert (await stopped).code != 0
            assert cluster.broker.offsets.query("cg", "T", 0) == 1

    run_virtual(scene())
