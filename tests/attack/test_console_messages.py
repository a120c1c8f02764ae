"""Attacks on the console's pages about messages: strangers' text where messages wait, and brokers that lie."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.attack.test_console import IMAGE, SCRIPT, harmless, play
from tests.brokers import properties_text
from tests.unit.console.visitor import Seen, Visitor

from rucola.common.json_library import orjson
from rucola.common.key_builder import TRACE_TOPIC
from rucola.common.sysflag import MessageSysFlag
from rucola.common.topic_config import TopicConfig
from rucola.console.messages.tail import OF_VISITOR_MAX, TAILS_MAX
from rucola.console.messages.waiting import KINDS
from rucola.formats.pop import CHECKPOINT_TAG, PopCheckpoint, PopKey
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import PopMessageRequestHeader
from rucola.protocol.trace import TraceRecord, TraceType, encode_trace


async def plant(it: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has messages wait in every way whose names, keys and properties are scripts."""
    cluster = it.there.cluster
    names = {"UNIQ_KEY": SCRIPT, "KEYS": IMAGE, "PGROUP": IMAGE, "evil": SCRIPT}
    for delay in ({"DELAY": "18"}, {"TIMER_DELAY_SEC": "3600"}):
        answer = await cluster.send("T_live", b"x", properties_text(**names, **delay))
        assert answer.code == 0, answer.remark
    flag = int(MessageSysFlag.TRANSACTION_PREPARED)
    await cluster.send("T_live", b"x", properties_text(**names, TRAN_MSG="true"), sys_flag=flag)
    header = PopMessageRequestHeader("G_live", "T_live", 0, 3, 600_000, 0, 0, 0, exp="*", exp_type="TAG")
    assert (await cluster.ask(RequestCode.POP_MESSAGE, header.to_ext_fields())).code == 0
    key = PopKey(SCRIPT, IMAGE, 0, 0, 4_000_000_000_000, SCRIPT)
    monkeypatch.setattr(PopCheckpoint, "decode", lambda _body: PopCheckpoint(key, 1_000, (0, 1)))


def test_what_waits_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(it: Seen) -> None:
        await plant(it, monkeypatch)
        for kind in KINDS:
            answer = await it.visitor.get(f"/cluster/waiting?kind={kind}")
            assert answer.status == 200
            harmless(answer)
            assert SCRIPT in answer.page.text, f"{kind}: the name itself must be readable"

    play(tmp_path, work)


def test_traces_run_nothing(tmp_path: Path) -> None:
    """Anybody who may send to the trace topic writes what the page shows."""

    async def work(it: Seen) -> None:
        await it.there.cluster.broker.topics.update(TopicConfig(TRACE_TOPIC, 1, 1, 6))
        await it.look()
        record = TraceRecord(
            trace_type=TraceType.PUB, timestamp_ms=-(1 << 62), cost_ms=1 << 62, group=SCRIPT, topic=IMAGE, msg_id=IMAGE,
            store_host=SCRIPT,
        )  # fmt: skip
        late = replace(record, timestamp_ms=(1 << 63) - 1, cost_ms=0, group=IMAGE)
        many = [replace(record, group=f"g{number}") for number in range(500)]
        for records in ([record, late], many):
            body = encode_trace(records).encode()
            answer = await it.there.cluster.send(TRACE_TOPIC, body, properties_text(UNIQ_KEY="X", KEYS="evil"))
            assert answer.code == 0, answer.remark
        await it.there.cluster.send(TRACE_TOPIC, b"\xff\x01\x02" * 1000, properties_text(UNIQ_KEY="Y", KEYS="evil"))
        evil = replace(record, msg_id="evil")
        await it.there.cluster.send(
            TRACE_TOPIC,
            encode_trace([evil, *(replace(one, msg_id="evil") for one in (late, *many))]).encode(),
            properties_text(UNIQ_KEY="Z", KEYS="evil"),
        )
        shown = await it.visitor.get(f"/cluster/trace?topic=T_live&key=evil&traces={TRACE_TOPIC}")
        assert shown.status == 200 and len(shown.body) < 500_000
        harmless(shown)
        assert SCRIPT in shown.page.text
        for query in (f"topic={quote(SCRIPT)}&key={quote(IMAGE)}", f"topic=T_live&key=U1&traces={quote(IMAGE)}"):
            harmless(await it.visitor.get(f"/cluster/trace?{query}"))

    play(tmp_path, work)


def test_forms_with_content_run_nothing(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        body = f"</textarea>{SCRIPT}"
        text = properties_text(UNIQ_KEY=SCRIPT, TAGS=IMAGE, KEYS=SCRIPT, evil=f"</textarea>{IMAGE}")
        await it.there.cluster.send("T_live", body.encode(), text, queue_id=0)
        shown = await it.visitor.get("/cluster/change/send?source=T_live&copy=broker-a:0:4")
        assert shown.status == 200 and SCRIPT in shown.page.text
        harmless(shown)
        fields = {"topic": "T_live", "body": body, "tag": IMAGE, "properties": '{"a": "</textarea><img src=x>"}'}
        harmless(await it.visitor.post("/cluster/change/send", fields))
        harmless(await it.visitor.post("/cluster/change/send", {**fields, "topic": SCRIPT, "encoding": IMAGE}))
        for query in (
            f"topic={quote(SCRIPT)}&place={quote(IMAGE)}&group=G_live",
            f"topic=T&place=a:0:1&group={SCRIPT}",
        ):
            harmless(await it.visitor.get(f"/cluster/change/consume?{query}"))
        query = f"topic={quote(SCRIPT)}&broker={quote(IMAGE)}&key=x&due=4000000000000"
        harmless(await it.visitor.get(f"/cluster/change/recall?{query}"))
        harmless(await it.visitor.get(f"/cluster/change/transaction?broker={quote(IMAGE)}&offset=0&to=commit"))

    play(tmp_path, work)


def test_other_sites_send_nothing(tmp_path: Path) -> None:
    """A form with content is posted before anything is shown: it needs the word of the session even then."""

    async def work(it: Seen) -> None:
        fields = {"topic": "T_live", "body": "x"}
        for csrf in ("", "x"):
            assert (await it.visitor.post("/cluster/change/send", {**fields, "csrf": csrf})).status == 403
        foreign = {"origin": "https://evil.example"}
        assert (await it.visitor.post("/cluster/change/send", fields, foreign)).status == 403
        before = len(await it.there.cluster.bodies("T_live"))
        # A prefilled address shows a form and no button that makes the change.
        page = (await it.visitor.get("/cluster/change/send?topic=T_live&body=x")).page
        assert not page.has("button", **{"class": "danger"})
        too_long = await it.visitor.post("/cluster/change/send", {**fields, "body": "x" * 300_000})
        assert too_long.status == 413
        assert len(await it.there.cluster.bodies("T_live")) == before

    play(tmp_path, work)


def test_a_flood_of_tails_is_refused(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        tails = it.console.application.desks.tails  # type: ignore[union-attr]
        flooder = Visitor(it.console, peer="10.6.6.6")
        statuses = []
        for number in range(3 * OF_VISITOR_MAX):
            flooder.cookies.clear()  # a new session each time
            answer = await flooder.get(f"/cluster/tail?topic=T_live&tag=t{number}")
            statuses.append(answer.status)
        assert statuses.count(200) == OF_VISITOR_MAX and statuses[-1] == 429 and len(tails) == OF_VISITOR_MAX
        assert "too many live tails" in answer.text
        assert (await flooder.get("/api/cluster/tail?topic=T_live")).json["error"] == "too-many"
        assert (await it.visitor.get("/cluster/tail?topic=T_live")).status == 200, "others still may"
        for number in range(TAILS_MAX):
            await Visitor(it.console, peer=f"10.7.0.{number}").get("/api/cluster/tail?topic=T_live&paused=true")
        assert len(tails) == TAILS_MAX

    play(tmp_path, work)


def test_a_tail_runs_and_tells_nothing(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        text = properties_text(UNIQ_KEY=SCRIPT, TAGS=SCRIPT, KEYS=IMAGE)
        await it.there.cluster.send("T_live", f"secret {SCRIPT}{IMAGE}".encode(), text)
        for query in ("topic=T_live", f"topic={quote(SCRIPT)}&tag={quote(IMAGE)}", f"topic=T_live&sql={quote(SCRIPT)}"):
            answer = await it.visitor.get(f"/cluster/tail?{query}")
            harmless(answer)
            assert b"secret" not in answer.body
        assert b"secret" not in (await it.visitor.get("/api/cluster/tail?topic=T_live")).body
        guess = await it.visitor.get(f"/cluster/tail?topic=T_live&sql={quote(chr(39).join(('KEYS = ', 'live1', '')))}")
        assert guess.status == 400 and "message" not in guess.page.text, "what matches would tell properties"

    play(tmp_path, work, bodies_for="alice")


def test_a_spreadsheet_runs_nothing(tmp_path: Path) -> None:
    """A cell that begins like a formula would be run by a spreadsheet; and no topic names another file."""

    async def work(it: Seen) -> None:
        for number, body in enumerate((b"=cmd|' /C calc'!A0", b"+1", b"-1", b"@SUM(1)", b"\t=1", b"\r=1")):
            text = properties_text(UNIQ_KEY=f"={number}", KEYS="=1+1", TAGS="@x")
            await it.there.cluster.send("T_live", body, text)
        answer = await it.visitor.get("/api/cluster/messages/export?topic=T_live&form=csv")
        cells = [cell for row in csv.reader(io.StringIO(answer.text)) for cell in row]
        assert "'=1+1" in cells and not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
        for topic in ('x"; filename="evil.exe', "../../etc/passwd", "a\r\nset-cookie: x=1"):
            answer = await it.visitor.get(f"/api/cluster/messages/export?topic={quote(topic)}")
            name = answer.headers["content-disposition"].removeprefix('attachment; filename="')
            assert re.fullmatch(r'[\w.-]+"', name, re.ASCII) and "set-cookie" not in answer.headers

    play(tmp_path, work)


def test_members_over_time_run_nothing(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        evil = f"C{SCRIPT}{IMAGE}"
        beat = HeartbeatData(evil, [], [ConsumerData("G_live", subscription_data_set=[])])
        address = it.there.cluster.broker.address
        await it.there.consumer.invoke(address, RemotingCommand(34, body=beat.encode(), version=479), 5000)
        queue = orjson.dumps({"brokerName": SCRIPT, "queueId": 0, "topic": IMAGE}).decode()
        told = f'{{"mqTable":{{{queue}:{{}},{{"topic":5}}:{{}}}},"mqPopTable":[7],"subscriptionSet":7}}'.encode()
        it.there.consumer.register_processor(307, it.there._taker(told))
        watch = it.console.watch("cluster")
        for _ in range(3):
            watch.poller.expect_change()
            await watch.look()
        answer = await it.visitor.get("/cluster/members?name=G_live")
        assert answer.status == 200 and SCRIPT in answer.page.text
        harmless(answer)

    play(tmp_path, work)


def test_no_application_makes_a_checkpoint(tmp_path: Path) -> None:
    """A stranger's message that looks like a checkpoint of a pop is none: it is not on its way to the revive topic."""

    async def work(it: Seen) -> None:
        key = PopKey("T_live", "G_live", 0, 0, 4_000_000_000_000, "broker-a")
        body = PopCheckpoint(key, 1_000, (0,)).encode()
        await it.there.cluster.send("T_live", body, properties_text(TAGS=CHECKPOINT_TAG, TIMER_DELAY_SEC="3600"))
        assert (await it.api("waiting?kind=popped"))["rows"] == []

    play(tmp_path, work)


def test_a_lying_broker_breaks_no_page(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        api = it.console.watch("cluster").admin.api
        real, lies = api._call, [b""]

        async def lying(address: str, code: RequestCode, *rest: Any, **named: Any) -> Any:
            found = await real(address, code, *rest, **named)
            found.body = lies[0]
            found.ext_fields = dict.fromkeys(found.ext_fields, "-7")
            return found

        api._call = lying  # type: ignore[method-assign]
        for lie in (b"\x00" * 8, b"{", b"[]", b'{"table": 5}', b'{"timingCount": {"x": 5}}'):
            lies[0] = lie
            for path in PAGES:
                shown = await it.visitor.get(f"/cluster/{path}")
                assert shown.status in (200, 400, 404, 502), (path, shown.text)

    play(tmp_path, work)


PAGES = [
    *(f"waiting?kind={kind}" for kind in KINDS),
    "trace?topic=T_live&key=U2",
    "tail?topic=T_live",
    "members?name=G_live",
]
"""Pages that ask brokers about messages."""
