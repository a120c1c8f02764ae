"""``rucola mqadmin`` against a broker with a live consumer and producer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.broker.administered import CLIENT_ID, Administered
from tests.unit.cli.shell import Capture, Shell, scene

from rucola.broker.processor.broker_manage import REMOTE_KEYS
from rucola.cli.main import main
from rucola.cli.mqadmin.run import app


def test_topics(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        assert "success" in await shell("updateTopic -t T1 -b BROKER -r 3 -w 2 -o true -a +message.type=FIFO")
        topic = there.cluster.broker.topics.table["T1"]
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.order) == (3, 2, True)
        assert dict(topic.attributes) == {"message.type": "FIFO"}
        assert "orderConf=[broker-a:2]" in await shell("updateOrderConf -t T1 -m get")
        await shell("updateOrderConf -t T1 -m put -v broker-a:9")
        assert "orderConf=[broker-a:9]" in await shell("updateOrderConf -t T1 -m get")
        await shell("updateOrderConf -t T1 -m delete")
        assert "orderConf=[]" in await shell("updateOrderConf -t T1 -m get")
        assert "from 6 to 4" in await shell("updateTopicPerm -t T1 -b BROKER -p 4")
        changed = there.cluster.broker.topics.table["T1"]
        assert (changed.perm, changed.order, dict(changed.attributes)) == (4, True, {"message.type": "FIFO"})
        assert {row["Topic"] for row in await shell.rows("topicList")} >= {"T1", "T_live"}
        listed = await shell.rows("topicList -c")
        assert {"Cluster Name": "DefaultCluster", "Topic": "T_live", "Consumer Group": "G_live"} in listed
        assert await shell.rows("topicClusterList -t T_live") == [{"Cluster": "DefaultCluster"}]
        route = (await shell.rows("topicRoute -t T_live"))[0]
        assert (route["Addresses"], route["Read Queues"], route["Perm"]) == (f"0:{shell.broker}", 2, 6)
        assert "Addresses" in await shell("topicRoute -t T_live -l")
        route = json.loads(await shell("topicRoute -t T_live"))
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": shell.broker}
        assert route["queueDatas"][0]["readQueueNums"] == 2
        assert "Show the route of a topic" in await shell("topicRoute -h")
        assert [row["Max Offset"] for row in await shell.rows("topicStatus -t T_live")] == [4, 4]
        await shell("deleteTopic -t T1 -c DefaultCluster")
        assert "T1" not in there.cluster.broker.topics.table
        assert "code 17" in await shell("topicRoute -t T1", code=1)
        await shell("cleanUnusedTopic -b BROKER")

    scene(tmp_path, capsys, work)


def test_clusters_and_brokers(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        row = (await shell.rows("clusterList"))[0]
        assert (row["Addr"], row["Version"], row["ACTIVATED"]) == (shell.broker, "V5_3_3", "true")
        assert (await shell.rows("clusterList -m"))[0]["InTotalToday"] == 8
        assert await shell.rows("clusterList -c other") == []
        assert (await shell.rows("brokerStatus -b BROKER"))[0]["msgPutTotalTodayNow"] == "8"
        assert "broker" not in (await shell.rows("brokerStatus -b BROKER"))[0]
        assert (await shell.rows("brokerStatus -c DefaultCluster"))[0]["broker"] == shell.broker
        assert "brokerName" in await shell("getBrokerConfig -b BROKER")
        await shell("updateBrokerConfig -b BROKER -k longPollingEnable -v false")
        assert there.cluster.broker.config.long_polling_enable is False
        refusal = await shell("updateBrokerConfig -b BROKER -k bindAddress -v x", code=1)
        assert "code 16" in refusal and all(key in refusal for key in REMOTE_KEYS)
        assert "code 29" in await shell("updateBrokerConfig -b BROKER -k shortPollingTimeMills -v 0", code=1)
        assert (await shell.rows("wipeWritePerm -b broker-a"))[0]["topics"] > 3
        assert (await shell.rows("topicRoute -t T_live"))[0]["Perm"] == 4
        await shell("addWritePerm -b broker-a")
        assert (await shell.rows("topicRoute -t T_live"))[0]["Perm"] == 6
        await shell("cleanExpiredCQ -b BROKER")
        await shell("deleteExpiredCommitLog -c DefaultCluster")
        rows = await shell.rows("brokerConsumeStats -b BROKER -l 1")
        assert [row["Diff"] for row in rows[:-1]] == [2, 2] and rows[-1] == {"diffTotal": 4}

    scene(tmp_path, capsys, work)


def test_groups_and_their_progress(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        await shell("updateSubGroup -g G1 -c DefaultCluster -r 3 -q 2 -m true")
        group = there.cluster.broker.groups.table["G1"]
        assert (group.retry_max_times, group.retry_queue_nums) == (3, 2)
        assert (group.consume_from_min_enable, group.consume_broadcast_enable) == (True, False)
        assert (await shell.rows("getConsumerConfig -g G1"))[0]["retryMaxTimes"] == 3
        await there.cluster.pull("T_live", 0, 2, group="G_live")
        rows = await shell.rows("consumerProgress -g G_live")
        assert [(row["Diff"], row["Inflight"]) for row in rows[:-1]] == [(2, 2), (2, 0)]
        assert (rows[-1]["diffTotal"], rows[-1]["inflightTotal"]) == (4, 2)
        await there.cluster.pull("T_live", 1, 3, group="G_bare")  # no consumer of it sent a heartbeat
        bare = await shell.rows("consumerProgress -g G_bare -t T_live")
        assert [(row["Diff"], row["Inflight"]) for row in bare[:-1]] == [(4, 0), (4, 4)]
        assert "code 17" in await shell("consumerProgress -g G_bare", code=1)
        everyone = await shell.rows("consumerProgress")
        assert [(row["Group"], row["Count"], row["Diff Total"]) for row in everyone] == [("G_live", 1, 4)]
        await shell("cloneGroupOffset -s G_live -d G1 -t T_live -o true")
        assert there.cluster.broker.offsets.table["T_live@G1"] == {0: 2, 1: 2}
        assert [row["offset"] for row in await shell.rows("resetOffsetByTime -g G1 -t T_live -s 0")] == [0, 0]
        assert [row["offset"] for row in await shell.rows("skipAccumulatedMessage -g G1 -t T_live")] == [4, 4]
        future = "resetOffsetByTime -g G1 -t T_live -s 2099-01-01#00:00:00:000"
        assert [row["offset"] for row in await shell.rows(future)] == [4, 4]
        assert "code 26" in await shell("resetOffsetByTime -g none -t T_live -s now", code=1)
        stats = [row for row in await shell.rows("statsAll") if row["Topic"] == "T_live"]
        assert [(row["Consumer Group"], row["Accumulation"], row["InMsg24Hour"]) for row in stats] == [
            ("G1", 0, 8), ("G_live", 4, 8)
        ]  # fmt: skip
        await shell("deleteSubGroup -g G1 -b BROKER -r true")
        assert "G1" not in there.cluster.broker.groups.table
        assert "T_live@G1" not in there.cluster.broker.offsets.table
        assert "no broker knows" in await shell("getConsumerConfig -g G1", code=1)

    scene(tmp_path, capsys, work)


def test_clients(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        text = await shell("consumerConnection -g G_live")
        assert CLIENT_ID in text and "CLUSTERING" in text and "T_live" in text
        assert CLIENT_ID in await shell("consumerConnection -g G_live -b BROKER")
        assert "is online" in await shell("consumerConnection -g none -b BROKER", code=1)
        assert CLIENT_ID in await shell("producerConnection -g G_live_P -t T_live")
        assert "is online" in await shell("producerConnection -g none -t T_live", code=1)
        assert {row["Group"] for row in await shell.rows("producer -b BROKER")} == {"G_live_P"}
        assert "PROP_CLIENT_VERSION" in await shell("consumerStatus -g G_live")
        assert there.told[-1].ext_fields["clientId"] == CLIENT_ID
        assert "not online" in await shell("consumerStatus -g G_live -i nobody", code=1)

    scene(tmp_path, capsys, work)


def test_messages(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, there: Administered) -> None:
        await there.cluster.bodies("T_live")
        assert "message 0" in await shell("queryMsgById -t T_live -i ID")
        assert "belongs to topic" in await shell("queryMsgById -t other -i ID", code=1)
        assert await shell.rows("queryMsgByKey -t T_live -k live3") == [{"Message ID": "U3", "QID": 1, "Offset": 1}]
        assert "has the key" in await shell("queryMsgByKey -t T_live -k none", code=1)
        assert "message 5" in await shell("queryMsgByUniqueKey -t T_live -i U5")
        assert "has the id" in await shell("queryMsgByUniqueKey -t T_live -i none", code=1)
        assert "message 4" in await shell("queryMsgByOffset -t T_live -b broker-a -i 0 -o 2")
        assert "0 to 4" in await shell("queryMsgByOffset -t T_live -b broker-a -i 0 -o 9", code=1)
        facts, *units = await shell.rows("queryCq -t T_live -q 1 -i 1 -c 2 -b BROKER -g G_live")
        assert facts == {"minQueueIndex": 0, "maxQueueIndex": 4, "subscription": "*"}
        assert [unit["Index"] for unit in units] == [1, 2]

    scene(tmp_path, capsys, work)


def test_name_servers(tmp_path: Path, capsys: Capture) -> None:
    async def work(shell: Shell, _there: Administered) -> None:
        await shell("updateKvConfig -s NS1 -k key1 -v", "value 1")
        await shell("deleteKvConfig -s NS1 -k key1")
        await shell("updateNamesrvConfig -k scanNotActiveBrokerInterval -v 6000")
        assert (await shell.rows("getNamesrvConfig"))[0]["scanNotActiveBrokerInterval"] == "6000"
        assert "code 16" in await shell("updateNamesrvConfig -k kvConfigPath -v x", code=1)

    scene(tmp_path, capsys, work)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("brokerStatus", "-b or -c"),
        ("updateTopic -t T -b x:1 -o maybe", "true or false"),
        ("updateTopicPerm -t T -b x:1 -p 5", "2, 4 or 6"),
        ("updateOrderConf -t T -m put", "broker:queues"),
        ("updateOrderConf -t T -m set", "put, get or delete"),
        ("resetOffsetByTime -g g -t T -s yesterday", "yyyy-MM-dd"),
        ("resetOffsetByTime -g g -t T -s now -b x:1", "both for one queue"),
        ("resetOffsetByTime -g g -t T -s now -q 1", "both for one queue"),
        ("resetOffsetByTime -g g -t T -s now -o 7", "together with -b and -q"),
        ("queryMsgById -t T -i xyz", "offset message id"),
        ("topicRoute", "Missing option"),
        ("sendMessage -t T -p x -i 1", "broker's name"),
        ("consumeMessage -t T -i 1", "broker's name"),
        ("consumeMessage -t T -o 1", "queue id, because -o is given"),
        ("consumeMessage -t T -s 2999-01-01#00:00:00:000", "before now"),
        ("printMsg -t T -c no-such", "charset"),
        ("setConsumeMode -t T -g g -m PUSH -b x:1", "PULL or POP"),
        ("updateTopicList -f /nowhere/t.json -b x:1", "option -f: /nowhere/t.json: no such file"),
        ("allocateMQ -t T -i ,", "separated by commas"),
        ("sendMsgStatus -b b -s 99999999999999999999", "16777216"),
        ("clusterRT -s 99999999999999999999", "16777216"),
        ("createUser -u bob -b x:1", "MQADMIN_PASSWORD"),
        ("updateUser -u bob -b x:1", "something to change"),
        ("createUser -u bob -p x", "-b or -c"),
        ("updateAclConfig -a account -b x:1", "MQADMIN_PASSWORD"),
    ],
)
def test_usage(command: str, said: str, capsys: Capture) -> None:
    name, *words = command.split()
    assert main(["mqadmin", name, "-n", "127.0.0.1:1", *words]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_no_server_and_no_command(capsys: Capture) -> None:
    assert main(["mqadmin", "topicList", "-n", "127.0.0.1:1"]) == 1
    assert main(["mqadmin", "topicList", "-n", "nonsense"]) == 2
    assert main(["mqadmin", "noSuchCommand"]) == 2
    assert main(["mqadmin", "topicList"]) == 2
    assert main(["mqadmin", "topicRoute", "-n", "127.0.0.1:1", "-t", "\udcff"]) == 2
    assert capsys.readouterr().err.count("rucola: ") == 5
    for tool in ("mqadmin", "store"):
        assert main([tool]) == 2
        printed = capsys.readouterr()
        assert "Usage" in printed.out and printed.err == ""
    assert app.info.name == "mqadmin"
