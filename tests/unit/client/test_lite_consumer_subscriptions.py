"""Tests of the lite consumer's subscriptions: what brokers are told, and what happens to a lite topic that is left."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.client.liting import (
    ADD,
    ALL,
    CTL,
    GROUP,
    MIN,
    NONE,
    PARENT,
    REMOVE,
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
    ConfigError,
    ConsumeResultSuspend,
    LiteConsumer,
    LiteConsumerConfig,
    LiteOffset,
    LiteQuotaError,
    ReconsumeLater,
    RemotingTimeoutError,
)
from rucola.testing.event_loop import run_stepped, settle


@pytest.mark.parametrize(
    ("start", "option"),
    [
        (LiteOffset.LAST, ("POLICY", 0)),
        (LiteOffset.MIN, MIN),
        (LiteOffset.MAX, ("POLICY", 2)),
        (LiteOffset.at(7), ("OFFSET", 7)),
        (LiteOffset.tail(3), ("TAIL_N", 3)),
        (LiteOffset.since(datetime(2026, 1, 1, tzinfo=UTC)), ("TIMESTAMP", 1_767_225_600_000)),
    ],
)
def test_offset_options(start, option):
    async def scene() -> None:
        async with liting(Seen()) as (consumer, broker):
            await consumer.subscribe_lite(["b", "a"], start)
            assert broker.changes[1:] == [(ADD, ["a", "b"], option)]

    run_stepped(scene())


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: LiteOffset.at(-1), "lite_offset must be at least 0"),
        (lambda: LiteOffset.at(1 << 63), "at most"),
        (lambda: LiteOffset.tail(-1), "count must be at least 0"),
        (lambda: LiteOffset.since(datetime(2026, 1, 1)), "time zone"),
        (lambda: LiteOffset.since(datetime(1969, 1, 1, tzinfo=UTC)), "at least 0"),
        (lambda: ConsumeResultSuspend(timedelta(milliseconds=49)), "at least 50"),
        (lambda: ConsumeResultSuspend(timedelta(hours=13)), "at most"),
        (lambda: ConsumeResultSuspend(50), "timedelta"),  # type: ignore[arg-type]
        (lambda: LiteConsumer(GROUP, "h:1", "bad topic"), "topic"),
        (lambda: LiteConsumer(GROUP, "h:1", PARENT, lite_topics=["a", "a/b"]), "lite topic 'a/b'"),
        (lambda: LiteConsumerConfig(pop_batch_nums=33), "popBatchNums"),
        (lambda: LiteConsumerConfig(invisible_duration_ms=9_999), "invisibleDuration"),
    ],
)
def test_wrong_values(make, error):
    with pytest.raises((ClientError, ConfigError), match=error):
        make()


def test_the_same_name_is_asked_for_once_and_a_place_is_a_new_subscription():
    async def scene() -> None:
        async with liting(Seen()) as (consumer, broker):
            await consumer.subscribe_lite("a")
            await consumer.subscribe_lite("a")
            await consumer.subscribe_lite(["a"])
            await consumer.subscribe_lite([])
            assert broker.changes[1:] == [(ADD, ["a"], MIN)]
            await consumer.subscribe_lite("a", LiteOffset.at(4))
            assert broker.changes[2:] == [(REMOVE, ["a"], None), (ADD, ["a"], ("OFFSET", 4))]
            assert consumer.lite_topics == {"a"}

    run_stepped(scene())


def test_calls_of_the_same_name_happen_in_their_order():
    async def scene() -> None:
        async with liting(Seen()) as (consumer, broker):
            calls = [
                consumer.subscribe_lite("a"),
                consumer.unsubscribe_lite("a"),
                consumer.subscribe_lite(["a", "b"]),
                consumer.unsubscribe_lite("b"),
            ]
            await asyncio.gather(*calls)
            assert consumer.lite_topics == {"a"}
            assert [one[:2] for one in broker.changes[1:]] == [
                (ADD, ["a"]),
                (REMOVE, ["a"]),
                (ADD, ["b"]),
                (ADD, ["a"]),
                (REMOVE, ["b"]),
            ]

    run_stepped(scene())


def test_a_refused_subscription_changes_nothing():
    async def scene() -> None:
        async with liting(Seen(), lite_subscription_quota=2) as (consumer, broker):
            broker.scripts[CTL] = [refused(604, "wildcard group")]
            with pytest.raises(BrokerError, match=r"604 .*wildcard group"):
                await consumer.subscribe_lite("a")
            broker.scripts[CTL] = [refused(2018, "too many: 100000")]
            with pytest.raises(LiteQuotaError, match=r"lite topic a and 1 more: broker broker-a .*too many") as caught:
                await consumer.subscribe_lite(["a", "b"])
            assert caught.value.lite_topics == ["a", "b"]
            await consumer.subscribe_lite(["a", "b"])
            with pytest.raises(LiteQuotaError, match=r"lite topic c: the consumer may have 2 .*subscription_quota"):
                await consumer.subscribe_lite("c")
            await consumer.subscribe_lite("b")
            assert consumer.lite_topics == {"a", "b"}
            assert [one[:2] for one in broker.changes[1:]] == [(REMOVE, ["a", "b"]), (ADD, ["a", "b"])]

    run_stepped(scene())


def test_a_wildcard_group_gets_a_lite_topic_although_its_subscription_was_refused():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            broker.wildcard = True
            broker.scripts[CTL] = [refused(604, "wildcard group")]
            with pytest.raises(BrokerError, match="604"):
                await consumer.subscribe_lite("a")
            broker.send("a", b"a0")
            await broker.until(lambda: acked(broker) == [("a", 0)])
            assert seen.bodies == [b"a0"]
            assert consumer.lite_topics == frozenset()

    run_stepped(scene())


def test_calls_at_the_same_time_do_not_exceed_the_quota():
    async def scene() -> None:
        async with liting(Seen(), lite_subscription_quota=3) as (consumer, _):
            calls = [consumer.subscribe_lite([f"{number}-a", f"{number}-b"]) for number in range(2)]
            first, second = await asyncio.gather(*calls, return_exceptions=True)
            assert first is None
            assert isinstance(second, LiteQuotaError)
            await consumer.subscribe_lite("c")
            with pytest.raises(LiteQuotaError):
                await consumer.subscribe_lite("d")

    run_stepped(scene())


def test_a_broker_that_does_not_answer_fails_the_subscription_and_no_other_call():
    async def scene() -> None:
        async with liting(Seen()) as (consumer, broker):
            broker.scripts[CTL] = [lost]
            failing = asyncio.ensure_future(consumer.subscribe_lite("a"))
            await settle()
            leaving = asyncio.ensure_future(consumer.unsubscribe_lite("a"))
            await settle()
            await pass_by(3.1)
            with pytest.raises(RemotingTimeoutError):
                await failing
            await leaving
            assert consumer.lite_topics == frozenset()
            await consumer.subscribe_lite("a")
            broker.scripts[CTL] = [lost]
            leaving = asyncio.ensure_future(consumer.unsubscribe_lite("a"))
            await settle()
            assert consumer.lite_topics == frozenset()
            await pass_by(3.1)
            await leaving  # the next complete set tells the broker

    run_stepped(scene())


def test_all_brokers_get_the_complete_set_every_half_minute_and_on_each_new_connection():
    async def scene() -> None:
        async with liting(Seen()) as (consumer, broker):
            await pass_by(30.5)
            await consumer.subscribe_lite(["b", "a"])
            await pass_by(30.5)
            assert broker.changes == [(ALL, [], None), (ALL, [], None), (ADD, ["a", "b"], MIN), (ALL, ["a", "b"], None)]
            broker.subscriptions.clear()  # the broker starts anew
            broker.channels[-1].close()
            for _ in range(10):
                await pass_by(0.2)
            await broker.until(lambda: broker.subscriptions.get(consumer.client_id) == {"a", "b"})
            assert broker.changes[-1] == (ALL, ["a", "b"], None)

    run_stepped(scene())


def test_a_complete_set_that_a_change_has_overtaken_is_sent_again():
    async def scene() -> None:
        async with liting(Seen()) as (consumer, broker):
            held: list[Any] = []
            broker.scripts[CTL] = [held.append]
            await pass_by(30.1)
            assert len(held) == 1
            await consumer.subscribe_lite("a")
            broker.channels[-1].send(broker._ctl(held[0]).encode())  # carried out late: forgets the lite topic
            await settle()
            assert broker.subscriptions[consumer.client_id] == set()
            await pass_by(1.1)
            assert broker.subscriptions[consumer.client_id] == {"a"}

    run_stepped(scene())


def test_a_broker_that_joins_the_route_gets_the_subscriptions_and_pops():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, first), LiteBroker("broker-b") as second:
            await consumer.subscribe_lite("a")
            second.send("a", b"from b")
            first.peers.append(second)
            await pass_by(30.1)
            await second.until(lambda: len(second.held) == 1)
            assert second.changes[0] == (ALL, ["a"], None)
            assert seen.bodies == [b"from b"]
            assert acked(second) == [("a", 0)]
            await consumer.subscribe_lite("b")
            assert first.changes[-1] == second.changes[-1] == (ADD, ["b"], MIN)
            consumer._route_changed("another topic")
            await settle(60)
            assert second.changes[-1][0] == ADD
            consumer._route_changed(PARENT)
            await second.until(lambda: second.changes[-1] == (ALL, ["a", "b"], None))
            first.peers.clear()  # it leaves the route again
            await pass_by(30.1)
            second.end_pops()
            await settle()
            pops = len(second.pops)
            await pass_by(60)
            assert len(second.pops) == pops
        assert first.changes[-1] == (NONE, [], None)

    run_stepped(scene())


def test_a_subscription_that_one_of_two_brokers_refuses_is_taken_back_at_both():
    async def scene() -> None:
        async with LiteBroker() as first, LiteBroker("broker-b") as second:
            first.peers.append(second)
            consumer = lite_consumer(first)
            consumer.register_message_listener(Seen())
            async with consumer:
                second.scripts[CTL] = [refused(2018)]
                with pytest.raises(LiteQuotaError, match="broker-b"):
                    await consumer.subscribe_lite("a")
                assert first.subscriptions[consumer.client_id] == second.subscriptions[consumer.client_id] == set()
                assert consumer.lite_topics == frozenset()

    run_stepped(scene())


def test_nothing_of_a_lite_topic_comes_after_unsubscribe():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            await consumer.unsubscribe_lite("a")
            await consumer.unsubscribe_lite("a")
            await consumer.unsubscribe_lite("never")
            assert broker.changes[-1] == (REMOVE, ["a"], None)
            gate.set()
            await broker.until(lambda: len(broker.log) == 2)
            assert sorted(broker.log) == [("ack", "a", 0), ("suspend", "a", 1, 50)]
            assert seen.bodies == [b"a0"]
            assert len(consumer._queues) == 0
            await consumer.subscribe_lite("a")
            await pass_by(0.2)
            await broker.until(lambda: seen.bodies == [b"a0", b"a1"])

    run_stepped(scene())


def test_a_lite_topic_that_is_subscribed_again_goes_on_although_an_acknowledgement_has_failed():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            broker.scripts[200051] = [refused(13, "final")]
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: broker.scripts[200051] == [])
            await consumer.unsubscribe_lite("a")
            assert len(consumer._queues) == 1
            broker.lite["a"].batch, broker.lite["a"].committed = None, 1
            broker.send("a", b"a1")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0", b"a1"])

    run_stepped(scene())


def test_a_message_that_failed_when_its_lite_topic_was_left_is_no_dead_letter():
    async def scene() -> None:
        seen = Seen()
        gate = seen.hold(b"a0")
        seen.outcomes[b"a0"] = [ReconsumeLater(-1)]
        async with liting(seen) as (consumer, broker):
            broker.send("a", b"a0")
            await consumer.subscribe_lite("a")
            await broker.until(lambda: seen.bodies == [b"a0"])
            await consumer.unsubscribe_lite("a")
            gate.set()
            await broker.until(lambda: broker.log == [("suspend", "a", 0, 50)])
            assert broker.stored == []

    run_stepped(scene())


def test_what_was_popped_of_a_lite_topic_that_was_refused_goes_back():
    async def scene() -> None:
        seen = Seen()
        async with LiteBroker() as first, LiteBroker("broker-b") as second:
            first.peers.append(second)
            consumer = lite_consumer(first)
            consumer.register_message_listener(seen)
            async with consumer:
                held: list[Any] = []
                second.scripts[CTL] = [held.append]
                first.send("a", b"a0", b"a1")
                gate = seen.hold(b"a0")
                subscribing = asyncio.ensure_future(consumer.subscribe_lite("a"))
                await first.until(lambda: seen.bodies == [b"a0"])
                second.channels[-1].send(held[0].answer(604, "no").encode())
                with pytest.raises(BrokerError, match="604"):
                    await subscribing
                gate.set()
                await first.until(lambda: ("suspend", "a", 1, 50) in first.log)
                assert seen.bodies == [b"a0"]

    run_stepped(scene())


def test_a_complete_set_that_an_eviction_has_overtaken_is_sent_again():
    async def scene() -> None:
        async with liting(Seen()) as (consumer, broker):
            await consumer.subscribe_lite(["a", "b"])
            held: list[Any] = []
            broker.scripts[CTL] = [held.append]
            await pass_by(30.1)
            broker.evict(consumer.client_id, "a")
            await broker.until(lambda: consumer.lite_topics == {"b"})
            broker.channels[-1].send(broker._ctl(held[0]).encode())
            await settle()
            assert broker.subscriptions[consumer.client_id] == {"a", "b"}
            await pass_by(1.1)
            assert broker.subscriptions[consumer.client_id] == {"b"}

    run_stepped(scene())


def test_what_a_pop_brings_of_a_lite_topic_that_was_left_goes_back():
    async def scene() -> None:
        seen = Seen()
        async with liting(seen) as (consumer, broker):
            await consumer.subscribe_lite("a")
            await consumer.unsubscribe_lite("a")
            broker.subscriptions[consumer.client_id].add("a")  # the broker does not know it yet
            broker.send("a", b"a0")
            await broker.until(lambda: ("suspend", "a", 0, 50) in broker.log)
            assert seen.bodies == []
            broker.subscriptions[consumer.client_id].clear()

    run_stepped(scene())


@pytest.mark.parametrize("kind", ["coroutine", "function", "fails", "none"])
def test_a_lite_topic_that_another_client_takes_over_is_left(kind, caplog):
    async def scene() -> None:
        told: list[str] = []

        async def note(name: str) -> None:
            told.append(name)

        def fail(name: str) -> None:
            told.append(name)
            raise ValueError("no")

        async with LiteBroker() as broker:
            broker.exclusive = True
            first, second = lite_consumer(broker, instance_name="1"), lite_consumer(broker, instance_name="2")
            seen, other = Seen(), Seen()
            gate = seen.hold(b"a0")
            first.register_message_listener(seen)
            second.register_message_listener(other)
            if kind != "none":
                listener = {"coroutine": note, "function": told.append, "fails": fail}[kind]
                first.register_eviction_listener(listener)
            async with first, second:
                await first.subscribe_lite(["a", "kept"])
                broker.send("a", b"a0", b"a1")
                await broker.until(lambda: seen.bodies == [b"a0"])
                await second.subscribe_lite("a")
                await broker.until(lambda: first.lite_topics == {"kept"})
                gate.set()
                await broker.until(lambda: ("suspend", "a", 1, 50) in broker.log)
                await pass_by(0.2)
                await broker.until(lambda: other.bodies == [b"a1"])
                assert ("ack", "a", 0) in broker.log
                assert seen.bodies == [b"a0"]
                if kind != "none":
                    for _ in range(200):
                        if told:
                            break
                        await asyncio.sleep(0.001)
                    assert told == ["a"]
                await pass_by(30.5)
                assert (ALL, ["kept"], None) in broker.changes

    with caplog.at_level(logging.ERROR):
        run_stepped(scene())
    assert ("eviction listener failed" in caplog.text) == (kind == "fails")


def test_a_notice_for_others_or_of_what_the_consumer_has_not_is_ignored():
    async def scene() -> None:
        told: list[str] = []
        async with liting(Seen()) as (consumer, broker):
            consumer.register_eviction_listener(told.append)
            await consumer.subscribe_lite("a")
            broker.subscriptions["other"] = set()
            broker._clients["other"] = broker._clients[consumer.client_id]
            broker.evict("other", "a")
            broker.evict(consumer.client_id, "b")
            await settle(60)
            assert consumer.lite_topics == {"a"}
            assert told == []
            with pytest.raises(ClientError, match="listener"):
                consumer.register_eviction_listener(None)  # type: ignore[arg-type]

    run_stepped(scene())


def test_a_cancelled_subscription_goes_on():
    async def scene() -> None:
        async with liting(Seen()) as (consumer, broker):
            held: list[Any] = []
            broker.scripts[CTL] = [held.append]
            subscribing = asyncio.ensure_future(consumer.subscribe_lite("a"))
            await broker.until(lambda: len(held) == 1)
            subscribing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await subscribing
            broker.channels[-1].send(broker._ctl(held[0]).encode())
            await broker.until(lambda: consumer.lite_topics == {"a"})

    run_stepped(scene())


def test_thousands_of_subscriptions_have_no_task():
    async def scene() -> None:
        async with liting(Seen(), lite_subscription_quota=6_000) as (consumer, broker):
            before = len(asyncio.all_tasks())
            await consumer.subscribe_lite([f"session-{number}" for number in range(5_000)])
            assert len(asyncio.all_tasks()) <= before
            assert len(broker.subscriptions[consumer.client_id]) == 5_000

    run_stepped(scene())
