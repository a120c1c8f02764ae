"""What consumers report when something around them is wrong: by an error at once, or by a line in the log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.brokers import Cluster
from tests.unit.client.test_loops_with_broker import ALL, FIRST, first, made, scene_of, until

from rucola import (
    ClientError,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
    TopicNotExistError,
)
from rucola.errors import BrokerError


def fields_of(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [vars(one)["rucola_fields"] for one in caplog.records if vars(one).get("rucola_event") == name]


def test_two_subscriptions_in_one_group_are_named_in_the_log(tmp_path, caplog):
    async def work(servers: Cluster, producer: Producer) -> None:
        await producer.send(Message("Other", b"x"))
        config = PushConsumerConfig(
            consume_from_where=FIRST, pull_time_delay_when_exception_ms=10, broker_suspend_max_time_ms=50
        )
        async with (
            PushConsumer("cg", servers.namesrv.address, config, topics=["T"]) as one,
            PushConsumer("cg", servers.namesrv.address, config, topics=["Other"]) as two,
        ):
            loops: list[asyncio.Future[bytes]] = []
            for consumer in (one, two):
                loops.append(asyncio.ensure_future(first(consumer)))
            await until(lambda: fields_of(caplog, "another member of the group has other subscriptions"))
            for loop in loops:
                loop.cancel()

    scene_of(tmp_path, work)
    (told, *_) = fields_of(caplog, "another member of the group has other subscriptions")
    assert told["group"] == "cg"
    assert told["queue"].topic in ("T", "Other")


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_the_address_of_a_broker_is_refused_at_the_start(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        with pytest.raises(ClientError, match="is a broker, not a name server"):
            async with kind("cg", servers.broker.address, topics=["T"]):
                pytest.fail("the consumer must not start")

    scene_of(tmp_path, work)


@pytest.mark.parametrize("orderly", [False, True])
def test_each_attempt_and_the_dead_letter_are_told(tmp_path, caplog, orderly):
    async def work(servers: Cluster, producer: Producer) -> None:
        config = PushConsumerConfig(
            consume_from_where=FIRST,
            consume_orderly=orderly,
            max_reconsume_times=0 if not orderly else 1,
            suspend_current_queue_time_ms=10,
        )
        consumer = PushConsumer("cg", servers.namesrv.address, config, topics=["T"])

        def fail(message: MessageExt) -> None:
            raise ValueError("poison")

        consumer.register_message_listener(fail)
        async with consumer:
            await until(lambda: len(fields_of(caplog, "message becomes a dead letter")) == len(ALL))

    scene_of(tmp_path, work)
    failed, dead = fields_of(caplog, "listener failed"), fields_of(caplog, "message becomes a dead letter")
    assert {(one["topic"], one["attempt"]) for one in failed} == {("T", 1)} | ({("T", 2)} if orderly else set())
    assert {(one["group"], one["topic"], one["attempts"]) for one in dead} == {("cg", "T", 2 if orderly else 1)}


def test_a_broker_that_does_not_allow_recalls_says_so_for_good():
    assert not BrokerError(16, "recall failed, operation is forbidden").retriable
    assert BrokerError(16, "the broker[a] sending message is forbidden").retriable


def test_wrong_arguments_are_named(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        async with SimpleConsumer("sg", servers.namesrv.address) as simple:
            for call in (simple.ack, lambda given: simple.change_invisible_duration(given, 10_000)):
                with pytest.raises(ClientError, match="takes one received message, not"):
                    await call([])
        async with made("lite", servers) as lite:
            with pytest.raises(ClientError, match=r"offsets by queue, \{queue: offset\}, or nothing; not list"):
                await lite.commit([MessageQueue("T", "broker-a", 0)])
        with pytest.raises(TopicNotExistError, match="no route to topic absent"):
            async with made("lite", servers) as lite:
                await lite.message_queues("absent")

    scene_of(tmp_path, work)
