"""What consumers write to the trace topic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.brokers import Cluster

from rucola import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReconsumeLater,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from rucola.common.key_builder import TRACE_TOPIC
from rucola.protocol.trace import TraceType, decode_trace
from rucola.testing.event_loop import run_stepped

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
CODES = {"coroutine": 0, "function": 0, "batch": 0, "failing": 2, "refusing": 4, "loop": 0, "lite": 0, "simple": 0}


async def consume(kind: str, namesrv: str) -> None:
    """Consumes one message."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def coroutine(*_: Any) -> Any:
        done.set()
        if kind == "failing":
            raise ReconsumeLater
        return False if kind == "refusing" else None

    def function(_: Any) -> None:
        loop.call_soon_threadsafe(done.set)

    if kind == "lite":
        config = LitePullConsumerConfig(enable_trace=True, consume_from_where=FIRST)
        async with LitePullConsumer("cg", namesrv, config) as lite:
            await lite.subscribe("T")
            while not await lite.poll():
                pass
    elif kind == "simple":
        async with SimpleConsumer("cg", namesrv, SimpleConsumerConfig(enable_trace=True)) as simple:
            await simple.subscribe("T")
            (message,) = await simple.receive()
            await simple.ack(message)
    else:
        push = PushConsumer("cg", namesrv, PushConsumerConfig(enable_trace=True, consume_from_where=FIRST))
        await push.subscribe("T")
        if kind != "loop":
            push.register_message_listener(function if kind == "function" else coroutine, batch=kind == "batch")
        async with push:
            if kind == "loop":
                await anext(aiter(push))
            else:
                await done.wait()


@pytest.mark.parametrize("kind", CODES)
def test_deliveries_and_their_results_are_traced(kind, tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, trace_topic_enable=True) as there:
            async with Producer("pg", there.namesrv.address) as producer:
                sent = await producer.send(Message("T", b"hello", keys="k1"))
            await consume(kind, there.namesrv.address)
            texts = await there.bodies(TRACE_TOPIC)
        before, after = [one for text in texts for one in decode_trace(text.decode())][:2]
        assert (before.trace_type, after.trace_type) == (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)
        assert before.request_id == after.request_id != ""
        assert {before.msg_id, after.msg_id} == {sent.msg_id}
        assert (after.keys, after.group, after.success, after.context_code) == (
            "k1",
            "cg",
            CODES[kind] == 0,
            CODES[kind],
        )

    run_stepped(scene())
