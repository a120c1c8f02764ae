"""docs/coming-from.md: its words exist, and what it says about habits holds."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import rucola
from rucola import ClientError, Message, MessageExt, PushConsumerConfig
from rucola.sync import Producer, PushConsumer
from rucola.testing.rocketmq import RocketMQ

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
CLIENTS = ("Producer", "TransactionProducer", "PushConsumer", "LitePullConsumer", "SimpleConsumer", "PullConsumer")
OTHERS = {"host", "DLQ", "group", "order", "timedelta", "minutes", "False", "await", "message"}
"""Words in code that are no names of ours."""


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[RocketMQ]:
    with RocketMQ() as servers:
        yield servers


def _names() -> set[str]:
    """All names that the page may use: exports, their members, and arguments."""
    found = set(rucola.__all__)
    for name in (
        *CLIENTS,
        "Message",
        "MessageExt",
        "MessageQueue",
        "MessageModel",
        "ConsumeFromWhere",
        "ReconsumeLater",
    ):
        kind = getattr(rucola, name)
        found.update(member for member in dir(kind) if not member.startswith("_"))
        found.update(inspect.signature(kind).parameters)
    for name in CLIENTS:
        if config := getattr(rucola, f"{name}Config", None):
            found.update(entry.name for entry in fields(config))
    return found


def test_the_words_exist() -> None:
    rows = re.findall(r"^\|(.*)\|$", PAGE, re.MULTILINE)[2:]
    words = {
        word
        for row in rows
        for code in re.findall("`([^`]+)`", row.split(" | ")[-1].replace("\\|", ""))
        for word in re.findall(r"[A-Za-z_]{2,}", code)
    }
    assert len(words) > 30
    assert words - OTHERS - _names() == set()


def test_keys_do_not_order_and_sharding_keys_do(rocketmq: RocketMQ) -> None:
    with Producer("pg", rocketmq.namesrv) as producer:
        by_key = [producer.send(Message("keys", b"x", keys="order-1")) for _ in range(8)]
        sharded = [producer.send(Message("keys", b"x", sharding_key="order-1")) for _ in range(8)]
    assert {sent.message_queue.queue_id for sent in by_key} == {0, 1, 2, 3}, "a new topic has four queues"
    assert len({sent.message_queue.queue_id for sent in sharded}) == 1


def test_names_of_topics(rocketmq: RocketMQ) -> None:
    with Producer("pg", rocketmq.namesrv) as producer:
        producer.send(Message("a_b-c%d|9", b"x"))
        with pytest.raises(ClientError):
            producer.send(Message("orders.new", b"x"))


def test_a_failed_message_stops_nothing_and_comes_again_after_the_pauses_of_the_page(rocketmq: RocketMQ) -> None:
    def fail(message: MessageExt) -> None:
        if message.body == b"bad":
            raise ValueError
        good.append(message.body)

    good: list[bytes] = []
    rocketmq.create_topic("mixed", queues=1)
    consumer = PushConsumer("mixers", rocketmq.namesrv, PushConsumerConfig(auto_commit_interval_ms=50))
    consumer.register_message_listener(fail)
    consumer.subscribe("mixed")
    with consumer, Producer("pg", rocketmq.namesrv) as producer:
        rocketmq.consumers("mixers", count=1)
        for body in (b"bad", b"good", b"better"):
            producer.send(Message("mixed", body))
        for seconds in (10, 30, 60):
            (waiting,) = rocketmq.retries("mixers", count=1)
            rocketmq.clock.advance(seconds=seconds - 2)
            assert [message.physical_offset for message in rocketmq.retries("mixers")] == [waiting.physical_offset]
            rocketmq.clock.advance(seconds=3)
        rocketmq.wait_for_progress("mixers", "mixed")
        (letter,) = rocketmq.exhaust_retries("mixers")
    assert (sorted(good), letter.body) == ([b"better", b"good"], b"bad")
