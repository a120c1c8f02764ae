"""Messages that a consumer sends back, over the wire; their records are compared byte for byte with RocketMQ's."""

from __future__ import annotations

import asyncio

import pytest
from tests.brokers import Cluster, properties_text, run_virtual
from tests.golden.loader import load_broker
from tests.plain_log import PlainRecord, read_log
from tests.tables import keep_nothing

from rucola.broker.client.rebalance_lock import LOCK_LIFETIME_S, RebalanceLockManager
from rucola.broker.config import BrokerConfig
from rucola.broker.processor.dead_letter import DeadLetterRule
from rucola.broker.processor.send_back import returned_message
from rucola.broker.schedule.delay_rewrite import delay_rewrite
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.java import parse_properties
from rucola.common.message import StoreMessage
from rucola.common.message_const import FIRST_POP_TIME, REAL_TOPIC
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.formats.message import decode_message, decode_messages, encode_message
from rucola.formats.properties import decode_properties, encode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.client import ConsumerSendMsgBackRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.testing.clock import ManualClock

HOST = bytes([127, 0, 0, 1, 0, 0, 1, 1])
RECORDED = [
    (0, 1467, "%RETRY%G_store", 1),
    (1842, 2212, "%DLQ%G_store", 0),
    (246, 2580, "%RETRY%G_store", 1),
    (489, 3319, "%RETRY%G_store", 6),
    (736, 3695, "%DLQ%G_store", 0),
]
"""In store ``retry_clean``: physical offset of the message that was sent back, and physical offset, topic and delay
level of its copy.
"""


def recorded_retries() -> dict[int, PlainRecord]:
    case = load_broker("retry_clean")
    segments = {path.removeprefix("commitlog/"): data for path, data in case.files.items() if path.startswith("commit")}
    log = read_log(segments, int(parse_properties(case.broker_conf)["mappedFileSizeCommitLog"]))
    return {record.physical_offset: record for record in log.records}


@pytest.mark.parametrize(("origin", "stored", "topic", "level"), RECORDED)
def test_stored_as_the_reference_stored_it(origin: int, stored: int, topic: str, level: int) -> None:
    records = recorded_retries()
    message, wanted = decode_message(records[origin].data, unpack=False), records[stored]
    returned = delay_rewrite(returned_message(message, topic, 0, level), 18)
    made = encode_message(
        returned, stored, wanted.queue_offset, wanted.store_timestamp_ms, decode_message(wanted.data).store_host
    )
    assert made == wanted.data


async def give_back(
    cluster: Cluster, physical_offset: int, group: str = "cg", level: int = -1, **more: int
) -> RemotingCommand:
    header = ConsumerSendMsgBackRequestHeader(physical_offset, group, level, origin_topic="T", **more)
    return await cluster.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext_fields())


def test_a_refused_message_is_a_dead_letter(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            sent = await cluster.send("T", b"no", properties_text(UNIQ_KEY="U", TAGS="A", WAIT="true"))
            answer = await give_back(cluster, 0)
            assert (answer.code, answer.remark, answer.ext_fields) == (0, "", {})
            assert cluster.broker.topics.get("%DLQ%cg") == TopicConfig("%DLQ%cg", 1, 1, 6)
            assert cluster.broker.topics.get("%RETRY%cg") == TopicConfig("%RETRY%cg", 1, 1, 6)
            (dead,) = decode_messages((await cluster.pull("%DLQ%cg")).body)
            assert (dead.body, dead.reconsume_times) == (b"no", 1)
            named = {
                name: dead.properties[name] for name in ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "WAIT", "TAGS")
            }
            assert named == {
                "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": sent.ext_fields["msgId"], "DELAY": "0", "WAIT": "false",
                "TAGS": "A",
            }  # fmt: skip

    run_virtual(scene())


def test_times_and_origin_are_kept_over_several_returns(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            sent = await cluster.send("T", b"no")
            await give_back(cluster, 0)
            (first,) = decode_messages((await cluster.pull("%DLQ%cg")).body)
            assert (await give_back(cluster, first.physical_offset)).code == 0
            _, second = decode_messages((await cluster.pull("%DLQ%cg")).body)
            assert (second.reconsume_times, second.properties["RETRY_TOPIC"]) == (2, "T")
            assert second.properties["ORIGIN_MESSAGE_ID"] == sent.ext_fields["msgId"]

    run_virtual(scene())


@pytest.mark.parametrize("level", [-1, 1])
def test_a_producer_does_not_choose_the_origin(tmp_path, level):
    """Consumers take a message of the retry topic for one of the topic in RETRY_TOPIC."""

    async def scene() -> None:
        async with Cluster(tmp_path, message_delay_level="1s") as cluster:
            forged = {"RETRY_TOPIC": "Secret", "ORIGIN_MESSAGE_ID": "0" * 32}
            sent = await cluster.send("T", b"no", properties_text(UNIQ_KEY="U", **forged))
            assert (await give_back(cluster, 0, level=level)).code == 0
            topic = "%DLQ%cg" if level < 0 else "%RETRY%cg"
            while not (answer := await cluster.pull(topic)).body:
                await asyncio.sleep(0.02)
            (returned,) = decode_messages(answer.body)
            assert returned.properties["RETRY_TOPIC"] == "T"
            assert returned.properties["ORIGIN_MESSAGE_ID"] == sent.ext_fields["msgId"]

    run_virtual(scene())


@pytest.mark.parametrize(
    ("topic", "more", "kept"),
    [
        ("%RETRY%cg", {}, True),
        ("%DLQ%cg", {}, True),
        ("%RETRY%cg_T", {FIRST_POP_TIME: "1"}, False),
        ("%RETRY%cg_T", {FIRST_POP_TIME: "1", REAL_TOPIC: "T"}, False),
        ("%RETRY%cg", {FIRST_POP_TIME: "1", REAL_TOPIC: "%RETRY%cg"}, True),
        ("T", {REAL_TOPIC: "T"}, False),
    ],
)
def test_where_the_origin_is_believed(topic, more, kept):
    """In retry topics of groups and in dead-letter topics, the broker or a member of the group wrote it."""
    text = encode_properties({"RETRY_TOPIC": "Origin", **more})
    stored = StoreMessage(topic.encode(), 0, b"body", text, 0, HOST, 0, 0, 0, 0, HOST)
    message = decode_message(memoryview(encode_message(stored, 0, 0, 0, HOST)))
    returned = decode_properties(returned_message(message, "%RETRY%cg", 0, 1).properties)
    assert returned["RETRY_TOPIC"] == ("Origin" if kept else topic)


def test_the_number_of_retries_is_decided_in_order(tmp_path):
    """The maximum number of attempts is set by clients of V3_4_9 or later; for older clients, by the group. Below the
    maximum, a message that is sent back waits in the schedule topic.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.broker.groups.update(SubscriptionGroupConfig("cg", retry_max_times=0))
            await cluster.send("T", b"no")

            async def queued(topic: str) -> int:
                return sum(
                    [
                        int((await cluster.ask(30, {"topic": topic, "queueId": str(queue)})).ext_fields["offset"])
                        for queue in range(18)
                    ]
                )

            assert (await give_back(cluster, 0, level=0, max_reconsume_times=3)).code == 0
            assert (await queued("SCHEDULE_TOPIC_XXXX"), await queued("%DLQ%cg")) == (1, 0)
            assert (await give_back(cluster, 0, level=0)).code == 0
            assert (await queued("SCHEDULE_TOPIC_XXXX"), await queued("%DLQ%cg")) == (1, 1)
            header = ConsumerSendMsgBackRequestHeader(0, "cg", 0, max_reconsume_times=3)
            old = RemotingCommand(36, ext_fields=header.to_ext_fields(), version=120)
            assert (await cluster.client.invoke(cluster.broker.address, old, 5000)).code == 0
            assert (await queued("SCHEDULE_TOPIC_XXXX"), await queued("%DLQ%cg")) == (1, 2)

    run_virtual(scene())


def test_a_queue_that_nobody_reads_gets_nothing(tmp_path):
    """The group is configured with more retry queues than its retry topic has. RocketMQ then also sends to queues that
    no consumer reads; Rucola uses only queues of the topic.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.broker.services.random_below = lambda bound: bound - 1
            cluster.broker.topics.update(TopicConfig("%RETRY%cg", 2, 2, 6))
            cluster.broker.groups.update(SubscriptionGroupConfig("cg", retry_queue_nums=8))
            await cluster.send("T", b"no")
            assert (await give_back(cluster, 0, level=1)).code == 0
            (waiting,) = decode_messages((await cluster.pull("SCHEDULE_TOPIC_XXXX")).body)
            assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("%RETRY%cg", "1")

    run_virtual(scene())


def test_refusals_in_the_reference_s_words(tmp_path):
    faq = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

    async def scene() -> None:
        async with Cluster(tmp_path, auto_create_subscription_group=False) as cluster:
            answer = await give_back(cluster, 0, "none")
            assert (answer.code, answer.remark) == (26, f"subscription group not exist, none {faq}")
            cluster.broker.groups.update(SubscriptionGroupConfig("cg"))
            answer = await cluster.send("%RETRY%none")
            assert (answer.code, answer.remark) == (26, f"subscription group not exist, none {faq}")
            answer = await give_back(cluster, 999)
            assert (answer.code, answer.remark) == (1, "look message by offset failed, 999")
            cluster.broker.groups.update(SubscriptionGroupConfig("silent", retry_queue_nums=0))
            assert (await give_back(cluster, 999, "silent")).code == 0
            assert cluster.broker.topics.get("%RETRY%silent") is None
            cluster.broker.topics.update(TopicConfig("%RETRY%cg", 1, 1, 4))
            answer = await give_back(cluster, 0)
            assert (answer.code, answer.remark) == (16, "the topic[%RETRY%cg] sending message is forbidden")

    run_virtual(scene())


def rule(clock: ManualClock) -> tuple[DeadLetterRule, TopicConfigManager, RebalanceLockManager]:
    topics = TopicConfigManager(BrokerConfig(), keep_nothing(), clock.wall_ms)
    groups = SubscriptionGroupManager(False, keep_nothing(), clock.wall_ms)
    groups.update(SubscriptionGroupConfig("cg", retry_max_times=2))
    locks = RebalanceLockManager(clock.monotonic)
    return DeadLetterRule(topics, groups, locks), topics, locks


def retry_send(
    times: int, times_max: int | None = None, v1: bool = False, version: int = 479, topic: str = "%RETRY%cg"
) -> RemotingCommand:
    header_class = SendMessageRequestHeader if v1 else SendMessageRequestHeaderV2
    text = "TAGS\x01A\x02DELAY\x013\x02"
    header = header_class("pg", topic, "TBW102", 4, 3, 0, 1, 0, text, times, False, times_max)
    return RemotingCommand(10 if v1 else 310, ext_fields=header.to_ext_fields(), version=version)


@pytest.mark.parametrize("v1", [False, True])
@pytest.mark.parametrize(
    ("times", "times_max", "version", "dead"),
    [(2, None, 479, False), (3, None, 479, True), (3, 5, 479, False), (6, 5, 479, True), (3, 5, 120, True)],
)
def test_a_send_to_the_retry_topic(v1: bool, times: int, times_max: int | None, version: int, dead: bool) -> None:
    dead_letters, topics, _ = rule(ManualClock(1))
    command = retry_send(times, times_max, v1, version)
    before = dict(command.ext_fields)
    dead_letters.apply(command)
    if not dead:
        assert command.ext_fields == before
        return
    header = (SendMessageRequestHeader if v1 else SendMessageRequestHeaderV2).from_ext_fields(command.ext_fields)
    assert (header.topic, header.queue_id, header.reconsume_times) == ("%DLQ%cg", 0, times)
    assert decode_properties((header.properties or "").encode()) == {"TAGS": "A", "DELAY": "-1"}
    assert topics.get("%DLQ%cg") == TopicConfig("%DLQ%cg", 1, 1, 6)


def test_orderly_consumers_have_no_retries() -> None:
    clock = ManualClock(1)
    dead_letters, _, locks = rule(clock)
    locks.try_lock("cg", ["queue"], "client")
    command = retry_send(0)
    dead_letters.apply(command)
    assert command.ext_fields["b"] == "%DLQ%cg"
    clock.advance(int(LOCK_LIFETIME_S * 1000) + 1)
    command = retry_send(0)
    dead_letters.apply(command)
    assert command.ext_fields["b"] == "%RETRY%cg"


def test_other_sends_are_left_alone() -> None:
    dead_letters, topics, _ = rule(ManualClock(1))
    for topic in ("T", "%RETRY%unknown", "%DLQ%cg"):
        command = retry_send(99, topic=topic)
        dead_letters.apply(command)
        assert command.ext_fields["b"] == topic
    assert topics.get("%DLQ%unknown") is None


@pytest.mark.parametrize("times", [1, 3])
def test_a_consumer_sends_what_it_consumed_with_all_its_properties(tmp_path, times):
    """A consumer sends a message back with all its properties, including the checksum of the record."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.broker.groups.update(SubscriptionGroupConfig("cg", retry_max_times=2))
            await cluster.send("T", b"body")
            (consumed,) = decode_messages((await cluster.pull()).body)
            assert "__CRC32#" in consumed.properties
            command = retry_send(times)
            command.ext_fields["i"] = properties_text(**consumed.properties)
            command.ext_fields["e"], command.body = "0", b"body"
            assert (await cluster.client.invoke(cluster.broker.address, command, 5000)).code == 0
            topic = "%DLQ%cg" if times > 2 else "%RETRY%cg"
            (again,) = decode_messages((await cluster.pull(topic)).body)
            assert (again.body, again.reconsume_times) == (b"body", times)

    run_virtual(scene())
