"""What the application's code raises by itself is a failed call; what only passes through it goes on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rucola.client.application_call import FailedCall, awaited, called, for_future, is_failed_call
from rucola.testing.event_loop import run_stepped, settle


class Odd(BaseException):
    """Stands for pytest's ``Failed`` and for the cancellations of other libraries."""


OWN = [ValueError(), Odd(), SystemExit(3), StopIteration(), StopAsyncIteration(), GeneratorExit()]
OWN += [asyncio.CancelledError(), BaseExceptionGroup("", [KeyboardInterrupt()])]


def by_name(error: BaseException) -> str:
    return type(error).__name__


def raiser(error: BaseException):
    def function(*args, **kwargs):
        raise error

    return function


def in_thread(function, *args):
    results = []
    thread = threading.Thread(target=lambda: results.append(called(function, *args)))
    thread.start()
    thread.join()
    return results[0]


def test_a_result_is_returned_as_it_is():
    async def scene() -> None:
        async def double(number: int, *, times: int) -> int:
            return number * times

        assert await awaited(double, 4, times=2) == 8

    run_stepped(scene())
    assert called(max, 1, 2, key=lambda value: -value) == 1
    error = ValueError()
    assert called(lambda: error) is error  # returned, not raised: no failed call


@pytest.mark.parametrize("error", OWN, ids=by_name)
def test_an_exception_of_a_plain_function_is_a_failed_call(error):
    outcomes = [called(raiser(error), 1), in_thread(raiser(error), 1)]
    assert all(isinstance(outcome, FailedCall) and outcome.error is error for outcome in outcomes)


def test_a_plain_function_that_raises_cancelled_error_while_its_task_is_cancelled_failed():
    async def scene() -> None:
        asyncio.current_task().cancel()
        error = asyncio.CancelledError()
        assert called(raiser(error)).error is error
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)

    run_stepped(scene())


@pytest.mark.parametrize("error", OWN, ids=by_name)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_an_exception_of_a_coroutine_function_is_a_failed_call(error, when):
    async def fails(message):
        if when == "later":
            await asyncio.sleep(0)
        raise error

    async def scene() -> None:
        outcome = await awaited(fails, 1)
        assert isinstance(outcome, FailedCall)
        assert outcome.error is error or outcome.error.__cause__ is error  # Python wraps StopIteration of coroutines
        await asyncio.sleep(0)  # the task lives on

    run_stepped(scene())


def test_something_that_the_application_awaited_was_cancelled():
    async def waits():
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def scene() -> None:
        assert isinstance((await awaited(waits)).error, asyncio.CancelledError)

    run_stepped(scene())


@pytest.mark.parametrize("stopping", [True, False])
def test_the_cancellation_of_the_own_task_passes(stopping):
    async def scene() -> None:
        task = asyncio.ensure_future(awaited(asyncio.sleep, 3600))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert not is_failed_call(asyncio.CancelledError(), task, stopping=stopping)

    run_stepped(scene())


def test_while_the_client_stops_its_task_a_cancellation_passes_even_if_the_application_took_it_back():
    async def scene() -> None:
        task = asyncio.current_task()
        assert is_failed_call(asyncio.CancelledError(), task)
        assert not is_failed_call(asyncio.CancelledError(), task, stopping=True)
        assert is_failed_call(ValueError(), task, stopping=True)

    run_stepped(scene())


def test_a_time_limit_of_the_application_is_a_failed_call():
    async def limited():
        async with asyncio.timeout(0):
            await asyncio.sleep(3600)

    async def scene() -> None:
        assert isinstance((await awaited(limited)).error, TimeoutError)

    run_stepped(scene())


def test_ctrl_c_passes_in_the_main_thread_and_fails_the_call_in_others():
    async def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        called(raiser(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run_stepped(awaited(interrupted))
    assert isinstance(in_thread(raiser(KeyboardInterrupt())).error, KeyboardInterrupt)
    assert isinstance(in_thread(run_stepped, awaited(interrupted)).error, KeyboardInterrupt)


@pytest.mark.parametrize("loop_open", [True, False])
def test_a_coroutine_that_is_closed_while_it_waits_ends(loop_open):
    ended = []

    async def endless():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    async def scene():
        work = awaited(endless)
        task = asyncio.ensure_future(work)
        await settle()
        if loop_open:
            work.close()  # raises RuntimeError if the coroutine ignores GeneratorExit
            task.cancel()
        return work, task

    loop = asyncio.new_event_loop()
    work, task = loop.run_until_complete(scene())
    loop.close()
    work.close()
    task._log_destroy_pending = False  # the point of this test
    assert ended == [True]


@pytest.mark.parametrize("error", OWN, ids=by_name)
def test_every_failure_can_be_put_into_a_future(error):
    async def scene() -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(for_future(error))
        raised = await asyncio.gather(future, return_exceptions=True)
        assert not isinstance(raised[0], asyncio.CancelledError)
        assert raised[0] is error or raised[0].__cause__ is error

    if not isinstance(error, SystemExit):  # gather does not return it
        run_stepped(scene())
    assert for_future(error) is error or type(error) in (StopIteration, asyncio.CancelledError)


def test_generator_exit_passes_if_the_client_s_coroutine_is_closed_by_another_task():
    async def scene() -> asyncio.Task[object]:
        waiting = asyncio.ensure_future(asyncio.Event().wait())
        assert not is_failed_call(GeneratorExit(), waiting)
        assert is_failed_call(GeneratorExit(), asyncio.current_task())
        waiting.cancel()
        return waiting

    waiting = run_stepped(scene())
    assert not is_failed_call(GeneratorExit(), waiting)  # no event loop runs
