"""Attacks on the console (security.md S-80): strangers' text, other sites' pages, planted sessions, long bodies."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ADMIN, ALICE, Guarded
from tests.brokers import properties_text, run
from tests.golden.loader import unpack
from tests.unit.broker.administered import Administered
from tests.unit.console.visitor import Answer, Seen, Visitor, console_of, seen

from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.console.access.headers import POLICY
from rucola.console.access.sessions import BrokerAccount
from rucola.console.access.throttle import FAILURES_MAX
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rucola.protocol.command import RemotingCommand

SCRIPT = "<script>alert(1)</script>"
IMAGE = "\"><img src=x onerror='alert(1)'>"


def play(folder: Path, work: Any, **options: Any) -> None:
    async def scene() -> None:
        async with seen(folder, **options) as found:
            await work(found)

    run(scene())


def harmless(answer: Answer) -> None:
    """Checks that a page has no element or attribute but its own."""
    page = answer.page
    scripts = [given for name, given in page.elements if name == "script"]
    assert len(scripts) == 1 and "static/console.js" in (scripts[0].get("src") or ""), answer.text
    assert not any(name == "img" or "onerror" in given or "style" in given for name, given in page.elements)
    assert not any(link.lower().startswith("javascript:") for link in page.links)


def test_strangers_text_stays_text(tmp_path: Path) -> None:
    """No name, key, property or body becomes an element of a page, whoever wrote it."""

    async def work(it: Seen) -> None:
        cluster = it.there.cluster
        bad_topic, bad_group, bad_client = f"T{SCRIPT}", f"G{IMAGE}", f"C{SCRIPT}{IMAGE}"
        cluster.broker.topics.table[bad_topic] = TopicConfig(bad_topic, 1, 1, 6)
        cluster.broker.groups.table[bad_group] = SubscriptionGroupConfig(bad_group)
        beat = HeartbeatData(
            bad_client,
            [ProducerData(SCRIPT)],
            [ConsumerData("G_live", subscription_data_set=[SubscriptionData("T_live", IMAGE)])],
        )
        await it.there.consumer.invoke(
            cluster.broker.address, RemotingCommand(34, body=beat.encode(), version=479), 5000
        )
        text = properties_text(UNIQ_KEY=SCRIPT, KEYS=IMAGE, TAGS=SCRIPT, evil=IMAGE)
        await cluster.send("T_live", f"{SCRIPT}{IMAGE}".encode(), text, queue_id=0)
        await it.look()
        from urllib.parse import quote

        for path in (
            "", "topics?only=all", f"topics?q={quote(SCRIPT)}", "groups?only=all", "clients",
            f"topic?name={quote(bad_topic)}", f"group?name={quote(bad_group)}", "group?name=G_live",
            f"client?id={quote(bad_client)}", "messages?topic=T_live",
            "message?topic=T_live&broker=broker-a&queue=0&offset=4",
            f"messages?topic={quote(IMAGE)}&tag={quote(SCRIPT)}", f"change/topic?name={quote(SCRIPT)}&queues=1",
            f"change/delete-topic?name={quote(bad_topic)}", f"topic?name={quote(IMAGE)}",
            f"sql?query={quote(SCRIPT)}", f"access?account={quote(SCRIPT)}&name={quote(IMAGE)}",
            f"change/rule?user={quote(SCRIPT)}&resource=Topic:{quote(IMAGE)}", f"store-key?topic={quote(SCRIPT)}&key=x",
            "store", f"store-key?topic=T_live&key={quote(IMAGE)}", "store-item?kind=unit&topic=T_live&number=4",
            f"store-item?kind=unit&topic={quote(SCRIPT)}", f"store-item?kind={quote(IMAGE)}",
            f"messages?by={quote(SCRIPT)}", f"topics?sort={quote(IMAGE)}",
        ):  # fmt: skip
            answer = await it.visitor.get(f"/cluster/{path}")
            harmless(answer)
            assert answer.headers["content-security-policy"] == POLICY
        unit = await it.api("store-item?kind=unit&topic=T_live&number=4")
        (record,) = [field["link"]["number"] for field in unit["fields"] if field["name"] == "physical_offset"]
        harmless(await it.visitor.get(f"/cluster/store-item?kind=record&number={record}"))
        shown = (await it.visitor.get("/cluster/message?topic=T_live&broker=broker-a&queue=0&offset=4")).page.text
        assert SCRIPT in shown and IMAGE in shown, "the text itself must be readable"

    (tmp_path / "store").mkdir()
    play(tmp_path, work, stores=str(tmp_path / "store"))


def test_other_sites_change_nothing(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        visitor = it.visitor
        csrf = await visitor.csrf()
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": f"http://localhost.evil.example:{it.console.address.rpartition(':')[2]}"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            given = {"content-type": "application/json", "x-csrf-token": csrf, **headers}
            body = b'{"name": "New", "queues": 1}'
            answer = await visitor.ask("POST", "/api/cluster/changes/topic", given, body)
            assert answer.status == 403 and "access-control-allow-origin" not in answer.headers, headers
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            given = {"content-type": kind, "x-csrf-token": csrf}
            answer = await visitor.ask("POST", "/api/cluster/changes/topic", given, b'{"name": "New", "queues": 1}')
            assert answer.status == 400, kind
        assert (await visitor.send("/api/cluster/changes/topic", {"name": "New", "queues": 1})).status == 403, "no csrf"
        for csrf in ("", "x", "ü"):
            answer = await visitor.post("/view", {"csrf": csrf, "language": "zh", "back": "/"})
            assert answer.status == 403
        assert (
            await visitor.ask("OPTIONS", "/api/cluster/changes", {"origin": "https://evil.example"}, b"")
        ).status == 405
        evil = await it.visitor.get("/cluster/topics", {"host": "rebound.example:8090"})
        assert evil.status == 421 and b"T_live" not in evil.body
        assert "New" not in it.there.cluster.broker.topics.table

    play(tmp_path, work)


def test_visitors_are_sent_nowhere_else(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for back in (
            "https://evil.example/",
            "//evil.example",
            "/\\evil.example",
            "javascript:alert(1)",
            "/a\r\nset-cookie: x=1",
        ):
            answer = await it.visitor.post("/view", {"language": "en", "back": back})
            assert (answer.status, answer.headers["location"]) == (303, "/"), back
        answer = await it.visitor.post(
            "/view", {"language": "zh", "zone": "local", "theme": "dark", "back": "/cluster/topics?q=x"}
        )
        assert answer.headers["location"] == "/cluster/topics?q=x" and answer.cookies["rucola_look"] == "zh.local.dark"

    play(tmp_path, work)


def test_odd_paths_lead_nowhere(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for path in (
            "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/console.py", "/static//etc/passwd",
            "/cluster/..%2f..%2fetc/passwd", "/cluster/change/../../x", "/api/cluster/..",
            "/static/console.css%00.html",
        ):  # fmt: skip
            answer = await it.visitor.get(path)
            assert answer.status in (404, 400) and b"import " not in answer.body and b"root:" not in answer.body, path
        for query in (
            "topic=../../etc&broker=broker-a&queue=0&offset=0",
            "topic=T_live&broker=127.0.0.1:1&queue=0&offset=0",
        ):
            assert (await it.visitor.get(f"/api/cluster/message?{query}")).status == 404
        # An id names the address of its broker: only brokers of the cluster are asked.
        stranger = "7F000001" + "00000009" + "0000000000000000"
        found = await it.api(f"messages?by=id&key={stranger}")
        assert (
            found["rows"] == [] and found["stop"] == "server" and "no name server lists" in found["unknown"][0]["text"]
        )
        assert (await it.visitor.get("/cluster/topics?q=" + "x" * 20_000)).status == 414
        long = await it.visitor.ask("POST", "/login", {"content-length": str(1 << 30)}, b"")
        assert long.status == 413
        chunked = await it.visitor.ask("POST", "/login", {"content-length": "", "transfer-encoding": "chunked"}, b"")
        assert chunked.status == 411

    play(tmp_path, work)


def test_a_body_of_4_mib_fills_no_page(tmp_path: Path) -> None:
    async def scene() -> None:
        from tests.brokers import Cluster

        size = 4 * 1024 * 1024 - 8192
        async with Cluster(tmp_path / "store", max_body=1 << 22) as cluster:
            there = Administered(cluster)
            await there.fill()
            for number, body in enumerate((b"<b>" * (size // 3), bytes(size), b"[" * size)):
                assert (await cluster.send("T_live", body, queue_id=0)).code == 0, number
            async with console_of(cluster.namesrv.address, tmp_path) as console:
                it = Seen(console, Visitor(console), there)
                await it.look()
                assert len((await it.visitor.get("/cluster/messages?topic=T_live")).body) < 100_000
                for offset in (4, 5, 6):
                    for form in ("auto", "text", "json", "hex"):
                        address = f"message?topic=T_live&broker=broker-a&queue=0&offset={offset}&form={form}"
                        answer = await it.visitor.get(f"/cluster/{address}")
                        assert answer.status == 200 and len(answer.body) < 500_000, (offset, form)
                        harmless(answer)
                        assert len((await it.visitor.get(f"/api/cluster/{address}")).body) < 500_000
                address = "message?topic=T_live&broker=broker-a&queue=0&offset=4&form=text&at=99999999999"
                assert (await it.api(address))["body"]["end"] == str(size // 3 * 3)
            await there.consumer.close()

    run(scene())


def test_accounts(tmp_path: Path) -> None:
    """Who is not signed in sees nothing; who is sees what the brokers let him see, and nobody plants a session."""

    async def scene() -> None:
        async with Guarded(tmp_path) as cluster, console_of(cluster.namesrv.address, tmp_path) as console:
            await cluster.made("A")
            visitor = Visitor(console)
            first = await visitor.follow("/cluster/topics")
            assert "Sign in" in first.page.text and "with an account" in first.page.text.lower()
            planted = dict(visitor.cookies)
            form = {"cluster": "cluster", "back": "/cluster/brokers"}
            wrong = await visitor.post("/login", {**form, "account": ADMIN[0], "secret": "wrong-secret-here"})
            assert wrong.status == 401 and "Account or secret is wrong." in wrong.page.text
            assert "wrong-secret-here" not in wrong.text
            good = await visitor.post("/login", {**form, "account": ADMIN[0], "secret": ADMIN[1]})
            assert (good.status, good.headers["location"]) == (303, "/cluster/brokers")
            assert visitor.cookies != planted, "the session before signing in goes on"
            thief = Visitor(console)
            thief.cookies = planted
            assert "broker-a" not in (await thief.follow("/cluster/brokers")).page.text
            await console.watches.of("cluster", BrokerAccount(*ADMIN)).poller.look()
            page = await visitor.get("/cluster/brokers")
            assert (
                "broker-a" in page.page.text and ADMIN[1] not in page.text and "HttpOnly" in good.headers["set-cookie"]
            )
            # A script sends its account itself; one with fewer rights sees less.
            basic = {"authorization": "Basic " + base64.b64encode(":".join(ADMIN).encode()).decode()}
            assert (await Visitor(console).get("/api/cluster/overview", basic)).status == 200
            word = base64.b64encode(":".join(ALICE).encode()).decode()
            denied = await Visitor(console).send(
                "/api/cluster/changes/topic", {"name": "New", "queues": 1}, {"authorization": f"Basic {word}"}
            )
            assert denied.status == 400 and "access denied" in denied.json["text"]
            assert "New" not in cluster.broker.topics.table
            nobody = await Visitor(console).send("/api/cluster/changes/topic", {"name": "New", "queues": 1})
            assert nobody.status == 400 and "New" not in cluster.broker.topics.table
            out = await visitor.post("/logout", {"csrf": (await visitor.get("/cluster/brokers")).page.fields["csrf"]})
            assert out.status == 303 and "broker-a" not in (await visitor.follow("/cluster/brokers")).page.text
            guesser = Visitor(console, peer="10.9.9.9")
            for _ in range(FAILURES_MAX):
                await guesser.post("/login", {**form, "account": "nobody", "secret": "guess-guess-guess"})
            again = await guesser.post("/login", {**form, "account": ADMIN[0], "secret": ADMIN[1]})
            assert again.status == 429 and "Too many failures" in again.page.text

    run(scene())


def test_a_broker_without_accounts_accepts_no_sign_in(tmp_path: Path) -> None:
    """Such a broker answers whoever signs: behind a proxy, any name would open the console."""

    async def work(it: Seen) -> None:
        visitor = Visitor(it.console, host="ops.example.org")
        page = (await visitor.follow("/cluster/")).page
        assert "T_live" not in page.text and "Sign in" in page.text
        fields = {"cluster": "cluster", "account": "anybody", "secret": "anything-at-all", "csrf": page.fields["csrf"]}
        answer = await visitor.post("/login", fields, {"origin": "https://ops.example.org"})
        assert answer.status == 401 and "have no accounts" in answer.page.text
        basic = {"authorization": "Basic " + base64.b64encode(b"anybody:anything-at-all").decode()}
        assert (await visitor.get("/api/cluster/topics", basic)).status == 401
        assert (await visitor.get("/api/cluster/topics")).status == 401
        assert re.search("Secure", answer.headers.get("set-cookie", "Secure"))

    play(tmp_path, work, public_url="https://ops.example.org/rucola")


@pytest.mark.parametrize("answer", [b"\x00" * 8, b"{", b"[]", b'{"table": 5}'])
@pytest.mark.few
def test_a_lying_broker_breaks_no_page(tmp_path: Path, answer: bytes) -> None:
    async def work(it: Seen) -> None:
        api = it.console.watch("cluster").admin.api
        real = api._call

        async def lie(address: str, code: int, *rest: Any, **named: Any) -> Any:
            found = await real(address, code, *rest, **named)
            found.body = answer
            return found

        it.console.watch("cluster").admin.api._call = lie  # type: ignore[method-assign]
        await it.look()
        for path in (
            "", "topics", "groups", "clients", "brokers", "name-servers", "topic?name=T_live", "group?name=G_live",
            "messages?topic=T_live", "message?topic=T_live&broker=broker-a&queue=0&offset=0",
        ):  # fmt: skip
            shown = await it.visitor.get(f"/cluster/{path}")
            assert shown.status in (200, 404, 502), (path, shown.text)

    play(tmp_path, work)


def test_only_super_users_read_the_files_of_a_store(tmp_path: Path) -> None:
    """No rule of a broker covers its files: an account with fewer rights, or none, sees no byte of them."""

    async def scene() -> None:
        paths = ("store", "store-item?kind=record", "store-key?topic=A&key=k")
        job = {"job": "verify", "do": "start"}
        options = {"stores": str(tmp_path / "store")}
        async with Guarded(tmp_path) as cluster, console_of(cluster.namesrv.address, tmp_path, **options) as console:
            for account, status in ((ADMIN, 200), (ALICE, 403), (None, 403)):
                word = base64.b64encode(":".join(account).encode()).decode() if account else ""
                basic = {"authorization": f"Basic {word}"} if word else {}
                for path in paths[:1] if status == 200 else paths:
                    assert (await Visitor(console).get(f"/api/cluster/{path}", basic)).status == status, (account, path)
                assert (await Visitor(console).send("/api/cluster/store/job", job, basic)).status == status, account
        async with Guarded(tmp_path / "b") as cluster:
            options |= {"bodies_for": "alice-account"}
            async with console_of(cluster.namesrv.address, tmp_path / "b", **options) as console:
                word = base64.b64encode(":".join(ADMIN).encode()).decode()
                answer = await Visitor(console).get("/api/cluster/store", {"authorization": f"Basic {word}"})
                assert answer.status == 403, "bodies are hidden from this account"

    run(scene())


@pytest.mark.parametrize("options", [{"insecure": True}, {"insecure": True, "public_url": "https://ops.example.org"}])
def test_strangers_without_an_account_read_no_files(tmp_path: Path, options: dict[str, Any]) -> None:
    async def work(it: Seen) -> None:
        assert (await it.visitor.get("/api/cluster/topics")).status == 200
        assert (await it.visitor.get("/api/cluster/store")).status == 403

    play(tmp_path, work, stores=str(tmp_path), **options)


def test_no_answer_of_brokers_opens_no_files(tmp_path: Path) -> None:
    async def scene() -> None:
        async with console_of("127.0.0.1:1", tmp_path, stores=str(tmp_path)) as console:
            assert (await Visitor(console).get("/api/cluster/store")).status == 403

    run(scene())


def test_the_explorer_leaves_no_store(tmp_path: Path) -> None:
    """Neither a name in an address nor a link or pipe in the store leads out of it, or makes a page wait."""

    async def work(it: Seen) -> None:
        root, outside = tmp_path / "planted", tmp_path / "outside"
        (outside / "0").mkdir(parents=True)
        (outside / "0" / ("0" * 20)).write_bytes(b"secret of another" * 100)
        (root / "consumequeue" / "Evil").symlink_to(outside)
        (root / "index" / ("1" * 17)).symlink_to(outside / "0" / ("0" * 20))
        os.mkfifo(root / "index" / ("2" * 17))
        for query in (
            "kind=unit&topic=Evil", "kind=unit&topic=../../outside", "kind=unit&topic=..", "kind=unit&topic=a%2Fb",
            "kind=ext&topic=../outside", "kind=unit&topic=%00", f"kind=index-header&name={'1' * 17}",
            f"kind=index-header&name={'2' * 17}", f"kind=index-slot&name=../../outside/0/{'0' * 20}",
            "kind=index-header&name=..%2Fcheckpoint",
        ):  # fmt: skip
            answer = await it.visitor.get(f"/api/cluster/store-item?{query}")
            assert answer.status in (400, 404) and b"secret" not in answer.body, (query, answer.text)
            assert b"process" not in answer.body, "the tool refuses; it does not fail"
        csrf = {"x-csrf-token": await it.visitor.csrf()}
        for body in (
            {"job": "rm", "do": "start"},
            {"job": "verify", "do": "x"},
            {"job": "verify", "do": "start", "store": 9},
        ):
            assert (await it.visitor.send("/api/cluster/store/job", body, csrf)).status == 400
        assert (await it.visitor.send("/api/cluster/store/job", {"job": "verify", "do": "start"})).status == 403

    unpack("index_chains", tmp_path / "planted")
    play(tmp_path, work, stores=str(tmp_path / "planted"))
