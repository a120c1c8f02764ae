"""The end of a producer, and the calls that wait for others: ``shutdown``, ``flush`` and ``ready``."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.producing import PATIENT, SEND, silent

from rucola import Message, Producer, ProducerConfig
from rucola.errors import ClientError, RemotingClosedError, SendManyError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.testing.event_loop import run_stepped, settle


class Held:
    """Holds back the broker's answers to the next sends."""

    def __init__(self, one, answer_stored, count: int) -> None:
        self.commands: list[RemotingCommand] = []
        self._one, self._answer = one, answer_stored
        one.scripts[SEND] = [self._hold] * count

    def _hold(self, command: RemotingCommand) -> None:
        self.commands.append(command)

    async def arrived(self, count: int) -> None:
        await self._one.until(lambda: len(self.commands) >= count)

    def answer(self, number: int = 0) -> None:
        command = self.commands.pop(number)
        self._one.channels[-1].send(self._answer(command, 0, 0).encode())


def limited(messages: int) -> ProducerConfig:
    return ProducerConfig(back_pressure_for_async_send_num=messages, send_msg_timeout_ms=3_600_000)


def test_shutdown_refuses_what_comes_later_and_waits_for_what_came_before(broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            held = Held(one, answer_stored, 2)
            earlier = [producer.submit(Message("T", b"x")) for _ in range(2)]
            await held.arrived(2)
            ending = asyncio.ensure_future(producer.shutdown())
            await settle()
            refused = [
                producer.send(Message("T", b"y")),
                producer.send_oneway(Message("T", b"y")),
                producer.send_batch([Message("T", b"y")]),
                producer.send_many([Message("T", b"y")]),
                producer.request(Message("T", b"y")),
                producer.recall("T", "handle"),
                producer.ready(),
                producer.start(),
            ]
            for work in refused:
                with pytest.raises(ClientError, match="shut down"):
                    await work
            with pytest.raises(ClientError, match="shut down"):
                producer.submit(Message("T", b"y"))
            held.answer()
            await earlier[0]
            await settle()
            assert not ending.done()
            held.answer()
            await ending
            assert (await earlier[1]).queue_offset == 0
            assert one.codes().count(SEND) == 2
            assert one.codes()[-1] == RequestCode.UNREGISTER_CLIENT

    run_stepped(scene())


def test_shutdown_wakes_who_waits_for_room(broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, limited(1))
            await producer.start()
            held = Held(one, answer_stored, 1)
            producer.submit(Message("T", b"x"))
            await held.arrived(1)
            waiting = [asyncio.ensure_future(producer.ready()) for _ in range(3)]
            sends = [asyncio.ensure_future(producer.send(Message("T", b"y"))) for _ in range(3)]
            many = asyncio.ensure_future(producer.send_many([Message("T", b"z")]))
            await settle()
            ending = asyncio.ensure_future(producer.shutdown())
            await settle()
            for task in (*waiting, *sends):
                assert isinstance(task.exception(), ClientError), task
            outcome = many.exception()
            assert isinstance(outcome, SendManyError) and isinstance(outcome.outcomes[0], ClientError)
            assert not ending.done()
            held.answer()
            await ending

    run_stepped(scene())


def test_send_many_keeps_the_results_of_what_it_sent_before_the_shutdown(broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1, "U": 1}) as one:
            producer = Producer("pg", one.address, limited(1))
            await producer.start()
            one.scripts[SEND] = []
            held = Held(one, answer_stored, 1)
            many = asyncio.ensure_future(producer.send_many([Message("T", b"x"), Message("U", b"y")]))
            await held.arrived(1)
            ending = asyncio.ensure_future(producer.shutdown())
            await settle()
            held.answer()
            with pytest.raises(SendManyError) as failed:
                await many
            await ending
            first, second = failed.value.outcomes
            assert first.queue_offset == 0
            assert isinstance(second, ClientError)

    run_stepped(scene())


def test_shutdown_returns_however_many_keep_submitting(broker):
    """Each sender waits in ``ready`` and submits, as long as the producer lets it."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, limited(20))
            await producer.start()
            ended: list[ClientError] = []

            async def keep_sending() -> None:
                try:
                    while True:
                        await producer.ready()
                        producer.submit(Message("T", b"x"))
                except ClientError as error:
                    ended.append(error)

            senders = [asyncio.ensure_future(keep_sending()) for _ in range(4)]
            await one.until(lambda: len(one.stored) > 100)
            await producer.shutdown()
            accepted = len(one.stored)
            await asyncio.gather(*senders)
            assert len(ended) == 4
            assert producer.in_flight == 0
            assert len(one.stored) == accepted

    run_stepped(scene())


def test_flush_waits_only_for_what_was_submitted_before(run, broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            held = Held(one, answer_stored, 4)
            await producer.flush()
            flushes = []
            for number in range(3):  # flush number n waits for the messages 0 to n
                producer.submit(Message("T", b"%d" % number))
                flushes.append(asyncio.ensure_future(producer.flush()))
                await settle()
            twin = asyncio.ensure_future(producer.flush())
            given_up = asyncio.ensure_future(producer.flush())
            await settle()
            given_up.cancel()
            producer.submit(Message("T", b"3"))
            await held.arrived(4)

            async def done_after(number: int) -> list[bool]:
                before = producer.in_flight
                held.answer(number)
                while producer.in_flight == before:
                    await settle(1)
                await settle()
                return [each.done() for each in (*flushes, twin)]

            assert await done_after(1) == [False, False, False, False]  # message 1
            assert await done_after(0) == [True, True, False, False]  # message 0
            assert await done_after(0) == [True, True, True, True]  # message 2; message 3 is in flight
            assert producer.in_flight == 1
            held.answer()
            await producer.flush()
            assert producer.in_flight == 0

    run(scene())


def test_shutdown_in_two_tasks(broker, answer_stored):
    """The second call waits for the first; giving up the second does not harm the messages."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            held = Held(one, answer_stored, 1)
            future = producer.submit(Message("T", b"x"))
            await held.arrived(1)
            calls = [asyncio.ensure_future(producer.shutdown()) for _ in range(3)]
            await settle()
            calls[1].cancel()
            await settle()
            assert [call.done() for call in calls] == [False, True, False]
            held.answer()
            await asyncio.gather(calls[0], calls[2])
            assert future.done() and future.exception() is None
            assert one.codes().count(RequestCode.UNREGISTER_CLIENT) == 1
            await producer.shutdown()

    run_stepped(scene())


def test_a_second_shutdown_returns_when_the_first_is_given_up(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            one.scripts[SEND] = [silent]
            future = producer.submit(Message("T", b"x"))
            await one.until(lambda: SEND in one.codes())
            first, second = (asyncio.ensure_future(producer.shutdown()) for _ in range(2))
            await settle()
            first.cancel()
            await second
            assert isinstance(future.exception(), RemotingClosedError)

    run_stepped(scene())


def test_shutdown_from_a_callback_of_submit(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            endings: list[asyncio.Future[None]] = []
            producer.submit(Message("T", b"x")).add_done_callback(
                lambda _: endings.append(asyncio.ensure_future(producer.shutdown()))
            )
            later = producer.submit(Message("T", b"y"))
            assert (await later).queue_offset == 1
            while not endings:
                await settle(1)
            await endings[0]
            with pytest.raises(ClientError, match="shut down"):
                await producer.send(Message("T", b"z"))

    run(scene())


def test_a_producer_is_not_started_twice_in_its_life(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address)
            await producer.shutdown()  # nothing to shut down yet
            with pytest.raises(ClientError, match="not started"):
                await producer.ready()
            await producer.start()
            await producer.start()
            await producer.send(Message("T", b"x"))
            await producer.shutdown()
            with pytest.raises(ClientError, match="cannot be started again"):
                await producer.start()

    run(scene())


def test_a_shutdown_that_is_given_up_at_once_leaves_no_message_waiting_for_its_route(broker):
    """The search for the route is cancelled before it has begun; nobody else would fail the message."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            future = producer.submit(Message("T", b"x"))
            ending = asyncio.ensure_future(producer.shutdown())
            producer._instance.keep = lambda work: work.close()  # as if the task were cancelled before it ran
            other = producer.submit(Message("U", b"x"))
            await settle(1)
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            for each in (future, other):
                with pytest.raises(RemotingClosedError, match=r"search for the route of topic .; nothing was sent$"):
                    await each
            assert producer.in_flight == 0

    run_stepped(scene())


def test_a_shutdown_that_is_cancelled_fails_messages_that_wait_for_their_route(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            one.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [silent]
            futures = [producer.submit(Message("T", b"x")) for _ in range(3)]
            ending = asyncio.ensure_future(producer.shutdown())
            await settle()
            ending.cancel()
            for future in futures:
                with pytest.raises(RemotingClosedError, match=r"search for the route of topic T; nothing was sent$"):
                    await future
            await producer.shutdown()

    run_stepped(scene())


@pytest.mark.parametrize("wait", [Producer.ready, Producer.flush])
def test_calls_that_were_cancelled_leave_nothing_behind(broker, answer_stored, wait):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, limited(1))
            await producer.start()
            held = Held(one, answer_stored, 1)
            future = producer.submit(Message("T", b"x"))
            await held.arrived(1)
            for _ in range(100):
                waiting = asyncio.ensure_future(wait(producer))
                await settle(2)
                waiting.cancel()
                await settle(2)
                assert waiting.cancelled()
            pipeline = producer._pipeline
            assert len(pipeline._room_waiters) == 0
            assert len(pipeline._flush_points) == len(pipeline._flush_order) <= 1
            last = asyncio.ensure_future(wait(producer))
            await settle()
            held.answer()
            await asyncio.gather(future, last)
            await producer.shutdown()

    run_stepped(scene())
