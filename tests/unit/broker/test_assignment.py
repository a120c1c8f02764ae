"""Which consumer reads which queues, by pull or by pop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run

from rucola.broker.pop.allocate import AVERAGELY, BY_CIRCLE, CONSISTENT_HASH, allocate, allocate_for_pop
from rucola.common.message_queue import MessageQueue
from rucola.protocol import fastjson
from rucola.protocol.command import RemotingCommand

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(5)]


def ids(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


@pytest.mark.parametrize(
    ("strategy", "client_id", "expected"),
    [
        (AVERAGELY, "a", [0, 1, 2]),
        (AVERAGELY, "b", [3, 4]),
        (BY_CIRCLE, "a", [0, 2, 4]),
        (BY_CIRCLE, "b", [1, 3]),
        (AVERAGELY, "unknown", []),
    ],
)
def test_queues_are_shared_out(strategy: str, client_id: str, expected: list[int]) -> None:
    assert ids(allocate(strategy, client_id, QUEUES, ["a", "b"])) == expected


def test_consistent_hashing_gives_each_queue_to_one_client() -> None:
    clients = ["a", "b", "c"]
    shares = [allocate(CONSISTENT_HASH, client, QUEUES, clients) for client in clients]
    assert sorted(queue for share in shares for queue in share) == QUEUES
    without_b = [queue for client in ("a", "c") for queue in allocate(CONSISTENT_HASH, client, QUEUES, ["a", "c"])]
    assert sorted(without_b) == QUEUES
    assert set(shares[0]) <= set(allocate(CONSISTENT_HASH, "a", QUEUES, ["a", "c"]))


@pytest.mark.parametrize(
    ("client_ids", "share", "expected"),
    [
        (["a", "b", "c", "d"], -1, [-1]),
        (["a", "b"], 1, [-1]),
        (["a", "b", "c", "d"], 1, [0, 1, 2]),
        (["a", "b", "c", "d", "e", "f", "g"], 2, [0]),
        (["b", "c", "d", "e"], 1, []),
    ],
)
def test_queues_for_pops_overlap(client_ids: list[str], share: int, expected: list[int]) -> None:
    assert ids(allocate_for_pop(AVERAGELY, "a", QUEUES, client_ids, share)) == expected


def text(**members: Any) -> bytes:
    return fastjson.dumps({"topic": "T", "consumerGroup": "cg"} | members)


def heartbeat(client_id: str) -> bytes:
    consumer = {
        "groupName": "cg", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [], "unitMode": False,
    }  # fmt: skip
    return fastjson.dumps({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []})


def assigned(answer: RemotingCommand) -> list[tuple[int, str]] | None:
    entries = fastjson.loads(answer.body).get("messageQueueAssignments")
    return None if entries is None else [(entry["messageQueue"]["queueId"], entry["mode"]) for entry in entries]


def test_a_mode_is_set_and_kept(tmp_path: Path) -> None:
    async def work() -> None:
        query = text(clientId="one", strategyName="AVG", messageModel="CLUSTERING")
        async with Cluster(tmp_path) as cluster:
            await cluster.send(queues=2)
            assert assigned(await cluster.ask(400, body=query)) is None  # the group has no members
            assert (await cluster.ask(34, body=heartbeat("one"))).code == 0
            assert assigned(await cluster.ask(400, body=query)) == [(0, "PULL"), (1, "PULL")]
            mode = text(mode="POP", popShareQueueNum=0)
            assert (await cluster.ask(401, body=mode)).code == 0
            assert assigned(await cluster.ask(400, body=query)) == [(-1, "POP")]
            refused = await cluster.ask(401, body=text(topic="%RETRY%cg", mode="POP"))
            assert (refused.code, refused.remark) == (16, "retry topic is not allowed to set mode")
            refused = await cluster.ask(401, body=text(topic="none", mode="POP"))
            assert (refused.code, refused.remark) == (17, "topic[none] not exist")
            assert (await cluster.ask(401, body=text(mode="LOOK"))).code == 29
        async with Cluster(tmp_path) as cluster:
            assert (await cluster.ask(34, body=heartbeat("one"))).code == 0
            assert assigned(await cluster.ask(400, body=query)) == [(-1, "POP")]

    run(work())
