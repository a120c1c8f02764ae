"""Tests of the simple consumer. They use our broker, or a scripted one to control the clock or to imitate an old
broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.client.consuming import cluster, messages, record, send

from rucola import Message, MessageSelector, SimpleConsumer, SimpleConsumerConfig
from rucola.client.pop_receipt import PopReceipt, give_receipts
from rucola.errors import BrokerError, ClientError, ConfigError, FormatError
from rucola.protocol.headers.pop import PopMessageResponseHeader
from rucola.testing.clock import ManualClock
from rucola.testing.event_loop import advance, run_stepped, settle

POP, ACK, CHANGE = 200050, 200051, 200053


def consumer(address: str, **options: Any) -> SimpleConsumer:
    return SimpleConsumer("cg", address, SimpleConsumerConfig(**options))


@asynccontextmanager
async def subscribed(servers: Any, topic: str = "T", expression: Any = "*", **options: Any) -> AsyncIterator[Any]:
    one = consumer(servers.namesrv.address, **options)
    await one.subscribe(topic, expression)
    async with one:
        yield one


def test_receive_and_acknowledge(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, *(b"%d" % number for number in range(40)))
            async with subscribed(servers) as one:
                got = []
                while len(got) < 40:
                    found = await one.receive(16)
                    assert 0 < len(found) <= 16
                    for message in found:
                        assert (message.topic, message.broker_name) == ("T", "broker-a")
                        got.append(message.body)
                        await one.ack(message)
                        await one.ack(message)  # a second acknowledgement is not an error
                assert sorted(got) == sorted(b"%d" % number for number in range(40))
                assert await one.receive(await_duration_ms=0) == []

    run_stepped(scene())


def test_unacknowledged_messages_come_again(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path, revive_interval_ms=20, pop_from_retry_probability=100) as (servers, producer):
            await send(producer, b"0")
            async with subscribed(servers) as one:
                (first,) = await one.receive(invisible_duration_ms=10_000)
                await one._leases.hide(first, 300)  # shorter than users may choose
                assert await one.receive(await_duration_ms=0) == []
                async with asyncio.timeout(40):
                    found: list[Any] = []
                    while not found:
                        found = await one.receive(await_duration_ms=2_000)
                (second,) = found
                assert (second.body, second.topic, second.reconsume_times) == (b"0", "T", 1)
                assert PopReceipt.of(second).topic_kind in ("1", "2")
                await one.ack(second)

    run_stepped(scene())


def test_tags_and_sql(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path, enable_property_filter=True) as (servers, producer):
            for number, tag in enumerate(["AaAa", "BBBB", "C"]):  # the first two have the same hash
                await producer.send(Message("T", b"%d" % number, tags=tag))
            async with subscribed(servers, expression="BBBB") as one:
                bodies: list[bytes] = []
                async with asyncio.timeout(10):
                    while not bodies:
                        bodies += [message.body for message in await one.receive()]
                assert bodies == [b"1"]
            other = SimpleConsumer("other", servers.namesrv.address)
            await other.subscribe("T", MessageSelector.by_sql("TAGS = 'C'"))
            async with other, asyncio.timeout(10):
                async for message in other:
                    assert message.body == b"2"
                    break

    run_stepped(scene())


def test_several_topics_take_turns_and_one_that_is_empty_holds_nobody_up(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await producer.send(Message("T", b"t"))
            await producer.send(Message("U", b"u"))
            one = consumer(servers.namesrv.address)
            for topic in ("T", "U"):
                await one.subscribe(topic)
            async with one, asyncio.timeout(10):
                got = {message.body for _ in range(2) for message in await one.receive()}
                assert got == {b"t", b"u"}
                receiving = asyncio.ensure_future(one.receive())
                await asyncio.sleep(0.1)
                await producer.send(Message("U", b"late"))
                (message,) = await receiving
                assert message.body == b"late"

    run_stepped(scene())


def test_a_cancelled_receive_loses_nothing(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"0")
            async with subscribed(servers) as one, asyncio.timeout(10):
                (message,) = await one.receive()
                await one.ack(message)
                receiving = asyncio.ensure_future(one.receive())
                await asyncio.sleep(0.1)
                receiving.cancel()
                await send(producer, b"1")
                await asyncio.sleep(0.1)
                (message,) = await one.receive()
                assert message.body == b"1"

    run_stepped(scene())


def test_wrong_uses(tmp_path):
    async def scene() -> None:
        with pytest.raises(ConfigError, match="invisibleDuration"):
            SimpleConsumerConfig(invisible_duration_ms=9_999)
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"0")
            one = consumer(servers.namesrv.address)
            with pytest.raises(ClientError, match="not started"):
                await one.receive()
            async with one:
                with pytest.raises(ClientError, match="no subscription"):
                    await one.receive()
                await one.subscribe("U")
                with pytest.raises(ClientError, match="no route to topic U"):
                    await one.receive()
                for number in (0, 33):
                    with pytest.raises(ClientError, match="max_messages"):
                        await one.receive(number)
                with pytest.raises(ClientError, match="invisible_duration_ms"):
                    await one.receive(invisible_duration_ms=1)
                with pytest.raises(ClientError, match="no receipt"):
                    await one.ack(messages(1)[0])
                await one.unsubscribe("U")
            with pytest.raises(ClientError, match="cannot be started again"):
                await one.start()

    run_stepped(scene())


def test_a_second_event_loop_is_refused(broker):
    async def scene() -> None:
        async with broker(topics={"T": 2}) as script:
            one = consumer(script.address)
            await one.subscribe("T")
            async with one:
                (message,) = messages(5, POP_CK="5 1700 60000 3 0 broker-a 1 5")
                for call in (
                    one.start,
                    one.receive,
                    one.shutdown,
                    lambda: one.ack(message),
                    lambda: one.change_invisible_duration(message, 10_000),
                    lambda: one.subscribe("U"),
                    lambda: one.unsubscribe("T"),
                    lambda: anext(aiter(one)),
                ):
                    with pytest.raises(ClientError, match="another event loop"):
                        await asyncio.to_thread(_run, call)
                await one.ack(message)  # also a message that another consumer has received
                assert script.codes().count(ACK) == 1

    run_stepped(scene())


def _run(call: Any) -> None:
    async def main() -> None:
        await call()

    asyncio.run(main())


def popped(*queue_offsets: int) -> Any:
    fields = {
        "popTime": "1700",
        "invisibleTime": "60000",
        "reviveQid": "3",
        "restNum": "0",
        "startOffsetInfo": "0 1 5",
        "msgOffsetInfo": "0 1 5",
    }
    body = b"".join(record(offset) for offset in queue_offsets)
    return lambda command: command.answer(0, ext_fields=fields, body=body)


@asynccontextmanager
async def scripted(broker: Any, *pops: Any, **options: Any) -> AsyncIterator[Any]:
    async with broker(topics={"T": 2}) as script:
        script.scripts[POP] = list(pops)
        one = consumer(script.address, **options)
        await one.subscribe("T")
        async with one:
            yield script, one


def changed(command: Any) -> Any:
    fields = {"popTime": "1800", "invisibleTime": "60000", "reviveQid": "4"}
    return command.answer(0, ext_fields=fields)


def test_an_old_broker_is_named(broker):
    async def scene() -> None:
        async with scripted(broker, lambda command: command.answer(3, " request type 200050 not supported")) as (
            _,
            one,
        ):
            with pytest.raises(ClientError, match=r"broker broker-a .* does not support POP.*RocketMQ 5\.0"):
                await one.receive()

    run_stepped(scene())


def test_requests_have_these_fields(broker):
    async def scene() -> None:
        async with scripted(broker, popped(5, 6)) as (script, one):
            first, second = await one.receive(7, 20_000, 3_000)
            (pop,) = [command.ext_fields for command in script.received if command.code == POP]
            assert int(pop.pop("bornTime")) > 0
            assert 2_000 < int(pop.pop("pollTime")) <= 3_000  # what the search for the brokers has left
            assert pop == {
                "consumerGroup": "cg",
                "topic": "T",
                "queueId": "-1",
                "maxMsgNums": "7",
                "invisibleTime": "20000",
                "initMode": "0",
                "expType": "TAG",
                "exp": "*",
                "order": "false",
            }
            assert second.properties["POP_CK"] == "5 1700 60000 3 0 broker-a 1 6"
            assert second.properties["1ST_POP_TIME"] == "1700"
            script.scripts[CHANGE] = [changed]
            await one.change_invisible_duration(first, 30_000)
            assert first.properties["POP_CK"] == "5 1800 60000 4 0 broker-a 1 5"
            await one.ack(first)
            change, ack = [command.ext_fields for command in script.received if command.code in (CHANGE, ACK)]
            common = {"consumerGroup": "cg", "topic": "T", "queueId": "1", "offset": "5"}
            assert change == common | {"extraInfo": "5 1700 60000 3 0 broker-a 1 5", "invisibleTime": "30000"}
            assert ack == common | {"extraInfo": "5 1800 60000 4 0 broker-a 1 5"}
            beat = script.heartbeats()[-1].consumer_data_set[0]
            assert (beat.consume_type, [each.topic for each in beat.subscription_data_set]) == ("CONSUME_POP", ["T"])

    run_stepped(scene())


def test_renewal_until_acknowledged(broker):
    async def scene() -> None:
        async with scripted(broker, popped(5, 6), auto_renew=True) as (script, one):
            first, second = await one.receive(invisible_duration_ms=20_000)
            script.scripts[CHANGE] = [changed] * 9
            await one.ack(second)
            changes = lambda: sum(command.code == CHANGE for command in script.received)  # noqa: E731
            await settle()
            advance(9)
            await settle()
            assert changes() == 0
            advance(1.1)
            await script.until(lambda: changes() == 1)
            await settle()
            assert first.properties["POP_CK"].split()[1] == "1800"
            advance(10.1)
            await script.until(lambda: changes() == 2)
            await settle()
            await one.ack(first)
            advance(60)
            await settle()
            assert changes() == 2

    run_stepped(scene())


def test_renewal_ends_with_its_limit_and_with_a_time_the_application_names(broker):
    async def scene() -> None:
        async with scripted(broker, popped(5, 6), auto_renew=True, renew_max_duration_ms=25_000) as (script, one):
            _, second = await one.receive(invisible_duration_ms=20_000)
            script.scripts[CHANGE] = [changed] * 9
            await one.change_invisible_duration(second, 30_000)
            changes = lambda: sum(command.code == CHANGE for command in script.received)  # noqa: E731
            for expected in (2, 3, 3, 3):
                await settle()
                advance(10.1)
                await settle(50)
                assert changes() == expected

    run_stepped(scene())


def test_a_clock_that_is_behind_is_told_and_one_that_is_set_back_meanwhile_makes_no_difference(broker):
    async def scene() -> None:
        clock = ManualClock()
        async with broker(topics={"T": 2}) as script:
            old = "the broker[127.0.0.1] pop message is timeout too much"
            script.scripts[POP] = [popped(5), popped(6), lambda command: command.answer(210, old)]
            one = SimpleConsumer("cg", script.address, clock=clock)
            await one.subscribe("T")
            async with one:
                began = clock.wall_ms()
                await one.receive()
                clock.set_wall_ms(began - 3_600_000)
                await one.receive()
                born = [int(command.ext_fields["bornTime"]) for command in script.received if command.code == POP]
                assert born == [began, began]
                with pytest.raises(ClientError, match="its clock is ahead"):
                    await one.receive()

    run_stepped(scene())


def test_a_failure_is_told_and_the_next_try_is_a_new_one(broker):
    async def scene() -> None:
        async with scripted(broker, lambda command: command.answer(16, "no permission"), popped(5)) as (_, one):
            with pytest.raises(BrokerError, match="no permission"):
                await one.receive()
            assert len(await one.receive()) == 1

    run_stepped(scene())


def test_receipts_of_orderly_and_retried_messages():
    header = PopMessageResponseHeader(9, 8, 999, 0, "0 1 5", "0 1 5,6,7", "0 qo1%6 4;0 1 2")
    found = messages(5, 6) + messages(7, POP_CK="1 2 3 4 1 b 0 7")
    give_receipts(found, "T", header)
    assert [message.reconsume_times for message in found] == [2, 4, 0]
    assert PopReceipt.of(found[2]).real_topic("T", "cg") == "%RETRY%cg_T"
    assert PopReceipt("", "2", "b", 0, 7).real_topic("T", "cg") == "%RETRY%cg+T"
    assert PopReceipt.of(found[0]).real_topic("T", "cg") == "T"
    with pytest.raises(FormatError, match="an entry for queue 1"):
        give_receipts(messages(5), "T", PopMessageResponseHeader(9, 8, 0, 0, "0 2 5"))
