"""Background tasks: a failure is logged with the task's name, counted, and the task goes on."""

from __future__ import annotations

import asyncio
import inspect
import logging

import pytest

from rucola.client.client_tasks import ClientTasks
from rucola.testing.event_loop import SteppedEventLoop, advance, run_stepped, settle


class Job:
    """Fails as often as ``errors`` says, then waits until it is cancelled; ``runs`` holds the times of its runs."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.runs: list[float] = []
        self.began = asyncio.get_running_loop().time()
        self.ended = False

    async def __call__(self) -> None:
        self.runs.append(round(asyncio.get_running_loop().time() - self.began))
        if self.errors:
            raise self.errors.pop(0)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended = True


async def pass_time(seconds: float, step: float = 0.5) -> None:
    for _ in range(round(seconds / step)):
        advance(step)
        await settle(6)


def failures(caplog) -> list[tuple[str, dict[str, object]]]:
    return [(each.rucola_event, each.rucola_fields) for each in caplog.records if each.levelno == logging.ERROR]


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(1), asyncio.CancelledError(), StopAsyncIteration()])
def test_a_failed_task_runs_again_after_a_pause(caplog, error):
    async def scene() -> None:
        supervisor, job = ClientTasks("G"), Job(error)
        supervisor.forever("heartbeats", job)
        await settle()
        assert job.runs == [0]
        await pass_time(0.5)
        assert job.runs == [0]
        await pass_time(1)
        assert job.runs == [0, 1]
        assert supervisor.failures == {"heartbeats": 1}
        await supervisor.stop()
        assert job.ended

    run_stepped(scene())
    (text, fields), *others = failures(caplog)
    assert (text, others) == ("background task failed", [])
    assert fields == {"task": "heartbeats", "owner": "G", "failures": 1, "again_in_s": 1.0}
    assert caplog.records[0].exc_info[1] is error


def test_the_pauses_grow_up_to_a_minute_and_begin_anew_after_a_long_run():
    async def scene() -> None:
        supervisor, job = ClientTasks(), Job(*[ValueError()] * 9)
        supervisor.forever("work", job)
        await settle()
        await pass_time(250)
        assert job.runs == pytest.approx([0, 1, 3, 7, 15, 31, 63, 123, 183, 243], abs=5)
        assert supervisor.failures["work"] == 9
        job.errors.append(ValueError())
        await supervisor.stop()

        again = Job()
        fail = asyncio.Event()

        async def work() -> None:
            again.runs.append(round(asyncio.get_running_loop().time() - again.began))
            await fail.wait()
            fail.clear()
            raise ValueError

        supervisor = ClientTasks()
        supervisor.forever("work", work)
        for _ in range(3):
            await pass_time(10)
            fail.set()
            await pass_time(2)
        assert again.runs == pytest.approx([0, 11, 23, 35], abs=1)
        await supervisor.stop()

    run_stepped(scene())


def test_a_task_that_somebody_cancels_starts_again(caplog):
    async def scene() -> None:
        supervisor, job = ClientTasks(), Job()
        supervisor.forever("heartbeats", job)
        await settle()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await settle()
        assert job.ended
        assert not caplog.records
        await pass_time(1.5)
        assert job.runs == [0, 1]
        assert [each.rucola_event for each in caplog.records] == ["background task was cancelled, starts again"]
        await supervisor.stop()
        await pass_time(5)
        assert job.runs == [0, 1]

    run_stepped(scene())


@pytest.mark.parametrize("cancelled", [True, False])
def test_nothing_starts_again_after_stop(cancelled):
    async def scene() -> None:
        supervisor, job = ClientTasks(), Job(*() if cancelled else (ValueError(), ValueError()))
        supervisor.forever("work", job)
        await settle()
        if cancelled:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await settle()
        await supervisor.stop()
        await pass_time(70)
        assert job.runs == [0]
        assert len(asyncio.all_tasks()) == 1

    run_stepped(scene())


@pytest.mark.ends_with_loop
def test_the_end_of_the_loop_ends_the_tasks():
    async def scene() -> Job:
        job = Job()
        ClientTasks().forever("work", job)
        await settle()
        return job

    with asyncio.Runner(loop_factory=SteppedEventLoop) as runner:
        job = runner.run(scene())
    assert job.ended


def test_work_that_swallows_its_cancellation_and_fails_does_not_start_again():
    async def scene() -> None:
        runs = []

        async def stubborn() -> None:
            runs.append(1)
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise ValueError from None

        supervisor = ClientTasks()
        supervisor.forever("work", stubborn)
        await settle()
        ended = asyncio.ensure_future(supervisor.stop())
        await pass_time(5)
        assert ended.done()
        assert runs == [1]

    run_stepped(scene())


def test_rounds_come_at_intervals_on_request_and_soon_after_a_failure():
    async def scene() -> None:
        began, runs, errors = asyncio.get_running_loop().time(), [], []

        async def work() -> None:
            runs.append(asyncio.get_running_loop().time() - began)
            if errors:
                raise errors.pop()

        def seen() -> list[float]:
            return pytest.approx(runs, abs=1)

        supervisor = ClientTasks()
        rounds = supervisor.periodic("heartbeats", work, 30)
        await pass_time(29)
        assert runs == []
        await pass_time(2)
        assert seen() == [30]
        rounds.soon()
        await settle()
        assert seen() == [30, 31]
        errors.append(ValueError())
        rounds.soon()
        await settle()
        await pass_time(2)
        assert seen() == [30, 31, 31, 32]
        await pass_time(30.5)
        assert seen() == [30, 31, 31, 32, 62]
        await supervisor.stop()

    run_stepped(scene())


def test_a_request_during_a_round_starts_another_one():
    async def scene() -> None:
        gate, runs = asyncio.Event(), []

        async def work() -> None:
            runs.append(1)
            await gate.wait()

        supervisor = ClientTasks()
        rounds = supervisor.periodic("heartbeats", work, 30)
        rounds.soon()
        await settle()
        rounds.soon()
        await settle()
        assert len(runs) == 1
        gate.set()
        await settle()
        assert len(runs) == 2
        await supervisor.stop()

    run_stepped(scene())


def test_the_failure_of_work_that_ends_by_itself_is_logged(caplog):
    async def scene() -> None:
        async def fails() -> None:
            raise SystemExit("odd")

        supervisor, done = ClientTasks("c"), []

        async def works() -> None:
            done.append(1)

        supervisor.once("restart", fails())
        supervisor.once("other", works())
        await settle()
        assert done == [1]
        assert supervisor.failures == {"restart": 1}
        await supervisor.stop()
        supervisor.once("late", works())
        await settle()
        assert done == [1]

    run_stepped(scene())
    assert failures(caplog) == [
        ("background task failed", {"task": "restart", "owner": "c", "failures": 1, "again_in_s": None})
    ]


def test_work_that_is_cancelled_before_it_begins_is_closed():
    async def scene() -> None:
        async def work() -> None:
            """Does not begin."""

        supervisor, waiting = ClientTasks(), work()
        supervisor.once("work", waiting)
        await supervisor.stop()
        assert waiting.cr_frame is None  # closed; otherwise Python warns that it was never awaited

    run_stepped(scene())


def test_a_background_task_may_stop_its_own_supervisor():
    async def scene() -> None:
        supervisor, done = ClientTasks(), []

        async def ends_all() -> None:
            await supervisor.stop()
            done.append(1)

        supervisor.forever("other", Job())
        supervisor.once("end", ends_all())
        await settle()
        assert done == [1]
        assert len(asyncio.all_tasks()) == 1

    run_stepped(scene())


@pytest.mark.ends_with_loop
def test_work_whose_task_is_cancelled_before_it_runs_is_not_left_unused():
    async def scene() -> None:
        async def work() -> None:
            await asyncio.sleep(1)

        supervisor = ClientTasks()
        unused = work()
        supervisor.once("unused", unused)
        await supervisor.stop()
        assert inspect.getcoroutinestate(unused) == inspect.CORO_CLOSED

    run_stepped(scene())
