"""Commands of ``rucola mqadmin`` that send, read and trace messages, reset one queue, and read or write files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.brokers import properties_text
from tests.unit.broker.administered import Administered
from tests.unit.cli.shell import Capture, Shell, scene

from rucola import Message, Producer, ProducerConfig, PullConsumer, PullConsumerConfig
from rucola.broker import runtime_info
from rucola.common.mq_version import MQVersion
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.trace import TraceRecord, TraceType, encode_trace
from rucola.remoting.admin_api import AdminApi


def test_sending(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        [sent] = await shell.rows("sendMessage -t T_live -p hello -k k1 -c TagA -b broker-a -i 1")
        assert (sent["#Broker Name"], sent["#QID"], sent["#Send Result"]) == ("broker-a", 1, "SEND_OK")
        assert "hello" in await shell(f"queryMsgByUniqueKey -t T_live -i {sent['#MsgId']}")
        assert "SEND_OK" in await shell("sendMessage -t T_live -p", "two words")
        *rows, average = await shell.rows("checkMsgSendRT -t T_live -a 5 -s 10")
        assert [(row["#QID"], row["#Send Result"]) for row in rows] == [(n % 2, True) for n in range(5)]
        assert average["averageRt"] >= 0
        status = await shell.rows("sendMsgStatus -b broker-a -s 30 -c 2")
        assert [(row["sendStatus"], row["queueOffset"]) for row in status] == [("SEND_OK", 1), ("SEND_OK", 2)]
        assert "SendResult [sendStatus=SEND_OK" in await shell("sendMsgStatus -b broker-a -c 1")
        [row] = await shell.rows("clusterRT -a 3 -i 0 --rounds 1")
        assert (row["#Cluster Name"], row["#successCount"], row["#failCount"]) == ("DefaultCluster", 3, 0)
        line = await shell("clusterRT -a 2 -c DefaultCluster -i 0 --rounds 1 -p true -m", "room 1")
        assert "|room 1|DefaultCluster|broker-a|" in line
        assert "not exist" in await shell("clusterRT -c other --rounds 1", code=1)

    scene(tmp_path, capsys, work)


def test_reading(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        text = await shell("printMsg -t T_live")
        assert text.count("MSGID: U") == 8 and text.count("print msg finished") == 2
        assert "MSGID: U3 MessageExt [brokerName=broker-a, queueId=1," in text and "BODY: message 3" in text
        assert "properties={" in text and "body=[109, 101, 115" in text
        assert "NOT PRINT BODY" in await shell("printMsg -t T_live -d false")
        assert "MSGID" not in await shell("printMsg -t T_live -s TagB")
        assert "MSGID" not in await shell("printMsg -t T_live -e 1")
        assert "MSGID" not in await shell("printMsg -t T_live -b now")
        light = await shell("printMsg -t T_none -l T_live")
        assert "topic=T_none" in light and "MSGID" not in light
        assert "code 17" in await shell("printMsg -t T_none", code=1)
        assert await shell("printMsgByQueue -t T_live -a broker-a -i 0") == ""
        assert await shell.rows("printMsgByQueue -t T_live -a broker-a -i 0 -f true") == [{"tag": "TagA", "count": 4}]
        rows = await shell.rows("printMsgByQueue -t T_live -a broker-a -i 0 -p true -d true -s TagA")
        assert [row["body"] for row in rows] == [f"message {n}" for n in (0, 2, 4, 6)]

        await asyncio.sleep(0.02)
        await there.cluster.send("T_live", b"late", properties_text(UNIQ_KEY="U8", TAGS="TagB", WAIT="true"))
        found = "printMsgByQueue -t T_live -a broker-a -i 0 -p true -s TagB"
        [late] = await shell.rows(found)
        assert late["queueOffset"] == 4
        assert await shell.rows(f"{found} -e {late['storeTimestamp']}") == []

        rows = await shell.rows("consumeMessage -t T_live -b broker-a -i 1 -o 1 -c 2")
        assert [row["body"] for row in rows if "body" in row] == ["message 3", "message 5"]
        assert (await shell("consumeMessage -t T_live -c 5")).count("Consume ok\nMSGID") == 5
        assert (await shell("consumeMessage -t T_live")).count("Consume ok") == 9
        assert "Consume ok" not in await shell("consumeMessage -t T_live -b other")
        assert there.cluster.broker.offsets.table["T_live@G_live"] == {0: 2, 1: 2}

    scene(tmp_path, capsys, work)


def test_the_trace_of_a_message(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        namesrv = there.cluster.namesrv.address
        async with Producer("G_traced", namesrv, ProducerConfig(enable_trace=True)) as producer:
            sent = await producer.send(Message("T_live", b"followed", keys="k9"))
        for group in ("G_one", "G_two"):
            async with PullConsumer(group, namesrv, PullConsumerConfig(enable_trace=True)) as consumer:
                await consumer.pull(sent.message_queue, sent.queue_offset)
        published, *consumed = await shell.rows(f"queryMsgTraceById -i {sent.msg_id}")
        assert (published["#ProducerGroup"], published["#ClientHost"]) == ("G_traced", "127.0.0.1")
        assert [(row["#Type"], row["#ConsumerGroup"], row["#Status"]) for row in consumed] == [
            ("Sub", "G_one", "success"),
            ("Sub", "G_two", "success"),
        ]
        assert "#ConsumerTime" in await shell(f"queryMsgTraceById -i {sent.msg_id}")
        begun = TraceRecord(trace_type=TraceType.SUB_BEFORE, msg_id="U1", group="G_one")
        async with Producer("G_forged", namesrv) as producer:
            await producer.send(Message("RMQ_SYS_TRACE_TOPIC", encode_trace([begun]).encode(), keys="U1"))
            await producer.send(Message("RMQ_SYS_TRACE_TOPIC", b"Pub\x01no number\x01", keys="U1"))
        assert await shell("queryMsgTraceById -i U1") == ""
        assert "code 17" in await shell("queryMsgTraceById -i U1 -t Traces", code=1)
        [row] = await shell.rows("sendMessage -t T_live -p hello -m true")
        assert (await shell.rows(f"queryMsgTraceById -i {row['#MsgId']}"))[0]["#ProducerGroup"] == "TOOLS_PRODUCER"

    scene(tmp_path, capsys, work, trace_topic_enable=True)


def test_one_queue_is_reset(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        table = there.cluster.broker.offsets.table["T_live@G_live"]
        await shell("resetOffsetByTime -g G_live -t T_live -s 0 -b BROKER -q 1 -o 3")
        assert table == {0: 2, 1: 3}
        assert "to 4" in await shell("resetOffsetByTime -g G_live -t T_live -s now -b BROKER -q 0")
        assert table == {0: 4, 1: 3}
        rows = await shell.rows("resetOffsetByTime -g G_live -t T_live -s 0 -c DefaultCluster")
        assert [row["offset"] for row in rows] == [0, 0]
        there.cluster.broker.topics.update(TopicConfig("T_other", 1, 1, 6))
        assert len(await shell.rows("resetOffsetByTime -g G_live -t T_other -s 0 -c T_live")) == 1

    scene(tmp_path, capsys, work)


def test_an_old_broker_is_not_asked_to_reset_all_queues(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers before 5.0 ignore the queue in request 222."""

    async def work(shell: Shell, there: Administered) -> None:
        asked = []
        monkeypatch.setattr(AdminApi, "reset_offset", lambda *arguments: asked.append(arguments))
        monkeypatch.setattr(runtime_info, "CURRENT_VERSION", MQVersion.V4_9_8)
        await shell("resetOffsetByTime -g G_live -t T_live -s 0 -b BROKER -q 1 -o 3")
        assert there.cluster.broker.offsets.table["T_live@G_live"][1] == 3
        assert not asked
        monkeypatch.setattr(AdminApi, "runtime_info", refuse)
        await shell("resetOffsetByTime -g G_live -t T_live -s 0 -b BROKER -q 1 -o 1", code=1)
        assert there.cluster.broker.offsets.table["T_live@G_live"][1] == 3, "a refused question changes nothing"

    async def refuse(*_: object) -> dict[str, str]:
        raise BrokerError(ResponseCode.NO_PERMISSION, "refused")

    scene(tmp_path, capsys, work)


def test_many_at_once(tmp_path: Path, capsys: Capture) -> None:
    topics, groups, bad = tmp_path / "topics.json", tmp_path / "groups.json", tmp_path / "bad.json"
    topics.write_text(json.dumps([{"topicName": "T1", "readQueueNums": 3, "writeQueueNums": 3}, {"topicName": "T2"}]))
    groups.write_text(json.dumps([{"groupName": "G1", "retryMaxTimes": 2}, {"groupName": "G2"}]))
    bad.write_text('[{"topicName": "T3", "perm": "all"}]')

    async def work(shell: Shell, there: Administered) -> None:
        broker = there.cluster.broker
        await shell(f"updateTopicList -b BROKER -f {topics}")
        assert (broker.topics.table["T1"].read_queue_nums, "T2" in broker.topics.table) == (3, True)
        await shell(f"updateSubGroupList -c DefaultCluster -f {groups}")
        assert (broker.groups.table["G1"].retry_max_times, "G2" in broker.groups.table) == (2, True)
        assert "TopicConfig" in await shell(f"updateTopicList -b BROKER -f {bad}", code=2)
        assert "JSON" in await shell(f"updateTopicList -b BROKER -f {__file__}", code=2)
        await shell("setConsumeMode -t T_live -g G_live -m POP -q 2 -b BROKER")
        assert "code 17" in await shell("setConsumeMode -t none -g G_live -m POP -c DefaultCluster", code=1)
        [row] = await shell.rows("allocateMQ -t T1 -i 10.0.0.1,10.0.0.2")
        shares = {client: [queue["queueId"] for queue in queues] for client, queues in row["result"].items()}
        assert shares == {"10.0.0.1": [0, 1], "10.0.0.2": [2]}

    scene(tmp_path, capsys, work)


def test_exports(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        folder = tmp_path / "made" / "here"
        assert "metadata.json success" in await shell(f"exportMetadata -c DefaultCluster -f {folder}")
        found = json.loads((folder / "metadata.json").read_text())
        assert set(found["topicConfigTable"]) == {"T_live"}
        assert found["topicConfigTable"]["T_live"]["readQueueNums"] == 2
        assert set(found["subscriptionGroupTable"]) == {"G_live"} and found["exportTime"] > 1_700_000_000_000
        await shell(f"exportMetadata -b BROKER -f {folder} -t -s")
        assert set(json.loads((folder / "topic.json").read_text())["topicConfigTable"]) == {"T_live", "%RETRY%G_live"}
        await shell(f"exportMetadata -b BROKER -f {folder} -g")
        assert "topicConfigTable" not in json.loads((folder / "subscriptionGroup.json").read_text())
        await shell(f"updateTopicList -b BROKER -f {folder / 'none.json'}", code=2)
        [row] = await shell.rows(f"exportConfigs -c DefaultCluster -f {folder}")
        configs = json.loads(Path(row["path"]).read_text())
        assert configs["clusterScale"] == {"masterBrokerSize": 1, "namesrvSize": 1, "slaveBrokerSize": 0}
        assert configs["brokerConfigs"]["broker-a"]["traceOn"] == "true"
        assert "does not exist" in await shell("exportConfigs -c other", code=1)

    scene(tmp_path, capsys, work)


def test_replication(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        [row] = await shell.rows("haStatus -b BROKER")
        assert (row["#MasterAddr"], row["#SlaveNum"]) == (shell.broker, 0)
        assert row["#MasterCommitLogMaxOffset"] == there.cluster.broker.store.max_offset > 0
        assert "#SlaveAckOffset" in await shell("haStatus -c DefaultCluster")

    scene(tmp_path, capsys, work)


def test_nothing_in_a_message_acts_on_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        async with Producer("pg", shell.namesrv, ProducerConfig()) as producer:
            body = b"\x1b[2Jgone\r\nQueue ID  = forged\x9b"
            properties = {"odd": "\x1b]0;title\x07", "line": "a\nb"}
            sent = await producer.send(Message("T_live", body, properties=properties))
        for command in (
            f"queryMsgByUniqueKey -t T_live -i {sent.msg_id}",
            f"queryMsgById -t T_live -i {sent.offset_msg_id}",
            "printMsg -t T_live -d true",
            f"consumeMessage -t T_live -b broker-a -i {sent.message_queue.queue_id} -o {sent.queue_offset} -c 1",
        ):
            shown = await shell(command)
            assert r"\x1b[2Jgone\r\nQueue ID" in shown, command
            assert all(char.isprintable() or char == "\n" for char in shown), command
            assert not any(line.startswith("Queue ID  = forged") for line in shown.splitlines())

    scene(tmp_path, capsys, work)
