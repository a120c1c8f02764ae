"""Live tails: a window that moves with each request, filters, what is dropped, and how many there may be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.brokers import properties_text
from tests.unit.console.test_changes import play
from tests.unit.console.visitor import Seen, Visitor

from rucola.common.topic_config import TopicConfig
from rucola.console.bounds import TooManyError
from rucola.console.messages import tail
from rucola.console.messages.tail import (
    KEEP_S,
    LEFT_S,
    LIFE_S,
    OF_VISITOR_MAX,
    TAILS_MAX,
    TailDesk,
    TailOf,
)
from rucola.testing.clock import ManualClock


async def send(it: Seen, number: int, **properties: str) -> None:
    text = properties_text(UNIQ_KEY=f"N{number}", **properties)
    await it.there.cluster.send("T_live", f"new {number}".encode(), text, queue_id=0)


def test_a_tail_follows(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        offsets = it.there.cluster.broker.offsets
        assert (await it.api("tail"))["state"] == "form"
        first = await it.api("tail?topic=T_live")
        assert first["state"] == "follows" and first["seen"] == "8" and first["rate"] is None
        assert first["rows"][0]["preview"] == "message 7", "the newest comes first"
        for number in range(3):
            await send(it, number)
        then = await it.api("tail?topic=T_live")
        assert [row["preview"] for row in then["rows"][:3]] == ["new 2", "new 1", "new 0"]
        assert (then["seen"], then["dropped"]) == ("11", "0") and then["rate"] is not None
        still = await it.api("tail?topic=T_live&paused=true")
        await send(it, 3)
        assert (await it.api("tail?topic=T_live&paused=true"))["seen"] == still["seen"] == "11"
        assert (await it.api("tail?topic=T_live"))["seen"] == "12", "what came meanwhile is not lost"
        assert offsets.query("TOOLS_CONSUMER", "T_live", 0) is None, "a tail commits nothing"
        page = await it.page("tail?topic=T_live")
        assert "new 3" in page.text or "message 7" in page.text
        assert page.has("body", **{"data-refresh": "2000"})
        assert not (await it.page("tail?topic=T_live&paused=true")).has("body", **{"data-refresh": "2000"})

    play(tmp_path, work)


def test_filters(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for number, (tag, color) in enumerate((("A", "green"), ("B", "red"), ("Aa", "red"), ("BB", "green"))):
            await send(it, number, TAGS=tag, color=color)
        for query, wanted in (
            ("tag=A", {"new 0"}),
            ("tag=A || B", {"new 0", "new 1"}),
            ("tag=BB", {"new 3"}),  # has the hash code of Aa
            ("sql=color = 'green'", {"new 0", "new 3"}),
        ):
            found = await it.api(f"tail?topic=T_live&{query}")
            assert {row["preview"] for row in found["rows"]} == wanted, query

    play(tmp_path, work, broker={"enable_property_filter": True})


def test_what_a_broker_refuses_is_said(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        found = await it.api("tail?topic=T_live&sql=color = 'green'")
        assert found["unknown"] and found["rows"] == []
        assert "Cannot tell." in (await it.page("tail?topic=T_live&sql=color = 'green'")).text
        assert (await it.visitor.get("/cluster/tail?topic=T_live&sql=a&tag=b")).status == 400
        await it.there.cluster.stop_broker()
        found = await it.api("tail?topic=T_live")
        assert found["unknown"] and found["state"] == "follows"

    play(tmp_path, work)


def test_what_comes_too_fast_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LOOK_MESSAGES", 32)

    async def work(it: Seen) -> None:
        await it.there.cluster.broker.topics.update(TopicConfig("T_fast", 1, 1, 6))
        await it.look()
        assert (await it.api("tail?topic=T_fast"))["seen"] == "0"
        for number in range(100):
            await it.there.cluster.send("T_fast", f"{number}".encode())
        found = await it.api("tail?topic=T_fast")
        assert (found["seen"], found["dropped"]) == ("32", "36")
        last = await it.api("tail?topic=T_fast")
        assert last["rows"][0]["preview"] == "99" and (last["seen"], last["dropped"]) == ("64", "36")
        await it.page("tail?topic=T_fast")  # begins a session and its own tail
        for number in range(100):
            await it.there.cluster.send("T_fast", f"{number}".encode())
        assert "came too fast" in (await it.page("tail?topic=T_fast")).text

    play(tmp_path, work)


def test_a_topic_that_is_made_again(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        cluster = it.there.cluster
        await it.api("tail?topic=T_live")
        await cluster.ask(215, {"topic": "T_live"})
        await cluster.broker.topics.update(TopicConfig("T_live", 2, 2, 6))
        await send(it, 0)
        await it.api("tail?topic=T_live")
        assert (await it.api("tail?topic=T_live"))["rows"][0]["preview"] == "new 0"

    play(tmp_path, work)


def test_a_tail_belongs_to_its_session(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        other = Visitor(it.console)
        for visitor in (it.visitor, other):
            await visitor.get("/cluster/tail?topic=T_live")
        await send(it, 0)
        await it.page("tail?topic=T_live")
        found = (await other.get("/api/cluster/tail?topic=T_live")).json
        assert found["rows"][0]["preview"] == "new 0", "what one visitor has read is new to the other one"

    play(tmp_path, work)


def test_a_tail_that_nobody_asks_for_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.console.console._TIDY_S", 0.001)

    async def work(it: Seen) -> None:
        await it.api("tail?topic=T_live")
        assert it.console.application is not None
        tails = it.console.application.desks.tails
        assert len(tails) == 1
        monkeypatch.setattr(tail, "KEEP_S", 0.0)
        while len(tails):
            await asyncio.sleep(0)

    play(tmp_path, work)


def of(visitor: str, number: int) -> TailOf:
    return TailOf("cluster", visitor, "", f"T{number}", "", False)


def test_tails_of_a_visitor_are_bounded() -> None:
    clock = ManualClock()
    desk = TailDesk(clock.monotonic)
    for number in range(OF_VISITOR_MAX):
        assert desk.tail(of("a", number), True) is desk.tail(of("a", number), True)
        clock.advance(1)
    with pytest.raises(TooManyError):
        desk.tail(of("a", 9), True)
    assert desk.tail(of("b", 0), True) is not None, "another visitor has places of his own"
    clock.advance(int(LEFT_S * 1000))
    assert desk.tail(of("a", 9), True) is not None
    assert len(desk) == OF_VISITOR_MAX + 1, "one that nobody asks for makes room"


def test_tails_in_all_are_bounded() -> None:
    clock = ManualClock()
    desk = TailDesk(clock.monotonic)
    for number in range(TAILS_MAX):
        desk.tail(of(f"visitor {number}", 0), True)
    with pytest.raises(TooManyError):
        desk.tail(of("late", 0), True)
    clock.advance(int(KEEP_S * 1000))
    desk.expire()
    assert len(desk) == 0


def test_a_tail_ends_by_itself() -> None:
    clock = ManualClock()
    desk = TailDesk(clock.monotonic)
    first = desk.tail(of("a", 0), True)
    for _ in range(int(LIFE_S / 300)):
        clock.advance(299_000)
        assert desk.tail(of("a", 0), True) is first
    clock.advance(10_000)
    assert desk.tail(of("a", 0), True) is None
    assert desk.tail(of("a", 0), True) not in (None, first)
