"""The listener of an orderly consumer: one batch of a queue after another, only under a lock."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.consuming import messages

from rucola import MessageModel, MessageQueue, PushConsumerConfig
from rucola.client.consume_orderly import ConsumeOrderly
from rucola.client.listener import ConsumeOrderlyStatus, Listener, ReconsumeLater
from rucola.client.process_queue import OrderlyProcessQueue
from rucola.testing.event_loop import advance, run_stepped, settle

SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class Scene:
    """Consumes one locked queue with a listener; ``dead`` holds dead letters, ``progress`` the recorded offsets."""

    def __init__(self, listener, *, batch=False, dead_letter=True, **options) -> None:
        self.dead: list[int] = []
        self.dead_letter = dead_letter
        self.progress: list[int] = []
        config = PushConsumerConfig(consume_orderly=True, **options)
        self.service = ConsumeOrderly(Listener(listener, batch), config, self._dead_letter, self._note)
        self.queue = self.new_queue(1)

    def new_queue(self, queue_id: int) -> OrderlyProcessQueue:
        return OrderlyProcessQueue(MessageQueue("T", "broker-a", queue_id), 0.0)

    async def __aenter__(self):
        self.service.start()
        self.lock()
        self.service.add(self.queue)
        return self

    async def __aexit__(self, *exc_info):
        await self.service.stop(5)

    def lock(self) -> None:
        self.queue.locked_at = asyncio.get_running_loop().time()

    def give(self, *queue_offsets: int, queue=None) -> None:
        found = messages(*queue_offsets)
        target = self.queue if queue is None else queue
        target.put(found)
        self.service.submit(target, found)

    async def _dead_letter(self, message):
        self.dead.append(message.queue_offset)
        return self.dead_letter

    def _note(self, queue, consumer_offset):
        self.progress.append(consumer_offset)


@pytest.mark.parametrize("answer", [None, ConsumeOrderlyStatus.SUCCESS])
def test_one_after_the_other(answer):
    async def scene() -> None:
        gate, running = asyncio.Event(), []

        async def listener(message):
            running.append(message.queue_offset)
            await gate.wait()
            return answer

        async with Scene(listener) as it:
            it.give(1, 2)
            it.give(3)
            await settle()
            assert (running, it.progress) == ([1], [])
            gate.set()
            await settle()
            assert (running, it.progress) == ([1, 2, 3], [2, 3, 4])
            assert len(it.queue) == 0

    run_stepped(scene())


def test_queues_do_not_wait_for_each_other_but_share_the_calls():
    async def scene() -> None:
        gate, running = asyncio.Event(), []

        async def listener(message):
            running.append(message.queue_offset)
            await gate.wait()

        async with Scene(listener, consume_thread_max=2) as it:
            others = [it.new_queue(2), it.new_queue(3)]
            for queue in others:
                queue.locked_at = it.queue.locked_at
                it.service.add(queue)
            it.give(1)
            it.give(11, queue=others[0])
            it.give(21, queue=others[1])
            await settle()
            assert sorted(running) == [1, 11]
            gate.set()
            await settle()
            assert sorted(running) == [1, 11, 21]

    run_stepped(scene())


@pytest.mark.parametrize(
    "failure", [ValueError("no"), ReconsumeLater(), SUSPEND, False, asyncio.CancelledError()], ids=str
)
def test_failed_messages_come_again_before_anything_else(failure):
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append((message.queue_offset, message.reconsume_times))
            if len(got) <= 2:
                if isinstance(failure, BaseException):
                    raise failure
                return failure
            return None

        async with Scene(listener) as it:
            it.give(1, 2)
            await settle()
            advance(0.9)
            await settle()
            assert (got, it.progress) == ([(1, 0)], [])
            advance(0.2)
            await settle()
            assert got[1:] == [(1, 1)]
            advance(1.1)
            await settle()
            assert got[2:] == [(1, 2), (2, 0)]
            assert it.progress == [2, 3]

    run_stepped(scene())


@pytest.mark.parametrize(("wanted_ms", "rest_s"), [(1, 0.01), (5_000, 5), (40_000, 30), (-1, 2)])
def test_the_pause_can_be_chosen(wanted_ms, rest_s):
    async def scene() -> None:
        calls = []

        async def listener(batch, context):
            calls.append(len(batch))
            context.suspend_current_queue_time_ms = wanted_ms
            return SUSPEND

        async with Scene(listener, batch=True, suspend_current_queue_time_ms=2_000) as it:
            it.give(1)
            await settle()
            if rest_s > 1:
                advance(rest_s - 0.5)
                await settle()
                assert calls == [1]
            it.lock()
            advance(0.6 if rest_s > 1 else 0.02)
            await settle()
            assert calls == [1, 1]

    run_stepped(scene())


def test_a_message_that_failed_too_often_is_a_dead_letter():
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append((message.queue_offset, message.reconsume_times))
            if message.queue_offset == 1:
                raise ReconsumeLater

        async with Scene(listener, max_reconsume_times=2) as it:
            it.give(1, 2)
            for _ in range(3):
                await settle()
                advance(1.1)
            await settle()
            assert got == [(1, 0), (1, 1), (1, 2), (2, 0)]
            assert (it.dead, it.progress) == ([1], [2, 3])

    run_stepped(scene())


def test_without_a_limit_it_comes_for_ever():
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append(message.reconsume_times)
            raise ReconsumeLater

        async with Scene(listener) as it:
            it.give(1)
            for _ in range(40):
                await settle(10)
                it.lock()
                advance(1.1)
            assert got[:30] == list(range(30))
            assert it.dead == []

    run_stepped(scene())


def test_messages_that_cannot_become_dead_letters_come_again():
    async def scene() -> None:
        async def listener(message):
            raise ReconsumeLater

        async with Scene(listener, max_reconsume_times=0, dead_letter=False) as it:
            it.give(1, 2)
            await settle()
            assert (it.dead, it.progress, len(it.queue)) == ([1], [], 2)
            it.dead_letter = True
            advance(1.1)
            await settle()
            assert (it.dead, it.progress) == ([1, 1, 2], [2, 3])

    run_stepped(scene())


def test_a_batch_commits_as_the_listener_says():
    async def scene() -> None:
        answers = [
            ConsumeOrderlyStatus.SUCCESS,
            ConsumeOrderlyStatus.ROLLBACK,
            ConsumeOrderlyStatus.SUCCESS,
            ConsumeOrderlyStatus.COMMIT,
            ConsumeOrderlyStatus.COMMIT,
        ]
        got = []

        async def listener(batch, context):
            context.auto_commit = False
            got.append([message.queue_offset for message in batch])
            return answers.pop(0)

        async with Scene(listener, batch=True, consume_message_batch_max_size=2) as it:
            it.give(1, 2, 3, 4, 5)
            await settle()
            assert (got, it.progress) == ([[1, 2], [3, 4]], [])
            advance(1.1)
            await settle()
            assert got[2:] == [[1, 2], [3, 4], [5]]
            assert it.progress == [5, 6]

    run_stepped(scene())


@pytest.mark.parametrize("answer", [ConsumeOrderlyStatus.ROLLBACK, ConsumeOrderlyStatus.COMMIT])
def test_with_auto_commit_rollback_and_commit_are_success(answer):
    async def scene() -> None:
        async def listener(batch, context):
            return answer

        async with Scene(listener, batch=True) as it:
            it.give(1)
            await settle()
            assert it.progress == [2]

    run_stepped(scene())


def test_without_the_lock_nothing_is_consumed():
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append(message.queue_offset)

        async with Scene(listener) as it:
            it.queue.locked_at = None
            it.give(1)
            await settle()
            advance(0.2)
            await settle()
            assert got == []
            it.lock()
            advance(0.2)
            await settle()
            assert got == [1]
            advance(31)  # the lock's last confirmation is too old
            it.give(2)
            await settle()
            assert got == [1]

    run_stepped(scene())


def test_broadcasting_needs_no_lock():
    async def scene() -> None:
        async def listener(message):
            """Consumes messages as the listener."""

        async with Scene(listener, message_model=MessageModel.BROADCASTING) as it:
            it.queue.locked_at = None
            it.give(1)
            await settle()
            assert it.progress == [2]

    run_stepped(scene())


def test_a_queue_is_given_up_when_its_listener_is_done():
    async def scene() -> None:
        gate = asyncio.Event()

        async def listener(message):
            await gate.wait()

        async with Scene(listener) as it:
            it.give(1, 2)
            await settle()
            it.queue.dropped = True
            removing = asyncio.ensure_future(it.service.remove(it.queue))
            await settle()
            advance(0.6)
            assert not await removing
            assert it.queue.try_unlock_times == 1
            gate.set()
            assert await it.service.remove(it.queue)
            assert (it.progress, len(it.queue)) == ([], 2)

    run_stepped(scene())


def test_a_queue_is_given_up_after_20_s_anyway():
    async def scene() -> None:
        over = asyncio.Event()

        async def listener(message):
            await over.wait()

        async with Scene(listener) as it:
            it.give(1)
            await settle()
            it.queue.dropped = True
            for seconds, expected in ((10, False), (9, False), (1.1, True)):
                removing = asyncio.ensure_future(it.service.remove(it.queue))
                await settle()
                advance(seconds)
                assert await removing is expected
            over.set()
            await settle()

    run_stepped(scene())


def test_stopping_waits_for_the_call_and_not_for_a_pause():
    async def scene() -> None:
        gate, got = asyncio.Event(), []

        async def listener(message):
            got.append(message.queue_offset)
            await gate.wait()
            raise ReconsumeLater

        it = Scene(listener)
        async with it:
            it.give(1, 2)
            await settle()
            stopping = asyncio.ensure_future(it.service.stop(60))
            await settle()
            assert not stopping.done()
            gate.set()
            await settle()
            assert stopping.done()
            assert (got, it.progress) == ([1], [])

    run_stepped(scene())


def test_functions_run_in_threads_in_order():
    async def scene() -> None:
        got, done = [], asyncio.Event()
        loop = asyncio.get_running_loop()

        def listener(message):
            got.append(message.queue_offset)
            if len(got) == 50:
                loop.call_soon_threadsafe(done.set)

        async with Scene(listener) as it:
            it.give(*range(50))
            await done.wait()
        assert got == list(range(50))
        assert it.progress[-1] == 50

    run_stepped(scene())


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_listener_may_empty_its_list(fails):
    async def scene() -> None:
        got = []

        async def listener(batch, context):
            while batch:
                got.append(batch.pop(0).queue_offset)
            if fails and len(got) == 2:
                raise ReconsumeLater

        async with Scene(listener, batch=True, consume_message_batch_max_size=2) as it:
            it.give(1, 2, 3)
            await settle()
            if fails:
                assert (got, it.progress) == ([1, 2], [])
                advance(1)
                await settle()
            assert (got, it.progress) == ([1, 2] * fails + [1, 2, 3], [3, 4])

    run_stepped(scene())
