"""Sends while the disk is slow, fails or is full."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.brokers import SUBSCRIPTION, SUSPEND, Cluster, run

from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files


class Disk:
    """A disk whose syncs wait while ``gate`` is closed and fail while ``error`` is set; it allocates nothing while
    ``full``.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error = 0
        self.full = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Makes syncs wait, at most until the end of the block, so that the broker can be stopped even if the test
        fails.
        """
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    def files(self) -> Files:
        disk = self

        def data_sync(descriptor: int) -> None:
            disk.gate.wait()
            if disk.error:
                raise OSError(disk.error, os.strerror(disk.error))
            os.fdatasync(descriptor)

        def fallocate(descriptor: int, position: int, length: int) -> None:
            if disk.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(descriptor, position, length)

        class TroubledFiles(Files):
            pass

        TroubledFiles.data_sync = staticmethod(data_sync)
        TroubledFiles.fallocate = staticmethod(fallocate)
        return TroubledFiles()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def test_nobody_hears_of_or_sees_a_message_before_its_sync(tmp_path):
    async def scene() -> None:
        disk = Disk()
        async with Cluster(tmp_path, sync_flush=True, files=disk.files()) as cluster:
            await cluster.send("T", b"0")
            with disk.waiting():
                send = asyncio.ensure_future(cluster.send("T", b"1"))
                pull = asyncio.ensure_future(
                    cluster.pull("T", 0, 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_ms=60_000)
                )
                await until(lambda: cluster.broker.sends_waiting == 1 and cluster.broker.pulls_held == 1)
                assert (await cluster.ask(30, {"topic": "T", "queueId": "0"})).ext_fields == {"offset": "1"}
                assert not send.done()
                assert not pull.done()
                disk.gate.set()
                assert (await send).code == 0
                assert (await pull).code == 0

    run(scene())


def test_a_send_not_synced_in_time_is_answered_once(tmp_path):
    async def scene() -> None:
        disk = Disk()
        async with Cluster(tmp_path, sync_flush=True, files=disk.files(), sync_flush_timeout_ms=50) as cluster:
            await cluster.send("T", b"0")
            with disk.waiting():
                raw = await cluster.connect()
                raw.send(cluster.send_command("T", b"1"), opaque=1)
                late = await raw.receive()
                assert (late.code, late.opaque) == (10, 1)
                assert {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"} <= late.ext_fields.keys()
                disk.gate.set()
                await until(lambda: cluster.broker.store.flushed_offset == cluster.broker.store.max_offset)
                raw.send(cluster.send_command("T", b"2"), opaque=2)
                following = await raw.receive()
                assert (following.code, following.opaque) == (0, 2)
                raw.close()
                assert await cluster.bodies() == [b"0", b"1", b"2"]

    run(scene())


def test_a_failed_sync_fails_its_whole_group_and_the_store_takes_no_more(tmp_path):
    async def scene() -> None:
        disk = Disk()
        async with Cluster(tmp_path, sync_flush=True, files=disk.files(), sync_flush_timeout_ms=600_000) as cluster:
            await cluster.send("T", b"0")
            with disk.waiting():
                disk.error = errno.EIO
                group = [asyncio.ensure_future(cluster.send("T", b"%d" % i)) for i in range(5)]
                await until(lambda: cluster.broker.sends_waiting > 0)
                disk.gate.set()
                assert [(await answer).code for answer in group] == [10] * 5
                disk.error = 0
                refused = await cluster.send("T", b"x")
                assert (refused.code, refused.ext_fields["MSG_REGION"]) == (14, "DefaultRegion")
                assert not cluster.broker.ready
                assert await cluster.bodies() == [b"0"]

    run(scene())


def test_the_stop_tells_who_waits_the_truth(tmp_path):
    async def scene() -> None:
        disk = Disk()
        async with Cluster(tmp_path, sync_flush=True, files=disk.files()) as cluster:
            await cluster.send("T", b"0")
            with disk.waiting():
                send = asyncio.ensure_future(cluster.send("T", b"1"))
                await until(lambda: cluster.broker.sends_waiting == 1)
                opener = threading.Timer(0.05, disk.gate.set)
                opener.start()
                await cluster.stop_broker()
                assert (await send).code == 0
                opener.join()

    run(scene())


@pytest.mark.parametrize("error", [StoreDamagedError("segment", 7, "a record cannot be read", "verify"), ValueError()])
def test_a_broker_whose_dispatch_fails_is_not_ready_and_tries_again(tmp_path, monkeypatch, error):
    """Known defect 21 of RocketMQ: after an error, the dispatch thread ends. Sends continue, but no message is
    consumed, and nothing reports this.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"0")
            assert await cluster.bodies() == [b"0"]
            tries = []

            def fail() -> int:
                tries.append(1)
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(cluster.broker.store, "dispatch", fail)
                for number in (b"1", b"2"):
                    assert (await cluster.send("T", number)).code == 0
                    seen = len(tries)
                    await until(lambda seen=seen: len(tries) > seen or not cluster.broker.ready)
                assert not cluster.broker.ready
                assert await cluster.bodies() == [b"0"]
            assert (await cluster.send("T", b"3")).code == 0
            await until(lambda: cluster.broker.ready)
            assert await cluster.bodies() == [b"0", b"1", b"2", b"3"]

    run(scene())


def test_a_full_disk_refuses_sends_and_serves_the_rest(tmp_path):
    async def scene() -> None:
        disk = Disk()
        async with Cluster(tmp_path, files=disk.files()) as cluster:
            body = b"x" * 1_000_000
            assert (await cluster.send("T", body)).code == 0
            assert await cluster.bodies() == [body]  # the queue has a file now
            disk.full = True
            codes = [(await cluster.send("T", body)).code for _ in range(12)]
            stored = codes.count(0)
            assert codes == [0] * stored + [14] * (12 - stored)
            assert stored < 12
            assert len(await cluster.bodies()) == stored + 1
            assert (
                await cluster.ask(15, {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "1"})
            ).code == 0

    run(scene())
