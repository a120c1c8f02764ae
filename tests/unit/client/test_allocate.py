"""The allocation strategies, compared with the results of RocketMQ's classes (``golden/allocations.jsonl``), and edge
cases.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rucola.client.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
)
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError

GOLDEN = Path(__file__).parents[2] / "golden" / "allocations.jsonl"
NEARBY = AllocateMachineRoomNearby(
    AllocateMessageQueueAveragely(),
    lambda queue: queue.broker_name.split("@")[0],
    lambda client_id: client_id.split("-")[0],
)
STRATEGIES: list[AllocateMessageQueueStrategy] = [
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueByMachineRoom(["room1", "room2"]),
    AllocateMessageQueueConsistentHash(),
    NEARBY,
]
QUEUES = [MessageQueue("T", "b", n) for n in range(5)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_every_division_is_the_references(strategy):
    cases = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    mine = [case for case in cases if case["strategy"] == strategy.name]
    assert len(mine) == 40
    for case in mine:
        queues = [MessageQueue(*queue) for queue in case["queues"]]
        got = [list(strategy.allocate(client, queues, case["clients"])) for client in case["clients"]]
        assert got == [[MessageQueue(*queue) for queue in result] for result in case["results"]]


def test_by_config_gives_what_was_configured_of_the_topic():
    other = MessageQueue("U", "b", 0)
    strategy = AllocateMessageQueueByConfig([QUEUES[3], other, QUEUES[1]])
    assert strategy.name == "CONFIG"
    assert list(strategy.allocate("c", QUEUES, ["c"])) == [QUEUES[3], QUEUES[1]]
    assert list(strategy.allocate("c", [other], ["c"])) == [other]


def test_a_broker_name_with_more_or_fewer_parts_is_in_no_room():
    names = ["room1@b", "room1@b@c", "room1", "room1@", "@room1", "room1@b@"]
    queues = [MessageQueue("T", name, 0) for name in names]
    got = AllocateMessageQueueByMachineRoom(["room1"]).allocate("c", queues, ["c"])
    assert [queue.broker_name for queue in got] == ["room1@b", "room1@b@"]


def test_without_virtual_nodes_nobody_gets_anything():
    assert list(AllocateMessageQueueConsistentHash(0).allocate("c", QUEUES, ["c"])) == []
    with pytest.raises(ConfigError, match="virtualNodeCnt"):
        AllocateMessageQueueConsistentHash(-1)


def test_a_consumer_or_queue_in_no_room_is_an_error():
    with pytest.raises(ConfigError, match="a machine room for x@"):
        AllocateMachineRoomNearby(STRATEGIES[0], lambda queue: "r", lambda one: "").allocate("x@", QUEUES, ["x@"])
    with pytest.raises(ConfigError, match="a machine room for b"):
        AllocateMachineRoomNearby(STRATEGIES[0], lambda queue: "", lambda one: "r").allocate("x", QUEUES, ["x"])
