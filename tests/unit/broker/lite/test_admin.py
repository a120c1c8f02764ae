"""What administrators ask about lite topics, with RocketMQ's answers (``tests/golden/lite``, scenario ``admin``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, properties_text, run

from rucola.broker.lite.attributes import BIND_TOPIC
from rucola.cli.lite_metrics import lite_metrics
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.protocol import fastjson
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.fairness.steps import at_once

BROKER, PARENT, TOPIC = (
    RequestCode.GET_BROKER_LITE_INFO,
    RequestCode.GET_PARENT_TOPIC_INFO,
    RequestCode.GET_LITE_TOPIC_INFO,
)
CLIENT, GROUP = RequestCode.GET_LITE_CLIENT_INFO, RequestCode.GET_LITE_GROUP_INFO
OTHER, NONE, NO_GROUP = (
    ResponseCode.INVALID_PARAMETER,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)
LITE = {"enable_lmq": True, "enable_multi_dispatch": True}


async def made(cluster: Cluster) -> None:
    """Sessions 1 to 5 have as many messages; ``gateway`` has read one of each but the last."""
    broker = cluster.broker
    attributes = {"message.type": "LITE", "lite.topic.expiration": "60"}
    broker.topics.update_all([TopicConfig("agents", 4, 4, attributes=attributes), TopicConfig("plain", 1, 1)])
    for group, parent in (("gateway", "agents"), ("small", "agents"), ("brief", "other")):
        broker.groups.update(SubscriptionGroupConfig(group, attributes={BIND_TOPIC: parent}))
    broker.groups.update(SubscriptionGroupConfig("ordinary"))
    for number in range(1, 6):
        for _ in range(number):
            text = properties_text(UNIQ_KEY="U", __LITE_TOPIC=f"session-{number}")
            header = SendMessageRequestHeaderV2("pg", "agents", "TBW102", 1, 0, 0, 1, 0, text)
            assert (await cluster.ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_fields(), b"body")).code == 0
    broker.store.dispatch()
    assert broker.services.lite_offsets is not None
    for number in range(1, 5):
        broker.services.offsets.commit("gateway", f"%LMQ%$agents$session-{number}", 0, 1)
    entry = {"action": "PARTIAL_ADD", "clientId": "c", "group": "gateway", "topic": "agents"}
    body = fastjson.dumps({"subscriptionSet": [entry | {"liteTopicSet": ["session-1", "session-2"]}]})
    assert (await cluster.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)).code == 0


async def body(cluster: Cluster, code: int, **fields: object) -> dict[str, Any]:
    answer = await cluster.ask(code, {name: str(value) for name, value in fields.items()})
    assert answer.code == 0, answer
    return dict(fastjson.loads(answer.body))


def test_answers(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, stores=LITE) as cluster:
            await made(cluster)
            found = await body(cluster, BROKER)
            assert found["topicMeta"] == {"agents": 60} and found["groupMeta"]["other"] == ["brief"]
            assert sorted(found["groupMeta"]["agents"]) == ["gateway", "small"]
            numbers = ("currentLmqNum", "maxLmqNum", "liteSubscriptionCount", "cqTableSize")
            assert [found[name] for name in numbers] == [5, 20000, 2, 5] and found["offsetTableSize"] >= 4

            found = await body(cluster, PARENT, topic="agents")
            assert sorted(found.pop("groups")) == ["gateway", "small"]
            assert found == {"topic": "agents", "ttl": 60, "lmqNum": 5, "liteTopicCount": 5}

            found = await body(cluster, TOPIC, parentTopic="agents", liteTopic="session-2")
            assert found["subscriber"] == [{"clientId": "c", "group": "gateway"}] and found["shardingToBroker"] is True
            last_ms = found["topicOffset"].pop("lastUpdateTimestamp")
            assert found["topicOffset"] == {"minOffset": 0, "maxOffset": 2} and last_ms > 0
            found = await body(cluster, TOPIC, parentTopic="agents", liteTopic="no-such")
            assert found["topicOffset"] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}
            assert found["subscriber"] == []

            found = await body(cluster, CLIENT, parentTopic="agents", group="gateway", clientId="c", maxCount=10)
            assert sorted(found["liteTopicSet"]) == ["%LMQ%$agents$session-1", "%LMQ%$agents$session-2"]
            assert found["liteTopicCount"] == 2 and found["lastAccessTime"] > 0
            found = await body(cluster, CLIENT, parentTopic="agents", group="gateway", clientId="c", maxCount=1)
            assert len(found["liteTopicSet"]) == 1 and found["liteTopicCount"] == 2
            found = await body(cluster, CLIENT, parentTopic="agents", group="gateway", clientId="nobody", maxCount=1)
            assert (found["liteTopicCount"], found["lastAccessTime"], found["lastConsumeTime"]) == (-1, -1, 0)

            found = await body(cluster, GROUP, group="gateway", topK=2)
            assert found["totalLagCount"] == 0 + 1 + 2 + 3 and found["parentTopic"] == "agents"
            top = [(row["liteTopic"], row["lagCount"]) for row in found["lagCountTopK"]]
            assert top == [("session-4", 3), ("session-3", 2)]
            assert 0 < found["earliestUnconsumedTimestamp"] <= found["lagCountTopK"][0]["earliestUnconsumedTimestamp"]
            found = await body(cluster, GROUP, group="gateway", topK=2, liteTopic="session-4")
            assert found["totalLagCount"] == 3 and found["earliestUnconsumedTimestamp"] > 0
            wrapper = found["liteTopicOffsetWrapper"]
            assert (wrapper["brokerOffset"], wrapper["consumerOffset"]) == (4, 1) and wrapper["lastTimestamp"] > 0
            found = await body(cluster, GROUP, group="gateway", topK=2, liteTopic="session-1")
            assert (found["totalLagCount"], found["earliestUnconsumedTimestamp"]) == (0, -1)
            found = await body(cluster, GROUP, group="small", topK=2, liteTopic="session-1")
            assert found["totalLagCount"] == 0 and "liteTopicOffsetWrapper" not in found
            assert (await body(cluster, GROUP, group="small", topK=2, liteTopic="no-such"))["totalLagCount"] == -1
            assert (await body(cluster, GROUP, group="small", topK=2))["totalLagCount"] == 0

            found = await body(cluster, PARENT, topic="agents", maxCount=2, group="gateway")
            first = [(row["liteTopic"], row["maxOffset"], row["lagCount"]) for row in found["liteTopics"]]
            assert first == [("session-1", 1, 0), ("session-2", 2, 1)] and found["following"] > 0
            found = await body(cluster, PARENT, topic="agents", maxCount=9, start=found["following"])
            assert [row["liteTopic"] for row in found["liteTopics"]] == ["session-3", "session-4", "session-5"]
            assert found["following"] == -1 and found["liteTopics"][0]["lagCount"] == -1
            found = await body(cluster, PARENT, topic="agents", maxCount=9, prefix="session-4", group="gateway")
            (row,) = found["liteTopics"]
            assert row.pop("lastTime") > 0
            assert row == {"liteTopic": "session-4", "minOffset": 0, "maxOffset": 4, "consumerOffset": 1, "lagCount": 3}

            names = [b"agents$session-%d" % number for number in range(1, 6)]
            assert cluster.broker.running.lite_life is not None
            cluster.broker.running.lite_life.remove(names)
            for _ in range(200):
                cluster.broker.store.dispatch()
                if not cluster.broker.store.lite.live_count:  # type: ignore[union-attr]
                    break
                await cluster.ask(PARENT, {"topic": "agents"})
            assert (await body(cluster, GROUP, group="gateway", topK=2))["totalLagCount"] == 0
            found = await body(cluster, BROKER)
            assert (found["currentLmqNum"], found["liteSubscriptionCount"]) == (0, 0)

            for code, fields, refusal in (
                (PARENT, {"topic": "plain"}, OTHER),
                (PARENT, {"topic": "nowhere"}, NONE),
                (PARENT, {"topic": "agents", "maxCount": "1", "group": "brief"}, OTHER),
                (TOPIC, {"parentTopic": "plain", "liteTopic": "x"}, OTHER),
                (TOPIC, {"parentTopic": "nowhere", "liteTopic": "x"}, NONE),
                (CLIENT, {"parentTopic": "agents", "group": "brief", "clientId": "c", "maxCount": "1"}, OTHER),
                (CLIENT, {"parentTopic": "agents", "group": "nobody", "clientId": "c", "maxCount": "1"}, NO_GROUP),
                (CLIENT, {"parentTopic": "agents", "group": "gateway", "clientId": "c", "maxCount": "0"}, OTHER),
                (GROUP, {"group": "ordinary", "topK": "1"}, OTHER),
                (GROUP, {"group": "nobody", "topK": "1"}, NO_GROUP),
            ):
                assert (await cluster.ask(code, fields)).code == refusal, (code, fields)

    run(scene())


@pytest.mark.parametrize("code", [BROKER, GROUP])
def test_a_broker_without_lite_topics(tmp_path: Path, code: int) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            answer = await cluster.ask(code, {"group": "g", "topK": "1"})
            assert answer.code == ResponseCode.SYSTEM_ERROR and "enableLmq" in (answer.remark or "")

    run(scene())


def test_metrics_and_what_a_slave_copies(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, stores=LITE, lite_lag_count_metrics_enable=True) as cluster:
            await made(cluster)
            samples = {
                (sample.name, *sample.labels.values()): sample.value
                for metric in at_once(lite_metrics(cluster.broker))
                for sample in metric.samples
            }
            assert samples == {
                ("rucola_lite_topics", "agents"): 5,
                ("rucola_lite_topics_removed_total",): 0,
                ("rucola_lite_subscriptions",): 2,
                ("rucola_lite_lag_messages", "gateway", "agents"): 6,
            }
            answer = await cluster.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
            table = fastjson.loads(answer.body)["offsetTable"]
            assert table["%LMQ%$agents$session-4@gateway"] == {0: 1} or table["%LMQ%$agents$session-4@gateway"] == {
                "0": 1
            }

    run(scene())
