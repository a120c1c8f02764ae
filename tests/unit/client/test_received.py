"""Messages whose attributes are decoded when they are first read."""

from __future__ import annotations

import copy
import pickle
import zlib

import pytest
from tests.unit.client.consuming import messages, record

from rucola.client.message_selector import MessageSelector
from rucola.client.received import PullOrigin, ReceivedMessage
from rucola.client.subscription import selected, subscription_data
from rucola.common.message import MessageExt
from rucola.errors import ClientError, FormatError, UnreadableBodyError
from rucola.formats import compression
from rucola.formats.message import decode_message

ORIGIN = PullOrigin("broker-a", 2, 9)
ATTRIBUTES = [name for slots in (MessageExt.__slots__, ("topic", "body", "flag")) for name in slots]


@pytest.mark.parametrize("name", [*ATTRIBUTES, "tags", "keys", "uniq_key", "msg_id", "offset_msg_id", "delay_level"])
def test_every_attribute_is_that_of_the_plain_road(name):
    stored = record(3, b"three", TAGS="A", KEYS="k l", DELAY="4")
    (message,) = ReceivedMessage.of_records(stored, ORIGIN)
    plain = decode_message(stored)
    plain.broker_name = "broker-a"
    assert getattr(message, name) == getattr(plain, name)


def test_properties_know_the_ends_of_the_queue():
    (message,) = ReceivedMessage.of_records(record(3, TAGS="A"), ORIGIN)
    assert message.properties == {"UNIQ_KEY": "U3", "TAGS": "A", "MIN_OFFSET": "2", "MAX_OFFSET": "9"}


def test_attributes_can_be_set_and_stay():
    (message,) = ReceivedMessage.of_records(record(3), ORIGIN)
    message.topic, message.reconsume_times = "U", 4
    message.tags = "B"
    assert (message.topic, message.reconsume_times, message.tags) == ("U", 4, "B")
    assert message.body is message.body


def test_other_names_are_no_attributes():
    (message,) = ReceivedMessage.of_records(record(3), ORIGIN)
    with pytest.raises(AttributeError, match="'ReceivedMessage' object has no attribute 'bodie'"):
        _ = message.bodie


def test_messages_can_be_copied_and_pickled():
    (message,) = ReceivedMessage.of_records(record(3, b"three"), ORIGIN)
    for twin in (copy.copy(message), pickle.loads(pickle.dumps(message))):
        assert (twin.body, twin.queue_offset, twin.topic) == (b"three", 3, "T")


def test_a_message_of_a_transaction_has_its_id():
    (plain,) = ReceivedMessage.of_records(record(1), ORIGIN)
    (committed,) = ReceivedMessage.of_records(record(1, sys_flag=8), ORIGIN)
    assert isinstance(plain, ReceivedMessage)
    assert isinstance(committed, ReceivedMessage)
    assert (plain.transaction_id, committed.transaction_id) == (None, "U1")


def test_bodies_are_unpacked(caplog):
    (message,) = ReceivedMessage.of_records(record(1, zlib.compress(b"long"), sys_flag=1), ORIGIN)
    assert message.body == b"long"


PACKED = zlib.compress(b"long" * 100)
UNREADABLE = {
    "no zlib": (b"no zlib", 1, "zlib data"),
    "torn": (PACKED[: len(PACKED) // 2], 1, "a truncated one"),
    "empty": (b"", 1, ""),
    "unknown type": (b"x", 1 | 4 << 8, "type 4"),
    "no package": (b"x", 1 | 1 << 8, "pip install"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_body_that_cannot_be_unpacked_raises_whenever_it_is_read(case, monkeypatch):
    stored, sys_flag, text = UNREADABLE[case]
    monkeypatch.setattr(compression, "_package", lambda kind: None)
    (message,) = ReceivedMessage.of_records(record(7, stored, sys_flag=sys_flag), ORIGIN)
    for _ in range(2):
        with pytest.raises(UnreadableBodyError, match=r"body of message 7 of T, queue 1: .*") as unreadable:
            message.body  # noqa: B018
        assert text in unreadable.value.reason
        assert isinstance(unreadable.value, FormatError)
        twin = pickle.loads(pickle.dumps(unreadable.value))
        assert (str(twin), twin.topic, twin.queue_id, twin.queue_offset) == (str(unreadable.value), "T", 1, 7)
    assert (message.topic, message.queue_offset, message.msg_id, message.keys) == ("T", 7, "U7", None)
    assert f"body=<{unreadable.value.reason}>" in repr(message)
    assert "queue_offset=7" in repr(message)
    message.body = b"from elsewhere"
    assert message.body == b"from elsewhere"
    assert "from elsewhere" in repr(message)


def test_many_records_of_one_answer():
    count = 150  # more records than one table holds
    found = ReceivedMessage.of_records(b"".join(record(n, b"%d" % n) for n in range(count)), ORIGIN)
    assert [(message.queue_offset, message.body) for message in found] == [(n, b"%d" % n) for n in range(count)]


@pytest.mark.parametrize("damage", [lambda stored: stored[:-1], lambda stored: stored[:90] + b"\xff" + stored[91:]])
def test_damaged_records_are_no_messages(damage):
    with pytest.raises(FormatError):
        ReceivedMessage.of_records(record(1) + damage(record(2, b"x" * 40)), ORIGIN)


def test_tags_with_equal_hashes_are_told_apart():
    found = messages(1, TAGS="AaAa") + messages(2, TAGS="BBBB") + messages(3)
    assert [one.queue_offset for one in selected(found, subscription_data("T", "BBBB || C", 1))] == [2]
    assert [one.queue_offset for one in selected(found, subscription_data("T", "*", 1))] == [1, 2, 3]
    assert len(selected(found, subscription_data("T", MessageSelector.by_sql("a > 1"), 1))) == 3


def test_subscriptions_as_brokers_get_them():
    tags = subscription_data("T", "TagA || TagB", 7)
    assert (tags.sub_string, tags.tags_set, tags.expression_type) == ("TagA || TagB", {"TagA", "TagB"}, "TAG")
    assert tags.code_set == {2598919, 2598920}
    sql = subscription_data("T", MessageSelector.by_sql("a > 1"), 7)
    assert (sql.sub_string, sql.tags_set, sql.expression_type, sql.sub_version) == ("a > 1", frozenset(), "SQL92", 7)
    assert subscription_data("T", "*", 1).code_set == frozenset()
    for selector in (" || ", "a > 1", 5):
        with pytest.raises(ClientError):
            subscription_data("T", selector, 1)
