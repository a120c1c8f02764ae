"""Trace records that producers and consumers send, to a scripted broker and to ours."""

from __future__ import annotations

import asyncio

from tests.brokers import Cluster, run

from rucola import Message, Producer, ProducerConfig, PullConsumer, PullConsumerConfig
from rucola.client.admin import AdminClient
from rucola.client.trace import PENDING_MAX, SILENCE_S, TRACE_BYTES_MAX, TraceDispatcher, trace_group
from rucola.common.key_builder import TRACE_TOPIC
from rucola.errors import BrokerError, ClientError
from rucola.formats.properties import decode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.trace import TraceRecord, TraceType, decode_trace, encode_trace
from rucola.testing.event_loop import advance, run_stepped, settle

SEND = int(RequestCode.SEND_MESSAGE_V2)
TRACED = ProducerConfig(enable_trace=True)


def trace_messages(broker):
    return [(header, body) for header, body in broker.stored if header.topic == TRACE_TOPIC]


def records(broker):
    return [record for _, body in trace_messages(broker) for record in decode_trace(body.decode())]


def test_a_send_leaves_a_record(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1, TRACE_TOPIC: 1}) as one:
            async with Producer("pg", one.address, TRACED) as producer:
                result = await producer.send(Message("T", b"hello", "TagA", ["k1", "k2"], delay_level=3))
                await producer.send_oneway(Message("T", b"unknown end"))
            [record] = records(one)
            assert record.timestamp_ms > 1_700_000_000_000
            assert record == TraceRecord(
                trace_type=TraceType.PUB,
                timestamp_ms=record.timestamp_ms,
                region="DefaultRegion",
                group="pg",
                topic="T",
                msg_id=result.msg_id,
                tags="TagA",
                keys="k1 k2",
                store_host=one.address,
                body_length=5,
                cost_ms=record.cost_ms,
                msg_type=3,
                offset_msg_id=result.offset_msg_id,
            )
            [(header, _)] = trace_messages(one)
            assert header.producer_group.startswith("_INNER_TRACE_PRODUCER-pg-PRODUCE-")
            assert decode_properties(header.properties.encode())["KEYS"] == f"{result.msg_id} k1 k2"

    run_stepped(scene())


def test_every_member_of_a_batch_is_found(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1, TRACE_TOPIC: 1}) as one:
            one.scripts[RequestCode.SEND_BATCH_MESSAGE] = [
                lambda command: command.answer(
                    10,
                    ext_fields={
                        "msgId": "AA,BB",
                        "queueId": "0",
                        "queueOffset": "0",
                        "MSG_REGION": "R",
                        "TRACE_ON": "true",
                    },
                )
            ]
            batch = [Message("T", b"a"), Message("T", b"bc", "TagB")]
            async with Producer("pg", one.address, TRACED) as producer:
                await producer.send_batch(batch)
            assert [
                (one.msg_id, one.offset_msg_id, one.tags, one.body_length, one.success) for one in records(one)
            ] == [
                (batch[0].uniq_key, "AA", None, 1, False),
                (batch[1].uniq_key, "BB", "TagB", 2, False),
            ]

    run_stepped(scene())


def test_calls_without_a_record_are_named(broker):
    """There is no record if tracing is off, the broker wants no traces, a send is refused, or the application sends
    traces itself.
    """

    async def scene() -> None:
        async with broker(topics={"T": 1, TRACE_TOPIC: 1}) as one:
            async with Producer("pg", one.address) as producer:
                await producer.send(Message("T", b"a"))
            stored = {"msgId": "00", "queueId": "0", "queueOffset": "0"}
            one.scripts[SEND] = [
                lambda command: command.answer(0, ext_fields=stored | {"MSG_REGION": "R", "TRACE_ON": "false"}),
                lambda command: command.answer(0, ext_fields=stored),
                lambda command: command.answer(13, "no"),
            ]
            async with Producer("pg", one.address, TRACED) as producer:
                await producer.send(Message("T", b"b"))
                await producer.send(Message("T", b"c"))
                try:
                    await producer.send(Message("T", b"d"))
                except BrokerError as error:
                    assert error.code == 13
                await producer.send(Message(TRACE_TOPIC, b"own"))
            assert [body for _, body in trace_messages(one)] == [b"own"]

    run_stepped(scene())


def test_records_wait_for_each_other(broker):
    """Ten trace records are sent together as soon as they exist; fewer are sent after 5 s."""

    async def scene() -> None:
        async with broker(topics={"T": 1, TRACE_TOPIC: 1}) as one:
            async with Producer("pg", one.address, TRACED) as producer:
                for _ in range(12):
                    await producer.send(Message("T", b"a"))
                await one.until(lambda: len(records(one)) == 10)
                assert len(trace_messages(one)) == 1
                await settle()
                assert len(records(one)) == 10
                advance(5)
                await one.until(lambda: len(records(one)) == 12)
            assert len(trace_messages(one)) == 2

    run_stepped(scene())


class Sender:
    """Accepts trace messages, and acknowledges them when the test decides."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.futures: list[asyncio.Future] = []

    async def start(self) -> None: ...

    async def shutdown(self) -> None:
        await asyncio.Event().wait()

    def submit(self, message: Message) -> asyncio.Future:
        if len(message.keys or "") > 32_000:
            raise ClientError("properties too long")
        self.messages.append(message)
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


def record(number: int, **more) -> TraceRecord:
    return TraceRecord(trace_type=TraceType.RECALL, msg_id=f"ID{number}", topic="T", **more)


def handed(sender: Sender) -> int:
    return sum(len(decode_trace(message.body.decode())) for message in sender.messages)


def test_a_broker_that_hangs_costs_little_memory():
    async def scene() -> None:
        sender = Sender()
        trace = TraceDispatcher("g", sender, "TRACES", 10, lambda: 0)
        trace.append(record(number) for number in range(PENDING_MAX + 92))
        assert (trace.dropped, handed(sender)) == (0, PENDING_MAX + 92)
        advance(SILENCE_S)
        await settle()
        trace.append(record(number) for number in range(100))
        assert (trace.dropped, handed(sender)) == (100, PENDING_MAX + 92)
        sender.futures[0].set_exception(ClientError("refused"))
        await settle()
        trace.append(record(number) for number in range(30))
        assert trace.dropped == 130  # an error is no sign of health
        sender.futures[1].set_result(None)
        await settle()
        trace.append(record(number) for number in range(30))
        assert trace.dropped == 130
        advance(SILENCE_S)
        await settle()
        trace.append([record(0)])
        assert trace.dropped == 130  # something was confirmed since the last look
        advance(SILENCE_S)
        await settle()
        trace.append([record(0)])
        assert trace.dropped == 131
        ending = asyncio.ensure_future(trace.shutdown())
        await settle()
        advance(5)
        await ending

    run_stepped(scene())


def test_an_idle_broker_is_not_taken_for_a_silent_one():
    """Hours without a trace are no silence: the time counts from the first message in flight."""

    async def scene() -> None:
        sender = Sender()
        trace = TraceDispatcher("g", sender, "TRACES", 1, lambda: 0)
        for _ in range(3):
            trace.append([record(0)])
            sender.futures[-1].set_result(None)
            await settle()
            advance(3_600)
            await settle()
        trace.append(record(number) for number in range(PENDING_MAX + 1))
        assert trace.dropped == 0
        for future in sender.futures[3:]:
            future.set_result(None)
        await settle()
        advance(SILENCE_S)
        await settle()
        assert trace._look_timer is None

    run_stepped(scene())


def test_answers_that_waited_unread_count_before_the_silence():
    """The application has blocked the event loop for longer than a silence; the answers are there."""

    async def scene() -> None:
        sender = Sender()
        trace = TraceDispatcher("g", sender, "TRACES", 1, lambda: 0)
        trace.append(record(number) for number in range(PENDING_MAX))
        sender.futures[0].set_result(None)
        advance(60)
        trace.append([record(0)])
        await settle()
        trace.append([record(0)])
        assert trace.dropped == 0

    run_stepped(scene())


def test_memory_is_bounded_even_if_the_broker_responds(monkeypatch):
    monkeypatch.setattr("rucola.client.trace.PENDING_BYTES_MAX", 1_000_000)

    async def scene() -> None:
        sender = Sender()
        trace = TraceDispatcher("g", sender, "TRACES", 1, lambda: 0)
        trace.append(record(number, group="x" * 100_000) for number in range(30))
        assert (len(sender.messages), trace.dropped) == (10, 20)
        sender.futures[0].set_result(None)
        await settle()
        trace.append([record(0)])
        assert trace.dropped == 20

    run_stepped(scene())


def test_a_burst_loses_no_record(broker):
    """More sends than the limit of pending records are answered at once; each has its record (c21)."""
    count = PENDING_MAX + 500

    async def scene() -> None:
        config = ProducerConfig(enable_trace=True, send_msg_timeout_ms=3_600_000)
        async with broker(topics={"T": 4, TRACE_TOPIC: 1}) as one:
            async with Producer("pg", one.address, config) as producer:
                await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(count)))
            assert len({record.msg_id for record in records(one)}) == count

    run_stepped(scene())


def test_large_records_are_parted():
    async def scene() -> None:
        sender = Sender()
        trace = TraceDispatcher("g", sender, "TRACES", 20, lambda: 0)
        trace.append(record(number, group="x" * 50_000) for number in range(20))
        assert all(len(message.body) <= TRACE_BYTES_MAX for message in sender.messages)
        trace.append(record(number, keys="k" * 5_000) for number in range(20))
        assert (len(sender.messages), handed(sender)) == (10 + 20, 40)
        trace.append([record(0, keys="k" * 40_000)] * 20)  # too many keys for a message's properties
        assert (len(sender.messages), handed(sender)) == (10 + 20 + 20, 60)
        assert sender.messages[-1].keys == "ID0"
        trace.append(TraceRecord(trace_type=TraceType.RECALL, topic="T") for _ in range(20))
        assert sender.messages[-1].keys is None

    run_stepped(scene())


def test_group_names_stay_short():
    assert len(trace_group("g" * 120, "CONSUME")) == 120
    assert trace_group("g", "CONSUME") != trace_group("g", "CONSUME")


def test_against_our_broker(tmp_path):
    """On our broker the trace topic exists from the start, and a message's trace is found by its id."""

    async def scene() -> None:
        async with Cluster(tmp_path, trace_topic_enable=True) as there:
            namesrv = there.namesrv.address
            assert there.broker.topics.table[TRACE_TOPIC].write_queue_nums == 1
            async with Producer("pg", namesrv, TRACED) as producer:
                result = await producer.send(Message("T", b"hello", keys="k1"))
            config = PullConsumerConfig(enable_trace=True)
            async with PullConsumer("cg", namesrv, config) as consumer:
                pulled = await consumer.pull(result.message_queue, 0)
                assert [message.msg_id for message in pulled.messages] == [result.msg_id]
            async with AdminClient(namesrv) as admin:
                found = await admin.messages_by_key(TRACE_TOPIC, result.msg_id)
            traces = [one for message in found for one in decode_trace(message.body.decode())]
            assert [one.trace_type for one in traces] == [TraceType.PUB, TraceType.SUB_BEFORE, TraceType.SUB_AFTER]
            assert {one.msg_id for one in traces} == {result.msg_id}
            assert traces[1].request_id == traces[2].request_id != ""
            assert (traces[2].group, traces[2].keys, traces[1].region) == ("cg", "k1", "DefaultRegion")
            assert encode_trace(traces).encode() == b"".join(bytes(message.body) for message in found)

    run(scene())
