"""Whatever a listener raises, returns or calls: messages fail, workers and queues go on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
import types
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.unit.client.consuming import QUEUE, messages

from rucola import PushConsumerConfig
from rucola.client.consume_concurrently import ConsumeConcurrently
from rucola.client.consume_orderly import ConsumeOrderly
from rucola.client.listener import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, Listener, ReconsumeLater
from rucola.client.process_queue import OrderlyProcessQueue, ProcessQueue
from rucola.runtime.clock import SystemClock
from rucola.testing.event_loop import advance, run_stepped, settle

KINDS = ["concurrent", "orderly"]


class Scene:
    """Consumes one queue with one worker; ``back`` holds the offsets of messages that were sent back."""

    def __init__(self, kind: str, listener: Callable[..., object], *, batch: bool = False, **options: object) -> None:
        self.kind = kind
        self.back: list[int] = []
        self.progress: list[int] = []
        options = {"consume_thread_max": 1, "suspend_current_queue_time_ms": 1_000} | options
        config = PushConsumerConfig(consume_orderly=kind == "orderly", **options)
        self.queue = ProcessQueue(QUEUE, 0.0)
        if kind == "orderly":
            self.queue = OrderlyProcessQueue(QUEUE, 0.0)
            self.service = ConsumeOrderly(Listener(listener, batch), config, self._dead_letter, self._note)
        else:
            self.service = ConsumeConcurrently(Listener(listener, batch), config, self._send_back, SystemClock())

    async def __aenter__(self) -> Scene:
        self.service.start()
        if isinstance(self.queue, OrderlyProcessQueue):
            self.lock()
            self.service.add(self.queue)
        await settle()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.service.stop(5)

    def lock(self) -> None:
        if isinstance(self.queue, OrderlyProcessQueue):
            self.queue.locked_at = asyncio.get_running_loop().time()

    def give(self, *queue_offsets: int) -> None:
        found = messages(*queue_offsets)
        self.queue.put(found)
        self.service.submit(self.queue, found)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.lock()
            advance(1)
            await settle()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Waits for threads; no time passes for the consumer."""
        end = time.monotonic() + 20
        while not reached():
            assert time.monotonic() < end
            await asyncio.sleep(0)

    async def _send_back(self, message, delay_level):
        self.back.append(message.queue_offset)
        return True

    async def _dead_letter(self, message):
        self.back.append(message.queue_offset)
        return True

    def _note(self, queue, consumer_offset):
        self.progress.append(consumer_offset)


class Odd(BaseException):
    """Stands for pytest's ``Failed`` and for the cancellations of other libraries."""


RAISED = [ValueError, Odd, SystemExit, StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError]
RAISED += [concurrent.futures.CancelledError]


def in_form(form: str, got: list[int], outcome: Callable[[int], object]) -> Callable[..., object]:
    """A listener that notes offsets in ``got`` and then does what ``outcome`` does with the number of the call."""

    async def coroutine(message):
        got.append(message.queue_offset)
        await asyncio.sleep(0)
        return outcome(len(got))

    def function(message):
        got.append(message.queue_offset)
        return outcome(len(got))

    async def at_once(message):
        got.append(message.queue_offset)
        return outcome(len(got))

    forms = {"coroutine": coroutine, "function": function, "at once": at_once}
    return forms.get(form, lambda message: coroutine(message) if message else None)


FORMS = ["coroutine", "at once", "function", "function that returns a coroutine"]


@pytest.mark.few
@pytest.mark.parametrize("error", [*RAISED, KeyboardInterrupt])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_of_a_listener_fails_its_message_and_nothing_else(kind, form, error, caplog):
    if error is KeyboardInterrupt and form != "function":
        pytest.skip("on the event loop, Ctrl-C passes")
    got: list[int] = []

    def outcome(call: int) -> None:
        if call <= 2:
            raise error

    async def scene() -> None:
        async with Scene(kind, in_form(form, got, outcome)) as it:
            it.give(1, 2)
            if kind == "concurrent":
                await it.until(lambda: len(it.queue) == 0)
                it.give(3)
                await it.until(lambda: len(it.queue) == 0)
                assert (got, sorted(it.back), it.queue.progress, it.queue.failed) == ([1, 2, 3], [1, 2], 4, 2)
            else:
                while len(it.queue):
                    await it.pass_time(1)
                assert (got, it.progress) == ([1, 1, 1, 2], [2, 3])

    run_stepped(scene())
    assert [vars(record).get("rucola_event") for record in caplog.records] == ["listener failed"] * 2
    for record in caplog.records:
        raised = record.exc_info[1]
        assert isinstance(raised, error) or isinstance(raised.__cause__, error)


@pytest.mark.ends_with_loop
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_in_a_listener_on_the_event_loop_passes(kind):
    async def listener(message):
        raise KeyboardInterrupt

    async def scene() -> None:
        it = await Scene(kind, listener).__aenter__()
        it.give(1)
        await settle()

    with pytest.raises(KeyboardInterrupt):
        run_stepped(scene())


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_somebody_cancels_starts_again_and_its_message_comes_again(kind, waits, caplog):
    """As some programs do at their end: they cancel all tasks of the loop."""
    got: list[int] = []
    hold = asyncio.Event()

    async def listener(message):
        got.append(message.queue_offset)
        if len(got) == 1 and waits:
            await hold.wait()

    async def scene() -> None:
        async with Scene(kind, listener) as it:
            if waits:
                it.give(1)
                await settle()
                assert got == [1]
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await settle()
            it.give(2)
            await it.pass_time(7)
            assert sorted(got) == ([1, 1, 2] if waits else [2])
            assert len(it.queue) == 0
            assert it.back == []

    run_stepped(scene())
    assert {record.rucola_event for record in caplog.records} == {"background task was cancelled, starts again"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_whose_worker_somebody_cancels_loses_nothing(kind):
    gate, got = threading.Event(), []

    def listener(message):
        got.append(message.queue_offset)
        gate.wait(10)

    async def scene() -> None:
        async with Scene(kind, listener) as it:
            it.give(1, 2)
            await it.until(lambda: got == [1])
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await settle()
            gate.set()
            await it.pass_time(1)
            while len(it.queue):
                await it.pass_time(1)
            assert got == [1, 2] if kind == "concurrent" else [1, 1, 2]
            assert it.back == []

    run_stepped(scene())


@pytest.mark.ends_with_loop
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outcome", [None, ValueError("no")], ids=["returns", "raises"])
def test_the_end_of_the_loop_ends_workers_even_if_a_listener_swallows_its_cancellation(kind, outcome):
    swallowed = []

    async def listener(message):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.append(message.queue_offset)
            if outcome:
                raise outcome from None

    async def scene() -> None:
        it = await Scene(kind, listener).__aenter__()
        it.give(1, 2)
        await settle()

    run_stepped(scene())  # does not return as long as a task is left
    assert swallowed == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_listener_that_ignores_the_end_does_not_hold_up_the_shutdown_for_ever(kind, caplog):
    async def listener(message):
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    over = asyncio.Event()

    async def scene() -> None:
        async with Scene(kind, listener) as it:
            it.give(1)
            await settle()
            stopping = asyncio.ensure_future(it.service.stop(60))
            await settle()
            try:
                await it.pass_time(59)
                assert not stopping.done()
                await it.pass_time(2 + 5)
                assert stopping.done()
            finally:
                over.set()
                await settle()

    run_stepped(scene())
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.rucola_event == "background tasks ignore that they are cancelled"


@pytest.mark.parametrize("kind", KINDS)
def test_a_listener_that_takes_a_cancellation_back_while_the_consumer_stops_ends(kind):
    """Stopping, every ``CancelledError`` passes, and the message was not handled."""

    async def listener(message):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
            raise

    async def scene() -> None:
        async with Scene(kind, listener) as it:
            it.give(1)
            await settle()
            stopping = asyncio.ensure_future(it.service.stop(1))
            await settle()
            advance(2)
            await settle()
            assert stopping.done()
            assert (it.back, it.progress, len(it.queue)) == ([], [], 1)

    run_stepped(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_the_call_lasts_until_a_returned_awaitable_is_done(kind):
    async def scene() -> None:
        gate, got, loop = asyncio.Event(), [], asyncio.get_running_loop()

        async def work(message):
            got.append((message.queue_offset, asyncio.get_running_loop() is loop))
            await gate.wait()

        async with Scene(kind, lambda message, *others: work(message)) as it:
            it.give(1)
            await it.until(lambda: bool(got))
            await settle()
            assert (got, len(it.queue)) == ([(1, True)], 1)
            gate.set()
            await settle()
            assert len(it.queue) == 0

    run_stepped(scene())


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_call_lasts_until_a_pool_s_future_is_done(kind, fails):
    async def scene() -> None:
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        got = []

        def listener(message):
            got.append(message.queue_offset)
            return future if len(got) == 1 else None

        async with Scene(kind, listener, max_reconsume_times=0) as it:
            it.give(1)
            await it.until(lambda: bool(got))
            await settle()
            assert len(it.queue) == 1
            if fails:
                future.set_exception(SystemExit(3))
            else:
                future.set_result(None)
            await it.until(lambda: len(it.queue) == 0)
            assert it.back == ([1] if fails else [])

    run_stepped(scene())


STATUSES = [
    (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, True),
    (ConsumeOrderlyStatus.SUCCESS, True),
    (ConsumeOrderlyStatus.COMMIT, True),
    (ConsumeConcurrentlyStatus.RECONSUME_LATER, False),
    (ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, False),
    (True, True),
    (False, False),
    ("done", True),
    (ValueError("returned"), False),
    (ReconsumeLater(), False),
]


@pytest.mark.few
@pytest.mark.parametrize(("result", "good"), STATUSES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_result_means_the_same_for_every_consumer(kind, form, result, good):
    got: list[int] = []

    async def scene() -> None:
        async with Scene(kind, in_form(form, got, lambda call: result), max_reconsume_times=0) as it:
            it.give(1)
            await it.until(lambda: len(it.queue) == 0)
            assert it.back == ([] if good else [1])
            assert got == [1]

    run_stepped(scene())


class Gone:
    """Its weak references are dead at once."""


class RaisingClass:
    @property
    def __class__(self):
        raise Odd


class RaisingAttributes:
    def __getattr__(self, name):
        raise Odd(name)

    def raising(self, *_):
        raise Odd

    __bool__ = __eq__ = __hash__ = __repr__ = __len__ = raising


class Meta(type):
    __hash__ = None

    def __eq__(cls, other):
        raise Odd

    @property
    def __name__(cls):
        raise Odd


class RaisingMeta(metaclass=Meta):
    def __repr__(self):
        raise Odd


class LyingClass:
    __class__ = types.GeneratorType


class RaisingAwait:
    def __await__(self):
        raise Odd


class WrongAwait:
    def __await__(self):
        return 5


class EndlessAwait:
    def __await__(self):
        return self
        yield


class RaisingError(Exception):
    __class__ = RaisingClass.__class__

    def __str__(self):
        raise Odd


UNFIT = {
    "dead reference": lambda: weakref.proxy(Gone()),
    "class": RaisingClass,
    "attributes": RaisingAttributes,
    "metaclass": RaisingMeta,
    "lie": LyingClass,
}
UNFIT_AWAITABLES = {"raises": RaisingAwait, "wrong": WrongAwait, "endless": EndlessAwait}


@pytest.mark.few
@pytest.mark.parametrize("result", [*UNFIT, *UNFIT_AWAITABLES])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_that_cannot_be_inspected_end_no_worker(kind, form, result, caplog):
    """They are like any other result; an awaitable that cannot be awaited has failed."""
    good, make = result in UNFIT, (UNFIT | UNFIT_AWAITABLES)[result]
    got: list[int] = []

    async def scene() -> None:
        listener = in_form(form, got, lambda call: make() if call == 2 else None)
        async with Scene(kind, listener, max_reconsume_times=0) as it:
            it.give(1, 2, 3)
            await it.until(lambda: len(it.queue) == 0)
            assert (got, it.back, it.queue.failed) == ([1, 2, 3], [] if good else [2], 0 if good else 1)
            assert not [line for line in caplog.records if line.levelno > logging.WARNING]

    run_stepped(scene())


@pytest.mark.few
@pytest.mark.parametrize("result", [*UNFIT, *UNFIT_AWAITABLES])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_a_batch_that_cannot_be_inspected_are_failures(kind, plain, result):
    make = (UNFIT | UNFIT_AWAITABLES)[result]

    def function(batch, context):
        return make()

    async def coroutine(batch, context):
        return make()

    async def scene() -> None:
        async with Scene(kind, function if plain else coroutine, batch=True, max_reconsume_times=0) as it:
            it.give(1)
            await it.until(lambda: len(it.queue) == 0)
            assert it.back == [1]

    run_stepped(scene())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_cannot_be_inspected_is_a_failure(kind, form):
    def outcome(call: int) -> None:
        if call == 1:
            raise RaisingError

    async def scene() -> None:
        got: list[int] = []
        async with Scene(kind, in_form(form, got, outcome), max_reconsume_times=0) as it:
            it.give(1, 2)
            await it.until(lambda: len(it.queue) == 0)
            assert (got, it.back) == ([1, 2], [1])

    run_stepped(scene())


@pytest.mark.parametrize("form", ["coroutine", "function"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_caller_knows_that_it_is_inside_a_call(kind, form):
    async def scene() -> None:
        seen: list[bool] = []
        loop = asyncio.get_running_loop()
        later: list[asyncio.Task[bool]] = []

        async def asks() -> bool:
            return it.service.is_inside_call()

        async def asks_later(gate: asyncio.Event) -> bool:
            await gate.wait()
            return it.service.is_inside_call()

        async def coroutine(message):
            seen.append(it.service.is_inside_call())
            seen.append(await asyncio.ensure_future(asks()))
            seen.append(other.service.is_inside_call())
            later.append(asyncio.ensure_future(asks_later(gate)))

        def function(message):
            seen.append(it.service.is_inside_call())
            seen.append(asyncio.run_coroutine_threadsafe(asks(), loop).result(10))
            seen.append(other.service.is_inside_call())

        gate = asyncio.Event()
        it = Scene(kind, coroutine if form == "coroutine" else function)
        other = Scene(kind, coroutine)
        async with it, other:
            it.give(1)
            await it.until(lambda: len(it.queue) == 0)
            assert seen == [True, True, False]
            assert not it.service.is_inside_call()
            gate.set()
            assert not any([await task for task in later])  # the call that started the task is over
            (message,) = messages(5)
            await it.service.consume_directly(message, None)
            assert seen[3:] == [True, True, False]

    run_stepped(scene())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_outlives_its_call_is_not_inside_a_later_one(kind, form):
    """The first call starts a task; the second one runs in the same slot, and starts another one."""
    if kind == "concurrent" and form in {"coroutine", "at once"}:
        pytest.skip("to know it, each message would have to set a context variable")

    async def scene() -> None:
        loop, ask, end = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        asking: list[asyncio.Future[bool]] = []

        async def asks() -> bool:
            await ask.wait()
            return it.service.is_inside_call()

        async def coroutine(message):
            asking.append(asyncio.ensure_future(asks()))
            if message.queue_offset == 2 or form != "coroutine":
                await asyncio.sleep(0)
            if message.queue_offset == 2:
                await end.wait()

        def function(message):
            asking.append(asyncio.run_coroutine_threadsafe(asks(), loop))
            if message.queue_offset == 2:
                asyncio.run_coroutine_threadsafe(end.wait(), loop).result(20)

        listener = {
            "function": function,
            "function that returns a coroutine": lambda message: coroutine(message) if message else None,
        }
        async with Scene(kind, listener.get(form, coroutine)) as it:
            it.give(1, 2)
            await it.until(lambda: len(asking) == 2)
            await settle()
            ask.set()
            await it.until(lambda: all(one.done() for one in asking))
            assert [one.result() for one in asking] == [False, True]
            end.set()
            await it.until(lambda: len(it.queue) == 0)

    run_stepped(scene())
