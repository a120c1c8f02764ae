"""Lookups of keys through brokers: only the messages in question are read, and none is missed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc
import pytest

from rucola import Message
from rucola.arrow import dataset
from rucola.arrow.broker_catalog import BrokerCatalog
from rucola.arrow.broker_lookup import COMPLETE_MAX, _indexed_end
from rucola.arrow.offsets import Mark
from rucola.arrow.ranges import QueueRange
from rucola.arrow.read_options import ReadOptions, Subscription
from rucola.common.message_queue import MessageQueue
from rucola.sync import Producer
from rucola.testing.rocketmq import RocketMQ

COUNT = 400
QUEUE = MessageQueue("t", "b", 0)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with RocketMQ() as rocketmq, Producer("p", rocketmq.namesrv) as producer:
        for number in range(COUNT):
            often = ["often"] if number % 5 == 0 else []
            producer.send(Message("keyed", b"%d" % number, keys=[f"k{number}", f"pair{number // 2}", *often]))
        producer.send(Message("other", b"x", keys=["k7"]))
        yield rocketmq.namesrv


def pieces(servers: str, *keys: str) -> list[QueueRange] | None:
    options = ReadOptions(name_server=servers, subscription=Subscription(topics=("keyed",)))
    catalog = BrokerCatalog(options)
    try:
        bounds = catalog.bounds(catalog.queues(all_needed=True))
        return catalog.plan_lookup([QueueRange(queue, *held) for queue, held in bounds.items()], keys, ())
    finally:
        catalog.close()


def test_only_messages_with_the_keys_are_read(servers: str) -> None:
    assert [one.count for one in pieces(servers, "k7") or []] == [1]
    assert [one.count for one in pieces(servers, "pair7", "k3") or []] == [1, 1, 1]
    assert pieces(servers, "none") == []


def test_a_key_of_many_messages_is_scanned(servers: str) -> None:
    assert COUNT // 5 > COMPLETE_MAX
    assert pieces(servers, "often") is None


def test_a_filter_finds_the_same_with_and_without_the_index(servers: str) -> None:
    for use_index in (True, False):
        rows = dataset(topic="keyed", name_server=servers, use_index=use_index)
        found = rows.to_table(columns=["body"], filter=pc.field("keys") == "k8 pair4")
        assert found["body"].to_pylist() == [b"8"]


@pytest.mark.parametrize(("indexed", "end"), [(-1, 3), (299, 3), (300, 4), (500, 6), (899, 9), (900, 10), (5000, 10)])
def test_where_the_index_ends(indexed: int, end: int) -> None:
    asked: list[int] = []

    def marks(places: dict[MessageQueue, int]) -> dict[MessageQueue, Mark | None]:
        asked.append(places[QUEUE])
        return {QUEUE: Mark(0, 100 * places[QUEUE])}

    assert _indexed_end(QueueRange(QUEUE, 3, 10), marks, indexed) == end
    assert len(asked) <= 4
    assert _indexed_end(QueueRange(QUEUE, 3, 10), lambda _: {QUEUE: None}, 0) is None
