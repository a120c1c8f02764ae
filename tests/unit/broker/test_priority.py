"""Priority topics: the queue of a sent message, the order in which pops read the queues, and the attributes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, properties_text, run
from tests.kernels import kernel
from tests.unit.broker.stepped import STEP_MS, Asked, SteppedBroker
from tests.unit.broker.test_batch_queue import topic_fields
from tests.unit.broker.test_wake_ups import FOUND, SYSTEM_ERROR, bodies, pop, revive

from rucola.broker.pop.queue_walk import BEGINS
from rucola.common.columns import FrameColumn, SendTrait, new_table
from rucola.common.numbers import INT32_MAX
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.formats.message import decode_messages
from rucola.protocol import fastjson
from rucola.protocol.codes import RequestCode
from rucola.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2

NAME = "_SYS_MSG_PRIORITY_"
INVALID_PARAMETER = 29
BEGIN_LAST = BEGINS - 1
"""The start of a pop that does not read the retry topic first."""


def make_topic(broker: SteppedBroker, queues: int = 3, kind: str = "PRIORITY", topic: str = "P") -> None:
    fields = topic_fields(f"+message.type={kind}", topic) | {"readQueueNums": queues, "writeQueueNums": queues}
    assert broker.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == FOUND


def set_group(broker: SteppedBroker, attributes: dict[str, str]) -> Asked:
    body = fastjson.dumps(SubscriptionGroupConfig("cg", attributes=attributes).to_dict())
    return broker.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def factor(broker: SteppedBroker) -> int:
    return broker.broker.groups.table["cg"].priority_factor


def begin_at(broker: SteppedBroker, begin: int) -> None:
    broker.broker.services.random_below = lambda _: begin


def pop_all(broker: SteppedBroker, **changes: object) -> Asked:
    return pop(broker, topic="P", queueId=-1, **changes)


def popped(broker: SteppedBroker, count: int, **changes: object) -> list[bytes]:
    """Pops one message after another."""
    return [body for _ in range(count) for body in bodies(pop_all(broker, maxMsgNums=1, **changes))]


def queue_of(asked: Asked) -> int:
    assert asked.code == FOUND, asked.answer
    assert asked.answer is not None
    return int(asked.answer.ext_fields["queueId"])


def stored(broker: SteppedBroker, topic: str = "P") -> list[tuple[int, bytes, str | None]]:
    """Queue, body and priority of the messages of a topic."""
    store, found = broker.broker.store, list[tuple[int, bytes, str | None]]()
    store.dispatch()
    for queue_id in range(16):
        for queue_offset in range(store.max_queue_offset(topic.encode(), queue_id)):
            (view,) = store.get_message(topic.encode(), queue_id, queue_offset, 1, 1 << 20).views
            found += [(m.queue_id, m.body, m.properties.get(NAME)) for m in decode_messages(view)]
    return found


@pytest.fixture
def broker() -> SteppedBroker:
    broker = SteppedBroker()
    make_topic(broker)
    begin_at(broker, BEGIN_LAST)
    return broker


# -- the queue of a sent message ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PRIORITY", "NORMAL"])
@pytest.mark.parametrize(
    ("text", "queue_id"), [("0", 0), ("1", 1), ("+1", 1), ("2", 2), ("3", 2), ("007", 2), (str(INT32_MAX), 2)]
)
def test_the_priority_names_the_queue(broker: SteppedBroker, kind: str, text: str, queue_id: int) -> None:
    """The type of the topic does not count, as in RocketMQ."""
    make_topic(broker, kind=kind)
    for asked_queue in (0, 2, -1):
        assert queue_of(broker.send("P", b"m", asked_queue, **{NAME: text})) == queue_id
    assert stored(broker) == [(queue_id, b"m", text)] * 3


@pytest.mark.parametrize("text", ["x", "-1", "-0x1", "1.5", " 1", "1_0", "٣", str(INT32_MAX + 1), "9" * 2000])
def test_what_is_no_priority_has_no_effect(broker: SteppedBroker, text: str) -> None:
    assert queue_of(broker.send("P", b"m", 1, **{NAME: text})) == 1
    assert stored(broker) == [(1, b"m", text)]


def test_a_queue_that_does_not_exist_is_refused_all_the_same(broker: SteppedBroker) -> None:
    assert broker.send("P", b"m", 3, **{NAME: "1"}).code == INVALID_PARAMETER


@pytest.mark.parametrize(
    "properties",
    [
        {"__SHARDINGKEY": "k"},
        {"DELAY": "1"},
        {"TIMER_DELAY_MS": "1000"},
        {"TIMER_DELAY_SEC": "1"},
        {"TIMER_DELIVER_MS": "1700000001000"},
    ],
)
def test_messages_of_another_kind_lose_their_priority(broker: SteppedBroker, properties: dict[str, str]) -> None:
    assert queue_of(broker.send("P", b"m", 1, **{NAME: "2"}, **properties)) == 1
    for _ in range(40):
        broker.passes(100)
        broker.work()
    assert stored(broker) == [(1, b"m", None)]


def test_a_committed_message_lost_its_priority(broker: SteppedBroker) -> None:
    half = broker.half("P", b"m", 1, **{NAME: "2"})
    assert queue_of(half) == 1
    assert broker.end(half, 8).code == FOUND
    broker.turn(100)
    assert stored(broker) == [(1, b"m", None)]


def test_every_kind_of_send_knows_it(broker: SteppedBroker) -> None:
    text = properties_text(UNIQ_KEY="U", **{NAME: "2"})
    old = SendMessageRequestHeader("pg", "P", "TBW102", 1, 0, 0, 0, 0, text).to_ext_fields()
    assert queue_of(broker.request(RequestCode.SEND_MESSAGE, dict(old), b"old")) == 2
    new = SendMessageRequestHeaderV2("pg", "P", "TBW102", 1, 0, 0, 0, 0, f"{NAME}\x012\x02").to_ext_fields()
    assert queue_of(broker.request(RequestCode.SEND_MESSAGE_V2, dict(new), b"no key")) == 2
    assert [(queue_id, body) for queue_id, body, _ in stored(broker)] == [(2, b"old"), (2, b"no key")]


def test_a_batch_goes_to_its_queue(tmp_path: Path) -> None:
    """As in RocketMQ; however many of its messages have a priority."""
    text = f"{NAME}\x012".encode()
    members = 3000 * (struct.pack(">iiiii1sh", 23 + len(text), 0, 0, 0, 1, b"m", len(text)) + text)

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            sent = await cluster.send("P", members, properties_text(UNIQ_KEY="B"), 1, batch=True)
            assert (sent.code, sent.ext_fields["queueId"]) == (FOUND, "1")
            assert cluster.broker.store.max_queue_offset(b"P", 1) == 3000

    run(work())


def test_a_changed_number_of_queues_counts_at_once(broker: SteppedBroker) -> None:
    def sent() -> int:
        return queue_of(broker.send("P", b"m", 0, **{NAME: "9"}))

    assert sent() == 2
    make_topic(broker, 5)
    assert sent() == 4
    broker.broker.topics.update(TopicConfig("P", 8, 2, 6))
    assert sent() == 1
    broker.broker.topics.update(TopicConfig("P", 2, 0, 6))
    assert sent() == 0
    assert broker.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "P"}).code == FOUND
    make_topic(broker, 4, "NORMAL")
    assert sent() == 3
    broker.restart()
    assert sent() == 3


def test_the_kernel_finds_it(form: str) -> None:
    inspect = kernel("formats._send_cy", form).inspect_rows
    for name, trait in ((NAME, SendTrait.PRIORITY), (NAME[:-1] + "x", 0), (NAME + "_", 0), ("__RUCOLA_SENDER", 4)):
        text = f"UNIQ_KEY\x01U\x02{name}\x011\x02TAGS\x01t\x02".encode()
        source, table = bytearray(b"b" + text), new_table(1)
        table[FrameColumn.BODY_LEN] = 1
        table[FrameColumn.PROPERTIES_POS], table[FrameColumn.PROPERTIES_LEN] = 1, len(text)
        assert inspect(source, table, 0, 1, 10, 1) == trait, name
        assert table[FrameColumn.TRAITS] == trait


# -- the order of pops ------------------------------------------------------------------------------------------------


def fill(broker: SteppedBroker, queues: int, each: int = 1) -> None:
    for queue_id in range(queues):
        for _ in range(each):
            assert queue_of(broker.send("P", b"%d" % queue_id, 0, **{NAME: str(queue_id)})) == queue_id


@pytest.mark.parametrize("begin", [0, 1, 37, BEGIN_LAST])
def test_pops_read_the_highest_queue_first(broker: SteppedBroker, begin: int) -> None:
    begin_at(broker, begin)
    fill(broker, 3, 2)
    assert popped(broker, 6) == [b"2", b"2", b"1", b"1", b"0", b"0"]
    fill(broker, 3)
    assert bodies(pop_all(broker)) == [b"2", b"1", b"0"]
    fill(broker, 1)
    broker.send("P", b"urgent", 0, **{NAME: "1"})
    assert popped(broker, 2) == [b"urgent", b"0"], "empty queues are passed"


def test_a_waiting_pop_and_later_ones_get_the_highest_first(broker: SteppedBroker) -> None:
    waiting = pop(broker, 20_000, topic="P", queueId=-1, maxMsgNums=1)
    fill(broker, 3)
    broker.passes(STEP_MS)
    assert bodies(waiting) == [b"0"]
    assert popped(broker, 2) == [b"2", b"1"]


def test_queue_0_is_first_if_so_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, priority_order_asc=False)
    broker = SteppedBroker()
    make_topic(broker)
    fill(broker, 3)
    assert popped(broker, 3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, "NORMAL"), ({"order": "true", "attemptId": "a"}, "PRIORITY")],
    ids=["another type", "in order"],
)
def test_other_pops_begin_anywhere(broker: SteppedBroker, changes: dict[str, Any], kind: str) -> None:
    make_topic(broker, kind=kind)
    begin_at(broker, 31)
    fill(broker, 3)
    assert bodies(pop_all(broker, **changes)) == [b"1", b"2", b"0"]


def test_a_pop_of_one_queue_reads_this_queue(broker: SteppedBroker) -> None:
    fill(broker, 3)
    assert bodies(pop(broker, topic="P", queueId=1)) == [b"1"]


@pytest.mark.parametrize("value", ["0", "1", "50", "99", "100", None])
def test_the_factor_is_the_share_of_pops_by_priority(broker: SteppedBroker, value: str | None) -> None:
    assert set_group(broker, {} if value is None else {"+priority.factor": value}).code == FOUND
    walk = broker.broker.services.pops.get()._walk
    firsts = [next(iter(walk.places("P", "cg", -1, False, begin, lambda: True))) for begin in range(BEGINS)]
    share = 100 if value is None else int(value)
    assert [place == ("P", 2) for place in firsts[:share]] == [True] * share
    rotating = [place for begin, place in enumerate(firsts) if begin >= max(share, 20)]
    assert rotating == [("P", begin % 3) for begin in range(max(share, 20), BEGINS)]
    retry_first = [place for begin, place in enumerate(firsts) if share <= begin < 20]
    assert all(topic == "P" for topic, _ in retry_first), "the retry topic does not exist yet"


@pytest.mark.parametrize(("probability", "expected"), [(0, [b"2", b"1", b"0", b"again"]), (100, [b"again", b"2"])])
def test_messages_that_come_again_are_last_or_first(
    monkeypatch: pytest.MonkeyPatch, probability: int, expected: list[bytes]
) -> None:
    configure(monkeypatch, pop_from_retry_probability_for_priority=probability, pop_from_retry_probability=100)
    broker = SteppedBroker()
    make_topic(broker)
    broker.send("P", b"again", 0, **{NAME: "2"})
    assert popped(broker, 1, invisibleTime=1000) == [b"again"]
    for _ in range(4):
        broker.passes(1000)
        revive(broker)
    fill(broker, 3)
    assert popped(broker, len(expected)) == expected


def test_a_message_on_the_disk_is_not_overtaken(broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker, 3)
    store, paused = broker.broker.store, list[Callable[[], None]]()
    read = store.get_message

    def cold(topic: bytes, queue_id: int, *limits: Any, may_block: bool = True) -> Any:
        result = read(topic, queue_id, *limits, may_block=may_block)
        is_cold = queue_id == 2 and not may_block and not paused
        return replace(result, views=[], message_count=0, cold=lambda: None) if is_cold else result

    def start(_channel: object, _fetch: object, resume: Callable[[], None]) -> bool:
        paused.append(resume)
        return True

    monkeypatch.setattr(store, "get_message", cold)
    monkeypatch.setattr(broker.broker.services.cold_reads, "start", start)
    waiting = pop_all(broker, maxMsgNums=1)
    assert waiting.answer is None
    paused[0]()
    broker.passes(STEP_MS)
    assert bodies(waiting) == [b"2"]


@pytest.mark.parametrize("ends", [SteppedBroker.restart, SteppedBroker.kill])
def test_after_a_restart_the_order_is_the_same(ends: Callable[[SteppedBroker], None]) -> None:
    broker = SteppedBroker(True)
    make_topic(broker)
    assert set_group(broker, {"+priority.factor": "50"}).code == FOUND
    fill(broker, 3, 2)
    begin_at(broker, 49)
    assert popped(broker, 1) == [b"2"]
    broker.turn(10)
    ends(broker)
    assert factor(broker) == 50
    begin_at(broker, 49)
    assert popped(broker, 3) == [b"2", b"1", b"1"]
    begin_at(broker, 51)
    fill(broker, 3)
    assert popped(broker, 1) == [b"0"]


def test_a_topic_made_again_has_its_new_order(broker: SteppedBroker) -> None:
    fill(broker, 3)
    assert popped(broker, 1) == [b"2"]
    assert broker.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "P"}).code == FOUND
    make_topic(broker, 4, "NORMAL")
    begin_at(broker, 61)
    fill(broker, 4)
    assert bodies(pop_all(broker)) == [b"1", b"2", b"3", b"0"]
    make_topic(broker, 4, "PRIORITY")
    fill(broker, 4)
    assert bodies(pop_all(broker)) == [b"3", b"2", b"1", b"0"]


def test_queues_that_are_only_read_are_read_first(broker: SteppedBroker) -> None:
    fill(broker, 3)
    config = broker.broker.topics.get("P")
    assert config is not None
    broker.broker.topics.update(replace(config, write_queue_nums=2))
    assert queue_of(broker.send("P", b"new", 0, **{NAME: "2"})) == 1
    assert bodies(pop_all(broker)) == [b"2", b"1", b"new", b"0"]
    broker.broker.topics.update(replace(config, read_queue_nums=2, write_queue_nums=2))
    fill(broker, 2)
    assert bodies(pop_all(broker)) == [b"1", b"0"]


# -- attributes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["-1", "101", "1.5", "x", " 1", "9" * 2000])
def test_a_factor_out_of_range_is_refused(broker: SteppedBroker, value: str) -> None:
    assert set_group(broker, {"+priority.factor": "7"}).code == FOUND
    refused = set_group(broker, {"+priority.factor": value})
    assert refused.answer is not None
    assert (refused.code, refused.answer.remark) == (SYSTEM_ERROR, "value is not in range(0, 100)")
    assert factor(broker) == 7


def test_a_group_keeps_what_a_request_does_not_change(broker: SteppedBroker) -> None:
    assert set_group(broker, {"+priority.factor": "7"}).code == FOUND
    assert set_group(broker, {}).code == FOUND
    assert factor(broker) == 7
    assert set_group(broker, {"priority.factor": "7"}).code == FOUND
    assert set_group(broker, {"priority.factor": "8"}).code == FOUND
    assert factor(broker) == 8
    assert dict(broker.broker.groups.table["cg"].attributes) == {"priority.factor": "8"}
    assert set_group(broker, {"-priority.factor": ""}).code == FOUND
    assert (factor(broker), dict(broker.broker.groups.table["cg"].attributes)) == (100, {})


@pytest.mark.parametrize(
    ("attributes", "code", "remark"),
    [
        ({"+other": "1"}, 1, "unsupported key: other"),
        ({"-priority.factor": ""}, 1, "only add attribute is supported while creating group. key: priority.factor"),
        ({"+priority.factor": "1", "-priority.factor": ""}, 1, "key duplication: priority.factor"),
        ({"": "1"}, 29, "attribute change '+=1': +key=value or -key expected"),
        ({"+priority.factor": ""}, 29, "attribute change '+priority.factor=': +key=value or -key expected"),
    ],
)
def test_attributes_that_no_group_may_have(
    broker: SteppedBroker, attributes: dict[str, str], code: int, remark: str
) -> None:
    for request in (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    ):
        config = SubscriptionGroupConfig("new", attributes=attributes).to_dict()
        is_list = request == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        refused = broker.request(request, body=fastjson.dumps({"groupConfigList": [config]} if is_list else config))
        assert refused.answer is not None
        assert (refused.code, refused.answer.remark) == (code, remark)
    assert "new" not in broker.broker.groups.table


@pytest.mark.parametrize(("text", "value"), [("", 100), ("x", 100), ("500", 500), ("-3", -3)])
def test_a_factor_from_a_file_counts_as_in_rocketmq(text: str, value: int) -> None:
    assert SubscriptionGroupConfig("g", attributes={"priority.factor": text}).priority_factor == value


def configure(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Changes options of the brokers that are made from now on."""
    from tests.crash import broker_life

    monkeypatch.setattr(broker_life, "BROKER", replace(broker_life.BROKER, **options))
