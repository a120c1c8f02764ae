"""The blocking consumers over our broker: listeners in threads, ``for`` loops, polls, receipts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.brokers import Cluster

from rucola.client.loop_thread import shared_loop
from rucola.sync import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    """Starts a broker with ten messages, on the clients' event loop."""
    cluster = Cluster(tmp_path)
    shared_loop().run(cluster.__aenter__())
    with Producer("pg", cluster.namesrv.address) as producer:
        for number in range(10):
            producer.send(Message("T", b"%d" % number))
    yield cluster.namesrv.address
    shared_loop().run(cluster.__aexit__())


BODIES = sorted(b"%d" % number for number in range(10))


def test_a_listener_runs_in_threads(namesrv):
    got, done = [], threading.Event()

    def listener(message):
        got.append((message.body, threading.current_thread().name))
        if len(got) == 10:
            done.set()

    consumer = PushConsumer("cg", namesrv, PushConsumerConfig(consume_from_where=FIRST))
    consumer.register_message_listener(listener)
    consumer.subscribe("T")
    with consumer:
        assert done.wait(20)
        assert len([queue for queue in consumer.assignment if queue.topic == "T"]) == 4
    assert sorted(body for body, _ in got) == BODIES
    assert all(name.startswith("rucola-consume") for _, name in got)


def test_a_loop_over_messages(namesrv):
    got = []
    for consumer in (
        PushConsumer("cg", namesrv, PushConsumerConfig(consume_from_where=FIRST)),
        LitePullConsumer("lite", namesrv, LitePullConsumerConfig(consume_from_where=FIRST)),
        SimpleConsumer("simple", namesrv),
    ):
        consumer.subscribe("T")
        got.clear()
        with consumer:
            for message in consumer:
                got.append(message.body)
                if len(got) == 10:
                    break
        assert sorted(got) == BODIES


def test_a_loop_left_by_break_has_consumed_its_last_message_and_one_left_by_an_error_has_not(namesrv):
    def take(count: int, error: Exception | None = None) -> list[bytes]:
        got = []
        consumer = PushConsumer("cg", namesrv, PushConsumerConfig(consume_from_where=FIRST))
        consumer.subscribe("T")
        with consumer:
            for message in consumer:
                got.append(message.body)
                if len(got) == count:
                    if error is not None:
                        raise error
                    break
        return got

    first = take(1)
    with pytest.raises(ZeroDivisionError):
        take(1, ZeroDivisionError())
    assert sorted(first + take(9)) == BODIES


def test_a_loop_ends_with_the_consumer(namesrv):
    consumer = PushConsumer("cg", namesrv, PushConsumerConfig(consume_from_where=FIRST))
    consumer.subscribe("T")
    consumer.start()
    got = []

    def loop() -> None:
        for message in consumer:
            got.append(message.body)

    looping = threading.Thread(target=loop)
    looping.start()
    while len(got) < 10:
        looping.join(0.01)
    consumer.shutdown()
    looping.join(20)
    assert not looping.is_alive()


def test_polls_and_receipts(namesrv):
    with LitePullConsumer("lite", namesrv, LitePullConsumerConfig(consume_from_where=FIRST)) as consumer:
        consumer.subscribe("T")
        got = []
        while len(got) < 10:
            got += consumer.poll(1_000)
        assert sorted(message.body for message in got) == BODIES
    with SimpleConsumer("simple", namesrv) as simple:
        simple.subscribe("T")
        received = []
        while len(received) < 10:
            for message in simple.receive():
                received.append(message.body)
                simple.ack(message)
        assert sorted(received) == BODIES
