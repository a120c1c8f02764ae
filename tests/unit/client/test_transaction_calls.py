"""What a transaction listener may do: raise anything, return anything, and shut its producer down."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextvars import ContextVar

import pytest
from tests.unit.client.producing import PATIENT
from tests.unit.client.test_transaction_producer import END, question

from rucola import LocalTransactionState, Message, TransactionProducer
from rucola.errors import ClientError
from rucola.protocol.codes import RequestCode
from rucola.testing.event_loop import run_stepped, settle

COMMIT, UNKNOWN = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.UNKNOW

RAISED = [
    OSError("disk"),
    SystemExit("a library gives up"),
    asyncio.CancelledError(),
    StopIteration(),
    StopAsyncIteration(),
    GeneratorExit(),
    BaseException("anything"),
]


class Raising:
    """A listener whose functions raise.

    Args:
        kind: "plain", "coroutine" or "function that returns a coroutine".
        error: what they raise.
    """

    def __init__(self, kind: str, error: BaseException) -> None:
        def plain(*_: object) -> None:
            raise error

        async def coroutine(*_: object) -> None:
            await asyncio.sleep(0)
            raise error

        functions = {
            "plain": plain,
            "coroutine": coroutine,
            "function that returns a coroutine": lambda *_: coroutine(),
        }
        self.execute_local_transaction = self.check_local_transaction = functions[kind]


@pytest.mark.few
@pytest.mark.parametrize("error", [*RAISED, KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["plain", "coroutine", "function that returns a coroutine"])
def test_every_exception_of_a_listener_is_a_failed_call(broker, kind, error):
    """The state is UNKNOW, the broker asks again, and the producer goes on. KeyboardInterrupt is a failed call in a
    thread; on the application's event loop it passes.
    """
    if kind != "plain" and isinstance(error, KeyboardInterrupt | StopIteration):
        pytest.skip("passes, or is made a RuntimeError by Python")

    async def scene() -> None:
        async with (
            broker(topics={"T": 1}) as one,
            TransactionProducer("pg", one.address, Raising(kind, error), PATIENT, topics=["T"]) as producer,
        ):
            result = await producer.send_message_in_transaction(Message("T", b"x"))
            assert (result.local_transaction_state, result.local_error) == (UNKNOWN, error)
            one.channels[0].send(question())
            await one.until(lambda: RequestCode.HEART_BEAT in one.codes())
            for _ in range(3):
                await settle()
                await asyncio.to_thread(lambda: None)
            assert END not in one.codes()
            await producer.send(Message("T", b"y"))
            await producer.shutdown()
            assert one.codes()[-1] == RequestCode.UNREGISTER_CLIENT

    run_stepped(scene())


class Gone:
    """Its weak references are dead at once."""


class Unfit:
    """An object whose class and text cannot be asked."""

    @property
    def __class__(self):
        raise OSError

    def __repr__(self):
        raise OSError


ANSWERS = {
    "True": True,
    "None": None,
    "'COMMIT_MESSAGE'": "COMMIT_MESSAGE",
    "OSError('returned')": OSError("returned"),
    "<weakproxy at": weakref.proxy(Gone()),
    "<Unfit, its repr raises OSError>": Unfit(),
}


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("shown", ANSWERS)
def test_another_answer_is_a_failed_call(broker, shown, plain):
    class Plain:
        def execute_local_transaction(self, message: Message, argument: object) -> object:
            return ANSWERS[shown]

    class Coroutine:
        async def execute_local_transaction(self, message: Message, argument: object) -> object:
            return ANSWERS[shown]

    async def scene() -> None:
        async with (
            broker(topics={"T": 1}) as one,
            TransactionProducer("pg", one.address, Plain() if plain else Coroutine(), PATIENT) as producer,
        ):
            result = await producer.send_message_in_transaction(Message("T", b"x"))
            assert result.local_transaction_state is UNKNOWN
            assert f"must return a LocalTransactionState, not {shown}" in str(result.local_error)

    run_stepped(scene())


class Gated:
    """A listener that waits; it counts its calls."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.calls = 0

    async def execute_local_transaction(self, message: Message, argument: object) -> LocalTransactionState:
        self.calls += 1
        await self.gate.wait()
        return COMMIT

    async def check_local_transaction(self, message: Message) -> LocalTransactionState:
        return await self.execute_local_transaction(message, None)


@pytest.mark.parametrize("what", ["transaction", "check"])
def test_shutdown_waits_for_what_the_listener_has_begun_and_refuses_what_comes(broker, what):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            listener = Gated()
            producer = TransactionProducer("pg", one.address, listener, PATIENT, topics=["T"])
            await producer.start()
            await one.until(lambda: bool(one.heartbeats()))
            if what == "check":
                one.channels[0].send(question())
            else:
                sending = asyncio.ensure_future(producer.send_message_in_transaction(Message("T", b"x")))
            while not listener.calls:
                await settle()
            ending = asyncio.ensure_future(producer.shutdown())
            await settle(60)
            assert not ending.done()
            one.channels[0].send(question())  # asked again by the broker: another producer or a later one answers
            with pytest.raises(ClientError, match="shut down"):
                await producer.send_message_in_transaction(Message("T", b"y"))
            await settle(60)
            assert listener.calls == 1
            listener.gate.set()
            await ending
            if what == "transaction":
                assert (await sending).local_transaction_state is COMMIT
            assert one.codes().count(END) == 1
            assert one.codes()[-1] == RequestCode.UNREGISTER_CLIENT

    run_stepped(scene())


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("what", ["transaction", "check"])
def test_a_listener_may_shut_its_producer_down(broker, what, calls):
    """It does not wait for itself; two listeners that do so at the same time do not wait for each other."""

    class Ending:
        begun = 0

        async def execute_local_transaction(self, message: Message, argument: object) -> LocalTransactionState:
            self.begun += 1
            while self.begun < calls:
                await settle(1)
            await producer.shutdown()
            return COMMIT

        async def check_local_transaction(self, message: Message) -> LocalTransactionState:
            return await self.execute_local_transaction(message, None)

    async def scene() -> None:
        nonlocal producer
        async with broker(topics={"T": 1}) as one:
            producer = TransactionProducer("pg", one.address, Ending(), PATIENT, topics=["T"])
            await producer.start()
            await one.until(lambda: bool(one.heartbeats()))
            if what == "check":
                for _ in range(calls):
                    one.channels[0].send(question())
                await one.until(lambda: RequestCode.UNREGISTER_CLIENT in one.codes())
            else:
                sends = [producer.send_message_in_transaction(Message("T", b"x")) for _ in range(calls)]
                for result in await asyncio.gather(*sends):
                    assert result.local_transaction_state is COMMIT  # decided here; the broker was not told and asks
            await producer.shutdown()
            with pytest.raises(ClientError, match="shut down"):
                await producer.send(Message("T", b"x"))

    producer: TransactionProducer
    run_stepped(scene())


def test_a_cancelled_transaction_is_cancelled(broker):
    async def scene() -> None:
        async with (
            broker(topics={"T": 1}) as one,
            TransactionProducer("pg", one.address, Gated(), PATIENT) as producer,
        ):
            sending = asyncio.ensure_future(producer.send_message_in_transaction(Message("T", b"x")))
            await one.until(lambda: bool(one.stored))
            await settle()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert END not in one.codes()

    run_stepped(scene())


def test_a_plain_listener_runs_in_a_thread(broker):
    names: list[str] = []

    class Plain:
        def execute_local_transaction(self, message: Message, argument: object) -> LocalTransactionState:
            names.append(threading.current_thread().name)
            return COMMIT

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, TransactionProducer("pg", one.address, Plain(), PATIENT) as producer:
            await producer.send_message_in_transaction(Message("T", b"x"))

    run_stepped(scene())
    assert names != [threading.current_thread().name]


def test_plain_functions_run_in_daemon_threads_with_the_callers_context(broker):
    """The interpreter does not wait for a listener that never returns; ``shutdown`` ends idle threads."""
    account: ContextVar[str] = ContextVar("account")
    seen: list[tuple[bool, str | None]] = []
    threads: list[threading.Thread] = []

    def decide(*_: object) -> LocalTransactionState:
        threads.append(threading.current_thread())
        seen.append((threads[-1].daemon, account.get(None)))
        return COMMIT

    listener = Raising("plain", OSError())
    listener.execute_local_transaction = listener.check_local_transaction = decide

    async def scene() -> None:
        account.set("a")
        async with (
            broker(topics={"T": 1}) as one,
            TransactionProducer("pg", one.address, listener, PATIENT, topics=["T"]) as producer,
        ):
            await producer.send_message_in_transaction(Message("T", b"x"))
            one.channels[0].send(question())
            await one.until(lambda: one.codes().count(END) == 2)

    run_stepped(scene())
    assert [daemon for daemon, _ in seen] == [True, True]
    assert seen[0][1] == "a"
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
