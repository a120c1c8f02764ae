"""A slave and the lite topics of its master: deletions and offsets follow, by pages, and by nobody's clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import properties_text, run_virtual
from tests.pairs import Pair, until

from rucola.broker import Broker
from rucola.broker.lite import slave_rows
from rucola.broker.lite.attributes import BIND_TOPIC
from rucola.broker.processor import offset_manage
from rucola.common.message import StoreMessage
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.errors import FormatError
from rucola.protocol.codes import RequestCode
from rucola.remoting.fairness.steps import at_once

PARENT, GROUP = "Parent", "readers"
LITE = {"enable_lmq": True, "enable_multi_dispatch": True}


class LitePair(Pair):
    """The master has the parent ``Parent`` and the group ``readers``."""

    def __init__(self, directory: Path, **master: Any) -> None:
        super().__init__(directory, stores=LITE, **master)

    async def __aenter__(self) -> LitePair:
        await super().__aenter__()
        self.broker.topics.update_all([TopicConfig(PARENT, 4, 4, attributes={MESSAGE_TYPE: "LITE"})])
        self.broker.groups.update(SubscriptionGroupConfig(GROUP, attributes={BIND_TOPIC: PARENT}))
        return self

    def put(self, *lites: str) -> None:
        for lite in lites:
            texts = {"__LITE_TOPIC": lite, "INNER_MULTI_DISPATCH": f"%LMQ%${PARENT}${lite}"}
            host = bytes(4) + (10911).to_bytes(4, "big")
            self.broker.store.put_message(
                StoreMessage(PARENT.encode(), 0, b"x", properties_text(**texts).encode(), 0, host)
            )
        self.broker.store.dispatch()

    def commit(self, broker: Broker, lite: str, offset: int) -> None:
        assert broker.services.lite_offsets is not None
        broker.services.lite_offsets.commit_topic(GROUP, f"%LMQ%${PARENT}${lite}", offset)

    def remove(self, *lites: str) -> None:
        """As their time to live does."""
        assert self.broker.running.lite_life is not None
        self.broker.running.lite_life.remove([f"{PARENT}${lite}".encode() for lite in lites])


def state(broker: Broker, lite: str) -> tuple[int, int, int | None]:
    """Where a lite topic begins, where it ends, and the group's offset."""
    queue, offsets = f"%LMQ%${PARENT}${lite}", broker.services.lite_offsets
    assert offsets is not None
    return (*broker.store.queue_range(queue.encode(), 0), offsets.query_topic(GROUP, queue))


async def same(pair: Pair, *lites: str) -> None:
    await until(lambda: all(state(pair.slave, lite) == state(pair.broker, lite) for lite in lites))


def test_deletions_and_offsets_reach_a_slave_and_outlive_its_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the dead comes back, and the next offsets are those of the master; with pages of two names."""
    monkeypatch.setattr(slave_rows, "PAGE_ROWS", 2)
    monkeypatch.setattr(slave_rows, "PAGES_A_COPY", 2)

    async def scene() -> None:
        async with LitePair(tmp_path) as pair:
            names = [f"n{number}" for number in range(7)]
            pair.put(*names, *names)
            await pair.start_slave()
            for name in names:
                pair.commit(pair.broker, name, 1)
            await pair.in_step()
            await same(pair, *names)
            assert state(pair.slave, "n3") == (0, 2, 1)
            pair.remove("n1", "n5", "n6")
            await until(lambda: state(pair.broker, "n6")[0] == 2)
            pair.put("n5")
            pair.commit(pair.broker, "n3", 0)
            await same(pair, *names)
            assert [state(pair.slave, name) for name in ("n1", "n3", "n5")] == [(2, 2, None), (0, 2, 0), (2, 3, None)]
            await pair.in_step()
            broker = await pair.promote()
            assert [state(broker, name) for name in ("n1", "n3", "n5")] == [(2, 2, None), (0, 2, 0), (2, 3, None)]
            assert broker.store.lite is not None
            assert broker.store.lite.next_offset(f"%LMQ%${PARENT}$n1".encode()) == 2
            assert broker.store.lite.parents() == {PARENT.encode(): 5}

    run_virtual(scene())


def test_more_offsets_than_a_table_for_rocketmq_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_manage, "LITE_EXPORTED_MAX", 2)

    async def scene() -> None:
        async with LitePair(tmp_path) as pair:
            pair.put("a", "b")
            await pair.start_slave()
            pair.commit(pair.broker, "a", 1)
            await same(pair, "a", "b")
            pair.put("c", "d")
            for lite in "bcd":
                pair.commit(pair.broker, lite, 1)
            await same(pair, *"abcd")
            pair.commit(pair.slave, "b", 0)
            await same(pair, "b")

    run_virtual(scene())


def test_a_deleted_parent_takes_its_lite_topics_with_it_on_a_slave_too(tmp_path: Path) -> None:
    async def scene() -> None:
        async with LitePair(tmp_path) as pair:
            pair.put("a", "b")
            await pair.start_slave()
            await pair.in_step()
            await same(pair, "a", "b")
            await pair.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
            await until(lambda: state(pair.slave, "a") == (1, 1, None) == state(pair.slave, "b"))

    run_virtual(scene())


def test_a_master_of_rocketmq_has_no_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores the field, and sends all offsets; a slave that sends no field gets what it always got."""
    monkeypatch.setattr(slave_rows, "ROW", "unknown")

    async def scene() -> None:
        async with LitePair(tmp_path) as pair:
            pair.put("a")
            await pair.start_slave()
            pair.commit(pair.broker, "a", 1)
            await pair.in_step()
            await same(pair, "a")
            assert not pair.link._tables._has_pages
            pair.remove("a")
            await asyncio.sleep(60)
            assert state(pair.slave, "a")[:2] == (0, 1), "nothing tells it"
            await pair.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
            await until(lambda: state(pair.slave, "a")[:2] == (1, 1))

    run_virtual(scene())


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[1]",
        b'[["a",-1,{}]]',
        b'[["a",0,{"g":-1}]]',
        b'[["a",0,{"":1}]]',
        b'[["a","0",{}]]',
        b'[["a",0]]',
        b'[["Parent$a",0,{"%s":1}]]' % ("é" * 128).encode(),
    ],
)
def test_a_page_that_is_none_changes_nothing(tmp_path: Path, body: bytes) -> None:
    async def scene() -> None:
        async with LitePair(tmp_path) as pair:
            pair.put("a")
            offsets = pair.broker.services.lite_offsets
            assert offsets is not None
            with pytest.raises(FormatError):
                at_once(slave_rows.take(pair.broker.store, offsets, body))
            more = b'[["Parent$a",2,{"readers":1}],["Parent$unknown",1,{}]]'
            at_once(slave_rows.take(pair.broker.store, offsets, more))
            assert state(pair.broker, "a") == (0, 1, None), "its messages are not here so far"
            pair.commit(pair.broker, "a", 1)
            at_once(slave_rows.take(pair.broker.store, offsets, b'[["Parent$a",0,{}]]'))
            assert state(pair.broker, "a") == (0, 1, 1), "committed here"
            at_once(slave_rows.take(pair.broker.store, offsets, b'[["Parent$a",1,{}]]'))
            assert offsets.query_topic(GROUP, f"%LMQ%${PARENT}$a") is None, "it is deleted up to there"

    run_virtual(scene())
