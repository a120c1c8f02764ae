"""Each page and each endpoint over HTTP, against a broker in this process with a live consumer and producer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.brokers import properties_text, run
from tests.unit.broker.administered import CLIENT_ID
from tests.unit.console.visitor import Seen, Visitor, console_of, seen

from rucola.console.views.table import VIEWS

Work = Callable[[Seen], Coroutine[Any, Any, None]]


def play(folder: Path, work: Work, **options: Any) -> None:
    async def scene() -> None:
        async with seen(folder, **options) as found:
            await work(found)

    run(scene())


def test_the_overview_says_what_is_wrong_first(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        page = await it.page("")
        assert page.text.index("What is wrong") < page.text.index("messages/s in")
        assert "Nothing that the console looks for." in page.text
        value = await it.api("overview")
        assert (value["lag"], value["groups"], value["problems"]) == ("4", 1, [])
        assert value["brokers"][0]["address"] == it.there.cluster.broker.address
        assert value["topics"] == 1 and value["clients"] == 1
        await it.there.consumer.close()
        while (await it.api("overview"))["problems"] == []:
            await it.look()
        (problem,) = (await it.api("overview"))["problems"]
        assert (problem["kind"], problem["object"]) == ("no-members", "G_live")
        page = await it.page("")
        assert "G_live has 4 messages waiting and no member" in page.text and "start its consumers" in page.text

    play(tmp_path, work)


def test_topics(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        found = await it.api("topics")
        (row,) = found["rows"]
        assert (row["name"], row["messages"], row["lag"], row["groups"]) == ("T_live", "8", "4", ["G_live"])
        assert (found["total"], found["matching"], found["empty"]) == (
            len((await it.api("topics?only=all"))["rows"]),
            1,
            "",
        )
        assert (await it.api("topics?q=nothing"))["empty"] == "no-match"
        names = [one["name"] for one in (await it.api("topics?only=all&sort=-name"))["rows"]]
        assert names == sorted(names, reverse=True) and "%RETRY%G_live" in names
        page = await it.page("topics?q=live&sort=-messages")
        assert "T_live" in page.text and page.has("th", **{"aria-sort": "descending"}) and page.fields["q"] == "live"
        assert "None match." in (await it.page("topics?q=zzz")).text
        one = await it.api("topic?name=T_live")
        assert [(queue["min_offset"], queue["max_offset"]) for queue in one["queues"]] == [("0", "4"), ("0", "4")]
        assert all(queue["first_ms"] and queue["last_ms"] for queue in one["queues"])
        assert one["readers"][0]["group"] == "G_live" and one["readers"][0]["lag"] == "4"
        page = await it.page("topic?name=T_live")
        assert "Who reads it" in page.text and "G_live" in page.text
        assert "no-such-topic" in (await it.page("topic?name=no-such-topic", 404)).text

    play(tmp_path, work)


def test_groups(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        (row,) = (await it.api("groups"))["rows"]
        assert (row["name"], row["lag"], row["dead"]) == ("G_live", "4", "0")
        assert [one["client_id"] for one in row["members"]] == [CLIENT_ID]
        assert (await it.api("groups?only=empty"))["rows"] == []
        assert (await it.api("groups?only=behind"))["rows"][0]["name"] == "G_live"
        assert "G_live" in (await it.page("groups")).text
        one = await it.api("group?name=G_live")
        queues = {(queue["topic"], queue["queue"]): queue for queue in one["queues"]}
        assert queues["T_live", 0]["offset"] == "2" and queues["T_live", 0]["lag"] == "2"
        assert one["configs"][it.there.cluster.broker.address]["retryMaxTimes"] == "16"
        page = await it.page("group?name=G_live")
        assert CLIENT_ID in page.text and "Reset offsets" in page.text and "127.0.0.1" in page.text
        assert any("offset=2" in link for link in page.links), "no link to the first waiting message"

    play(tmp_path, work)


def test_who_reads_a_queue(tmp_path: Path) -> None:
    info = (
        b'{"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"T_live"}:{}},'
        b'"subscriptionSet":[{"topic":"T_live","subString":"*"}],"properties":{"PROP_SECRET_KEY":"hush","LANGUAGE":"JAVA"},'
        b'"jstack":"stack of main"}'
    )

    async def work(it: Seen) -> None:
        it.there.consumer.register_processor(307, it.there._taker(info))
        queues = (await it.api("group?name=G_live"))["queues"]
        assert [queue["owner"] for queue in queues if queue["topic"] == "T_live"] == [CLIENT_ID, None]
        client = await it.api(f"client?id={CLIENT_ID.replace('#', '%23')}")
        assert client["running"][0]["queues"] == ["T_live broker-a 0"]
        assert client["running"][0]["properties"] == {"LANGUAGE": "JAVA", "PROP_SECRET_KEY": "******"}
        page = await it.page(f"client?id={CLIENT_ID.replace('#', '%23')}&stacks=true")
        assert "stack of main" in page.text and "hush" not in page.text

    play(tmp_path, work)


def test_clients_brokers_and_name_servers(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        (client,) = (await it.api("clients"))["rows"]
        assert (
            client["client_id"] == CLIENT_ID and client["consumes"] == ["G_live"] and client["produces"] == ["G_live_P"]
        )
        assert CLIENT_ID in (await it.page("clients")).text
        (broker,) = (await it.api("brokers"))["rows"]
        assert broker["name"] == "broker-a" and broker["unknown"] is None and broker["disk_ratio"] > 0
        assert "broker-a" in (await it.page("brokers")).text
        page = await it.page(f"broker?address={broker['address']}")
        assert (
            "brokerVersionDesc" in page.text and "flushDiskType" in page.text and "No slave is connected." in page.text
        )
        (server,) = (await it.api("name-servers"))["rows"]
        assert server["address"] == it.there.cluster.namesrv.address and server["unknown"] is None
        assert server["address"] in (await it.page("name-servers")).text
        assert (await it.visitor.get("/api/cluster/broker?address=127.0.0.1:1")).status == 404

    play(tmp_path, work)


def test_messages(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        found = await it.api("messages?topic=T_live")
        assert (len(found["rows"]), found["stop"], found["scanned"], found["total"]) == (8, "end", "8", "8")
        assert {row["preview"] for row in found["rows"]} == {f"message {number}" for number in range(8)}
        page = await it.page("messages?topic=T_live")
        assert "Scanned 8 of 8 messages" in page.text and "Everything asked for was looked at." in page.text
        found = await it.api("messages?topic=T_live&count=3")
        assert (found["stop"], found["total"], found["cursor"]) == ("newest", "8", "") and found["scanned"] < "8"
        page = await it.page("messages?topic=T_live&count=3")
        assert "Only the newest messages were looked at." in page.text and "of 8 messages" in page.text
        assert any("begin=0" in link and "count=3" in link for link in page.links)
        for query in ("by=key&key=live3", "by=unique&key=U3"):
            (row,) = (await it.api(f"messages?topic=T_live&{query}"))["rows"]
            assert (row["preview"], row["queue"], row["offset"]) == ("message 3", 1, "1")
        (row,) = (await it.api(f"messages?by=id&key={it.there.message_id}"))["rows"]
        assert row["preview"] == "message 0"
        (row,) = (await it.api("messages?by=offset&topic=T_live&queue=1&offset=2"))["rows"]
        assert row["preview"] == "message 5"
        assert len((await it.api("messages?topic=T_live&tag=TagA"))["rows"]) == 8
        assert (await it.api("messages?topic=T_live&tag=TagB"))["rows"] == []
        assert [row["preview"] for row in (await it.api("messages?topic=T_live&text=age 7"))["rows"]] == ["message 7"]
        assert (await it.api("messages?topic=T_live&begin=2100-01-01"))["total"] == "0"
        assert "None match." in (await it.page("messages?topic=T_live&tag=TagB")).text

    play(tmp_path, work)


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        seen_offsets: list[tuple[int, str]] = []
        cursor, rounds = "", 0
        while True:
            found = await it.api(f"messages?topic=T_live&begin=0&count=3&cursor={cursor}")
            seen_offsets += [(row["queue"], row["offset"]) for row in found["rows"]]
            cursor, rounds = found["cursor"], rounds + 1
            if not cursor:
                break
            assert found["stop"] == "limit"
        assert sorted(seen_offsets) == [(queue, str(offset)) for queue in (0, 1) for offset in range(4)] and rounds > 1
        assert "Go on from here" in (await it.page("messages?topic=T_live&begin=0&count=3")).text

    play(tmp_path, work)


def test_a_message_with_its_body(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        body = b'{"id":9007199254740993,"list":[1,2],"empty":{}}'
        text = properties_text(UNIQ_KEY="UJ", KEYS="a b", color="green")
        await it.there.cluster.send("T_live", body, text, queue_id=0)
        address = "message?topic=T_live&broker=broker-a&queue=0&offset=4"
        value = await it.api(address)
        assert value["properties"]["color"] == "green" and value["row"]["offset"] == "4"
        assert value["body"]["form"] == "json" and '"id": 9007199254740993' in value["body"]["text"]
        assert (await it.api(f"{address}&form=hex"))["body"]["text"].startswith("00000000  7b 22 69 64")
        assert (await it.api(f"{address}&form=text"))["body"]["text"] == body.decode()
        page = await it.page(address)
        assert "9007199254740993" in page.text and "green" in page.text
        answer = await it.visitor.get(f"/api/cluster/{address.replace('message?', 'message/body?')}")
        assert answer.body == body and answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert (
            await it.visitor.get("/api/cluster/message?topic=T_live&broker=broker-a&queue=0&offset=99")
        ).status == 404

    play(tmp_path, work)


def test_bodies_can_be_hidden(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        address = "message?topic=T_live&broker=broker-a&queue=0&offset=1"
        for path in (address, "messages?topic=T_live", "messages?topic=T_live&by=key&key=live2"):
            for where in ("/cluster/", "/api/cluster/"):
                answer = await it.visitor.get(where + path)
                assert answer.status == 200 and b"message 2" not in answer.body and b"UNIQ_KEY" not in answer.body
        found = (await it.api("messages?topic=T_live&text=message 3"))["rows"]
        assert len(found) == 8, "a search in hidden bodies would tell them"
        assert (await it.visitor.get(f"/api/cluster/{address.replace('message?', 'message/body?')}")).status == 403
        assert "This account may not see bodies" in (await it.page(address)).text

    play(tmp_path, work, bodies_for="alice")


def test_what_is_not_known_is_no_zero(tmp_path: Path) -> None:
    async def scene() -> None:
        async with console_of("127.0.0.1:1", tmp_path) as console:
            visitor = Visitor(console)
            value = (await visitor.get("/api/cluster/overview")).json
            for name in ("in_rate", "out_rate", "lag", "topics", "groups", "clients", "disk_ratio"):
                assert value[name] is None, name
            assert value["problems"][0]["kind"] == "name-server-away"
            for path in ("topics", "groups", "clients", "brokers"):
                assert (await visitor.get(f"/api/cluster/{path}")).json["empty"] == "unknown", path
                assert "Cannot tell." in (await visitor.get(f"/cluster/{path}")).page.text
            page = (await visitor.get("/cluster/")).page
            assert "Cannot tell." in page.text and " 0 topics" not in page.text

    run(scene())


def test_a_silent_broker_is_a_marked_row(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await it.there.cluster.stop_broker()
        await it.look()
        (broker,) = (await it.api("brokers"))["rows"]
        assert broker["unknown"] is not None or not broker["is_listed"]
        assert broker["disk_ratio"] > 0, "what was seen before is still shown, with its age"
        assert (await it.api("topics"))["rows"][0]["name"] == "T_live", "its topics do not vanish"
        kinds = {one["kind"] for one in (await it.api("overview"))["problems"]}
        assert kinds & {"broker-silent", "broker-away"}
        assert (await it.visitor.get("/cluster/topic?name=T_live")).status == 200
        assert (await it.visitor.get("/cluster/group?name=G_live")).status == 200

    play(tmp_path, work)


def test_pages_are_chinese_on_request(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        it.visitor.cookies["rucola_look"] = "zh.local.dark"
        for path in (
            "",
            "topics",
            "groups",
            "clients",
            "brokers",
            "messages?topic=T_live",
            "change/topic?name=N&queues=2",
        ):
            page = await it.page(path)
            assert "\u603b\u89c8" in page.text, path
        assert page.has("html", lang="zh-CN", **{"data-theme": "dark", "data-zone": "local"})
        assert "\u521b\u5efa\u4e3b\u9898 N" in page.text

    play(tmp_path, work)


def test_history(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        watch = it.console.watch("cluster")
        await watch.look()
        found = await it.api("history?series=cluster/lag")
        assert [point["value"] for point in found["points"]] == [4.0]
        assert (await it.api("history?series=nothing"))["points"] == []

    play(tmp_path, work)


def test_every_view_has_an_address_in_the_document(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        found = (await it.visitor.get("/api/openapi.json")).json
        for view in VIEWS:
            get = found["paths"][f"/api/{{cluster}}/{view.path or 'overview'}"]["get"]
            assert get["summary"] and all(one["description"] for one in get["parameters"] if one["in"] == "query"), view
            assert {"400", "401", "403", "404", "429", "502"} <= get["responses"].keys(), view
        assert found["components"]["schemas"]["TopicState"]["properties"]["messages"]["anyOf"][0]["format"] == "int64"
        clusters = (await it.visitor.get("/api/clusters")).json
        assert clusters == [{"name": "cluster", "color": "gray", "namesrv": it.there.cluster.namesrv.address}]

    play(tmp_path, work)


ODD = [
    ("/", 303),
    ("/nothing/", 404),
    ("/cluster/nothing", 404),
    ("/cluster/history", 404),
    ("/api/cluster/nothing", 404),
    ("/api/nothing/topics", 404),
    ("/cluster/topics?sort=nothing", 400),
    ("/cluster/topics?page=x", 400),
    ("/cluster/topics?size=0", 400),
    ("/cluster/topics?only=nothing", 400),
    ("/cluster/messages?by=nothing", 400),
    ("/cluster/messages?topic=T_live&begin=yesterday", 400),
    ("/cluster/messages?topic=T_live&cursor=nothing", 400),
    ("/cluster/messages?topic=T_live&count=501", 400),
    ("/cluster/messages?by=id&key=xyz", 400),
    ("/cluster/message?topic=T_live&broker=broker-a&queue=0&offset=-1", 400),
    ("/cluster/message?topic=T_live&broker=broker-a&queue=0", 400),
    ("/cluster/topic", 400),
    ("/api/cluster/history?series=x&hours=0", 400),
    ("/cluster/topics?page=9999", 200),
    ("/static/console.css", 200),
    ("/static/nothing", 404),
]
"""Addresses, and the status of their answers."""


def test_odd_addresses(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for path, status in ODD:
            answer = await it.visitor.get(path)
            assert answer.status == status, (path, answer.text)
            assert b"Traceback" not in answer.body

    play(tmp_path, work)
