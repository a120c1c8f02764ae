"""Request 215 (DELETE_TOPIC_IN_BROKER), and consumer offsets that a crash has left outside of their queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.brokers import Cluster, run
from tests.tables import keep_nothing

from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.formats.tables import decode_consumer_offsets
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.consume_queue_store import ConsumeQueueStore


async def offset_of_next(cluster: Cluster, topic: str) -> int:
    answer = await cluster.send(topic)
    assert answer.code == ResponseCode.SUCCESS
    return int(answer.ext_fields["queueOffset"])


async def max_offset(cluster: Cluster, topic: str) -> int:
    answer = await cluster.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    return int(answer.ext_fields["offset"])


def test_a_deleted_topic_begins_anew_and_its_progress_is_gone(tmp_path: Path) -> None:
    retry_topics = ("%RETRY%cg_T", "%RETRY%cg+T")

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            assert [await offset_of_next(cluster, "T") for _ in range(3)] == [0, 1, 2]
            await offset_of_next(cluster, "Other")
            for name in retry_topics:
                await cluster.broker.topics.update(TopicConfig(name))
            cluster.broker.groups.update(SubscriptionGroupConfig("cg"))
            fields = {"consumerGroup": "cg", "queueId": "0", "commitOffset": "3"}
            for topic in ("T", "Other"):
                await cluster.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": topic} | fields)
            answer = await cluster.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert answer.code == ResponseCode.SUCCESS
            assert not {"T", *retry_topics} & set(cluster.broker.topics.table)
            assert await max_offset(cluster, "T") == 0
            assert await offset_of_next(cluster, "T") == 0
            table = tmp_path / "config/consumerOffset.json"
            assert decode_consumer_offsets(table.read_bytes())[1] == {"Other@cg": {0: 3}}
        async with Cluster(tmp_path) as cluster:
            assert await max_offset(cluster, "T") == 1
            assert await offset_of_next(cluster, "T") == 1
            assert await max_offset(cluster, "Other") == 1

    run(work())


def test_a_name_that_leads_out_of_the_store_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await offset_of_next(cluster, "T")
            answer = await cluster.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "../commitlog"})
            assert answer.code != ResponseCode.SUCCESS
            assert list((tmp_path / "commitlog").iterdir())
            assert await offset_of_next(cluster, "T") == 1

    run(work())


def test_offsets_outside_of_their_queues_are_brought_back_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[bytes] = []
    find = ConsumeQueueStore.find

    def noted(self: ConsumeQueueStore, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        sought.append(topic)
        return find(self, topic, queue_id)

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            for _ in range(3):
                await offset_of_next(cluster, "T")
            cluster.broker.offsets.table.update({"T@far": {0: 200, 1: 7}, "T@near": {0: 2}, "T@below": {0: -1}})
            cluster.broker.offsets.commit("end", "T", 0, 3)
            cluster.broker.offsets.table.update({f"No{number}@g": {0: 5, 1: 0} for number in range(50)})
        async with Cluster(tmp_path) as cluster:
            # After a clean stop, no offset is checked, because that would open every queue.
            assert cluster.broker.offsets.clamped == 0
        (tmp_path / "rucola-watermark").unlink()
        monkeypatch.setattr(ConsumeQueueStore, "find", noted)
        async with Cluster(tmp_path) as cluster:
            offsets = cluster.broker.offsets
            assert offsets.clamped == 53
            assert not any(topic.startswith(b"No") for topic in sought), "checking each of 160,000 queues takes 5 s"
            ours = {key: queues for key, queues in offsets.table.items() if key.startswith("T@")}
            assert ours == {
                "T@far": {0: 3, 1: 0},
                "T@near": {0: 2},
                "T@below": {0: 0},
                "T@end": {0: 3},
            }
            await offset_of_next(cluster, "T")
        text = (tmp_path / "config/consumerOffset.json").read_bytes()
        assert decode_consumer_offsets(text)[1]["T@far"] == {0: 3, 1: 0}

    run(work())


def test_groups_of_a_topic() -> None:
    offsets = ConsumerOffsetManager(keep_nothing(), lambda: 1)
    for group, topic in (("g1", "T"), ("g2", "T"), ("g3", "TT")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.groups_of("T") == ["g1", "g2"]
