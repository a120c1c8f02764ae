"""The way of a message: what traces tell, what brokers keep, and what is missing."""

from __future__ import annotations

from pathlib import Path

from tests.brokers import properties_text, run
from tests.unit.console.test_waiting import play
from tests.unit.console.visitor import Seen, Visitor, console_of

from rucola.common.topic_config import TopicConfig
from rucola.console.pages.time_line import LANES_MAX, LaneMark, time_line
from rucola.protocol.trace import TraceRecord, TraceType, encode_trace

TRACES = "RMQ_SYS_TRACE_TOPIC"
AT = 1_780_000_000_000


async def write_traces(it: Seen, key: str) -> None:
    """Writes what a producer and two consumers would write."""
    records = [
        TraceRecord(
            trace_type=TraceType.PUB, timestamp_ms=AT, group="P_live", topic="T_live", msg_id=key,
            store_host="10.0.0.1:10911", cost_ms=7, offset_msg_id="0A", keys="live2",
        ),
        *_delivery(key, "G_live", "R1", AT + 100, 40, success=False),
        *_delivery(key, "G_live", "R2", AT + 900, 5, success=True, retry=1),
        _delivery(key, "G_slow", "R3", AT + 200, 0, success=True)[0],
    ]  # fmt: skip
    text = properties_text(UNIQ_KEY=f"TR{key}", KEYS=f"{key} live2")
    body = encode_trace(records).encode() + b"garbage\x02"
    answer = await it.there.cluster.send(TRACES, body, text)
    assert answer.code == 0, answer.remark


def _delivery(
    key: str, group: str, request: str, at: int, cost: int, *, success: bool, retry: int = 0
) -> list[TraceRecord]:
    begin = TraceRecord(
        trace_type=TraceType.SUB_BEFORE, timestamp_ms=at, group=group, request_id=request, msg_id=key, retry_times=retry
    )
    end = TraceRecord(
        trace_type=TraceType.SUB_AFTER, request_id=request, msg_id=key, cost_ms=cost, success=success,
        timestamp_ms=at + cost, group=group,
    )  # fmt: skip
    return [begin, end]


def test_the_way_of_a_traced_message(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        cluster = it.there.cluster
        await cluster.broker.topics.update(TopicConfig(TRACES, 1, 1, 6))
        for topic in ("%RETRY%G_live", "%DLQ%G_live"):
            await cluster.broker.topics.update(TopicConfig(topic, 1, 1, 6))
        await write_traces(it, "U2")
        await cluster.send("%RETRY%G_live", b"message 2", properties_text(UNIQ_KEY="U2", RETRY_TOPIC="T_live"))
        await it.look()
        found = await it.api("trace?topic=T_live&key=U2")
        assert found["traced"] and found["has_traces"] and found["unknown"] == []
        steps = [(one["what"], one["who"], one["outcome"], one["attempt"]) for one in found["steps"]]
        assert steps == [
            ("sent", "P_live", "fine", None),
            ("consumed", "G_live", "failed", 0),
            ("consumed", "G_slow", "open", 0),
            ("consumed", "G_live", "fine", 1),
            ("stored", "broker-a", "", None),
            ("stored for a retry", "broker-a", "", 0),
        ]
        sent, failed, open_, *_, stored, retry = found["steps"]
        assert (sent["at_ms"], sent["end_ms"], failed["end_ms"], open_["end_ms"]) == (AT, AT + 7, AT + 140, None)
        assert (stored["topic"], stored["queue"], stored["offset"]) == ("T_live", 0, "1")
        assert retry["topic"] == "%RETRY%G_live"
        assert found["groups"] == [{"group": "G_live", "state": "passed", "before": None}]
        page = await it.page("trace?topic=T_live&key=U2")
        assert page.has("svg", **{"class": "lanes"}) and "retry 1" in page.text and "G_slow" in page.text
        assert "No client has written" not in page.text
        assert any("trace?topic=T_live" in link for link in (await message(it, "T_live", 0, 1)).links)
        assert any("trace?topic=T_live" in link for link in (await message(it, "%25RETRY%25G_live", 0, 0)).links)

    play(tmp_path, work)


async def message(it: Seen, topic: str, queue: int, offset: int):  # type: ignore[no-untyped-def]
    return await it.page(f"message?topic={topic}&broker=broker-a&queue={queue}&offset={offset}")


def test_where_groups_are(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        cluster = it.there.cluster

        async def state(key: str) -> tuple[str, str | None]:
            await it.look()
            (one,) = (await it.api(f"trace?topic=T_live&key={key}"))["groups"]
            return one["state"], one["before"]

        assert await state("U2") == ("passed", None), "offset 1, progress 2"
        assert await state("U4") == ("waiting", "0"), "offset 2 is the next one"
        assert await state("U6") == ("waiting", "1"), "offset 3, progress 2"
        await cluster.broker.topics.update(TopicConfig("%RETRY%G_live", 1, 1, 6))
        await cluster.send("%RETRY%G_live", b"again", properties_text(UNIQ_KEY="U2"))
        cluster.broker.offsets.commit("G_live", "%RETRY%G_live", 0, 0)
        assert await state("U2") == ("retrying", None)
        cluster.broker.offsets.commit("G_live", "%RETRY%G_live", 0, 1)
        assert await state("U2") == ("passed", None), "the retry is consumed"
        await cluster.broker.topics.update(TopicConfig("%DLQ%G_live", 1, 1, 6))
        await cluster.send("%DLQ%G_live", b"dead", properties_text(UNIQ_KEY="U2"))
        assert await state("U2") == ("dead", None)
        assert "has given it up" in (await it.page("trace?topic=T_live&key=U2")).text

    play(tmp_path, work)


def test_what_waits_is_on_the_way(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        cluster = it.there.cluster
        await cluster.send("T_live", b"x", properties_text(UNIQ_KEY="WD", DELAY="18"))
        await cluster.send("T_live", b"x", properties_text(UNIQ_KEY="WT", TIMER_DELAY_SEC="3600"))
        for key, what in (("WD", "waits for its level"), ("WT", "waits for its time")):
            (step,) = (await it.api(f"trace?topic=T_live&key={key}"))["steps"]
            assert step["what"] == what

    play(tmp_path, work)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        assert "Steps" not in (await it.page("trace")).text
        page = await it.page("trace?topic=T_live&key=U2")
        assert f"Trace topic {TRACES} does not exist" in page.text and "Steps" in page.text
        await it.there.cluster.broker.topics.update(TopicConfig(TRACES, 1, 1, 6))
        await it.look()
        assert "No client has written a trace" in (await it.page("trace?topic=T_live&key=U2")).text
        assert "No broker has this message" in (await it.page("trace?topic=T_live&key=none")).text
        assert (await it.visitor.get("/cluster/trace?topic=T_live&key=U2&traces=")).status == 400
        await it.there.cluster.stop_broker()
        page = await it.page("trace?topic=T_live&key=U2")
        assert "Cannot tell." in page.text and "No broker has this message" not in page.text

    play(tmp_path, work)


def test_no_cluster(tmp_path: Path) -> None:
    async def scene() -> None:
        async with console_of("127.0.0.1:1", tmp_path) as console:
            value = (await Visitor(console).get("/api/cluster/trace?topic=T&key=K")).json
            assert value["has_traces"] is None and value["steps"] == [] and value["unknown"]

    run(scene())


def test_a_picture_of_any_steps() -> None:
    assert time_line([], "t", str) == ""
    same = time_line([LaneMark("a", 5, None, "", "x"), LaneMark("a", 5, 5, "fine", "y")], "t", str)
    assert ">5.005<" in same, "a short line has its ends in milliseconds"
    assert same.count("<circle") == 1 and same.count("<rect") == 1 and "nan" not in same
    many = time_line([LaneMark(f"lane {n}", n, None, "", "x") for n in range(LANES_MAX + 5)], "t", str)
    assert many.count("<circle") == LANES_MAX
    assert "<b>" not in time_line([LaneMark("<b>", 0, None, "<b>", "<b>")], "<b>", str)
