"""What loops and polls are given, and what becomes of it at every way in which they end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from tests.unit.client.consuming import QUEUE, messages

from rucola.client.blocking_iterator import BlockingMessageIterator
from rucola.client.caller import LOOK_S, Callers, caller, has_ended, has_succeeded
from rucola.client.deliveries import Deliveries
from rucola.client.loop_thread import LoopThread
from rucola.client.message_iterator import MessageIterator
from rucola.client.process_queue import DeliveryQueue, OrderlyProcessQueue
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError
from rucola.testing.event_loop import advance, run_stepped, settle

OTHER = MessageQueue("T", "broker-a", 2)


class Noted(DeliveryQueue):
    """A queue that notes what was finished."""

    def __init__(self, queue: MessageQueue, now: float) -> None:
        super().__init__(queue, now)
        self.finished: list[int] = []

    def finish_one(self, message: MessageExt) -> None:
        self.finished.append(message.queue_offset)
        super().finish_one(message)

    def finish(self, messages: Sequence[MessageExt]) -> None:
        self.finished += [message.queue_offset for message in messages]
        super().finish(messages)


class NotedOrderly(Noted, OrderlyProcessQueue):
    """A queue in order that notes what was finished."""

    finish_one = OrderlyProcessQueue.finish_one


class Stage:
    """Deliveries with one queue of some messages; ``closed`` has the queues from which nothing may be given."""

    def __init__(self, *offsets: int, kind: type[Noted] = Noted, **rules: Any) -> None:
        self.traced: list[int] = []
        self.closed: set[DeliveryQueue] = set()
        self.finished: list[int] = []
        self.deliveries = Deliveries(
            rules.get("may_give", lambda queue: queue not in self.closed),
            lambda given: self.traced.extend(message.queue_offset for message in given),
        )
        self.queue = self.add(QUEUE, *offsets, kind=kind)

    def add(self, name: MessageQueue, *offsets: int, kind: type[Noted] = Noted) -> DeliveryQueue:
        queue = kind(name, 0.0)
        queue.finished = self.finished
        self.arrive(queue, *offsets)
        return queue

    def arrive(self, queue: DeliveryQueue, *offsets: int) -> None:
        queue.put(messages(*offsets))
        self.deliveries.offer(queue, len(offsets))

    def loop(self) -> MessageIterator:
        return MessageIterator(lambda: self.deliveries)

    def poll(self, count: int = 9) -> list[int]:
        self.deliveries.settle_polls(caller(), self.deliveries.polls_of(caller()))
        polled = self.deliveries.take(count)
        if polled is None:
            return []
        self.deliveries.add_poll(caller(), polled)
        return [message.queue_offset for message in polled.messages]


class Exits(BaseException):
    """Stands for SystemExit, which would also end the event loop."""


# the ways out of a loop: each takes messages 1 and 2, and ends at 2


async def breaks(loop: Any) -> None:
    async for message in loop:
        if message.queue_offset == 2:
            break


async def returns(loop: Any) -> int:
    async for message in loop:
        if message.queue_offset == 2:
            return int(message.queue_offset)
    return 0


async def returns_through_blocks(loop: Any) -> int:
    async with asyncio.timeout(9):
        try:
            async for message in loop:
                for times in range(3):
                    try:
                        if message.queue_offset == 2 and times:
                            return await asyncio.sleep(0, times)
                    finally:
                        await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
    return 0


async def fails(loop: Any) -> None:
    async for message in loop:
        if message.queue_offset == 2:
            int("the application's error")


async def fails_and_goes_on(loop: Any) -> int:
    try:
        async for message in loop:
            if message.queue_offset == 2:
                raise OSError
    except OSError:
        return 1
    return 0


async def fails_in_finally(loop: Any) -> None:
    async for message in loop:
        try:
            await asyncio.sleep(0)
        finally:
            if message.queue_offset == 2:
                raise OSError


async def exits(loop: Any) -> None:
    async for message in loop:
        if message.queue_offset == 2:
            raise Exits


async def is_cancelled(loop: Any) -> None:
    async for message in loop:
        if message.queue_offset == 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)


async def breaks_with_the_iterator_in_a_variable(loop: Any) -> None:
    kept = aiter(loop)
    async for message in kept:
        if message.queue_offset == 2:
            break


async def breaks_a_generator_between(loop: Any) -> None:
    async def between() -> AsyncIterator[MessageExt]:
        async for message in loop:
            yield message

    outer = between()
    async for message in outer:
        if message.queue_offset == 2:
            break
    await outer.aclose()


async def breaks_in_a_block(loop: Any) -> None:
    async with loop as kept:
        async for message in kept:
            if message.queue_offset == 2:
                break


async def fails_in_a_block(loop: Any) -> None:
    async with loop as kept:
        async for message in kept:
            if message.queue_offset == 2:
                raise OSError


async def closes(loop: Any) -> None:
    async for message in loop:
        if message.queue_offset == 2:
            await loop.aclose()


HANDLED = (breaks, returns, returns_through_blocks, breaks_in_a_block)
FAILED = (
    fails,
    fails_and_goes_on,
    fails_in_finally,
    exits,
    is_cancelled,
    breaks_with_the_iterator_in_a_variable,
    breaks_a_generator_between,
    fails_in_a_block,
    closes,
)


class Iterable:
    """Makes a loop's iterator where the loop begins, as a consumer does."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __aiter__(self) -> MessageIterator:
        return self.stage.loop()


async def leave(way: Callable[[Any], Awaitable[Any]], stage: Stage) -> None:
    in_block = way in (breaks_in_a_block, fails_in_a_block, closes)
    with suppress(ValueError, OSError, Exits, asyncio.CancelledError):
        await asyncio.ensure_future(way(stage.loop() if in_block else Iterable(stage)))


@pytest.mark.few
@pytest.mark.parametrize("kind", [Noted, NotedOrderly])
@pytest.mark.parametrize("way", [*HANDLED, *FAILED])
def test_a_way_out_of_a_loop(way, kind):
    async def scene() -> None:
        stage = Stage(1, 2, 3, kind=kind)
        await leave(way, stage)
        gc.collect()
        stage.deliveries.settle_left()
        assert stage.finished == ([1, 2] if way in HANDLED else [1])
        following = stage.loop()  # another loop goes on, in order, with what was not handled
        for wanted in [3] if way in HANDLED else [2, 3]:
            assert (await anext(following)).queue_offset == wanted
        assert stage.traced[:2] == [1, 2]

    run_stepped(scene())


@pytest.mark.parametrize("first", ["kept", "not kept"])  # the second one is shorter than two of the first one
def test_an_iterator_let_go_in_another_function_gives_its_message_back(first):
    """The instruction there is the one of a ``break``; its place may be that of such an instruction in the loop."""

    def discard_at(place: int) -> Callable[[list[Any]], None]:
        names: dict[str, Any] = {}
        exec(f"def discard(kept):\n    {first}\n" + "    kept\n" * place + "    kept.pop()\n", names)
        return names["discard"]

    async def scene() -> None:
        for place in range(120):
            stage = Stage(1, 2)
            kept = [stage.loop()]
            assert (await anext(kept[0])).queue_offset == 1
            discard_at(place)(kept)
            stage.deliveries.settle_left()
            assert stage.finished == []
            assert (await anext(stage.loop())).queue_offset == 1

    run_stepped(scene())


def test_a_next_loop_sees_what_the_last_one_left_even_in_the_same_step():
    async def scene() -> None:
        stage = Stage(1, 2, 3)
        await leave(fails, stage)
        assert stage.poll(1) == [2]  # nothing ran between

    run_stepped(scene())


def test_two_loops_share_the_messages_and_settle_only_their_own():
    async def scene() -> None:
        stage = Stage(1, 2, 3)
        mine, theirs = stage.loop(), stage.loop()
        assert (await anext(mine)).queue_offset == 1
        assert (await anext(theirs)).queue_offset == 2
        assert (await anext(theirs)).queue_offset == 3
        assert stage.finished == [2]
        assert stage.queue.progress == 1

    run_stepped(scene())


def test_an_orderly_queue_gives_its_next_message_after_the_previous_one():
    async def scene() -> None:
        stage = Stage(1, 2, kind=NotedOrderly)
        other = stage.add(OTHER, 7, kind=NotedOrderly)
        mine, theirs = stage.loop(), stage.loop()
        assert (await anext(mine)).queue_offset == 1
        assert (await anext(theirs)).queue_offset == 7
        waiting = asyncio.ensure_future(anext(theirs))
        await settle()
        assert not waiting.done()
        mine.close(handled=True)
        assert (await waiting).queue_offset == 2
        assert (len(other), stage.finished) == (0, [7, 1])

    run_stepped(scene())


def test_a_queue_that_may_not_give_lets_others_pass_and_is_woken():
    async def scene() -> None:
        stage = Stage(1)
        other = stage.add(OTHER, 7)
        stage.closed.add(stage.queue)
        loop = stage.loop()
        assert (await anext(loop)).queue_offset == 7
        waiting = asyncio.ensure_future(anext(loop))
        await settle()
        assert not waiting.done()
        stage.closed.clear()
        stage.deliveries.wake_all()
        assert (await waiting).queue_offset == 1
        assert len(other) == 0

    run_stepped(scene())


def test_nothing_of_a_dropped_queue_is_given_or_settled():
    async def scene() -> None:
        stage = Stage(1, 2)
        loop = stage.loop()
        await anext(loop)
        stage.queue.drop()
        waiting = asyncio.ensure_future(anext(loop))
        await settle()
        assert not waiting.done()
        stage.add(OTHER, 7)
        assert (await waiting).queue_offset == 7
        assert stage.finished == []

    run_stepped(scene())


def test_callers_that_give_up_waiting_leave_nothing_behind_and_pass_the_wake_up_on():
    async def scene() -> None:
        stage = Stage()
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(stage.loop())
        assert not stage.deliveries._waiting
        first, second = (asyncio.ensure_future(anext(stage.loop())) for _ in range(2))
        await settle()
        stage.arrive(stage.queue, 1)  # wakes the first one
        first.cancel()
        assert (await second).queue_offset == 1

    run_stepped(scene())


def test_one_iterator_serves_one_task_at_a_time():
    async def scene() -> None:
        stage = Stage(1, 2, 3)
        loop = stage.loop()
        await anext(loop)

        async def takes_another() -> int:
            return int((await anext(loop)).queue_offset)

        async def takes_and_fails() -> None:
            await anext(loop)
            raise OSError

        with pytest.raises(ClientError, match="each task needs its own loop"):
            await asyncio.ensure_future(takes_another())
        assert (await asyncio.wait_for(anext(loop), 1)).queue_offset == 2  # this task asks, whatever carries the call
        loop.close(handled=True)
        loop = stage.loop()
        assert await asyncio.ensure_future(takes_another()) == 3
        waiting = asyncio.ensure_future(anext(loop))  # the other task succeeded, so 3 is handled
        await settle()
        with pytest.raises(ClientError, match="waits for the next message"):
            await anext(loop)
        assert stage.finished == [1, 2, 3]
        stage.arrive(stage.queue, 4)
        await waiting
        loop.close(handled=True)
        stage.arrive(stage.queue, 5)
        loop = stage.loop()
        with pytest.raises(OSError):
            await asyncio.ensure_future(takes_and_fails())
        assert (await anext(loop)).queue_offset == 5

    run_stepped(scene())


def test_a_closed_iterator_ends_even_while_it_waits():
    async def scene() -> None:
        stage = Stage()
        loop = stage.loop()
        waiting = asyncio.ensure_future(anext(loop, None))
        await settle()
        await loop.aclose()
        await settle()
        assert waiting.done()
        assert await waiting is None
        assert await anext(loop, None) is None

    run_stepped(scene())


def test_a_poll_settles_what_its_caller_and_ended_callers_polled_before():
    async def scene() -> None:
        stage = Stage(1, 2, 3, 4, 5, 6)
        assert stage.poll(2) == [1, 2]

        async def succeeds() -> list[int]:
            return stage.poll(1)

        async def fails() -> None:
            stage.poll(1)
            raise OSError

        async def works_on() -> None:
            assert stage.poll(1) == [4]
            await asyncio.sleep(3600)

        assert await asyncio.ensure_future(succeeds()) == [3]
        with pytest.raises(OSError):
            await asyncio.ensure_future(fails())
        assert stage.finished == [3]
        running = asyncio.ensure_future(works_on())
        await settle()
        assert stage.poll(9) == [5, 6]
        assert stage.finished == [3, 1, 2]
        assert stage.queue.progress == 4
        running.cancel()
        await asyncio.wait([running])
        assert stage.poll(9) == [4]
        assert stage.finished == [3, 1, 2, 5, 6]

    run_stepped(scene())


def test_polls_of_one_caller_at_once_settle_each_message_once_and_forget_none():
    async def scene() -> None:
        stage = Stage(1, 2, 3)
        assert stage.poll(1) == [1]
        before = [stage.deliveries.polls_of(caller()) for _ in range(2)]  # two polls are called before one runs
        for polls in before:
            stage.deliveries.settle_polls(caller(), polls)
            polled = stage.deliveries.take(1)
            assert polled is not None
            stage.deliveries.add_poll(caller(), polled)
        assert stage.finished == [1]
        assert stage.poll(1) == []
        assert stage.finished == [1, 2, 3]

    run_stepped(scene())


def test_a_wait_for_a_settlement_and_one_for_bodies_end_together():
    async def scene() -> None:
        stage = Stage(1)
        loop = stage.loop()
        await anext(loop)
        stage.deliveries.end()
        waits = [asyncio.ensure_future(wait(30)) for wait in (stage.deliveries.settled, stage.deliveries.bodies)]
        await settle()
        loop.close(handled=True)
        await settle()
        assert all(wait.done() for wait in waits)

    run_stepped(scene())


def test_the_end_waits_for_bodies_and_loops_wait_for_the_end():
    async def scene() -> None:
        stage = Stage(1, 2)
        deliveries, loop = stage.deliveries, asyncio.get_running_loop()
        mine, idle = stage.loop(), stage.loop()
        await anext(mine)
        deliveries.end()
        began = loop.time()
        ending = asyncio.ensure_future(deliveries.bodies(30))
        await settle()
        assert not ending.done()
        last = asyncio.ensure_future(anext(mine, None))  # the body has ended
        await settle()
        assert ending.done()
        assert loop.time() - began < 1
        assert stage.finished == [1]
        assert not last.done()  # the consumer is not closed yet
        deliveries.closed.set()
        assert await last is None
        assert await anext(idle, None) is None

    run_stepped(scene())


def test_the_end_waits_for_a_body_only_so_long():
    async def scene() -> None:
        stage = Stage(1, 2)
        loop = stage.loop()
        await anext(loop)
        stage.deliveries.end()
        ending = asyncio.ensure_future(stage.deliveries.bodies(30))
        await settle()
        advance(29)
        await settle()
        assert not ending.done()
        advance(2)
        await ending
        assert stage.finished == []
        assert stage.deliveries.has_body(caller())

    run_stepped(scene())


def test_callers_are_tasks_or_threads():
    async def scene() -> None:
        task = asyncio.current_task()
        assert caller() is task
        assert await asyncio.to_thread(caller) is not task
        failing = asyncio.ensure_future(fail())
        assert not has_ended(failing)
        await asyncio.wait([failing])
        assert (has_ended(failing), has_succeeded(failing)) == (True, False)

    async def fail() -> None:
        raise OSError

    run_stepped(scene())
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert (caller(), has_ended(thread), has_succeeded(thread)) == (threading.current_thread(), True, False)
    assert not has_ended(threading.current_thread())


class Blocking:
    """A stage on a loop thread, and its loops for ``for``."""

    def __init__(self) -> None:
        self.thread = LoopThread("rucola-test")
        self.stage = self.thread.call(Stage, 1, 2, 3)

    def __iter__(self) -> BlockingMessageIterator:
        return BlockingMessageIterator(self.thread, self.stage.loop())

    def finished(self) -> list[int]:
        self.thread.call(self.stage.deliveries.settle_left)
        return self.stage.finished


@pytest.fixture
def blocking():
    one = Blocking()
    yield one
    one.thread.close()


def test_a_blocking_loop_left_by_break_or_return_has_handled_its_message(blocking):
    def first() -> int:
        for message in blocking:
            return int(message.queue_offset)
        return 0

    assert first() == 1
    for message in blocking:
        assert message.queue_offset == 2
        break
    assert blocking.finished() == [1, 2]


def test_a_blocking_loop_left_by_an_error_gives_its_message_back(blocking):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            for message in blocking:
                assert message.queue_offset == 1
                raise KeyboardInterrupt
    with iter(blocking) as loop:
        for _ in loop:
            break
    assert blocking.finished() == [1]


def test_a_blocking_loop_may_be_left_in_another_thread(blocking):
    loop = iter(blocking)
    assert next(loop).queue_offset == 1
    other = threading.Thread(target=loop.close)
    other.start()
    other.join()
    assert blocking.finished() == []
    with pytest.raises(StopIteration):
        next(loop)
    assert next(iter(blocking)).queue_offset == 1


def test_the_end_of_a_task_is_noticed_at_once_and_that_of_a_thread_within_a_second():
    async def scene() -> None:
        loop, ends = asyncio.get_running_loop(), []
        callers = Callers(lambda: ends.append(loop.time()))
        go = threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        callers.add(thread)
        task = asyncio.ensure_future(asyncio.sleep(5))
        callers.add(task)
        callers.add(task)
        await settle()
        began = loop.time()
        advance(3 * LOOK_S)
        await settle()
        assert ends == []  # both still run
        go.set()
        thread.join()
        advance(LOOK_S)
        await settle()
        assert [end - began for end in ends] == pytest.approx([4 * LOOK_S], abs=0.3)
        advance(1)
        await settle()
        assert [end - began for end in ends] == pytest.approx([4 * LOOK_S, 5], abs=0.3)
        assert not loop._scheduled  # no timer without a thread

    run_stepped(scene())


def test_nobody_is_noticed_after_the_close():
    async def scene() -> None:
        ends: list[int] = []
        callers = Callers(lambda: ends.append(1))
        go = threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        tasks = [asyncio.ensure_future(asyncio.sleep(1)) for _ in range(2)]
        await settle()
        callers.add(tasks[0])
        callers.add(thread)
        callers.close()
        callers.add(tasks[1])
        callers.add(thread)
        go.set()
        thread.join()
        advance(5)
        await settle()
        assert ends == []
        assert not asyncio.get_running_loop()._scheduled

    run_stepped(scene())
