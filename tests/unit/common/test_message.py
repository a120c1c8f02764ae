"""Messages as the application makes them: what is refused, what is forwarded, and how it shows itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rucola.common import message_const
from rucola.common.message import Message, MessageExt, SystemMessage
from rucola.common.message_queue import MessageQueue
from rucola.common.system_properties import (
    NOT_FORWARDED,
    RESERVED,
    SYSTEM_PROPERTIES,
    PropertyRole,
    application_properties,
    refuse_reserved,
)
from rucola.errors import ClientError

RECEIVED = {
    "h": "1",
    "TAGS": "A",
    "KEYS": "k1 k2",
    "__SHARDINGKEY": "s",
    "UNIQ_KEY": "7F000001",
    "WAIT": "false",
    "DELAY": "3",
    "TRAN_MSG": "true",
    "REAL_TOPIC": "U",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
    "CLUSTER": "C",
    "MIN_OFFSET": "0",
    "MAX_OFFSET": "9",
    "__CRC32#": "12",
}


def received(properties: dict[str, str], body: bytes = b"body") -> MessageExt:
    return MessageExt(
        "T",
        body,
        flag=0,
        properties=properties,
        queue_id=3,
        queue_offset=2,
        physical_offset=176,
        store_size=3,
        body_crc=0,
        sys_flag=0,
        born_timestamp_ms=4,
        born_host=bytes(8),
        store_timestamp_ms=6,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_transaction_offset=0,
        broker_name="broker-a",
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"keys": 5}, "keys must be a str, or several .*not 5"),
        ({"keys": 0}, "keys must be a str"),
        ({"keys": b"order"}, "keys must be a str.*b'order'"),
        ({"keys": ["a", 2]}, "keys must be a str.*: 2"),
        ({"keys": ["a", ""]}, "neither empty nor contain a space"),
        ({"keys": ["order 1"]}, "neither empty nor contain a space.*: 'order 1'"),
        ({"flag": 1.5}, "flag must be a whole number, not 1.5"),
        ({"flag": 0.0}, "flag must be a whole number"),
        ({"flag": "1"}, "flag must be a whole number"),
        ({"flag": True}, "flag must be a whole number"),
        ({"tags": "A||B"}, r"tags must be one tag.*'\|\|'.*not 'A\|\|B'"),
        ({"tags": 3}, "tags must be one tag.*not 3"),
        ({"tags": 0}, "tags must be one tag"),
        ({"tags": b"A"}, "tags must be one tag"),
        ({"delay_level": 99}, r"delay_level must be 0 \(no delay\) to 18, not 99"),
        ({"delay_level": -1}, "delay_level must be 0"),
        ({"delay_level": "3"}, "delay_level must be a whole number, not '3'"),
        ({"delay_level": True}, "delay_level must be a whole number"),
        ({"delay_level": 2.5}, "delay_level must be a whole number"),
        ({"sharding_key": ""}, "sharding_key must be a str that is not empty"),
        ({"sharding_key": 7}, "sharding_key must be a str .*not 7"),
        ({"deliver_at": datetime(1969, 12, 31, tzinfo=UTC)}, "deliver_at must not be before 1970"),
        ({"properties": 5}, "properties must map names to texts, not 5"),
        ({"properties": ["a"]}, "properties must map names to texts"),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused_when_the_message_is_made(
    arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ClientError, match=problem):
        Message("T", b"x", **arguments)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("tags", "A||B", "tags must be one tag"),
        ("keys", ["a b"], "keys must be"),
        ("keys", 4, "keys must be"),
        ("delay_level", 19, "delay_level must be"),
        ("sharding_key", "", "sharding_key must be"),
    ],
)
def test_a_field_checks_a_value_that_is_set_later(name: str, value: object, problem: str) -> None:
    message = Message("T", b"x")
    with pytest.raises(ClientError, match=problem):
        setattr(message, name, value)
    assert message.properties == {}


def test_empty_tags_and_keys_mean_none() -> None:
    assert Message("T", b"x", tags="", keys="").properties == {}
    assert Message("T", b"x", keys=[]).properties == {}
    message = Message("T", b"x", tags="A", keys=("k1", "k2"), delay_level=18)
    assert message.properties == {"TAGS": "A", "KEYS": "k1 k2", "DELAY": "18"}
    message.tags, message.keys, message.delay_level = "", [], 0
    assert message.properties == {}


def test_a_broker_with_more_levels_takes_them_as_a_property() -> None:
    assert Message("T", b"x", properties={"DELAY": "25"}).delay_level == 25


@pytest.mark.parametrize("marks", [("MIN_OFFSET", "MAX_OFFSET"), ("MSG_REGION", "TRACE_ON"), ("__CRC32#",)])
def test_properties_that_were_read_from_a_broker_are_forwarded_without_the_systems(marks: tuple[str, ...]) -> None:
    kept = {"h": "1", "TAGS": "A", "KEYS": "k1 k2", "__SHARDINGKEY": "s"}
    marked = {"MIN_OFFSET", "MAX_OFFSET", "MSG_REGION", "TRACE_ON", "__CRC32#"}
    own = {name: value for name, value in RECEIVED.items() if name not in marked}
    assert Message("U", b"x", properties=own).properties == own
    assert Message("U", b"x", properties=own | dict.fromkeys(marks, "1")).properties == kept
    assert Message("U", b"x", delay_level=2, properties=RECEIVED | {"hop": "2"}).properties == kept | {
        "hop": "2",
        "DELAY": "2",
    }


def test_other_properties_are_taken_as_they_are() -> None:
    """The producer refuses reserved names; without a broker's marks nothing is left out silently."""
    given = {"TTL": "60", "MSG_REGION": "eu", "MIN_OFFSET": "1", "h": "1"}
    assert Message("T", b"x", properties=given).properties == given


def test_messages_of_the_system_and_stored_messages_keep_all_properties() -> None:
    assert SystemMessage("T", b"x", properties=RECEIVED).properties == RECEIVED
    assert received(RECEIVED).properties == RECEIVED


def test_user_properties_are_those_of_the_application() -> None:
    assert received(RECEIVED).user_properties == {"h": "1"}
    assert Message("T", b"x", "A", "k", delay_level=1, properties={"h": "1"}).user_properties == {"h": "1"}


def test_the_queue_of_a_stored_message() -> None:
    assert received({}).message_queue == MessageQueue("T", "broker-a", 3)


def test_a_repr_says_when_it_cuts_the_body() -> None:
    for make in (lambda body: Message("T", body), lambda body: received({}, body)):
        assert f"body={bytes(32)!r}," in repr(make(bytes(32)))
        assert f"body={bytes(32)!r}... (50 bytes)," in repr(make(bytes(50)))


def test_every_property_of_the_system_has_a_role_and_a_meaning() -> None:
    names = {value for name, value in vars(message_const).items() if name.isupper() and isinstance(value, str)}
    names -= {message_const.PROPERTY_SEPARATOR, message_const.KEY_SEPARATOR}
    assert names | message_const.DELAYING <= set(SYSTEM_PROPERTIES)
    content = {name for name, own in SYSTEM_PROPERTIES.items() if own.role is PropertyRole.CONTENT}
    assert content == {"TAGS", "KEYS", "__SHARDINGKEY"} == set(SYSTEM_PROPERTIES) - NOT_FORWARDED
    assert application_properties(dict.fromkeys(SYSTEM_PROPERTIES, "x")) == {}
    for name in SYSTEM_PROPERTIES:
        if name in RESERVED:
            with pytest.raises(ClientError, match=r"is used by the system: it .*; an application must use"):
                refuse_reserved({"h": "1", name: "x"})
        else:
            refuse_reserved({"h": "1", name: "x"})


def test_reserved_names_of_java_are_in_the_table() -> None:
    """The names that ``Message#putUserProperty`` of RocketMQ 5.3.3 refuses."""
    java = """
        TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET
        MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY
        MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET
        DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME
        CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS
        TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST
        BORN_TIMESTAMP
    """
    assert set(java.split()) <= set(SYSTEM_PROPERTIES)
