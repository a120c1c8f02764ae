"""Repeats POP exchanges that were recorded from RocketMQ: our broker must send the same codes, texts and receipts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.brokers import Cluster, run_virtual
from tests.unit.protocol.golden import Recorded, frames, texts

from rucola.common.message import MessageExt
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.formats.message import decode_messages
from rucola.protocol import fastjson
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.runtime.clock import SystemClock

SEND, SET_MODE, POP, ACK, CHANGE, BATCH_ACK = 310, 401, 200050, 200051, 200053, 200151
POP_FAMILY = {SET_MODE, POP, ACK, CHANGE, BATCH_ACK}
ADDRESS = re.compile(r"consumer:\[[^]]*\]")


def exchanges(scenario: str, codes: set[int]) -> list[tuple[Recorded, Recorded]]:
    """Returns the requests to the broker with their responses."""
    pairs: list[tuple[Recorded, Recorded]] = []
    asked: dict[tuple[str, int], Recorded] = {}
    for frame in frames(scenario):
        place = (frame.record["conn"], frame.record["opaque"])
        if frame.record["dir"] == "client->broker" and frame.record["code"] in codes:
            asked[place] = frame
        elif frame.record["dir"] == "broker->client" and place in asked:
            pairs.append((asked.pop(place), frame))
    return sorted(pairs, key=lambda pair: pair[0].record["n"])


class Replay:
    """Sends recorded requests with the current time, and with the pop times from our responses."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pop_times: dict[str, str] = {}

    async def ask(self, asked: Recorded, recorded: Recorded) -> RemotingCommand:
        command = decode_frame(asked.frame)
        fields = command.ext_fields
        if int(fields.get("bornTime", 0)) > 1:
            fields["bornTime"] = str(SystemClock().wall_ms())
        if "extraInfo" in fields:
            words = fields["extraInfo"].split(" ")
            words[1] = self._pop_times.get(words[1], words[1])
            fields["extraInfo"] = " ".join(words)
        if asked.record["code"] == BATCH_ACK:
            body: dict[str, Any] = fastjson.loads(command.body)
            for ack in body["acks"]:
                ack["pt"] = int(self._pop_times[str(ack["pt"])])
            command.body = fastjson.dumps(body)
        answer = await self._cluster.client.invoke(self._cluster.broker.address, command, 30_000)
        theirs = texts(recorded.header.get("extFields"))
        if answer.ext_fields.get("popTime", "0") != "0":
            self._pop_times[theirs["popTime"]] = answer.ext_fields["popTime"]
        return answer


def compared(fields: dict[str, str]) -> dict[str, str]:
    """Returns the parts of a response that do not depend on the time."""
    return {name: "a time" if name == "popTime" and value != "0" else value for name, value in fields.items()}


def contents(message: MessageExt) -> tuple[str, int, int, bytes, int]:
    return message.topic, message.queue_id, message.queue_offset, message.body, message.reconsume_times


def test_requests_of_an_official_client_are_answered(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.broker.topics.update(TopicConfig("T_pop_api", 2, 2))
            replay = Replay(cluster)
            seen = []
            for asked, recorded in exchanges("java533_pop_api", POP_FAMILY | {SEND}):
                answer = await replay.ask(asked, recorded)
                code, theirs = asked.record["code"], texts(recorded.header.get("extFields"))
                assert answer.code == recorded.header["code"], asked.record
                if code == CHANGE:  # after an ordered pop, this time includes the time since the pop
                    theirs["invisibleTime"] = answer.ext_fields["invisibleTime"]
                if code in POP_FAMILY and answer.code == 0:
                    assert compared(answer.ext_fields) == compared(theirs), asked.record
                    assert answer.remark == recorded.header.get("remark", "")
                    ours, wanted = decode_messages(answer.body), decode_messages(recorded.body)
                    assert [contents(message) for message in ours] == [contents(message) for message in wanted]
                seen.append(code)
            assert {POP, ACK, CHANGE, BATCH_ACK} <= set(seen)

    run_virtual(work())


def test_refusals_have_codes(tmp_path: Path) -> None:
    async def work() -> None:
        options = {"broker_ip1": "127.0.0.1", "auto_create_subscription_group": False}
        async with Cluster(tmp_path, **options) as cluster:
            topics, groups = cluster.broker.topics, cluster.broker.groups
            for topic, perm in (("T_err", 6), ("T_err_empty", 6), ("T_err_writeonly", 2)):
                topics.update(TopicConfig(topic, 2, 2, perm))
            groups.update(SubscriptionGroupConfig("G_err"))
            groups.update(SubscriptionGroupConfig("G_err_off", consume_enable=False))
            for _ in range(4):
                assert (await cluster.send("T_err")).code == 0
            cluster.broker.offsets.commit("G_err", "T_err", 0, 4)
            replay = Replay(cluster)
            count = 0
            for asked, recorded in exchanges("errors_other", POP_FAMILY):
                answer = await replay.ask(asked, recorded)
                theirs = recorded.header
                assert answer.code == theirs["code"], asked.record
                assert ADDRESS.sub("", answer.remark) == ADDRESS.sub("", theirs.get("remark") or "")
                ours, wanted = compared(answer.ext_fields), compared(texts(theirs.get("extFields")))
                assert ours | {"reviveQid": ""} == wanted | {"reviveQid": ""}
                count += 1
            assert count == 16

    run_virtual(work())


def test_mqadmin_sets_a_mode(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.broker.topics.update(TopicConfig("T_live", 2, 2))
            ((asked, recorded),) = exchanges("mqadmin_setConsumeMode", POP_FAMILY)
            answer = await Replay(cluster).ask(asked, recorded)
            assert (answer.code, answer.body) == (recorded.header["code"], recorded.body)
        assert b'"popShareQueueNum":2' in (tmp_path / "config" / "messageRequestMode.json").read_bytes()

    run_virtual(work())
