"""The thread of ``rucola.sync``: what it survives, and what may not be called on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rucola.sync
from rucola.client import loop_thread
from rucola.client.loop_thread import LoopThread, shared_loop
from rucola.errors import ClientError
from rucola.sync import Message
from rucola.testing.rocketmq import RocketMQ

NAMESRV = "127.0.0.1:1"
RAISED = [SystemExit("a library gives up"), KeyboardInterrupt(), BaseException("anything"), GeneratorExit(), OSError()]


def clients() -> list[Any]:
    return [
        rucola.sync.Producer("g", NAMESRV),
        rucola.sync.TransactionProducer("g", NAMESRV, object()),
        rucola.sync.PushConsumer("g", NAMESRV),
        rucola.sync.LitePullConsumer("g", NAMESRV),
        rucola.sync.SimpleConsumer("g", NAMESRV),
        rucola.sync.PullConsumer("g", NAMESRV),
    ]


@pytest.fixture(scope="module")
def mq() -> Iterator[RocketMQ]:
    with RocketMQ() as mq:
        mq.create_topic("T", queues=2)
        yield mq


@pytest.fixture
def producer(mq: RocketMQ) -> Iterator[rucola.sync.Producer]:
    with rucola.sync.Producer("P", mq.namesrv) as producer:
        yield producer


@pytest.fixture(params=["asyncio", "uvloop"])
def thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopThread]:
    if request.param == "asyncio":
        monkeypatch.setattr(loop_thread, "_new_event_loop", asyncio.new_event_loop)
    else:
        pytest.importorskip("uvloop")
    thread = LoopThread("test")
    yield thread
    if thread._thread.is_alive():
        thread.close()


async def answer() -> int:
    return 42


def on_loop(function: Callable[[], object]) -> object:
    """Calls ``function`` on the shared loop; returns what it returns or raises."""

    def guarded() -> object:
        try:
            return function()
        except Exception as error:  # noqa: BLE001
            return error

    return shared_loop().call(guarded)


@pytest.mark.parametrize("number", range(6))
def test_each_blocking_call_on_the_loop_itself_raises_at_once(number: int) -> None:
    client = clients()[number]
    tried = 0
    for name, member in inspect.getmembers(type(client)):
        if name in ("__enter__", "__exit__"):
            outcome = on_loop(lambda member=member: member(client, *[None] * (3 * (member.__name__ == "__exit__"))))
        elif name.startswith("_") or isinstance(member, property) or name in ("submit", "submit_packed", "messages"):
            continue
        else:
            needed = [
                parameter
                for parameter in list(inspect.signature(member).parameters.values())[1:]
                if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            ]
            outcome = on_loop(lambda member=member, needed=needed: member(client, *[None] * len(needed)))
        tried += 1
        assert isinstance(outcome, ClientError), (name, outcome)
        assert "would wait for itself, and block every client" in str(outcome), name
        assert "asyncio.to_thread" in str(outcome)
    assert tried > 8
    assert shared_loop().run(answer()) == 42


def test_a_callback_of_submit_is_told_and_the_others_go_on(producer: rucola.sync.Producer) -> None:
    """c8: before, this blocked all clients of the process for ever."""
    outcomes: list[object] = []
    done = threading.Event()

    def stored(future: concurrent.futures.Future[Any]) -> None:
        for call in (lambda: producer.send(Message("T", b"2")), producer.flush):
            try:
                outcomes.append(call())
            except ClientError as error:
                outcomes.append(error)
        later = producer.submit(Message("T", b"3"))  # does not block, so it is allowed
        try:
            later.result()
        except ClientError as error:
            outcomes.append(error)
        try:
            later.exception()
        except ClientError as error:
            outcomes.append(error)
        outcomes.append(future.result())  # is there already
        later.add_done_callback(lambda _: done.set())

    first = producer.submit(Message("T", b"1"))
    first.add_done_callback(stored)
    assert done.wait(30)
    assert [type(outcome) for outcome in outcomes] == [ClientError] * 4 + [rucola.SendResult]
    assert "waiting for a future of submit" in str(outcomes[2])
    assert producer.send(Message("T", b"4")).msg_id


def test_a_selector_that_calls_back(producer: rucola.sync.Producer) -> None:
    def selector(queues: Any, message: Message) -> Any:
        producer.send(message)

    with pytest.raises(ClientError, match=r"the queue selector for topic T failed: .*would wait for itself"):
        producer.send(Message("T", b"x"), selector=selector)

    inner: list[concurrent.futures.Future[Any]] = []

    def submitting(queues: Any, message: Message) -> Any:
        inner.append(producer.submit(Message("T", b"inner")))
        return queues[0]

    assert producer.send(Message("T", b"x"), selector=submitting).message_queue.queue_id == 0
    assert inner[0].result(30).msg_id


@pytest.mark.parametrize(
    "error", [*RAISED, StopIteration(), asyncio.CancelledError()], ids=lambda one: type(one).__name__
)
def test_every_exception_of_a_selector_is_the_error_of_the_send(
    producer: rucola.sync.Producer, error: BaseException
) -> None:
    def selector(queues: Any, message: Message) -> Any:
        raise error

    for call in (
        lambda: producer.send(Message("T", b"x"), selector=selector),
        lambda: producer.submit(Message("T", b"x"), selector=selector).result(30),
        lambda: producer.send_oneway(Message("T", b"x"), selector=selector),
    ):
        with pytest.raises(ClientError, match="the queue selector for topic T failed") as failed:
            call()
        assert failed.value.__cause__ is error
    assert producer.in_flight == 0
    assert producer.send(Message("T", b"x")).msg_id


@pytest.mark.parametrize("error", RAISED, ids=lambda one: type(one).__name__)
def test_other_callbacks_are_called_after_any_exception_of_one(
    producer: rucola.sync.Producer, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    called: list[str] = []
    gate = threading.Event()

    def failing(_: object) -> None:
        raise error

    with caplog.at_level(logging.ERROR):
        # The loop waits, so the future is not done before it has its callbacks.
        shared_loop()._loop.call_soon_threadsafe(gate.wait, 30)
        future = producer.submit(Message("T", b"x"))
        future.add_done_callback(failing)
        future.add_done_callback(lambda _: called.append("second"))
        gate.set()
        assert future.result(30).msg_id
        producer.flush()
        assert shared_loop().run(answer()) == 42
    assert called == ["second"]
    assert "callback of a future failed" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseException("anything")], ids=str)
def test_exceptions_of_work_on_the_loop_reach_the_caller_as_errors(thread: LoopThread, error: BaseException) -> None:
    async def work() -> None:
        raise error

    def plain() -> None:
        raise error

    def future() -> asyncio.Future[None]:
        raise error

    for call in (
        lambda: thread.run(work()),
        lambda: thread.call(plain),
        lambda: thread.start(work()).result(30),
        lambda: thread.submit(future).result(30),
    ):
        with pytest.raises(ClientError, match=r"code on the event loop of rucola\.sync raised") as failed:
            call()
        assert failed.value.__cause__ is error
    assert thread.run(answer()) == 42


def test_the_loop_goes_on_whatever_code_of_others_does_on_it(
    thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Callbacks of asyncio and a library that stops the loop: no guard of ours is around them."""
    seen: list[int] = []

    async def wild() -> None:
        loop = asyncio.get_running_loop()

        def leave() -> None:
            sys.exit("a library gives up")

        def interrupt() -> None:
            raise KeyboardInterrupt

        loop.call_soon(seen.append, 1)
        loop.call_soon(leave)
        loop.call_soon(seen.append, 2)
        loop.call_soon(interrupt)
        loop.call_soon(seen.append, 3)
        loop.call_soon(loop.stop)
        loop.call_soon(seen.append, 4)

    with caplog.at_level(logging.ERROR):
        thread.run(wild())
        assert thread.run(answer()) == 42
    assert seen == [1, 2, 3, 4]
    assert "event loop was interrupted, goes on" in caplog.text


def test_nobody_waits_for_a_thread_that_has_ended(thread: LoopThread) -> None:
    """It never ends by itself; here it is ended by force."""
    begun = threading.Event()
    outcomes: list[object] = []

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            thread.run(endless())
        except ClientError as error:
            outcomes.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait(30)
    handed = thread.submit(asyncio.Future)
    thread._closing = True
    thread._loop.call_soon_threadsafe(thread._loop.stop)
    waiting.join(30)
    assert not waiting.is_alive()
    assert "the thread of rucola.sync has ended" in str(outcomes[0])
    with pytest.raises(ClientError, match="has ended"):
        handed.result(30)
    with pytest.raises(ClientError, match="has ended"):
        thread.run(answer())
    with pytest.raises(ClientError, match="has ended"):
        thread.submit(asyncio.Future)
    thread._thread.join()
    thread._loop.close()


def run_program(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_no_client_of_the_parent_works_in_the_child_of_a_fork() -> None:
    code = f"""
import os
import rucola, rucola.sync
from rucola.errors import ClientError
clients = [
    rucola.sync.Producer("g", "{NAMESRV}"),
    rucola.sync.TransactionProducer("g", "{NAMESRV}", object()),
    rucola.sync.PushConsumer("g", "{NAMESRV}"),
    rucola.sync.LitePullConsumer("g", "{NAMESRV}"),
    rucola.sync.SimpleConsumer("g", "{NAMESRV}"),
    rucola.sync.PullConsumer("g", "{NAMESRV}"),
]
clients[0].start()
clients[1].start()
clients[5].start()
child = os.fork()
if child == 0:
    told = 0
    for client in clients:
        for call in (client.start, client.shutdown, client.__enter__):
            try:
                call()
            except ClientError as error:
                told += "before the fork" in str(error)
    os._exit(0 if told == 18 else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    run_program(code)


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["clients", "loop in a thread", "send in a thread"])
def test_the_interpreter_ends_with_open_clients(mq: RocketMQ, what: str) -> None:
    code = f"""
import threading, time
import rucola.sync
from rucola.sync import Message
producer = rucola.sync.Producer("P", "{mq.namesrv}")
producer.start()
consumer = rucola.sync.PushConsumer("exit", "{mq.namesrv}")
consumer.subscribe("T")
if {what!r} == "clients":
    consumer.register_message_listener(lambda message: None)
    consumer.start()
    producer.submit(Message("T", b"x")).result()
    producer.submit(Message("T", b"y"))
elif {what!r} == "loop in a thread":
    consumer.start()
    begun = threading.Event()
    def loop():
        begun.set()
        for message in consumer:
            pass
    threading.Thread(target=loop, daemon=True).start()
    begun.wait()
else:
    silent = rucola.sync.Producer("P", "127.0.0.1:1", rucola.sync.ProducerConfig(send_msg_timeout_ms=3_600_000))
    silent.start()
    threading.Thread(target=lambda: silent.send(Message("T", b"x")), daemon=True).start()
print("last line")
"""
    assert run_program(code) == "last line\n"


class Interrupts:
    """Makes the next call of a thread end by Ctrl-C: while it begins, while it waits, or when the result is there but
    was not received.
    """

    def __init__(self, thread: LoopThread, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
        self._start = thread.start
        self._when = when
        self.left = 1
        monkeypatch.setattr(thread, "start", self.start)

    def start(self, work: Any) -> Any:
        future = self._start(work)
        if self.left:
            self.left -= 1
            if self._when == "begins":
                raise KeyboardInterrupt
            if self._when == "late":
                concurrent.futures.wait([future], 20)
            future.result = self._interrupted  # type: ignore[method-assign]
        return future

    def _interrupted(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["begins", "waits", "late"])
def test_a_result_that_an_interrupted_thread_does_not_receive_is_taken_back(thread, monkeypatch, when):
    missed, came = [], threading.Event()

    async def take_back(result: str) -> None:
        missed.append(result)
        came.set()

    async def work() -> str:
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass  # the result is there although the call is cancelled
        return "result"

    Interrupts(thread, monkeypatch, when)
    with pytest.raises(KeyboardInterrupt):
        thread.run(work(), take_back)
    assert came.wait(20)
    assert thread.run(work(), take_back) == "result"
    assert missed == ["result"]


def test_messages_of_an_interrupted_poll_come_again(mq, monkeypatch):
    config = rucola.sync.LitePullConsumerConfig(
        consume_from_where=rucola.sync.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    with rucola.sync.Producer("P", mq.namesrv) as producer:
        for number in range(3):
            producer.send(Message("polled", b"%d" % number), None)
    with rucola.sync.LitePullConsumer("polls", mq.namesrv, config, topics=["polled"]) as consumer:
        Interrupts(shared_loop(), monkeypatch, "late")
        with pytest.raises(KeyboardInterrupt):
            while not consumer.poll(20_000):
                pass
        found: list[bytes] = []
        while len(found) < 3:
            found += [message.body for message in consumer.poll(20_000)]
        assert sorted(found) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("when", ["begins", "late"])
@pytest.mark.parametrize("name", ["Producer", "TransactionProducer", "PushConsumer", "SimpleConsumer", "PullConsumer"])
def test_a_client_whose_with_is_interrupted_does_not_stay(mq, monkeypatch, name, when):
    more = [object()] if name == "TransactionProducer" else []
    client = getattr(rucola.sync, name)("interrupted", mq.namesrv, *more)
    instance = getattr(client._async, "_instance", None) or client._async._member.instance
    Interrupts(shared_loop(), monkeypatch, when)
    with pytest.raises(KeyboardInterrupt), client:
        pytest.fail("the block must not begin")
    shared_loop().run(asyncio.sleep(0))  # what began has started
    ended = threading.Event()
    while instance.running and not ended.wait(0.01):
        pass
    assert not instance.running
