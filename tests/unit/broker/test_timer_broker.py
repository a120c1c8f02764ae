"""Messages with a delivery time, over the wire: responses to producers, deliveries to consumers, and recall."""

from __future__ import annotations

import asyncio

import pytest
from tests.brokers import Cluster, properties_text, run_virtual

from rucola.broker.timer.timer_rewrite import TimerRewriter
from rucola.common.message import StoreMessage
from rucola.common.recall_handle import RecallHandle
from rucola.errors import BrokerError, FormatError
from rucola.formats.message import decode_messages
from rucola.formats.properties import decode_properties
from rucola.formats.timer import TimerCheckpoint
from rucola.runtime.clock import SystemClock
from rucola.store.config import MessageStoreConfig

NOW_MS = 1_800_000_000_500
TIMER = "rmq_sys_wheel_timer"


def rewriter(waiting: int = 0, random: int = 0, **options: object) -> TimerRewriter:
    config = MessageStoreConfig(**options)
    return TimerRewriter(config, "broker-a", lambda: NOW_MS, lambda _: waiting, lambda _: random)


@pytest.mark.parametrize(
    ("properties", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": "1"}, 1_800_000_001_000),
        ({"TIMER_DELAY_MS": "500"}, 1_800_000_000_000),  # due at a whole second, so it belongs to the previous step
        ({"TIMER_DELAY_MS": "501"}, 1_800_000_001_000),
        ({"TIMER_DELIVER_MS": "1800000002000"}, 1_800_000_001_000),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "999999", "TIMER_DELIVER_MS": "7"}, 1_800_000_002_000),
        ({"TIMER_DELAY_SEC": "259200"}, 1_800_000_000_000 + 259_200_000),
        ({"TIMER_DELIVER_MS": str(NOW_MS)}, None),
        ({"TIMER_DELAY_SEC": "-5"}, None),
        ({"TIMER_DELAY_MS": "0"}, None),
        ({"TIMER_DELAY_SEC": "1", "TIMER_OUT_MS": "5"}, None),
        ({"TIMER_DELAY_SEC": "1", "DELAY": "1"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_when_it_is_due(properties, out_ms):
    noted = dict(properties)
    assert rewriter().schedule("T", 3, noted) is (out_ms is not None)
    added = {"TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert noted == {**properties, **(added if out_ms is not None else {})}


@pytest.mark.parametrize(
    ("properties", "options", "code"),
    [
        ({"TIMER_DELAY_SEC": "1.5"}, {}, 13),
        ({"TIMER_DELIVER_MS": "9" * 20}, {}, 13),
        ({"TIMER_DELAY_SEC": "259201"}, {}, 13),
        ({"TIMER_DELAY_SEC": "11"}, {"timer_max_delay_sec": 10}, 13),
        ({"TIMER_DELAY_SEC": "0", "TIMER_DEL_UNIQKEY": "T+K"}, {}, 13),
        ({"TIMER_DELAY_SEC": "1"}, {"timer_wheel_enable": False}, 1),
    ],
    ids=str,
)
def test_refusals_have_codes(properties, options, code):
    with pytest.raises(BrokerError) as caught:
        rewriter(**options).schedule("T", 0, dict(properties))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("waiting", "random", "refused"),
    [(10, 999, False), (11, 101, True), (11, 100, False), (15, 501, True), (20, 0, True)],
)
def test_too_many_for_one_step(waiting, random, refused):
    rules = rewriter(waiting, random, timer_congest_num_each_slot=10)
    if refused:
        with pytest.raises(BrokerError) as caught:
            rules.schedule("T", 0, {"TIMER_DELAY_SEC": "5"})
        assert caught.value.code == 1
    else:
        assert rules.schedule("T", 0, {"TIMER_DELAY_SEC": "5"})


def test_a_commit_is_rewritten_and_a_half_message_is_not():
    message = StoreMessage(b"T", 2, b"x", properties_text(TAGS="A", TIMER_DELAY_SEC="1").encode(), 0, bytes(8))
    message.sys_flag = 4
    assert rewriter().rewrite(message) is message
    message.sys_flag = 8
    waiting = rewriter().rewrite(message)
    assert (waiting.topic, waiting.queue_id, waiting.sys_flag) == (TIMER.encode(), 0, 8)
    assert decode_properties(waiting.properties)["REAL_QID"] == "2"
    assert rewriter().rewrite(waiting) is waiting


def test_handles():
    """Handles to recall messages are those of RocketMQ 5.3.3 (``RecallMessageHandle``)."""
    handle = RecallHandle("T", "broker-a", 1_800_000_001_001, "7F000001000118B4AAC2000000000001")
    text = "djEgVCBicm9rZXItYSAxODAwMDAwMDAxMDAxIDdGMDAwMDAxMDAwMTE4QjRBQUMyMDAwMDAwMDAwMDAx"
    assert handle.encode() == text
    assert RecallHandle.decode(text) == handle
    for bad in ("", "x", "djI=", text[:20], "\u2713"):
        with pytest.raises(FormatError):
            RecallHandle.decode(bad)


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])
def test_sent_with_a_time_and_consumed(tmp_path, sync_flush):
    """The response names the queue that the producer requested; the consumer gets the message once, after its time."""

    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush) as cluster:
            text = properties_text(UNIQ_KEY="D", TAGS="TagA", WAIT="true", TIMER_DELAY_MS="700")
            sent_ms = SystemClock().wall_ms()
            answer = await cluster.send("T", b"timed", text, 2)
            assert (answer.code, answer.ext_fields["queueId"], answer.ext_fields["transactionId"]) == (0, "2", "D")
            handle = RecallHandle.decode(answer.ext_fields["recallHandle"])
            assert (handle.topic, handle.broker_name, handle.unique_key) == ("T", "broker-a", "D")
            assert await cluster.bodies("T", 2) == []
            found = await cluster.pull("T", 2, sys_flag=6, suspend_ms=10_000)
            assert SystemClock().wall_ms() >= sent_ms + 700
            (message,) = decode_messages(found.body)
            assert (message.body, message.tags, message.uniq_key) == (b"timed", "TagA", "D")
            assert message.properties["TIMER_DELAY_MS"] == "700"
            assert message.properties["MSG_REGION"] == "DefaultRegion"
            again = await cluster.send("T", b"once more", _text(message.properties), 1)
            assert "recallHandle" not in again.ext_fields
            # A message that has waited for its time does not wait a second time.
            assert await cluster.bodies("T", 1) == [b"once more"]
            await cluster.send("T", b"later", properties_text(UNIQ_KEY="L", TIMER_DELAY_SEC="3600"), 2)
        assert (tmp_path / "timerwheel").stat().st_size == 38_707_200
        assert (tmp_path / "config" / "timercheck").stat().st_size == 4096
        async with Cluster(tmp_path, sync_flush) as cluster:
            await asyncio.sleep(0.1)
            assert await cluster.bodies("T", 2) == [b"timed"]
            assert cluster.broker.services.timers.service.pending() == 1

    run_virtual(scene())


def _text(properties: dict[str, str]) -> str:
    return properties_text(**{name: value for name, value in properties.items() if name != "__CRC32#"})


def test_withdrawn_over_the_wire(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, recall_message_enable=True) as cluster:
            due_ms = SystemClock().wall_ms() + 2500
            handles = []
            for key in ("stays", "goes"):
                text = properties_text(UNIQ_KEY=key, TIMER_DELIVER_MS=str(due_ms))
                answer = await cluster.send("T", key.encode(), text)
                handles.append(answer.ext_fields["recallHandle"])
            answer = await cluster.ask(370, {"topic": "T", "recallHandle": handles[1], "producerGroup": "pg"})
            assert (answer.code, answer.ext_fields["msgId"]) == (0, "goes")
            found = await cluster.pull("T", 0, sys_flag=6, suspend_ms=10_000)
            assert [message.body for message in decode_messages(found.body)] == [b"stays"]
            await asyncio.sleep(0.05)
            assert await cluster.bodies("T") == [b"stays"]
            for fields, code in (
                ({"topic": "U", "recallHandle": handles[0]}, 17),
                ({"topic": "T", "recallHandle": "x"}, 604),
                ({"topic": "T", "recallHandle": handles[0]}, 604),
                ({"topic": "T", "recallHandle": RecallHandle("U", "broker-a", due_ms, "k").encode()}, 604),
                ({"topic": "T", "recallHandle": RecallHandle("T", "broker-b", due_ms + 9999, "k").encode()}, 604),
                ({"topic": "T", "recallHandle": RecallHandle("T", "broker-a", 1 << 60, "k").encode()}, 604),
            ):
                assert (await cluster.ask(370, fields)).code == code, fields
            assert cluster.broker.store.max_queue_offset(TIMER.encode(), 0) == 3

    run_virtual(scene())


def test_withdrawal_is_off_unless_it_is_asked_for(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            assert (await cluster.ask(370, {"topic": "T", "recallHandle": "x"})).code == 16

    run_virtual(scene())


def test_requests_of_a_slave_are_answered(tmp_path):
    """Requests 60 and 61 of a slave get the checkpoint as 56 bytes, and the number of waiting messages by topic."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"x", properties_text(UNIQ_KEY="L", TIMER_DELAY_SEC="3600"))
            await cluster.bodies("T")
            answer = await cluster.ask(60)
            assert (answer.code, len(answer.body)) == (0, 56)
            answer = await cluster.ask(61)
            assert b'"timingCount":{"T":{"count":1,' in bytes(answer.body)

    run_virtual(scene())


def test_progress_does_not_wait_for_the_log_to_be_flushed_by_itself(tmp_path):
    """With ASYNC_FLUSH, the log may stay unsynced for a long time. If the progress were recorded only after a sync, a
    kill would repeat all deliveries since the last sync.
    """

    async def scene() -> None:
        cluster = Cluster(tmp_path)
        object.__setattr__(cluster._store_config, "flush_commit_log_thorough_interval_ms", 3_600_000)
        async with cluster:
            await cluster.send("T", b"x", properties_text(UNIQ_KEY="L", TIMER_DELAY_SEC="3600"))
            path = tmp_path / "config" / "timercheck"
            async with asyncio.timeout(60):
                while not path.exists() or TimerCheckpoint.decode(path.read_bytes()).queue_offset != 1:
                    await asyncio.sleep(0.02)

    run_virtual(scene())
