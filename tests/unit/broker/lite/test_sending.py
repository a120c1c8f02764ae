"""Sends to lite topics: what they become in the log, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.brokers import properties_text
from tests.unit.broker.lite.lite_broker import GROUP, PARENT, LiteBroker

from rucola.broker.lite.sending import LiteRows, LiteSends
from rucola.broker.retry_owner import records_of
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.errors import BrokerError
from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.store.config import FlushDiskType
from rucola.store.log.commit_log import CommitLog
from rucola.store.results import GetMessageStatus, PutMessageStatus
from rucola.store.row_run import RowRun

ILLEGAL = ResponseCode.MESSAGE_ILLEGAL


@pytest.fixture
def broker() -> LiteBroker:
    return LiteBroker()


def bodies(broker: LiteBroker, lite: str) -> list[bytes]:
    broker.broker.store.dispatch()
    result = broker.broker.store.get_message(f"%LMQ%${PARENT}${lite}".encode(), 0, 0, 32, 1 << 20)
    return [message.body for view in result.views for message in decode_messages(view)]


def test_a_message_is_in_its_lite_topic_and_in_the_parent(broker: LiteBroker) -> None:
    for number in range(3):
        answer = broker.send(PARENT, b"%d" % number, number, __LITE_TOPIC="session-1").answer
        assert answer is not None and answer.code == 0
        assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == (str(number), "0")
    assert broker.send(PARENT, b"other", __LITE_TOPIC="session-2").code == 0
    assert bodies(broker, "session-1") == [b"0", b"1", b"2"] and bodies(broker, "session-2") == [b"other"]
    assert broker.broker.store.max_queue_offset(PARENT.encode(), 0) == 2
    result = broker.broker.store.get_message(f"%LMQ%${PARENT}$session-1".encode(), 0, 1, 1, 1 << 20)
    assert result.status is GetMessageStatus.FOUND
    (message,) = decode_messages(result.views[0])
    assert message.topic == PARENT and message.queue_id == 1
    kept = {key: value for key, value in message.properties.items() if key[:3] in ("__L", "INN")}
    assert kept == {
        "__LITE_TOPIC": "session-1",
        "INNER_MULTI_DISPATCH": f"%LMQ%${PARENT}$session-1",
        "INNER_MULTI_QUEUE_OFFSET": "1",
    }


def test_many_requests_of_one_read_get_dense_offsets(broker: LiteBroker) -> None:
    """From several connections and to several queues of the parent, before anything is dispatched (#7511)."""
    connections = [broker.connection, broker.connect(), broker.connect()]
    for number in range(60):
        text = properties_text(UNIQ_KEY="U", __LITE_TOPIC=f"s{number % 2}")
        header = SendMessageRequestHeaderV2("pg", PARENT, "TBW102", 1, number % 4, 0, 1, 0, text)
        broker.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_fields(), b"%d" % number, connections[number % 3])
    for lite in range(2):
        assert bodies(broker, f"s{lite}") == [b"%d" % number for number in range(lite, 60, 2)][:32]
        assert broker.range(f"s{lite}") == (0, 30)
    broker.kill()
    assert broker.send_lite("s0").code == 0 and broker.range("s0") == (0, 31)


def send_together(broker: LiteBroker, texts: list[str]) -> list[int]:
    """Sends messages with these properties in one read; returns the codes of the answers."""
    frames = []
    for number, text in enumerate(texts, 1000):
        header = SendMessageRequestHeaderV2("pg", PARENT, "TBW102", 1, number % 4, 0, 1, 0, text)
        code = RequestCode.SEND_MESSAGE_V2
        frames.append(RemotingCommand(code, number, ext_fields=header.to_ext_fields(), body=b"%d" % number).encode())
    broker.connection.receive(b"".join(frames))
    broker.passes(100)
    return [broker.connection.answers[number].code for number in range(1000, 1000 + len(texts))]


def stored(broker: LiteBroker) -> list[bytes]:
    """All records of the parent, queue by queue."""
    broker.broker.store.dispatch()
    results = [broker.broker.store.get_message(PARENT.encode(), queue, 0, 32, 1 << 20) for queue in range(4)]
    return [bytes(record) for result in results for view in result.views for record in records_of(view)]


MIXED = [
    properties_text(**{"UNIQ_KEY": f"U{number}", "WAIT": "true", "__LITE_TOPIC": f"s{number % 3}"} | more)
    for number, more in enumerate([{}, {}, {}, {"own": "ü"}, {}, {"WAIT": "false"}, {}, {"TRACE_ON": "x"}, {}])
]


@pytest.mark.parametrize("end", ["\x02", ""])
def test_a_read_is_stored_as_its_requests_one_by_one(
    broker: LiteBroker, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    texts = [text.rstrip("\x02") + end for text in MIXED]
    assert send_together(broker, texts) == [0] * len(texts)
    one_by_one = LiteBroker()
    monkeypatch.setattr(LiteSends, "address_rows", lambda *_arguments, **_options: None)
    assert send_together(one_by_one, texts) == [0] * len(texts)
    assert len(stored(broker)) == len(texts)
    assert stored(broker) == stored(one_by_one)
    assert [broker.range(f"s{lite}") for lite in range(3)] == [(0, 3)] * 3
    broker.kill()
    assert broker.send_lite("s0").code == 0 and broker.range("s0") == (0, 4)


def test_a_refused_message_in_a_read_costs_only_itself(broker: LiteBroker) -> None:
    texts = [properties_text(UNIQ_KEY="U", __LITE_TOPIC=lite) for lite in ("a", "a", "a/b", "a", "b")]
    assert send_together(broker, texts) == [0, 0, ILLEGAL, 0, 0]
    assert (broker.range("a"), broker.range("b")) == ((0, 3), (0, 1))


def test_messages_that_the_store_refuses_take_no_offset(broker: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [properties_text(UNIQ_KEY="U", __LITE_TOPIC="a") for _ in range(4)]
    send_together(broker, [properties_text(UNIQ_KEY="U", __LITE_TOPIC="other") for _ in range(4)])
    append = CommitLog.append_rows

    def append_two(self: CommitLog, run: RowRun, *arguments: Any) -> int:
        self.refusal = PutMessageStatus.SERVICE_NOT_AVAILABLE
        return append(self, run._replace(last=2), *arguments) if run.first == 0 and run.last > 2 else run.first

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "append_rows", append_two)
        codes = send_together(broker, texts)
    assert codes == [0, 0] + [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert broker.send_lite("a").code == 0 and broker.range("a") == (0, 3)


def test_a_full_quota_of_new_names_refuses_only_these() -> None:
    broker = LiteBroker()
    made: list[int] = []

    def new_name() -> None:
        if len(made) == 2:
            raise BrokerError(ResponseCode.LMQ_QUOTA_EXCEEDED, "enough")
        made.append(1)

    running = broker.broker._running
    assert running is not None
    running.handler._send._rewriter.lite._new_name = new_name
    texts = [properties_text(UNIQ_KEY="U", __LITE_TOPIC=lite) for lite in ("a", "b", "a", "c", "b", "d", "a")]
    quota = ResponseCode.LMQ_QUOTA_EXCEEDED
    assert send_together(broker, texts) == [0, 0, 0, quota, 0, quota, 0]
    assert (broker.range("a"), broker.range("b"), len(made)) == ((0, 3), (0, 2), 2)


@pytest.mark.parametrize(("kind", "no_wait"), [("ASYNC_FLUSH", True), ("SYNC_FLUSH", False)])
def test_who_does_not_wait_for_the_disk_goes_alone(monkeypatch: pytest.MonkeyPatch, kind: str, no_wait: bool) -> None:
    asked = []
    address_rows = LiteSends.address_rows

    def noted(self: LiteSends, run: RowRun, parent: TopicConfig, no_wait: bool) -> LiteRows | None:
        asked.append(no_wait)
        return address_rows(self, run, parent, no_wait)

    monkeypatch.setattr(LiteSends, "address_rows", noted)
    broker = LiteBroker({"flush_disk_type": FlushDiskType(kind)})
    assert send_together(broker, MIXED) == [0] * len(MIXED)
    assert set(asked) == {no_wait}
    assert [broker.range(f"s{lite}") for lite in range(3)] == [(0, 3)] * 3


def test_a_parent_that_wants_keys(broker: LiteBroker) -> None:
    broker.parent(PARENT, cleanup_policy="COMPACTION")
    texts = [properties_text(UNIQ_KEY="U", __LITE_TOPIC="a", **more) for more in ({}, {"KEYS": "k"})]
    assert send_together(broker, texts) == [ILLEGAL, 0]


def test_dead_letters_of_a_read_enter_no_lite_topic(broker: LiteBroker) -> None:
    broker.parent("%DLQ%readers")
    assert broker.send_lite("s", topic="%DLQ%readers").code == 0
    broker.broker.store.dispatch()
    (record,) = broker.broker.store.get_message(b"%DLQ%readers", 0, 0, 32, 1 << 20).views
    assert b"__LITE_TOPIC" in bytes(record) and b"INNER_MULTI" not in bytes(record)
    assert broker.topics.parents() == {}


@pytest.mark.parametrize("lite", ["", " ", "a/b", "..", "a$b", "a.b", "ü", "x" * 65, "a b", "%LMQ%", "a\\b", "a,b"])
def test_a_name_that_is_none(broker: LiteBroker, lite: str) -> None:
    before = set(broker.disk.names)
    asked = broker.send_lite(lite)
    if lite:  # a property without a value is no property
        assert asked.code == ILLEGAL
        assert asked.answer is not None and "must be 1 to 64" in (asked.answer.remark or "")
    assert broker.topics.names.positions == type(broker.topics.names.positions)("I")
    assert {name for name in broker.disk.names if name not in before and "LMQ" in name} == set()
    assert broker.send_lite("x" * 64).code == 0


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "1"},
        {"TIMER_DELIVER_MS": "1700000009000"},
        {"TIMER_DELAY_SEC": "1"},
        {"__SHARDINGKEY": "k"},
        {"_SYS_MSG_PRIORITY_": "1"},
        {"TRAN_MSG": "true", "PGROUP": "pg"},
        {"INNER_MULTI_DISPATCH": f"%LMQ%${PARENT}$other"},
        {"INNER_MULTI_QUEUE_OFFSET": "7"},
    ],
    ids=lambda properties: next(iter(properties)),
)
def test_what_no_message_to_a_lite_topic_can_be(broker: LiteBroker, properties: dict[str, str]) -> None:
    asked = broker.send_lite("s", **properties)
    assert asked.code == ILLEGAL and asked.answer is not None
    assert next(iter(properties)) in (asked.answer.remark or "") or "transaction" in (asked.answer.remark or "")
    assert broker.topics.parents() == {}


@pytest.mark.parametrize("kind", [None, "NORMAL", "FIFO"])
def test_a_topic_of_another_type(broker: LiteBroker, kind: str | None) -> None:
    attributes = {} if kind is None else {MESSAGE_TYPE: kind}
    broker.broker.topics.update_all([TopicConfig("Plain", 1, 1, attributes=attributes)])
    asked = broker.send_lite("s", topic="Plain")
    assert asked.code == ILLEGAL and asked.answer is not None
    assert f"Plain has message.type={kind or 'NORMAL'}" in (asked.answer.remark or "")


def test_a_broker_without_lite_topics() -> None:
    broker = LiteBroker({"enable_multi_dispatch": False})
    asked = broker.send_lite("s")
    assert asked.code == ILLEGAL and asked.answer is not None and "enableMultiDispatch" in (asked.answer.remark or "")
    assert broker.send(PARENT).code == 0


def test_a_batch(broker: LiteBroker) -> None:
    text = properties_text(UNIQ_KEY="U", __LITE_TOPIC="s").encode()
    member = (4 + 4 + 4 + 4 + 4 + 4 + 2 + len(text)).to_bytes(4, "big") + bytes(12)
    member += (4).to_bytes(4, "big") + b"body" + len(text).to_bytes(2, "big") + text
    plain = SendMessageRequestHeaderV2("pg", PARENT, "TBW102", 1, 0, 0, 1, 0, properties_text(UNIQ_KEY="U"))
    for header in (plain, replace(plain, properties=text.decode())):
        fields = replace(header, batch=True).to_ext_fields()
        asked = broker.request(RequestCode.SEND_BATCH_MESSAGE, fields, member)
        assert asked.code == ILLEGAL and asked.answer is not None and "batch" in (asked.answer.remark or "")


@pytest.mark.parametrize("topic", [f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"])
def test_retries_and_dead_letters_keep_the_name_and_enter_no_lite_topic(broker: LiteBroker, topic: str) -> None:
    broker.broker.topics.create_for_group(topic, 1)
    assert broker.send_lite("s").code == 0
    assert broker.send_lite("s", topic=topic).code == 0
    assert broker.range("s") == (0, 1)
    broker.broker.store.dispatch()
    result = broker.broker.store.get_message(topic.encode(), 0, 0, 1, 1 << 20)
    (message,) = decode_messages(result.views[0])
    assert message.properties["__LITE_TOPIC"] == "s" and "INNER_MULTI_DISPATCH" not in message.properties


def test_dead_letters_of_rocketmq_enter_no_lite_topic(broker: LiteBroker) -> None:
    """They still have the light queue and the offset of their message; the lite topic would begin there again."""
    from tests.unit.store.stores import message

    for _ in range(3):
        assert broker.send_lite("s").code == 0
    sent = message(1, b"%DLQ%readers")
    sent.properties += f"INNER_MULTI_DISPATCH\x01%LMQ%${PARENT}$s\x02INNER_MULTI_QUEUE_OFFSET\x010\x02".encode()
    broker.broker.store.put_message(sent)
    broker.broker.store.dispatch()
    assert broker.range("s") == (0, 3)
    broker.kill()
    assert broker.range("s") == (0, 3)


def test_the_quota_refuses_new_names_only() -> None:
    broker = LiteBroker(enable_lmq_quota=True, max_lmq_consume_queue_num=2)
    assert [broker.send_lite(lite).code for lite in ("a", "b", "a")] == [0, 0, 0]
    asked = broker.send_lite("c")
    assert asked.code == ResponseCode.LMQ_QUOTA_EXCEEDED and asked.answer is not None
    assert asked.answer.remark == "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded."
    broker.broker.store.dispatch()
    broker.broker.store.delete_lite([f"{PARENT}$a".encode()])
    broker.keep()
    broker.broker.store.dispatch()
    assert [broker.send_lite(lite).code for lite in ("c", "a", "b")] == [0, ResponseCode.LMQ_QUOTA_EXCEEDED, 0]


def test_an_account_makes_so_many_in_an_hour() -> None:
    broker: Any = LiteBroker(new_lite_topics_per_account_max=3600)
    from rucola.broker.acl.lite_name_quota import LiteNameQuota
    from rucola.errors import BrokerError

    quota = LiteNameQuota(broker.broker.config, broker.clock.monotonic)
    for _ in range(3600):
        quota.take("alice")
    with pytest.raises(BrokerError, match="limit of 3600 new ones in an hour") as caught:
        quota.take("alice")
    assert caught.value.code == ResponseCode.LMQ_QUOTA_EXCEEDED
    quota.take("bob")
    quota.take("")
    broker.clock.advance(2000)
    quota.take("alice")
    quota.take("alice")
    with pytest.raises(BrokerError):
        quota.take("alice")
