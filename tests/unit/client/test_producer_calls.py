"""Calls of the application's code by a producer, and calls of a producer from where it does not belong."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from datetime import timedelta

import pytest
from tests.unit.client.producing import PATIENT, ROUTE, SEND, silent

from rucola import Message, MessageQueue, Producer, SendStatus
from rucola.client.instance import ClientInstance
from rucola.common.recall_handle import RecallHandle
from rucola.errors import BrokerError, ClientError, RemotingTimeoutError, SendManyError
from rucola.protocol.codes import RequestCode
from rucola.testing.event_loop import advance, run_stepped, settle

RAISED = [OSError("x"), SystemExit(1), asyncio.CancelledError(), StopIteration(), GeneratorExit(), BaseException("x")]


@pytest.mark.few
@pytest.mark.parametrize("known", [True, False], ids=["known route", "unknown route"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_every_exception_of_a_selector_fails_its_send_alone(run, broker, error, known):
    def selector(queues, message):
        raise error

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            if known:
                await producer.send(Message("T", b"first"))
            futures = [
                producer.submit(Message("T", b"before")),
                producer.submit(Message("T", b"x"), selector=selector),
                producer.submit(Message("T", b"after")),
            ]
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert [isinstance(result, ClientError) for result in results] == [False, True, False]
            assert "the queue selector for topic T failed" in str(results[1])
            assert results[1].__cause__ is error
            with pytest.raises(ClientError, match="the queue selector for topic T failed"):
                await producer.send_oneway(Message("T", b"x"), selector=selector)
            assert producer.in_flight == 0

    run(scene())


@pytest.mark.parametrize("known", [True, False], ids=["known route", "unknown route"])
def test_ctrl_c_in_a_selector_passes_and_leaves_nobody_waiting(broker, known):
    def selector(queues, message):
        raise KeyboardInterrupt

    async def interrupted(producer: Producer) -> None:
        if known:
            await producer.send(Message("T", b"first"))
        futures.append(producer.submit(Message("T", b"before")))
        chosen = asyncio.ensure_future(producer.send(Message("T", b"x"), selector=selector))
        await settle(1)
        futures.extend([chosen, producer.submit(Message("T", b"after"))])
        await asyncio.Event().wait()

    async def afterwards(producer: Producer) -> None:
        await producer.flush()
        assert producer.in_flight == 0
        await producer.send(Message("T", b"last"))
        await producer.shutdown()

    futures: list[asyncio.Future] = []
    loop = asyncio.new_event_loop()
    try:
        one = broker(topics={"T": 1})
        loop.run_until_complete(one.__aenter__())
        producer = Producer("pg", one.address, PATIENT)
        loop.run_until_complete(producer.start())
        work = loop.create_task(interrupted(producer))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(work)
        loop.run_until_complete(afterwards(producer))
        work.cancel()
        loop.run_until_complete(asyncio.wait([work]))
        loop.run_until_complete(one.__aexit__())
        assert futures[0].result().status is SendStatus.SEND_OK
        if not known:
            assert "the queue selector for topic T was interrupted" in str(futures[1].exception())
            assert futures[2].result().status is SendStatus.SEND_OK
    finally:
        loop.close()


class Gone:
    """Its weak references are dead at once."""


def test_a_selector_that_chooses_what_is_no_queue(run, broker):
    async def coroutine(queues, message):
        return queues[0]

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            for selector, problem in (
                (lambda queues, _: None, "queue must be a MessageQueue, not None"),
                (lambda queues, _: weakref.proxy(Gone()), "queue must be a MessageQueue, not <weakproxy"),
                (lambda queues, _: queues, "queue must be a MessageQueue"),
                (lambda queues, _: MessageQueue("U", "broker-a", 0), "cannot go to a queue of topic U"),
                (lambda queues, _: MessageQueue("T", "elsewhere", 0), "broker elsewhere has no master"),
                (lambda queues: queues[0], "the queue selector for topic T failed: TypeError"),
                (coroutine, "is a coroutine function; it must be a plain one"),
                ("no function", "the queue selector for topic T failed: TypeError"),
            ):
                with pytest.raises(ClientError, match=problem):
                    await producer.send(Message("T", b"x"), selector=selector)
            assert producer.in_flight == 0
            assert not one.stored

    run(scene())


@pytest.mark.parametrize("known", [True, False], ids=["known route", "unknown route"])
def test_a_selector_may_submit(run, broker, known):
    inner: list[asyncio.Future] = []

    async def scene() -> None:
        async with broker(topics={"T": 2}) as one, Producer("pg", one.address, PATIENT) as producer:
            if known:
                await producer.message_queues("T")

            def selector(queues, message):
                inner.append(producer.submit(Message("T", b"inner"), queues[1]))
                return queues[0]

            outer = await producer.send(Message("T", b"outer"), selector=selector)
            assert outer.message_queue.queue_id == 0
            assert (await inner[0]).message_queue.queue_id == 1
            assert producer.in_flight == 0

    run(scene())


def test_a_selector_may_shut_the_producer_down(run, broker):
    """Its own message was accepted before, so the shutdown waits for it."""
    endings: list[asyncio.Future] = []

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()

            def selector(queues, message):
                endings.append(asyncio.ensure_future(producer.shutdown()))
                return queues[0]

            assert (await producer.send(Message("T", b"x"), selector=selector)).status is SendStatus.SEND_OK
            await endings[0]

    run(scene())


def test_an_iterable_that_raises_half_way(run, broker):
    """The error passes; it says what became of the messages that were taken before. No task is left."""

    async def scene() -> None:
        async with broker(topics={"T": 1, "U": 1}) as one, Producer("pg", one.address, PATIENT) as producer:

            def messages():
                yield from (Message("T", b"x", delay_level=1) for _ in range(3))
                yield Message("U", b"in an open batch")
                raise OSError("the source is gone")

            with pytest.raises(OSError, match="the source is gone") as failed:
                await producer.send_many(messages())
            assert failed.value.__notes__ == ["send_many had taken 4 messages: 3 are stored, 0 failed, 1 was not sent"]
            assert (len(one.stored), producer.in_flight) == (3, 0)

    run(scene())


@pytest.mark.parametrize("messages", [5, [5], ["text"], [None]])
def test_other_values_are_no_messages(run, broker, messages):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            with pytest.raises((ClientError, SendManyError), match="must be"):
                await producer.send_many(messages)
            with pytest.raises(ClientError, match="must be"):
                await producer.send_batch(messages)
            for call in (producer.send, producer.send_oneway, producer.request):
                with pytest.raises(ClientError, match="a message must be a Message"):
                    await call(messages)
            with pytest.raises(ClientError, match="a message must be a Message"):
                producer.submit(messages)
            assert producer.in_flight == 0

    run(scene())


def test_a_producer_belongs_to_one_event_loop(broker):
    """Another loop, in the same thread or in another one, is refused at once; the first loop goes on."""

    async def use(producer: Producer) -> None:
        message = Message("T", b"x")
        calls = [
            producer.send(message),
            producer.send_oneway(message),
            producer.send_batch([message]),
            producer.send_many([message]),
            producer.request(message),
            producer.recall("T", "handle"),
            producer.message_queues("T"),
            producer.flush(),
            producer.start(),
            producer.shutdown(),
            producer.__aenter__(),
            producer.__aexit__(None, None, None),
        ]
        for call in calls:
            with pytest.raises(
                ClientError, match="was started on one event loop and is called from another event loop"
            ):
                await call
        for submit in (producer.submit, lambda message: producer.submit_packed("T", b"x")):
            with pytest.raises(ClientError, match="another event loop"):
                submit(message)

    def without_loop(producer: Producer, outcomes: list[str]) -> None:
        try:
            producer.submit(Message("T", b"x"))
        except ClientError as error:
            outcomes.append(str(error))

    first = asyncio.new_event_loop()
    outcomes: list[str] = []
    one = broker(topics={"T": 1})
    try:
        first.run_until_complete(one.__aenter__())
        producer = Producer("pg", one.address)
        first.run_until_complete(producer.start())
        asyncio.run(use(producer))  # the first loop stands still

        async def beside() -> None:
            await asyncio.to_thread(asyncio.run, use(producer))  # the first loop runs in another thread
            await asyncio.to_thread(without_loop, producer, outcomes)
            await producer.send(Message("T", b"x"))

        first.run_until_complete(beside())
        assert "called from a thread without an event loop" in outcomes[0]
        assert len(one.stored) == 1
        first.run_until_complete(producer.shutdown())
        first.run_until_complete(one.__aexit__())
    finally:
        first.close()


def test_every_client_can_check_its_loop(broker):
    """``ClientInstance.owner`` is the one place for all classes."""

    async def scene(client: ClientInstance) -> None:
        client.owner.check()

    async def begin() -> ClientInstance:
        producer = Producer("pg", "127.0.0.1:1")
        await producer.start()
        await producer._instance.shutdown()
        return producer._instance

    instance = asyncio.run(begin())
    with pytest.raises(ClientError, match=r"every asyncio\.run makes a new one"):
        asyncio.run(scene(instance))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="the system does not tell of forks")
def test_a_producer_of_the_parent_is_refused_in_the_child_of_a_fork(broker):
    """Also if the parent's loop was running at the fork, so that the child seems to run on it."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            await producer.send(Message("T", b"x"))
            child = os.fork()
            if child == 0:
                told = 0
                try:
                    producer.submit(Message("T", b"y"))
                except ClientError as error:
                    told += "before the fork" in str(error)
                try:
                    producer.send(Message("T", b"y")).send(None)
                except ClientError as error:
                    told += "before the fork" in str(error)
                os._exit(0 if told == 2 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            await producer.send(Message("T", b"z"))
            assert [body for _, body in one.stored] == [b"x", b"z"]

    run_stepped(scene())


def test_recall_twice_and_recall_of_nothing(run, broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            for handle in (None, 5, b"x", "", "nonsense"):
                with pytest.raises(ClientError, match=r"recall_handle|not a recall handle"):
                    await producer.recall("T", handle)
            await producer.send(Message("T", b"x", delay=timedelta(1)))
            handle = RecallHandle("T", "broker-a", 1, "KEY").encode()
            one.scripts[RequestCode.RECALL_MESSAGE] = [
                lambda command: command.answer(0, ext_fields={"msgId": "KEY"}),
                lambda command: command.answer(13, "the message is due or was recalled"),
            ]
            assert await producer.recall("T", handle) == "KEY"
            with pytest.raises(BrokerError, match="was recalled"):
                await producer.recall("T", handle)

    run(scene())


def test_a_one_way_send_to_a_dead_broker_is_lost_without_an_error(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            async with broker("broker-b", topics={"U": 1}) as two:
                one.peers.append(two)
                producer = Producer("pg", one.address, PATIENT)
                await producer.start()
                await producer.send_oneway(Message("U", b"x"))
                await two.until(lambda: bool(two.stored))
            await producer.send_oneway(Message("U", b"y"))
            await settle(60)
            await producer.send(Message("T", b"z"))
            await producer.shutdown()
            assert len(two.stored) == 1

    run_stepped(scene())


def test_a_timeout_names_what_was_asked_of_whom(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            await producer.message_queues("T")
            one.scripts[SEND] = [silent] * 3
            future = producer.submit(Message("T", b"x"))
            await one.until(lambda: SEND in one.codes())
            advance(3)
            text = rf"{one.address} did not answer within 3000 ms: send to topic T; the message may be stored"
            with pytest.raises(RemotingTimeoutError, match=text):
                await future
            await settle(60)  # the route is refreshed
            one.scripts[ROUTE] = [silent]
            asking = asyncio.ensure_future(producer.message_queues("U"))
            await one.until(lambda: "U" in [command.ext_fields.get("topic") for command in one.received])
            advance(3)
            with pytest.raises(RemotingTimeoutError, match="did not answer within 3000 ms: GET_ROUTEINFO_BY_TOPIC"):
                await asking

    run_stepped(scene())


def test_threads_of_the_application_stay_out(broker):
    """A send from another thread's loop would touch this loop's data; it is refused before anything is touched."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            outcome: list[BaseException] = []

            def other() -> None:
                try:
                    asyncio.run(producer.send(Message("T", b"x")))
                except ClientError as error:
                    outcome.append(error)

            thread = threading.Thread(target=other)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert len(outcome) == 1
            assert (producer.in_flight, one.stored) == (0, [])

    run_stepped(scene())
