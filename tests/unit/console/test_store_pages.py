"""The store explorer over HTTP, with golden stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.brokers import run
from tests.golden.loader import unpack
from tests.unit.console.visitor import Page, Seen, seen

from rucola.console import ConsoleConfig
from rucola.errors import ConfigError


def play(folder: Path, work: Any, *, store: str = "index_chains", **options: Any) -> None:
    unpack(store, folder / "old")

    async def scene() -> None:
        stores = f"{folder / 'old'},{folder / 'store'}"
        async with seen(folder, stores=stores, **options) as found:
            await work(found)

    run(scene())


def target(field: dict[str, Any]) -> str:
    """The address that a field points to."""
    link = {key: value for key, value in field["link"].items() if value not in ("", 0)}
    return ("store-key?" if "key" in link else "store-item?") + urlencode(link)


def named(item: dict[str, Any], name: str) -> dict[str, Any]:
    return next(field for field in item["fields"] if field["name"] == name)


def test_from_the_index_to_the_log_to_the_queue_and_back(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        record = await it.api("store-item?kind=record&number=158")
        assert (
            named(record, "topic")["value"] == "TopicTest" and named(record, "magic")["meaning"] == "record, version 1"
        )
        assert named(record, "total_size")["lines"][0][0].startswith("00 00")
        found = await it.api(target(named(record, "property KEYS")))
        assert [place["slots"] for place in found["places"]] == ["100", "100"]
        place = found["places"][0]
        slot = await it.api(f"store-item?kind=index-slot&name={place['name']}&number={place['slot']}")
        at, chain = target(named(slot, "entry")), []
        while at:
            entry = await it.api(at)
            if named(entry, "key_hash")["value"] == found["hash"]:
                chain.append(target(named(entry, "physical_offset")))
            at = target(named(entry, "previous")) if named(entry, "previous")["link"] else ""
        assert "store-item?kind=record&number=158" in chain
        unit = await it.api(target(named(record, "queue_offset")))
        assert target(named(unit, "physical_offset")) == "store-item?kind=record&number=158"
        assert unit["title"].startswith("entry ") and "/consumequeue/" in unit["file"]
        page = await it.page("store-item?kind=record&number=158")
        assert any("kind=unit" in link for link in page.links) and any("store-key?" in link for link in page.links)
        assert "Its hash is" in (await it.page(target(named(record, "property KEYS")))).text
        for path in ("kind=index-header&name=" + place["name"], "kind=checkpoint"):
            assert (await it.page(f"store-item?{path}")).has("table")

    play(tmp_path, work)


def test_a_store_that_a_broker_writes(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        value = await it.api("store?store=1")
        assert value["in_use"] is True and value["path"] == str(tmp_path / "store")
        assert {"topic": "T_live", "queue": 0, "min_offset": "0", "max_offset": "4"} in value["queues"]
        await it.there.cluster.send("T_live", b"while somebody looks", queue_id=0)
        unit = await it.api("store-item?store=1&kind=unit&topic=T_live&number=4")
        record = await it.api(f"{target(named(unit, 'physical_offset'))}&store=1")
        assert bytes.fromhex(named(record, "body")["lines"][0][0].replace(" ", "")) == b"while somebody l"
        page = await it.page("store?store=1")
        assert "T_live" in page.text and "in use" in page.text and str(tmp_path / "old") in page.text

    play(tmp_path, work)


def test_timer_and_extension_files(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        unit = await it.api("store-item?kind=unit&topic=Ext&number=0")
        ext = await it.api(target(named(unit, "tags_code")))
        assert "/consumequeue_ext/" in ext["file"] and named(ext, "tags_code")["value"]
        assert (await it.visitor.get("/api/cluster/store-item?kind=timer-slot&number=5")).status == 404

    play(tmp_path, work, store="queue_ext")


async def finished(it: Seen, job: str) -> dict[str, Any]:
    while True:
        jobs: list[dict[str, Any]] = (await it.api("store"))["jobs"]
        found = next(one for one in jobs if one["job"] == job)
        if found["state"] != "running":
            return found
        await asyncio.sleep(0.01)


def test_jobs(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        assert [job["state"] for job in (await it.api("store"))["jobs"]] == ["none", "none"]
        page = await it.page("store")
        form = {name: page.fields[name] for name in ("csrf", "store")}
        answer = await it.visitor.post("/cluster/store/job", {**form, "job": "verify", "do": "start"})
        assert (answer.status, answer.headers["location"]) == (303, "/cluster/store?store=0")
        found = await finished(it, "verify")
        assert (found["state"], found["checked"], found["total"]) == ("done", "164", "1")
        assert found["findings"][0]["kind"] == "table"
        csrf = {"x-csrf-token": page.fields["csrf"]}
        started = await it.visitor.send("/api/cluster/store/job", {"job": "shares", "do": "start"}, csrf)
        assert started.json["state"] == "running"
        found = await finished(it, "shares")
        (topic,) = found["segments"][0]["topics"]
        assert (topic["topic"], topic["messages"], topic["bytes"]) == ("TopicTest", "164", "25790")
        assert topic["part"] == 1.0, "a share is one of what is stored, not of the file"
        text = (await it.page("store")).text
        assert "164 records were read, 1 findings." in text and "25.2 KiB" in text
        started = await it.visitor.send("/api/cluster/store/job", {"job": "shares", "do": "start"}, csrf)
        again = await it.visitor.send("/api/cluster/store/job", {"job": "shares", "do": "start"}, csrf)
        assert again.json["state"] == "running"
        ended = await it.visitor.send("/api/cluster/store/job", {"job": "shares", "do": "cancel"}, csrf)
        assert ended.json["state"] == "cancelled" and (await finished(it, "shares"))["state"] == "cancelled"

    play(tmp_path, work)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("store?store=2", 400),
        ("store?store=-1", 400),
        ("store-item?kind=nothing", 400),
        ("store-item?kind=record&number=-1", 400),
        ("store-item?kind=record&number=99999999", 404),
        ("store-item?kind=unit&topic=nothing", 404),
        ("store-item?kind=unit&topic=TopicTest&queue=-1", 400),
        ("store-item?kind=index-slot&name=20231114221320123&number=100", 404),
        ("store-item?kind=index-header&name=nothing", 404),
        ("store-item?kind=ext&topic=TopicTest", 404),
        ("store-item", 400),
    ],
)
@pytest.mark.few
def test_odd_addresses(tmp_path: Path, path: str, status: int) -> None:
    async def work(it: Seen) -> None:
        for where in ("/cluster/", "/api/cluster/"):
            assert (await it.visitor.get(where + path)).status == status

    play(tmp_path, work)


def test_without_stores_there_is_no_entry(tmp_path: Path) -> None:
    async def scene() -> None:
        async with seen(tmp_path) as it:
            page: Page = await it.page("")
            assert not any(link.endswith("/store") for link in page.links)
            assert (await it.visitor.get("/cluster/store")).status == 404

    run(scene())


def test_a_store_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="consoleStores"):
        ConsoleConfig(stores=f"{tmp_path},{tmp_path / 'nothing'}")
    assert ConsoleConfig(stores=f" {tmp_path} ,").store_list == (str(tmp_path),)
