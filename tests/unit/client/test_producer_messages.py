"""Messages that a producer sends or refuses: batches, compression, queues, delays and recall."""

from __future__ import annotations

import sys
import zlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.unit.client.producing import PATIENT, SEND, properties_of, refuse

from rucola import CompressionType, Message, MessageQueue, Producer, ProducerConfig
from rucola.common.key_builder import TRACE_TOPIC
from rucola.common.recall_handle import RecallHandle
from rucola.errors import (
    BrokerError,
    ClientError,
    ConfigError,
)
from rucola.formats.compression import decompress
from rucola.formats.properties import decode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.trace import TraceType, decode_trace


def test_compression(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            text = b"flights " * 1_000
            noise = bytes((n * n * 31 + n // 7) % 251 for n in range(50))
            await producer.send(Message("T", text))
            await producer.send(Message("T", text[:4096]))
            await producer.send(Message("T", noise))
            (packed, body), (plain, exact), (raw, same) = one.stored
            assert (packed.sys_flag, zlib.decompress(body)) == (0x301, text)
            assert (plain.sys_flag, exact) == (0, text[:4096])
            assert (raw.sys_flag, same) == (0, noise)

    run(scene())


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD])
def test_other_compressions(run, broker, kind):
    pytest.importorskip({"LZ4": "lz4.frame", "ZSTD": "zstandard"}[kind.value])

    async def scene() -> None:
        config = ProducerConfig(compress_type=kind)
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, config) as producer:
            text = b"flights " * 1_000
            await producer.send(Message("T", text))
            packed, body = one.stored[0]
            assert packed.sys_flag == {"LZ4": 0x101, "ZSTD": 0x201}[kind.value]
            assert decompress(body, packed.sys_flag) == text

    run(scene())


def test_a_compression_without_its_package_is_refused_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        ConfigError, match=r"compress_type .compressType.: 'ZSTD' .*pip install 'rucola-mq\[compression\]'"
    ):
        Producer("pg", "127.0.0.1:1", ProducerConfig(compress_type=CompressionType.ZSTD))
    with pytest.raises(ConfigError, match="compressType"):
        ProducerConfig(compress_type="ZSTD")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Message("T", b""), "empty"),
        (Message("T", "text"), "bytes, not str"),
        (Message("T", bytes(4 * 1024 * 1024 + 1)), "4194305 bytes"),
        (Message("bad topic", b"x"), "topic 'bad topic'"),
        (Message("T" * 128, b"x"), "1 to 127"),
        (Message("", b"x"), "topic ''"),
        (Message("T", b"x", properties={"a": "b\x01"}), "U\\+0001"),
        (Message("T", b"x", properties={"": "b"}), "name is empty"),
        (Message("T", b"x", properties={"a": "\ud800"}), "not valid text"),
        (Message("T", b"x", properties={"a": "b" * 32768}), "limit is 32767"),
        (Message("T", b"x", properties={"a": "ü" * 16400}), "limit is 32767"),
        (Message("T", b"x", flag=1 << 31), "32 bits"),
        (Message("T", b"x", properties={"a": 1}), r"property 'a': its value must be a str, not int \(1\)"),
        (Message("T", b"x", properties={2: "b"}), "property 2: its name must be a str, not int"),
    ],
)
def test_messages_that_cannot_be_sent(run, broker, message, problem):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            with pytest.raises(ClientError, match=problem):
                await producer.send(message)
            with pytest.raises(ClientError, match=problem):
                producer.submit(message)
            assert not one.stored
            assert producer.in_flight == 0

    run(scene())


def test_batch(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 2}) as one, Producer("pg", one.address) as producer:
            messages = [Message("T", f"m{n}".encode(), tags=f"t{n}", flag=n) for n in range(3)]
            result = await producer.send_batch(messages)
            assert result.msg_id == ",".join(message.uniq_key or "" for message in messages)
            header, body = one.stored[0]
            assert (header.batch, header.topic) == (True, "T")
            assert RequestCode.SEND_BATCH_MESSAGE in one.codes()
            assert set(properties_of(header)) == {"WAIT"}  # a broker appends this text to each member's properties
            members = []
            while body:
                total = int.from_bytes(body[:4], "big")
                body_length = int.from_bytes(body[16:20], "big")
                tail = 20 + body_length
                assert int.from_bytes(body[tail : tail + 2], "big") == total - tail - 2
                members.append(
                    (
                        body[4:12],
                        int.from_bytes(body[12:16], "big"),
                        body[20:tail],
                        decode_properties(body[tail + 2 : total]),
                    )
                )
                body = body[total:]
            assert members == [
                (bytes(8), n, f"m{n}".encode(), {"TAGS": f"t{n}", "UNIQ_KEY": messages[n].uniq_key}) for n in range(3)
            ]

    run(scene())


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one"),
        ([Message("T", b"x"), Message("U", b"x")], "the same topic"),
        ([Message("T", b"x", delay_level=3)], "delayed"),
        ([Message("%RETRY%g", b"x")], "retry"),
        ([Message("T", b"x"), Message("T", b"x", properties={"WAIT": "false"})], "wait_store_ok"),
        ([Message("T", bytes(3_000_000)), Message("T", bytes(3_000_000))], "the batch takes"),
    ],
)
def test_batches_that_cannot_be_sent(run, broker, messages, problem):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            with pytest.raises(ClientError, match=problem):
                await producer.send_batch(messages)
            assert not one.stored

    run(scene())


def test_properties_are_those_at_the_call(run, broker):
    """An application may change a message and send it again before the first send is acknowledged."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            one.scripts[SEND] = [refuse(2)]
            message = Message("T", b"x", tags="first")
            first = producer.submit(message)
            message.tags, message.uniq_key = "second", "KEY"
            second = producer.submit(message)
            assert (await second).msg_id == "KEY" != (await first).msg_id
            assert sorted(properties_of(header)["TAGS"] for header, _ in one.stored) == ["first", "second"]

    run(scene())


def test_a_selector_chooses_the_queue(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address) as producer:
            asked = []

            def last(queues, message):
                asked.append((list(queues), message.body))
                return queues[-1]

            for body in (b"before the route is known", b"after"):
                result = await producer.send(Message("T", body), selector=last)
                assert result.message_queue == MessageQueue("T", "broker-a", 3)
                assert asked[-1] == ([MessageQueue("T", "broker-a", n) for n in range(4)], body)
            await producer.send_oneway(Message("T", b"oneway"), selector=last)
            await one.until(lambda: len(one.stored) == 3)
            assert {header.queue_id for header, _ in one.stored} == {3}
            for selector, problem in (
                (lambda queues, message: 3, "queue must be a MessageQueue, not 3"),
                (lambda queues, message: MessageQueue("U", "broker-a", 0), "cannot go to a queue of topic U"),
                (lambda queues, message: queues[9], r"the queue selector for topic T failed: IndexError"),
            ):
                with pytest.raises(ClientError, match=problem):
                    await producer.send(Message("T", b"x"), selector=selector)
            with pytest.raises(ClientError, match="a queue or a selector, but not both"):
                await producer.send(Message("T", b"x"), MessageQueue("T", "broker-a", 0), selector=last)
            assert producer.in_flight == 0

    run(scene())


def test_a_chosen_queue_is_kept_by_further_attempts(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 8}) as one, Producer("pg", one.address, PATIENT) as producer:
            calls = []
            one.scripts[SEND] = [refuse(2), refuse(2)]
            await producer.send(Message("T", b"x"), selector=lambda queues, message: calls.append(1) or queues[5])
            assert len(calls) == 1
            sent = [command for command in one.received if command.code == SEND]
            assert [command.ext_fields["e"] for command in sent] == ["5"] * 3

    run(scene())


def test_a_sharding_key_leads_to_the_queue_of_the_java_client(run, broker):
    """In Java, ``hashCode()`` of "hello" is 99162322, and that of "polygenelubricants" is the smallest int. The queue
    is the remainder of the absolute value.
    """

    async def scene() -> None:
        async with broker(topics={"T": 7}) as one, Producer("pg", one.address) as producer:
            for key, queue_id in (("hello", 99162322 % 7), ("polygenelubricants", (1 << 31) % 7)):
                for _ in range(2):
                    result = await producer.send(Message("T", b"x", sharding_key=key))
                    assert result.message_queue.queue_id == queue_id
                    assert properties_of(one.stored[-1][0]).get("__SHARDINGKEY", "") == key
            queue = MessageQueue("T", "broker-a", 3)
            assert (await producer.send(Message("T", b"x", sharding_key="b"), queue)).message_queue == queue

    run(scene())


def test_messages_for_later(run, broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            at = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
            for message, properties in (
                (Message("T", b"x", delay_level=3), {"DELAY": "3"}),
                (Message("T", b"x", delay=timedelta(minutes=2, milliseconds=5)), {"TIMER_DELAY_MS": "120005"}),
                (Message("T", b"x", deliver_at=at), {"TIMER_DELIVER_MS": "1893492000000"}),
            ):
                assert (await producer.send(message)).recall_handle is None  # this broker gives none
                found = properties_of(one.stored[-1][0])
                assert {name: found[name] for name in found if name not in ("UNIQ_KEY", "WAIT")} == properties
            assert message.deliver_at == at
            message.delay = timedelta(seconds=1)
            assert (message.deliver_at, message.delay) == (None, timedelta(seconds=1))
            message.delay = None
            assert not {"TIMER_DELAY_MS", "TIMER_DELIVER_MS", "DELAY"} & set(message.properties)

    run(scene())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"deliver_at": datetime(2030, 1, 1)}, "with a time zone"),
        ({"deliver_at": 1893492000000}, "with a time zone, not 1893492000000"),
        ({"delay": 5}, "must be a datetime.timedelta, not 5"),
        ({"delay": timedelta(-1)}, "must not be negative"),
        ({"delay": timedelta(1), "delay_level": 2}, "one of delay_level, delay and deliver_at"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC), "delay_level": 2}, "one of delay_level"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": timedelta(1)}, "one of delay_level"),
    ],
)
def test_times_that_make_no_sense(arguments, problem):
    with pytest.raises(ClientError, match=problem):
        Message("T", b"x", **arguments)


@pytest.mark.parametrize("trace", [False, True])
def test_recall(run, broker, answer_stored, trace):
    handle = RecallHandle("T", "broker-a", 1893492000001, "KEY").encode()

    async def scene() -> None:
        config = ProducerConfig(enable_trace=trace)
        topics = {"T": 1, "U": 1, TRACE_TOPIC: 1}
        async with broker(topics=topics) as one, Producer("pg", one.address, config) as producer:

            def stored(command: RemotingCommand) -> RemotingCommand:
                answer = answer_stored(command, 0, 7)
                answer.ext_fields["recallHandle"] = handle
                return answer

            one.scripts[SEND] = [stored]
            result = await producer.send(Message("T", b"x", delay=timedelta(hours=1)))
            assert (result.recall_handle, result.queue_offset) == (handle, 7)
            one.scripts[RequestCode.RECALL_MESSAGE] = [
                lambda command: command.answer(0, ext_fields={"msgId": "KEY"}),
                lambda command: command.answer(604, "recall failed, timestamp invalid"),
            ]
            assert await producer.recall("T", result.recall_handle) == "KEY"
            asked = next(command for command in one.received if command.code == RequestCode.RECALL_MESSAGE)
            fields = {"topic": "T", "recallHandle": handle, "producerGroup": "pg", "bname": "broker-a"}
            assert asked.ext_fields == fields
            with pytest.raises(BrokerError, match="604 ILLEGAL_OPERATION: recall failed, timestamp invalid"):
                await producer.recall("T", handle)
            with pytest.raises(ClientError, match="is not a recall handle"):
                await producer.recall("T", "nonsense")
            with pytest.raises(ClientError, match="belongs to a message of topic T, not U"):
                await producer.recall("U", handle)
            with pytest.raises(ClientError, match="timeout_ms must be at least 1"):
                await producer.recall("T", handle, timeout_ms=0)
        traced = [record for _, body in one.stored if b"Recall" in body for record in decode_trace(body.decode())]
        recalls = [(each.topic, each.msg_id) for each in traced if each.trace_type is TraceType.RECALL]
        assert recalls == ([("T", "KEY")] if trace else [])

    run(scene())
