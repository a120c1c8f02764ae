"""SQL over HTTP: through the brokers, and over a store of this machine."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from tests.brokers import run
from tests.golden.loader import unpack
from tests.unit.console.visitor import Answer, Seen, seen

from rucola.console.bounds import TooManyError
from rucola.console.queries import desk

RUNAWAY = "select sum(a.range * b.range) from range(10000000) a, range(1000000) b where a.range % 7 = b.range % 5"


def play(folder: Path, work: Any, **options: Any) -> None:
    async def scene() -> None:
        async with seen(folder, **options) as found:
            await work(found)

    run(scene())


async def asked(it: Seen, query: str, **more: Any) -> Answer:
    csrf = {"x-csrf-token": await it.visitor.csrf()}
    return await it.visitor.send("/api/cluster/sql", {"query": query, **more}, csrf)


def test_a_query_through_the_brokers(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        text = "select queueId, count(*) as n from T_live group by queueId order by 1"
        assert "SELECT tags" in str((await it.page("sql")).elements)
        answer = await it.visitor.post("/cluster/sql", {"query": text, "rows": "50", "store": "-1", "do": "run"})
        assert answer.status == 303 and quote("count(*)", safe="") in answer.headers["location"]
        address = answer.headers["location"].removeprefix("/cluster/")
        while (value := await it.api(address))["state"] != "done":
            assert value["state"] in ("waiting", "running"), value
        assert [one["name"] for one in value["columns"]] == ["queueId", "n"] and value["rows"] == [
            ["0", "4"],
            ["1", "4"],
        ]
        assert [(bar["name"], bar["value"], bar["part"]) for bar in value["bars"]] == [("0", 4.0, 1.0), ("1", 4.0, 1.0)]
        page = await it.page(address)
        assert page.has("div", **{"class": "bars"}) and page.has("th", title="int64")
        csv = await it.visitor.get("/api/cluster/sql/csv")
        assert csv.body == b"queueId,n\n0,4\n1,4\n" and csv.headers["content-disposition"].startswith("attachment")
        table = pq.read_table(io.BytesIO((await it.visitor.get("/api/cluster/sql/parquet")).body))
        assert table.to_pydict() == {"queueId": [0, 1], "n": [4, 4]}
        assert (await it.visitor.get("/api/cluster/sql/xml")).status == 400
        assert (await it.api("sql?query=other"))["state"] == "none"

    play(tmp_path, work)


def test_a_query_over_a_store(tmp_path: Path) -> None:
    unpack("index_chains", tmp_path / "old")

    async def work(it: Seen) -> None:
        text = "select storeTimestamp, queueOffset from TopicTest order by 1"
        value = (await asked(it, text, store=0, rows=3)).json
        assert (value["state"], len(value["rows"]), value["more"]) == ("done", 3, True)
        assert value["series"]["points"][0] == {"time_ms": 1_700_000_000_123, "value": 0.0}
        assert (await it.api(f"sql?query={quote(text)}&store=0&rows=3"))["state"] == "done"
        page = await it.page(f"sql?query={quote(text)}&store=0&rows=3")
        assert "There are more rows than 3." in page.text and page.has("div", **{"class": "chart"})
        empty = (await asked(it, "select * from TopicTest where false", store=0)).json
        assert empty["rows"] == [] and empty["columns"]
        wrong = (await asked(it, "select nothing from TopicTest", store=0)).json
        assert wrong["state"] == "failed" and "nothing" in wrong["error"]
        for bad in ({"rows": 0}, {"rows": 10_001}, {"store": 1}, {"store": -2}):
            assert (await asked(it, "select 1", **bad)).status == 400
        assert (await asked(it, " ")).status == 400

    play(tmp_path, work, stores=str(tmp_path / "old"))


def test_a_query_can_be_cancelled(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        form = {"query": RUNAWAY, "rows": "5", "store": "-1"}
        answer = await it.visitor.post("/cluster/sql", {**form, "do": "run"})
        address = answer.headers["location"].removeprefix("/cluster/")
        page = await it.page(address)
        assert page.has("button", value="cancel")
        assert (await it.visitor.post("/cluster/sql", {**form, "do": "cancel"})).status == 303
        assert (await it.api(address))["state"] == "cancelled" and "cancelled" in (await it.page(address)).text
        # A new query ends the visitor's earlier one.
        first = asyncio.create_task(asked(it, RUNAWAY))
        while (await it.api(f"sql?query={quote(RUNAWAY)}"))["state"] == "none":
            await asyncio.sleep(0)
        assert (await asked(it, "select 1 as one")).json["rows"] == [["1"]]
        assert (await first).json["state"] == "cancelled"

    play(tmp_path, work)


def test_a_query_ends_with_the_console(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        waiting = asyncio.create_task(asked(it, RUNAWAY))
        while (await it.api(f"sql?query={quote(RUNAWAY)}"))["state"] == "none":
            await asyncio.sleep(0)
        assert it.console.application is not None
        await it.console.application.desks.close()
        assert (await asyncio.wait_for(waiting, 10)).json["rows"] == [], "long before its own end"

    play(tmp_path, work)


def test_old_results_are_forgotten() -> None:
    async def scene() -> None:
        now = [0.0]
        found = desk.QueryDesk(lambda: now[0])
        owners = [("cluster", f"user{number}", "session") for number in range(desk.KEPT_MAX)]
        for owner in owners:
            found.start(owner, desk.Query("select 1", 1, -1), {})
        another = ("cluster", "another", "session")
        with pytest.raises(TooManyError, match="too many queries"):
            found.start(another, desk.Query("select 1", 1, -1), {})
        assert all(found.of(owner) is not None for owner in owners), "nobody ends a query of others"
        found.start(owners[3], desk.Query("select 2", 1, -1), {})  # takes the place of his own one
        found.cancel(owners[0])
        found.start(another, desk.Query("select 1", 1, -1), {})
        assert found.of(owners[0]) is None and found.of(owners[1]) is not None
        found.cancel(owners[1])
        now[0] = desk.KEPT_S + 1
        assert found.of(owners[1]) is None and found.of(owners[2]) is not None, "what runs is kept"
        await found.close()

    run(scene())


def test_one_account_has_not_all_places() -> None:
    async def scene() -> None:
        found = desk.QueryDesk(lambda: 0.0)
        for number in range(desk.OF_ACCOUNT_MAX):
            found.start(("cluster", "alice", str(number)), desk.Query("select 1", 1, -1), {})
        with pytest.raises(TooManyError):
            found.start(("cluster", "alice", "another"), desk.Query("select 1", 1, -1), {})
        found.start(("cluster", "alice", "0"), desk.Query("select 2", 1, -1), {})
        found.start(("cluster", "bob", "0"), desk.Query("select 1", 1, -1), {})
        await found.close()

    run(scene())


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_without_a_query_there_is_no_file(tmp_path: Path, form: str) -> None:
    async def work(it: Seen) -> None:
        assert (await it.visitor.get(f"/api/cluster/sql/{form}")).status == 404

    play(tmp_path, work)
