"""Name servers that are wrong, silent, or know no broker: what a producer says, and how long it tries."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.producing import ROUTE, refuse, silent

from rucola import Message, Producer, ProducerConfig, TransactionProducer
from rucola.errors import ClientError, ConfigError, NoRouteError, RemotingError
from rucola.protocol.codes import RequestCode
from rucola.testing.event_loop import SteppedEventLoop, advance, run_stepped, settle

PATIENT = ProducerConfig(send_msg_timeout_ms=3_000, retry_backoff_ms=1_000, retry_backoff_max_ms=1_000)


@pytest.mark.parametrize(
    ("addresses", "bad"),
    [
        ("", "''"),
        ([], "''"),
        ("localhost", "'localhost'"),
        ("rocketmq://127.0.0.1:9876", "'rocketmq://127.0.0.1:9876'"),
        ("http://127.0.0.1:9876", "'http://127.0.0.1:9876'"),
        (["127.0.0.1:9876", "nonsense"], "'nonsense'"),
        ("127.0.0.1:9876/", "'127.0.0.1:9876/'"),
        (9876, "'9876'"),
        (None, "'None'"),
        ([9876], r"'\[9876\]'"),
        (b"127.0.0.1:9876", "b'127"),
    ],
)
def test_addresses_that_are_none_are_refused_at_once(addresses, bad):
    allowed = "host:port without a scheme, several separated by ; or as a list"
    for make in (lambda: Producer("pg", addresses), lambda: TransactionProducer("pg", addresses, object())):
        with pytest.raises(ConfigError, match=rf"option namesrv \(namesrvAddr\): .*{bad}.*; allowed: {allowed}"):
            make()


@pytest.mark.parametrize("form", ["{0}", " {0} ; ", "{0},{0}", ["{0}"], ("{0}", "{0}"), ["{0};{0}"]])
def test_addresses_in_each_form(run, broker, form):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            given = form.format(one.address) if isinstance(form, str) else [each.format(one.address) for each in form]
            async with Producer("pg", given) as producer:
                await producer.send(Message("T", b"x"))
            assert len(one.stored) == 1

    run(scene())


def test_a_name_server_that_cannot_be_reached_is_no_missing_topic():
    """The error names address, cause, topic and tries, and another try may help."""

    async def scene() -> None:
        async with Producer("pg", "127.0.0.1:1", PATIENT) as producer:
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x")))
            for _ in range(3):
                await settle(60)
                assert not sending.done()
                advance(1)
            await settle(60)
            text = r"topic orders: name server: cannot connect to 127.0.0.1:1: .*failed.* \([34] tries in 3\.\d s\)"
            with pytest.raises(NoRouteError, match=text) as failed:
                await sending
            assert failed.value.retriable
            assert isinstance(failed.value, RemotingError)
            assert producer.in_flight == 0
            for call in (producer.message_queues("orders"), producer.send_oneway(Message("orders", b"x"))):
                with pytest.raises(RemotingError, match=r"cannot connect to 127\.0\.0\.1:1"):
                    await call

    run_stepped(scene())


def test_a_name_server_that_stays_silent(broker):
    async def scene() -> None:
        async with broker() as one, Producer("pg", one.address, PATIENT) as producer:
            one.scripts[ROUTE] = [silent] * 9
            futures = [producer.submit(Message("orders", b"x"), timeout_ms=timeout_ms) for timeout_ms in (500, None)]
            await one.until(lambda: ROUTE in one.codes())
            advance(0.5)
            text = rf"topic orders: name server {one.address} did not answer within 0\.5 s \(1 try in 0\.5 s\)"
            with pytest.raises(NoRouteError, match=text):
                await futures[0]
            advance(2.5)
            await settle(60)
            with pytest.raises(NoRouteError, match=r"orders: name server.* did not answer within 3.*\(1 try in 3"):
                await futures[1]

    run_stepped(scene())


@pytest.mark.parametrize("code", [ROUTE, int(RequestCode.GET_BROKER_CLUSTER_INFO)])
def test_the_port_of_a_broker_is_told(run, broker, code):
    async def scene() -> None:
        async with broker(topics={}) as one, Producer("pg", one.address, PATIENT) as producer:
            one.scripts[code] = [refuse(3, " request type 105 not supported")] * 3
            text = rf"{one.address} is a broker, not a name server; clients need the name server, usually port 9876"
            with pytest.raises(ClientError, match=text):
                await producer.send(Message("T", b"x"))
            assert producer.in_flight == 0

    run(scene())


def test_a_broker_that_restarts_is_waited_for(broker):
    """A service that starts first: no broker is registered yet, which is no missing topic."""

    async def scene() -> None:
        async with broker(topics={}) as one, Producer("pg", one.address, PATIENT) as producer:
            nobody = [lambda command: command.answer(0, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}')]
            one.scripts[RequestCode.GET_BROKER_CLUSTER_INFO] = nobody * 9
            early, late = (producer.submit(Message("T", b"x"), timeout_ms=ms) for ms in (1_500, 3_000))
            for seconds in (0.9, 0.7):
                await settle(80)
                advance(seconds)
            await settle(80)
            text = rf"no route to topic T: no broker is registered at {one.address} \(1 try in 1\.6 s\)"
            with pytest.raises(NoRouteError, match=text) as failed:
                await early
            assert failed.value.retriable
            one.topics["T"] = 1
            advance(1)
            assert (await late).msg_id
            assert len(one.stored) == 1

    run_stepped(scene())


def test_a_topic_that_no_broker_has_is_a_final_error(run, broker):
    async def scene() -> None:
        async with broker(topics={"U": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            with pytest.raises(ClientError, match="no broker has it, and none creates topics automatically") as failed:
                await producer.send(Message("T", b"x"))
            assert not failed.value.retriable

    run(scene())


def test_the_second_of_two_name_servers_is_told_too(broker):
    """Only the first one is a broker's port: the mistake shows at once rather than every other time."""

    async def scene() -> None:
        assert isinstance(asyncio.get_running_loop(), SteppedEventLoop)
        async with broker() as wrong, broker(topics={"T": 1}) as right:
            wrong.scripts[ROUTE] = [refuse(3)]
            async with Producer("pg", [wrong.address, right.address], PATIENT) as producer:
                with pytest.raises(ClientError, match=rf"{wrong.address} is a broker"):
                    await producer.send(Message("T", b"x"))

    run_stepped(scene())


def test_dots_are_explained(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            with pytest.raises(ClientError, match=r"topic 'orders.new' must be .*; dots are not allowed"):
                await producer.send(Message("orders.new", b"x"))
            with pytest.raises(ClientError, match=r"topic 'orders new' must be 1 to 127 of the characters \S+$"):
                await producer.send(Message("orders new", b"x"))

    run(scene())
