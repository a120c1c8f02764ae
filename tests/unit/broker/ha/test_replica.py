"""A copy over real sockets, in virtual time: connections, times, tables, errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run, run_virtual
from tests.masters import HaPort, MasterLog, a_log, log_bytes
from tests.pairs import until
from tests.unit.store.stores import SEGMENT, fill, opened

from rucola.broker.ha.master_broker import LogBounds, MasterBroker, MasterTables
from rucola.broker.ha.replica import Replica, ReplicaOptions
from rucola.client.config import ClientConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import (
    BrokerError,
    ConfigError,
    CopyRefusedError,
    DiskError,
    DiskFullError,
    RemotingConnectError,
    StoreDamagedError,
    StoreLockedError,
)
from rucola.protocol.bodies.registration import TopicConfigSerializeWrapper
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.keep_rule import KeepRule
from rucola.store.log.commit_log import CommitLog
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    return a_log(tmp_path_factory.mktemp("master") / "store", 900)


class KnownBroker(MasterBroker):
    """The broker port of a scripted master."""

    def __init__(self, ha: HaPort, tables: dict[str, bytes] | None = None) -> None:
        super().__init__("127.0.0.1:1", ClientConfig(), SystemClock())
        self.ha = ha
        self.files = {"topics.json": b'{"topicConfigTable":{}}'} if tables is None else tables
        self.min_offsets: list[int] = []
        self.asked = 0
        self.segment_bytes = SEGMENT

    async def store_options(self) -> dict[str, str]:
        return {
            "mappedFileSizeCommitLog": str(self.segment_bytes),
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
        }

    async def log_bounds(self) -> LogBounds:
        self.asked += 1
        first = self.min_offsets.pop(0) if self.min_offsets else self.ha.master.start
        return LogBounds(first, self.ha.master.end)

    async def tables(self) -> MasterTables:
        return MasterTables(dict(self.files), {})


@asynccontextmanager
async def running(
    path: Path, ha: HaPort, broker: MasterBroker | None = None, **options: Any
) -> AsyncIterator[tuple[Replica, asyncio.Task[None]]]:
    """A replica and the task of its work."""
    if broker is None:
        options = {"segment_bytes": SEGMENT} | options
    wanted = ReplicaOptions(ha.address, str(path), broker="known" if broker else None, **options)
    replica = Replica(wanted, broker, Files(), SystemClock())
    await replica.start()
    task = asyncio.ensure_future(replica.run())
    try:
        yield replica, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.stop()


def log_of(path: Path, length: int) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))[:length]


def test_a_copy_begins_at_the_oldest_byte_and_ends_by_itself(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha), until_now=True) as (replica, task):
            await task
            assert ha.requests == [1]
            assert replica.end_offset == master.end
            assert replica.store.dispatch_behind_bytes == 0
            assert replica.store.queue_range(b"T0", 0)[1] == 225

    run_virtual(scenario())
    assert log_of(tmp_path, master.end) == master.content
    assert (tmp_path / "config" / "topics.json").read_bytes() == b'{"topicConfigTable":{}}'
    assert not (tmp_path / "abort").exists()


def test_a_stop_waits_for_the_table_that_is_written(
    tmp_path: Path, master: MasterLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the directory was free while a thread still wrote to it."""
    begun, go_on = threading.Event(), threading.Event()
    write, free_meanwhile = Replica._write, []

    def slow(replica: Replica, tables: MasterTables) -> None:
        begun.set()
        go_on.wait(20)
        free_meanwhile.append(not Files().lock_held(str(tmp_path)))
        write(replica, tables)

    monkeypatch.setattr(Replica, "_write", slow)

    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)):
            await until(begun.is_set)
            asyncio.get_running_loop().call_later(0.2, go_on.set)

    run(scenario())  # virtual time would wait for the thread
    assert free_meanwhile == [False]


def test_a_copy_of_an_empty_log_has_the_tables(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with HaPort(MasterLog(b"")) as ha, running(tmp_path, ha, KnownBroker(ha), until_now=True) as (_, task):
            await task

    run_virtual(scenario())
    assert (tmp_path / "config" / "topics.json").exists()


def test_a_copy_removes_nothing_and_knows_topics_with_batches(tmp_path: Path, master: MasterLog) -> None:
    class Batches(KnownBroker):
        async def tables(self) -> MasterTables:
            batched = TopicConfig("B", attributes={"queue.type": "BatchCQ"})
            return MasterTables(dict(self.files), {"B": batched, "S": TopicConfig("S")})

    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, Batches(ha)) as (replica, _):
            config = replica.store.config
            assert (config.file_reserved_time_h, config.clean_file_forcibly_enable) == (1 << 20, False)
            kinds = [replica._is_batch_topic(topic) for topic in (b"B", b"S", b"unknown", b"\xff")]
            assert kinds == [True, False, None, None]

    run_virtual(scenario())


def test_a_copy_with_a_rule_removes_its_oldest_segments_and_goes_on(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        rule = KeepRule(size_bytes=2 * SEGMENT)
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha), keep=rule) as (replica, _):
            assert replica.store.config.clean_file_forcibly_enable
            await until(lambda: replica.end_offset == master.end)
            left = master.end - master.end % SEGMENT - SEGMENT

            def is_removed() -> bool:
                replica.store.expire_now()  # wakes a thread, which goes by real time
                return not (tmp_path / "commitlog" / f"{left - SEGMENT:020d}").exists()

            await until(is_removed)
            assert replica.store.min_offset == left
            assert (tmp_path / "commitlog" / f"{left:020d}").exists()

    run_virtual(scenario())


def test_without_a_broker_the_copy_begins_at_the_newest_segment(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha) as (replica, _):
            await until(lambda: replica.end_offset == master.end)
            assert ha.requests == [0]
            assert replica.store.min_offset == master.end - master.end % SEGMENT
        assert not (tmp_path / "config").exists()

    run_virtual(scenario())


def test_what_the_master_gets_later_comes_too(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(MasterLog(b"")) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: bool(ha.requests))
            await asyncio.sleep(30)
            assert ha.requests == [1]
            reader = OfflineStore(str(tmp_path))  # of a directory without a record
            assert reader.end_offset() == 0
            await ha.grow(MasterLog(master.content[:5000]))
            await until(lambda: replica.end_offset > 4000)
            await ha.grow(master)
            await until(lambda: replica.end_offset == master.end)
            assert ha.requests == [1]
            await until(lambda: not replica.store.dispatch_behind_bytes)
            assert reader.refresh() == master.end
            assert reader.queue_range("T0", 0).max_offset == 225
            reader.close()

    run_virtual(scenario())


def test_a_topic_that_the_master_made_again_is_new_in_the_copy_too(tmp_path: Path) -> None:
    store = opened(tmp_path / "master")
    fill(store, 40, topics=1)
    store.delete_topic(b"T0")
    fill(store, 6, topics=1)
    master = MasterLog(log_bytes(store))
    store.shutdown()

    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path / "copy", ha, KnownBroker(ha), until_now=True) as (one, task):
            await task
            assert one.store.queue_range(b"T0", 1) == (0, 3)

    run_virtual(scenario())


def test_reports_tell_what_is_synced_and_keep_the_connection(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: bool(ha.reports) and ha.reports[-1][1] == master.end)
            assert replica.store.flushed_offset == master.end
            count = len(ha.reports)
            await asyncio.sleep(60)
            times = [time for time, _ in ha.reports[count - 1 :]]
            pauses = [after - before for before, after in pairwise(times)]
            assert all(4.9 < pause < 6.6 for pause in pauses)
            assert len(pauses) >= 9
            assert len(ha.requests) == 1

    run_virtual(scenario())


def test_a_copy_that_is_back_says_at_once_what_it_has(tmp_path: Path, master: MasterLog) -> None:
    """Its request asked for less, so the master cannot count on it before: senders would wait, and be refused."""

    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: replica.end_offset == master.end == replica.store.flushed_offset)
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)):
            await until(lambda: bool(ha.requests))
            back_s = asyncio.get_running_loop().time()
            await until(lambda: bool(ha.reports))
            assert ha.requests[0] < master.end
            assert ha.reports[0][1] == master.end and ha.reports[0][0] - back_s < 1

    run_virtual(scenario())


def test_a_silent_master_is_left_after_20_s(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: replica.end_offset == master.end)
            ha.silent = True
            await asyncio.sleep(18)
            assert len(ha.requests) == 1
            await asyncio.sleep(10)
            assert len(ha.requests) == 2
            ha.silent = False
            await asyncio.sleep(10)
            assert replica.end_offset == master.end

    run_virtual(scenario())


def test_a_lost_connection_is_made_again_with_growing_pauses(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha:
            port = int(ha.address.rpartition(":")[2])
            ha.closes_after = 50_000
            async with running(tmp_path, ha, KnownBroker(ha)) as (replica, task):
                await until(lambda: len(ha.requests) >= 3)
                ha.closes_after = None
                await until(lambda: replica.end_offset == master.end)
                requests = len(ha.requests)
                assert requests < 10
                replica.store.flush_soon()
                await until(lambda: replica.store.flushed_offset == master.end)
                await ha.__aexit__()
                await asyncio.sleep(120)
                assert not task.done()
                async with HaPort(master, port) as again:
                    await until(lambda: len(again.requests) == 1)
                    assert again.requests[0] > SEGMENT

    run_virtual(scenario())
    assert log_of(tmp_path, master.end) == master.content


def test_a_master_that_cannot_be_reached_is_asked_less_and_less_often(
    tmp_path: Path, master: MasterLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> list[float]:
        times: list[float] = []
        loop = asyncio.get_running_loop()

        async def refuse(*_: object, **__: object) -> None:
            times.append(loop.time())
            raise ConnectionRefusedError(111, "refused")

        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)):
            monkeypatch.setattr(loop, "create_connection", refuse)
            await asyncio.sleep(60)
        return times

    times = run_virtual(scenario())
    pauses = [round(after - before, 1) for before, after in pairwise(times)]
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert set(pauses[5:]) == {10.0}


def test_a_beginning_that_expires_is_asked_for_again(tmp_path: Path, master: MasterLog) -> None:
    rest = MasterLog(master.content[2 * SEGMENT :], 2 * SEGMENT)

    async def scenario() -> None:
        async with HaPort(rest) as ha:
            broker = KnownBroker(ha)
            broker.min_offsets = [0, SEGMENT, 2 * SEGMENT]  # at the start, at the first connection, after a heartbeat
            async with running(tmp_path, ha, broker) as (replica, _):
                await until(lambda: replica.end_offset == master.end)
                assert ha.requests == [SEGMENT, 2 * SEGMENT]
                assert replica.store.min_offset == 2 * SEGMENT

    run_virtual(scenario())


def test_a_beginning_that_expires_ten_times_ends_the_copy(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(MasterLog(b"", 1 << 40)) as ha:
            broker = KnownBroker(ha)
            broker.min_offsets = [SEGMENT * number for number in range(60)]
            async with running(tmp_path, ha, broker) as (_, task):
                with pytest.raises(CopyRefusedError, match="has expired on the master"):
                    await task
                assert len(ha.requests) == 11

    run_virtual(scenario())


def test_another_log_ends_the_copy_and_leaves_its_tables(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha:
            async with running(tmp_path, ha, KnownBroker(ha), until_now=True) as (_, task):
                await task
            ha.master = master.changed(master.end - 100, b"????")
            broker = KnownBroker(ha, {"topics.json": b"those of the other log"})
            async with running(tmp_path, ha, broker) as (_, task):
                with pytest.raises(CopyRefusedError, match="SHA-256"):
                    await task

    run_virtual(scenario())
    assert log_of(tmp_path, master.end) == master.content
    assert b"topicConfigTable" in (tmp_path / "config" / "topics.json").read_bytes()


def test_tables_follow_and_their_failure_does_not_end_the_copy(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha:
            broker = KnownBroker(ha)
            async with running(tmp_path, ha, broker) as (_, task):
                path = tmp_path / "config" / "topics.json"
                await until(path.exists)
                changed = path.stat().st_mtime_ns
                await asyncio.sleep(25)
                assert path.stat().st_mtime_ns == changed

                async def refuse() -> MasterTables:
                    raise RemotingConnectError("127.0.0.1:1", "refused")

                tables, broker.tables = broker.tables, refuse  # type: ignore[method-assign]
                broker.files = {"topics.json": b"new"}
                await asyncio.sleep(25)
                assert path.read_bytes() != b"new"
                broker.tables = tables  # type: ignore[method-assign]
                await until(lambda: path.read_bytes() == b"new")
                assert not task.done()

    run_virtual(scenario())


def test_tables_of_a_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path / "master", message_delay_level="1s 7s") as cluster:
            await cluster.send("Flights")
            await cluster.ask(200, body=b'{"groupName":"cg"}')
            position = {"consumerGroup": "cg", "topic": "Flights", "queueId": "0", "commitOffset": "1"}
            answer = await cluster.ask(15, position)
            assert answer.code == 0, answer.remark
            broker = MasterBroker(cluster.broker.address, ClientConfig(), SystemClock())
            options = await broker.store_options()
            assert (options["mappedFileSizeCommitLog"], options["messageDelayLevel"]) == ("4194304", "1s 7s")
            assert (await broker.log_bounds()).min_offset == 0
            assert (await broker.log_bounds()).max_offset > 100
            tables = await broker.tables()
            assert tables.topics["Flights"].read_queue_nums == 4
            texts = {name: content.replace(b"\n", b"").replace(b"\t", b"") for name, content in tables.files.items()}
            assert b'"Flights":{' in texts["topics.json"]
            assert b'"cg":{' in texts["subscriptionGroup.json"]
            assert b'"Flights@cg":{0:1}' in texts["consumerOffset.json"]
            assert b'"offsetTable":{' in texts["delayOffset.json"]
            await broker.close()

    run_virtual(scenario())


def test_tables_of_a_broker_are_decoded_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, threads = TopicConfigSerializeWrapper.decode, []

    def decoded(body: bytes) -> TopicConfigSerializeWrapper:
        threads.append(threading.current_thread())
        return decode(body)

    monkeypatch.setattr(TopicConfigSerializeWrapper, "decode", decoded)

    async def scenario() -> None:
        async with Cluster(tmp_path / "master") as cluster:
            broker = MasterBroker(cluster.broker.address, ClientConfig(), SystemClock())
            assert (await broker.tables()).topics
            assert threads and threading.current_thread() not in threads
            await broker.close()

    run_virtual(scenario())


def test_a_second_copy_into_the_directory_is_refused(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: replica.end_offset == master.end)
            second = Replica(ReplicaOptions(ha.address, str(tmp_path)), None, Files(), SystemClock())
            with pytest.raises(StoreLockedError):
                await second.start()

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("here", "told", "given", "problem"),
    [
        (None, None, None, "--broker, to ask"),
        (None, 2 * SEGMENT, SEGMENT, "segments of the master"),
        (SEGMENT, 2 * SEGMENT, None, "segments of"),
        (SEGMENT, None, 2 * SEGMENT, "segments of"),
    ],
)
def test_sizes_of_segments_that_disagree_are_refused_before_the_first_byte(
    tmp_path: Path, master: MasterLog, here: int | None, told: int | None, given: int | None, problem: str
) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha:
            broker = None
            if told is not None:
                broker = KnownBroker(ha)
                broker.segment_bytes = told
            options = ReplicaOptions(ha.address, str(tmp_path), segment_bytes=given)
            with pytest.raises(ConfigError, match="--segment-bytes") as refused:
                await Replica(options, broker, Files(), SystemClock()).start()
            assert problem in str(refused.value)
            assert ha.requests == []

    if here is not None:
        (tmp_path / "commitlog").mkdir()
        (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(here))
    run_virtual(scenario())
    assert not (tmp_path / "lock").exists()


def test_a_log_that_begins_inside_a_segment_is_refused(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha:
            broker = KnownBroker(ha)
            broker.min_offsets = [100, 100]
            async with running(tmp_path, ha, broker) as (_, task):
                with pytest.raises(ConfigError, match="--segment-bytes"):
                    await task
                assert ha.requests == []

    run_virtual(scenario())


def test_a_master_that_refuses_the_account_ends_the_start(tmp_path: Path, master: MasterLog) -> None:
    class Protected(KnownBroker):
        async def store_options(self) -> dict[str, str]:
            raise BrokerError(16, "no permission", "127.0.0.1:1")

    async def scenario() -> None:
        async with HaPort(master) as ha:
            replica = Replica(ReplicaOptions(ha.address, str(tmp_path)), Protected(ha), Files(), SystemClock())
            with pytest.raises(BrokerError):
                await replica.start()

    run_virtual(scenario())
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("full", [True, False])
def test_a_disk_that_takes_no_more_ends_the_copy(
    tmp_path: Path, master: MasterLog, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    write = CommitLog.write_copy

    def fail(log: CommitLog, physical_offset: int, content: memoryview) -> int:
        if physical_offset > SEGMENT:
            raise (DiskFullError if full else DiskError)("/copy", "write", "no more")
        return write(log, physical_offset, content)

    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (_, task):
            with pytest.raises(DiskFullError if full else DiskError, match="no more"):
                await task

    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "write_copy", fail)
        run_virtual(scenario())

    async def again() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha), until_now=True) as (_, task):
            await task

    run_virtual(again())
    assert log_of(tmp_path, master.end) == master.content


def test_no_space_for_queues_ends_the_copy(tmp_path: Path, master: MasterLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, task):
            replica.store._condition.space_is_gone("ratio")
            await asyncio.sleep(30)
            assert (task.done(), replica.end_offset) == (False, master.end)
            replica.store._condition.space_is_gone("dispatch")
            with pytest.raises(DiskFullError, match="consume queues"):
                await task

    monkeypatch.setattr(MessageStore, "dispatch", lambda *_: 0)  # it would find that there is space
    run_virtual(scenario())


def test_records_that_cannot_be_dispatched_end_the_copy(
    tmp_path: Path, master: MasterLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise StoreDamagedError("/copy", 5, "a record cannot be read", "run rucola store verify")

    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (_, task):
            with monkeypatch.context() as patched:
                patched.setattr(MessageStore, "dispatch", fail)
                with pytest.raises(StoreDamagedError):
                    await task

    run_virtual(scenario())


def test_a_failed_sync_ends_the_copy(tmp_path: Path, master: MasterLog) -> None:
    async def scenario() -> None:
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, task):
            await until(lambda: replica.end_offset == master.end)
            replica.store._condition.fail()
            with pytest.raises(DiskError, match="cannot be written"):
                await task

    run_virtual(scenario())
