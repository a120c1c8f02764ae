"""Tests of the pops of a simple consumer: who gets what they bring, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.client.conftest import ScriptedBroker
from tests.unit.client.popping import (
    INVISIBLE_MS,
    nothing,
    pass_by,
    popped,
    popping,
    popping_from_two,
    refused,
)

from rucola import MessageSelector, SimpleConsumer
from rucola.errors import BrokerError, ClientError, RemotingConnectError, RemotingError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.testing.clock import ManualClock
from rucola.testing.event_loop import advance, run_stepped, settle

CHECK = RequestCode.CHECK_CLIENT_CONFIG


def lost(command: RemotingCommand) -> None:
    """No answer comes; the client notices it when the time for the answer is over."""
    asyncio.get_running_loop().call_later(0.001, advance, 3.1)


def offsets(found: list[Any]) -> list[int]:
    return [message.queue_offset for message in found]


async def started(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(call)
    await settle()
    return task


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


def test_a_call_keeps_its_own_durations_while_another_one_waits():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            long = await started(consumer.receive(32, 600_000, 8_000))
            await broker.pops_held(1)
            short = await started(consumer.receive(1, 10_000, 200))
            await broker.pops_held(2)
            assert [(pop["maxMsgNums"], pop["invisibleTime"]) for pop in broker.pops] == [
                ("32", "600000"),
                ("1", "10000"),
            ]
            await pass_by(0.19)
            broker.answer(nothing, 1)
            await broker.until(short.done)
            assert short.result() == []
            assert not long.done()
            broker.answer(popped(5))
            assert offsets(await long) == [5]

    run_stepped(scene())


def test_a_call_does_not_end_before_its_time_when_another_one_gets_the_message():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            first, second = [await started(consumer.receive(await_duration_ms=5_000)) for _ in range(2)]
            await broker.pops_held(2)
            broker.answer(popped(5))
            await broker.until(first.done)
            assert offsets(first.result()) == [5]
            await pass_by(4)
            assert not second.done()
            broker.answer(popped(6))
            assert offsets(await second) == [6]

    run_stepped(scene())


def test_the_pop_of_a_cancelled_call_goes_on_for_the_next_one():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            first = await started(consumer.receive())
            await broker.pops_held(1)
            await cancelled(first)
            second = await started(consumer.receive())
            await pass_by(0.5)
            assert len(broker.pops) == 1
            broker.answer(popped(5))
            assert offsets(await second) == [5]
            assert broker.hidden == []

    run_stepped(scene())


def test_a_pop_that_ends_early_for_the_next_call_is_followed_by_another_one():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            first = await started(consumer.receive(await_duration_ms=10_000))
            await broker.pops_held(1)
            await pass_by(8)
            await cancelled(first)
            second = await started(consumer.receive(await_duration_ms=10_000))
            await pass_by(2)
            broker.answer(nothing)
            await broker.pops_held(1)
            assert 7_500 < int(broker.pops[1]["pollTime"]) <= 8_000
            broker.answer(popped(5))
            assert offsets(await second) == [5]

    run_stepped(scene())


@pytest.mark.parametrize("waits", [True, False])
def test_messages_of_a_cancelled_call_are_hidden_as_the_next_call_asks(waits):
    async def scene() -> None:
        async with popping() as (consumer, broker):
            first = await started(consumer.receive(32, 600_000, 8_000))
            await broker.pops_held(1)
            await cancelled(first)
            if not waits:
                broker.answer(popped(5, 6))
                await settle()
            second = await started(consumer.receive(1, 10_000, 3_000))
            if waits:
                await broker.pops_held(2)
                broker.answer(popped(5, 6))
            (message,) = await second
            assert broker.hidden == [(5, 10_000)]
            assert message.properties["POP_CK"] == "5 1801 10000 4 0 broker-a 1 5"
            await pass_by(0.6)
            assert len(broker.hidden) == 1
            await pass_by(0.5)
            assert broker.hidden[1:] == [(6, 1_000)]

    run_stepped(scene())


def test_messages_that_nobody_takes_are_given_back_after_a_second():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            waiting = await started(consumer.receive())
            await broker.pops_held(1)
            await cancelled(waiting)
            await pass_by(5)
            broker.answer(popped(5, 6))
            await settle()
            await pass_by(0.6)
            assert broker.hidden == []
            await pass_by(0.5)
            assert broker.hidden == [(5, 1_000), (6, 1_000)]
            assert await consumer.receive(await_duration_ms=0) == []
            assert len(consumer._service.fetched) == 0

    run_stepped(scene())


def test_each_pop_waits_a_second_for_a_caller():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            waiting = [await started(consumer.receive()) for _ in range(2)]
            await broker.pops_held(2)
            for task in waiting:
                await cancelled(task)
            broker.answer(popped(5))
            await settle()
            await pass_by(0.6)
            broker.answer(popped(6))
            await settle()
            await pass_by(0.5)
            assert broker.hidden == [(5, 1_000)]
            await pass_by(0.6)
            assert broker.hidden[1:] == [(6, 1_000)]

    run_stepped(scene())


def test_a_cancelled_call_that_was_woken_leaves_its_messages_to_others():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            first = await started(consumer.receive())
            await broker.pops_held(1)
            second = await started(consumer.receive())
            await broker.pops_held(2)
            third = asyncio.get_running_loop().create_task(consumer.receive())
            broker.answer(popped(5))
            while not len(consumer._service.fetched):
                await asyncio.sleep(0)
            first.cancel()
            assert offsets(await second) == [5]
            await cancelled(third)

    run_stepped(scene())


def test_more_than_a_call_asked_for_waits_for_the_next_call():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6, 7)]
            assert offsets(await consumer.receive(2)) == [5, 6]
            assert offsets(await consumer.receive(2)) == [7]
            assert len(broker.pops) == 1

    run_stepped(scene())


def test_a_message_whose_hiding_fails_is_not_given():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            waiting = await started(consumer.receive(32, 600_000))
            await broker.pops_held(1)
            await cancelled(waiting)
            broker.answer(popped(5, 6))
            await settle()
            broker.refusals = [refused(1)]
            assert offsets(await consumer.receive(32, 10_000)) == [6]
            await pass_by(2)
            assert broker.hidden == [(5, 10_000), (6, 10_000)]

    run_stepped(scene())


def test_a_call_that_is_cancelled_while_messages_are_hidden_leaves_them_to_the_next_one():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            waiting = await started(consumer.receive(32, 600_000))
            await broker.pops_held(1)
            await cancelled(waiting)
            broker.answer(popped(5))
            await settle()
            hiding = asyncio.ensure_future(consumer.receive(32, 10_000))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await cancelled(hiding)
            assert offsets(await consumer.receive(32, 10_000)) == [5]
            assert broker.hidden == [(5, 10_000)]

    run_stepped(scene())


def test_a_call_hides_messages_of_one_pop_at_a_time_and_asks_nobody_meanwhile():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            waiting = [await started(consumer.receive(32, 600_000)) for _ in range(2)]
            await broker.pops_held(2)
            for task in waiting:
                await cancelled(task)
            broker.answer(popped(5))
            await settle()
            broker.hold_changes = True
            hiding = await started(consumer.receive(32, 10_000))
            await broker.until(lambda: len(broker.changes) == 1)
            broker.answer(popped(6))
            await settle(60)
            assert broker.hidden == [(5, 10_000)]
            assert len(broker.pops) == 2
            broker.answer_change()
            assert offsets(await hiding) == [5]
            broker.hold_changes = False
            assert offsets(await consumer.receive(32, 10_000)) == [6]

    run_stepped(scene())


def test_brokers_are_asked_one_after_the_other_for_what_is_there():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            first.ready, second.ready = [popped(5), popped(6)], [popped(7), popped(8)]
            found = [offsets(await consumer.receive()) for _ in range(4)]
            assert sorted(found) == [[5], [6], [7], [8]]
            assert len(first.pops) + len(second.pops) == 4
            assert len(first.pops) == 2  # they take turns

    run_stepped(scene())


def test_a_call_waits_at_all_brokers_and_the_next_one_keeps_the_others():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            waiting = await started(consumer.receive())
            await first.pops_held(1)
            await second.pops_held(1)
            assert [pop["pollTime"] == "0" for pop in first.pops + second.pops] == [True, False, True, False]
            second.answer(popped(7))
            assert offsets(await waiting) == [7]
            waiting = await started(consumer.receive())
            await second.pops_held(1)
            first.answer(popped(5))
            assert offsets(await waiting) == [5]
            assert (len(first.pops), len(second.pops)) == (2, 3)

    run_stepped(scene())


def test_a_broker_that_is_slow_does_not_hold_up_another_one():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            for broker in (first, second):
                broker.script.scripts[200050].insert(0, lambda command: None)  # the first pop gets no answer
            waiting = await started(consumer.receive(await_duration_ms=0))
            await pass_by(0.11)
            assert not waiting.done()
            second.ready = first.ready = [popped(5)]
            del first.script.scripts[200050][0], second.script.scripts[200050][0]
            waiting = await started(consumer.receive(8))
            await first.until(waiting.done)
            assert offsets(waiting.result()) == [5]

    run_stepped(scene())


def test_a_dead_broker_does_not_hold_up_a_living_one_and_is_named_at_the_end():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            assert await consumer.receive(await_duration_ms=0) == []
            await second.script.server.close()
            waiting = await started(consumer.receive(await_duration_ms=3_000))
            await first.pops_held(1)
            first.answer(popped(5))
            assert offsets(await waiting) == [5]
            waiting = await started(consumer.receive(await_duration_ms=3_000))
            await first.pops_held(1)
            await pass_by(2.5)
            assert not waiting.done()
            first.answer(nothing)
            await pass_by(0.6)
            with pytest.raises(RemotingConnectError):
                await waiting

    run_stepped(scene())


def test_a_broker_that_fails_is_asked_again_every_second_and_forgiven():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            second.ready = [refused(2), refused(2), refused(2)]
            waiting = await started(consumer.receive(await_duration_ms=5_000))
            await first.pops_held(1)
            await second.until(lambda: len(second.pops) == 1)
            for count in (2, 3, 4):
                await pass_by(0.6)
                assert len(second.pops) == count - 1
                await pass_by(0.5)
                await second.until(lambda count=count: len(second.pops) == count)
            await pass_by(1.6)
            first.answer(nothing)
            second.answer(nothing)
            await pass_by(0.2)
            assert await waiting == []

    run_stepped(scene())


def test_a_call_that_takes_over_a_longer_pop_keeps_its_own_time():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            long = await started(consumer.receive(await_duration_ms=10_000))
            await broker.pops_held(1)
            await cancelled(long)
            short = await started(consumer.receive(await_duration_ms=1_000))
            await pass_by(0.5)
            assert not short.done()
            await pass_by(0.6)
            assert await short == []
            assert len(broker.pops) == 1

    run_stepped(scene())


def test_the_only_broker_may_answer_late():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            assert await consumer.receive(await_duration_ms=0) == []
            broker.hold_all = True
            waiting = await started(consumer.receive(await_duration_ms=0))
            await broker.pops_held(1)
            await pass_by(2)
            broker.answer(popped(5))
            assert offsets(await waiting) == [5]

    run_stepped(scene())


def test_when_one_broker_has_answered_a_call_does_not_wait_long_for_another_one():
    async def scene() -> None:
        async with popping_from_two() as (consumer, _, second):
            assert await consumer.receive(await_duration_ms=0) == []
            second.hold_all = True
            waiting = await started(consumer.receive(await_duration_ms=0))
            await second.pops_held(1)
            await pass_by(0.2)
            assert not waiting.done()
            await pass_by(0.4)
            assert await waiting == []

    run_stepped(scene())


def test_after_its_time_a_call_asks_no_broker_again():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            assert await consumer.receive(await_duration_ms=0) == []
            before = len(first.pops)
            second.hold_all = True
            first.ready = [refused(2)] * 9
            waiting = await started(consumer.receive(await_duration_ms=0))
            await second.pops_held(1)
            for _ in range(3):
                await pass_by(1.1)
            second.answer(popped(5))
            assert offsets(await waiting) == [5]
            assert len(first.pops) == before + 1

    run_stepped(scene())


def test_an_error_that_will_not_pass_is_raised_at_once():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            second.ready = [refused(16, "AclException: no permission")]
            waiting = await started(consumer.receive())
            await second.until(waiting.done)
            with pytest.raises(BrokerError, match="AclException"):
                waiting.result()
            assert len(first.held) <= 1

    run_stepped(scene())


def test_a_broker_that_holds_too_many_pops_is_asked_again_after_a_pause():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [refused(209, "POLLING_FULL")]
            waiting = await started(consumer.receive(await_duration_ms=5_000))
            await pass_by(0.6)
            assert len(broker.pops) == 1
            await pass_by(0.5)
            await broker.pops_held(1)
            broker.answer(popped(5))
            assert offsets(await waiting) == [5]

    run_stepped(scene())


def test_a_silent_name_server_holds_up_no_topic_whose_brokers_are_known():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            assert await consumer.receive(await_duration_ms=0) == []
            broker.script.scripts[105] = [lambda command: None] * 9
            await consumer.subscribe("X")
            broker.ready = [popped(5)]
            assert offsets(await consumer.receive()) == [5]
            waiting = await started(consumer.receive(await_duration_ms=1_000))
            await broker.pops_held(1)
            await pass_by(0.92)
            broker.answer(nothing)
            await pass_by(0.1)
            assert waiting.result() == []

    run_stepped(scene())


def test_a_topic_without_a_route_is_an_error_only_if_it_is_the_only_one():
    async def scene() -> None:
        async with popping("missing") as (consumer, broker):
            with pytest.raises(ClientError, match="no route to topic missing") as caught:
                await consumer.receive()
            assert caught.value.retriable
            await consumer.subscribe("T")
            assert await consumer.receive(await_duration_ms=0) == []
            broker.ready = [popped(5)]
            assert offsets(await consumer.receive()) == [5]

    run_stepped(scene())


def test_a_new_subscription_is_popped_at_once_by_a_call_that_waits():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            waiting = await started(consumer.receive())
            await broker.pops_held(1)
            await consumer.subscribe("U")
            await broker.pops_held(2)
            assert broker.pops[-1]["topic"] == "U"
            broker.answer(popped(9), 1)
            (message,) = await waiting
            assert message.topic == "U"

    run_stepped(scene())


def test_messages_of_a_topic_that_is_no_longer_subscribed_are_given_back():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6)]
            await consumer.receive(1)
            await consumer.unsubscribe("T")
            await settle()
            assert broker.hidden == [(6, 1_000)]
            await consumer.subscribe("T")
            waiting = await started(consumer.receive())
            await broker.pops_held(1)
            await consumer.unsubscribe("T")
            with pytest.raises(ClientError, match="no subscription"):
                await waiting
            broker.answer(popped(7))
            await settle(60)
            assert broker.hidden[1:] == [(7, 1_000)]
            assert consumer._service._orphans == {}

    run_stepped(scene())


def test_another_expression_is_asked_for_at_once():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            waiting = await started(consumer.receive())
            await broker.pops_held(1)
            subscribing = await started(consumer.subscribe("T", "A"))
            await broker.pops_held(2)
            await settle(60)
            assert not subscribing.done()  # a message that is sent now may still come by the old expression
            broker.answer(popped(5))
            await subscribing
            await settle(60)
            assert broker.hidden == [(5, 1_000)]
            broker.answer(popped(6, TAGS="A"))
            assert offsets(await waiting) == [6]
            await consumer.subscribe("T", "A")  # no change
            waiting = await started(consumer.receive())
            await broker.pops_held(1)
            await consumer.subscribe("T", "A")
            await settle(60)
            assert len(broker.held) == 1
            await cancelled(waiting)

    run_stepped(scene())


def test_a_new_expression_waits_also_for_pops_whose_calls_have_left_and_of_earlier_subscriptions():
    async def scene() -> None:
        async with popping(expression="A") as (consumer, broker):
            await cancelled(await started(consumer.receive()))
            await broker.pops_held(1)
            await consumer.unsubscribe("T")
            subscribing = [await started(consumer.subscribe("T", "B")) for _ in range(2)]
            given_up = await started(consumer.subscribe("T", "B"))
            await cancelled(given_up)
            assert not any(one.done() for one in subscribing)
            await asyncio.wait_for(consumer.subscribe("U", "B"), 1)  # another topic
            broker.answer(refused(1))
            await asyncio.gather(*subscribing)

    run_stepped(scene())


def test_a_change_of_the_expression_that_waits_for_pops_returns_at_the_shutdown():
    async def scene() -> None:
        async with popping(expression="A") as (consumer, broker):
            waiting = await started(consumer.receive())
            await broker.pops_held(1)
            subscribing = await started(consumer.subscribe("T", "B"))
            await consumer.shutdown()
            await subscribing
            assert await waiting == []

    run_stepped(scene())


def test_a_filter_that_a_broker_refuses_leaves_the_subscription_as_it_was():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            waiting = await started(consumer.receive())
            await first.until(lambda: len(first.held) == len(second.held) == 1)
            for broker in (first, second):
                broker.script.scripts[CHECK] = [refused(23)]
                with pytest.raises(BrokerError, match="refused"):
                    await consumer.subscribe("T", MessageSelector.by_sql("a >"))
            await settle(60)
            assert len(first.held) == len(second.held) == 1
            first.answer(popped(5))
            assert offsets(await waiting) == [5]

    run_stepped(scene())


def test_one_broker_that_checks_a_filter_is_enough():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            await consumer.receive(await_duration_ms=0)
            for broker in (first, second):
                broker.script.scripts[CHECK] = [lost]
            with pytest.raises(RemotingError):
                await consumer.subscribe("T", MessageSelector.by_sql("a > 1"))
            first.script.scripts[CHECK], second.script.scripts[CHECK] = [lost], [refused(23)]
            with pytest.raises(BrokerError, match="refused"):
                await consumer.subscribe("T", MessageSelector.by_sql("a >"))
            second.script.scripts[CHECK] = [lost]
            await consumer.subscribe("T", MessageSelector.by_sql("a > 1"))
            (subscription,) = consumer._service.subscriptions.values()
            assert subscription.sub_string == "a > 1"

    run_stepped(scene())


def test_changes_of_a_subscription_happen_in_the_order_of_their_calls():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            held: list[RemotingCommand] = []
            broker.script.scripts[CHECK] = [held.append]
            changes = [
                await started(consumer.subscribe("T", MessageSelector.by_sql("a > 1"))),
                await started(consumer.unsubscribe("T")),
            ]
            await broker.until(lambda: bool(held))
            assert "T" in consumer._service.subscriptions
            broker.script.channels[-1].send(held[0].answer(0).encode())
            await asyncio.gather(*changes)
            assert consumer._service.subscriptions == {}

    run_stepped(scene())


@pytest.mark.parametrize("code", [23, None])
def test_a_filter_that_a_broker_refuses_fails_the_start(code):
    async def scene() -> None:
        async with ScriptedBroker(topics={"T": 2}) as script:
            script.scripts[CHECK] = [refused(code) if code else lost]
            consumer = SimpleConsumer("cg", script.address)
            await consumer.subscribe("T", MessageSelector.by_sql("a >"))
            await consumer.subscribe("Missing", MessageSelector.by_sql("a >"))
            if code:
                with pytest.raises(BrokerError, match="refused"):
                    await consumer.start()
            else:
                await consumer.start()
            await consumer.shutdown()

    run_stepped(scene())


def test_tags_with_the_same_hash_are_acknowledged_and_a_failure_loses_no_other_message():
    async def scene() -> None:
        async with popping(expression="BBBB") as (consumer, broker):
            broker.script.scripts[200051].insert(0, refused(1))
            broker.ready = [
                popped(5, TAGS="AaAa"),
                popped(6, 7, TAGS="BBBB"),
                popped(8, TAGS="AaAa"),
            ]
            assert offsets(await consumer.receive()) == [6, 7]
            assert await consumer.receive(await_duration_ms=0) == []
            await settle(60)
            assert broker.acked == [8]

    run_stepped(scene())


def test_a_call_that_waits_returns_at_the_shutdown():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            waiting = await started(consumer.receive())
            await broker.pops_held(1)
            closing = [await started(consumer.shutdown()) for _ in range(2)]
            await asyncio.gather(*closing)
            assert await waiting == []
            with pytest.raises(ClientError, match="shut down"):
                await consumer.receive()
            await settle()
            assert not [task for task in asyncio.all_tasks() if "rucola/client" in repr(task)]

    run_stepped(scene())


def test_messages_that_are_just_being_hidden_are_given_back_at_the_shutdown():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6)]
            await consumer.receive(1)
            waiting = asyncio.ensure_future(consumer.receive(1, 30_000))
            await asyncio.sleep(0)
            await consumer.shutdown()
            assert await waiting == []
            assert broker.hidden == [(6, 30_000), (6, 1_000)]

    run_stepped(scene())


def test_fetched_messages_are_given_back_at_the_shutdown():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6, 7)]
            await consumer.receive(1)
            await consumer.shutdown()
            assert broker.hidden == [(6, 1_000), (7, 1_000)]

    run_stepped(scene())


def test_messages_that_expire_before_they_are_given_are_forgotten():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6)]
            await consumer.receive(1, INVISIBLE_MS)
            consumer._service.fetched._is_claimed = lambda: True  # so that nothing is given back
            await pass_by(20.1)
            assert await consumer.receive(1, INVISIBLE_MS, 0) == []
            assert broker.hidden == []
            assert len(consumer._service.fetched) == 0
            for queue_offset in (7, 8):  # also if nobody asks for messages
                waiting = await started(consumer.receive())
                await broker.pops_held(1)
                await cancelled(waiting)
                broker.answer(popped(queue_offset))
                await settle()
                assert len(consumer._service.fetched) == 1
                await pass_by(20.1)

    run_stepped(scene())


def test_a_consumer_whose_clock_was_set_forwards_goes_on(broker):
    """Its elapsed time lacks the time during which the machine was suspended."""

    async def scene() -> None:
        clock = ManualClock()
        async with broker(topics={"T": 2}) as script:
            late = "the broker[127.0.0.1] pop message is timeout too much"
            script.scripts[200050] = [popped(5), refused(210, late), popped(6), refused(210, late)]
            one = SimpleConsumer("cg", script.address, clock=clock)
            await one.subscribe("T")
            async with one:
                began = clock.wall_ms()
                await one.receive()
                clock.set_wall_ms(began + 3_600_000)
                assert offsets(await one.receive()) == [6]
                born = [int(one.ext_fields["bornTime"]) - began for one in script.received if one.code == 200050]
                assert born == [0, 0, 3_600_000]
                with pytest.raises(ClientError, match="its clock is ahead"):
                    await one.receive()

    run_stepped(scene())
