"""The producer with a scripted broker over loopback: routes, pipelines, heartbeats, start and shutdown."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.unit.client.producing import PATIENT, ROUTE, SEND, properties_of, sent_properties, silent

from rucola import Message, MessageQueue, Producer, ProducerConfig, SendResult, SendStatus
from rucola.errors import (
    ClientError,
    ConfigError,
    NoRouteError,
    RemotingClosedError,
    RemotingError,
    TopicNotExistError,
)
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.testing.event_loop import advance, run_stepped, settle


def test_send(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address) as producer:
            message = Message("T", b"hello", tags="TagA", keys=["k1", "k2"], flag=7, properties={"origin": "Zürich"})
            result = await producer.send(message)
            header, body = one.stored[0]
            assert (header.producer_group, header.topic, header.default_topic) == ("pg", "T", "TBW102")
            assert (header.default_topic_queue_nums, header.sys_flag, header.flag) == (4, 0, 7)
            assert (header.reconsume_times, header.unit_mode, header.batch) == (0, False, False)
            assert header.broker_name == "broker-a"
            assert body == b"hello"
            assert properties_of(header) == {
                "TAGS": "TagA",
                "KEYS": "k1 k2",
                "origin": "Zürich",
                "UNIQ_KEY": result.msg_id,
                "WAIT": "true",
            }
            assert message.uniq_key == result.msg_id
            assert len(result.msg_id) == 32
            assert (await producer.send(message)).msg_id == result.msg_id
            assert result.status is SendStatus.SEND_OK
            assert result.message_queue == MessageQueue("T", "broker-a", header.queue_id)
            assert (result.queue_offset, result.offset_msg_id) == (0, "7F00000100002A9F0000000000000001")
        assert one.codes()[-1] == RequestCode.UNREGISTER_CLIENT
        assert one.received[-1].ext_fields == {"clientID": producer.client_id, "producerGroup": "pg"}

    run(scene())


def test_queues_take_turns_and_a_chosen_queue_is_kept(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address) as producer:
            for _ in range(8):
                await producer.send(Message("T", b"x"))
            assert Counter(header.queue_id for header, _ in one.stored) == {0: 2, 1: 2, 2: 2, 3: 2}
            queues = await producer.message_queues("T")
            assert queues == [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
            for _ in range(3):
                assert (await producer.send(Message("T", b"x"), queues[2])).message_queue == queues[2]
            # The broker decides about a queue that is not in the route.
            far = MessageQueue("T", "broker-a", 99)
            assert (await producer.send(Message("T", b"x"), far)).message_queue == far
            with pytest.raises(ClientError, match="broker-z"):
                await producer.send(Message("T", b"x"), MessageQueue("T", "broker-z", 0))

    run(scene())


def test_unknown_topic_goes_where_tbw102_is(run, broker):
    async def scene() -> None:
        async with broker() as one, Producer("pg", one.address) as producer:
            for _ in range(4):
                await producer.send(Message("Fresh", b"x"))
            assert {header.queue_id for header, _ in one.stored} == {0, 1, 2, 3}
            asked = [command.ext_fields["topic"] for command in one.received if command.code == ROUTE]
            assert asked == ["Fresh", "TBW102"]

    run(scene())


def test_topic_without_a_queue_that_can_be_written(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 0}) as one, Producer("pg", one.address) as producer:
            for _ in range(2):
                with pytest.raises(ClientError, match="no queue that can be written"):
                    await producer.send(Message("T", b"x"))
                with pytest.raises(ClientError, match="no queue that can be written"):
                    await producer.send(Message("T", b"x", sharding_key="k"))
            assert producer.in_flight == 0

    run(scene())


def test_topic_without_any_route(run, broker):
    async def scene() -> None:
        async with broker(topics={}) as one, Producer("pg", one.address) as producer:
            with pytest.raises(ClientError, match="no route to topic Nowhere"):
                await producer.send(Message("Nowhere", b"x"))
            futures = [producer.submit(Message("Nowhere", b"x")) for _ in range(3)]
            errors = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(error) for error in errors] == [TopicNotExistError] * 3
            assert len({id(error) for error in errors}) == 3
            assert producer.in_flight == 0

    run(scene())


def test_abandoned_sends_are_not_sent_when_their_route_comes(broker):
    """Three sends wait for a route. When the route arrives, cancelled and expired messages are not sent."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            held: list[RemotingCommand] = []
            one.scripts[ROUTE] = [held.append]
            cancelled, late, patient = (
                producer.submit(Message("T", body), timeout_ms=timeout_ms)
                for body, timeout_ms in ((b"cancelled", None), (b"late", 100), (b"patient", None))
            )
            await one.until(lambda: bool(held))
            cancelled.cancel()
            advance(0.2)
            one.channels[-1].send(one._route(held[0]).encode())
            assert (await patient).status is SendStatus.SEND_OK
            with pytest.raises(NoRouteError, match=r"no route to topic T: .*:\d+ did not answer within 0.2 s \(1 try"):
                await late
            assert [body for _, body in one.stored] == [b"patient"]
            assert producer.in_flight == 0

    run_stepped(scene())


def test_second_name_server_is_asked_when_the_first_is_away(run, broker):
    async def scene() -> None:
        async with broker() as away:
            gone = away.address
        async with broker(topics={"T": 1}) as one, Producer("pg", f"{gone};{one.address}") as producer:
            assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
        async with Producer("pg", gone) as producer:
            with pytest.raises(RemotingError, match=gone):
                await producer.send(Message("T", b"x"), timeout_ms=20)

    run(scene())


def test_topics_looked_up_together_find_the_second_name_server(run, broker):
    async def scene() -> None:
        async with broker() as away:
            gone = away.address
        topics = ["A", "B", "C", "D"]
        async with (
            broker(topics=dict.fromkeys(topics, 1)) as one,
            Producer("pg", f"{gone};{one.address}") as producer,
        ):
            results = await asyncio.gather(*(producer.send(Message(topic, b"x")) for topic in topics))
            assert [result.message_queue.topic for result in results] == topics

    run(scene())


def test_pipelined_sends_match_their_answers(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, Producer("pg", one.address) as producer:
            messages = [Message("T", str(n).encode()) for n in range(500)]
            futures = []
            for message in messages:
                await producer.ready()
                futures.append(producer.submit(message))
            results = await asyncio.gather(*futures)
            by_id = {properties_of(header)["UNIQ_KEY"]: body for header, body in one.stored}
            assert [by_id[result.msg_id] for result in results] == [message.body for message in messages]
            assert len({(result.message_queue, result.queue_offset) for result in results}) == 500

    run(scene())


def test_answers_in_reverse_order(run, broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            held: list[RemotingCommand] = []
            one.scripts[SEND] = [held.append] * 10
            futures = [producer.submit(Message("T", b"x")) for _ in range(10)]
            await one.until(lambda: len(held) == 10)
            channel = one.channels[-1]
            for queue_offset, command in reversed(list(enumerate(held))):
                channel.send(answer_stored(command, 0, queue_offset).encode())
            assert [(await future).queue_offset for future in futures] == list(range(10))

    run(scene())


def test_ready_waits_while_too_much_is_on_its_way(run, broker, answer_stored):
    async def scene() -> None:
        config = ProducerConfig(back_pressure_for_async_send_num=3, send_msg_timeout_ms=3_600_000)
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, config) as producer:
            held: list[RemotingCommand] = []
            one.scripts[SEND] = [held.append] * 4
            futures = [producer.submit(Message("T", b"x")) for _ in range(3)]
            await one.until(lambda: len(held) == 3)
            waiting = [asyncio.ensure_future(producer.ready()) for _ in range(2)]
            await settle()
            assert not any(one.done() for one in waiting)
            waiting[0].cancel()
            one.channels[-1].send(answer_stored(held[1], 0, 1).encode())
            await waiting[1]
            assert [future.done() for future in futures] == [False, True, False]
            assert producer.in_flight == 2
            for command in (held[0], held[2]):
                one.channels[-1].send(answer_stored(command, 0, 0).encode())
            await producer.flush()
            assert producer.in_flight == 0

    run(scene())


def test_ready_counts_bytes_too(run, broker):
    async def scene() -> None:
        config = ProducerConfig(back_pressure_for_async_send_size=1_000, send_msg_timeout_ms=3_600_000)
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, config) as producer:
            one.scripts[SEND] = [silent]
            producer.submit(Message("T", bytes(2_000)))
            waiting = asyncio.ensure_future(producer.ready())
            await settle()
            assert not waiting.done()
            one.channels[0].close()
            await waiting

    run(scene())


def test_a_shutdown_that_is_given_up_closes_all_the_same(broker):
    """A shutdown that is cancelled by its caller's time limit leaves no heartbeats and no connection."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            await producer.send(Message("T", b"x"))
            one.scripts[SEND] = [silent]
            future = producer.submit(Message("T", b"y"))
            await one.until(lambda: one.codes().count(SEND) == 2)
            ending = asyncio.ensure_future(producer.shutdown())
            await settle()
            assert not ending.done()
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            with pytest.raises(RemotingClosedError):
                await future
            assert one.codes()[-1] == RequestCode.UNREGISTER_CLIENT
            await one.until(lambda: all(channel.closed for channel in one.channels))
            with pytest.raises(ClientError, match="shut down"):
                producer.submit(Message("T", b"z"))

    run_stepped(scene())


def test_use_before_start_and_after_shutdown(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            producer = Producer("pg", one.address)
            with pytest.raises(ClientError, match="not started"):
                producer.submit(Message("T", b"x"))
            await producer.start()
            await producer.send(Message("T", b"x"))
            await producer.shutdown()
            await producer.shutdown()
            with pytest.raises(ClientError, match="shut down"):
                await producer.send(Message("T", b"x"))

    run(scene())


def test_bad_settings():
    with pytest.raises(ClientError, match="group"):
        Producer("no such group!", "127.0.0.1:1")
    for namesrv in ("", "nonsense", "127.0.0.1:1;x"):
        with pytest.raises(ConfigError):
            Producer("pg", namesrv)
    with pytest.raises(ConfigError, match="sendMsgTimeout"):
        ProducerConfig(send_msg_timeout_ms=0)
    with pytest.raises(ConfigError, match="retryTimes"):
        ProducerConfig(retry_times_when_send_failed=-1)


def test_oneway(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            await producer.send_oneway(Message("T", b"gone"))
            await one.until(lambda: bool(one.stored))
            sent = next(command for command in one.received if command.code == SEND)
            assert sent.is_oneway
            assert one.stored[0][1] == b"gone"

    run(scene())


def test_answer_with_a_binary_header(run, broker, answer_stored):
    async def scene() -> None:
        def binary(command: RemotingCommand) -> RemotingCommand:
            answer = answer_stored(command, 0, 77)
            answer.serialize = 1
            return answer

        async with broker(topics={"T": 1}) as one, Producer("pg", one.address) as producer:
            one.scripts[SEND] = [binary]
            assert (await producer.send(Message("T", b"x"))).queue_offset == 77

    run(scene())


@pytest.mark.parametrize("marks", [{}, {"odd": 'a "quoted" text'}])
def test_answers_become_results(run, broker, answer_stored, marks):
    """Responses have a form that the fast path reads, or one that only the general path reads."""

    async def scene() -> None:
        async with broker(topics={"T": 2}) as one, Producer("pg", one.address) as producer:
            for queue_id, fields in ((0, {"transactionId": "T-1"}), (1, {"batchUniqId": "A,B"})):

                def answer(command: RemotingCommand, queue_id=queue_id, fields=fields) -> RemotingCommand:
                    stored = answer_stored(command, queue_id, 77, 5)
                    stored.ext_fields |= fields | marks
                    return stored

                one.scripts[SEND] = [answer]
                queue = MessageQueue("T", "broker-a", queue_id)
                result = await producer.send(Message("T", b"x"), queue)
                assert type(result) is SendResult
                msg_id = fields.get("batchUniqId") or sent_properties(one.received[-1])["UNIQ_KEY"]
                expected = (SendStatus.SEND_OK, msg_id, "7F00000100002A9F0000000000000005", queue, 77)
                assert result == (*expected, fields.get("transactionId"), None)

    run(scene())


def test_cancelled_sends_leave_no_trace(run, broker, answer_stored):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            held: list[RemotingCommand] = []
            one.scripts[SEND] = [held.append]
            sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
            await one.until(lambda: bool(held))
            sending.cancel()
            one.channels[-1].send(answer_stored(held[0], 0, 0).encode())
            await producer.flush()
            assert sending.cancelled() or sending.done()

    run(scene())


def test_a_broker_that_does_not_answer_keeps_no_heartbeat_from_the_others(run, broker):
    async def scene() -> None:
        async with broker("a", topics={"T": 2}) as first, broker("b", topics={"T": 2}) as second:
            for one, other in ((first, second), (second, first)):
                one.peers = [other]
                one.scripts[RequestCode.HEART_BEAT] = [lambda _: None]
            async with Producer("pg", first.address, ProducerConfig(mq_client_api_timeout_ms=3_600_000)) as producer:
                await producer.message_queues("T")
                await first.until(lambda: bool(first.heartbeats()))
                await second.until(lambda: bool(second.heartbeats()))

    run(scene())


def test_heartbeats_and_route_polling(broker):
    async def scene() -> None:
        async with broker(topics={"TBW102": 8}) as one, Producer("pg", one.address) as producer:
            await producer.send(Message("T", b"x"))
            await one.until(lambda: len(one.heartbeats()) == 1)
            beat = one.heartbeats()[0]
            assert beat.client_id == producer.client_id
            assert [group.group_name for group in beat.producer_data_set] == ["pg"]
            one.topics["T"] = 2
            await settle()  # the response has arrived too
            advance(31)
            await one.until(lambda: len(one.heartbeats()) == 2 and one.codes().count(ROUTE) >= 3)
            while len(await producer.message_queues("T")) != 2:
                await settle()

    run_stepped(scene())


def test_a_known_route_is_not_replaced_by_that_of_the_default_topic(run, broker):
    """The name server restarts and knows only a different broker, which would create the topic. The producer keeps its
    route.
    """

    async def scene() -> None:
        async with broker("names", {}) as names, broker("a", {"T": 2}) as one, broker("b", {"TBW102": 8}) as other:
            names.peers = [one]
            config = ProducerConfig(poll_name_server_interval_ms=10)
            async with Producer("pg", names.address, config) as producer:
                await producer.send(Message("T", b"first"))
                names.peers = [other]
                asked = names.codes().count(ROUTE)
                await names.until(lambda: names.codes().count(ROUTE) >= asked + 2)
                for _ in range(4):
                    await producer.send(Message("T", b"x"))
                assert len(one.stored) == 5
                assert not other.stored
                one.topics["T"] = 4  # the broker has registered again, so its route replaces the old one
                names.peers = [one, other]
                while len(await producer.message_queues("T")) != 4:
                    await settle()

    run(scene())


def test_a_connection_that_came_back_gets_a_heartbeat_at_once(broker):
    """A new connection gets a heartbeat at once, even if a broker delays a round of heartbeats and the next round is
    hours away.
    """

    async def scene() -> None:
        config = ProducerConfig(
            send_msg_timeout_ms=3_600_000,
            heartbeat_broker_interval_ms=36_000_000,
            poll_name_server_interval_ms=36_000_000,
            mq_client_api_timeout_ms=3_600_000,
        )
        async with broker("a", {"T": 2}) as one, broker("b", {"T": 2}) as other:
            one.peers = [other]
            other.scripts[RequestCode.HEART_BEAT] = [silent]
            async with Producer("pg", one.address, config) as producer:
                queues = await producer.message_queues("T")
                await producer.send(Message("T", b"x"), queues[0])
                await one.until(lambda: len(one.heartbeats()) == 1)
                await other.until(lambda: len(other.heartbeats()) == 1)
                for beats in (2, 3):
                    one.channels[-1].abort()
                    await settle()
                    assert len(one.heartbeats()) == beats - 1  # no request needs the connection yet
                    await producer.send(Message("T", b"x"), queues[0])
                    await settle()
                    assert len(one.heartbeats()) == beats
                    assert one.heartbeats()[-1].producer_data_set[0].group_name == "pg"
                other.channels[-1].close()

    run_stepped(scene())
