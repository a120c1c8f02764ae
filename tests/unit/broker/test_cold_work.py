"""Requests and deliveries that need a message that is not in memory do not delay other requests.

A first process stores messages. A second process has none of them in memory and must fetch each message before it
reads it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest
from tests import places
from tests.attack.guarded import ALICE, BOB, DENIED, Guarded
from tests.brokers import Cluster, properties_text, run
from tests.crash.broker_promises import Clients, Promises, empty_disk
from tests.unit.broker.test_cold_reads import Disk

from rucola.broker.cold_reads import ColdReads
from rucola.errors import DiskError
from rucola.formats.message_id import offset_message_id
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.runtime.file_map import FileMap
from rucola.store.log import cold_read
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError
from rucola.store.log.log_reader import LogReader
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

tmp_path = places.tmp_path  # memory cannot tell what of a file is in memory

TIMES = re.compile(rb'[tT]ime[sS]tamp"?:"?(\d+)')
FOREVER = str(2**62)
HALF_FLAG, COMMIT, ROLLBACK = 4, 8, 12


class Reads:
    """Records the physical offsets of messages that were read although this process neither wrote nor fetched them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unfetched: list[int] = []
        self._fetched: set[int] = set()
        self._written_from = 0
        fetch = ColdRecords.fetch

        def noted(cold: ColdRecords) -> None:
            self._fetched.update(physical_offset for physical_offset, _ in cold._wanted)
            fetch(cold)

        monkeypatch.setattr(ColdRecords, "fetch", noted)
        for name in ("message_at", "store_timestamp"):
            monkeypatch.setattr(LogReader, name, self._watched(getattr(LogReader, name)))

    def begin(self, store: MessageStore) -> None:
        """Begins to record. Is called at the end of start-up, during which the process may wait for the disk."""
        self._written_from = store.max_offset

    def _watched(self, read: Callable[[LogReader, int], Any]) -> Callable[[LogReader, int], Any]:
        def watched(log: LogReader, physical_offset: int) -> Any:
            if physical_offset < self._written_from and physical_offset not in self._fetched:
                self.unfetched.append(physical_offset)
            return read(log, physical_offset)

        return watched


class Done:
    """Stands in for a future that is already done."""

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        callback(self)


async def served_meanwhile(cluster: Cluster, disk: Disk, asked: Awaitable[RemotingCommand]) -> RemotingCommand:
    """Sends a request that has to wait for the disk, while another client is served; returns the response."""
    waiting = asyncio.ensure_future(asked)
    while not (disk.asked or waiting.done()):
        await asyncio.sleep(0.001)
    assert not waiting.done(), await waiting
    assert (await cluster.send("Other", b"new")).code == 0
    assert not waiting.done()
    disk.answer.set()
    return await waiting


def message_id(cluster: Cluster, physical_offset: int) -> str:
    return offset_message_id(cluster.broker.store.store_host, physical_offset)


async def leave_behind(cluster: Cluster) -> None:
    """Leaves a store with messages in two queues, and a group that has consumed some of them."""
    for number in range(5):
        await cluster.send("T", b"old", properties_text(UNIQ_KEY=f"U{number}", KEYS="k"))
    await cluster.send("T", b"old", queue_id=1)
    cluster.broker.groups.find("cg")
    await commit(cluster)


async def commit(cluster: Cluster) -> None:
    fields = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "3"}
    assert (await cluster.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


QUEUE = {"topic": "T", "queueId": "0"}
GROUP = {"group": "cg", "topic": "T"}


@pytest.mark.parametrize(
    ("code", "fields", "fetches"),
    [
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": "0"}, 3),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": FOREVER, "boundaryType": "UPPER"}, 2),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE, 1),
        (RequestCode.GET_BROKER_RUNTIME_INFO, {}, 1),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}, 1),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "cg", "topic": "T"}, 1),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, 1),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, GROUP, 1),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**GROUP, "timestamp": "0", "isForce": "true"}, 4),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "cg", "clientId": "c"}, 1),
        (RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "T"}, 1),
    ],
)
def test_the_same_answer_as_from_memory(code, fields, fetches, tmp_path, monkeypatch):
    """Responses are the same as from memory. Records known to be needed are fetched together; a search fetches one per
    step.
    """

    def essence(answer: RemotingCommand) -> tuple[object, ...]:
        times = [time for time in TIMES.findall(bytes(answer.body)) if time != b"0"]
        return answer.code, answer.remark, answer.ext_fields, times if times else bytes(answer.body)

    async def scene() -> None:
        options = {"use_server_side_reset_offset": True}
        async with Cluster(tmp_path, **options) as cluster:
            await leave_behind(cluster)
            if code in (RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.RESUME_CHECK_HALF_MESSAGE):
                fields["msgId"] = message_id(cluster, 0)
            wanted = await cluster.ask(code, fields)
            await commit(cluster)
        reads, disk = Reads(monkeypatch), Disk(monkeypatch)
        async with Cluster(tmp_path, **options) as cluster:
            reads.begin(cluster.broker.store)
            answer = await served_meanwhile(cluster, disk, cluster.ask(code, fields))
            if code == RequestCode.GET_BROKER_RUNTIME_INFO:
                earliest = re.compile(rb'"earliestMessageTimeStamp":"\d+"')
                assert earliest.findall(answer.body) == earliest.findall(wanted.body) != []
            else:
                assert essence(answer) == essence(wanted)
            assert (disk.asked, reads.unfetched) == (fetches, [])
            reset = code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            assert cluster.broker.services.offsets.query("cg", "T", 0) == (0 if reset else 3)

    run(scene())


def test_given_back_once(tmp_path, monkeypatch):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"old")
        reads, disk = Reads(monkeypatch), Disk(monkeypatch)
        async with Cluster(tmp_path) as cluster:
            reads.begin(cluster.broker.store)
            fields = {"offset": "0", "group": "cg", "delayLevel": "-1", "originTopic": "T"}
            asked = cluster.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            assert (await served_meanwhile(cluster, disk, asked)).code == 0
            assert await cluster.bodies("%DLQ%cg") == [b"old"]
            assert (disk.asked, reads.unfetched) == (1, [])

    run(scene())


async def prepare(cluster: Cluster) -> dict[str, str]:
    """Sends a half message; returns the request that decides about it."""
    text = properties_text(UNIQ_KEY="A", TRAN_MSG="true", PGROUP="pg", WAIT="true")
    command = cluster.send_command("T", b"half", text, sys_flag=HALF_FLAG)
    command.ext_fields["g"] = str(cluster.broker.services.clock.wall_ms())
    answer = await cluster.client.invoke(cluster.broker.address, command, 10_000)
    return {
        "producerGroup": "pg",
        "tranStateTableOffset": answer.ext_fields["queueOffset"],
        "commitLogOffset": str(int(answer.ext_fields["msgId"][16:], 16)),
        "fromTransactionCheck": "false",
        "transactionId": "A",
    }


@pytest.mark.parametrize("sync_flush", [False, True])
@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_a_transaction_ends_once(sync_flush, outcome, tmp_path, monkeypatch):
    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush) as cluster:
            fields = await prepare(cluster) | {"commitOrRollback": str(outcome)}
        reads, disk = Reads(monkeypatch), Disk(monkeypatch)
        async with Cluster(tmp_path, sync_flush) as cluster:
            reads.begin(cluster.broker.store)
            asked = cluster.ask(RequestCode.END_TRANSACTION, fields)
            assert (await served_meanwhile(cluster, disk, asked)).code == 0
            assert await cluster.bodies("T") == ([b"half"] if outcome == COMMIT else [])
            assert cluster.broker.services.halves.pending == {}
            assert (disk.asked, reads.unfetched) == (1, [])

    run(scene())


def test_a_stop_comes_after_what_waits(tmp_path, monkeypatch):
    """A stopping broker first completes the one-way decision of a producer that has already disconnected."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            fields = await prepare(cluster) | {"commitOrRollback": str(COMMIT)}
        with monkeypatch.context() as patch:
            disk = Disk(patch)
            async with Cluster(tmp_path) as cluster:
                connection = await cluster.connect()
                connection.send(RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=fields), 1, flag=2)
                await disk.until_asked()
                connection.close()
                stop = asyncio.ensure_future(cluster.stop_broker())
                await asyncio.sleep(0.01)
                assert not stop.done()
                disk.answer.set()
                await stop
        async with Cluster(tmp_path) as cluster:
            assert await cluster.bodies("T") == [b"half"]
            assert cluster.broker.services.halves.pending == {}

    run(scene())


def test_more_than_may_wait_are_refused(tmp_path, monkeypatch):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"old")
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path, pull_thread_pool_queue_capacity=1) as cluster:
            cold = asyncio.ensure_future(cluster.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE))
            await disk.until_asked()
            refused = await cluster.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE)
            assert (refused.code, refused.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")
            disk.answer.set()
            assert (await cold).code == 0

    run(scene())


def test_a_search_that_the_disk_stops_says_so(tmp_path, monkeypatch):
    """A search by time fails if it cannot read a message: without the store time of that message, the result could skip
    messages that were not consumed.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"old")
        monkeypatch.setattr(FileMap, "read_resident", lambda *_: False)

        def fails(segment: FileMap, *_: int) -> bytes:
            raise DiskError(segment.path, "read", "input/output error")

        async with Cluster(tmp_path) as cluster:
            monkeypatch.setattr(FileMap, "read", fails)
            answer = await cluster.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": FOREVER})
            assert (answer.code, answer.remark.startswith("DiskError: ")) == (1, True)
            answer = await cluster.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE)
            assert answer.ext_fields == {"timestamp": "-1"}

    run(scene())


@pytest.mark.parametrize(("account", "code"), [(ALICE, 0), (BOB, DENIED)])
def test_judged_by_a_message_that_is_fetched_first(account, code, tmp_path, monkeypatch):
    accounts = "accounts:\n"
    for (key, secret), topic in ((ALICE, "T"), (BOB, "Other")):
        accounts += f"- accessKey: {key}\n  secretKey: {secret}\n  topicPerms: [{topic}=PUB|SUB, Other=PUB]\n"

    async def scene() -> None:
        async with Guarded(tmp_path, accounts) as cluster:
            assert await cluster.code(ALICE, cluster.send_command("T", b"old")) == 0
        reads, disk = Reads(monkeypatch), Disk(monkeypatch)
        async with Guarded(tmp_path, accounts) as cluster:
            reads.begin(cluster.broker.store)
            view = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": "0"})
            waiting = asyncio.ensure_future(cluster.as_account(account, view))
            while not (disk.asked or waiting.done()):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            assert await cluster.code(ALICE, cluster.send_command("Other", b"new")) == 0
            assert not waiting.done()
            disk.answer.set()
            answer = await waiting
            assert (answer.code, b"old" in answer.body) == (code, code == 0)
            assert reads.unfetched == []

    run(scene())


def test_a_broker_works_by_itself(monkeypatch):
    """Delivery of due messages, revival of popped ones, and checks of producers each happen once, and only after the
    messages were fetched from the disk.
    """
    reads = Reads(monkeypatch)
    clock = ManualClock(1_700_000_000_000)
    life = Clients(empty_disk(), False, clock, Promises())
    life.open()
    for number in range(3):
        life.send(f"popped{number}")
    life.turn()
    assert len(life.pop(3000)) == 3
    for number in range(3):
        life.send(f"delayed{number}", "D", DELAY=3)
        life.send(f"timed{number}", "D", TIMER_DELIVER_MS=clock.wall_ms() + 4000)
    life.prepare("half")
    life.flush()
    life.stop()

    fetches: list[str] = []

    def fetched_at_once(_: ColdReads, fetch: Callable[[], None]) -> Done:
        fetches.append(fetch.__qualname__)
        fetch()
        return Done()

    monkeypatch.setattr(cold_read, "_is_resident", lambda *_: False)
    monkeypatch.setattr(ColdReads, "fetch", fetched_at_once)
    life.open()
    life.online()
    services = life.broker.services
    reads.begin(services.store)
    assert services.pops.started is not None
    for _ in range(8):
        clock.advance(1000)
        life.flush()
        services.store.dispatch()
        while done(services.pops.started._revive.work):
            pass
        done(services.halves.scan)
        for half in filter(life.broker.running.transactions.is_due, list(services.halves.undecided())):
            done(lambda cold, half=half: life.broker.running.transactions.check(half, cold))
        services.halves.write_ops()
    services.store.dispatch()
    names = [f"{kind}{number}" for kind in ("delayed", "timed") for number in range(3)]
    assert sorted(message.uniq_key for message in life.messages(b"D")) == names
    again = [message.uniq_key for message in life.messages(b"%RETRY%cg_T")]
    assert sorted(again) == ["popped0", "popped1", "popped2"]
    assert [question.ext_fields["msgId"] for question in life.connection.questions] == ["half", "half"]
    assert (len(fetches) > 1, reads.unfetched) == (True, [])


def done(step: Callable[[ColdRecords], Any]) -> Any:
    """Does the same as ``ColdReads.done``, without a loop."""
    cold = ColdRecords()
    while True:
        try:
            return step(cold)
        except NotInMemoryError:
            cold.fetch()


class Segment:
    """A segment with one record of 100 bytes; none of them is in memory."""

    start, end, path = 0, 4096, "segment"

    def __init__(self) -> None:
        self.read_lengths: list[int] = []

    @property
    def map(self) -> Self:
        return self

    def read_resident(self, _position: int, _into: memoryview) -> bool:
        return False

    def read(self, _position: int, length: int) -> bytes:
        self.read_lengths.append(length)
        return (100).to_bytes(4, "big").ljust(length, b"x")


def test_a_record_that_is_asked_for_twice_in_a_step_waits_both_times():
    cold, file = ColdRecords(), Segment()
    assert [cold.waits(file, 0), cold.waits(file, 0), cold.waits(file, 0, 76)] == [True, True, True]
    with pytest.raises(NotInMemoryError):
        cold.check()
    cold.fetch()
    cold.check()
    assert [cold.waits(file, 0), cold.waits(file, 0, 76)] == [False, False]
    assert file.read_lengths == [4, 100, 76]
