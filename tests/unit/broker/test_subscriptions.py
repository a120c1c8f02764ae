"""Subscriptions of a group: repeated, changed while a pull waits, and changed by clients that must not do so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.brokers import SUBSCRIPTION, SUSPEND, Cluster, properties_text, run

from rucola.broker.broker import Broker
from rucola.broker.pull import admission as pull_admission
from rucola.common.options import change_options
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
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
    """Sends a pull to queue 0 of T, from ``queue_offset`` on, and yields its future when the broker holds the pull."""
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
                await cluster.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})  # the message is visible
                cluster.broker.running.hold.recheck()
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
                await cluster.ask(
                    RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}
                )  # the messages are visible
                assert (cluster.broker.pulls_held, held.done()) == (1, False)
                await cluster.send("T", b"this", properties_text(UNIQ_KEY="5", TAGS="B", a="B"))
                answer = await held
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "7")
            (message,) = decode_messages(answer.body)
            assert message.body == b"this"
            async with held_pull(cluster, 7, sys_flag=SUSPEND | SUBSCRIPTION, **filtered) as held:
                await cluster.send("T", b"not this", texts[0])
                await cluster.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
                cluster.broker.running.hold.recheck()
                answer = await held
            # Its consumer still stores the progress every five seconds.
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


def _unsubscribe(broker: Broker) -> None:
    info = broker.services.consumers.group("cg")
    assert info is not None
    client = next(iter(info.clients.values()))
    other = SubscriptionData("U", sub_version=2)
    broker.services.consumers.register(
        client, "cg", info.consume_type, info.message_model, info.consume_from_where, [other]
    )


CHANGES: dict[str, tuple[Callable[[Broker], object], int]] = {
    "topic not readable": (lambda broker: broker.topics.update(TopicConfig("T", perm=2)), 16),
    "fewer queues": (lambda broker: broker.topics.update(TopicConfig("T", 1, 1)), 29),
    "topic deleted": (lambda broker: broker.topics.delete("T"), 17),
    "group off": (lambda broker: broker.groups.update(SubscriptionGroupConfig("cg", consume_enable=False)), 16),
    "topic forbidden to the group": (lambda broker: broker.groups.set_readable("cg", "T", False), 16),
    "subscribed to something else": (_unsubscribe, 24),
    "lite pulls off": (lambda broker: change_options(broker.config, {"litePullMessageEnable": "false"}), 16),
    "active consumers off": (lambda broker: change_options(broker.config, {"rejectPullConsumerEnable": "true"}), 24),
}


@pytest.mark.parametrize("change", CHANGES)
def test_knowledge_of_a_consumer_goes_with_its_grounds(tmp_path: Path, change: str) -> None:
    act, code = CHANGES[change]

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for queue_id in range(2):
                await cluster.send("T", b"message", queue_id=queue_id)
            active = ConsumeType.CONSUME_ACTIVELY if change == "active consumers off" else ConsumeType.CONSUME_PASSIVELY
            await cluster.ask(RequestCode.HEART_BEAT, body=beat("T", kind=active))
            other = RemotingClient()
            answers = []
            for number in range(3):
                if number == 2:
                    act(cluster.broker)
                command = cluster.pull_command("T", 1, sys_flag=0)
                command.code = RequestCode.LITE_PULL_MESSAGE
                answers.append((await other.invoke(cluster.broker.address, command, 5000)).code)
            assert answers == [0, 0, code]
            await other.close()

    run(scene())


def test_new_tags_count_with_the_next_pull(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for tag in "AB":
                await cluster.send("T", tag.encode(), properties_text(UNIQ_KEY=tag, TAGS=tag))
            for version, tags in enumerate(("A", "B", "AB"), 1):
                await cluster.ask(RequestCode.HEART_BEAT, body=beat("T", tags=tags, version=version))
                for _ in range(2):
                    answer = await cluster.pull("T", sys_flag=0)
                    assert [bytes(message.body) for message in decode_messages(answer.body)] == [
                        tag.encode() for tag in tags
                    ]
            for tags in ("B", "A||B"):  # the pull itself contains these expressions
                for _ in range(2):
                    answer = await cluster.pull("T", expression=tags)
                    assert len(list(decode_messages(answer.body))) == len(tags.split("||"))

    run(scene())


def test_knowledge_of_consumers_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_admission, "_KEPT_MAX", 3)

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send()
            admissions = pull_admission.PullAdmissions(cluster.broker.services)
            for number in range(8):
                asked = pull_admission.RepeatedFields(
                    b"T", b"cg", 0, RequestCode.PULL_MESSAGE, None, b"%d" % number, b"TAG"
                )
                found = admissions.find(asked, object())
                assert (found.tag_codes, admissions.find(asked, object())) == ({48 + number}, found)
                assert 1 <= len(admissions._kept) <= 3
            admissions.find(asked._replace(expression=b"0 || " + b"x" * 300), object())
            assert len(admissions._kept) <= 3
            assert all(len(kept.expression) == 1 for kept in admissions._kept)

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
