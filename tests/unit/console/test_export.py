"""Exports: lines while they are read, bounded, with a last line that says where they stopped."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import properties_text
from tests.unit.console.test_changes import play
from tests.unit.console.visitor import Seen

from rucola.common.topic_config import TopicConfig
from rucola.console.bounds import Places, TooManyError
from rucola.console.messages import export

EXPORT = "/api/cluster/messages/export"


async def lines(it: Seen, query: str) -> list[Any]:
    answer = await it.visitor.get(f"{EXPORT}?{query}")
    assert answer.status == 200, answer.text
    return [json.loads(line) for line in answer.body.splitlines()]


def test_lines_of_json(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        *rows, end = await lines(it, "topic=T_live")
        assert {row["body"] for row in rows} == {f"message {number}" for number in range(8)}
        assert end == {"stopped": "end", "rows": 8, "scanned": 8, "cursor": "", "why": ""}
        assert rows[0]["properties"]["UNIQ_KEY"] == rows[0]["unique_key"] and isinstance(rows[0]["offset"], str)
        *rows, end = await lines(it, "topic=T_live&tag=none")
        assert rows == [] and end["scanned"] == 8
        (row, end) = await lines(it, "topic=T_live&text=message 3")
        assert row["body"] == "message 3"
        await it.there.cluster.send("T_live", b"\xff\x00")
        assert {"/wA="} == {row["body_base64"] for row in await lines(it, "topic=T_live") if "body_base64" in row}
        answer = await it.visitor.get(f"{EXPORT}?topic=T_live")
        assert answer.headers["content-disposition"] == 'attachment; filename="T_live.jsonl"'
        assert answer.headers["content-type"] == "application/x-ndjson"
        page = await it.page("messages?topic=T_live&tag=TagA")
        assert any(link.startswith(EXPORT) and "tag=TagA" in link for link in page.links)

    play(tmp_path, work)


def test_dead_letters_as_csv(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await it.there.cluster.broker.topics.update(TopicConfig("%DLQ%G_live", 1, 1, 6))
        await it.there.cluster.send("%DLQ%G_live", b'say "hi",\nall', properties_text(UNIQ_KEY="D", KEYS="k"))
        await it.look()
        answer = await it.visitor.get(f"{EXPORT}?topic=%25DLQ%25G_live&form=csv")
        assert answer.headers["content-disposition"] == 'attachment; filename="_DLQ_G_live.csv"'
        head, row, last = list(csv.reader(io.StringIO(answer.text)))
        found = dict(zip(head, row, strict=True))
        assert (found["unique_key"], found["keys"], found["body"]) == ("D", "k", 'say "hi",\nall')
        assert json.loads(last[0].removeprefix("# "))["stopped"] == "end"

    play(tmp_path, work)


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_PAGE", 3)

    async def work(it: Seen) -> None:
        *first, end = await lines(it, "topic=T_live&count=3")
        assert end["stopped"] == "limit" and 3 <= len(first) < 8 and end["cursor"]
        *rest, end = await lines(it, f"topic=T_live&cursor={end['cursor']}")
        assert end["stopped"] == "end"
        assert sorted(row["body"] for row in first + rest) == [f"message {number}" for number in range(8)]
        monkeypatch.setattr(export, "BYTES_MAX", 100)
        *rows, end = await lines(it, "topic=T_live")
        assert end["stopped"] == "bytes" and 0 < len(rows) < 8
        monkeypatch.undo()
        monkeypatch.setattr(export, "EXPORT_S", -1.0)
        monkeypatch.setattr(export, "_PAGE", 3)
        assert (await lines(it, "topic=T_live"))[-1]["stopped"] == "time"

    play(tmp_path, work)


def test_a_broker_that_is_away_is_said(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await it.there.cluster.stop_broker()
        (end,) = await lines(it, "topic=T_live")
        assert end["stopped"] == "server" and end["why"]

    play(tmp_path, work)


def test_hidden_bodies_are_not_exported(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for form in ("jsonl", "csv"):
            answer = await it.visitor.get(f"{EXPORT}?topic=T_live&form={form}")
            assert b"message 2" not in answer.body and b"live2" not in answer.body and b"T_live" in answer.body
        assert (await it.visitor.get(f"{EXPORT}?topic=T_live&text=message")).status == 400

    play(tmp_path, work, bodies_for="alice")


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for query in ("", "topic=T&form=xml", "topic=T&count=0", "topic=T&begin=x", "topic=T_live&cursor=x"):
            assert (await it.visitor.get(f"{EXPORT}?{query}")).status == 400, query
        assert len(it.console.application.desks.exports) == 0  # type: ignore[union-attr]

    play(tmp_path, work)


def test_places_come_back(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        places = it.console.application.desks.exports  # type: ignore[union-attr]
        for _ in range(5):
            await lines(it, "topic=T_live")
        assert len(places) == 0
        for _ in range(2):
            places.take("127.0.0.1")
        answer = await it.visitor.get(f"{EXPORT}?topic=T_live")
        assert (answer.status, answer.json["error"]) == (429, "too-many")
        places.give_back("127.0.0.1")
        assert (await it.visitor.get(f"{EXPORT}?topic=T_live")).status == 200

    play(tmp_path, work)


def test_places_are_bounded_in_all() -> None:
    places = Places(2, 3, "wait")
    for visitor in ("a", "a", "b"):
        places.take(visitor)
    for visitor in ("a", "c"):
        with pytest.raises(TooManyError, match="wait"):
            places.take(visitor)
    places.give_back("b")
    places.take("c")
