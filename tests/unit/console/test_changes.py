"""Changes: shown first, made by a token, written to the audit log before the first request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.brokers import properties_text, run
from tests.unit.console.visitor import Seen, seen

from rucola.common.topic_config import TopicConfig
from rucola.console.audit import AuditLog
from rucola.console.changes import letters
from rucola.console.changes.plan import ChangePlan, ChangeStep, carry_out
from rucola.errors import BrokerError, DiskError, RemotingTimeoutError

Work = Callable[[Seen], Coroutine[Any, Any, None]]


def play(folder: Path, work: Work, **options: Any) -> None:
    async def scene() -> None:
        async with seen(folder, **options) as found:
            await work(found)

    run(scene())


async def plan(it: Seen, kind: str, **query: object) -> Any:
    answer = await it.visitor.send(f"/api/cluster/changes/{kind}", query)
    assert answer.status == 200, answer.text
    return answer.json


async def make(it: Seen, shown: Any, status: int = 200) -> Any:
    answer = await it.visitor.send("/api/cluster/changes", {"token": shown["token"], "confirm": shown["confirm"]})
    assert answer.status == status, answer.text
    return answer.json


def test_offsets_are_reset_as_shown(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        it.there.consumer.register_processor(220, lambda _address, command: command.answer(0))
        offsets = it.there.cluster.broker.offsets
        shown = await plan(it, "reset-offsets", group="G_live", topic="T_live", to="end")
        assert shown["does"] == "Skip 4 messages" and [step["after"] for step in shown["steps"]] == ["4", "4"]
        assert [step["effect"] for step in shown["steps"]] == ["skips 2", "skips 2"]
        assert any("members are told" in note for note in shown["notes"])
        assert offsets.query("G_live", "T_live", 0) == 2, "a preview changed something"
        # A message that comes now was not shown, so it is not skipped.
        await it.there.cluster.send("T_live", b"new", queue_id=0)
        made = await make(it, shown)
        assert [one["outcome"] for one in made["results"]] == ["done", "done"]
        assert [offsets.query("G_live", "T_live", queue) for queue in (0, 1)] == [4, 4]
        again = await plan(
            it, "reset-offsets", group="G_live", topic="T_live", to="offset", offset="1", queue="broker-a:1"
        )
        assert again["does"] == "Read 3 messages again" and len(again["steps"]) == 1
        await make(it, again)
        assert [offsets.query("G_live", "T_live", queue) for queue in (0, 1)] == [4, 1]
        (newest, before) = (await it.api("audit"))["rows"]
        assert newest["what"]["does"] == "Read 3 messages again" and before["results"][0]["outcome"] == "done"
        assert "Skip 4 messages" in (await it.page("audit")).text

    play(tmp_path, work)


def test_a_token_works_once_and_only_for_its_owner(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        shown = await plan(it, "topic", name="New", queues=3)
        other = await it.visitor.send("/api/cluster/changes", {"token": shown["token"] + "x"})
        assert (other.status, other.json["error"]) == (403, "token")
        await it.visitor.follow("/")  # the visitor now has a session, which did not see the plan
        csrf = {"x-csrf-token": await it.visitor.csrf()}
        foreign = await it.visitor.send("/api/cluster/changes", {"token": shown["token"]}, csrf)
        assert (foreign.status, foreign.json["error"]) == (403, "token")
        it.visitor.cookies.clear()
        await make(it, shown)
        assert it.there.cluster.broker.topics.table["New"].read_queue_nums == 3
        assert (await make(it, shown, 403))["error"] == "token"

    play(tmp_path, work)


def test_what_has_moved_is_shown_again(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        shown = await plan(it, "topic", name="T_live", queues=5)
        await it.there.cluster.broker.topics.update(TopicConfig("T_live", 7, 7, 6))
        assert (await make(it, shown, 409))["error"] == "moved"
        assert it.there.cluster.broker.topics.table["T_live"].read_queue_nums == 7

    play(tmp_path, work)


def test_topics_and_groups_are_created_and_deleted(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        broker = it.there.cluster.broker
        made = await make(it, await plan(it, "group", name="G_new", retries=3, enabled=True))
        assert [one["outcome"] for one in made["results"]] == ["done"]
        assert broker.groups.table["G_new"].retry_max_times == 3 and broker.groups.table["G_new"].consume_enable
        same = await plan(it, "group", name="G_new", retries=3, enabled=True)
        assert [one["outcome"] for one in (await make(it, same))["results"]] == ["unchanged"]
        await it.look()
        shown = await plan(it, "delete-group", name="G_new", offsets=True)
        await make(it, shown)
        assert "G_new" not in broker.groups.table
        await it.look()
        shown = await plan(it, "delete-topic", name="T_live")
        assert shown["confirm"] == "T_live" and "8 messages are lost." in shown["notes"]
        assert any("Group G_live reads it and has 4 messages waiting" in note for note in shown["notes"])
        wrong = await it.visitor.send("/api/cluster/changes", {"token": shown["token"], "confirm": "T_liv"})
        assert (wrong.status, wrong.json["error"]) == (400, "confirm") and "T_live" in broker.topics.table
        await make(it, shown)
        assert "T_live" not in broker.topics.table
        await it.look()
        assert "T_live" not in [one["name"] for one in (await it.api("topics?only=all"))["rows"]]

    play(tmp_path, work)


def test_the_pages_of_a_change(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        for kind in ("reset-offsets", "resend", "topic", "delete-topic", "group", "delete-group"):
            assert "Show what it will do" in (await it.page(f"change/{kind}")).text
        address = "/cluster/change/delete-topic?name=T_live"
        page = (await it.visitor.get(address)).page
        assert "Delete topic T_live with its messages" in page.text
        refused = await it.visitor.post(address, {"token": page.fields["token"], "confirm": "no"})
        assert "Type T_live to confirm." in refused.page.text
        token = refused.page.fields["token"]
        made = await it.visitor.post(address, {"token": token, "confirm": "T_live"})
        assert "Result" in made.page.text and "done" in made.page.text
        assert "T_live" not in it.there.cluster.broker.topics.table
        late = await it.visitor.post(address, {"token": token, "confirm": "T_live"})
        assert "shown too long ago" in late.page.text or "There is no topic" in late.page.text

    play(tmp_path, work)


@pytest.mark.parametrize(
    ("kind", "query", "text"),
    [
        ("delete-topic", {"name": "SCHEDULE_TOPIC_XXXX"}, "belongs to the brokers"),
        ("delete-topic", {"name": "broker-a"}, "belongs to the brokers"),
        ("delete-topic", {"name": "nothing"}, "There is no topic"),
        ("topic", {"name": "rmq_sys_x", "queues": 1}, "belongs to the brokers"),
        ("topic", {"name": "a b", "queues": 1}, "name"),
        ("topic", {"name": "x", "queues": 0}, "queues"),
        ("group", {"name": "CID_RMQ_SYS_x", "retries": 1}, "belongs to the brokers"),
        ("delete-group", {"name": "nothing"}, "There is no group"),
        ("reset-offsets", {"group": "G_live", "topic": "nothing", "to": "end"}, "There is no topic"),
        ("reset-offsets", {"group": "G_live", "topic": "T_live", "to": "x"}, "end, begin, time, offset"),
        ("reset-offsets", {"group": "G_live", "topic": "T_live", "to": "offset", "offset": "-1"}, "offset"),
        ("resend", {"group": "G_live", "begin": "0"}, "no dead letters"),
        ("resend", {"group": "G_live", "chosen": "x"}, "broker:queue:offset"),
    ],
)
@pytest.mark.few
def test_what_cannot_be_changed(tmp_path: Path, kind: str, query: dict[str, object], text: str) -> None:
    async def work(it: Seen) -> None:
        answer = await it.visitor.send(f"/api/cluster/changes/{kind}", query)
        assert answer.status == 400 and text in answer.json["text"], answer.text

    play(tmp_path, work)


def test_dead_letters_are_resent_to_their_group(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        broker = it.there.cluster.broker
        await broker.topics.update(TopicConfig("%DLQ%G_live", 1, 1, 6))
        text = properties_text(UNIQ_KEY="UD", KEYS="k", TAGS="TagA", RETRY_TOPIC="T_live", color="green")
        for number in range(3):
            await it.there.cluster.send("%DLQ%G_live", f"dead {number}".encode(), text)
        await it.look()
        assert (await it.api("group?name=G_live"))["group"]["dead"] == "3"
        shown = await plan(it, "resend", group="G_live", chosen="broker-a:0:1")
        assert shown["does"] == "Resend one dead letter" and shown["steps"][0]["after"] == "%RETRY%G_live"
        made = await make(it, shown)
        assert [(one["target"], one["outcome"]) for one in made["results"]] == [("broker-a:0:1", "done")]
        found = await it.api("message?topic=%25RETRY%25G_live&broker=broker-a&queue=0&offset=0")
        assert found["row"]["preview"] == "dead 1" and found["row"]["retries"] == 0
        assert found["properties"]["RETRY_TOPIC"] == "T_live" and found["properties"]["color"] == "green"
        letter = await it.api("message?topic=%25DLQ%25G_live&broker=broker-a&queue=0&offset=1")
        assert found["properties"]["RESENT_FROM"] == letter["row"]["offset_id"], "the dead letter stays, and is named"
        shown = await plan(it, "resend", group="G_live", begin="0", to="topic")
        assert shown["does"] == "Resend 3 dead letters" and {step["after"] for step in shown["steps"]} == {"T_live"}
        # The form proposes the last day, so that its button shows something at once.
        form = (await it.page("change/resend?group=G_live")).fields
        filled = urlencode({"group": form["group"], "begin": form["begin"]})
        assert "Resend 3 dead letters" in (await it.page(f"change/resend?{filled}")).text
        assert not (await it.page("change/resend?group=G_live&chosen=broker-a:0:1")).fields["begin"]

    play(tmp_path, work)


def test_what_is_left_of_many_dead_letters_is_another_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "LETTERS_MAX", 2)

    async def work(it: Seen) -> None:
        await it.there.cluster.broker.topics.update(TopicConfig("%DLQ%G_live", 1, 1, 6))
        for number in range(5):
            text = properties_text(UNIQ_KEY=f"U{number}", RETRY_TOPIC="T_live")
            await it.there.cluster.send("%DLQ%G_live", f"dead {number}".encode(), text)
        await it.look()
        query, rounds = {"group": "G_live", "begin": "0", "to": "topic"}, list[list[str]]()
        while query:
            shown = await plan(it, "resend", **query)
            assert (len(rounds) < 2) is any("another round" in note for note in shown["notes"])
            query = shown["rest"]
            rounds.append([one["target"] for one in (await make(it, shown))["results"] if one["outcome"] == "done"])
        assert rounds == [["broker-a:0:0", "broker-a:0:1"], ["broker-a:0:2", "broker-a:0:3"], ["broker-a:0:4"]]
        address = "change/resend?group=G_live&begin=0&to=topic"
        made = (await it.visitor.post(f"/cluster/{address}", {"token": (await it.page(address)).fields["token"]})).page
        (link,) = [one for one in made.links if "cursor=" in one]
        assert "Resend 2 dead letters" in (await it.visitor.get(link)).page.text
        assert (await it.visitor.get("/cluster/change/resend?group=G_live&begin=0&cursor=x")).status == 400

    play(tmp_path, work)


def test_nothing_is_changed_without_an_audit_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(it: Seen) -> None:
        shown = await plan(it, "topic", name="New", queues=3)

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        answer = await it.visitor.send("/api/cluster/changes", {"token": shown["token"]})
        monkeypatch.undo()
        assert answer.status == 502 and "audit log" in answer.json["text"]
        assert "New" not in it.there.cluster.broker.topics.table

    play(tmp_path, work)


def test_a_change_whose_result_cannot_be_written_is_reported_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(it: Seen) -> None:
        shown = await plan(it, "topic", name="New", queues=3)

        def full(*_: object) -> None:
            raise DiskError("audit.jsonl", "append to the audit log", "No space left on device")

        monkeypatch.setattr(AuditLog, "end", full)
        assert [one["outcome"] for one in (await make(it, shown))["results"]] == ["done"]
        assert "New" in it.there.cluster.broker.topics.table
        assert (await it.api("audit"))["rows"][0]["results"] is None

    play(tmp_path, work)


def test_a_read_only_console_changes_nothing(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        answer = await it.visitor.send("/api/cluster/changes/topic", {"name": "New", "queues": 3})
        assert (answer.status, answer.json["error"]) == (403, "read-only")
        assert (await it.visitor.get("/cluster/change/topic?name=New&queues=3")).status == 403
        assert "Reset offsets" not in (await it.page("group?name=G_live")).text

    play(tmp_path, work, read_only=True)


def test_a_step_without_an_answer_ends_the_steps_at_its_server() -> None:
    tried: list[str] = []

    def step(target: str, server: str, error: Exception | None = None) -> ChangeStep:
        async def go() -> None:
            tried.append(target)
            if error is not None:
                raise error

        return ChangeStep(target, server, "", "", "", {}, go)

    steps = (
        step("a0", "a"),
        step("a1", "a", RemotingTimeoutError("a", 1)),
        step("a2", "a"),
        step("b0", "b", BrokerError(1, "no")),
        step("b1", "b"),
        ChangeStep("b2", "b", "", "", "", {}, None),
    )
    results = asyncio.run(carry_out(ChangePlan("x", "x", {}, steps, ())))
    outcomes = [one.outcome for one in results]
    assert outcomes == ["done", "unknown", "not-tried", "refused", "done", "unchanged"]
    assert tried == ["a0", "a1", "b0", "b1"], "a step was tried twice, or although its server had not answered"
