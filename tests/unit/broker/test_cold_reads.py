"""Pulls and queries of messages that are not in memory do not delay other requests."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests import places
from tests.brokers import Cluster, properties_text, run
from tests.unit.broker.test_pop import pop_fields

from rucola.errors import DiskError
from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode
from rucola.runtime.file_map import FileMap
from rucola.store.log.cold_read import ColdRead, ColdRecords
from rucola.store.results import StoreState

tmp_path = places.tmp_path  # memory cannot tell what of a file is in memory


class Disk:
    """A disk whose data is in memory only after a fetch; a fetch lasts until ``answer`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer = threading.Event()
        self.asked = 0
        fetch = ColdRead.fetch

        def slow(cold: ColdRead) -> None:
            self.asked += 1
            assert self.answer.wait(60)
            fetch(cold)

        fetch_records = ColdRecords.fetch

        def slow_records(cold: ColdRecords) -> None:
            self.asked += 1
            assert self.answer.wait(60)
            fetch_records(cold)

        monkeypatch.setattr(ColdRead, "fetch", slow)
        monkeypatch.setattr(ColdRecords, "fetch", slow_records)
        monkeypatch.setattr(FileMap, "read_resident", lambda *_: False)

    async def until_asked(self) -> None:
        while not self.asked:
            await asyncio.sleep(0.001)


async def leave_behind(path):
    """Makes a store with one message; to the next broker, it is a message of an earlier process."""
    async with Cluster(path) as cluster:
        await cluster.send("T", b"old")


def bodies(answer):
    return [bytes(message.body) for message in decode_messages(answer.body)]


@pytest.mark.parametrize("filtered", [False, True])
def test_others_are_served_meanwhile(filtered, tmp_path, monkeypatch):
    options = {"expression": "a is null", "expression_type": "SQL92"} if filtered else {}

    async def scene() -> None:
        await leave_behind(tmp_path)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            cold = asyncio.ensure_future(cluster.pull("T", **options))
            await disk.until_asked()
            assert (await cluster.send("T", b"new")).code == 0
            assert bodies(await cluster.pull("T", 0, 1, **options)) == [b"new"]
            assert not cold.done()
            disk.answer.set()
            # A read with a filter continues after the fetched messages. A read without a filter selects its units
            # before the fetch.
            assert bodies(await cold)[0] == b"old"
            assert disk.asked == 1

    run(scene())


def test_a_stop_answers_it(tmp_path, monkeypatch):
    async def scene() -> None:
        await leave_behind(tmp_path)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path) as cluster:
            cold = asyncio.ensure_future(cluster.pull("T"))
            await disk.until_asked()
            stop = asyncio.ensure_future(cluster.stop_broker())
            await asyncio.sleep(0.01)
            assert not stop.done()
            disk.answer.set()
            await stop
            assert bodies(await cold) == [b"old"]

    run(scene())


def test_more_than_may_wait_are_refused(tmp_path, monkeypatch):
    async def scene() -> None:
        await leave_behind(tmp_path)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path, pull_thread_pool_queue_capacity=1) as cluster:
            cold = asyncio.ensure_future(cluster.pull("T"))
            await disk.until_asked()
            refused = await cluster.pull("T")
            assert (refused.code, refused.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")
            disk.answer.set()
            assert bodies(await cold) == [b"old"]

    run(scene())


@pytest.mark.parametrize("kind", ["by id", "by key"])
def test_queries_wait_beside_the_loop(kind, tmp_path, monkeypatch):
    """A thread fetches both messages with the requested key in one call."""
    key = properties_text(UNIQ_KEY="U", KEYS="k")

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"old", key)
            await cluster.send("T", b"other", key)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path) as cluster:
            if kind == "by id":
                asked = cluster.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"})
            else:
                times = {"beginTimestamp": "0", "endTimestamp": str(2**62)}
                asked = cluster.ask(RequestCode.QUERY_MESSAGE, {"topic": "T", "key": "k", "maxNum": "32", **times})
            cold = asyncio.ensure_future(asked)
            await disk.until_asked()
            assert (await cluster.send("T", b"new")).code == 0
            assert not cold.done()
            disk.answer.set()
            assert bodies(await cold) == ([b"old"] if kind == "by id" else [b"old", b"other"])
            assert disk.asked == 1

    run(scene())


def test_unreadable_messages_are_not_found(tmp_path, monkeypatch):
    async def scene() -> None:
        await leave_behind(tmp_path)
        monkeypatch.setattr(FileMap, "read_resident", lambda *_: False)

        def fails(segment: FileMap, *_: int) -> bytes:
            raise DiskError(segment.path, "read", "input/output error")

        async with Cluster(tmp_path) as cluster:
            monkeypatch.setattr(FileMap, "read", fails)
            answer = await cluster.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"})
            assert (answer.code, answer.remark) == (1, "can not find message by the offset, 0")

    run(scene())


def test_more_queries_than_may_wait_are_refused(tmp_path, monkeypatch):
    async def scene() -> None:
        await leave_behind(tmp_path)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path, pull_thread_pool_queue_capacity=1) as cluster:
            cold = asyncio.ensure_future(cluster.pull("T"))
            await disk.until_asked()
            refused = await cluster.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"})
            assert refused.code == 2
            disk.answer.set()
            assert bodies(await cold) == [b"old"]

    run(scene())


@pytest.mark.parametrize("kind", ["pull", "pop"])
def test_a_failure_after_a_fetch_is_answered_all_the_same(tmp_path, monkeypatch, kind):
    """Before the fix, an error after a fetch was raised in a callback of the event loop: the client waited forever."""

    async def scene() -> None:
        await leave_behind(tmp_path)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path) as cluster:
            store = cluster.broker.store
            ask = cluster.pull("T") if kind == "pull" else cluster.ask(RequestCode.POP_MESSAGE, pop_fields())
            asked = asyncio.ensure_future(ask)
            await disk.until_asked()

            def refuses(*_: object, **__: object) -> None:
                raise DiskError("commitlog", "read", "input/output error")

            with monkeypatch.context() as patch:
                patch.setattr(store, "get_message", refuses)
                disk.answer.set()
                answer = await asked
            assert (answer.code, "input/output error" in (answer.remark or "")) == (1, True)
            assert bodies(await cluster.pull("T")) == [b"old"]
            assert store.state is StoreState.RUNNING

    run(scene())
