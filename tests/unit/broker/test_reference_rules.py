"""Rules of RocketMQ that are easily implemented too widely or too narrowly, and requests that must be refused."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest
from tests.brokers import Cluster, properties_text, run

from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import DiskFullError
from rucola.formats.message import decode_messages
from rucola.protocol.bodies.configs import CreateTopicListRequestBody, SubscriptionGroupList
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.runtime.file_map import FileMap

RESERVED = ("INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")
KEEPS_ALL = (
    "cleanup.policy=COMPACTION is not supported: this broker keeps all messages of a topic until they expire; "
    "DELETE is allowed"
)
SYNC = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


def test_a_property_may_begin_with_inner(tmp_path):
    """Only four property names that begin with ``INNER_`` are reserved; applications may use other such names."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            text = properties_text(UNIQ_KEY="U", INNER_VOICE="calm", INNER_NUMBER="3", WAIT="true")
            assert (await cluster.send("T", b"body", text)).code == 0
            (message,) = decode_messages((await cluster.pull("T")).body)
            stored = message.properties
            assert (stored["INNER_VOICE"], stored["INNER_NUMBER"]) == ("calm", "3")

    run(scene())


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_inner_properties_are_refused(name, tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            answer = await cluster.send("T", b"body", properties_text(UNIQ_KEY="U", **{name: "1"}))
            assert (answer.code, name in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
            assert await cluster.bodies() == []

    run(scene())


async def first_offset(cluster: Cluster, topic: str = "T", **fields: str) -> RemotingCommand:
    fields = {"consumerGroup": "new", "topic": topic, "queueId": "0", **fields}
    return await cluster.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def test_a_new_group_starts_at_0_only_while_that_is_in_memory(tmp_path, monkeypatch):
    """Request 14 follows RocketMQ's ``checkInMemByConsumeOffset``. Messages that the broker has written since start-up
    count as in memory.
    """
    resident = False
    monkeypatch.setattr(FileMap, "is_resident", lambda *_: resident)

    async def first() -> None:
        async with Cluster(tmp_path) as cluster:
            assert (await first_offset(cluster)).code == ResponseCode.QUERY_NOT_FOUND
            await cluster.send("T", b"old")
            answer = await first_offset(cluster)
            assert (answer.code, answer.ext_fields["offset"]) == (0, "0")
            assert (await first_offset(cluster, setZeroIfNotFound="false")).code == ResponseCode.QUERY_NOT_FOUND

    async def later() -> tuple[int, str]:
        async with Cluster(tmp_path) as cluster:
            answer = await first_offset(cluster)
            return answer.code, answer.remark

    run(first())
    resident = True
    assert run(later())[0] == 0
    resident = False
    not_found = (ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
    assert run(later()) == not_found


def test_which_part_of_the_log_is_looked_at(tmp_path, monkeypatch):
    """The page cache is examined at the right segment and the right position within it."""
    asked = []

    def is_resident(segment: FileMap, position: int, length: int) -> bool:
        asked.append((int(segment.path[-20:]) + position, position, length))
        return True

    monkeypatch.setattr(FileMap, "is_resident", is_resident)

    async def first() -> None:
        async with Cluster(tmp_path, max_body=4 << 20) as cluster:
            for _ in range(2):
                await cluster.send("U", bytes(3 << 20))
            await cluster.send("T", b"old")

    async def later() -> None:
        async with Cluster(tmp_path) as cluster:
            await first_offset(cluster)
            physical_offset, size, _ = cluster.broker.store.queue_unit(b"T", 0, 0)
            assert physical_offset > 4 << 20
            assert asked == [(physical_offset, physical_offset - (4 << 20), size)]

    run(first())
    run(later())


@pytest.mark.parametrize("told", ["", "10.1.2.3"])
def test_refusals_name_the_broker(told, tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, broker_permission=0, broker_ip1=told) as cluster:
            cluster.broker.topics.update(TopicConfig("O", 1, 1, 6, order=True))
            host = told or "127.0.0.1"
            _, _, port = cluster.broker.address.rpartition(":")
            address = f"127.0.0.1:{port}"
            for command, text in (
                (cluster.send_command("O"), "sending message is forbidden"),
                (cluster.pull_command("O"), "pulling message is forbidden"),
            ):
                answer = await cluster.client.invoke(address, command, 5000)
                assert (answer.code, answer.remark) == (16, f"the broker[{host}] {text}")

    run(scene())


class Refusing:
    """Stands in for the file of a table; the first ``good`` writes succeed, later ones fail."""

    def __init__(self, good: int) -> None:
        self.good = good
        self.written: list[bytes] = []

    def __call__(self, content: Iterable[bytes]) -> None:
        if len(self.written) >= self.good:
            raise DiskFullError("table.json", "write", "No space left on device")
        self.written.append(b"".join(content))


@pytest.mark.parametrize("good", [0, 1])
def test_groups_are_made_all_or_none(good, tmp_path):
    """The disk accepts ``good`` writes (0 or 1); the broker writes all groups with one write."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            groups = cluster.broker.groups
            await groups.update(SubscriptionGroupConfig("g1", retry_queue_nums=5))
            groups._kept._replace = disk = Refusing(good)
            configs = [SubscriptionGroupConfig("g1"), SubscriptionGroupConfig("g2")]
            answer = await cluster.ask(SYNC, body=SubscriptionGroupList(configs).encode())
            assert (answer.code == 0) is bool(good)
            assert ("g2" in groups.table, groups.table["g1"].retry_queue_nums) == ((True, 1) if good else (False, 5))
            assert len(disk.written) == good

    run(scene())


@pytest.mark.parametrize("good", [0, 1])
def test_topics_are_made_all_or_none(good, tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            topics = cluster.broker.topics
            await topics.update(TopicConfig("t1", 2, 2, 6))
            topics._kept._replace = disk = Refusing(good)
            configs = [TopicConfig("t1", 3, 3, 6), TopicConfig("t2", 1, 1, 6)]
            answer = await cluster.ask(18, body=CreateTopicListRequestBody(configs).encode())
            assert (answer.code == 0) is bool(good)
            assert ("t2" in topics.table, topics.table["t1"].read_queue_nums) == ((True, 3) if good else (False, 2))
            assert len(disk.written) == good

    run(scene())


@pytest.mark.parametrize(
    ("attribute", "remark"),
    [
        (
            "cleanup.policy=COMPACTION",
            KEEPS_ALL,
        ),
        (
            "reserve.time=72",
            "reserve.time=72 is not supported: messages of all topics are kept for fileReservedTime; -1 is allowed",
        ),
    ],
)
def test_attributes_without_effect_are_refused(attribute, remark, tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            fields = {"topic": "T", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
            fields |= {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            answer = await cluster.ask(17, {**fields, "attributes": f"+{attribute}"})
            assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, remark)
            key, value = attribute.split("=")
            body = CreateTopicListRequestBody([TopicConfig("T", 1, 1, 6, attributes={key: value})]).encode()
            answer = await cluster.ask(18, body=body)
            assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, remark)
            assert cluster.broker.topics.get("T") is None
            served = "+cleanup.policy=DELETE,+reserve.time=-1"
            assert (await cluster.ask(17, {**fields, "attributes": served})).code == 0
            assert cluster.broker.topics.get("T").attributes == {"cleanup.policy": "DELETE", "reserve.time": "-1"}

    run(scene())


def test_topics_of_a_store_that_have_such_attributes_are_named(tmp_path, caplog):
    async def first() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.broker.topics.update(TopicConfig("C", 1, 1, 6, attributes={"cleanup.policy": "COMPACTION"}))
            cluster.broker.topics.update(TopicConfig("D", 1, 1, 6, attributes={"cleanup.policy": "DELETE"}))

    async def second() -> None:
        async with Cluster(tmp_path) as cluster:
            assert cluster.broker.topics.get("C") is not None

    run(first())
    with caplog.at_level(logging.WARNING, TopicConfigManager.__module__):
        run(second())
    found = [vars(record)["rucola_fields"] for record in caplog.records if "without effect" in record.message]
    assert found == [{"topic": "C", "attributes": "cleanup.policy"}]
