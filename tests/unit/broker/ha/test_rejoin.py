"""A copy goes back to the last record that its master has, too: over sockets."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.brokers import Cluster, run, run_virtual
from tests.masters import HaPort, MasterLog, log_bytes
from tests.pairs import until
from tests.slaves import ha_server
from tests.unit.broker.ha.test_replica import KnownBroker, log_of, running
from tests.unit.store.stores import fill, opened

from rucola.broker.ha.master_broker import LogBounds
from rucola.broker.ha.replica import Replica, ReplicaOptions
from rucola.errors import CopyRefusedError, DiskFullError
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.ha.common_point import CommonPoint
from rucola.store.inspect.compare import compare
from rucola.store.recovery.log_cut import LogCut

PLAN = "commitlog/rucola-cut"


class Vague(KnownBroker):
    """A broker port that does not tell where the log lies."""

    async def log_bounds(self) -> LogBounds:
        return LogBounds(0, 1 << 40)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[MasterLog, MasterLog, int]:
    """The log of a master; that of the same master after it lost messages and wrote on; where they part."""
    path = tmp_path_factory.mktemp("masters")
    store = opened(path / "first")
    fill(store, 600)
    common = store.max_offset
    store.shutdown()
    shutil.copytree(path / "first", path / "second")
    found = []
    for name, first in (("first", 5000), ("second", 7000)):
        store = opened(path / name)
        fill(store, 500 if name == "first" else 700, first=first)
        found.append(MasterLog(log_bytes(store)))
        store.shutdown()
    return found[0], found[1], common


async def copied(path: Path, master: MasterLog, **options: bool) -> None:
    async with HaPort(master) as ha, running(path, ha, KnownBroker(ha), until_now=True, **options) as (_, task):
        await task


@pytest.mark.parametrize("known", [True, False])
def test_a_copy_goes_back_and_on(tmp_path: Path, logs: tuple[MasterLog, MasterLog, int], known: bool) -> None:
    first, second, common = logs

    async def scenario() -> None:
        await copied(tmp_path, first)
        async with HaPort(second) as ha:
            broker = (KnownBroker if known else Vague)(ha, {"topics.json": b'{"topicConfigTable":{"new":{}}}'})
            began_s = asyncio.get_running_loop().time()
            async with running(tmp_path, ha, broker, rejoin=True) as (replica, task):
                await until(lambda: replica.end_offset == second.end or task.done())
                assert not task.done()
                assert replica._copying.client.is_copying
                assert asyncio.get_running_loop().time() - began_s < 2  # no pauses between questions
                assert ha.requests[-1] < common <= ha.requests[-1] + 65536
                await until(lambda: not replica.store.dispatch_behind_bytes)
                await until(lambda: b"new" in (tmp_path / "config/topics.json").read_bytes())
            assert len(ha.requests) < 40

    run_virtual(scenario())
    assert log_of(tmp_path, second.end) == second.content
    assert (tmp_path / "quarantine" / f"{common:020d}").exists()
    assert not (tmp_path / PLAN).exists() and not (tmp_path / "abort").exists()


def test_a_copy_that_went_back_ends_when_it_has_all(tmp_path: Path, logs: tuple[MasterLog, MasterLog, int]) -> None:
    run_virtual(copied(tmp_path, logs[0]))
    run_virtual(copied(tmp_path, logs[1], rejoin=True))
    assert log_of(tmp_path, logs[1].end) == logs[1].content
    run_virtual(copied(tmp_path, logs[0], rejoin=True))  # and back again
    assert log_of(tmp_path, logs[0].end) == logs[0].content


def test_a_master_that_has_less_and_gets_more_later(tmp_path: Path, logs: tuple[MasterLog, MasterLog, int]) -> None:
    first, second, common = logs
    less = MasterLog(second.content[:common])

    async def scenario() -> None:
        await copied(tmp_path, first)
        async with HaPort(less) as ha, running(tmp_path, ha, KnownBroker(ha), rejoin=True) as (replica, _):
            await until(lambda: replica.end_offset == common)
            assert max(ha.requests[1:]) < common  # the broker has told where the log ends
            await ha.grow(second)
            await until(lambda: replica.end_offset == second.end)

    run_virtual(scenario())
    assert log_of(tmp_path, second.end) == second.content


def test_another_log_is_refused_and_nothing_changes(tmp_path: Path, logs: tuple[MasterLog, MasterLog, int]) -> None:
    store = opened(tmp_path / "other")
    fill(store, 900, first=90_000)
    other = MasterLog(log_bytes(store))
    store.shutdown()
    copy = tmp_path / "copy"

    async def scenario() -> None:
        await copied(copy, logs[0])
        before = log_of(copy, logs[0].end)
        async with HaPort(other) as ha, running(copy, ha, KnownBroker(ha), rejoin=True) as (_, task):
            with pytest.raises(CopyRefusedError, match="none of the records"):
                await task
        assert log_of(copy, logs[0].end) == before
        assert not (copy / PLAN).exists() and not (copy / "quarantine").exists()

    run_virtual(scenario())


def test_connections_that_are_lost_during_the_search(
    tmp_path: Path, logs: tuple[MasterLog, MasterLog, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = logs
    begin = CommonPoint.begin

    async def scenario() -> None:
        await copied(tmp_path, first)
        async with HaPort(second) as ha, running(tmp_path, ha, Vague(ha), rejoin=True) as (replica, _):

            def begun(common: CommonPoint) -> None:
                ha.closes_after = 30  # less than a record
                asyncio.get_running_loop().call_later(60, setattr, ha, "closes_after", None)
                begin(common)

            monkeypatch.setattr(CommonPoint, "begin", begun)
            await until(lambda: replica.end_offset == second.end)
            assert ha.requests.count(ha.requests[1]) > 3

    run_virtual(scenario())
    assert log_of(tmp_path, second.end) == second.content


@pytest.mark.parametrize("rejoin", [True, False])
def test_a_copy_killed_before_it_has_cut_cuts_at_the_next_start(
    tmp_path: Path, logs: tuple[MasterLog, MasterLog, int], rejoin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, common = logs
    run_virtual(copied(tmp_path, first))

    def fail(cut: LogCut) -> None:
        if cut._plan is not None:
            raise DiskFullError("/copy", "write", "no more")

    async def scenario() -> None:
        async with HaPort(second) as ha, running(tmp_path, ha, KnownBroker(ha), rejoin=True) as (_, task):
            with pytest.raises(DiskFullError, match="no more"):
                await task

    with monkeypatch.context() as patched:
        patched.setattr(LogCut, "begin", fail)
        run_virtual(scenario())
    assert (tmp_path / PLAN).exists()
    assert log_of(tmp_path, first.end) == first.content
    run_virtual(copied(tmp_path, second, rejoin=rejoin))
    assert log_of(tmp_path, second.end) == second.content
    assert (tmp_path / "quarantine" / f"{common:020d}").exists()


@pytest.mark.parametrize("more", [0, 25])
@pytest.mark.parametrize("rejoin", [False, True])
def test_a_master_of_ours_that_lost_its_newest_messages(tmp_path: Path, more: int, rejoin: bool) -> None:
    master, copy = tmp_path / "master", tmp_path / "copy"

    async def sent(cluster: Cluster, count: int, name: bytes) -> None:
        for number in range(count):
            assert (await cluster.send("T", b"%s %d" % (name, number) * 1000)).code == 0

    async def follow(cluster: Cluster, rejoin: bool) -> None:
        options = ReplicaOptions(
            f"127.0.0.1:{ha_server(cluster).port}", str(copy), segment_bytes=4 << 20, rejoin=rejoin
        )
        replica = Replica(options, None, Files(), SystemClock())
        await replica.start()
        task = asyncio.ensure_future(replica.run())
        try:
            while not task.done() and not (
                replica._copying.client.is_copying and replica.end_offset == cluster.broker.store.max_offset
            ):
                await asyncio.sleep(0.02)
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await replica.stop()

    async def play() -> None:
        async with Cluster(master, ha_listen_port=0) as cluster:
            await sent(cluster, 30, b"both")
        shutil.copytree(master, tmp_path / "lost")
        async with Cluster(master, ha_listen_port=0) as cluster:
            await sent(cluster, 20, b"lost")
            await follow(cluster, False)
        shutil.rmtree(master)
        shutil.move(tmp_path / "lost", master)
        async with Cluster(master, ha_listen_port=0) as cluster:
            await sent(cluster, more, b"later")
            if not rejoin:
                with pytest.raises(CopyRefusedError, match="--rejoin"):
                    await follow(cluster, False)
                return
            await follow(cluster, True)
            found = compare((str(master), str(copy)), Files())
            assert found.same and found.first.end_offset == found.second.end_offset == found.equal_to

    run(play())
