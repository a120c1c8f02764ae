"""Sends to lite topics: what they become in the log, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.brokers import properties_text
from tests.unit.broker.lite.lite_broker import GROUP, PARENT, LiteBroker

from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.store.results import GetMessageStatus

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
