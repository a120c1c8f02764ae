"""What is accepted as a listener, and what its results mean."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import pickle
from datetime import timedelta

import pytest
from tests.unit.client.consuming import QUEUE, ignore

from rucola import PushConsumer
from rucola.client.application_call import FailedCall
from rucola.client.listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Listener,
    ReconsumeLater,
    completed,
    is_pending,
)
from rucola.client.repeats import drop_repeats
from rucola.errors import ClientError
from rucola.sync import PushConsumer as BlockingPushConsumer
from rucola.testing.event_loop import run_stepped


def generator(message):
    yield message


async def async_generator(message):
    yield message


class Handler:
    def __init__(self, message=None) -> None:
        """Takes what a listener takes: a class must be refused nevertheless."""

    def __call__(self, message):
        """Consumes a message."""

    def bound(self, message):
        """Consumes a message."""

    @staticmethod
    def static(message):
        """Consumes a message."""

    async def on_loop(self, message):
        """Consumes a message."""


class GeneratorHandler:
    def __call__(self, message):
        yield message


def decorated(function):
    @functools.wraps(function)
    def inner(message):
        return function(message, None, None)

    return inner


def three(message, database, settings):
    """Gets two arguments from its decorator."""


WRONG = {
    "None": (None, False, "not None"),
    "a number": (3, False, "not 3"),
    "a string": ("handle", False, "not 'handle'"),
    "no parameter": (lambda: None, False, "too many positional"),
    "two parameters": (lambda messages, context: None, False, "batch=True passes"),
    "three parameters": (three, False, "missing a required argument"),
    "keyword only": (lambda message, *, database: None, False, "database"),
    "only keywords": (lambda **options: None, False, "too many positional"),
    "one parameter with batch": (lambda message: None, True, "without batch, it gets one message"),
    "a generator function": (generator, False, "the generator function"),
    "an asynchronous generator function": (async_generator, False, "the generator function"),
    "a generator object": (generator(1), False, "do not call it"),
    "an object whose call is a generator": (GeneratorHandler(), False, "the generator function"),
    "a partial of a generator function": (functools.partial(generator), False, "the generator function"),
    "a class": (Handler, False, "not the class Handler: pass an object"),
    "a type": (int, False, "not the class int"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("consumer", [PushConsumer, BlockingPushConsumer])
def test_impossible_listeners_are_refused_at_once(what, consumer):
    function, batch, text = WRONG[what]
    with pytest.raises(ClientError) as refused:
        consumer("G", "127.0.0.1:9876").register_message_listener(function, batch=batch)
    assert text in str(refused.value)
    wanted = "a function of a list of messages and a context" if batch else "a function of one message"
    assert str(refused.value).startswith(f"a listener must be {wanted}")


def test_a_coroutine_object_is_refused():
    work = ignore(None)
    with pytest.raises(ClientError, match="pass the function, do not call it"):
        Listener(work, False)
    work.close()


def test_drop_repeats_refuses_the_same():
    with pytest.raises(ClientError, match="a listener must be a function of one message, not None"):
        drop_repeats(None, within=timedelta(minutes=1))


RIGHT = [
    (ignore, False),
    (lambda message: None, False),
    (lambda message, database=None: None, False),
    (lambda *everything: None, False),
    (lambda messages, context: None, True),
    (lambda *everything: None, True),
    (functools.partial(three, database=1, settings=2), False),
    (functools.partial(lambda settings, message: None, {}), False),
    (decorated(three), False),
    (Handler(), False),
    (Handler().bound, False),
    (Handler.static, False),
    (Handler().on_loop, False),
    (print, False),
    ([].append, False),
    (asyncio.Queue().put_nowait, False),
    (drop_repeats(ignore, within=timedelta(minutes=1)), False),
]


@pytest.mark.parametrize(("function", "batch"), RIGHT, ids=range(len(RIGHT)))
def test_possible_listeners_are_accepted(function, batch):
    PushConsumer("G", "127.0.0.1:9876").register_message_listener(function, batch=batch)


def test_where_a_listener_runs():
    assert Listener(ignore, False).on_loop
    assert Listener(Handler().on_loop, False).on_loop
    assert Listener(functools.partial(ignore), False).on_loop
    assert not Listener(lambda message, *others: ignore(message), False).on_loop
    assert not Listener(Handler(), False).on_loop


class Odd:
    """An object of the application whose methods raise."""

    def __repr__(self) -> str:
        raise ValueError("no")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    def __bool__(self) -> bool:
        raise ValueError("no")

    __hash__ = None  # type: ignore[assignment]


GOOD = [None, ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT]
OTHER = [True, 0, 1, "", "done", [], {"rows": 1}, object(), Odd(), Handler]
AGAIN = [ConsumeConcurrentlyStatus.RECONSUME_LATER, ConsumeOrderlyStatus.ROLLBACK]
NOT_DONE = [
    False,
    ValueError("no"),
    ValueError,
    ReconsumeLater,
    generator(1),
    three,
    [].append,
    functools.partial(three),
]


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("result", [*GOOD, *AGAIN], ids=repr)
def test_a_status_means_what_it_says(result, batch, caplog):
    listener = Listener(lambda *everything: None, batch)
    assert listener.meaning(result) is result
    assert listener.is_good(result) is (result in GOOD)
    assert not caplog.records


@pytest.mark.parametrize("result", OTHER, ids=lambda value: type(value).__name__)
def test_any_other_result_of_a_listener_of_one_message_is_success(result, caplog):
    listener = Listener(ignore, False)
    assert listener.is_good(result)
    assert not caplog.records
    for _ in range(3):
        assert listener.meaning(result) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "raise an exception, for example ReconsumeLater()" in record.rucola_fields["hint"]
    assert record.rucola_fields["result"] == (
        "<Odd, its repr raises ValueError>" if type(result) is Odd else repr(result)
    )


@pytest.mark.parametrize("result", OTHER, ids=lambda value: type(value).__name__)
def test_any_other_result_of_a_listener_of_batches_is_a_failure(result):
    listener = Listener(lambda *everything: None, True)
    meaning = listener.meaning(result)
    assert isinstance(meaning, FailedCall)
    assert "return None or a status" in str(meaning.error)
    assert not listener.is_good(result)


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("result", NOT_DONE, ids=lambda value: getattr(value, "__name__", type(value).__name__))
def test_results_that_say_or_show_that_the_work_was_not_done(result, batch, caplog):
    listener = Listener(lambda *everything: None, batch)
    meaning = listener.meaning(result)
    assert isinstance(meaning, FailedCall)
    assert not listener.is_good(result)
    if isinstance(result, ValueError):
        assert meaning.error is result
    elif result is False:
        assert "returned False, so its call has failed; return" in str(meaning.error)
    else:
        assert isinstance(meaning.error, ClientError)
    assert not caplog.records


def test_a_long_result_is_shown_in_part():
    listener = Listener(lambda *everything: None, True)
    assert len(str(listener.meaning("x" * 10_000).error)) < 400


def test_results_that_are_still_under_way():
    async def scene() -> None:
        loop, pool = asyncio.get_running_loop(), concurrent.futures.Future()

        async def nested():
            return ignore(None)

        pool.set_result(3)
        future = loop.create_future()
        future.set_result("done")
        pending = [ignore(None), future, pool, nested()]
        assert all(map(is_pending, pending))
        assert [await completed(each) for each in pending] == [None, "done", 3, None]
        assert not any(map(is_pending, [None, 3, ignore, generator(1), Odd()]))

    run_stepped(scene())


CONCURRENT, ORDERLY = ConsumeConcurrentlyContext(QUEUE), ConsumeOrderlyContext(QUEUE)


@pytest.mark.parametrize(
    ("context", "name", "right", "wrong"),
    [
        (CONCURRENT, "ack_index", [None, -1, 5], [-2, "1", 1.0, True]),
        (CONCURRENT, "delay_level_when_next_consume", [-1, 0, 18], [-2, None, "3", 1.5]),
        (ORDERLY, "suspend_current_queue_time_ms", [-1, 5_000], [-2, None, "3", 1.5]),
        (ORDERLY, "auto_commit", [False, True], [None, 1, "no"]),
    ],
)
def test_a_context_refuses_wrong_values_where_they_are_set(context, name, right, wrong):
    for value in right:
        setattr(context, name, value)
        assert getattr(context, name) == value
    for value in wrong:
        with pytest.raises(ClientError, match=name):
            setattr(context, name, value)
        assert getattr(context, name) == right[-1]


def test_a_delay_level_must_be_a_number():
    assert [ReconsumeLater(level).delay_level for level in (-1, 0, 18)] == [-1, 0, 18]
    assert pickle.loads(pickle.dumps(ReconsumeLater(5))).delay_level == 5
    for wrong in ("3", None, -2, 1.5):
        with pytest.raises(ClientError, match="delay_level"):
            ReconsumeLater(wrong)

    class Own(ReconsumeLater):
        def __init__(self) -> None:
            """Does not call the constructor of its base class."""

    assert Own().delay_level == 0
