"""Tests of the lite consumer at brokers that play lite topics: how messages are popped, given, and settled."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.client.liting import (
    ADD,
    ALL,
    CHANGE,
    CTL,
    GROUP,
    MIN,
    NONE,
    PARENT,
    POP,
    LiteBroker,
    Seen,
    acked,
    lite_consumer,
    liting,
    lost,
    pass_by,
    refused,
)

from rucola import (
    BrokerError,
    ClientError,
    ConsumeConcurrentlyStatus,
    ConsumeResultSuspend,
    LiteConsumer,
    ReconsumeLater,
    TopicNotExistError,
)
from rucola.client.lite_requests import set_attempts
from rucola.formats.properties import decode_properties
from rucola.protocol.headers.lite import PopLiteMessageResponseHeader
from rucola.testing.event_loop import advance, run_stepped, settle


def test_messages_of_lite_topics_are_consumed_in_order_and_acknowledged():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1", b"a2")
            broker.send("b", b"b0")
            broker.send("other", b"never")
            await consumer.subscribe_lite(["a", "b"])
            await broker.until(lambda: len(acked(broker)) == 4)
            assert [body for body in seen.bodies if body.startswith(b"a")] == [b"a0", b"a1", b"a2"]
            assert sorted(seen.bodies) == [b"a0", b"a1", b"a2", b"b0"]
            first = seen.messages[0]
            assert (first.topic, first.lite_topic, first.lite_offset, first.reconsume_times) == (PARENT, "a", 0, 0)
            assert consumer.lite_topics == {"a", "b"}
            broker.send("a", b"a3")
            await broker.until(lambda: ("a", 3) in acked(broker))
            assert len(consumer._queues) == 0
            room = consumer._queues._room
            assert (room._messages, room._bytes, room.left) == (0, 0, 10_000)

    run_stepped(scene())


def test_requests_have_these_fields():
    async def scene() -> None:
        async with liting(Seen(), pop_batch_nums=7) as (consumer, broker):
            await consumer.subscribe_lite("a")
            broker.send("a", b"a0")
            await broker.until(lambda: len(acked(broker)) == 1)
            await broker.until(lambda: len(broker.held) == 1)
            check, *pops = broker.pops
            same = {"clientId": consumer.client_id, "consumerGroup": GROUP, "topic": PARENT, "invisibleTime": "20000"}
            same |= {"maxMsgNum": "7", "bornTime": "0"}
            attempts = [one.pop("attemptId") for one in [check, *pops]]
            assert check == same | {"pollTime": "0"}
            assert pops == [same | {"pollTime": "15000"}] * 2
            assert len(set(attempts)) == 3
            (data,) = broker.heartbeats()[0].consumer_data_set
            (subscription,) = data.subscription_data_set
            assert (data.group_name, data.consume_type, subscription.topic) == (GROUP, "CONSUME_POP", PARENT)
        assert broker.changes == [(ALL, [], None), (ADD, ["a"], MIN), (NONE, [], None)]

    run_stepped(scene())


def test_a_group_that_has_read_a_lite_topic_goes_on_there_and_another_one_begins_at_its_first_message():
    async def scene() -> None:
        seen = Seen()
        async with LiteBroker() as broker:
            broker.send("old", b"o0", b"o1")
            broker.send("new", b"n0")
            broker.lite["old"].committed = 1
            consumer = lite_consumer(broker, lite_topics=["old"])
            consumer.register_message_listener(seen)
            await consumer.subscribe_lite("new")
            await consumer.subscribe_lite("left")
            await consumer.unsubscribe_lite("left")
            async with consumer:
                await broker.until(lambda: len(acked(broker)) == 2)
                assert sorted(seen.bodies) == [b"n0", b"o1"]
                assert broker.changes == [(ALL, [], None), (ADD, ["new"], MIN), (ADD, ["old"], None)]

    run_stepped(scene())


def test_different_lite_topics_are_consumed_at_the_same_time():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"slow")
        async with liting(seen, consume_thread_max=2) as (consumer, broker):
            broker.send("a", b"slow", b"a1")
            await consumer.subscribe_lite(["a", "b", "c"])
            await broker.until(lambda: seen.bodies == [b"slow"])
            broker.send("b", b"b0", b"b1")
            broker.send("c", b"c0")
            await broker.until(lambda: len(acked(broker)) == 3)
            assert sorted(seen.bodies) == [b"b0", b"b1", b"c0", b"slow"]
            gate.set()
            await broker.until(lambda: len(acked(broker)) == 5)
            assert seen.bodies[-1] == b"a1"

    run_stepped(scene())


def test_no_more_calls_at_a_time_than_allowed():
    async def scene() -> None:
        seen = Seen()
        for number in range(3):
            seen.hold(b"%d" % number)
        async with liting(seen, consume_thread_max=2) as (consumer, broker):
            await consumer.subscribe_lite(["0", "1", "2"])
            for number in range(3):
                broker.send(str(number), b"%d" % number)
            await settle(100)
            assert len(seen.bodies) == 2
            for gate in seen.gates.values():
                gate.set()
            await broker.until(lambda: len(acked(broker)) == 3)

    run_stepped(scene())


def test_a_failed_message_comes_again_before_later_ones_with_growing_pauses():
    async def scene() -> None:
        seen = Seen()
        seen.outcomes[b"a0"] = [ValueError("no"), False, ConsumeConcurrentlyStatus.RECONSUME_LATER, None]
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: len(seen.bodies) == 1)
            for number, pause_s in enumerate((1, 2, 4), start=1):
                await pass_by(pause_s - 0.2)
                assert len(seen.bodies) == number
                await pass_by(0.3)
                assert seen.bodies.count(b"a0") == number + 1
                assert seen.attempts[number] == number
            await broker.until(lambda: len(acked(broker)) == 2)
            assert seen.bodies == [b"a0"] * 4 + [b"a1"]
            assert acked(broker) == [("a", 0), ("a", 1)]

    run_stepped(scene())


def test_a_listener_may_choose_the_pause():
    async def scene() -> None:
        seen = Seen()
        seen.outcomes[b"a0"] = [ReconsumeLater(3), None]
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: len(seen.bodies) == 1)
            await pass_by(5)
            broker.lite["a"].batch = None  # the broker gives it again, and it waits nevertheless
            broker.wake()
            await pass_by(4.5)
            assert len(broker.held) == 1
            assert len(seen.bodies) == 1
            await pass_by(1)
            assert len(seen.bodies) == 2

    run_stepped(scene())


@pytest.mark.parametrize("outcome", [ValueError("no"), ReconsumeLater(-1)])
def test_a_message_without_further_retries_is_a_dead_letter_of_its_lite_topic(outcome):
    async def scene() -> None:
        seen = Seen()
        seen.outcomes[b"a0"] = [outcome] * 3
        async with liting(seen, max_reconsume_times=0) as (consumer, broker):
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: len(acked(broker)) == 2)
            assert seen.bodies == [b"a0", b"a1"]
            ((header, body),) = broker.stored
            assert (header.topic, body, header.reconsume_times, header.max_reconsume_times) == (
                f"%RETRY%{GROUP}",
                b"a0",
                1,
                0,
            )
            properties = decode_properties(header.properties.encode())
            assert properties["__LITE_TOPIC"] == "a"
            assert (properties["DLQ_ORIGIN_TOPIC"], properties["DLQ_ORIGIN_MESSAGE_ID"]) == (PARENT, "a-0")
            assert not {"INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "MIN_OFFSET"} & properties.keys()

    run_stepped(scene())


def test_a_dead_letter_that_cannot_be_sent_holds_its_lite_topic():
    async def scene() -> None:
        seen = Seen()
        seen.outcomes[b"a0"] = [ValueError("no")] * 2
        async with liting(seen, max_reconsume_times=0) as (consumer, broker):
            broker.scripts[310] = [refused(16, "no permission")] * 3
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: broker.scripts[310] == [])
            assert seen.bodies == [b"a0"]
            await pass_by(1.1)
            await broker.until(lambda: len(acked(broker)) == 2)
            assert seen.bodies == [b"a0", b"a0", b"a1"]
            assert len(broker.stored) == 1

    run_stepped(scene())


def test_a_suspended_message_comes_again_without_an_attempt():
    async def scene() -> None:
        seen = Seen()
        seen.outcomes[b"a1"] = [ConsumeResultSuspend(timedelta(seconds=5))]
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1", b"a2")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: ("suspend", "a", 1, 5_000) in broker.log)
            assert len(consumer._queues) == 0  # nothing is held meanwhile
            await pass_by(4.5)
            assert seen.bodies == [b"a0", b"a1"]
            await pass_by(0.6)
            await broker.until(lambda: len(acked(broker)) == 3)
            assert seen.bodies == [b"a0", b"a1", b"a1", b"a2"]
            assert seen.messages[2].reconsume_times == 0

    run_stepped(scene())


def test_a_suspension_that_fails_lets_the_message_come_again_when_its_lease_ends(caplog):
    async def scene() -> None:
        seen = Seen()
        seen.outcomes[b"a0"] = [ConsumeResultSuspend(timedelta(seconds=5))]
        async with liting(seen) as (consumer, broker):
            broker.scripts[CHANGE] = [refused(1)]
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: broker.scripts[CHANGE] == [])
            await pass_by(20.5)
            await broker.until(lambda: len(acked(broker)) == 1)
            assert seen.bodies == [b"a0", b"a0"]

    with caplog.at_level(logging.WARNING):
        run_stepped(scene())
    assert "lite topic not suspended" in caplog.text


def test_only_a_lite_consumer_knows_a_suspension():
    from rucola.client.application_call import FailedCall
    from rucola.client.listener import Listener

    meaning = Listener(lambda message: None, batch=False).meaning(ConsumeResultSuspend(timedelta(seconds=1)))
    assert isinstance(meaning, FailedCall)
    assert "LiteConsumer" in str(meaning.error)


def test_the_lease_of_a_long_call_is_renewed_by_one_request_for_the_batch():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1", b"a2")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            for _ in range(6):
                await pass_by(10.1)
            assert broker.log == [("hide", "a", 2, 20_000)] * 6
            gate.set()
            await broker.until(lambda: len(acked(broker)) == 3)
            assert seen.bodies == [b"a0", b"a1", b"a2"]
            await pass_by(60)
            assert len(broker.log) == 9

    run_stepped(scene())


def test_a_lease_that_cannot_be_renewed_ends_and_a_late_acknowledgement_counts_if_it_can():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            broker.scripts[CHANGE] = [refused(1)] * 100
            for _ in range(22):
                await pass_by(1)
            assert seen.bodies == [b"a0"]  # the batch has come again, and waits for the call that runs
            gate.set()
            await broker.until(lambda: len(acked(broker)) == 2)
            assert seen.bodies == [b"a0", b"a1"]
            assert seen.messages[1].reconsume_times == 1

    run_stepped(scene())


def test_a_message_that_failed_after_the_end_of_its_lease_is_left_to_the_group():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        seen.outcomes[b"a0"] = [ValueError("no")]
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            broker.scripts[CHANGE] = [refused(1)] * 100
            broker.scripts[POP] = [lambda command: None] * 100
            broker.end_pops()
            for _ in range(21):
                await pass_by(1)
            gate.set()
            await broker.until(lambda: len(consumer._queues) == 0)
            assert broker.log == []
            changes = [one.ext_fields["suspend"] for one in broker.received if one.code == CHANGE]
            assert changes
            assert set(changes) == {"false"}
            broker.scripts.clear()

    run_stepped(scene())


def test_renewals_end_after_their_longest_time():
    async def scene() -> None:
        seen = Seen()
        seen.hold(b"a0")
        async with liting(seen, renew_max_duration_ms=15_000, await_termination_ms=0) as (consumer, broker):
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            for _ in range(4):
                await pass_by(10.1)
            assert [one[0] for one in broker.log].count("hide") == 1 or len(broker.log) <= 3
            assert len(seen.bodies) == 1

    run_stepped(scene())


def test_an_acknowledgement_that_fails_is_repeated():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            broker.scripts[200051] = [refused(1), refused(1)]
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: len(acked(broker)) == 0 and broker.scripts[200051] == [])
            await pass_by(1.1)
            await broker.until(lambda: sorted(acked(broker)) == [("a", 0), ("a", 1)])
            assert seen.bodies == [b"a0", b"a1"]
            assert len(consumer._queues) == 0

    run_stepped(scene())


def test_a_handled_message_that_comes_again_is_only_acknowledged():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            broker.scripts[200051] = [refused(13, "final")]
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: broker.scripts[200051] == [])
            await pass_by(19)
            assert acked(broker) == []
            await pass_by(1.1)
            await broker.until(lambda: acked(broker) == [("a", 0)])
            assert seen.bodies == [b"a0"]
            assert len(consumer._queues) == 0

    run_stepped(scene())


def test_what_was_handled_and_never_comes_again_is_forgotten():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            broker.scripts[200051] = [refused(13, "final")]
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: broker.scripts[200051] == [])
            broker.lite.clear()  # its time to live has ended
            await pass_by(20.1)
            await pass_by(20.1)
            assert len(consumer._queues) == 0

    run_stepped(scene())


def test_after_an_error_the_end_waits_for_no_listener():
    async def scene() -> None:
        seen = Seen()
        seen.hold(b"a0")
        async with LiteBroker() as broker:
            consumer = lite_consumer(broker)
            consumer.register_message_listener(seen)
            began = asyncio.get_running_loop().time()
            with pytest.raises(ValueError, match="no"):
                async with consumer:
                    broker.send("a", b"a0")
                    await consumer.subscribe_lite("a")
                    await broker.until(lambda: seen.bodies == [b"a0"])
                    raise ValueError("no")
            assert asyncio.get_running_loop().time() - began < 20
            assert broker.log == [("suspend", "a", 0, 50)]

    run_stepped(scene())


def test_after_an_error_the_end_waits_for_the_thread_of_a_plain_listener():
    """Nobody can stop it: if its message were returned, two consumers would handle it at once."""

    async def scene() -> None:
        begun, gate = threading.Event(), threading.Event()

        def listen(_message: Any) -> None:
            begun.set()
            gate.wait()

        async with LiteBroker() as broker:
            consumer = lite_consumer(broker)
            consumer.register_message_listener(listen)

            async def fail() -> None:
                async with consumer:
                    broker.send("a", b"a0", b"a1")
                    await consumer.subscribe_lite("a")
                    await broker.until(begun.is_set)
                    raise LookupError

            failing = asyncio.ensure_future(fail())
            await broker.until(lambda: broker.changes[-1:] == [(NONE, [], None)])
            assert not failing.done()
            gate.set()
            with pytest.raises(LookupError):
                await failing
            assert sorted(broker.log) == [("ack", "a", 0), ("suspend", "a", 1, 50)]

    run_stepped(scene())


def test_loops_get_one_message_of_a_lite_topic_at_a_time():
    async def scene() -> None:
        got: list[bytes] = []
        async with liting() as (consumer, broker):
            broker.send("a", b"a0", b"a1", b"a2")
            await consumer.subscribe_lite("a")
            async for message in consumer:
                got.append(message.body)
                assert len(acked(broker)) <= len(got) - 1
                if len(got) == 2:
                    break
            await broker.until(lambda: acked(broker) == [("a", 0), ("a", 1)])
            with pytest.raises(ValueError, match="no"):
                async for message in consumer:
                    got.append(message.body)
                    raise ValueError("no")
            async for message in consumer:
                got.append(message.body)
                await consumer.suspend_lite(message, timedelta(seconds=1))
                with pytest.raises(ClientError, match="not held"):
                    await consumer.suspend_lite(message, timedelta(seconds=1))
                break
            await pass_by(1.2)
            async for message in consumer:
                got.append(message.body)
                break
            await broker.until(lambda: len(acked(broker)) == 3)
            assert got == [b"a0", b"a1", b"a2", b"a2", b"a2"]
        assert broker.changes[-1] == (NONE, [], None)

    run_stepped(scene())


def test_messages_that_no_loop_asks_for_are_not_kept_from_the_group():
    async def scene() -> None:
        async with liting() as (consumer, broker):
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: len(consumer._queues) == 1)
            await pass_by(10.1)
            await pass_by(10.1)
            await pass_by(10.1)
            assert not [one for one in broker.log if one[0] == "hide"]
            async for message in consumer:
                assert (message.body, message.reconsume_times) == (b"a0", 1)
                break
            await broker.until(lambda: acked(broker) == [("a", 0)])

    run_stepped(scene())


def test_the_end_returns_what_was_popped_and_waits_for_what_is_being_handled():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        async with LiteBroker() as broker:
            consumer = lite_consumer(broker, consume_thread_max=1)
            consumer.register_message_listener(seen)
            await consumer.start()
            broker.send("a", b"a0", b"a1")
            broker.send("b", b"b0", b"b1")
            await consumer.subscribe_lite(["a", "b"])
            await broker.until(lambda: seen.bodies == [b"a0"])
            ending = asyncio.ensure_future(consumer.shutdown())
            await broker.until(lambda: ("suspend", "b", 0, 50) in broker.log)
            assert broker.changes[-1] == (NONE, [], None)
            assert not ending.done()
            assert ("suspend", "a", 1, 50) not in broker.log
            gate.set()
            await ending
            assert sorted(broker.log) == [("ack", "a", 0), ("suspend", "a", 1, 50), ("suspend", "b", 0, 50)]
            assert seen.bodies == [b"a0"]
            with pytest.raises(ClientError, match="not started, or is shut down"):
                await consumer.subscribe_lite("c")

    run_stepped(scene())


def test_a_shutdown_inside_a_listener_ends_after_it():
    async def scene() -> None:
        async with LiteBroker() as broker:
            consumer = lite_consumer(broker)

            async def listen(message: Any) -> None:
                await consumer.shutdown()

            consumer.register_message_listener(listen)
            await consumer.start()
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await consumer._life.closed.wait()
            assert sorted(broker.log) == [("ack", "a", 0), ("suspend", "a", 1, 50)]

    run_stepped(scene())


@pytest.mark.parametrize("swallows", [False, True])
def test_a_message_whose_task_somebody_cancels_comes_again(swallows):
    async def scene() -> None:
        tasks: list[Any] = []

        async def listen(message: Any) -> None:
            tasks.append(asyncio.current_task())
            if len(tasks) == 1:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if not swallows:
                        raise

        async with liting(listen, consume_thread_max=1) as (consumer, broker):
            broker.send("a", b"a0")
            broker.send("b", b"b0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: len(tasks) == 1)
            await consumer.subscribe_lite("b")
            await broker.until(lambda: len(consumer._queues) == 2)
            tasks[0].cancel()
            await broker.until(lambda: ("b", 0) in acked(broker))
            await pass_by(1.1)
            await broker.until(lambda: sorted(acked(broker)) == [("a", 0), ("b", 0)])
            assert len(tasks) == (2 if swallows else 3)

    run_stepped(scene())


def test_a_broker_that_starts_anew_gives_what_was_not_acknowledged_again():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            broker.subscriptions.clear()
            broker.lite["a"].batch = None
            broker.lite["a"].counts.clear()
            broker.channels[-1].close()
            for _ in range(10):
                await pass_by(0.2)
            await broker.until(lambda: len(broker.held) == 1 and broker.lite["a"].batch is not None)
            assert seen.bodies == [b"a0"]  # never at the same time as the call that runs
            gate.set()
            await broker.until(lambda: sorted(acked(broker)) == [("a", 0), ("a", 1)])
            assert seen.bodies == [b"a0", b"a1"]
            assert broker.lite["a"].committed == 2

    run_stepped(scene())


def test_an_acknowledgement_that_a_new_pop_has_overtaken_is_sent_again():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            held: list[Any] = []
            broker.scripts[200051] = [held.append]
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: len(held) == 1)
            broker.lite["a"].batch = None  # the broker forgets the batch, and gives it again
            broker.wake()
            await settle(60)
            broker.channels[-1].send(broker._settle(held[0]).encode())  # success, without an effect
            await broker.until(lambda: broker.lite["a"].committed == 1)
            assert acked(broker) == [("a", 0)] * 2
            assert seen.bodies == [b"a0"]
            assert len(consumer._queues) == 0

    run_stepped(scene())


def test_a_batch_from_which_others_have_taken_messages_shrinks():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1", b"a2")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            broker.lite["a"].batch, broker.lite["a"].committed = None, 2
            broker.wake()
            await settle(60)
            gate.set()
            await broker.until(lambda: broker.lite["a"].committed == 3)
            assert seen.bodies == [b"a0", b"a2"]

    run_stepped(scene())


@pytest.mark.parametrize(
    ("code", "answer", "error", "kind"),
    [
        (POP, refused(29, "group is not bound"), "29 .*not bound", BrokerError),
        (POP, refused(26, "no group"), "26 .*no group", BrokerError),
        (POP, refused(3, "no such request"), "has no lite topics: RocketMQ 5.5", ClientError),
        (CTL, refused(604, "group is disabled"), "604 .*disabled", BrokerError),
        (CTL, refused(3, "no such request"), "has no lite topics", ClientError),
        (34, refused(16, "User: x access denied"), "access denied", BrokerError),
    ],
)
def test_a_start_that_brokers_refuse_fails(code, answer, error, kind):
    async def scene() -> None:
        async with LiteBroker() as broker:
            broker.scripts[code] = [answer] * 5
            consumer = lite_consumer(broker)
            consumer.register_message_listener(Seen())
            with pytest.raises(kind, match=error):
                await consumer.start()

    run_stepped(scene())


def test_wrong_uses():
    async def scene() -> None:
        async with LiteBroker() as broker:
            nowhere = LiteConsumer(GROUP, broker.address, "nowhere")
            with pytest.raises(TopicNotExistError, match="nowhere"):
                await nowhere.start()
            consumer = lite_consumer(broker)
            with pytest.raises(ClientError, match="name or several"):
                await consumer.subscribe_lite(5)  # type: ignore[arg-type]
            with pytest.raises(ClientError, match="LiteOffset"):
                await consumer.subscribe_lite("a", 5)  # type: ignore[arg-type]
            with pytest.raises(ClientError, match="lite topic"):
                await consumer.unsubscribe_lite("a b")
            async with consumer:
                with pytest.raises(ClientError, match="before the consumer is started"):
                    consumer.register_message_listener(Seen())
                same = lite_consumer(broker, instance_name=consumer.client_id.partition("@")[2])
                with pytest.raises(ClientError, match="with the client id"):
                    await same.start()
                with pytest.raises(ClientError, match="received message"):
                    await consumer.suspend_lite(5, timedelta(seconds=1))  # type: ignore[arg-type]
            listening = lite_consumer(broker)
            listening.register_message_listener(Seen())
            async with listening:
                with pytest.raises(ClientError, match="without a listener"):
                    async for _ in listening:
                        pass

    run_stepped(scene())


def test_pops_pause_while_the_memory_is_full():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        async with liting(seen, pull_threshold_for_all=2) as (consumer, broker):
            broker.send("a", b"a0", b"a1", b"a2")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            pops = len(broker.pops)
            broker.send("a", b"a3")
            await settle(60)
            assert len(broker.pops) == pops
            assert broker.pops[-1]["maxMsgNum"] == "2"
            gate.set()
            await broker.until(lambda: len(acked(broker)) == 4)
            assert seen.bodies == [b"a0", b"a1", b"a2", b"a3"]

    run_stepped(scene())


def test_a_broker_that_fails_is_asked_again_with_the_same_attempt(caplog):
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            await consumer.subscribe_lite("a")
            broker.scripts[POP] = [refused(1, "busy"), refused(209, "full"), lost]
            broker.end_pops()
            await settle(60)
            for pause_s in (0.12, 0.22, 0.42, 21):
                await pass_by(pause_s)
            broker.send("a", b"a0")
            await pass_by(0.5)
            await broker.until(lambda: seen.bodies == [b"a0"])
            attempts = [
                int(one.ext_fields["attemptId"].rpartition("-")[2]) for one in broker.received if one.code == POP
            ]
            assert attempts[1:7] == [1, 2, 2, 3, 3, 4]

    with caplog.at_level(logging.WARNING):
        run_stepped(scene())
    assert "pop of lite topics failed" in caplog.text


def test_messages_without_a_place_are_left_out(caplog):
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0")
            broker.lite["a"].records[0] = (
                broker.lite["a"].records[0].replace(b"INNER_MULTI_DISPATCH", b"INNER_MULTI_DISPATCX")
            )
            await consumer.subscribe_lite("a")
            await broker.until(lambda: len(broker.held) == 1)
            assert seen.bodies == []

    with caplog.at_level(logging.ERROR):
        run_stepped(scene())
    assert "without a place in a lite topic" in caplog.text


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("0;0;2", [0, 0, 2]),
        ("0 qo0%1 3;0 qo0%2 3", [0, 3, 3]),
        ("0 qo0%2 4", [0, 0, 4]),
        ("0 qo0%9 4", [0, 0, 0]),
        ("x;1", [1, 0, 0]),
        ("1;1;1;1", [1, 1, 1]),
        ("", [0, 0, 0]),
        (None, [0, 0, 0]),
    ],
)
def test_attempts(text, counts):
    from tests.unit.client.liting import lite_record

    from rucola.client.received import PullOrigin, ReceivedMessage

    records = b"".join(lite_record("a", offset, b"x", offset + 10) for offset in range(3))
    messages = ReceivedMessage.of_records(records, PullOrigin("broker-a"))
    set_attempts(messages, PopLiteMessageResponseHeader(order_count_info=text))
    assert [message.reconsume_times for message in messages] == counts


def test_a_plain_function_runs_in_a_thread():
    async def scene() -> None:
        got: list[Any] = []

        def listen(message: Any) -> Any:
            got.append(message.body)
            return ConsumeResultSuspend(timedelta(seconds=1)) if len(got) == 1 else None

        async with liting(listen) as (consumer, broker):
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            while not broker.log:
                await asyncio.sleep(0.001)
            advance(1.1)
            while len(broker.log) < 2:
                await asyncio.sleep(0.001)
            assert broker.log == [("suspend", "a", 0, 1_000), ("ack", "a", 0)]

    run_stepped(scene())
