"""Clients whose broker is gone, refuses connections, or never responds, on a clock that the tests step."""

from __future__ import annotations

import asyncio

import pytest

from rucola import Message, MessageQueue, Producer, ProducerConfig, PullConsumer, PullConsumerConfig
from rucola.errors import NoRouteError, RemotingConnectError, RemotingTimeoutError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.testing.event_loop import advance, run_stepped, settle

SEND, PULL, BEAT = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.PULL_MESSAGE), int(RequestCode.HEART_BEAT)
QUEUE = MessageQueue("T", "broker-a", 0)
RARELY = {"heartbeat_broker_interval_ms": 36_000_000, "poll_name_server_interval_ms": 36_000_000}


def swallow(command: RemotingCommand) -> None:
    return None


async def fail_after(work: asyncio.Future, seconds: float) -> BaseException | None:
    """Lets ``seconds`` pass while ``work`` is running; returns its result or exception."""
    await settle()
    assert not work.done()
    advance(seconds)
    return (await asyncio.gather(work, return_exceptions=True))[0]


def blackhole(broker) -> int:
    """Makes every open connection discard all data; new connections work. Returns the number of requests so far."""
    for channel in broker.channels:
        channel.inbound._frames_received = lambda channel, batch: None
    return len(broker.received)


def test_a_producer_leaves_a_connection_that_swallows_everything(broker):
    async def scene() -> None:
        async with broker("names", {}) as names, broker(topics={"T": 1}) as one:
            names.peers = [one]
            config = ProducerConfig(send_msg_timeout_ms=3_000, **RARELY)
            async with Producer("pg", names.address, config) as producer:
                await producer.send(Message("T", b"first"))
                await settle()
                beats = len(one.heartbeats())
                blackhole(one)
                lost = asyncio.ensure_future(producer.send(Message("T", b"lost")))
                assert isinstance(await fail_after(lost, 3.001), RemotingTimeoutError)
                await producer.send(Message("T", b"second"))
                await settle()
                assert [body for _, body in one.stored] == [b"first", b"second"]
                assert len(one.channels) == 2
                assert len(one.heartbeats()) == beats + 1  # the broker may have removed the client

    run_stepped(scene())


def test_other_sends_on_their_way_are_sent_again_at_once(broker):
    """When one request expires, the other requests on its connection are sent again at once, and do not wait for their
    own timeouts.
    """

    async def scene() -> None:
        async with broker("names", {}) as names, broker(topics={"T": 1}) as one:
            names.peers = [one]
            async with Producer("pg", names.address, ProducerConfig(**RARELY)) as producer:
                await producer.send(Message("T", b"first"))
                blackhole(one)
                patient = producer.submit(Message("T", b"patient"), timeout_ms=3_600_000)
                short = producer.submit(Message("T", b"short"), timeout_ms=3_000)
                assert isinstance(await fail_after(short, 3.001), RemotingTimeoutError)
                await patient
                assert [body for _, body in one.stored] == [b"first", b"patient"]

    run_stepped(scene())


def test_an_attempt_that_expired_is_repeated_on_another_connection(broker):
    """The only further attempt uses a new connection; it would be lost on the old one, which is being closed."""

    async def scene() -> None:
        async with broker("names", {}) as names, broker(topics={"T": 1}) as one:
            names.peers = [one]
            config = ProducerConfig(
                send_msg_timeout_ms=3_600_000,
                send_msg_max_timeout_per_request_ms=3_000,
                retry_times_when_send_failed=1,
                **RARELY,
            )
            async with Producer("pg", names.address, config) as producer:
                await producer.send(Message("T", b"first"))
                blackhole(one)
                sending = asyncio.ensure_future(producer.send(Message("T", b"second")))
                await settle()
                advance(3.001)
                await sending
                assert [body for _, body in one.stored] == [b"first", b"second"]

    run_stepped(scene())


def test_a_chosen_queue_follows_its_broker_to_another_address(broker):
    """If the broker of a chosen queue gets a new address, the send uses this address, even if all other queues are on
    brokers that did not move.
    """

    async def scene() -> None:
        async with (
            broker("names", {}) as names,
            broker("a", {"T": 1}) as one,
            broker("b", {"U": 1}) as old,
            broker("b", {"U": 1}) as new,
            Producer("pg", names.address) as producer,
        ):
            names.peers = [one, old]
            await producer.send(Message("T", b"x"))
            await producer.send(Message("U", b"x"))
            queue = MessageQueue("T", "b", 0)
            await producer.send(Message("T", b"x"), queue)
            names.peers = [one, new]
            await producer._instance.routes.refresh("U")
            await producer.send(Message("T", b"y"))
            await producer.send(Message("T", b"z"), queue)
            assert [body for _, body in new.stored] == [b"z"]

    run_stepped(scene())


def test_a_pull_consumer_leaves_a_connection_that_swallows_everything(broker):
    async def scene() -> None:
        async with broker("names", {}) as names, broker(topics={"T": 1}) as one:
            names.peers = [one]
            async with PullConsumer("cg", names.address, PullConsumerConfig(**RARELY)) as consumer:
                await consumer.message_queues("T")
                await one.until(lambda: bool(one.heartbeats()))
                await settle()
                blackhole(one)
                held = asyncio.ensure_future(consumer.pull(QUEUE, 0, suspend_timeout_ms=15_000))
                assert isinstance(await fail_after(held, 30.001), RemotingTimeoutError)
                fields = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0"}
                one.scripts[PULL] = [lambda command: command.answer(19, ext_fields=fields)]
                assert (await consumer.pull(QUEUE, 0)).max_offset == 1
                await settle()
                assert len(one.heartbeats()) == 2

    run_stepped(scene())


def test_heartbeats_leave_a_connection_that_swallows_everything(broker):
    """The connection to a broker loses all data. Even if the client is idle, the broker gets its heartbeat over a new
    connection within two rounds.
    """

    async def scene() -> None:
        async with broker("names", {}) as names, broker(topics={"T": 1}) as one:
            names.peers = [one]
            async with Producer("pg", names.address, ProducerConfig()) as producer:
                await producer.message_queues("T")
                await one.until(lambda: len(one.heartbeats()) == 1)
                await settle()
                received = blackhole(one)
                for seconds in (30.001, 3.001, 30.001):
                    assert len(one.received) == received
                    advance(seconds)
                    await settle()
                assert len(one.heartbeats()) == 2
                assert producer.client_id == one.heartbeats()[-1].client_id

    run_stepped(scene())


async def until_sent(work: asyncio.Future, seconds: float, step: float = 0.05) -> float:
    """Lets time pass in steps until ``work`` is done, for at most about ``seconds``; returns the seconds passed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not work.done() and loop.time() - began < seconds:
        await settle(60)
        advance(step)
    await settle(60)
    return loop.time() - began


def test_a_refused_connection_is_tried_until_the_time_is_over(broker):
    async def scene() -> None:
        async with broker("names", {}) as names:
            names.peers = [one := broker(topics={"T": 1})]
            async with one:
                port = one.server.port
                producer = Producer("pg", names.address, ProducerConfig(**RARELY))
                await producer.start()
                await producer.send(Message("T", b"first"))
            await settle()
            sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
            assert 2.0 < await until_sent(sending, 10) <= 3.5
            with pytest.raises(RemotingConnectError, match="cannot connect") as caught:
                await sending
            # Attempts come at 0, 0, 50, 150, 350, 750, 1550 and 2550 ms; a slow machine may miss the last one.
            assert "attempt 8" in caught.value.__notes__[0] or "attempt 7" in caught.value.__notes__[0]

            sending = asyncio.ensure_future(producer.send(Message("T", b"y")))
            await until_sent(sending, 1)
            assert not sending.done()
            async with broker(topics={"T": 1}, port=port) as back:
                assert await until_sent(sending, 3) <= 1.5
                await sending
                assert [body for _, body in back.stored] == [b"y"]
                await producer.shutdown()

    run_stepped(scene())


def test_a_refused_connection_is_not_tried_without_pauses(broker):
    async def scene() -> None:
        async with broker("names", {}) as names:
            names.peers = [one := broker(topics={"T": 1})]
            config = ProducerConfig(retry_backoff_ms=0, retry_backoff_max_ms=0, **RARELY)
            producer = Producer("pg", names.address, config)
            await producer.start()
            async with one:
                await producer.send(Message("T", b"first"))
            # The time may end during the last attempt.
            with pytest.raises((RemotingConnectError, RemotingTimeoutError)) as caught:
                await producer.send(Message("T", b"x"), timeout_ms=100)
            assert 2 < int(caught.value.__notes__[0].split()[1]) <= 12
            await producer.shutdown()

    run_stepped(scene())


def test_refused_connections_do_not_use_up_the_attempts(broker):
    """A message has two attempts. Five connections to the broker fail and do not count; then the broker refuses the
    first attempt and accepts the second.
    """

    async def scene() -> None:
        async with broker("names", {}) as names:
            names.peers = [one := broker(topics={"T": 1})]
            async with one:
                port = one.server.port
                config = ProducerConfig(retry_times_when_send_failed=1, **RARELY)
                producer = Producer("pg", names.address, config)
                await producer.start()
                await producer.send(Message("T", b"first"))
            await settle()
            sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
            await until_sent(sending, 0.5)
            async with broker(topics={"T": 1}, port=port) as back:
                back.scripts[SEND] = [lambda command: command.answer(2, "busy")]
                await until_sent(sending, 2.5)
                await sending
                assert [body for _, body in back.stored] == [b"x"]
                await producer.shutdown()

    run_stepped(scene())


def test_a_message_that_may_not_be_repeated_waits_for_its_broker_all_the_same(broker):
    """Without a connection, a message was certainly not sent. It may wait for its broker even if it must not be sent
    twice.
    """

    async def scene() -> None:
        async with broker("names", {}) as names:
            names.peers = [one := broker(topics={"T": 1})]
            async with one:
                port = one.server.port
                producer = Producer("pg", names.address, ProducerConfig(retry_times_when_send_failed=0, **RARELY))
                await producer.start()
                await producer.send(Message("T", b"first"))
            await settle()
            sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
            await until_sent(sending, 0.5)
            async with broker(topics={"T": 1}, port=port) as back:
                await until_sent(sending, 2.5)
                await sending
                assert [body for _, body in back.stored] == [b"x"]
                await producer.shutdown()

    run_stepped(scene())


def test_a_first_message_waits_for_a_name_server_that_is_restarted(broker):
    async def scene() -> None:
        async with broker() as away:
            port = away.server.port
        producer = Producer("pg", f"127.0.0.1:{port}", ProducerConfig(**RARELY))
        await producer.start()
        sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
        hasty = asyncio.ensure_future(producer.send(Message("T", b"y"), timeout_ms=200))
        cancelled = producer.submit(Message("T", b"z"))
        cancelled.cancel()
        assert await until_sent(hasty, 3) <= 0.7
        with pytest.raises(NoRouteError, match=str(port)) as failed:
            await hasty
        assert isinstance(failed.value.__cause__, RemotingConnectError)
        assert producer.in_flight == 1
        async with broker(topics={"T": 1}, port=port) as back:
            assert await until_sent(sending, 3) <= 1.5
            await sending
            assert [body for _, body in back.stored] == [b"x"]
            await producer.shutdown()
        patient = Producer("pg", f"127.0.0.1:{port}", ProducerConfig(**RARELY))
        await patient.start()
        lookups: list[str] = []
        look_up = patient._instance.routes.route
        patient._instance.routes.route = lambda topic: lookups.append(topic) or look_up(topic)
        sending = asyncio.ensure_future(patient.send(Message("T", b"x")))
        assert 1.5 < await until_sent(sending, 10) <= 3.5
        with pytest.raises(NoRouteError, match="cannot connect"):
            await sending
        assert len(lookups) in (6, 7)  # lookups at 0, 50, 150, 350, 750, 1550 and 2550 ms
        await patient.shutdown()

    run_stepped(scene())


def test_a_name_server_that_swallows_everything_holds_no_message_longer_than_its_time(broker):
    """Each message fails at its own time limit; the lookup of the route continues for the remaining messages."""

    async def scene() -> None:
        config = ProducerConfig(mq_client_api_timeout_ms=1_000_000, **RARELY)
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, config) as producer:
            held: list[RemotingCommand] = []
            one.scripts[int(RequestCode.GET_ROUTEINFO_BY_TOPIC)] = [held.append]
            sends = [producer.submit(Message("T", b"%d" % s), timeout_ms=1000 * s) for s in (20, 5, 10)]
            await one.until(lambda: bool(held))
            for passed, ended in ((4.9, 0), (0.2, 1), (4.8, 1), (0.2, 2)):
                advance(passed)
                await settle()
                assert sum(send.done() for send in sends) == ended
                assert producer.in_flight == 3 - ended
            for send, seconds in ((sends[1], 5), (sends[2], 10)):
                with pytest.raises(NoRouteError, match=rf"topic T: .* did not answer within {seconds}\.\d s"):
                    await send
            one.channels[-1].send(one._route(held[0]).encode())
            await sends[0]
            assert [body for _, body in one.stored] == [b"20"]
            advance(30)
            await settle()
            assert producer.in_flight == 0

    run_stepped(scene())
