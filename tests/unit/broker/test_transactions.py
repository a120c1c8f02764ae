"""Transactions: when messages become visible, which producers the broker asks, and the effect of kills and restarts."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.attack.guarded import until
from tests.brokers import Cluster, RawConnection, due_halves, properties_text, run, same_queue
from tests.golden.loader import load_broker, write_files
from tests.tables import keep_nothing

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.cold_reads import ColdReads
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.senders import Senders
from rucola.broker.timer.timer_rewrite import TimerRewriter
from rucola.broker.transaction import transactional_message_service
from rucola.broker.transaction.check_service import TransactionCheckService
from rucola.broker.transaction.half_messages import HalfMessages
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService, TransactionRules
from rucola.common.message import MessageExt, StoreMessage
from rucola.errors import BrokerError, FormatError
from rucola.formats.message import decode_message, decode_messages
from rucola.formats.message_id import offset_message_id
from rucola.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import EndTransactionRequestHeader
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.runtime.supervision import Supervisor
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageResult, PutMessageStatus
from rucola.testing.clock import ManualClock

COMMIT, ROLLBACK = 8, 12
HALF, OP, GIVEN_UP = b"RMQ_SYS_TRANS_HALF_TOPIC", b"RMQ_SYS_TRANS_OP_HALF_TOPIC", b"TRANS_CHECK_MAX_TIME_TOPIC"


@dataclass(eq=False)
class Asked:
    """Stands in for a producer's connection, and keeps the transaction checks that the broker sends over it."""

    questions: list[RemotingCommand] = field(default_factory=list)

    def invoke_oneway(self, command: RemotingCommand) -> None:
        self.questions.append(command)


class Life:
    """A broker's transaction service over a store that dispatches at once; sends half messages and decisions."""

    def __init__(self, root, clock: ManualClock, geometry: dict[str, Any] | None = None, offsets: bytes | None = None):
        self.clock = clock
        usual = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 400}
        config = MessageStoreConfig(
            store_path_root_dir=str(root), flush_disk_type=FlushDiskType.ASYNC_FLUSH, **(geometry or usual)
        )
        self.store = MessageStore(config, Files(), clock)
        self.store.store_host = bytes(8)
        self.store.load()
        self.offsets = ConsumerOffsetManager(keep_nothing(), clock.wall_ms)
        self.offsets.load(offsets)
        self.halves = HalfMessages(self.store, self.offsets, clock.wall_ms)
        self.halves.load()
        self.store.start()
        self.producers = ProducerManager()
        rules = TransactionRules(6000, 2, 18)
        timer = TimerRewriter(config, "b", clock.wall_ms, lambda _: 0, lambda _: 0)
        self.service = TransactionalMessageService(
            self.store,
            self.halves,
            self.producers,
            rules,
            "b",
            clock.wall_ms,
            lambda: None,
            lambda: None,
            timer,
            Senders(),
            same_queue,
        )

    def online(self, group: str = "pg") -> Asked:
        channel = Asked()
        self.producers.register(group, ClientChannel(channel, "me", "JAVA", 0, 0.0))
        return channel

    def prepare(self, key: str, **properties: str) -> MessageExt:
        text = properties_text(
            UNIQ_KEY=key,
            TRAN_MSG="true",
            PGROUP="pg",
            REAL_TOPIC="T",
            REAL_QID="1",
            __transactionId__=key,
            **properties,
        )
        message = StoreMessage(HALF, 0, key.encode(), text.encode(), self.clock.wall_ms(), b"\x02" * 8, 5, 0, 3)
        result = self.store.put_message(message)
        assert result.status is PutMessageStatus.PUT_OK
        self.store.dispatch()
        return decode_message(self.store.message_at(result.physical_offset))

    def end(self, half: MessageExt, outcome: int, **changes: Any) -> None:
        values = {"from_transaction_check": False, "transaction_id": half.uniq_key, "group": "pg", **changes}
        header = EndTransactionRequestHeader(
            values["group"],
            values.get("queue_offset", half.queue_offset),
            values.get("physical_offset", half.physical_offset),
            outcome,
            values["from_transaction_check"],
            transaction_id=values["transaction_id"],
        )
        self.service.end(header)
        self.store.dispatch()

    def check(self) -> None:
        for half in due_halves(self.halves, self.service):
            self.service.check(half)
        self.halves.write_ops()
        self.store.dispatch()

    def bodies(self, topic: bytes = b"T", queue_id: int = 1) -> list[bytes]:
        views = self.store.get_message(topic, queue_id, 0, 32, 1 << 20).views
        return [message.body for view in views for message in decode_messages(view)]

    def kill(self) -> None:
        """Ends the process without writing its tables."""
        self.store.shutdown()

    def answer(self, question: RemotingCommand, outcome: int) -> None:
        fields = question.ext_fields
        where = {"queue_offset": int(fields["tranStateTableOffset"]), "physical_offset": int(fields["commitLogOffset"])}
        half = decode_message(question.body)
        self.end(half, outcome, from_transaction_check=True, transaction_id=fields["transactionId"], **where)


@pytest.fixture
def life(tmp_path):
    life = Life(tmp_path, ManualClock())
    yield life
    life.store.shutdown()


def test_commit_and_rollback(life):
    """A committed message is delivered as it was sent, and its record contains the offset of its half message. Messages
    that are not committed are never delivered.
    """
    committed, rolled_back, open_one = life.prepare("C", KEYS="k"), life.prepare("R"), life.prepare("O")
    assert life.bodies() == []
    life.end(committed, COMMIT)
    life.end(rolled_back, ROLLBACK)
    (message,) = decode_messages(life.store.get_message(b"T", 1, 0, 32, 1 << 20).views[0])
    assert (message.body, message.sys_flag, message.prepared_transaction_offset) == (b"C", 8, committed.physical_offset)
    assert (message.flag, message.reconsume_times, message.born_host) == (5, 3, b"\x02" * 8)
    strip = lambda properties: {k: v for k, v in properties.items() if k != "__CRC32#"}  # noqa: E731
    assert strip(message.properties) == strip(committed.properties)
    life.halves.write_ops()
    life.store.dispatch()
    (op,) = decode_messages(life.store.get_message(OP, 0, 0, 32, 1 << 20).views[0])
    assert op.body == f"{committed.queue_offset},{rolled_back.queue_offset},".encode()
    assert strip(op.properties) == {"WAIT": "true", "TAGS": "d"}
    assert [half.queue_offset for half in life.halves.pending.values()] == [open_one.queue_offset]


def test_each_half_message_comes_to_one_outcome(life):
    """A repeated decision changes nothing, and a different decision is refused, for every copy of the half message."""
    channel = life.online()
    half, other = life.prepare("A"), life.prepare("B")
    life.clock.advance(7000)
    life.check()
    assert len(channel.questions) == 2
    life.end(half, COMMIT)  # the producer's late decision, which names the first copy
    life.answer(channel.questions[0], COMMIT)
    life.end(half, COMMIT)
    with pytest.raises(BrokerError, match="ended already"):
        life.answer(channel.questions[0], ROLLBACK)
    life.answer(channel.questions[1], ROLLBACK)
    with pytest.raises(BrokerError, match="ended already"):
        life.end(other, COMMIT)
    for _ in range(4):
        life.clock.advance(30_000)
        life.check()
    assert life.bodies() == [b"A"]
    assert life.bodies(GIVEN_UP, 0) == []
    assert len(channel.questions) == 2


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"physical_offset": 5}, 1, "Find prepared transaction message failed"),
        ({"group": "other"}, 1, "The producer group wrong"),
        ({"queue_offset": 7}, 1, "The transaction state table offset wrong"),
        ({"transaction_id": "B"}, 1, "The transaction id wrong"),
    ],
)
def test_an_end_that_names_another_message_is_refused(life, changes, code, remark):
    half = life.prepare("A")
    with pytest.raises(BrokerError, match=remark) as caught:
        life.end(half, COMMIT, **changes)
    assert caught.value.code == code
    assert life.bodies() == []


def test_a_message_that_is_no_half_message_cannot_be_committed(life):
    text = properties_text(UNIQ_KEY="X", PGROUP="pg", REAL_TOPIC="T", REAL_QID="1").encode()
    result = life.store.put_message(StoreMessage(b"T", 0, b"x", text, 1, bytes(8)))
    half = decode_message(life.store.message_at(result.physical_offset))
    with pytest.raises(BrokerError, match="Find prepared"):
        life.end(half, COMMIT)


def test_asked_until_given_up(life):
    """The broker sends a limited number of checks to producers; a check counts only if a producer is connected."""
    life.prepare("E")
    life.clock.advance(5999)
    life.check()
    channel = None
    for _ in range(3):
        life.clock.advance(30_000)
        life.check()  # no producer is connected
    assert life.store.max_queue_offset(HALF, 0) == 1
    channel = life.online()
    life.check()
    (question,) = channel.questions
    assert (question.code, question.ext_fields["tranStateTableOffset"]) == (RequestCode.CHECK_TRANSACTION_STATE, "1")
    asked = decode_message(question.body)
    assert (asked.topic, asked.queue_id, asked.body) == ("T", 1, b"E")
    assert (asked.properties["TRANSACTION_CHECK_TIMES"], asked.flag, asked.reconsume_times) == ("1", 0, 0)
    assert question.ext_fields["transactionId"] == question.ext_fields["msgId"] == "E"
    for _ in range(3):
        life.clock.advance(30_000)
        life.check()
    assert len(channel.questions) == 2
    assert life.bodies(GIVEN_UP, 0) == [b"E"]
    assert life.halves.pending == {}
    with pytest.raises(BrokerError, match="given up"):
        life.answer(channel.questions[1], COMMIT)
    assert life.bodies() == []


def test_a_clock_that_jumps_ahead_gives_nothing_up_unasked(life):
    """The clock jumps ahead. If only the age of half messages decided, the broker would give up all of them at once and
    refuse commits of connected producers.
    """
    channel = life.online()
    life.prepare("E")
    life.prepare("F")
    life.clock.set_wall_ms(life.clock.wall_ms() + 100 * 3_600_000)
    life.check()
    first, _ = channel.questions
    life.answer(first, COMMIT)
    assert (life.bodies(), life.bodies(GIVEN_UP, 0)) == ([b"E"], [])
    life.check()
    assert len(channel.questions) == 2
    assert (life.bodies(), life.bodies(GIVEN_UP, 0)) == ([b"E"], [b"F"])


def test_undecided_transactions_are_kept_until_their_segment_expires(tmp_path):
    small = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 400}
    life = Life(tmp_path, ManualClock(), {**small, "file_reserved_time_h": 5})
    life.prepare("E")
    life.clock.advance(5 * 3_600_000)
    life.check()
    assert life.bodies(GIVEN_UP, 0) == []
    life.clock.advance(1)
    life.check()
    assert (life.bodies(GIVEN_UP, 0), life.halves.pending) == ([b"E"], {})
    life.kill()


def test_transactions_that_went_with_their_segment_are_waited_for_no_longer(life, monkeypatch):
    life.prepare("E")
    life.clock.advance(7000)
    life.check()
    channel = life.online()
    monkeypatch.setattr(MessageStore, "message_at", lambda *_: None)
    life.check()
    assert len(life.halves.pending) == 1  # the unreadable message may be repaired later
    monkeypatch.setattr(MessageStore, "min_offset", property(lambda _: 1 << 20))
    life.check()
    assert (life.halves.pending, channel.questions) == ({}, [])


def test_transactions_of_absent_producers_are_not_read(life, monkeypatch):
    """Before the fix, each round of checks read all 83,000 half messages of an absent producer."""
    life.prepare("E")
    life.halves.scan()
    life.clock.advance(7000)
    reads = []
    monkeypatch.setattr(MessageStore, "message_at", lambda *arguments: reads.append(arguments))
    life.check()
    assert reads == []
    life.online()
    life.check()
    assert len(reads) == 1


def test_progress_is_that_of_the_oldest_undecided_one(life, monkeypatch):
    """The oldest undecided half message is found without reading the other ones, even if copies of half messages are
    added before all earlier messages were scanned.
    """
    life.online()
    monkeypatch.setattr(life.halves, "settle", lambda: None)  # records the last progress
    order = random.Random(7)
    halves: list[MessageExt] = []
    for number in range(60):
        halves.append(life.prepare(f"E{number}"))
        if number % 7 == 3:
            life.clock.advance(7000)
            life.halves.scan(count_max=order.randrange(4))
            for half in [half for half in life.halves.undecided() if life.service.is_due(half)][:2]:
                life.service.check(half)
        if number % 3 == 0:
            half = halves.pop(order.randrange(len(halves)))
            if half.uniq_key in {identity[0] for identity in life.halves.pending}:
                life.end(half, ROLLBACK)
        life.halves.write_ops()
        life.store.dispatch()
        known = {half.queue_offset for half in life.halves.pending.values()}
        assert life.halves._marks[-1][1] == min({*known, life.halves._scanned})
    life.halves.scan()
    assert life.halves.undecided() == sorted(life.halves.pending.values(), key=lambda half: half.queue_offset)
    assert life.halves._known == {}


def test_many_half_messages_are_scanned_in_pieces(life):
    """The scan of many half messages is divided into short steps, even if several requests wait for its end."""
    for number in range(300):
        life.prepare(f"E{number}")
    seen = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        cold_reads = ColdReads(lambda: 100)
        checks = TransactionCheckService(life.halves, loop, 1000, 1000, Supervisor())
        waiting = [asyncio.ensure_future(checks.scan(cold_reads)) for _ in range(10)]
        while life.halves.behind:
            seen.append(life.halves.behind)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    run(play())
    assert max(before - after for before, after in itertools.pairwise([*seen, 0])) <= 64
    assert len(life.halves.pending) == 300


def test_immunity_set_by_the_sender(life):
    """Half messages have an immunity time, chosen by their sender. When it is over, a producer's decision is refused
    unless the broker has checked the message before.
    """
    channel = life.online()
    half = life.prepare("I", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    other = life.prepare("J")
    life.clock.advance(60_000)
    life.check()
    assert [question.ext_fields["msgId"] for question in channel.questions] == ["J"]
    life.clock.advance(1)
    with pytest.raises(BrokerError) as caught:
        life.end(half, COMMIT)
    assert caught.value.code == 604
    life.check()
    (question,) = [question for question in channel.questions if question.ext_fields["msgId"] == "I"]
    life.answer(question, COMMIT)
    life.end(other, ROLLBACK)
    assert life.bodies() == [b"I"]


def test_delay_begins_with_the_commit(life):
    half = life.prepare("D", DELAY="2")
    life.end(half, COMMIT)
    assert life.bodies() == []
    assert life.bodies(b"SCHEDULE_TOPIC_XXXX", 1) == [b"D"]


def given_up_at(life: Life) -> int:
    """Returns the physical offset of the first half message that was given up."""
    (view,) = life.store.get_message(GIVEN_UP, 0, 0, 1, 1 << 20).views
    return decode_message(view).physical_offset


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("ops_written", [True, False])
def test_abandoned_checks_are_put_back(tmp_path, killed, ops_written):
    """A half message that was given up is resumed (RESUME_CHECK_HALF_MESSAGE). The broker checks it again, up to the
    same limit, and it is committed only once, even after a restart.
    """
    clock = ManualClock()
    life = Life(tmp_path, clock)
    life.online()
    older = life.prepare(
        "older", CHECK_IMMUNITY_TIME_IN_SECONDS="999999999"
    )  # undecided, so the progress cannot pass later messages
    life.prepare("E", TRAN_PREPARED_QUEUE_OFFSET="1")
    for _ in range(3):
        clock.advance(100 * 3_600_000 // 3)
        for half in due_halves(life.halves, life.service):
            if half.identity[0] == "E":
                life.service.check(half)
        if ops_written:
            life.halves.write_ops()
        life.store.dispatch()
    assert life.bodies(GIVEN_UP, 0) == [b"E"]
    place = given_up_at(life)
    life.service.resume_check(place)
    life.store.dispatch()
    end = life.store.max_offset
    assert life.service.resume_check(place) == end  # the message already waits
    if killed:
        life.kill()
        life = Life(tmp_path, clock)
    try:
        assert {half.identity[0]: half.checks for half in life.halves.pending.values()} == {"older": 0, "E": 0}
        channel = life.online()
        for half in due_halves(life.halves, life.service):
            if half.identity[0] == "E":
                life.service.check(half)
        (question,) = channel.questions
        assert decode_message(question.body).properties["TRANSACTION_CHECK_TIMES"] == "1"
        life.store.dispatch()
        life.answer(question, COMMIT)
        assert life.bodies() == [b"E"]
        with pytest.raises(BrokerError, match="ended already"):
            life.service.resume_check(place)
        with pytest.raises(BrokerError, match="no message of TRANS_CHECK"):
            life.service.resume_check(older.physical_offset)
    finally:
        life.store.shutdown()


@pytest.mark.parametrize("ops_written", [True, False])
def test_after_a_kill(tmp_path, ops_written):
    """Known defect 40 of RocketMQ: the op message of a commit may be missing after a kill. Our broker finds the
    committed message in the log, so it does not check with a producer, and does not deliver the message twice.
    """
    clock = ManualClock()
    first = Life(tmp_path, clock)
    channel = first.online()
    old = first.prepare("old")
    clock.advance(7000)
    first.check()
    committed, rolled_back, lost = first.prepare("c"), first.prepare("r"), first.prepare("g")
    first.end(committed, COMMIT)
    first.answer(channel.questions[0], COMMIT)
    if ops_written:
        first.end(rolled_back, ROLLBACK)
        first.halves.write_ops()
    first.kill()
    second = Life(tmp_path, clock)
    try:
        names = {half.identity[0] for half in second.halves.pending.values()}
        assert names == ({"g"} if ops_written else {"g", "r"})
        with pytest.raises(BrokerError, match="ended already"):
            second.end(old, COMMIT)
        again = second.online()
        for _ in range(4):
            clock.advance(30_000)
            second.check()
        assert second.bodies() == [b"c", b"old"]
        assert {decode_message(question.body).body for question in again.questions} == {n.encode() for n in names}
        assert sorted(second.bodies(GIVEN_UP, 0)) == sorted(n.encode() for n in names)
        assert lost.uniq_key == "g"
    finally:
        second.store.shutdown()
    third = Life(tmp_path, clock)
    assert third.halves.pending == {}
    third.store.shutdown()


def test_progress_moves_when_the_disk_has_the_outcomes(life, monkeypatch):
    first, second = life.prepare("1"), life.prepare("2")
    life.end(second, COMMIT)
    monkeypatch.setattr(MessageStore, "flushed_offset", 0)
    life.halves.write_ops()
    life.store.dispatch()
    assert life.offsets.query("CID_RMQ_SYS_TRANS", HALF.decode(), 0) is None
    monkeypatch.setattr(MessageStore, "flushed_offset", life.store.max_offset)
    life.halves.settle()
    assert life.offsets.query("CID_RMQ_SYS_TRANS", HALF.decode(), 0) == 0
    life.end(first, ROLLBACK)
    monkeypatch.setattr(MessageStore, "flushed_offset", 1 << 40)
    life.halves.write_ops()
    life.store.dispatch()
    life.halves.write_ops()
    assert life.offsets.query("CID_RMQ_SYS_TRANS", HALF.decode(), 0) == 2
    assert life.offsets.query("CID_RMQ_SYS_TRANS", OP.decode(), 0) == 2


@pytest.mark.parametrize("ended", ["clean", "killed"])
def test_store_of_the_reference(tmp_path, ended):
    """In a store written by RocketMQ, the broker checks each undecided half message up to the limit, then gives it up.
    Committed messages stay.
    """
    case = load_broker(f"transaction_{ended}")
    write_files(case.files, tmp_path)
    clock = ManualClock(case.expected["ended_at_ms"] + 60_000)
    geometry = {
        "mapped_file_size_commit_log": 131072,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 500,
        "max_index_num": 2000,
    }
    life = Life(tmp_path, clock, geometry, (tmp_path / "config" / "consumerOffset.json").read_bytes())
    try:
        by_state: dict[str, list[bytes]] = {}
        for message in case.expected["messages"]:
            by_state.setdefault(message["state"], []).append(message["body"].encode())
        waiting = sorted(body for state, bodies in by_state.items() if "pending" in state for body in bodies)
        committed = sorted(body for state, bodies in by_state.items() if "committed" in state for body in bodies)
        assert waiting
        assert sorted(life.bodies(b"T_store", 0)) == committed
        given_up = life.bodies(GIVEN_UP, 0)
        channel = life.online("G_tx_P")
        for _ in range(5):
            life.check()
            clock.advance(30_000)
        assert sorted(life.bodies(GIVEN_UP, 0)[len(given_up) :]) == waiting
        assert sorted(life.bodies(b"T_store", 0)) == committed
        asked = [decode_message(question.body).body for question in channel.questions]
        assert set(asked) <= set(waiting)
        assert max(map(asked.count, asked)) <= 2
    finally:
        life.store.shutdown()


async def _questions(connection: RawConnection, wanted: int) -> list[RemotingCommand]:
    found: list[RemotingCommand] = []
    while len(found) < wanted:
        command = await asyncio.wait_for(connection.receive(), 20)
        if command.code == RequestCode.CHECK_TRANSACTION_STATE and not command.flag & 1:
            found.append(command)
    return found


def _end(fields: dict[str, str], outcome: int, from_check: bool, key: str) -> RemotingCommand:
    ext_fields = {
        "producerGroup": "pg",
        "tranStateTableOffset": fields["queue"],
        "commitLogOffset": fields["physical"],
        "commitOrRollback": str(outcome),
        "fromTransactionCheck": "true" if from_check else "false",
        "msgId": key,
        "transactionId": key,
    }
    return RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=ext_fields)


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
def test_over_the_wire(tmp_path, sync_flush):
    """One transaction is committed at once, the other only after a check by the broker and a restart in between."""

    async def scene() -> None:
        options = {"transaction_timeout_ms": 100, "transaction_check_interval_ms": 100}
        async with Cluster(tmp_path, sync_flush, **options) as cluster:
            await cluster.send("T", b"plain")
            places = {}
            for key in ("A", "B"):
                text = properties_text(UNIQ_KEY=key, TRAN_MSG="true", PGROUP="pg", WAIT="true")
                command = cluster.send_command("T", key.encode(), text, 1, sys_flag=4)
                command.ext_fields["g"] = str(SystemClock().wall_ms())
                answer = await cluster.client.invoke(cluster.broker.address, command, 10_000)
                assert (answer.code, answer.ext_fields["queueId"], answer.ext_fields["transactionId"]) == (0, "1", key)
                physical = str(int(answer.ext_fields["msgId"][16:], 16))
                places[key] = {"queue": answer.ext_fields["queueOffset"], "physical": physical}
            assert await cluster.bodies("T", 1) == []
            ended = await cluster.client.invoke(cluster.broker.address, _end(places["A"], 8, False, "A"), 10_000)
            assert ended.code == 0
            assert await cluster.bodies("T", 1) == [b"A"]
        async with Cluster(tmp_path, sync_flush, **options) as cluster:
            assert await cluster.bodies("T", 1) == [b"A"]
            connection = await cluster.connect()
            body = HeartbeatData("me@2", [ProducerData("pg")], []).encode()
            connection.send(RemotingCommand(RequestCode.HEART_BEAT, body=body), 1)
            (question,) = await _questions(connection, 1)
            fields = question.ext_fields
            assert (fields["msgId"], fields["topic"], question.flag) == ("B", HALF.decode(), 2)
            place = {"queue": fields["tranStateTableOffset"], "physical": fields["commitLogOffset"]}
            connection.send(_end(place, 8, True, "B"), 2, flag=2)
            while await cluster.bodies("T", 1) != [b"A", b"B"]:
                await asyncio.sleep(0.01)
            connection.close()
        async with Cluster(tmp_path, sync_flush, **options) as cluster:
            assert await cluster.bodies("T", 1) == [b"A", b"B"]
            assert cluster.broker.services.halves.pending == {}

    run(scene())


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
def test_a_rollback_that_was_answered_holds_when_the_broker_is_killed(tmp_path, sync_flush):
    async def scene() -> None:
        async with Cluster(tmp_path / "store", sync_flush, transaction_op_batch_interval_ms=60_000) as cluster:
            text = properties_text(UNIQ_KEY="A", TRAN_MSG="true", PGROUP="pg", WAIT="true")
            command = cluster.send_command("T", b"A", text, 1, sys_flag=4)
            answer = await cluster.client.invoke(cluster.broker.address, command, 10_000)
            physical = str(int(answer.ext_fields["msgId"][16:], 16))
            place = {"queue": answer.ext_fields["queueOffset"], "physical": physical}
            ended = await cluster.client.invoke(cluster.broker.address, _end(place, 12, False, "A"), 10_000)
            assert ended.code == 0
            shutil.copytree(tmp_path / "store", tmp_path / "killed")
        async with Cluster(tmp_path / "killed", sync_flush) as cluster:
            assert cluster.broker.services.halves.pending == {}

    run(scene())


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
def test_put_back_over_the_wire(tmp_path, sync_flush):
    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush) as cluster:
            cluster.broker.running.transactions._rules = TransactionRules(0, 0, 18)
            text = properties_text(UNIQ_KEY="A", TRAN_MSG="true", PGROUP="pg", WAIT="true")
            await cluster.client.invoke(
                cluster.broker.address, cluster.send_command("T", b"A", text, 1, sys_flag=4), 9000
            )
            await cluster.ask(
                RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}
            )  # every caller gets all of them
            transactions = cluster.broker.running.transactions
            for half in due_halves(cluster.broker.services.halves, transactions):
                transactions.check(half)
            cluster.broker.store.dispatch()
            if sync_flush:
                await until(lambda: cluster.broker.store.max_queue_offset(GIVEN_UP, 0), "the disk")
            (view,) = cluster.broker.store.get_message(GIVEN_UP, 0, 0, 1, 1 << 20).views
            message_id = offset_message_id(cluster.broker.store.store_host, decode_message(view).physical_offset)
            assert cluster.broker.services.halves.pending == {}
            fields = {"topic": GIVEN_UP.decode(), "msgId": message_id}
            assert (await cluster.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)).code == 0
            assert len(cluster.broker.services.halves.pending) == 1
            for wrong in ({}, {"msgId": "none"}, {"msgId": f"{message_id[:16]}{1:016X}"}):
                refused = await cluster.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, wrong)
                assert (refused.code, "putting message back" in refused.remark or "failed" in refused.remark) == (
                    1,
                    True,
                )

    run(scene())


def test_refused_where_transactions_are_not_wanted(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, reject_transaction_message=True) as cluster:
            await cluster.send("T", b"plain")
            text = properties_text(UNIQ_KEY="A", TRAN_MSG="true", PGROUP="pg")
            answer = await cluster.send("T", b"x", text, sys_flag=4)
            assert (answer.code, answer.remark) == (
                16,
                "the broker[127.0.0.1] sending transaction message is forbidden",
            )
            assert await cluster.bodies() == [b"plain"]

    run(scene())


def test_a_half_message_that_cannot_be_copied_is_given_up_at_once(life):
    """The copy for a check needs room for the number of checks. Before, such a message was tried again for ever."""
    life.online()
    free = 32_767 - len(properties_text(UNIQ_KEY="A", TRAN_MSG="true", PGROUP="pg", REAL_TOPIC="T", REAL_QID="1"))
    life.prepare("A", fill="x" * (free - 60))
    life.prepare("B")
    life.clock.advance(7000)
    life.check()
    assert life.bodies(GIVEN_UP, 0) == [b"A"]
    assert life.store.stats.set_aside_messages == 1
    assert [half.identity[0] for half in life.halves.pending.values()] == ["B"]


def test_a_half_message_that_cannot_even_be_given_up_is_finished(life, monkeypatch):
    life.online()
    life.prepare("A")
    life.clock.advance(7000)
    put = life.store.put_copy
    refused = PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL)
    monkeypatch.setattr(life.store, "put_copy", lambda m: put(m) if m.topic == OP else refused)
    life.check()
    assert not life.halves.pending
    assert life.store.stats.set_aside_messages == 2


@pytest.mark.parametrize("error", [FormatError("record", 0, "a", "b"), ValueError("surprise")])
def test_the_error_of_one_half_message_is_named_once_and_stays_its_own(life, monkeypatch, caplog, error):
    channel = life.online()
    bad = life.prepare("A")
    life.prepare("B")
    life.clock.advance(7000)
    decode = transactional_message_service.decode_message

    def fail(record, unpack):
        message = decode(record, unpack=unpack)
        if message.physical_offset == bad.physical_offset:
            raise error
        return message

    monkeypatch.setattr(transactional_message_service, "decode_message", fail)
    life.check()
    life.check()
    assert [decode_message(question.body).body for question in channel.questions] == [b"B", b"B"]
    assert (life.store.stats.set_aside_messages, caplog.text.count("message set aside")) == (1, 1)
    assert {half.identity[0] for half in life.halves.pending.values()} == {"A", "B"}
    monkeypatch.undo()
    life.check()
    assert decode_message(channel.questions[-1].body).body == b"A"
