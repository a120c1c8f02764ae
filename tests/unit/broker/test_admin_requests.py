"""The statistics that administrators get, one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from tests.brokers import Cluster, run
from tests.unit.broker.administered import CLIENT_ID, administered

from rucola.broker.offset.offset_resets import Reset
from rucola.common.java import parse_properties
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.formats.tables import decode_subscription_groups, decode_topics
from rucola.protocol import fastjson
from rucola.protocol.bodies.configs import CreateTopicListRequestBody, SubscriptionGroupList, SubscriptionGroupWrapper
from rucola.protocol.bodies.connections import ConsumerConnection, ProducerTableInfo
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.bodies.offsets import ConsumerOffsetSerializeWrapper, CorrectionOffsetBody
from rucola.protocol.bodies.statistics import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    TopicStatsTable,
)
from rucola.protocol.bodies.topic_list import GroupList, TopicList
from rucola.protocol.command import RemotingCommand


def queue(queue_id: int, topic: str = "T_live") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def test_progress_of_topics_and_groups(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            table = TopicStatsTable.decode((await there.ask(202, topic="T_live")).body)
            ends = {queue_of: (offset.min_offset, offset.max_offset) for queue_of, offset in table.offset_table.items()}
            assert ends == {queue(0): (0, 4), queue(1): (0, 4)}
            assert table.offset_table[queue(0)].last_update_timestamp > 0
            assert table.topic_put_tps > 0
            stats = ConsumeStats.decode((await there.ask(208, consumerGroup="G_live")).body)
            assert stats.offset_table.keys() == {queue(0), queue(1)}
            assert (stats.total_diff(), stats.inflight_diff()) == (4, 0)
            assert stats.offset_table[queue(0)].last_timestamp > 0
            empty = ConsumeStats.decode(
                (await there.ask(208, consumerGroup="G_live", topicList="none;%RETRY%G_live")).body
            )
            assert empty.offset_table.keys() == {queue(0, "%RETRY%G_live")}
            unread = await there.ask(208, consumerGroup="G_live", topic="BenchmarkTest")
            assert ConsumeStats.decode(unread.body).offset_table == {}
            listed = await there.ask(208, consumerGroup="G_live", topic="T_live", topicList="BenchmarkTest")
            assert {of.topic for of in ConsumeStats.decode(listed.body).offset_table} == {"BenchmarkTest"}
            all_of_them = ConsumeStatsList.decode((await there.ask(317, isOrder="false")).body)
            assert (all_of_them.total_diff, all_of_them.broker_addr) == (4, there.cluster.broker.address)
            ordered = ConsumeStatsList.decode((await there.ask(317, isOrder="true")).body)
            assert ordered.total_diff == 0
            spans = QueryConsumeTimeSpanBody.decode((await there.ask(303, topic="T_live", group="G_live")).body)
            span = spans.consume_time_span_set[0]
            assert span.min_time_stamp <= span.consume_time_stamp <= span.max_time_stamp
            assert span.delay_time >= 0 and len(span.max_time_stamp_str) == len("2026-11-21#08:04:17:767")
            assert (await there.ask(303, topic="none", group="G_live")).code == 17

    run(scene())


def test_fetched_messages_that_are_not_consumed_are_counted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:

            async def inflight() -> tuple[list[int], int]:
                stats = ConsumeStats.decode((await there.ask(208, consumerGroup="G_live")).body)
                everyone = ConsumeStatsList.decode((await there.ask(317, isOrder="false")).body)
                return [stats.offset_table[queue(at)].pull_offset for at in (0, 1)], everyone.total_inflight_diff

            cluster = there.cluster
            assert await inflight() == ([2, 2], 0)
            assert (await cluster.pull("T_live", 0, 2, group="G_live")).ext_fields["nextBeginOffset"] == "4"
            assert await inflight() == ([4, 2], 2)
            cluster.broker.offsets.commit("G_live", "T_live", 0, 4)
            assert await inflight() == ([4, 2], 0)
            await cluster.pull(
                "T_live", 0, 0, group="G_live"
            )  # the offset went back: offsets below the consumed one do not count
            await cluster.pull("T_live", 1, 4, group="G_live")  # the end of the queue: there is no message to give
            assert await inflight() == ([4, 4], 2)
            cluster.broker.offsets.reset("G_live", "T_live", 1, 1)
            cluster.broker.services.resets.add("G_live", "T_live", 1, Reset(1))
            assert await inflight() == ([4, 1], 0)
            await cluster.pull("T_live", 1, 4, group="G_live")
            assert await inflight() == ([4, 1], 0)
            cluster.broker.offsets.remove_group("G_live")
            await cluster.pull("T_live", 1, 2, group="G_other")
            cluster.broker.offsets.remove_topic("T_live")
            assert not cluster.broker.offsets.pulled

    run(scene())


def test_units_of_a_queue(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            fields = {"topic": "T_live", "queueId": 1, "index": 1, "count": 2}
            body = QueryConsumeQueueResponseBody.decode((await there.ask(321, **fields)).body)
            assert (body.min_queue_index, body.max_queue_index, body.subscription_data) == (0, 4, None)
            assert [unit.tags_code for unit in body.queue_data] == [2598919, 2598919]
            assert body.queue_data[0].physic_offset < body.queue_data[1].physic_offset
            mine = QueryConsumeQueueResponseBody.decode((await there.ask(321, consumerGroup="G_live", **fields)).body)
            assert mine.subscription_data is not None and mine.subscription_data.sub_string == "*"
            assert (await there.ask(321, **fields | {"queueId": 9})).remark == "9@T_live is not exist!"

    run(scene())


def test_connected_clients_are_listed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            connection = ConsumerConnection.decode((await there.ask(203, consumerGroup="G_live")).body)
            assert connection.subscription_table.keys() == {"T_live", "%RETRY%G_live"}
            client = connection.connection_set[0]
            assert (client.client_id, client.version, client.language) == (CLIENT_ID, 479, "PYTHON")
            producers = ProducerTableInfo.decode((await there.ask(328)).body).data
            assert producers["G_live_P"][0].remote_ip == f"/{client.client_addr}"
            assert GroupList.decode((await there.ask(300, topic="T_live")).body).group_list == ["G_live"]
            assert TopicList.decode((await there.ask(343, group="G_live")).body).topic_list == ["T_live"]
            unknown = orjson.loads((await there.ask(345, group="G_live", topic="none")).body)
            assert unknown == {"group": "G_live", "topic": "none"}

    run(scene())


def test_requests_passed_on_to_a_client(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            fields = {"consumerGroup": "G_live", "clientId": CLIENT_ID}
            answer = await there.ask(307, jstackEnable="true", **fields)
            assert orjson.loads(answer.body)["properties"] == {"PROP_CLIENT_VERSION": "V5_3_3"}
            assert there.told[0].ext_fields == {**fields, "jstackEnable": "true"}
            answer = await there.ask(309, msgId=there.message_id, topic="T_live", **fields)
            assert orjson.loads(answer.body) == {"consumeResult": "CR_SUCCESS"}
            assert b"message 0" in bytes(there.told[1].body)
            assert there.told[1].ext_fields["brokerName"] == "broker-a"
            assert (await there.ask(309, msgId="nonsense", **fields)).code == 29
            assert (await there.ask(309, msgId=there.message_id[:16] + "0" * 15 + "1", **fields)).code == 1
            gone = await there.ask(307, consumerGroup="G_live", clientId="nobody")
            assert (gone.code, gone.remark) == (1, "The Consumer <G_live> <nobody> not online")
            goodbye = RemotingCommand(35, ext_fields={"clientID": CLIENT_ID, "consumerGroup": "G_live"})
            await there.consumer.invoke(there.cluster.broker.address, goodbye, 5000)
            await there.beat(version=61)
            assert "too low to finish" in (await there.ask(307, **fields)).remark

    run(scene())


def test_offsets_at_once_compared_and_copied(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            offsets = there.cluster.broker.offsets
            body = ConsumerOffsetSerializeWrapper.decode((await there.ask(43)).body)
            assert (body.offset_table, body.group_topic_map) == (
                {"T_live@G_live": {0: 2, 1: 2}},
                {"G_live": ["T_live"]},
            )
            assert fastjson.loads((await there.ask(45)).body)["offsetTable"].keys() >= {"1", "18"}
            offsets.commit("slow", "T_live", 0, 1)
            offsets.commit("fast", "T_live", 1, 4)

            async def corrected(**more: str) -> dict[int, int]:
                answer = await there.ask(308, topic="T_live", **more)
                return CorrectionOffsetBody.decode(answer.body).correction_offsets

            assert await corrected(compareGroup="G_live") == {0: 1, 1: 2}
            assert await corrected(compareGroup="none", filterGroups="slow,G_live") == {1: 4}
            assert await corrected(compareGroup="slow", filterGroups="slow") == {0: (1 << 63) - 1, 1: 2}
            clone = {"srcGroup": "G_live", "destGroup": "copy"}
            assert (await there.ask(314, topic="T_live", offline="false", **clone)).code == 0
            assert offsets.table["T_live@copy"] == {0: 2, 1: 2}
            offsets.commit("G_live", "BenchmarkTest", 0, 7)
            await there.ask(314, offline="false", **clone)
            assert "BenchmarkTest@copy" not in offsets.table
            await there.ask(314, offline="true", **clone)
            assert offsets.table["BenchmarkTest@copy"] == {0: 7}

    run(scene())


def test_topics_many_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            configs = [TopicConfig("A", 2, 2, 6), TopicConfig("B", 3, 3, 6, attributes={"+message.type": "FIFO"})]
            assert (await cluster.ask(18, body=CreateTopicListRequestBody(configs).encode())).code == 0
            assert dict(cluster.broker.topics.table["B"].attributes) == {"message.type": "FIFO"}
            configs = [TopicConfig("C"), TopicConfig("bad name")]
            assert (await cluster.ask(18, body=CreateTopicListRequestBody(configs).encode())).code == 29
            assert "C" not in cluster.broker.topics.table
            version, table = decode_topics((tmp_path / "config/topics.json").read_bytes())
            assert table["B"] == cluster.broker.topics.table["B"]
            assert version == cluster.broker.topics.data_version

    run(scene())


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ("+no.such=1", 1, "unsupported key: no.such"),
        (
            "+message.type=WRONG",
            1,
            "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, NORMAL, LITE]",
        ),
        ("+message.type=FIFO,+message.type=DELAY", 1, "key duplication: message.type"),
        ("-message.type", 1, "only add attribute is supported while creating topic. key: message.type"),
        ("+message.type=MIXED", 29, "MIXED message type is not supported."),
        ("+reserve.time=-2", 1, "value is not in range(-1, 9223372036854775807)"),
        ("+reserve.time=x", 1, "value is not in range(-1, 9223372036854775807)"),
    ],
)
def test_attributes_that_no_topic_may_have(changes: str, code: int, remark: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            fields = {"topic": "T", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "attributes": changes}
            numbers = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            answer = await cluster.ask(17, fields | numbers)
            assert (answer.code, answer.remark) == (code, remark)
            assert "T" not in cluster.broker.topics.table

    run(scene())


@pytest.mark.parametrize("allowed", [True, False])
def test_topics_for_messages_of_every_kind(allowed: bool, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, enable_mixed_message_type=allowed) as cluster:
            fields = {"topic": "T", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
            numbers = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            answer = await cluster.ask(17, fields | numbers | {"attributes": "+message.type=MIXED"})
            assert answer.code == (0 if allowed else 29)
            assert ("T" in cluster.broker.topics.table) is allowed

    run(scene())


def test_groups_many_at_once_and_what_they_may_not_read(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            configs = [SubscriptionGroupConfig("g1"), SubscriptionGroupConfig("g2", retry_queue_nums=3)]
            assert (await cluster.ask(225, body=SubscriptionGroupList(configs).encode())).code == 0
            bad = SubscriptionGroupList([SubscriptionGroupConfig("g3"), SubscriptionGroupConfig("../x")])
            assert (await cluster.ask(225, body=bad.encode())).code == 29
            wrapper = SubscriptionGroupWrapper.decode((await cluster.ask(201)).body)
            assert wrapper.subscription_group_table["g2"] == configs[1]
            assert "g3" not in wrapper.subscription_group_table
            assert (await cluster.ask(352, {"group": "../x"})).remark == "No group in this broker"
            created = orjson.loads((await cluster.ask(352, {"group": "g3"})).body)  # as a consumer's first request does
            assert (created["groupName"], "g3" in cluster.broker.groups.table) == ("g3", True)
            forbid = {"group": "g1", "topic": "T"}
            assert orjson.loads((await cluster.ask(353, forbid)).body)["readable"] is True
            assert orjson.loads((await cluster.ask(353, {**forbid, "readable": "false"})).body)["readable"] is False
            path = tmp_path / "config/subscriptionGroup.json"
            assert decode_subscription_groups(path.read_bytes()).forbidden == {"g1": {"T": 4}}
            await cluster.ask(353, {**forbid, "readable": "true"})
            assert decode_subscription_groups(path.read_bytes()).forbidden == {}

    run(scene())


def test_queues_without_a_topic_are_cleaned(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            broker = there.cluster.broker
            await there.cluster.send("Unused")
            await there.cluster.bodies("Unused")
            broker.topics.delete("Unused")
            assert (await there.ask(316)).code == 0
            topics = {topic for topic, _ in broker.store.queue_names()}
            assert b"Unused" not in topics and b"T_live" in topics

    run(scene())


def test_old_segments_go_when_they_are_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            # ``look_soon`` is replaced, because the maintenance thread may reset the flag that it sets.
            asked: list[str] = []
            monkeypatch.setattr(there.cluster.broker.store._retention, "look_soon", lambda: asked.append("look"))
            assert (await there.ask(329)).code == 0
            assert asked == ["look"]
            assert (await there.ask(306)).code == 0
            assert asked == ["look", "look"]

    run(scene())


def test_figures_of_the_broker(tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            await there.cluster.bodies("T_live")
            table = KVTable.decode((await there.ask(28)).body).table
            assert table["brokerVersionDesc"] == "V5_3_3"
            assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("8", "4")
            assert len(table["putTps"].split()) == 3
            assert int(table["earliestMessageTimeStamp"]) >= int(table["bootTimestamp"])
            assert table["commitLogDirCapacity"].startswith("Total : ")
            options = parse_properties(bytes((await there.ask(26)).body).decode())
            assert options["brokerName"] == "broker-a" and options["fileReservedTime"] == "72"
            data = BrokerStatsData.decode((await there.ask(315, statsName="TOPIC_PUT_NUMS", statsKey="T_live")).body)
            assert (data.stats_minute.sum, data.stats_day.sum, data.stats_hour.avgpt) == (8, 8, 1.0)
            cluster = {"statsKey": "DefaultCluster"}
            for name, count in (("BROKER_PUT_NUMS", 8), ("BROKER_GET_NUMS", 4)):
                answer = await there.ask(315, statsName=name, **cluster)
                assert BrokerStatsData.decode(answer.body).stats_minute.sum == count

    run(scene())


def test_a_silent_client_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.broker.processor.connection_query._CLIENT_TIMEOUT_MS", 20)

    async def scene() -> None:
        async with administered(tmp_path) as there:
            there.consumer.register_processor(307, lambda _address, _command: asyncio.Future())
            answer = await there.ask(307, consumerGroup="G_live", clientId=CLIENT_ID)
            assert (answer.code, answer.remark[:17]) == (207, "consumer <G_live>")

    run(scene())


def test_progress_for_groups_nobody_knows_is_refused(tmp_path: Path) -> None:
    """Consumers and administrators create a group, but a committed offset does not, as in RocketMQ."""

    async def scene() -> None:
        async with administered(tmp_path) as there:
            fields = {"consumerGroup": "G_clone", "topic": "T_live", "queueId": 0, "commitOffset": 0}
            answer = await there.ask(15, **fields)
            assert (answer.code, answer.remark) == (26, "Group G_clone not exist!")

    run(scene())


def test_a_broker_is_a_master_without_slaves(tmp_path: Path) -> None:
    """The response body is that of a 5.3.3 broker without slaves, with our end of the log."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"x")
            answer = await cluster.ask(907)
            assert answer.code == 0
            assert bytes(answer.body) == (
                b'{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterFlushOffset":0,'
                b'"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":[],"inSyncSlaveNums":0,"master":true,'
                b'"masterCommitLogMaxOffset":%d}' % cluster.broker.store.max_offset
            )

    run(scene())
