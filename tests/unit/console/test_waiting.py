"""What waits inside a broker: delayed, timed, half and popped messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.brokers import properties_text, run
from tests.unit.console.visitor import Seen, Visitor, console_of, seen

from rucola.client.admin import AdminClient
from rucola.common.recall_handle import RecallHandle
from rucola.common.sysflag import MessageSysFlag
from rucola.common.topic_config import TopicConfig
from rucola.console.cluster.snapshot import BrokerState
from rucola.console.messages import waiting
from rucola.console.messages.reading import PulledRange, QueueAt
from rucola.protocol.codes import RequestCode
from rucola.protocol.headers.pop import PopMessageRequestHeader
from rucola.runtime.clock import SystemClock

Work = Callable[[Seen], Coroutine[Any, Any, None]]
HOUR_MS = 3_600_000


def play(folder: Path, work: Work, **options: Any) -> None:
    async def scene() -> None:
        async with seen(folder, **options) as found:
            await work(found)

    run(scene())


def now_ms() -> int:
    return SystemClock().wall_ms()


def test_delayed_messages_by_level(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        cluster = it.there.cluster
        assert (await it.api("waiting"))["sums"] == []
        assert "No message waits for this." in (await it.page("waiting")).text
        for number in range(3):
            await cluster.send("T_live", b"late", properties_text(UNIQ_KEY=f"D{number}", DELAY="18"))
        await cluster.send("%RETRY%G_live", b"again", properties_text(UNIQ_KEY="R", DELAY="17"))
        found = await it.api("waiting?kind=delayed")
        first, second = found["sums"]
        assert (first["what"], first["count"], second["what"], second["count"]) == ("17 (1 h)", "1", "18 (2 h)", "3")
        assert first["targets"] == ["%RETRY%G_live", "G_live"] and second["targets"] == ["T_live"]
        assert [row["unique_key"] for row in found["rows"]] == ["R", "D0", "D1", "D2"], "the next one first"
        assert found["rows"][0]["group"] == "G_live" and found["rows"][0]["topic"] == "%RETRY%G_live"
        row = found["rows"][1]
        kept = await it.api(f"message?topic={row['place']}&broker=broker-a&queue={row['queue']}&offset={row['offset']}")
        assert row["due_ms"] == kept["row"]["stored_ms"] + 2 * HOUR_MS == second["first_ms"]
        page = await it.page("waiting?kind=delayed")
        assert "18 (2 h)" in page.text and any("SCHEDULE_TOPIC_XXXX" in link for link in page.links)

    play(tmp_path, work)


def test_timed_messages_by_topic(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        cluster = it.there.cluster
        due_ms = now_ms() + HOUR_MS
        handles = []
        for number in range(3):
            text = properties_text(UNIQ_KEY=f"W{number}", TIMER_DELIVER_MS=str(due_ms + number * 60_000))
            answer = await cluster.send("T_live", b"timed", text)
            handles.append(answer.ext_fields["recallHandle"])
        found = await it.api("waiting?kind=timed")
        (total,) = found["sums"]
        assert (total["what"], total["broker"]) == ("T_live", "broker-a") and total["count"] == "3"
        assert [row["unique_key"] for row in found["rows"]] == ["W0", "W1", "W2"]
        assert all(0 <= due_ms + n * 60_000 - row["due_ms"] <= 1000 for n, row in enumerate(found["rows"]))
        assert RecallHandle.decode(handles[0]).due_ms == found["rows"][0]["handle_ms"]
        recall = {"topic": "T_live", "recallHandle": handles[0], "producerGroup": "pg"}
        assert (await cluster.ask(RequestCode.RECALL_MESSAGE, recall)).code == 0
        found = await it.api("waiting?kind=timed")
        assert [row["unique_key"] for row in found["rows"]] == ["W1", "W2"], "a recalled message does not wait"
        assert "W1" in (await it.page("waiting?kind=timed")).text

    play(tmp_path, work, broker={"recall_message_enable": True})


def test_half_messages(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        cluster = it.there.cluster
        sent = []
        for number in range(3):
            text = properties_text(UNIQ_KEY=f"H{number}", TRAN_MSG="true", PGROUP="G_live_P")
            flag = int(MessageSysFlag.TRANSACTION_PREPARED)
            sent.append(await cluster.send("T_live", b"half", text, sys_flag=flag))
        await end(it, sent[1], int(MessageSysFlag.TRANSACTION_ROLLBACK))
        found = await it.api("waiting?kind=half")
        assert [(one["what"], one["count"]) for one in found["sums"]] == [("half", "2")]
        assert found["sums"][0]["targets"] == ["G_live_P", "T_live"] and found["sums"][0]["first_ms"] is None
        assert [row["unique_key"] for row in found["rows"]] == ["H0", "H2"]
        assert found["rows"][0]["due_ms"] is None and found["rows"][0]["group"] == "G_live_P"
        page = await it.page("waiting?kind=half")
        assert "undecided" in page.text and "G_live_P" in page.text

    play(tmp_path, work)


async def end(it: Seen, sent: Any, outcome: int) -> None:
    """Ends a transaction, as its producer does."""
    from rucola.formats.message_id import parse_offset_message_id

    fields = {
        "producerGroup": "G_live_P",
        "tranStateTableOffset": sent.ext_fields["queueOffset"],
        "commitLogOffset": str(parse_offset_message_id(sent.ext_fields["msgId"]).physical_offset),
        "commitOrRollback": str(outcome),
        "fromTransactionCheck": "false",
    }
    answer = await it.there.cluster.ask(RequestCode.END_TRANSACTION, fields)
    assert answer.code == 0, answer.remark


def test_popped_messages(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        cluster = it.there.cluster
        await cluster.broker.topics.update(TopicConfig("T_pop", 1, 1, 6))
        for number in range(3):
            await cluster.send("T_pop", b"popped", properties_text(UNIQ_KEY=f"P{number}"))
        header = PopMessageRequestHeader(
            "G_live", "T_pop", 0, 3, 600_000, 0, 0, 0, exp="*", exp_type="TAG", order=False
        )  # fmt: skip
        answer = await cluster.ask(RequestCode.POP_MESSAGE, header.to_ext_fields())
        assert answer.code == 0, answer.remark
        found = await it.api("waiting?kind=popped")
        (total,) = found["sums"]
        assert (total["what"], total["count"], total["targets"]) == ("T_pop", "3", ["G_live"])
        assert [(row["topic"], row["offset"], row["group"]) for row in found["rows"]] == [
            ("T_pop", str(offset), "G_live") for offset in range(3)
        ]
        assert 0 < found["rows"][0]["due_ms"] - now_ms() <= 600_000
        assert found["unknown"][0]["reason"] == "unsupported", "what memory holds is not told"
        assert "G_live" in (await it.page("waiting?kind=popped")).text

    play(tmp_path, work)


def test_what_a_broker_does_not_tell(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        assert (await it.visitor.get("/cluster/waiting?kind=nothing")).status == 400
        await it.there.cluster.stop_broker()
        for kind in waiting.KINDS:
            found = await it.api(f"waiting?kind={kind}")
            assert found["sums"] == [] and found["unknown"], kind
            text = (await it.page(f"waiting?kind={kind}")).text
            assert "Cannot tell." in text and "No message waits for this." not in text

    play(tmp_path, work)


def test_no_cluster_is_no_empty_list(tmp_path: Path) -> None:
    async def scene() -> None:
        async with console_of("127.0.0.1:1", tmp_path) as console:
            page = (await Visitor(console).get("/cluster/waiting")).page
            assert "No message waits for this." not in page.text and "Cannot tell." in page.text

    run(scene())


@pytest.mark.parametrize(
    "read",
    [waiting._read_from_progress, partial(waiting._read_newest, count_max=100)],
    ids=["from-progress", "newest"],
)
def test_what_was_not_read_in_time_does_not_count(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[AdminClient, BrokerState, str], Awaitable[waiting.Records]]
) -> None:
    """Otherwise a transaction that has ended could look as if it had no decision, and be ended twice."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        now_s, pulls = loop.time(), 0

        async def told(value: int, *_: object, **__: object) -> int:
            return value

        async def pulled(_admin: AdminClient, _topic: str, queue: QueueAt, _count: int) -> PulledRange:
            nonlocal now_s, pulls
            pulls += 1
            now_s += waiting.READ_S / 2
            return PulledRange([], queue.position + 1, 10)

        monkeypatch.setattr(loop, "time", lambda: now_s)
        monkeypatch.setattr(waiting, "pulled", pulled)
        api = SimpleNamespace(
            min_offset=partial(told, 0), max_offset=partial(told, 10), query_consumer_offset=partial(told, 0)
        )
        admin = cast(AdminClient, SimpleNamespace(api=api))
        found = await read(admin, cast(BrokerState, SimpleNamespace(name="b", address="a")), "T")
        assert (found.scanned, found.total, pulls) == (2, 10, 2)

    asyncio.run(scene())
