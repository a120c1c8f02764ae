"""Responses that are gathered in pieces: only one is gathered at a time, and between two of its pieces the broker
serves other requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run

from rucola.broker.processor import pieces
from rucola.protocol.bodies.statistics import TopicStatsTable
from rucola.protocol.codes import RequestCode
from rucola.remoting.fairness import steps
from rucola.remoting.fairness.steps import in_turns

QUEUES = 200


def test_others_are_served_between_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, gathering the statistics of a topic with very many queues blocked the event loop for seconds."""
    monkeypatch.setattr(steps, "PIECE_S", 1e-9)
    gathering: list[int] = []
    together: list[int] = []
    encoded_in: list[str] = []
    encode = TopicStatsTable.encode

    def noted(self: TopicStatsTable) -> bytes:
        encoded_in.append(threading.current_thread().name)
        return encode(self)

    async def counted(steps: Any) -> Any:
        gathering.append(1)
        together.append(len(gathering))
        try:
            return await in_turns(steps)
        finally:
            gathering.pop()

    monkeypatch.setattr(pieces, "in_turns", counted)
    monkeypatch.setattr(TopicStatsTable, "encode", noted)

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            fields = {"topic": "T", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
            fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
            assert (await cluster.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
            asked = [asyncio.create_task(cluster.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})) for _ in "ab"]
            while not gathering:
                await asyncio.sleep(0)
            turns = 0
            while gathering:
                turns += 1
                await asyncio.sleep(0)
            assert turns >= QUEUES
            for answer in await asyncio.gather(*asked):
                assert answer.code == 0 and answer.body.count(b'"maxOffset"') == QUEUES
            assert together == [1, 1]
            assert len(encoded_in) == 2 and threading.main_thread().name not in encoded_in
            missing = await cluster.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none-such"})
            assert missing.code == 17, "a refusal is sent as usual"

    run(scene())


def test_unused_topics_are_removed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, one turn of the event loop listed the queues of all topics and removed those not in use."""
    monkeypatch.setattr(steps, "PIECE_S", 1e-9)

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            names = [f"T{number}" for number in range(40)]
            for name in names:
                await cluster.send(name)
            table, store = cluster.broker.topics.table, cluster.broker.store
            while store.dispatch_behind_bytes:
                await asyncio.sleep(0.001)
            for name in names[:20]:
                del table[name]
            asked = [asyncio.create_task(cluster.ask(RequestCode.CLEAN_UNUSED_TOPIC, {})) for _ in "ab"]
            deleted: list[int] = []
            while not all(task.done() for task in asked):
                await asyncio.sleep(0)
                deleted.append(sum(not (tmp_path / "consumequeue" / name).exists() for name in names[:20]))
            assert [answer.code for answer in await asyncio.gather(*asked)] == [0, 0]
            assert set(range(1, 21)) <= set(deleted), "one topic in a turn"
            assert all((tmp_path / "consumequeue" / name).exists() for name in names[20:])
            assert await cluster.bodies("T39") == [b"body"]

    run(scene())


def test_results_of_steps_come_in_one_piece_when_there_is_time() -> None:
    def steps() -> Iterator[None]:
        yield
        yield
        return 7  # type: ignore[misc]

    assert run(in_turns(steps())) == 7  # type: ignore[arg-type]
