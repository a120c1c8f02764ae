"""What a group says it reads: said again, said differently while a pull waits, and who may say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.brokers import SUBSCRIPTION, SUSPEND, Cluster, properties_text, run

from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.formats.message import decode_messages
from rucola.protocol.bodies.heartbeat import ConsumerData, ConsumeType, HeartbeatData, SubscriptionData
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient


def beat(
    *topics: str,
    client_id: str = "c1",
    group: str = "cg",
    kind: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
    tags: str = "",
    version: int = 1,
) -> bytes:
    codes = frozenset(ord(tag) for tag in tags)
    wanted = [SubscriptionData(topic, tags or "*", code_set=codes, sub_version=version) for topic in topics]
    return HeartbeatData(client_id, [], [ConsumerData(group, kind, subscription_data_set=wanted)]).encode()


@asynccontextmanager
async def held_pull(
    cluster: Cluster, queue_offset: int = 1, **options: object
) -> AsyncIterator[asyncio.Future[RemotingCommand]]:
    """A pull of what comes behind the first messages of T; it waits."""
    held = asyncio.ensure_future(cluster.pull("T", 0, queue_offset, suspend_ms=60_000, **options))
    while not cluster.broker.pulls_held:
        await asyncio.sleep(0)
    yield held


def test_a_heartbeat_as_before_says_again_what_another_client_unsaid(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            other = RemotingClient()
            for topic in ("T", "U"):
                await cluster.send(topic)
            await cluster.ask(RequestCode.HEART_BEAT, body=beat("T", "U"))
            only_t = RemotingCommand(RequestCode.HEART_BEAT, body=beat("T", client_id="c2"))
            await other.invoke(cluster.broker.address, only_t)
            refused = await cluster.pull("U", sys_flag=0)
            assert (refused.code, "the consumer's subscription not exist" in refused.remark) == (24, True)
            await cluster.ask(RequestCode.HEART_BEAT, body=beat("T", "U"))
            assert (await cluster.pull("U", sys_flag=0)).code == 0
            await other.close()

    run(scene())


def test_a_heartbeat_as_before_makes_the_retry_topic_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.ask(RequestCode.HEART_BEAT, body=beat("T"))
            await cluster.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%RETRY%cg"})
            assert cluster.broker.topics.get("%RETRY%cg") is None
            await cluster.ask(RequestCode.HEART_BEAT, body=beat("T"))
            assert cluster.broker.topics.get("%RETRY%cg") is not None

    run(scene())


def test_a_pull_that_waits_reads_what_its_group_wants_by_then(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"0", properties_text(UNIQ_KEY="0", TAGS="A"))
            await cluster.ask(RequestCode.HEART_BEAT, body=beat("T", tags="A"))
            async with held_pull(cluster, sys_flag=SUSPEND) as held:
                await cluster.ask(RequestCode.HEART_BEAT, body=beat("T", tags="AB", version=2))
                await cluster.send("T", b"1", properties_text(UNIQ_KEY="1", TAGS="B"))
                await cluster.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})  # it is visible
                cluster.broker.services.hold.recheck()
                answer = await held
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "2")

    run(scene())


@pytest.mark.parametrize(
    "filtered", [{"expression": "B"}, {"expression": "a = 'B'", "expression_type": "SQL92"}], ids=["tags", "sql"]
)
def test_messages_for_others_do_not_end_a_wait(tmp_path: Path, filtered: dict[str, str]) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            await cluster.send("T", b"0")
            async with held_pull(cluster, sys_flag=SUSPEND | SUBSCRIPTION, **filtered) as held:
                texts = [properties_text(UNIQ_KEY=f"{number}", TAGS="ACDEF"[number], a="A") for number in range(5)]
                await asyncio.gather(*[cluster.send("T", b"not this", text) for text in texts])
                await cluster.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})  # they are visible
                assert (cluster.broker.pulls_held, held.done()) == (1, False)
                await cluster.send("T", b"this", properties_text(UNIQ_KEY="5", TAGS="B", a="B"))
                answer = await held
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "7")
            (message,) = decode_messages(answer.body)
            assert message.body == b"this"
            async with held_pull(cluster, 7, sys_flag=SUSPEND | SUBSCRIPTION, **filtered) as held:
                await cluster.send("T", b"not this", texts[0])
                await cluster.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
                cluster.broker.services.hold.recheck()
                answer = await held
            # Every five seconds its consumer hears how far it is all the same.
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "8")

    run(scene())


@pytest.mark.parametrize("sys_flag", [SUSPEND, SUSPEND | SUBSCRIPTION])
def test_a_pull_that_waits_is_refused_what_became_forbidden(tmp_path: Path, sys_flag: int) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"0")
            await cluster.ask(RequestCode.HEART_BEAT, body=beat("T"))
            async with held_pull(cluster, sys_flag=sys_flag) as held:
                cluster.broker.groups.update(SubscriptionGroupConfig("cg", consume_enable=False))
                await cluster.send("T", b"1")
                answer = await held
            assert (answer.code, answer.remark) == (16, "subscription group no permission, cg")

    run(scene())


def test_active_consumers_can_be_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, reject_pull_consumer_enable=True) as cluster:
            await cluster.send("T")
            for _ in range(2):
                await cluster.ask(RequestCode.HEART_BEAT, body=beat("T"))
                active = beat("T", group="active", kind=ConsumeType.CONSUME_ACTIVELY)
                await cluster.ask(RequestCode.HEART_BEAT, body=active)
            assert (await cluster.ask(38, {"consumerGroup": "active"})).code == 1
            assert (await cluster.pull(sys_flag=0)).code == 0
            refused = await cluster.pull(group="active")
            assert refused.code == 24
            assert "the pull consumer is rejected by server" in refused.remark
            for tool in ("TOOLS_CONSUMER", "CID_RMQ_SYS_any"):
                assert (await cluster.pull(group=tool)).code == 0

    run(scene())


def test_a_negative_progress_is_none(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T")
            cluster.broker.offsets.commit("cg", "T", 0, -1)
            where = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
            assert (await cluster.ask(14, where)).ext_fields["offset"] == "0"
            assert (await cluster.ask(14, where | {"setZeroIfNotFound": "false"})).code == 22

    run(scene())
