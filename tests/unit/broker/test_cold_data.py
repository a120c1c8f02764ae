"""Requests 2001 to 2004: limits for groups that read data from the disk, and whether the log is read ahead."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run

from rucola.broker.cold_data_flow import WINDOW_S, ColdDataFlow
from rucola.broker.config import BrokerConfig
from rucola.formats.message import decode_messages
from rucola.protocol import fastjson
from rucola.protocol.bodies.heartbeat import ConsumerData, ConsumeType, HeartbeatData, SubscriptionData
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files

SET, REMOVE, INFO, READ_MODE = 2001, 2002, 2003, 2004
TABLES = b'{"runtimeTable":{},"configTable":%s,"cgColdReadThreshold":3145728,"globalColdReadThreshold":104857600,%s}'
DONE = (0, "", b"")
# Responses of broker 5.3.3 (code, remark and body) to requests in this order after a fresh start.
OFFICIAL: list[tuple[int, dict[str, str], bytes, tuple[int, str, bytes]]] = [
    (INFO, {}, b"", (0, "", TABLES % (b"{}", b'"globalAcc":0'))),
    (SET, {}, b"g1=1000\n", DONE),
    (INFO, {}, b"", (0, "", TABLES % (b'{"g1":1000}', b'"globalAcc":0'))),
    (REMOVE, {}, b"g1", DONE),
    (REMOVE, {}, b"", DONE),
    (SET, {}, b"", DONE),
    (INFO, {}, b"", (0, "", TABLES % (b"{}", b'"globalAcc":0'))),
    (READ_MODE, {"READ_AHEAD_MODE": "1"}, b"", (0, "set commitlog readahead mode success, mode: 1", b"")),
    (READ_MODE, {"READ_AHEAD_MODE": "0"}, b"", (0, "set commitlog readahead mode success, mode: 0", b"")),
    (READ_MODE, {"READ_AHEAD_MODE": "7"}, b"", (29, "set commitlog readahead mode param value error", b"")),
    (READ_MODE, {}, b"", (1, "set commitlog readahead mode param error", b"")),
]


def test_answers_are_those_of_the_official_broker(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for code, fields, body, expected in OFFICIAL:
                answer = await cluster.ask(code, fields, body)
                assert (answer.code, answer.remark) == expected[:2], (code, fields, body)
                assert json.loads(answer.body or b"null") == json.loads(expected[2] or b"null")

    run(scene())


@pytest.mark.parametrize(
    "body", [b"g1=5\ng2=many\n", b"g1=5\n../x=3\n", b"g1=5\ng2=-1\n", b"g1=\n", b"g=%d\n" % (1 << 63)]
)
def test_thresholds_are_set_all_or_none(body: bytes, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            refused = await cluster.ask(SET, {}, body)
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert refused.remark
            assert cluster.broker.services.cold_flow.thresholds == {}

    run(scene())


class Flow(ColdDataFlow):
    """The limits of cold reads, on a clock that the test steps."""

    def __init__(self, **options: Any) -> None:
        self.now_s = 100.0
        config = BrokerConfig(cold_data_flow_control_enable=True, **options)
        super().__init__(config, lambda: self.now_s, lambda: int(self.now_s * 1000))


def test_a_group_is_limited_until_the_window_ends() -> None:
    flow = Flow(cg_cold_read_threshold=1000)
    flow.thresholds["wide"] = 5000
    for group in ("cg", "wide"):
        assert not flow.is_limited(group)
        flow.count(group, 999)
        assert not flow.is_limited(group)
    flow.count("cg", 1)
    flow.count("wide", 1)
    assert (flow.is_limited("cg"), flow.is_limited("wide"), flow.is_limited("other")) == (True, False, False)
    flow.count("wide", 4000)
    assert flow.is_limited("wide")
    assert flow.info()["runtimeTable"]["cg"] == {
        "coldAcc": 1000,
        "createTimeMills": 100_000,
        "lastColdReadTimeMills": 100_000,
    }
    flow.now_s += WINDOW_S - 0.001
    assert flow.is_limited("cg")
    flow.now_s += 0.001
    assert not flow.is_limited("cg")
    assert (flow.info()["runtimeTable"]["cg"]["coldAcc"], flow.info()["globalAcc"]) == (0, 0)
    flow.now_s += 60
    assert flow.info()["runtimeTable"] == {}


def test_all_groups_together_are_limited_too() -> None:
    flow = Flow(global_cold_read_threshold=2000)
    flow.count("a", 1500)
    flow.count("b", 499)
    flow.count("TOOLS_CONSUMER", 10_000)
    assert not flow.is_limited("a")
    flow.count("b", 1)
    assert (flow.is_limited("a"), flow.is_limited("b")) == (True, True)
    assert not flow.is_limited("c"), "a group that reads nothing cold is not slowed down"
    assert not flow.is_limited("TOOLS_CONSUMER")


def test_nobody_is_limited_unless_it_is_switched_on() -> None:
    flow = ColdDataFlow(BrokerConfig(cg_cold_read_threshold=1), lambda: 0.0, lambda: 0)
    flow.count("cg", 100)
    assert not flow.is_limited("cg")


async def beat(cluster: Cluster, kind: ConsumeType) -> None:
    consumer = ConsumerData("cg", consume_type=kind, subscription_data_set=[SubscriptionData("T", "*")])
    data = HeartbeatData("client", [], [consumer]).encode()
    assert (await cluster.ask(RequestCode.HEART_BEAT, body=data)).code == 0


@pytest.mark.parametrize("kind", [ConsumeType.CONSUME_PASSIVELY, ConsumeType.CONSUME_ACTIVELY])
def test_pulls_of_cold_messages_are_slowed_down(
    kind: ConsumeType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a group exceeds its limit, its push consumers must wait, and its pull consumers get one message at a time.
    Other groups are served normally.
    """

    async def first() -> None:
        async with Cluster(tmp_path) as cluster:
            for _ in range(3):
                await cluster.send("T", b"old")

    def fetched(answer: RemotingCommand) -> int:
        return len(decode_messages(answer.body)) if answer.code == 0 else -answer.code

    async def later() -> None:
        async with Cluster(tmp_path) as cluster:
            await beat(cluster, kind)
            on = b"coldDataFlowControlEnable=true\ncgColdReadThreshold=500\n"
            assert (await cluster.ask(RequestCode.UPDATE_BROKER_CONFIG, body=on)).code == 0
            active = kind is ConsumeType.CONSUME_ACTIVELY
            assert fetched(await cluster.pull("T", 0, 2)) == 1
            assert fetched(await cluster.pull("T", 0, 0)) == 3
            slow = await cluster.pull("T", 0, 0)
            assert fetched(slow) == (1 if active else -2)
            if not active:
                assert slow.remark == "This consumer group is reading cold data. It has been flow control"
            assert fetched(await cluster.pull("T", 0, 0, group="other")) == 3
            await cluster.send("T", b"new")
            assert fetched(await cluster.pull("T", 0, 3)) == 1
            assert fetched(await cluster.pull("T", 0, 3, group="warm")) == 1
            info = fastjson.load_object((await cluster.ask(INFO)).body, "info")
            assert set(info["runtimeTable"]) == {"cg", "other"}

    run(first())
    monkeypatch.setattr(FileMap, "read_resident", lambda *_: False)
    run(later())


def test_the_log_is_read_ahead_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option for reading ahead applies to segments that are already mapped, mapped later, and created later."""
    advised: list[tuple[str, bool]] = []

    def read_ahead(segment: FileMap, ahead: bool) -> None:
        advised.append((segment.path[-20:].lstrip("0") or "0", ahead))

    monkeypatch.setattr(FileMap, "read_ahead", read_ahead)

    async def scene() -> None:
        async with Cluster(tmp_path, max_body=4 << 20) as cluster:
            await cluster.send("T", b"first")
            assert advised == []
            await cluster.ask(READ_MODE, {"READ_AHEAD_MODE": "1"})
            assert advised == [("0", False)]
            for _ in range(3):
                await cluster.send("T", bytes(2 << 20))
            assert ("4194304", False) in advised
            advised.clear()
            await cluster.ask(READ_MODE, {"READ_AHEAD_MODE": "0"})
            assert ("0", True) in advised
            assert ("4194304", True) in advised
            advised.clear()
            for _ in range(4):
                await cluster.send("T", bytes(2 << 20))
            assert advised == []

    run(scene())


def test_advice_to_the_system_follows_the_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(100))
    segment = Files().map_file(str(path))
    told: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: told.append(arguments[3]))
    segment.read_ahead(False)
    segment.read_ahead(True)
    assert told == [os.POSIX_FADV_RANDOM, os.POSIX_FADV_NORMAL]
    assert mmap.MADV_RANDOM == 1 and mmap.MADV_NORMAL == 0, "the numbers in the request"
    segment.close()
    segment.read_ahead(False)
