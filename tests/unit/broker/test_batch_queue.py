"""A topic of type BatchCQ on a broker: how the store learns of the type, and that the type never changes."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, properties_text, run

from rucola import PullConsumer
from rucola.client.received import PullOrigin, ReceivedMessage
from rucola.common.message import StoreMessage
from rucola.common.message_queue import MessageQueue
from rucola.common.topic_config import TopicConfig
from rucola.errors import StoreDamagedError
from rucola.formats.inner_batch import split_inner_batches
from rucola.formats.message import decode_messages, encode_message
from rucola.protocol.bodies.statistics import TopicStatsTable
from rucola.protocol.codes import RequestCode, ResponseCode


def topic_fields(attributes: str, topic: str = "B") -> dict[str, Any]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": attributes,
    }


@pytest.mark.parametrize("lost", [False, True])
def test_a_batch_topic_is_one_after_a_restart_too(lost: bool, tmp_path: Path) -> None:
    async def first() -> None:
        async with Cluster(tmp_path) as cluster:
            create = RequestCode.UPDATE_AND_CREATE_TOPIC
            assert (await cluster.ask(create, topic_fields("+queue.type=BatchCQ"))).code == ResponseCode.SUCCESS
            for body in (b"one", b"two"):
                assert (await cluster.send("B", body)).code == ResponseCode.SUCCESS
            assert await cluster.bodies("B") == [b"one", b"two"]
            changed = await cluster.ask(create, topic_fields("-queue.type"))
            assert (changed.code, changed.remark) == (
                ResponseCode.INVALID_PARAMETER,
                "queue.type of a topic cannot be changed",
            )

    async def second() -> None:
        async with Cluster(tmp_path) as cluster:
            assert (await cluster.send("B", b"three")).code == ResponseCode.SUCCESS
            assert await cluster.bodies("B") == [b"one", b"two", b"three"]

    run(first())
    assert not (tmp_path / "consumequeue/B").exists()
    if lost:
        shutil.rmtree(tmp_path / "batchconsumequeue")
    run(second())
    assert not (tmp_path / "consumequeue/B").exists()
    assert [file.name for file in (tmp_path / "batchconsumequeue/B").iterdir()] == ["0"]
    table = tmp_path / "config/topics.json"
    table.write_text(table.read_text().replace("BatchCQ", "SimpleCQ"))
    with pytest.raises(StoreDamagedError, match="type is not BatchCQ"):
        run(second())


def member(body: bytes, **properties: str) -> bytes:
    """Returns a message of a batch, as clients encode it."""
    text = properties_text(**properties).encode()
    rest = bytes(8) + bytes(4) + len(body).to_bytes(4) + body + len(text).to_bytes(2) + text
    return (len(rest) + 4).to_bytes(4) + rest


REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
BATCH = member(b"one", UNIQ_KEY="U1", TAGS="a") + member(b"two", UNIQ_KEY="U2") + member(b"three", UNIQ_KEY="U3")


async def make_batch_topic(cluster: Cluster) -> None:
    create = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert (await cluster.ask(create, topic_fields("+queue.type=BatchCQ"))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_batch_is_one_record(sync_flush: bool, tmp_path: Path) -> None:
    """A batch of three messages is stored, as by RocketMQ, as one record with one id and three queue offsets."""

    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush=sync_flush) as cluster:
            await make_batch_topic(cluster)
            text = properties_text(UNIQ_KEY="BATCH", WAIT="true")
            for first in (0, 3):
                answer = await cluster.send("B", BATCH, text, batch=True)
                fields = answer.ext_fields
                assert (answer.code, fields["queueOffset"], fields["queueId"]) == (0, str(first), "0")
                assert (fields["batchUniqId"], fields["transactionId"]) == ("BATCH", "BATCH")
                assert len(fields["msgId"]) == 32
            for code, expected in ((RequestCode.GET_MIN_OFFSET, "0"), (RequestCode.GET_MAX_OFFSET, "6")):
                assert (await cluster.ask(code, {"topic": "B", "queueId": "0"})).ext_fields["offset"] == expected
            view = {"offset": str(int(fields["msgId"][16:], 16))}
            (record,) = decode_messages((await cluster.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).body)
            assert (record.body, record.queue_offset, record.sys_flag & 0xC0) == (BATCH, 3, 0xC0)
            names = {"UNIQ_KEY": "BATCH", "WAIT": "true", "CLUSTER": "DefaultCluster", **REGION}
            stored = {name: value for name, value in record.properties.items() if name != "__CRC32#"}
            assert stored == {**names, "INNER_NUM": "3", "INNER_BASE": "3"}
            pulled = await cluster.pull("B", 0, 0)
            assert pulled.ext_fields["nextBeginOffset"] == "6"
            assert cluster.broker.store.stats.put_messages == 6
            assert cluster.broker.store.appended_count(b"B") == 6

    run(scene())


def test_a_batch_without_an_id_of_its_own_is_stored_message_by_message(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await make_batch_topic(cluster)
            answer = await cluster.send("B", BATCH, "", batch=True)
            assert (answer.code, answer.ext_fields["msgId"].count(","), "batchUniqId" in answer.ext_fields) == (0, 2, 0)
            assert await cluster.bodies("B") == [b"one", b"two", b"three"]

    run(scene())


@pytest.mark.parametrize(
    ("body", "properties", "code"),
    [
        (BATCH[:-1], {}, ResponseCode.SYSTEM_ERROR),
        (b"", {}, ResponseCode.SYSTEM_ERROR),
        (BATCH, {"DELAY": "3"}, ResponseCode.MESSAGE_ILLEGAL),
        (BATCH, {"TIMER_DELAY_MS": "3000"}, ResponseCode.MESSAGE_ILLEGAL),
        (BATCH, {"INNER_MULTI_DISPATCH": "%LMQ%x"}, ResponseCode.MESSAGE_ILLEGAL),
        (member(b"x") * 40_000, {}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_batches_that_are_not_stored(body: bytes, properties: dict[str, str], code: int, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, max_body=4 << 20) as cluster:
            await make_batch_topic(cluster)
            text = properties_text(UNIQ_KEY="BATCH", **properties)
            assert (await cluster.send("B", body, text, batch=True)).code == code
            assert cluster.broker.store.max_offset == 0
            assert (await cluster.send("B", BATCH, properties_text(UNIQ_KEY="V"), batch=True)).ext_fields[
                "queueOffset"
            ] == "0"

    run(scene())


def test_an_oneway_batch_is_stored_and_not_answered(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await make_batch_topic(cluster)
            connection = await cluster.connect()
            connection.send(cluster.send_command("B", BATCH, batch=True), 1, flag=2)
            connection.send(cluster.send_command("B", b"single"), 2)
            answer = await connection.receive()
            assert (answer.opaque, answer.ext_fields["queueOffset"]) == (2, "3")
            connection.close()

    run(scene())


def test_the_minimum_of_an_empty_queue_is_minus_1(tmp_path: Path) -> None:
    """As in RocketMQ, the minimum offset is -1 before the first batch, but 0 in the topic statistics."""

    async def told(cluster: Cluster, topic: str) -> tuple[str, str, int]:
        await cluster.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"cg"}')
        where = {"topic": topic, "queueId": "0"}
        minimum = await cluster.ask(RequestCode.GET_MIN_OFFSET, where)
        pulled = await cluster.pull(topic)
        assert (pulled.code, pulled.ext_fields["maxOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
        stats = TopicStatsTable.decode((await cluster.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})).body)
        (offset,) = {offset.min_offset for offset in stats.offset_table.values()}
        return minimum.ext_fields["offset"], pulled.ext_fields["minOffset"], offset

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await make_batch_topic(cluster)
            cluster.broker.topics.update(TopicConfig("S", 1, 1, 6))
            assert await told(cluster, "B") == ("-1", "-1", 0)
            assert await told(cluster, "S") == ("0", "0", 0)
            cluster.broker.store._queues.get(b"B", 0)
            assert await told(cluster, "B") == ("-1", "-1", 0), "also while the queue is open"
            await cluster.send("B", BATCH, batch=True)
            minimum = await cluster.ask(RequestCode.GET_MIN_OFFSET, {"topic": "B", "queueId": "0"})
            assert minimum.ext_fields["offset"] == "0"

    run(scene())


# This is the record that broker 5.3.3 stored for the same two requests, except body checksum, hosts and times.
OFFICIAL = {
    0: "INNER_BASE\x010\x02MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x01BATCH\x02CLUSTER\x01DefaultCluster\x02"
    "WAIT\x01true\x02TRACE_ON\x01true\x02INNER_NUM\x013\x02",
    3: "INNER_BASE\x013\x02MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x01BATCH2\x02CLUSTER\x01DefaultCluster\x02"
    "TAGS\x01x\x02KEYS\x01k1 k2\x02WAIT\x01false\x02a\x01b\x02TRACE_ON\x01true\x02INNER_NUM\x013\x02",
}
"""Property texts by queue offset; INNER_BASE and INNER_NUM from a client are ignored."""


def test_the_record_of_a_batch_is_that_of_the_official_broker(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, enabled_append_prop_crc=False) as cluster:
            await make_batch_topic(cluster)
            more = {"TAGS": "x", "KEYS": "k1 k2", "a": "b", "WAIT": "false", "INNER_BASE": "77", "INNER_NUM": "9"}
            for text in (properties_text(UNIQ_KEY="BATCH", WAIT="true"), properties_text(UNIQ_KEY="BATCH2", **more)):
                await cluster.send("B", BATCH, text, batch=True)
            records = (await cluster.pull("B")).body
            for queue_offset, text in OFFICIAL.items():
                size = int.from_bytes(records[:4], "big")
                record, records = records[:size], records[size:]
                assert record[4:8].hex() == "daa320a7"
                assert record[12:28] == bytes(8) + queue_offset.to_bytes(8, "big")
                assert record[36:40].hex() == "000000c0"
                assert record[84:].startswith(len(BATCH).to_bytes(4, "big") + BATCH + b"\x01B")
                properties = record[84 + 4 + len(BATCH) + 2 :]
                assert properties == len(text).to_bytes(2, "big") + text.encode()
            assert records == b""

    run(scene())


@pytest.mark.parametrize("tags", ["*", "a"])
def test_our_consumers_get_the_messages_of_a_batch_one_by_one(tags: str, tmp_path: Path) -> None:
    """Each message of a batch has its own body, properties and offset, even if the read starts in the middle of the
    batch.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await make_batch_topic(cluster)
            await cluster.send("B", b"single", properties_text(UNIQ_KEY="S", TAGS="a"))
            for number in range(2):
                text = properties_text(UNIQ_KEY=f"BATCH{number}", TAGS="a")
                await cluster.send("B", BATCH, text, batch=True)
            queue = MessageQueue("B", "broker-a", 0)
            async with PullConsumer("cg", cluster.namesrv.address) as consumer:
                found = (await consumer.pull(queue, 0, expression=tags)).messages
                if tags == "a":
                    assert [(message.queue_offset, message.body) for message in found] == [
                        (0, b"single"),
                        (1, b"one"),
                        (4, b"one"),
                    ]
                    return
                bodies = [b"single", b"one", b"two", b"three", b"one", b"two", b"three"]
                assert [(message.queue_offset, message.body) for message in found] == list(enumerate(bodies))
                assert [message.uniq_key for message in found[1:4]] == ["U1", "U2", "U3"]
                assert (found[1].tags, found[2].tags, found[1].sys_flag) == ("a", None, 0)
                assert found[1].physical_offset == found[3].physical_offset > 0
                assert found[1].born_timestamp_ms == 1_700_000_000_000
                rest = (await consumer.pull(queue, 5)).messages
                assert [(message.queue_offset, message.body) for message in rest] == [(5, b"two"), (6, b"three")]

    run(scene())


def record_of(body: bytes, sys_flag: int = 0xC0) -> bytes:
    message = StoreMessage(b"B", 3, body, b"INNER_NUM\x013\x02INNER_BASE\x017\x02", 5, bytes(8), 0, sys_flag)
    return encode_message(message, 1000, 7, 6, bytes(8))


@pytest.mark.parametrize(
    "cut", [BATCH[:-1], BATCH[:50], BATCH[:3], b"\0\0\0\x05" + BATCH[4:], BATCH[:16] + b"\xff" + BATCH[17:]]
)
def test_batches_without_messages_stay_as_they_are(cut: bytes) -> None:
    whole = record_of(b"plain", 0)
    assert split_inner_batches(whole + record_of(cut) + whole, 0) == whole + record_of(cut) + whole
    damaged = bytearray(record_of(BATCH))
    damaged[100] ^= 1
    assert split_inner_batches(bytes(damaged), 0) == damaged
    for torn in (whole[:-1], whole[:3], b"\0\0\0\0" + whole):
        assert split_inner_batches(whole + torn, 0) == whole + torn
    half = record_of(BATCH, 0x80)
    assert split_inner_batches(half, 0) == half


def test_a_compressed_batch_is_taken_apart_too() -> None:
    records = split_inner_batches(record_of(zlib.compress(BATCH), 0x3C1), 8)
    assert [(m.body, m.queue_offset, m.sys_flag, m.queue_id) for m in decode_messages(records)] == [
        (b"two", 8, 0, 3),
        (b"three", 9, 0, 3),
    ]


@pytest.mark.parametrize("plain_flag", [0, 0x301 & ~1, 0x80])
def test_push_consumers_get_them_one_by_one_too(plain_flag: int) -> None:
    """Push consumers also unpack a batch between plain records, whichever flags these have. A record with the flags of
    a batch but a different body is returned unchanged.
    """
    origin = PullOrigin("broker-a", 0, 9)
    plain = record_of(b"plain", plain_flag)
    found = ReceivedMessage.of_records(plain + record_of(BATCH) + plain, origin, 8)
    assert [(m.body, m.queue_offset) for m in found] == [(b"plain", 7), (b"two", 8), (b"three", 9), (b"plain", 7)]
    assert [m.body for m in ReceivedMessage.of_records(record_of(b"none"), origin, 0)] == [b"none"]
    assert [m.body for m in ReceivedMessage.of_records(plain, origin, 0)] == [b"plain"]
