"""Pops of lite topics where the store makes it difficult: messages on the disk, gaps, large messages, a stop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run_virtual
from tests.unit.broker.lite.lite_cluster import POLLING_FULL, POLLING_TIMEOUT, SUCCESS, LiteCluster, bodies, counts

from rucola.broker.lite import pop as lite_pop
from rucola.broker.retry_owner import records_of
from rucola.store.results import GetMessageResult, GetMessageStatus


def test_messages_that_are_on_the_disk_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            store, fetched = cluster.broker.store, []
            read = store.get_message

            def on_disk(topic: bytes, *where: Any) -> GetMessageResult:
                result = read(topic, *where)
                may_block = where[-1]
                return result if may_block else replace(result, views=[], cold=lambda: fetched.append(topic))

            cluster.put("one", "a")
            cluster.put("two", "b")
            await cluster.add("one", "two")
            monkeypatch.setattr(store, "get_message", on_disk)
            answer = await cluster.pop(poll_ms=10_000)
            assert bodies(answer) == ["a"] or bodies(answer) == ["b"], "the other one is fetched for the next pop"
            assert len(await cluster.take(poll_ms=10_000)) == 1
            assert sorted(fetched)[0] == b"%LMQ%$Parent$one"

    run_virtual(work())


def test_a_gap_in_the_offsets_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            read = cluster.broker.store.get_message

            def with_gap(topic: bytes, queue_id: int, start: int, *rest: Any) -> GetMessageResult:
                """The message at offset 1 has no unit."""
                result = read(topic, queue_id, start, *rest)
                views = [part for view in result.views for part in records_of(view)]
                return replace(result, views=[view for at, view in enumerate(views, start) if at != 1])

            cluster.put("one", "a", "b", "c")
            await cluster.add("one")
            monkeypatch.setattr(cluster.broker.store, "get_message", with_gap)
            answer = await cluster.pop()
            assert (bodies(answer), counts(answer)) == (["a", "c"], "0;0")
            assert (await cluster.ack(answer, "one", 1)).code == 13
            for offset in (0, 2):
                assert (await cluster.ack(answer, "one", offset)).code == SUCCESS
            assert await cluster.take() == []

    run_virtual(work())


def test_what_cannot_be_read_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "a")
            await cluster.add("one")
            with monkeypatch.context() as broken:
                empty = GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, 0, 0, 1)
                broken.setattr(cluster.broker.store, "get_message", lambda *_: empty)
                assert await cluster.take() == []
            assert await cluster.take(poll_ms=5000) == ["a"]

    run_virtual(work())


def test_a_response_has_no_more_bytes_than_a_client_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite_pop, "_BYTES_MAX", 100)

    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            for lite in ("one", "two"):
                cluster.put(lite, "x" * 200, "y" * 200)
            await cluster.add("one", "two")
            assert [len(await cluster.take()) for _ in range(3)] == [1, 1, 0]

    run_virtual(work())


def test_too_many_leases_and_too_many_waiting_pops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path, pop_polling_size=1) as cluster:
            cluster.put("one", "a")
            cluster.put("two", "b")
            await cluster.add("one", "two")
            assert len(await cluster.take(maxMsgNum=1)) == 1
            with monkeypatch.context() as few:
                few.setattr(lite_pop, "_LEASES_MAX", 1)
                few.setattr(lite_pop, "_LEASES_KEPT", 1)
                assert (await cluster.pop(poll_ms=60_000)).code == POLLING_FULL
            assert len(await cluster.take()) == 1
            waiting = [asyncio.create_task(cluster.pop(poll_ms=60_000)) for _ in range(2)]
            await asyncio.sleep(1)
            assert (await cluster.pop(poll_ms=60_000)).code == POLLING_FULL
            await cluster.stop_broker()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert [getattr(answer, "code", None) for answer in answers] == [POLLING_TIMEOUT] * 2

    run_virtual(work())
