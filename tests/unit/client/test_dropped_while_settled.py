"""A queue is given up, or a call ends, while messages of a concurrent consumer are sent back one by one."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.test_consume_concurrently import Scene

from rucola.testing.event_loop import advance, run_stepped, settle


class Gated(Scene):
    """Sends back one message for each time that ``gate`` is released."""

    def __init__(self, listener, **options) -> None:
        self.gate = asyncio.Semaphore(0)
        super().__init__(listener, batch=True, consume_message_batch_max_size=3, consume_timeout_min=1, **options)

    async def _send_back(self, message, delay_level):
        self.back.append((message.queue_offset, delay_level))
        await self.gate.acquire()
        return True


@pytest.mark.parametrize("dropped", [True, False])
def test_a_failed_batch(dropped):
    async def scene() -> None:
        async def listener(batch, context):
            raise ValueError("no")

        async with Gated(listener) as it:
            it.give(1, 2, 3)
            await settle()
            assert it.back == [(1, 0)]
            it.queue.dropped = dropped
            for _ in range(3):
                it.gate.release()
                await settle()
            if dropped:  # the queue's new consumer gets the others again
                assert (it.back, len(it.queue)) == ([(1, 0)], 3)
            else:
                assert (it.back, it.queue.progress) == ([(1, 0), (2, 0), (3, 0)], 4)

    run_stepped(scene())


@pytest.mark.parametrize("event", ["dropped", "consumed", "nothing"])
def test_a_batch_that_takes_too_long(event):
    async def scene() -> None:
        consumed = asyncio.Event()

        async def listener(batch, context):
            await consumed.wait()

        async with Gated(listener) as it:
            it.give(1, 2, 3)
            await settle()
            advance(61)
            await settle()
            advance(61)
            await settle()
            assert it.back == [(1, 3)]
            if event == "dropped":
                it.queue.dropped = True
            elif event == "consumed":
                consumed.set()
                await settle()
                assert it.queue.progress == 4
            for _ in range(3):
                it.gate.release()
                await settle()
            if event == "nothing":
                assert (it.back, it.queue.progress) == ([(1, 3), (2, 3), (3, 3)], 4)
            else:
                assert it.back == [(1, 3)]
                assert len(it.queue) == (3 if event == "dropped" else 0)
            consumed.set()

    run_stepped(scene())


def test_a_dropped_queue_s_slow_call_is_left_alone(caplog):
    async def scene() -> None:
        consumed = asyncio.Event()

        async def listener(batch, context):
            await consumed.wait()

        async with Gated(listener) as it:
            it.give(1)
            await settle()
            it.queue.dropped = True
            for _ in range(3):
                advance(61)
                await settle()
            assert (it.back, len(it.queue)) == ([], 1)
            consumed.set()
            await settle()

    run_stepped(scene())
    assert "listener takes too long" not in caplog.text
