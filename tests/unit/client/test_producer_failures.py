"""A producer whose send fails: which responses are final, and where it sends again."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from tests.unit.client.producing import PATIENT, ROUTE, SEND, refuse, sent_properties, silent

from rucola import Message, MessageQueue, Producer, ProducerConfig, SendStatus
from rucola.errors import (
    BrokerError,
    ClientError,
    FormatError,
    NoRouteError,
    RemotingClosedError,
    RemotingTimeoutError,
)
from rucola.protocol.command import RemotingCommand
from rucola.testing.event_loop import advance, run_stepped, settle


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_answers_that_are_tried_again(run, broker, code):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address, PATIENT) as producer:
            one.scripts[SEND] = [refuse(code), refuse(code)]
            result = await producer.send(Message("T", b"x"))
            assert result.status is SendStatus.SEND_OK
            keys = {properties["UNIQ_KEY"] for properties in map(sent_properties, one.received) if properties}
            assert keys == {result.msg_id}
            assert one.codes().count(SEND) == 3
            one.scripts[SEND] = [refuse(code)] * 3
            with pytest.raises(BrokerError, match="not now") as caught:
                await producer.send(Message("T", b"x"))
            assert (caught.value.code, caught.value.address) == (code, one.address)
            assert "attempt 3" in caught.value.__notes__[0]

    run(scene())


@pytest.mark.parametrize("code", [13, 29, 3, 26])
def test_answers_that_are_final(run, broker, code):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address, PATIENT) as producer:
            one.scripts[SEND] = [refuse(code)]
            with pytest.raises(BrokerError):
                await producer.send(Message("T", b"x"))
            assert one.codes().count(SEND) == 1

    run(scene())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_stored_but_not_safe_is_a_result(run, broker, answer_stored, code, status):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            script = [lambda command: answer_stored(command, 3, 5, code=code)]
            async with Producer("pg", one.address, PATIENT) as producer:
                one.scripts[SEND] = list(script)
                result = await producer.send(Message("T", b"x"))
                assert (result.status, result.queue_offset) == (status, 5)
                assert result.message_queue.queue_id == 3
            again = ProducerConfig(send_msg_timeout_ms=3_600_000, retry_another_broker_when_not_store_ok=True)
            async with Producer("pg", one.address, again) as producer:
                one.scripts[SEND] = list(script)
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK

    run(scene())


@pytest.mark.parametrize("later", [13, 2, None])
def test_stored_but_not_safe_outlives_the_failure_of_later_attempts(run, broker, answer_stored, later):
    """A message was stored but not synced. Later attempts end with a final refusal, a refusal that allows a retry, or a
    closed connection.
    """

    async def scene() -> None:
        async with broker(topics={"T": 2}) as one:
            config = ProducerConfig(
                send_msg_timeout_ms=3_600_000, retry_backoff_ms=1, retry_another_broker_when_not_store_ok=True
            )
            async with Producer("pg", one.address, config) as producer:
                queue = MessageQueue("T", "broker-a", 1)
                fail = (lambda command: one.channels[-1].close()) if later is None else refuse(later)
                one.scripts[SEND] = [lambda command: answer_stored(command, 1, 5, code=10), fail, fail]
                result = await producer.send(Message("T", b"x"), queue)
                assert (result.status, result.queue_offset) == (SendStatus.FLUSH_DISK_TIMEOUT, 5)
                assert result.message_queue == queue
                assert one.codes().count(SEND) == (2 if later == 13 else 3)
                assert producer.in_flight == 0

    run(scene())


def test_retry_goes_to_another_broker(run, broker):
    async def scene() -> None:
        async with broker("broker-a", {"T": 2}) as one, broker("broker-b", {"T": 2}) as other:
            one.peers = [other]
            config = ProducerConfig(send_msg_timeout_ms=3_600_000, retry_times_when_send_failed=1)
            async with Producer("pg", one.address, config) as producer:
                one.scripts[SEND] = [refuse(2)] * 100
                for _ in range(8):
                    assert (await producer.send(Message("T", b"x"))).message_queue.broker_name == "broker-b"
                assert len(other.stored) == 8
                assert not one.stored

    run(scene())


def test_broker_comes_back_on_the_same_port(run, broker):
    """Every message is acknowledged in the end and keeps its id; none is lost with the connection."""

    async def scene() -> None:
        config = ProducerConfig(
            send_msg_timeout_ms=3_600_000,
            retry_times_when_send_async_failed=1_000_000,
            retry_backoff_ms=1,
            retry_backoff_max_ms=5,
        )
        async with broker(topics={"T": 4}) as one:
            port = one.server.port
            producer = Producer("pg", one.address, config)
            await producer.start()
            await producer.send(Message("T", b"first"))
            one.scripts[SEND] = [silent] * 50
            futures = [producer.submit(Message("T", str(n).encode())) for n in range(100)]
            await one.until(lambda: one.codes().count(SEND) >= 51)
        await settle(100)
        assert producer.in_flight >= 50
        async with broker(topics={"T": 4}, port=port) as back:
            results = await asyncio.gather(*futures)
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            assert len({result.msg_id for result in results}) == 100
            await back.until(lambda: bool(back.heartbeats()))
            await producer.shutdown()

    run(scene())


def test_broker_comes_back_under_another_address(run, broker):
    async def scene() -> None:
        config = ProducerConfig(
            send_msg_timeout_ms=3_600_000, retry_times_when_send_failed=1_000_000, retry_backoff_max_ms=20
        )
        async with broker("names", {}) as names:
            producer = Producer("pg", names.address, config)
            await producer.start()
            async with broker("broker-a", {"T": 1}) as old:
                names.peers = [old]
                await producer.send(Message("T", b"x"))
            async with broker("broker-a", {"T": 1}) as new:
                names.peers = [new]
                await producer.send(Message("T", b"y"))
                assert [body for _, body in new.stored] == [b"y"]
                await producer.shutdown()

    run(scene())


def test_timeout_covers_all_attempts(broker):
    async def scene() -> None:
        async def stuck(**settings: int) -> int:
            """Returns the number of attempts that a send makes until its time is over."""
            config = ProducerConfig(send_msg_timeout_ms=3_000, **settings)
            attempts = len(one.received)
            async with Producer("pg", one.address, config) as producer:
                await producer.message_queues("T")
                one.scripts[SEND] = [silent] * 10
                sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
                while not sending.done():
                    await settle()
                    advance(0.5)
                with pytest.raises(RemotingTimeoutError, match="did not answer"):
                    await sending
            return one.codes()[attempts:].count(SEND)

        async with broker(topics={"T": 1}) as one:
            assert await stuck() == 1
            assert await stuck(send_msg_max_timeout_per_request_ms=1_000) in (2, 3)

    run_stepped(scene())


def test_answer_without_its_fields(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            one.scripts[SEND] = [
                lambda command: command.answer(0),
                lambda command: command.answer(0, ext_fields={"msgId": "x", "queueId": "0", "queueOffset": "many"}),
            ]
            for _ in range(2):
                with pytest.raises(FormatError, match="response to a send"):
                    await producer.send(Message("T", b"x"))
            assert producer.in_flight == 0

    run(scene())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"queue": MessageQueue("U", "broker-a", 0)}, "to topic T cannot go to a queue of topic U"),
        ({"queue": "T"}, "queue must be a MessageQueue, not 'T'"),
        ({"timeout_ms": 0}, "timeout_ms must be at least 1, not 0"),
        ({"timeout_ms": -5}, "timeout_ms must be at least 1, not -5"),
        ({"timeout_ms": 0.5}, "timeout_ms must be a whole number, not 0.5"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_the_call(run, broker, arguments, problem):
    async def scene() -> None:
        async with broker(topics={"T": 1, "U": 1}) as one, Producer("pg", one.address) as producer:
            message = Message("T", b"x")
            with pytest.raises(ClientError, match=problem):
                await producer.send(message, **arguments)
            with pytest.raises(ClientError, match=problem):
                producer.submit(message, **arguments)
            with pytest.raises(ClientError, match=problem):
                await producer.send_batch([message], **arguments)
            if "queue" in arguments:
                with pytest.raises(ClientError, match=problem):
                    await producer.send_oneway(message, **arguments)
            assert producer.in_flight == 0
            assert not one.received  # no request was sent

    run(scene())


def test_a_refusal_names_code_broker_remark_and_whether_to_try_again(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            for code, name, advice in (
                (13, "MESSAGE_ILLEGAL", "another try will not help"),
                (2, "SYSTEM_BUSY", "another try may succeed"),
            ):
                one.scripts[SEND] = [refuse(code)] * 3
                with pytest.raises(BrokerError) as caught:
                    await producer.send(Message("T", b"x"))
                text = f"broker-a ({one.address}) answered code {code} {name}: not now ({advice})"
                assert str(caught.value) == text
                assert str(pickle.loads(pickle.dumps(caught.value))) == text
                assert (caught.value.code_name, caught.value.broker_name) == (name, "broker-a")
            one.scripts[SEND] = [refuse(4711)]
            with pytest.raises(BrokerError, match=r"answered code 4711: not now"):
                await producer.send(Message("T", b"x"))

    run(scene())


def test_brokers_that_were_slow_or_failed_are_left_out_for_a_while(broker):
    """As in MQFaultStrategy, a broker is avoided for 2 s after a send that took 550 ms or longer, and for 10 s after a
    failure.
    """

    async def scene() -> None:
        config = ProducerConfig(
            send_latency_fault_enable=True,
            send_msg_timeout_ms=3_600_000,
            heartbeat_broker_interval_ms=36_000_000,
            poll_name_server_interval_ms=36_000_000,
        )
        async with broker("a", {"T": 1}) as slow, broker("b", {"T": 1}) as other:
            slow.peers = [other]
            async with Producer("pg", slow.address, config) as producer:

                async def brokers(count: int = 6) -> set[str]:
                    results = [await producer.send(Message("T", b"x")) for _ in range(count)]
                    return {result.message_queue.broker_name for result in results}

                async def answered_after(seconds: float) -> None:
                    held: list[RemotingCommand] = []
                    slow.scripts[SEND] = [held.append]
                    sends = [producer.submit(Message("T", b"x")) for _ in range(2)]
                    await slow.until(lambda: bool(held))
                    await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)  # the other broker is fast
                    advance(seconds)
                    slow.channels[-1].send(slow._store(held[0]).encode())
                    await asyncio.gather(*sends)

                assert await brokers() == {"a", "b"}
                await answered_after(0.5)
                assert await brokers() == {"a", "b"}
                await answered_after(0.56)
                assert await brokers() == {"b"}
                advance(1.5)
                assert await brokers() == {"b"}
                advance(0.501)
                assert await brokers() == {"a", "b"}
                slow.scripts[SEND] = [refuse(2)]
                assert await brokers() == {"b"}  # one message was refused, and sent again
                advance(9.5)
                assert await brokers() == {"b"}
                other.topics.clear()
                await producer._instance.routes.refresh("T")
                assert await brokers() == {"a"}  # there is no other broker
                other.topics["T"] = 1
                await producer._instance.routes.refresh("T")
                assert await brokers() == {"a", "b"}  # it has responded fast since
                slow.scripts[SEND] = [lambda command: slow.channels[-1].abort()]
                assert await brokers() == {"b"}  # a connection was lost
                slow.scripts.clear()
                other.scripts[SEND] = [refuse(2)]
                assert await brokers(1) == {"a"}  # all are avoided, so a retry only avoids the one that just failed

    run_stepped(scene())


def test_a_fail_over_goes_to_the_new_master(broker):
    """The master becomes a slave. Messages wait until the other broker is registered as master, less than a second."""

    async def scene() -> None:
        config = ProducerConfig(
            send_msg_timeout_ms=60_000, retry_times_when_send_async_failed=9, poll_name_server_interval_ms=36_000_000
        )
        async with broker("a", {"T": 1}) as one, broker("a", {"T": 1}) as other:
            one.peers, other.broker_id = [other], 1
            async with Producer("pg", one.address, config) as producer:
                await producer.send(Message("T", b"x"))
                one.scripts[SEND] = [refuse(14)] * 99
                one.broker_id = 2
                sends = [producer.submit(Message("T", b"x"))]
                for turn in range(100):
                    if turn == 50:
                        sends.append(producer.submit(Message("T", b"x"), MessageQueue("T", "a", 0)))
                        sends.append(producer.submit(Message("T", b"x")))
                    await settle(20)
                    advance(0.1)
                assert not any(send.done() for send in sends)
                asked = one.codes().count(ROUTE)
                assert asked <= 12  # once a second
                other.broker_id = 0
                for _ in range(12):
                    await settle(20)
                    advance(0.1)
                assert all(send.done() for send in sends)
                assert len(await asyncio.gather(*sends)) == len(other.stored) == 3
                assert one.codes().count(SEND) <= 20

    run_stepped(scene())


@pytest.mark.parametrize("ends", ["time", "shutdown", "cancelled"])
def test_messages_without_a_master_end(broker, ends):
    async def scene() -> None:
        config = ProducerConfig(send_msg_timeout_ms=1_000, poll_name_server_interval_ms=36_000_000)
        async with broker("a", {"T": 1}) as one:
            one.broker_id = 1
            producer = Producer("pg", one.address, config)
            await producer.start()
            send = producer.submit(Message("T", b"x"))
            await settle(20)
            ending = asyncio.ensure_future(producer.shutdown())  # waits for the message
            await settle(20)
            if ends == "cancelled":
                send.cancel()
            elif ends == "shutdown":
                ending.cancel()
            if ends == "shutdown":  # nobody waits for a timer
                await settle(20)
                assert send.done()
            for turn in range(11):
                await settle(20)
                assert ends != "time" or turn > 9 or not send.done()
                advance(0.1)
            await asyncio.wait((ending,))
            assert producer.in_flight == 0
            if ends == "time":
                with pytest.raises(NoRouteError, match="no master of a is registered"):
                    send.result()
            elif ends == "shutdown":
                with pytest.raises(RemotingClosedError, match="nothing was sent"):
                    send.result()
            assert not one.stored

    run_stepped(scene())


def test_a_hundred_messages_without_a_master_cost_one_task(broker):
    """They look again when a route has changed, not each by itself; a cancelled one is not in flight any more."""

    async def scene() -> None:
        config = ProducerConfig(send_msg_timeout_ms=60_000, poll_name_server_interval_ms=36_000_000)
        async with broker("a", {"T": 1}) as one:
            one.broker_id = 1
            async with Producer("pg", one.address, config) as producer:
                await producer._instance.routes.route("T")
                looks = 0
                choose = producer._pipeline._choose

                def counted(*arguments: object) -> object:
                    nonlocal looks
                    looks += 1
                    return choose(*arguments)

                producer._pipeline._choose = counted
                sends = [producer.submit(Message("T", b"x")) for _ in range(100)]
                sends[5].cancel()
                for _ in range(50):
                    await settle(20)
                    advance(0.1)
                assert (looks, producer.in_flight) == (100, 99)
                assert one.codes().count(ROUTE) <= 7
                one.broker_id = 0
                for _ in range(11):
                    await settle(20)
                    advance(0.1)
                await settle(200)
                assert (looks, len(one.stored), producer.in_flight) == (199, 99, 0)
                one.broker_id = 1  # the next time
                await producer._instance.routes.refresh("T")
                last = producer.submit(Message("T", b"x"))
                await settle(20)
                one.broker_id = 0
                for _ in range(12):
                    await settle(20)
                    advance(0.1)
                await settle(20)
                assert last.done()

    run_stepped(scene())


def test_an_interrupt_in_a_selector_of_one_message_that_waits_keeps_no_other_waiting(broker):
    async def scene() -> None:
        config = ProducerConfig(send_msg_timeout_ms=60_000, poll_name_server_interval_ms=36_000_000)
        async with broker("a", {"T": 2}) as one:
            one.broker_id = 1
            async with Producer("pg", one.address, config) as producer:
                await producer._instance.routes.route("T")

                def interrupted(*_: object) -> MessageQueue:
                    raise KeyboardInterrupt

                first = producer.submit(Message("T", b"x"), selector=interrupted)
                second = producer.submit(Message("T", b"x"))
                await settle(20)
                one.broker_id = 0
                await producer._instance.routes.refresh("T")
                wait = producer._pipeline._masterless
                with pytest.raises(KeyboardInterrupt):
                    wait._send_all()
                with pytest.raises(ClientError, match="was interrupted"):
                    await first
                assert (await second).status is SendStatus.SEND_OK

    run_stepped(scene())
