"""Messages that can never be processed are set aside: a store may hold them, because older versions took them. They are
counted, and what lies behind them is delivered, now and after a restart.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.brokers import Cluster, properties_text, run_virtual
from tests.unit.broker.test_property_gate import delivered, key, others, single

from rucola.broker.set_aside import destination
from rucola.common.message import StoreMessage
from rucola.common.recall_handle import RecallHandle
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import FormatError
from rucola.protocol.codes import RequestCode
from rucola.runtime.clock import SystemClock
from rucola.store.results import PutMessageStatus

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
DIGITS = "1" * 5000


def prepare(cluster: Cluster) -> None:
    cluster.broker.topics.update_all([TopicConfig(name, 1, 1, 6) for name in ("T", "U", "P")])
    cluster.broker.groups.update(SubscriptionGroupConfig("cg"))


def put(cluster: Cluster, topic: str, body: bytes = b"body", queue_id: int = 0, **properties: str) -> None:
    """Stores a message past all gates, as an older version would have done."""
    text = properties_text(**{"UNIQ_KEY": "old"} | properties).encode()
    message = StoreMessage(
        topic.encode(), queue_id, body, text, SystemClock().wall_ms(), cluster.broker.store.store_host
    )
    assert cluster.broker.store.put_message(message).status is PutMessageStatus.PUT_OK


def checkpoint(**changes: object) -> bytes:
    now = SystemClock().wall_ms()
    members: dict[str, object] = {"bm": 0, "bn": "broker-a", "c": "cg", "it": 100, "pt": now - 60_000, "q": 0, "so": 0}
    return json.dumps(members | {"ro": 0, "t": "P", "n": 1} | changes).encode()


TIMED = [
    {"REAL_TOPIC": "../../x", "REAL_QID": "0"},
    {"REAL_TOPIC": "..", "REAL_QID": "0"},
    {"REAL_TOPIC": "a/b", "REAL_QID": "0"},
    {"REAL_TOPIC": "x" * 300, "REAL_QID": "0"},
    {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
    {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0"},
    {"REAL_TOPIC": "T", "REAL_QID": "-1"},
    {"REAL_TOPIC": "T", "REAL_QID": str(1 << 40)},
    {"REAL_TOPIC": "T", "REAL_QID": DIGITS},
    {"REAL_TOPIC": "T", "REAL_QID": "\u0661"},
    {"REAL_QID": "0"},
    {"REAL_TOPIC": "T"},
]


def test_a_store_with_such_messages_serves_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, revive_interval_ms=100) as cluster:
            prepare(cluster)
            soon = str(SystemClock().wall_ms() // 1000 * 1000 + 1000)
            for properties in TIMED:
                put(cluster, "rmq_sys_wheel_timer", TIMER_OUT_MS="1000", **properties)
                put(cluster, "rmq_sys_wheel_timer", TIMER_OUT_MS=soon, **properties)
                put(cluster, "SCHEDULE_TOPIC_XXXX", DELAY="1", **properties)
            for time_ms in (DIGITS, "-5", "", "\u0661", "../x"):
                properties = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_ROLL_TIMES": DIGITS}
                put(cluster, "rmq_sys_wheel_timer", TIMER_OUT_MS=time_ms, **properties)
            bad = len(TIMED) * 3 + 5 + 8
            put(cluster, REVIVE, checkpoint(t="../../x"), TAGS="ck")
            cluster.broker.groups.table["../../x"] = SubscriptionGroupConfig("../../x")  # an old table may hold it
            put(cluster, REVIVE, checkpoint(c="../../x"), TAGS="ck")
            for changes in (
                {"n": 10**10},
                {"d": [0] * 10_000},
                {"so": 1 << 63},
                {"q": -1},
                {"pt": 1 << 70},
                {"d": [-1]},
            ):
                put(cluster, REVIVE, checkpoint(**changes), TAGS="ck")
            put(cluster, REVIVE, json.dumps({"t": "P", "c": "cg", "aol": []}).encode(), TAGS="bAck")
            await others(cluster, 1)
            await delivered(cluster, 1)
            store = cluster.broker.store
            for _ in range(100):
                if store.stats.set_aside_messages < bad:
                    await asyncio.sleep(0.05)
            assert store.stats.set_aside_messages == bad
            assert [name for name in store.topics_with_queues() if b"x" in name] == []
            assert store.max_queue_offset(b"T", 0) == 0
        async with Cluster(tmp_path, revive_interval_ms=100) as cluster:
            await others(cluster, 2)
            await delivered(cluster, 2)
            assert cluster.broker.store.stats.set_aside_messages == 0

    run_virtual(scene())
    assert "work failed" not in caplog.text
    assert caplog.text.count("message set aside") == len(TIMED) * 3 + 5 + 8
    assert not (tmp_path.parent / "x").exists()


@pytest.mark.parametrize("checked", [False, True])
def test_half_messages_with_impossible_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture, checked: bool) -> None:
    options = {"transaction_timeout_ms": 0, "transaction_check_interval_ms": 50} if checked else {}

    async def scene() -> None:
        async with Cluster(tmp_path, **options) as cluster:
            prepare(cluster)
            half = {"REAL_TOPIC": "T", "REAL_QID": "0", "PGROUP": "pg", "TRAN_MSG": "true"}
            for number, changes in enumerate(
                (
                    {"TRANSACTION_CHECK_TIMES": DIGITS},
                    {"TRANSACTION_CHECK_TIMES": "-1"},
                    {"TRAN_PREPARED_QUEUE_OFFSET": DIGITS},
                    {"TRAN_PREPARED_QUEUE_OFFSET": "\u0661"},
                    {"CHECK_IMMUNITY_TIME_IN_SECONDS": DIGITS},
                    {"REAL_TOPIC": "../../x"},
                    {"REAL_QID": DIGITS},
                    {"REAL_QID": ""},
                )
            ):
                put(cluster, "RMQ_SYS_TRANS_HALF_TOPIC", UNIQ_KEY=f"H{number}", **half | changes)
            put(cluster, "RMQ_SYS_TRANS_OP_HALF_TOPIC", f"{DIGITS},".encode(), TAGS="d")
            if checked:
                heartbeat = {"clientID": "me", "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": []}
                assert (await cluster.ask(34, body=json.dumps(heartbeat).encode())).code == 0
            await others(cluster, 1)
            await delivered(cluster, 1)
            if checked:
                given_up = b"TRANS_CHECK_MAX_TIME_TOPIC"
                keys = {key(cluster, given_up, at) for at in range(cluster.broker.store.max_queue_offset(given_up, 0))}
                assert keys >= {"H5", "H6", "H7"}
                assert cluster.broker.store.stats.set_aside_messages == 3
        async with Cluster(tmp_path, **options) as cluster:
            await others(cluster, 2)
            await delivered(cluster, 2)

    run_virtual(scene())
    assert "work failed" not in caplog.text


def test_a_value_with_a_separator_does_not_stop_pops_and_transactions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a copy of such a message could not be encoded: the popped messages of all groups stayed invisible."""

    async def scene() -> None:
        async with Cluster(tmp_path, revive_interval_ms=100) as cluster:
            prepare(cluster)
            text = "UNIQ_KEY\x01odd\x02a\x01b\x01c\x02"
            for topic, more in (("P", ""), ("T", "DELAY\x011\x02"), ("T", "TRAN_MSG\x01true\x02PGROUP\x01pg\x02")):
                command = single(text + more, topic)
                assert (await cluster.client.invoke(cluster.broker.address, command, 5000)).code == 0
            await asyncio.sleep(0.01)
            fields = {"consumerGroup": "cg", "topic": "P", "queueId": "0", "maxMsgNums": "1", "invisibleTime": "100"}
            fields |= {"pollTime": "0", "bornTime": str(SystemClock().wall_ms()), "initMode": "0"}
            assert (await cluster.ask(200050, fields)).code == 0
            back = {"offset": "0", "group": "cg", "delayLevel": "1", "maxReconsumeTimes": "16"}
            assert (await cluster.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
            await others(cluster, 1)
            await delivered(cluster, 1)
            retry = b"%RETRY%cg_P"
            assert {key(cluster, retry, at) for at in range(cluster.broker.store.max_queue_offset(retry, 0))} >= {"odd"}

    run_virtual(scene())
    assert "failed" not in caplog.text


def test_the_broker_s_own_records_are_neither_recalled_nor_sent_back(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, recall_message_enable=True) as cluster:
            prepare(cluster)
            name = cluster.broker.config.broker_name
            for topic in (REVIVE, "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
                handle = RecallHandle(topic, name, SystemClock().wall_ms() + 5000, "key").encode()
                assert (
                    await cluster.ask(370, {"topic": topic, "recallHandle": handle, "producerGroup": "p"})
                ).code == 17
            text = properties_text(UNIQ_KEY="secret", TRAN_MSG="true", PGROUP="pg")
            before = cluster.broker.store.max_offset
            assert (await cluster.client.invoke(cluster.broker.address, single(text), 5000)).code == 0
            back = {"offset": str(before), "group": "cg", "delayLevel": "-1"}
            answer = await cluster.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert (answer.code, answer.remark) == (1, f"look message by offset failed, {before}")

    run_virtual(scene())


def test_an_old_recall_of_another_topic_s_message_is_not_obeyed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            prepare(cluster)
            due = SystemClock().wall_ms() // 1000 * 1000 + 2000
            for unique_key, recalled in (("victim", "U+victim"), ("mine", "T+mine"), ("lost", "+lost")):
                topic = "T" if unique_key == "mine" else "U"
                text = properties_text(UNIQ_KEY=unique_key, TIMER_DELIVER_MS=str(due))
                assert (await cluster.client.invoke(cluster.broker.address, single(text, topic), 5000)).code == 0
                out = {
                    "TIMER_OUT_MS": str(due - 1000),
                    "REAL_TOPIC": "T",
                    "REAL_QID": "0",
                    "TIMER_DEL_UNIQKEY": recalled,
                }
                put(cluster, "rmq_sys_wheel_timer", UNIQ_KEY=f"recall {unique_key}", **out)
            await asyncio.sleep(4.5)
            store = cluster.broker.store
            assert {key(cluster, b"U", at) for at in range(store.max_queue_offset(b"U", 0))} == {"victim", "lost"}
            assert store.max_queue_offset(b"T", 0) == 0

    run_virtual(scene())


@pytest.mark.parametrize("properties", TIMED)
def test_places_to_which_no_waiting_message_goes(tmp_path: Path, properties: dict[str, str]) -> None:
    with pytest.raises(FormatError, match=r"expected a (topic in REAL_TOPIC|queue in REAL_QID)"):
        destination(properties, revives=True)


def test_places_to_which_waiting_messages_go() -> None:
    for topic in ("T", "%RETRY%g+T", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC", "x" * 255):
        assert destination({"REAL_TOPIC": topic, "REAL_QID": "65535"}) == (topic.encode(), 65_535)
    with pytest.raises(FormatError):
        destination({"REAL_TOPIC": "T", "REAL_QID": "65536"})
    assert destination({"REAL_TOPIC": REVIVE, "REAL_QID": "7"}, revives=True) == (REVIVE.encode(), 7)
    with pytest.raises(FormatError):
        destination({"REAL_TOPIC": REVIVE, "REAL_QID": "7"})


@pytest.mark.parametrize(
    ("topic", "queue_id"), [(b"../../x", 0), (b"..", 0), (b"a\\b", 0), (b"a\0", 0), (b"T", -1), (b"T", 1 << 40)]
)
def test_the_store_takes_no_message_for_an_impossible_place(tmp_path: Path, topic: bytes, queue_id: int) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            store = cluster.broker.store
            message = StoreMessage(topic, queue_id, b"body", b"", 0, store.store_host)
            assert store.put_message(message).status is PutMessageStatus.MESSAGE_ILLEGAL
            assert store.max_offset == 0

    run_virtual(scene())
