"""Changes to messages: send, send a copy, have one consumed now, recall, end a transaction."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from tests.brokers import properties_text
from tests.unit.broker.administered import CLIENT_ID
from tests.unit.console.test_changes import make, plan, play
from tests.unit.console.test_waiting import HOUR_MS, now_ms
from tests.unit.console.visitor import Seen

from rucola.common.message import StoreMessage
from rucola.common.sysflag import MessageSysFlag
from rucola.common.topic_config import TopicConfig
from rucola.store.results import PutMessageStatus


async def one(it: Seen, offset: int, topic: str = "T_send") -> Any:
    return await it.api(f"message?topic={topic}&broker=broker-a&queue=0&offset={offset}")


async def with_topic(it: Seen) -> None:
    await it.there.cluster.broker.topics.update(TopicConfig("T_send", 1, 1, 6))
    await it.look()


def test_a_message_is_sent(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await with_topic(it)
        shown = await plan(
            it, "send", topic="T_send", body="grüße", tag="TagA", keys="k1 k2", properties='{"color": "green"}'
        )
        assert shown["does"] == "Send a message to T_send" and shown["steps"][0]["effect"].endswith("is stored")
        assert await it.there.cluster.bodies("T_send") == [], "a preview sent something"
        (result,) = (await make(it, shown))["results"]
        assert result["outcome"] == "done" and result["text"].endswith("broker-a 0 0")
        found = await one(it, 0)
        assert (found["row"]["preview"], found["row"]["tag"], found["row"]["keys"]) == ("grüße", "TagA", "k1 k2")
        assert found["properties"]["color"] == "green"
        for encoding, body in (("base64", base64.b64encode(bytes(range(256))).decode()), ("hex", "00 ff")):
            await make(it, await plan(it, "send", topic="T_send", body=body, encoding=encoding))
        assert (await it.there.cluster.bodies("T_send"))[1:] == [bytes(range(256)), b"\x00\xff"]
        await make(it, await plan(it, "send", topic="T_send", body="late", delay=3600))
        (row,) = (await it.api("waiting?kind=timed"))["rows"]
        assert row["topic"] == "T_send"
        assert "late" not in json.dumps((await it.api("audit"))["rows"]), "the audit log has no bodies"

    play(tmp_path, work)


def test_a_copy_is_edited_and_sent(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await with_topic(it)
        page = await it.page("message?topic=T_live&broker=broker-a&queue=0&offset=1")
        (link,) = [one for one in page.links if "/change/send" in one]
        form = (await it.visitor.get(link)).page
        assert "message 2" in form.text and form.fields["keys"] == "live2" and form.fields["tag"] == "TagA"
        assert (
            "COPIED_FROM" in form.text and "UNIQ_KEY" not in form.text and not form.has("button", **{"class": "danger"})
        )
        properties = json.dumps({"COPIED_FROM": "x"})
        fields = {"topic": "T_send", "body": "line 1\r\nline 2", "encoding": "text", "properties": properties}
        shown = (await it.visitor.post("/cluster/change/send", fields)).page
        assert "Send a message to T_send" in shown.text and await it.there.cluster.bodies("T_send") == []
        made = (await it.visitor.post("/cluster/change/send", {"token": shown.fields["token"]})).page
        assert "done" in made.text
        assert await it.there.cluster.bodies("T_send") == [b"line 1\nline 2"]
        assert (await one(it, 0))["properties"]["COPIED_FROM"] == "x"

    play(tmp_path, work)


def test_binary_bodies_are_copied_whole(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await with_topic(it)
        for body in (b"\xff\x00", b"a\r\nb", b"x" * 70_000):
            await it.there.cluster.send("T_send", body)
        for offset, text in ((0, "/wA="), (1, base64.b64encode(b"a\r\nb").decode())):
            page = await it.page(f"change/send?source=T_send&copy=broker-a:0:{offset}")
            assert text in page.text
        assert "too long to be edited" in (await it.page("change/send?source=T_send&copy=broker-a:0:2", 400)).text

    play(tmp_path, work)


def test_hidden_bodies_are_not_copied(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        page = await it.page("change/send?source=T_live&copy=broker-a:0:1", 400)
        assert "may not see bodies" in page.text and "message 2" not in page.text

    play(tmp_path, work, bodies_for="alice")


def test_a_message_is_consumed_now(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        place = {"topic": "T_live", "place": "broker-a:0:1", "group": "G_live"}
        shown = await plan(it, "consume", **place)
        assert shown["does"] == f"Give the message to {CLIENT_ID} now"
        (result,) = (await make(it, shown))["results"]
        assert result["outcome"] == "done" and "CR_SUCCESS" in result["text"]
        told = it.there.told[-1]
        assert told.code == 309 and b"message 2" in bytes(told.body) and told.ext_fields["clientId"] == CLIENT_ID
        assert it.there.cluster.broker.offsets.query("G_live", "T_live", 0) == 2, "no offset moves"
        it.there.consumer.register_processor(309, it.there._taker(b'{"consumeResult":"CR_LATER","remark":"full"}'))
        (result,) = (await make(it, await plan(it, "consume", **place)))["results"]
        assert result["outcome"] == "failed" and "CR_LATER" in result["text"] and "full" in result["text"]

        async def silent(_address: str, command: Any) -> Any:
            return command.answer(207, "too slow")

        it.there.consumer.register_processor(309, silent)
        (result,) = (await make(it, await plan(it, "consume", **place)))["results"]
        assert result["outcome"] == "unknown", "a member that does not answer may have consumed it"

    play(tmp_path, work)


def test_a_timed_message_is_cancelled(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        due_ms = now_ms() + HOUR_MS
        for number in range(2):
            text = properties_text(UNIQ_KEY=f"W{number}", TIMER_DELIVER_MS=str(due_ms))
            await it.there.cluster.send("T_live", b"timed", text)
        page = await it.page("waiting?kind=timed")
        link = next(one for one in page.links if "/change/recall" in one and "key=W0" in one)
        shown = (await it.visitor.get(link)).page
        assert "Cancel the message" in shown.text
        made = (await it.visitor.post(link, {"token": shown.fields["token"]})).page
        assert "done" in made.text
        assert [row["unique_key"] for row in (await it.api("waiting?kind=timed"))["rows"]] == ["W1"]

    play(tmp_path, work, broker={"recall_message_enable": True})


def test_a_broker_may_refuse_a_recall(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        text = properties_text(UNIQ_KEY="W", TIMER_DELIVER_MS=str(now_ms() + HOUR_MS))
        await it.there.cluster.send("T_live", b"timed", text)
        (row,) = (await it.api("waiting?kind=timed"))["rows"]
        query = {"topic": "T_live", "broker": "broker-a", "key": "W", "due": row["handle_ms"]}
        (result,) = (await make(it, await plan(it, "recall", **query)))["results"]
        assert result["outcome"] == "refused" and "forbidden" in result["text"]

    play(tmp_path, work)


async def half(it: Seen, key: str) -> None:
    text = properties_text(UNIQ_KEY=key, TRAN_MSG="true", PGROUP="G_live_P")
    await it.there.cluster.send("T_send", key.encode(), text, sys_flag=int(MessageSysFlag.TRANSACTION_PREPARED))


def test_transactions_are_ended_once(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await with_topic(it)
        for key in ("H0", "H1", "H2"):
            await half(it, key)
        links = (await it.page("waiting?kind=half")).links
        assert sum("/change/transaction" in link for link in links) == 6
        it.visitor.cookies.clear()  # what follows comes from a script
        for offset, to in ((0, "commit"), (1, "rollback")):
            shown = await plan(it, "transaction", broker="broker-a", offset=str(offset), to=to)
            does = {"commit": "Commit the transaction", "rollback": "Roll back the transaction"}[to]
            assert shown["does"] == does and shown["steps"][0]["after"] == {"commit": "T_send", "rollback": "-"}[to]
            assert shown["confirm"] == "T_send" and "G_live_P" in shown["notes"][0]
            (result,) = (await make(it, shown))["results"]
            assert result["outcome"] == "done", result
        assert await it.there.cluster.bodies("T_send") == [b"H0"]
        for offset in (0, 1, 9):
            query = {"broker": "broker-a", "offset": str(offset), "to": "commit"}
            again = await it.visitor.send("/api/cluster/changes/transaction", query)
            assert again.status == 400 and "No transaction without a decision" in again.json["text"], again.text
        assert [row["unique_key"] for row in (await it.api("waiting?kind=half"))["rows"]] == ["H2"]

    play(tmp_path, work)


def test_a_producer_is_asked_again(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await with_topic(it)
        broker = it.there.cluster.broker
        await broker.topics.update(TopicConfig("TRANS_CHECK_MAX_TIME_TOPIC", 1, 1, 6))
        text = properties_text(UNIQ_KEY="H", PGROUP="G_live_P", REAL_TOPIC="T_send", REAL_QID="0", TRAN_MSG="true")
        store = broker.services.store
        message = StoreMessage(b"TRANS_CHECK_MAX_TIME_TOPIC", 0, b"half", text.encode(), now_ms(), store.store_host)
        assert store.put_message(message).status is PutMessageStatus.PUT_OK

        async def rows() -> list[Any]:
            rows = (await it.api("waiting?kind=half"))["rows"]
            return [(row["unique_key"], row["is_given_up"]) for row in rows]

        while await rows() != [("H", True)]:
            await asyncio.sleep(0)
        shown = await plan(it, "transaction", broker="broker-a", offset="0", to="check")
        assert shown["does"] == "Ask producer group G_live_P again" and not shown["confirm"]
        (result,) = (await make(it, shown))["results"]
        assert result["outcome"] == "done", result
        while sorted(await rows()) != [("H", False), ("H", True)]:
            await asyncio.sleep(0)

    play(tmp_path, work)


REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("send", {"topic": "SCHEDULE_TOPIC_XXXX", "body": "x"}, "belongs to the brokers"),
    ("send", {"topic": "nothing", "body": "x"}, "There is no topic"),
    ("send", {"topic": "T_live", "body": "x", "encoding": "rot13"}, "text, base64, hex"),
    ("send", {"topic": "T_live", "body": "xyz", "encoding": "hex"}, "hex"),
    ("send", {"topic": "T_live", "body": "???", "encoding": "base64"}, "base64"),
    ("send", {"topic": "T_live", "body": "x", "properties": "[]"}, "a JSON object of texts"),
    ("send", {"topic": "T_live", "body": "x", "properties": '{"a": 1}'}, "a JSON object of texts"),
    ("send", {"topic": "T_live", "body": "x", "properties": '{"TRAN_MSG": "true"}'}, "TRAN_MSG"),
    ("send", {"topic": "T_live", "body": "x", "delay": -1}, "delay"),
    ("consume", {"topic": "T_live", "place": "broker-a:0:1", "group": "nothing"}, "There is no group"),
    ("consume", {"topic": "T_live", "place": "broker-a:0:99", "group": "G_live"}, "There is no message at"),
    ("consume", {"topic": "T_live", "place": "0:1", "group": "G_live"}, "broker:queue:offset"),
    ("consume", {"topic": "T_live", "place": "broker-a:0:1", "group": "G_live", "client": "x"}, "is no member"),
    ("recall", {"topic": "T_live", "broker": "broker-a", "key": "W", "due": "0"}, "due"),
    ("recall", {"topic": "T_live", "broker": "broker-a", "key": "W", "due": "4000000000000"}, "No message with"),
    ("recall", {"topic": "T_live", "broker": "none", "key": "W", "due": "4000000000000"}, "has no master"),
    ("recall", {"topic": "T live", "broker": "broker-a", "key": "W", "due": "4000000000000"}, "without spaces"),
    ("transaction", {"broker": "broker-a", "offset": "0", "to": "x"}, "commit, rollback, check"),
    ("transaction", {"broker": "broker-a", "offset": "-1", "to": "commit"}, "offset"),
    ("transaction", {"broker": "none", "offset": "0", "to": "commit"}, "has no master"),
    ("transaction", {"broker": "broker-a", "offset": "0", "to": "check"}, "No transaction was given up"),
]
"""Kind of a change, its parameters, and a part of the refusal."""


def test_what_cannot_be_done(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for kind, query, text in REFUSED:
            answer = await it.visitor.send(f"/api/cluster/changes/{kind}", query)
            assert answer.status == 400 and text in answer.json["text"], (kind, query, answer.text)

    play(tmp_path, work)


def test_a_visitor_who_only_reads_changes_nothing(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for kind in ("send", "consume", "recall", "transaction"):
            assert (await it.visitor.send(f"/api/cluster/changes/{kind}", {"topic": "T"})).status == 403
        page = await it.page("message?topic=T_live&broker=broker-a&queue=0&offset=1")
        assert not any("/change/" in link for link in page.links)
        for path in ("topic?name=T_live", "waiting?kind=timed"):
            assert not any("/change/" in link for link in (await it.page(path)).links)

    play(tmp_path, work, read_only=True)
