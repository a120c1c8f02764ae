"""Only clients that were passed to ``traced`` produce spans."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.unit.client.liting import LiteBroker, lite_consumer, pass_by

from rucola import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeResultSuspend,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushConsumerConfig,
)
from rucola.client.otel import processing, traced
from rucola.errors import ClientError
from rucola.sync import Producer as BlockingProducer
from rucola.testing.event_loop import run_stepped
from rucola.testing.rocketmq import RocketMQ

FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


@pytest.fixture(scope="module")
def servers() -> Iterator[RocketMQ]:
    with RocketMQ() as servers:
        yield servers


class Spans:
    """A provider that keeps its spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def _ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def _parent(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


async def _consume(servers: RocketMQ, topic: str, spans: Spans, listener: Any, *, batch: bool = False) -> None:
    """Consumes until the listener sets the event that it gets."""
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()
    consumer = traced(PushConsumer(f"g-{topic}", servers.namesrv, FIRST), f"g-{topic}", spans.provider)
    consumer.register_message_listener(listener(lambda: loop.call_soon_threadsafe(enough.set)), batch=batch)
    await consumer.subscribe(topic)
    async with consumer:
        await asyncio.wait_for(enough.wait(), 20)


def test_a_message_carries_its_trace_from_send_to_listener(servers: RocketMQ, spans: Spans) -> None:
    def listener(enough: Any) -> Any:
        async def listen(message: MessageExt) -> None:
            with spans.provider.get_tracer("app").start_as_current_span("work"):
                enough()

        return listen

    async def work() -> None:
        async with traced(Producer("pg", servers.namesrv), "pg", spans.provider) as producer:
            await producer.send(Message("journey", b"x", tags="red", keys="k1 k2"))
        await _consume(servers, "journey", spans, listener)

    run_stepped(work())
    (sent,), (processed,), (inner,) = spans.of("send journey"), spans.of("process journey"), spans.of("work")
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert _parent(processed) == _ids(sent)
    assert _parent(inner) == _ids(processed)
    (message,) = servers.messages("journey")
    assert sent.attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.client_group": "pg",
        "messaging.destination.name": "journey",
        "messaging.message.body.size": 1,
        "messaging.rocketmq.message.tag": "red",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
        "messaging.message.id": message.msg_id,
        "messaging.destination.partition.id": str(message.queue_id),
    }
    assert processed.attributes is not None
    assert processed.attributes["messaging.consumer.group.name"] == "g-journey"
    assert processed.attributes["messaging.message.id"] == message.msg_id


def test_a_failing_listener_fails_its_span_and_its_message(servers: RocketMQ, spans: Spans) -> None:
    answers = iter((RuntimeError("no"), ConsumeConcurrentlyStatus.RECONSUME_LATER, None))

    def listener(enough: Any) -> Any:
        def listen(message: MessageExt) -> Any:
            answer = next(answers)
            if answer is None:
                enough()
            if isinstance(answer, Exception):
                raise answer
            return answer

        return listen

    async def work() -> None:
        async with Producer("pg", servers.namesrv) as producer:
            for _ in range(3):
                await producer.send(Message("failing", b"x"))
        await _consume(servers, "failing", spans, listener)

    run_stepped(work())
    ended = spans.of("process failing")
    assert [span.status.status_code for span in ended].count(StatusCode.ERROR) == 2
    assert [event.name for span in ended for event in span.events] == ["exception"]


def test_every_way_to_send_has_one_span(servers: RocketMQ, spans: Spans) -> None:
    async def work() -> None:
        async with traced(Producer("pg", servers.namesrv), "", spans.provider) as producer:
            await producer.send(Message("ways", b"1"))
            await producer.submit(Message("ways", b"2"))
            await producer.send_many(Message("ways", b"%d" % number) for number in (3, 4))
            await producer.send_batch([Message("ways", b"5"), Message("ways", b"6")])
            await producer.send_oneway(Message("ways", b"7"))
            with pytest.raises(ClientError):
                await producer.send(Message("", b"no topic"))
            with pytest.raises(ClientError):
                await producer.submit(Message("", b"no topic"))

    run_stepped(work())
    with traced(BlockingProducer("pg", servers.namesrv), "", spans.provider) as blocking:
        blocking.send(Message("ways", b"8"))
        blocking.submit(Message("ways", b"9")).result()
    servers.wait_for_messages("ways", 9)
    assert len(spans.of("send ways")) == 7
    traces = {span.get_span_context().trace_id for span in spans.of("send ways")}  # type: ignore[union-attr]
    stored = {int(message.properties["traceparent"].split("-")[1], 16) for message in servers.messages("ways")}
    assert stored == traces
    assert [span.status.status_code for span in spans.of("send ")] == [StatusCode.ERROR] * 2


def test_a_batch_belongs_to_the_first_trace_and_is_linked_to_the_others(servers: RocketMQ, spans: Spans) -> None:
    with processing(_stored(servers, spans)[0], "g", spans.provider):
        pass
    (processed,) = spans.of("process batch")
    assert _parent(processed) == _ids(spans.of("send batch")[0])
    listened: list[int] = []

    def listen(messages: list[MessageExt], _context: object) -> None:
        listened.append(len(messages))

    class Registry:
        def register_message_listener(self, listener: Any, *, batch: bool) -> None:
            listener(servers.messages("batch"), None)

    traced(Registry(), "g", spans.provider).register_message_listener(listen, batch=True)
    assert listened == [2]
    linked = spans.of("process batch")[1]
    assert [link.context.span_id for link in linked.links] == [_ids(spans.of("send batch")[1])[1]]
    assert linked.attributes is not None and linked.attributes["messaging.batch.message_count"] == 2


def _stored(servers: RocketMQ, spans: Spans) -> list[MessageExt]:
    with traced(BlockingProducer("pg", servers.namesrv), "", spans.provider) as producer:
        for number in range(2):
            producer.send(Message("batch", b"%d" % number))
    return servers.messages("batch")


def test_clients_that_nobody_traces_import_nothing_of_it(servers: RocketMQ) -> None:
    code = (
        "import sys\nfrom rucola import Message\nfrom rucola.sync import Producer\n"
        f"with Producer('pg', {servers.namesrv!r}) as producer: producer.send(Message('plain', b'x'))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
    assert "traceparent" not in servers.messages("plain")[0].properties


def test_a_lite_consumer_has_a_span_for_each_call_and_a_suspension_is_no_error() -> None:
    async def scene() -> None:
        spans = Spans()
        results: list[Any] = [ConsumeResultSuspend(timedelta(seconds=1)), False, None]

        async def listen(message: MessageExt) -> Any:
            return results.pop(0)

        async with LiteBroker() as broker:
            consumer = traced(lite_consumer(broker), tracer_provider=spans.provider)
            consumer.register_message_listener(listen)
            async with consumer:
                broker.send("a", b"a0")
                await consumer.subscribe_lite("a")
                for _ in range(3):
                    await pass_by(1.1)
                await broker.until(lambda: not results)
        found = [span.status.status_code for span in spans.exporter.get_finished_spans()]
        assert found == [StatusCode.UNSET, StatusCode.ERROR, StatusCode.UNSET]

    run_stepped(scene())
