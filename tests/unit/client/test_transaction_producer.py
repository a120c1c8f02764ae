"""Transactions with our broker, also after their producer has ended, and with a scripted broker."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from tests.brokers import Cluster
from tests.brokers import run as run_plain

import rucola.sync
from rucola import (
    LocalTransactionState,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    SendStatus,
    TransactionProducer,
)
from rucola.common.key_builder import TRACE_TOPIC
from rucola.common.message import StoreMessage
from rucola.errors import BrokerError, ClientError
from rucola.formats.message import encode_message
from rucola.formats.properties import decode_properties, encode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import CheckTransactionStateRequestHeader
from rucola.protocol.trace import TraceType, decode_trace
from rucola.testing.event_loop import advance, run_stepped, settle

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
SEND, END = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.END_TRANSACTION)
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
ASKING = {"transaction_timeout_ms": 50, "transaction_check_interval_ms": 50}


class Ledger:
    """A listener that returns given results and records its calls."""

    def __init__(self, local=COMMIT, check=COMMIT) -> None:
        self.local, self.check = local, check
        self.executed: list[tuple[Message, object]] = []
        self.checked: list[Message] = []
        self.threads: list[str] = []

    def execute_local_transaction(self, message, argument):
        self.executed.append((message, argument))
        self.threads.append(threading.current_thread().name)
        if isinstance(self.local, Exception):
            raise self.local
        return self.local

    async def check_local_transaction(self, message):
        self.checked.append(message)
        if isinstance(self.check, Exception):
            raise self.check
        return self.check


async def bodies(cluster: Cluster, topic: str, expected: int) -> list[bytes]:
    """Returns all messages of ``topic``, once there are as many as expected."""
    async with PullConsumer("cg", cluster.namesrv.address) as consumer:
        while True:
            found = []
            for queue in await consumer.message_queues(topic):
                found += [message.body for message in (await consumer.pull(queue, 0)).messages]
            if len(found) >= expected:
                return sorted(found)
            await asyncio.sleep(0.01)


def test_committed_messages_are_delivered_and_others_are_not(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            ledger = Ledger()
            async with TransactionProducer("pg", cluster.namesrv.address, ledger) as producer:
                await producer.send(Message("T", b"plain"))
                for state in (COMMIT, ROLLBACK, UNKNOWN):
                    ledger.local = state
                    message = Message("T", state.value.encode(), tags="A")
                    result = await producer.send_message_in_transaction(message, 17)
                    assert result.local_transaction_state is state
                    assert result.send_result.status is SendStatus.SEND_OK
                    assert ledger.executed[-1] == (message, 17)
                    assert result.send_result.msg_id == message.uniq_key
                    assert set(message.properties) == {"TAGS", "UNIQ_KEY"}  # the message may be sent again as it was
                assert await bodies(cluster, "T", 2) == [b"COMMIT_MESSAGE", b"plain"]
            assert "MainThread" not in ledger.threads  # listeners run outside the event loop's thread

    run_plain(scene())


def test_a_producer_that_is_started_anew_answers_for_the_one_before(tmp_path):
    """A restarted producer has sent nothing yet, so it learns from the name server which brokers may send checks."""

    async def scene() -> None:
        async with Cluster(tmp_path, **ASKING) as cluster:
            namesrv = cluster.namesrv.address
            first = TransactionProducer("pg", namesrv, Ledger(local=UNKNOWN, check=UNKNOWN))
            await first.start()
            sent = [await first.send_message_in_transaction(Message("T", b"%d" % n, tags="A")) for n in range(3)]
            await first.shutdown()
            ledger = Ledger(check=COMMIT)
            async with TransactionProducer("pg", namesrv, ledger):
                assert await bodies(cluster, "T", 3) == [b"0", b"1", b"2"]
            asked = ledger.checked[0]
            assert {message.uniq_key for message in ledger.checked} == {one.send_result.msg_id for one in sent}
            assert (asked.topic, asked.tags, ledger.executed) == ("T", "A", [])

    run_plain(scene())


def test_given_topics_are_met_instead_of_all_brokers(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, **ASKING) as cluster:
            namesrv = cluster.namesrv.address
            async with TransactionProducer("pg", namesrv, Ledger(local=UNKNOWN, check=UNKNOWN)) as first:
                await first.send_message_in_transaction(Message("T", b"x"))
            async with TransactionProducer("pg", namesrv, Ledger(), topics=["T"]):
                assert await bodies(cluster, "T", 1) == [b"x"]

    run_plain(scene())


def test_the_blocking_face(tmp_path):
    """The listener of a blocking producer may block, and may even use a blocking client."""
    ready, done = threading.Event(), threading.Event()
    address: list[str] = []

    def serve() -> None:
        async def scene() -> None:
            async with Cluster(tmp_path) as cluster:
                address.append(cluster.namesrv.address)
                ready.set()
                await asyncio.to_thread(done.wait)

        run_plain(scene())

    server = threading.Thread(target=serve)
    server.start()
    ready.wait()
    try:
        with rucola.sync.Producer("other", address[0]) as other:

            class Listener:
                def execute_local_transaction(self, message, argument):
                    other.send(Message("Log", b"local part"))
                    return COMMIT

                def check_local_transaction(self, message):
                    return ROLLBACK

            with rucola.sync.TransactionProducer("pg", address[0], Listener()) as producer:
                result = producer.send_message_in_transaction(Message("T", b"x"))
                assert result.local_transaction_state is COMMIT
                assert producer.send(Message("T", b"y")).status is SendStatus.SEND_OK
    finally:
        done.set()
        server.join()


def test_the_end_of_a_transaction_reaches_the_broker(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            config = ProducerConfig(send_msg_timeout_ms=3_600_000, retry_backoff_ms=1)
            ledger = Ledger()
            async with TransactionProducer("pg", one.address, ledger, config, topics=["T"]) as producer:
                result = await producer.send_message_in_transaction(Message("T", b"x"))
                header, _ = one.stored[0]
                assert header.sys_flag == 4
                properties = decode_properties(header.properties.encode())
                assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "pg")
                end = next(command for command in one.received if command.code == END)
                assert not end.is_oneway
                assert end.ext_fields == {
                    "producerGroup": "pg",
                    "tranStateTableOffset": "0",
                    "commitLogOffset": "1",
                    "commitOrRollback": "8",
                    "fromTransactionCheck": "false",
                    "topic": "T",
                    "msgId": result.send_result.msg_id,
                    "transactionId": result.send_result.msg_id,
                    "bname": "broker-a",
                }
                ledger.local = ROLLBACK
                await producer.send_message_in_transaction(Message("T", b"x"))
                assert one.received[-1].ext_fields["commitOrRollback"] == "12"
                count = len(one.received)
                ledger.local = error = RuntimeError("the database is not available")
                result = await producer.send_message_in_transaction(Message("T", b"x"))
                assert result[1:] == (UNKNOWN, error)
                ledger.local = "yes"
                result = await producer.send_message_in_transaction(Message("T", b"x"))
                assert isinstance(result.local_error, ClientError)
                assert "must return a LocalTransactionState, not 'yes'" in str(result.local_error)
                assert [command.code for command in one.received[count:]].count(END) == 0  # the broker will ask
                ledger.local = COMMIT
                one.scripts[END] = [lambda command: command.answer(1, "not now")]
                result = await producer.send_message_in_transaction(Message("T", b"x"))
                assert result.local_transaction_state is COMMIT  # the local result is kept; the broker will ask

    run_stepped(scene())


def test_the_local_part_is_not_done_for_a_message_that_is_not_safe(broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            ledger = Ledger()
            config = ProducerConfig(retry_times_when_send_failed=0)
            async with TransactionProducer("pg", one.address, ledger, config, topics=["T"]) as producer:
                one.scripts[SEND] = [lambda command: answer_stored(command, 0, 5, code=10)]
                result = await producer.send_message_in_transaction(Message("T", b"x"))
                assert result.local_transaction_state is ROLLBACK
                assert result.send_result.status is SendStatus.FLUSH_DISK_TIMEOUT
                assert one.received[-1].ext_fields["commitOrRollback"] == "12"
                one.scripts[SEND] = [lambda command: command.answer(16, "no transactions here")]
                with pytest.raises(BrokerError, match="no transactions here"):
                    await producer.send_message_in_transaction(Message("T", b"x"))
                with pytest.raises(ClientError, match="cannot be delayed"):
                    await producer.send_message_in_transaction(Message("T", b"x", delay=timedelta(1)))
                with pytest.raises(ClientError, match="timeout_ms must be at least 1"):
                    await producer.send_message_in_transaction(Message("T", b"x"), timeout_ms=0)
                assert ledger.executed == []
            with pytest.raises(ClientError, match="shut down"):
                await producer.send_message_in_transaction(Message("T", b"x"))

    run_stepped(scene())


def question(group: str = "pg", body: bytes | None = None) -> bytes:
    header = CheckTransactionStateRequestHeader(7, 4711, "RMQ_SYS_TRANS_HALF_TOPIC", "KEY", "KEY", "ID", "broker-a")
    properties = encode_properties({"UNIQ_KEY": "KEY", "PGROUP": group, "TRAN_MSG": "true"})
    record = encode_message(StoreMessage(b"T", 1, b"half", properties, 1, HOST), 4711, 7, 2, HOST)
    fields = header.to_ext_fields()
    return RemotingCommand(39, ext_fields=fields, body=record if body is None else body, flag=2, opaque=1).encode()


def test_questions_of_a_broker(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1, TRACE_TOPIC: 1}) as one:
            ledger = Ledger()
            config = ProducerConfig(enable_trace=True, trace_msg_batch_num=1)
            async with TransactionProducer("pg", one.address, ledger, config, topics=["T"]):
                await one.until(lambda: bool(one.heartbeats()))
                for check, sent in ((COMMIT, ["8"]), (ROLLBACK, ["12"]), (UNKNOWN, []), (OSError("gone"), [])):
                    ledger.check, count = check, len(one.received)
                    one.channels[0].send(question())
                    await settle()
                    ends = [command for command in one.received[count:] if command.code == END]
                    assert [command.ext_fields["commitOrRollback"] for command in ends] == sent
                assert (ledger.checked[0].body, ledger.checked[0].broker_name) == (b"half", "broker-a")
                end = next(command for command in one.received if command.code == END)
                assert end.ext_fields == {
                    "producerGroup": "pg",
                    "tranStateTableOffset": "7",
                    "commitLogOffset": "4711",
                    "commitOrRollback": "8",
                    "fromTransactionCheck": "true",
                    "topic": "T",
                    "msgId": "KEY",
                    "transactionId": "KEY",
                    "bname": "broker-a",
                }
                asked = len(ledger.checked)
                one.channels[0].send(question(group="another"))
                one.channels[0].send(question(body=b"rubbish"))
                await settle()
                assert len(ledger.checked) == asked
            records = [record for _, body in one.stored for record in decode_trace(body.decode())]
            assert {(one.trace_type, one.transaction_state, one.from_transaction_check) for one in records} == {
                (TraceType.END_TRANSACTION, state, True) for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW")
            }

    run_stepped(scene())


def test_many_questions_are_taken_a_few_at_a_time(broker, monkeypatch):
    monkeypatch.setattr("rucola.client.transaction_producer._CHECKS_MAX", 20)

    class Slow(Ledger):
        running = most = 0
        go_on = asyncio.Event()

        async def check_local_transaction(self, message):
            self.running += 1
            self.most = max(self.most, self.running)
            await self.go_on.wait()
            self.running -= 1
            return COMMIT

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            ledger = Slow()
            async with TransactionProducer("pg", one.address, ledger, topics=["T"]):
                await one.until(lambda: bool(one.heartbeats()))
                for _ in range(25):
                    one.channels[0].send(question())
                await settle(60)
                assert ledger.running == 16
                ledger.go_on.set()
                await settle(100)
                assert (one.codes().count(END), ledger.most) == (20, 16)  # the broker asks again about the rest
                one.channels[0].send(question())
                await settle()
                assert one.codes().count(END) == 21

    run_stepped(scene())


def test_brokers_are_looked_for_until_the_name_server_is_there(broker):
    async def scene() -> None:
        async with broker() as away:
            port = away.server.port
        ledger = Ledger()
        producer = TransactionProducer("pg", f"127.0.0.1:{port}", ledger, topics=["T", "U"])
        await producer.start()
        await settle(60)
        async with broker(topics={"T": 1}, port=port) as one:
            advance(1.001)
            await one.until(lambda: bool(one.heartbeats()))
            await settle(60)
            one.topics["U"] = 1
            asked = len(one.received)
            advance(1.9)
            await settle(100)
            assert len(one.received) == asked  # pauses become longer
            advance(0.2)
            await one.until(lambda: len(one.received) > asked)
            await settle()
            assert [command.ext_fields["topic"] for command in one.received[asked:]] == ["U"]
            await producer.shutdown()

    run_stepped(scene())


def test_topics_that_cannot_be():
    with pytest.raises(ClientError, match="not the string 'T'"):
        TransactionProducer("pg", "127.0.0.1:1", Ledger(), topics="T")
    with pytest.raises(ClientError, match="'bad topic'"):
        TransactionProducer("pg", "127.0.0.1:1", Ledger(), topics=["bad topic"])


def test_an_ordinary_producer_is_not_asked(tmp_path):
    """The heartbeat of an ordinary producer contains the same group. The producer ignores a check instead of sending a
    wrong decision.
    """

    async def scene() -> None:
        async with Cluster(tmp_path, **ASKING) as cluster:
            namesrv = cluster.namesrv.address
            async with Producer("pg", namesrv) as plain:
                await plain.send(Message("Other", b"x"))
                async with TransactionProducer("pg", namesrv, Ledger(local=UNKNOWN, check=COMMIT)) as producer:
                    await producer.send_message_in_transaction(Message("T", b"x"))
                    assert await bodies(cluster, "T", 1) == [b"x"]

    run_plain(scene())
