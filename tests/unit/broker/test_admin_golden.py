"""Sends our servers every recorded request of the official administration tool, and recorded requests that no tool
sends. Codes and fields of responses must equal the recorded ones, and bodies must have the same shape.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.brokers import run
from tests.golden.shapes import assert_same_shape, shape
from tests.unit.broker.administered import CLIENT_ID, Administered, administered
from tests.unit.protocol.golden import SCENARIOS, Recorded, frames, texts

from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.protocol import fastjson

ADMIN = [name for name in SCENARIOS if name.startswith("mqadmin_")]
BROKER_CODES = (
    {15, 17, 18, 21, 25, 26, 28, 43, 45, 200, 201, 202, 203, 204, 207, 208, 215, 225, 300, 303, 305, 306, 307, 308, 309}
    | {314, 315, 316, 317, 321, 328, 329, 343, 345, 351, 352, 353}
)  # fmt: skip
NAMESRV_CODES = {100, 101, 102, 106, 205, 206, 216, 219, 224, 304, 311, 312, 313, 318, 319, 327}
NOT_MEASURED = {
    "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity", "dispatchMaxBuffer", "getMessageEntireTimeMax",
    "getMissTps", "getTotalTps", "putLatency99", "putLatency999", "putMessageAverageSize",
    "putMessageDistributeTime", "putMessageEntireTimeMax", "putMessageFailedTimes", "putMessageSizeTotal",
    "remainTransientStoreBufferNumbs", "timerCongestNum", "timerDequeueTps", "timerEnqueueTps", "timerOffsetBehind",
    "timerReadBehind",
} | {
    f"{name}ThreadPoolQueue{what}"
    for name in ("ack", "query")
    for what in ("Size", "Capacity", "HeadWaitTimeMills")
}  # fmt: skip


def exchanges(scenario: str) -> list[tuple[Recorded, Recorded]]:
    """Returns the tool's requests with their responses, without the traffic between broker and client."""
    waiting: dict[tuple[str, int], Recorded] = {}
    found = []
    for frame in frames(scenario):
        key = frame.record["conn"], frame.record["opaque"]
        if frame.record["kind"] == "request" and frame.record["dir"].startswith("client->"):
            waiting[key] = frame
        elif frame.is_response and frame.record["dir"].endswith("->client") and key in waiting:
            found.append((waiting.pop(key), frame))
    return [pair for pair in found if pair[0].record["code"] in BROKER_CODES | NAMESRV_CODES]


async def replay(there: Administered, request: Recorded, answer: Recorded) -> None:
    code, fields = request.record["code"], texts(request.header.get("extFields"))
    if "clientId" in fields and fields["clientId"] != "nobody":
        fields["clientId"] = CLIENT_ID
    if "msgId" in fields:
        fields["msgId"] = there.message_id
    if request.record["dir"] == "client->namesrv":
        ours = await there.ask_namesrv(code, fields, request.body)
    else:
        ours = await there.cluster.ask(code, fields, request.body)
    what = f"{request.scenario} {code} {fields}"
    assert ours.code == answer.record["code"], (what, ours.remark)
    recorded_fields = texts(answer.header.get("extFields"))
    assert ours.ext_fields.keys() == recorded_fields.keys(), what
    assert bool(ours.body) == bool(answer.body), what
    if code in (26, 319):
        names = [{line.partition("=")[0] for line in body.decode().split("\n")} for body in (ours.body, answer.body)]
        assert {"listenPort"} <= names[0], what
        assert len(names[0] & names[1]) >= (4 if code == 319 else 40), what
    elif code == 28:
        ours_table, theirs = (fastjson.load_object(body, what)["table"] for body in (ours.body, answer.body))
        own = {name for name in ours_table if name.startswith(("commitLogDiskRatio_", "scheduleMessageOffset_"))}
        assert ours_table.keys() - own - {"storeState", "longestTurnMs"} == {
            name for name in theirs.keys() - NOT_MEASURED if not name.startswith("commitLogDiskRatio_")
        }
    elif answer.body and code not in (307, 309):
        bodies = [fastjson.loads(body) for body in (ours.body, answer.body)]
        for body in bodies:
            if code == 21:
                body.setdefault("topicQueueMappingInfoMap", {})
                body.setdefault("topicQueueMappingDetailMap", {})
        assert_same_shape(shape(bodies[0]), shape(bodies[1]), what)
    if answer.record["code"] not in (0, 17) and not answer.header.get("remark", "").startswith("java."):
        # Where RocketMQ only refuses, our broker also says which options a request may change.
        assert ours.remark.partition(" A request can change only ")[0] == answer.header["remark"], what


async def prepare(there: Administered, scenario: str) -> None:
    """Brings the cluster into the state in which the scenario was recorded."""
    broker = there.cluster.broker
    if "updateOrderConf" in scenario:
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T_new", "value": "broker-a:4"}
        await there.ask_namesrv(100, fields)
    if "updateSubGroup" not in scenario:
        broker.groups.update(SubscriptionGroupConfig("G_new"))
    if scenario == "mqadmin_updateTopicPerm":
        broker.topics.update(TopicConfig("T_new", 8, 8, 6))


@pytest.mark.parametrize("scenario", ADMIN)
def test_mqadmin(scenario: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            await prepare(there, scenario)
            for request, answer in exchanges(scenario):
                if request.record["code"] == 208 and fields_of(request).get("consumerGroup") == "T_live":
                    continue  # the tool asks for this only because of RocketMQ's response to request 300
                if request.record["code"] == 315 and "T_live@T_live" in fields_of(request).values():
                    continue
                await replay(there, request, answer)

    run(scene())


@pytest.mark.parametrize("scenario", ["raw_broker", "raw_namesrv"])
def test_by_hand(scenario: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with administered(tmp_path) as there:
            for request, answer in exchanges(scenario):
                await replay(there, request, answer)

    run(scene())


def fields_of(request: Recorded) -> dict[str, str]:
    return texts(request.header.get("extFields"))


def test_every_family_is_there() -> None:
    asked = {request.record["code"] for name in [*ADMIN, "raw_broker"] for request, _ in exchanges(name)}
    assert asked >= BROKER_CODES
    assert {code for code, _ in [(r.record["code"], a) for r, a in exchanges("raw_namesrv")]} >= {100, 219, 311, 319}
