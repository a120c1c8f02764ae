"""The listener of a concurrent consumer: how often and when it is called, and the effect of its results."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.unit.client.consuming import QUEUE, messages

from rucola import MessageModel, PushConsumerConfig
from rucola.client.consume_concurrently import TURN_S, ConsumeConcurrently
from rucola.client.listener import ConsumeConcurrentlyStatus, Listener, ReconsumeLater
from rucola.client.process_queue import ProcessQueue
from rucola.runtime.clock import SystemClock
from rucola.testing.event_loop import advance, run_stepped, settle


class Scene:
    """Consumes one queue with a listener; ``back`` holds the messages sent back, with their delay levels."""

    def __init__(self, listener, *, batch=False, send_back=True, **options) -> None:
        self.back: list[tuple[int, int]] = []
        self.send_back = send_back
        self.service = ConsumeConcurrently(
            Listener(listener, batch), PushConsumerConfig(**options), self._send_back, SystemClock()
        )
        self.queue = ProcessQueue(QUEUE, 0.0)

    async def __aenter__(self):
        self.service.start()
        await settle()  # every worker sleeps
        return self

    async def __aexit__(self, *exc_info):
        await self.service.stop(5)

    def give(self, *queue_offsets: int) -> None:
        found = messages(*queue_offsets)
        self.queue.put(found)
        self.service.submit(self.queue, found)

    async def _send_back(self, message, delay_level):
        self.back.append((message.queue_offset, delay_level))
        return self.send_back


async def within(seconds: float, reached) -> None:
    """Waits for threads, in real time; no time passes for the consumer."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        await asyncio.sleep(0)


def test_a_coroutine_gets_each_message():
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append(message.queue_offset)

        async with Scene(listener) as it:
            it.give(1, 2, 3)
            await settle()
            assert (got, it.queue.progress, it.back) == ([1, 2, 3], 4, [])

    run_stepped(scene())


def test_an_object_with_an_asynchronous_call_is_a_coroutine_function():
    class Callable:
        async def __call__(self, message):
            """Consumes messages in place of the listener."""

    assert Listener(Callable(), False).on_loop
    assert not Listener(print, False).on_loop


def test_a_function_runs_in_a_thread():
    async def scene() -> None:
        got, done = [], asyncio.Event()
        loop = asyncio.get_running_loop()

        def listener(message):
            got.append((message.queue_offset, threading.current_thread() is threading.main_thread()))
            if len(got) == 3:
                loop.call_soon_threadsafe(done.set)

        async with Scene(listener) as it:
            it.give(1, 2, 3)
            await done.wait()
        assert sorted(got) == [(1, False), (2, False), (3, False)]
        assert it.queue.progress == 4

    run_stepped(scene())


def test_a_slow_function_holds_nobody_up():
    async def scene() -> None:
        gate, others = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        got = []

        def listener(message):
            if message.queue_offset == 1:
                gate.wait()
            got.append(message.queue_offset)
            if len(got) == 4:
                loop.call_soon_threadsafe(others.set)

        async with Scene(listener) as it:
            it.give(1, 2, 3, 4, 5)
            await others.wait()
            assert sorted(got) == [2, 3, 4, 5]
            gate.set()
        assert it.queue.progress == 6

    run_stepped(scene())


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_calls_at_a_time_than_configured(limit):
    async def scene() -> None:
        gates = {offset: asyncio.Event() for offset in range(1, 7)}
        running = set()

        async def listener(message):
            running.add(message.queue_offset)
            await gates[message.queue_offset].wait()
            running.discard(message.queue_offset)

        async with Scene(listener, consume_thread_max=limit) as it:
            it.give(1, 2, 3)
            it.give(4, 5, 6)
            for first in range(1, 7):
                await settle()
                assert running == set(range(first, min(first + limit, 7)))
                gates[first].set()
            await settle()
            assert it.queue.progress == 7

    run_stepped(scene())


def test_a_message_behind_a_slow_one_is_consumed_and_progress_waits():
    async def scene() -> None:
        gate = asyncio.Event()

        async def listener(message):
            if message.queue_offset == 1:
                await gate.wait()

        async with Scene(listener) as it:
            it.give(1, 2, 3)
            await settle()
            assert (len(it.queue), it.queue.progress) == (1, 1)
            gate.set()
            await settle()
            assert it.queue.progress == 4

    run_stepped(scene())


FAILURES = [
    (ValueError("no"), 0),
    (ReconsumeLater(), 0),
    (ReconsumeLater(5), 5),
    (ReconsumeLater(-1), -1),
    (ConsumeConcurrentlyStatus.RECONSUME_LATER, 0),
    (False, 0),
    (ReconsumeLater, 0),
    (asyncio.CancelledError(), 0),
]


@pytest.mark.parametrize(("outcome", "delay_level"), FAILURES, ids=str)
def test_failed_messages_go_back(outcome, delay_level, caplog):
    async def scene() -> None:
        async def listener(message):
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        async with Scene(listener) as it:
            it.give(1, 2)
            await settle()
            assert sorted(it.back) == [(1, delay_level), (2, delay_level)]
            assert (it.queue.progress, it.queue.failed) == (3, 2)

    run_stepped(scene())
    logged = [(record.rucola_event, record.levelname, record.exc_info is not None) for record in caplog.records]
    if isinstance(outcome, ReconsumeLater | ConsumeConcurrentlyStatus):
        assert logged == []
    else:
        assert logged == [("listener failed", "WARNING", True)] * 2
    for record in caplog.records:
        fields = record.rucola_fields
        assert (fields["queue"], fields["count"], fields["ids"][0]) == (QUEUE, 1, "U")


@pytest.mark.parametrize("answer", [None, ConsumeConcurrentlyStatus.CONSUME_SUCCESS])
def test_nothing_and_success_are_success(answer):
    async def scene() -> None:
        async def listener(message):
            return answer

        async with Scene(listener) as it:
            it.give(1)
            await settle()
            assert (it.back, it.queue.progress) == ([], 2)

    run_stepped(scene())


def test_a_batch_has_messages_of_one_pull_and_a_context():
    async def scene() -> None:
        got = []

        async def listener(batch, context):
            got.append((context.message_queue, [message.queue_offset for message in batch]))

        async with Scene(listener, batch=True, consume_message_batch_max_size=3) as it:
            it.give(1, 2, 3, 4)
            it.give(5)
            await settle()
            assert got == [(QUEUE, [1, 2, 3]), (QUEUE, [4]), (QUEUE, [5])]
            assert it.queue.progress == 6

    run_stepped(scene())


@pytest.mark.parametrize(("ack_index", "back"), [(0, [2, 3]), (-1, [1, 2, 3]), (2, []), (9, []), (None, [])])
def test_the_rest_of_a_batch_goes_back(ack_index, back):
    async def scene() -> None:
        async def listener(batch, context):
            context.ack_index, context.delay_level_when_next_consume = ack_index, 7

        async with Scene(listener, batch=True, consume_message_batch_max_size=3) as it:
            it.give(1, 2, 3)
            await settle()
            assert it.back == [(offset, 7) for offset in back]
            assert it.queue.progress == 4

    run_stepped(scene())


def test_messages_that_cannot_be_sent_back_come_again_here_after_5_s():
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append((message.queue_offset, message.reconsume_times))
            if len(got) <= 2:
                raise ValueError("no")

        async with Scene(listener, send_back=False) as it:
            it.give(1, 2)
            await settle()
            assert (got, it.queue.progress, len(it.queue)) == ([(1, 0), (2, 0)], None, 2)
            advance(4.9)
            await settle()
            assert len(got) == 2
            advance(0.2)
            await settle()
            assert sorted(got[2:]) == [(1, 1), (2, 1)]
            assert it.queue.progress == 3

    run_stepped(scene())


def test_a_defect_in_sending_back_loses_nothing_and_ends_no_worker(caplog):
    async def scene() -> None:
        failures = [OSError("broken"), None]

        async def listener(message):
            if message.queue_offset == 1 and failures:
                raise ValueError("no")

        async with Scene(listener, consume_thread_max=1) as it:

            async def broken(message, delay_level):
                failure = failures.pop(0)
                if failure:
                    raise failure
                return True

            it.service._send_back = broken
            it.give(1)
            await settle()
            assert len(it.queue) == 1
            advance(5.1)
            await settle()
            assert it.queue.progress == 2

    run_stepped(scene())
    assert "listener's result not handled" in caplog.text


def test_broadcasting_drops_what_failed(caplog):
    async def scene() -> None:
        async def listener(message):
            raise ReconsumeLater

        async with Scene(listener, message_model=MessageModel.BROADCASTING) as it:
            it.give(1)
            await settle()
            assert (it.back, it.queue.progress) == ([], 2)

    run_stepped(scene())
    assert "messages failed and are dropped" in caplog.text


def test_a_dropped_queue_is_not_consumed_and_what_is_under_way_does_not_count():
    async def scene() -> None:
        gate, got = asyncio.Event(), []

        async def listener(message):
            got.append(message.queue_offset)
            await gate.wait()

        async with Scene(listener, consume_thread_max=1) as it:
            it.give(1, 2)
            await settle()
            it.queue.dropped = True
            gate.set()
            await settle()
            assert (got, len(it.queue), it.queue.progress) == ([1], 2, None)

    run_stepped(scene())


def test_a_listener_that_takes_too_long_loses_its_message_once():
    async def scene() -> None:
        gate = asyncio.Event()

        async def listener(message):
            await gate.wait()
            raise ValueError("much too late")

        async with Scene(listener, consume_timeout_min=2) as it:
            it.give(1)
            await settle()
            advance(61)
            await settle()
            assert it.back == []
            advance(61)
            await settle()
            assert (it.back, it.queue.progress) == ([(1, 3)], 2)
            gate.set()
            await settle()
            advance(70)
            await settle()
            assert it.back == [(1, 3)]

    run_stepped(scene())


def test_stopping_waits_for_what_runs_and_begins_nothing():
    async def scene() -> None:
        gate, got = asyncio.Event(), []

        async def listener(message):
            await gate.wait()
            got.append(message.queue_offset)

        it = Scene(listener, consume_thread_max=2)
        async with it:
            it.give(1, 2, 3)
            await settle()
            stopping = asyncio.ensure_future(it.service.stop(60))
            await settle()
            assert not stopping.done()
            gate.set()
            await stopping
            assert (got, it.queue.progress, len(it.queue)) == ([1, 2], 3, 1)

    run_stepped(scene())


def test_stopping_waits_no_longer_than_told():
    async def scene() -> None:
        ended = []

        async def listener(message):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(message.queue_offset)
                raise

        it = Scene(listener)
        async with it:
            it.give(1)
            await settle()
            stopping = asyncio.ensure_future(it.service.stop(60))
            await settle()
            advance(59)
            await settle()
            assert not stopping.done()
            advance(2)
            await stopping
            assert (ended, len(it.queue)) == ([1], 1)

    run_stepped(scene())


def test_a_listener_that_never_waits_lets_others_run():
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append(message.queue_offset)
            advance(TURN_S / 10)

        async with Scene(listener) as it:
            await settle()
            it.give(*range(1000))
            await asyncio.sleep(0)
            assert 0 < len(got) <= 10
            await settle(3)
            assert len(got) <= 50  # this also holds with several workers
            while len(got) < 1000:
                await asyncio.sleep(0)

    run_stepped(scene())


@pytest.mark.parametrize("form", ["coroutine", "function"])
@pytest.mark.parametrize(("ack_index", "back"), [(None, []), (0, [2, 3]), ("fails", [1, 2, 3])])
def test_a_batch_listener_may_empty_its_list(ack_index, back, form):
    got = []

    def function(batch, context):
        while batch:
            got.append(batch.pop(0).queue_offset)
        if ack_index == "fails":
            raise ReconsumeLater(2)
        context.ack_index = ack_index

    async def coroutine(batch, context):
        await asyncio.sleep(0)
        return function(batch, context)

    async def scene() -> None:
        listener = coroutine if form == "coroutine" else function
        async with Scene(listener, batch=True, consume_message_batch_max_size=3) as it:
            it.give(1, 2, 3)
            await within(10, lambda: not len(it.queue))
            assert (got, [offset for offset, _ in it.back]) == ([1, 2, 3], back)

    run_stepped(scene())


@pytest.mark.parametrize("outcome", [ValueError("no"), None])
def test_messages_consumed_directly(outcome):
    async def scene() -> None:
        async def listener(message):
            if outcome:
                raise outcome
            return ConsumeConcurrentlyStatus.RECONSUME_LATER

        async with Scene(listener) as it:
            (message,) = messages(1)
            if outcome:
                assert (await it.service.consume_directly(message, None)).error is outcome
            else:
                answer = await it.service.consume_directly(message, None)
                assert answer is ConsumeConcurrentlyStatus.RECONSUME_LATER
            assert it.queue.progress is None

    run_stepped(scene())
