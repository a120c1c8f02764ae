"""The producer against a scripted broker over loopback."""

from __future__ import annotations

import asyncio
import pickle
import sys
import zlib
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rucola import CompressionType, Message, MessageQueue, Producer, ProducerConfig, SendResult, SendStatus
from rucola.common.key_builder import TRACE_TOPIC
from rucola.common.recall_handle import RecallHandle
from rucola.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    FormatError,
    RemotingClosedError,
    RemotingError,
    RemotingTimeoutError,
)
from rucola.formats.compression import decompress
from rucola.formats.properties import decode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.trace import TraceType, decode_trace
from rucola.testing.event_loop import advance, run_stepped, settle

SEND = int(RequestCode.SEND_MESSAGE_V2)
ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
PATIENT = ProducerConfig(send_msg_timeout_ms=3_600_000, retry_backoff_ms=1, retry_backoff_max_ms=5)


def silent(command: RemotingCommand) -> None:
    return None


def refuse(code: int, remark: str = "not now"):
    return lambda command: command.answer(code, remark)


def properties_of(header) -> dict[str, str]:
    return decode_properties(header.properties.encode())


def test_send(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address) as producer:
            message = Message("T", b"hello", tags="TagA", keys=["k1", "k2"], flag=7, properties={"origin": "Zürich"})
            result = await producer.send(message)
            header, body = one.stored[0]
            assert (header.producer_group, header.topic, header.default_topic) == ("pg", "T", "TBW102")
            assert (header.default_topic_queue_nums, header.sys_flag, header.flag) == (4, 0, 7)
            assert (header.reconsume_times, header.unit_mode, header.batch) == (0, False, False)
            assert header.broker_name == "broker-a"
            assert body == b"hello"
            assert properties_of(header) == {
                "TAGS": "TagA",
                "KEYS": "k1 k2",
                "origin": "Zürich",
                "UNIQ_KEY": result.msg_id,
                "WAIT": "true",
            }
            assert message.uniq_key == result.msg_id
            assert len(result.msg_id) == 32
            assert (await producer.send(message)).msg_id == result.msg_id
            assert result.status is SendStatus.SEND_OK
            assert result.message_queue == MessageQueue("T", "broker-a", header.queue_id)
            assert (result.queue_offset, result.offset_msg_id) == (0, "7F00000100002A9F0000000000000001")
        assert one.codes()[-1] == RequestCode.UNREGISTER_CLIENT
        assert one.received[-1].ext_fields == {"clientID": producer.client_id, "producerGroup": "pg"}

    run(scene())


def test_queues_take_turns_and_a_chosen_queue_is_kept(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address) as producer:
            for _ in range(8):
                await producer.send(Message("T", b"x"))
            assert Counter(header.queue_id for header, _ in one.stored) == {0: 2, 1: 2, 2: 2, 3: 2}
            queues = await producer.message_queues("T")
            assert queues == [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
            for _ in range(3):
                assert (await producer.send(Message("T", b"x"), queues[2])).message_queue == queues[2]
            # A queue the route does not know is the broker's to judge.
            far = MessageQueue("T", "broker-a", 99)
            assert (await producer.send(Message("T", b"x"), far)).message_queue == far
            with pytest.raises(ClientError, match="broker-z"):
                await producer.send(Message("T", b"x"), MessageQueue("T", "broker-z", 0))

    run(scene())


def test_unknown_topic_goes_where_tbw102_is(run, broker):
    async def scene() -> None:
        async with broker() as one, Producer("pg", one.address) as producer:
            for _ in range(4):
                await producer.send(Message("Fresh", b"x"))
            assert {header.queue_id for header, _ in one.stored} == {0, 1, 2, 3}
            asked = [command.ext_fields["topic"] for command in one.received if command.code == ROUTE]
            assert asked == ["Fresh", "TBW102"]

    run(scene())


def test_topic_without_a_queue_that_can_be_written(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 0}) as one, Producer("pg", one.address) as producer:
            for _ in range(2):
                with pytest.raises(ClientError, match="no queue that can be written"):
                    await producer.send(Message("T", b"x"))
                with pytest.raises(ClientError, match="no queue that can be written"):
                    await producer.send(Message("T", b"x", sharding_key="k"))
            assert producer.in_flight == 0

    run(scene())


def test_topic_without_any_route(run, broker):
    async def scene() -> None:
        async with broker(topics={}) as one, Producer("pg", one.address) as producer:
            with pytest.raises(ClientError, match="no route to topic Nowhere"):
                await producer.send(Message("Nowhere", b"x"))
            futures = [producer.submit(Message("Nowhere", b"x")) for _ in range(3)]
            errors = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(error) for error in errors] == [ClientError] * 3
            assert len({id(error) for error in errors}) == 3
            assert producer.in_flight == 0

    run(scene())


def test_what_nobody_waits_for_when_its_route_comes_is_not_sent(broker):
    """Of three sends that wait for a route, one is cancelled, and one runs out of time."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            held: list[RemotingCommand] = []
            one.scripts[ROUTE] = [held.append]
            cancelled, late, patient = (
                producer.submit(Message("T", body), timeout_ms=timeout_ms)
                for body, timeout_ms in ((b"cancelled", None), (b"late", 100), (b"patient", None))
            )
            await one.until(lambda: bool(held))
            cancelled.cancel()
            advance(0.2)
            one.channels[-1].send(one._route(held[0]).encode())
            assert (await patient).status is SendStatus.SEND_OK
            with pytest.raises(ClientError, match="no route to topic T within 100 ms"):
                await late
            assert [body for _, body in one.stored] == [b"patient"]
            assert producer.in_flight == 0

    run_stepped(scene())


def test_second_name_server_is_asked_when_the_first_is_away(run, broker):
    async def scene() -> None:
        async with broker() as away:
            gone = away.address
        async with broker(topics={"T": 1}) as one, Producer("pg", f"{gone};{one.address}") as producer:
            assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
        async with Producer("pg", gone) as producer:
            with pytest.raises(RemotingError, match=gone):
                await producer.send(Message("T", b"x"), timeout_ms=20)

    run(scene())


def test_topics_looked_up_together_find_the_second_name_server(run, broker):
    async def scene() -> None:
        async with broker() as away:
            gone = away.address
        topics = ["A", "B", "C", "D"]
        async with (
            broker(topics=dict.fromkeys(topics, 1)) as one,
            Producer("pg", f"{gone};{one.address}") as producer,
        ):
            results = await asyncio.gather(*(producer.send(Message(topic, b"x")) for topic in topics))
            assert [result.message_queue.topic for result in results] == topics

    run(scene())


def test_pipelined_sends_match_their_answers(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address) as producer:
            messages = [Message("T", str(n).encode()) for n in range(500)]
            futures = []
            for message in messages:
                await producer.ready()
                futures.append(producer.submit(message))
            results = await asyncio.gather(*futures)
            by_id = {properties_of(header)["UNIQ_KEY"]: body for header, body in one.stored}
            assert [by_id[result.msg_id] for result in results] == [message.body for message in messages]
            assert len({(result.message_queue, result.queue_offset) for result in results}) == 500

    run(scene())


def test_answers_in_reverse_order(run, broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            held: list[RemotingCommand] = []
            one.scripts[SEND] = [held.append] * 10
            futures = [producer.submit(Message("T", b"x")) for _ in range(10)]
            await one.until(lambda: len(held) == 10)
            channel = one.channels[-1]
            for queue_offset, command in reversed(list(enumerate(held))):
                channel.send(answer_stored(command, 0, queue_offset).encode())
            assert [(await future).queue_offset for future in futures] == list(range(10))

    run(scene())


def test_ready_waits_while_too_much_is_on_its_way(run, broker, answer_stored):
    async def scene() -> None:
        config = ProducerConfig(back_pressure_for_async_send_num=3, send_msg_timeout_ms=3_600_000)
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, config) as producer:
            held: list[RemotingCommand] = []
            one.scripts[SEND] = [held.append] * 4
            futures = [producer.submit(Message("T", b"x")) for _ in range(3)]
            await one.until(lambda: len(held) == 3)
            waiting = [asyncio.ensure_future(producer.ready()) for _ in range(2)]
            await settle()
            assert not any(one.done() for one in waiting)
            waiting[0].cancel()
            one.channels[-1].send(answer_stored(held[1], 0, 1).encode())
            await waiting[1]
            assert [future.done() for future in futures] == [False, True, False]
            assert producer.in_flight == 2
            for command in (held[0], held[2]):
                one.channels[-1].send(answer_stored(command, 0, 0).encode())
            await producer.flush()
            assert producer.in_flight == 0

    run(scene())


def test_ready_counts_bytes_too(run, broker):
    async def scene() -> None:
        config = ProducerConfig(back_pressure_for_async_send_size=1_000, send_msg_timeout_ms=3_600_000)
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, config) as producer:
            one.scripts[SEND] = [silent]
            producer.submit(Message("T", bytes(2_000)))
            waiting = asyncio.ensure_future(producer.ready())
            await settle()
            assert not waiting.done()
            one.channels[0].close()
            await waiting

    run(scene())


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_answers_that_are_tried_again(run, broker, code):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address, PATIENT) as producer:
            one.scripts[SEND] = [refuse(code), refuse(code)]
            result = await producer.send(Message("T", b"x"))
            assert result.status is SendStatus.SEND_OK
            keys = {properties["UNIQ_KEY"] for properties in map(sent_properties, one.received) if properties}
            assert keys == {result.msg_id}
            assert one.codes().count(SEND) == 3
            one.scripts[SEND] = [refuse(code)] * 3
            with pytest.raises(BrokerError, match="not now") as caught:
                await producer.send(Message("T", b"x"))
            assert (caught.value.code, caught.value.address) == (code, one.address)
            assert "attempt 3" in caught.value.__notes__[0]

    run(scene())


def sent_properties(command: RemotingCommand) -> dict[str, str]:
    return decode_properties(command.ext_fields["i"].encode()) if command.code == SEND else {}


@pytest.mark.parametrize("code", [13, 29, 3, 26])
def test_answers_that_are_final(run, broker, code):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address, PATIENT) as producer:
            one.scripts[SEND] = [refuse(code)]
            with pytest.raises(BrokerError):
                await producer.send(Message("T", b"x"))
            assert one.codes().count(SEND) == 1

    run(scene())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_stored_but_not_safe_is_a_result(run, broker, answer_stored, code, status):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            script = [lambda command: answer_stored(command, 3, 5, code=code)]
            async with Producer("pg", one.address, PATIENT) as producer:
                one.scripts[SEND] = list(script)
                result = await producer.send(Message("T", b"x"))
                assert (result.status, result.queue_offset) == (status, 5)
                assert result.message_queue.queue_id == 3
            again = ProducerConfig(send_msg_timeout_ms=3_600_000, retry_another_broker_when_not_store_ok=True)
            async with Producer("pg", one.address, again) as producer:
                one.scripts[SEND] = list(script)
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK

    run(scene())


@pytest.mark.parametrize("later", [13, 2, None])
def test_stored_but_not_safe_outlives_the_failure_of_later_attempts(run, broker, answer_stored, later):
    """The broker refuses them, refuses every attempt, or closes their connection."""

    async def scene() -> None:
        async with broker(topics={"T": 2}) as one:
            config = ProducerConfig(
                send_msg_timeout_ms=3_600_000, retry_backoff_ms=1, retry_another_broker_when_not_store_ok=True
            )
            async with Producer("pg", one.address, config) as producer:
                queue = MessageQueue("T", "broker-a", 1)
                fail = (lambda command: one.channels[-1].close()) if later is None else refuse(later)
                one.scripts[SEND] = [lambda command: answer_stored(command, 1, 5, code=10), fail, fail]
                result = await producer.send(Message("T", b"x"), queue)
                assert (result.status, result.queue_offset) == (SendStatus.FLUSH_DISK_TIMEOUT, 5)
                assert result.message_queue == queue
                assert one.codes().count(SEND) == (2 if later == 13 else 3)
                assert producer.in_flight == 0

    run(scene())


def test_retry_goes_to_another_broker(run, broker):
    async def scene() -> None:
        async with broker("broker-a", {"T": 2}) as one, broker("broker-b", {"T": 2}) as other:
            one.peers = [other]
            config = ProducerConfig(send_msg_timeout_ms=3_600_000, retry_times_when_send_failed=1)
            async with Producer("pg", one.address, config) as producer:
                one.scripts[SEND] = [refuse(2)] * 100
                for _ in range(8):
                    assert (await producer.send(Message("T", b"x"))).message_queue.broker_name == "broker-b"
                assert len(other.stored) == 8
                assert not one.stored

    run(scene())


def test_broker_comes_back_on_the_same_port(run, broker):
    """Every message is acknowledged in the end, under one id; none is lost with the connection."""

    async def scene() -> None:
        config = ProducerConfig(
            send_msg_timeout_ms=3_600_000,
            retry_times_when_send_async_failed=1_000_000,
            retry_backoff_ms=1,
            retry_backoff_max_ms=5,
        )
        async with broker(topics={"T": 4}) as one:
            port = one.server.port
            producer = Producer("pg", one.address, config)
            await producer.start()
            await producer.send(Message("T", b"first"))
            one.scripts[SEND] = [silent] * 50
            futures = [producer.submit(Message("T", str(n).encode())) for n in range(100)]
            await one.until(lambda: one.codes().count(SEND) >= 51)
        await settle(100)
        assert producer.in_flight >= 50
        async with broker(topics={"T": 4}, port=port) as back:
            results = await asyncio.gather(*futures)
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            assert len({result.msg_id for result in results}) == 100
            await back.until(lambda: bool(back.heartbeats()))
            await producer.shutdown()

    run(scene())


def test_broker_comes_back_under_another_address(run, broker):
    async def scene() -> None:
        config = ProducerConfig(
            send_msg_timeout_ms=3_600_000, retry_times_when_send_failed=1_000_000, retry_backoff_max_ms=20
        )
        async with broker("names", {}) as names:
            producer = Producer("pg", names.address, config)
            await producer.start()
            async with broker("broker-a", {"T": 1}) as old:
                names.peers = [old]
                await producer.send(Message("T", b"x"))
            async with broker("broker-a", {"T": 1}) as new:
                names.peers = [new]
                await producer.send(Message("T", b"y"))
                assert [body for _, body in new.stored] == [b"y"]
                await producer.shutdown()

    run(scene())


def test_timeout_covers_all_attempts(broker):
    async def scene() -> None:
        async def stuck(**settings: int) -> int:
            """Attempts made before the time for all of them is over."""
            config = ProducerConfig(send_msg_timeout_ms=3_000, **settings)
            attempts = len(one.received)
            async with Producer("pg", one.address, config) as producer:
                await producer.message_queues("T")
                one.scripts[SEND] = [silent] * 10
                sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
                while not sending.done():
                    await settle()
                    advance(0.5)
                with pytest.raises(RemotingTimeoutError, match="did not answer"):
                    await sending
            return one.codes()[attempts:].count(SEND)

        async with broker(topics={"T": 1}) as one:
            assert await stuck() == 1
            assert await stuck(send_msg_max_timeout_per_request_ms=1_000) in (2, 3)

    run_stepped(scene())


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
    with pytest.raises(ConfigError, match=r"compressType: 'ZSTD' .*pip install 'rucola\[compression\]'"):
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
        (Message("T", b"x", tags=3), "property 'TAGS': its value must be a str, not int"),
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


def test_a_shutdown_that_is_given_up_closes_all_the_same(broker):
    """A caller with a shorter time limit leaves no heartbeats and no connection behind."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            await producer.send(Message("T", b"x"))
            one.scripts[SEND] = [silent]
            future = producer.submit(Message("T", b"y"))
            await one.until(lambda: one.codes().count(SEND) == 2)
            ending = asyncio.ensure_future(producer.shutdown())
            await settle()
            assert not ending.done()
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            with pytest.raises(RemotingClosedError):
                await future
            assert one.codes()[-1] == RequestCode.UNREGISTER_CLIENT
            await one.until(lambda: all(channel.closed for channel in one.channels))
            with pytest.raises(ClientError, match="shut down"):
                producer.submit(Message("T", b"z"))

    run_stepped(scene())


def test_use_before_start_and_after_shutdown(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address)
            with pytest.raises(ClientError, match="not started"):
                producer.submit(Message("T", b"x"))
            await producer.start()
            await producer.send(Message("T", b"x"))
            await producer.shutdown()
            await producer.shutdown()
            with pytest.raises(ClientError, match="shut down"):
                await producer.send(Message("T", b"x"))

    run(scene())


def test_bad_settings():
    with pytest.raises(ClientError, match="group"):
        Producer("no such group!", "127.0.0.1:1")
    for namesrv in ("", "nonsense", "127.0.0.1:1;x"):
        with pytest.raises(ConfigError):
            Producer("pg", namesrv)
    with pytest.raises(ConfigError, match="sendMsgTimeout"):
        ProducerConfig(send_msg_timeout_ms=0)
    with pytest.raises(ConfigError, match="retryTimes"):
        ProducerConfig(retry_times_when_send_failed=-1)


def test_batch(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 2}) as one, Producer("pg", one.address) as producer:
            messages = [Message("T", f"m{n}".encode(), tags=f"t{n}", flag=n) for n in range(3)]
            result = await producer.send_batch(messages)
            assert result.msg_id == ",".join(message.uniq_key or "" for message in messages)
            header, body = one.stored[0]
            assert (header.batch, header.topic) == (True, "T")
            assert RequestCode.SEND_BATCH_MESSAGE in one.codes()
            assert set(properties_of(header)) == {"WAIT"}  # a broker appends it to the properties of each member
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


def test_oneway(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            await producer.send_oneway(Message("T", b"gone"))
            await one.until(lambda: bool(one.stored))
            sent = next(command for command in one.received if command.code == SEND)
            assert sent.is_oneway
            assert one.stored[0][1] == b"gone"

    run(scene())


def test_answer_without_its_fields(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            one.scripts[SEND] = [
                lambda command: command.answer(0),
                lambda command: command.answer(0, ext_fields={"msgId": "x", "queueId": "0", "queueOffset": "many"}),
            ]
            for _ in range(2):
                with pytest.raises(FormatError, match="response to a send"):
                    await producer.send(Message("T", b"x"))
            assert producer.in_flight == 0

    run(scene())


def test_answer_with_a_binary_header(run, broker, answer_stored):
    async def scene() -> None:
        def binary(command: RemotingCommand) -> RemotingCommand:
            answer = answer_stored(command, 0, 77)
            answer.serialize = 1
            return answer

        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            one.scripts[SEND] = [binary]
            assert (await producer.send(Message("T", b"x"))).queue_offset == 77

    run(scene())


@pytest.mark.parametrize("marks", [{}, {"odd": 'a "quoted" text'}])
def test_what_an_answer_says(run, broker, answer_stored, marks):
    """The same answer is read by the fast path, and in a form that only the general path reads."""

    async def scene() -> None:
        async with broker(topics={"T": 2}) as one, Producer("pg", one.address) as producer:
            for queue_id, fields in ((0, {"transactionId": "T-1"}), (1, {"batchUniqId": "A,B"})):

                def answer(command: RemotingCommand, queue_id=queue_id, fields=fields) -> RemotingCommand:
                    stored = answer_stored(command, queue_id, 77, 5)
                    stored.ext_fields |= fields | marks
                    return stored

                one.scripts[SEND] = [answer]
                queue = MessageQueue("T", "broker-a", queue_id)
                result = await producer.send(Message("T", b"x"), queue)
                assert type(result) is SendResult
                msg_id = fields.get("batchUniqId") or sent_properties(one.received[-1])["UNIQ_KEY"]
                expected = (SendStatus.SEND_OK, msg_id, "7F00000100002A9F0000000000000005", queue, 77)
                assert result == (*expected, fields.get("transactionId"), None)

    run(scene())


def test_properties_are_those_at_the_call(run, broker):
    """An application may change and send the same message again before the first is answered."""

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


def test_cancelled_sends_leave_no_trace(run, broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            held: list[RemotingCommand] = []
            one.scripts[SEND] = [held.append]
            sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
            await one.until(lambda: bool(held))
            sending.cancel()
            one.channels[-1].send(answer_stored(held[0], 0, 0).encode())
            await producer.flush()
            assert sending.cancelled() or sending.done()

    run(scene())


def test_a_broker_that_does_not_answer_keeps_no_heartbeat_from_the_others(run, broker):
    async def scene() -> None:
        async with broker("a", topics={"T": 2}) as first, broker("b", topics={"T": 2}) as second:
            for one, other in ((first, second), (second, first)):
                one.peers = [other]
                one.scripts[RequestCode.HEART_BEAT] = [lambda _: None]
            async with Producer("pg", first.address, ProducerConfig(mq_client_api_timeout_ms=3_600_000)) as producer:
                await producer.message_queues("T")
                await first.until(lambda: bool(first.heartbeats()))
                await second.until(lambda: bool(second.heartbeats()))

    run(scene())


def test_heartbeats_and_route_polling(broker):
    async def scene() -> None:
        async with broker(topics={"TBW102": 8}) as one, Producer("pg", one.address) as producer:
            await producer.send(Message("T", b"x"))
            await one.until(lambda: len(one.heartbeats()) == 1)
            beat = one.heartbeats()[0]
            assert beat.client_id == producer.client_id
            assert [group.group_name for group in beat.producer_data_set] == ["pg"]
            one.topics["T"] = 2
            await settle()  # the answer has come too
            advance(31)
            await one.until(lambda: len(one.heartbeats()) == 2 and one.codes().count(ROUTE) >= 3)
            while len(await producer.message_queues("T")) != 2:
                await settle()

    run_stepped(scene())


def test_a_known_route_is_not_replaced_by_that_of_the_default_topic(run, broker):
    """The name server restarts and knows only another broker, which would create the topic."""

    async def scene() -> None:
        async with broker("names", {}) as names, broker("a", {"T": 2}) as one, broker("b", {"TBW102": 8}) as other:
            names.peers = [one]
            config = ProducerConfig(poll_name_server_interval_ms=10)
            async with Producer("pg", names.address, config) as producer:
                await producer.send(Message("T", b"first"))
                names.peers = [other]
                asked = names.codes().count(ROUTE)
                await names.until(lambda: names.codes().count(ROUTE) >= asked + 2)
                for _ in range(4):
                    await producer.send(Message("T", b"x"))
                assert len(one.stored) == 5
                assert not other.stored
                one.topics["T"] = 4  # the broker has registered again, and its route is news
                names.peers = [one, other]
                while len(await producer.message_queues("T")) != 4:
                    await settle()

    run(scene())


def test_a_connection_that_came_back_gets_a_heartbeat_at_once(broker):
    """This holds while another broker delays a round of heartbeats, and the next round is hours away."""

    async def scene() -> None:
        config = ProducerConfig(
            send_msg_timeout_ms=3_600_000,
            heartbeat_broker_interval_ms=36_000_000,
            poll_name_server_interval_ms=36_000_000,
            mq_client_api_timeout_ms=3_600_000,
        )
        async with broker("a", {"T": 2}) as one, broker("b", {"T": 2}) as other:
            one.peers = [other]
            other.scripts[RequestCode.HEART_BEAT] = [silent]
            async with Producer("pg", one.address, config) as producer:
                queues = await producer.message_queues("T")
                await producer.send(Message("T", b"x"), queues[0])
                await one.until(lambda: len(one.heartbeats()) == 1)
                await other.until(lambda: len(other.heartbeats()) == 1)
                for beats in (2, 3):
                    one.channels[-1].abort()
                    await settle()
                    assert len(one.heartbeats()) == beats - 1  # nobody needs the connection yet
                    await producer.send(Message("T", b"x"), queues[0])
                    await settle()
                    assert len(one.heartbeats()) == beats
                    assert one.heartbeats()[-1].producer_data_set[0].group_name == "pg"
                other.channels[-1].close()

    run_stepped(scene())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"queue": MessageQueue("U", "broker-a", 0)}, "to topic T cannot go to a queue of topic U"),
        ({"queue": "T"}, "queue must be a MessageQueue, not 'T'"),
        ({"timeout_ms": 0}, "timeout_ms must be at least 1, not 0"),
        ({"timeout_ms": -5}, "timeout_ms must be at least 1, not -5"),
        ({"timeout_ms": 0.5}, "timeout_ms must be a whole number, not 0.5"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_the_call(run, broker, arguments, problem):
    async def scene() -> None:
        async with broker(topics={"T": 1, "U": 1}) as one, Producer("pg", one.address) as producer:
            message = Message("T", b"x")
            with pytest.raises(ClientError, match=problem):
                await producer.send(message, **arguments)
            with pytest.raises(ClientError, match=problem):
                producer.submit(message, **arguments)
            with pytest.raises(ClientError, match=problem):
                await producer.send_batch([message], **arguments)
            if "queue" in arguments:
                with pytest.raises(ClientError, match=problem):
                    await producer.send_oneway(message, **arguments)
            assert producer.in_flight == 0
            assert not one.received  # nothing was asked or sent

    run(scene())


def test_a_refusal_names_code_broker_remark_and_whether_to_try_again(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            for code, name, advice in (
                (13, "MESSAGE_ILLEGAL", "another try will not help"),
                (2, "SYSTEM_BUSY", "another try may succeed"),
            ):
                one.scripts[SEND] = [refuse(code)] * 3
                with pytest.raises(BrokerError) as caught:
                    await producer.send(Message("T", b"x"))
                text = f"broker-a ({one.address}) answered code {code} {name}: not now ({advice})"
                assert str(caught.value) == text
                assert str(pickle.loads(pickle.dumps(caught.value))) == text
                assert (caught.value.code_name, caught.value.broker_name) == (name, "broker-a")
            one.scripts[SEND] = [refuse(4711)]
            with pytest.raises(BrokerError, match=r"answered code 4711: not now"):
                await producer.send(Message("T", b"x"))

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
    """``"hello".hashCode()`` is 99162322 in Java, and the other text's is the smallest int; the remainder has no
    sign.
    """

    async def scene() -> None:
        async with broker(topics={"T": 7}) as one, Producer("pg", one.address) as producer:
            for key, queue_id in (("hello", 99162322 % 7), ("polygenelubricants", (1 << 31) % 7), ("", 0)):
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
                assert (await producer.send(message)).recall_handle is None  # this broker names none
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


def test_brokers_that_were_slow_or_failed_are_left_out_for_a_while(broker):
    """The times of MQFaultStrategy: 2 s after 550 ms, 10 s after a failure; none after 549 ms."""

    async def scene() -> None:
        config = ProducerConfig(
            send_latency_fault_enable=True,
            send_msg_timeout_ms=3_600_000,
            heartbeat_broker_interval_ms=36_000_000,
            poll_name_server_interval_ms=36_000_000,
        )
        async with broker("a", {"T": 1}) as slow, broker("b", {"T": 1}) as other:
            slow.peers = [other]
            async with Producer("pg", slow.address, config) as producer:

                async def brokers(count: int = 6) -> set[str]:
                    results = [await producer.send(Message("T", b"x")) for _ in range(count)]
                    return {result.message_queue.broker_name for result in results}

                async def answered_after(seconds: float) -> None:
                    held: list[RemotingCommand] = []
                    slow.scripts[SEND] = [held.append]
                    sends = [producer.submit(Message("T", b"x")) for _ in range(2)]
                    await slow.until(lambda: bool(held))
                    await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)  # the other broker is fast
                    advance(seconds)
                    slow.channels[-1].send(slow._store(held[0]).encode())
                    await asyncio.gather(*sends)

                assert await brokers() == {"a", "b"}
                await answered_after(0.5)
                assert await brokers() == {"a", "b"}
                await answered_after(0.56)
                assert await brokers() == {"b"}
                advance(1.5)
                assert await brokers() == {"b"}
                advance(0.501)
                assert await brokers() == {"a", "b"}
                slow.scripts[SEND] = [refuse(2)]
                assert await brokers() == {"b"}  # one was refused, and sent again
                advance(9.5)
                assert await brokers() == {"b"}
                other.topics.clear()
                await producer._instance.routes.refresh("T")
                assert await brokers() == {"a"}  # there is no other
                other.topics["T"] = 1
                await producer._instance.routes.refresh("T")
                assert await brokers() == {"a", "b"}  # it has answered fast since
                slow.scripts[SEND] = [lambda command: slow.channels[-1].abort()]
                assert await brokers() == {"b"}  # a connection was lost
                slow.scripts.clear()
                other.scripts[SEND] = [refuse(2)]
                assert await brokers(1) == {"a"}  # none is available: any but the one that has just failed

    run_stepped(scene())
