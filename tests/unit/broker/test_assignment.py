"""Which consumer reads which queues, by pull or by pop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run

from rucola.broker.pop import allocate as allocate_module
from rucola.broker.pop.allocate import AVERAGELY, BY_CIRCLE, CONSISTENT_HASH, allocate, allocate_for_pop
from rucola.broker.topic_queues import KEPT_S, TopicQueues
from rucola.common.message_queue import MessageQueue
from rucola.common.topic_config import TopicConfig
from rucola.errors import RemotingError
from rucola.protocol import fastjson
from rucola.protocol.command import RemotingCommand
from rucola.testing.event_loop import advance, run_stepped, settle

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


def test_the_ring_of_a_large_group_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, the broker computed 40,000 hashes for each request of 4,000 clients, 50 ms on the event loop."""
    hashed: list[str] = []
    made = allocate_module._hash

    def counted(text: str) -> int:
        hashed.append(text)
        return made(text)

    monkeypatch.setattr(allocate_module, "_hash", counted)
    clients = [f"one of many {number:03d}" for number in range(100)]
    for client in clients:
        allocate(CONSISTENT_HASH, client, QUEUES[:1], clients)
    allocate(CONSISTENT_HASH, clients[0], QUEUES[:1], clients[1:])
    assert sum(text.startswith("one of many") for text in hashed) == 1000


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


def known(queues: TopicQueues, topic: str) -> list[MessageQueue] | bool | None:
    """The cached queues of a topic; False if none are cached."""
    kept = queues.known(topic)
    return False if kept is None else kept.queues


class Names:
    """Name servers that answer when the test says so, and the topics of one broker."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[asyncio.Future[list[MessageQueue]]] = []
        self.table: dict[str, TopicConfig] = {}
        self.changed: Any = None

    async def ask(self, topic: str) -> list[MessageQueue]:
        self.asked.append(topic)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    def get(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def on_change(self, listener: Any) -> None:
        self.changed = listener

    def finder(self, time_s: float | None = None) -> TopicQueues:
        """The queues of topics; at a time that does not go on, answers do not become old."""
        topics: Any = self
        clock = asyncio.get_running_loop().time if time_s is None else lambda: time_s
        return TopicQueues(self.ask, topics, "broker-a", clock)


def test_clients_of_a_group_share_one_answer_of_the_name_servers() -> None:
    async def work() -> None:
        names = Names()
        queues = names.finder()
        asking = [asyncio.ensure_future(queues.find("T")) for _ in range(100)]
        await settle()
        asking[0].cancel()  # whose connection was closed
        await settle()
        names.answers[0].set_result(QUEUES[::-1])
        await settle()
        assert names.asked == ["T"] and asking[0].cancelled()
        assert all(each.result() == QUEUES for each in asking[1:])
        assert known(queues, "T") == QUEUES and known(queues, "U") is False
        advance(KEPT_S * 1.01)
        assert known(queues, "T") is False

    run_stepped(work())


def test_an_answer_from_before_a_change_of_a_topic_is_not_kept() -> None:
    async def work() -> None:
        names = Names()
        queues = names.finder()
        before = asyncio.ensure_future(queues.find("T"))
        await settle()
        names.changed()
        after = asyncio.ensure_future(queues.find("T"))
        await settle()
        assert names.asked == ["T", "T"]
        names.answers[1].set_result(QUEUES)
        await settle()
        names.answers[0].set_result(QUEUES[:1])
        await settle()
        assert (before.result(), after.result()) == (QUEUES[:1], QUEUES)
        assert known(queues, "T") == QUEUES
        names.changed()
        assert known(queues, "T") is False

    run_stepped(work())


def test_topics_that_no_name_server_knows_are_asked_of_the_broker() -> None:
    async def work() -> None:
        names = Names()
        names.table["own"] = TopicConfig("own", read_queue_nums=2, write_queue_nums=2)
        queues = names.finder()
        own, none = asyncio.ensure_future(queues.find("own")), asyncio.ensure_future(queues.find("none"))
        await settle()
        for answer in names.answers:
            answer.set_exception(RemotingError("nobody is there"))
        await settle()
        assert own.result() == [MessageQueue("own", "broker-a", 0), MessageQueue("own", "broker-a", 1)]
        assert none.result() is None and known(queues, "none") is None

    run_stepped(work())


def test_answers_for_few_topics_are_kept() -> None:
    async def work() -> None:
        names = Names()
        queues = names.finder(time_s=0.0)
        for number in range(1030):
            asking = asyncio.ensure_future(queues.find(f"T{number}"))
            await settle(2)
            names.answers[-1].set_result(QUEUES)
            await asking
        assert [number for number in range(1030) if known(queues, f"T{number}") is False] == list(range(6))

    run_stepped(work())
