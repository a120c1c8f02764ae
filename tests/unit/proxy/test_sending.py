"""The checks of a send in their order and at their borders, and what is stored of a message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rucola.common.message_const import SHARDING_KEY
from rucola.formats.properties import decode_properties
from rucola.proxy import messages
from rucola.proxy.message_kind import MessageKind, check_kind
from rucola.proxy.property_keys import RESERVED_KEYS, TRACE_CONTEXT
from rucola.proxy.refusal import RefusedError
from rucola.proxy.sending import Arrival, SentMessage, read_request

NOW = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
ARRIVAL = Arrival(NOW, "10.0.0.7", 1000)
PLAIN = b"UNIQ_KEY\1id\2RECONSUME_TIME\0010\2PGROUP\1t\2__BORNHOST\1h\2BORN_TIMESTAMP\0017000\2"


def message(body: bytes = b"x", topic: str = "t", user: dict[str, str] | None = None, **system: object):
    """A message that passes every check, with changes."""
    fields = {"message_id": "id", "message_type": messages.NORMAL, "born_host": "h", "born_timestamp": {"seconds": 7}}
    properties = messages.SystemProperties(**(fields | system))
    resource = messages.Resource(name=topic)
    return messages.Message(topic=resource, user_properties=user or {}, system_properties=properties, body=body)


def read(*sent: object, arrival: Arrival = ARRIVAL) -> list[SentMessage]:
    return read_request(messages.SendMessageRequest(messages=sent), arrival)


def stored(*args: object, **system: object) -> dict[str, str]:
    return decode_properties(read(message(*args, **system))[0].properties)


def code_of(*sent: object) -> int:
    with pytest.raises(RefusedError) as refused:
        read(*sent)
    assert refused.value.text
    return refused.value.code


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_a_plain_message():
    assert read(message()) == [
        SentMessage("t", b"x", PLAIN, 0, 7000, "id", None, None, MessageKind.NORMAL, None, None, 0),
    ]


def test_every_property_has_its_place():
    (sent,) = read(
        message(
            user={"zoo": "1", "a b": "Zürich", "Z": "3"},
            tag="TagA",
            keys=["k1", "k2"],
            message_group="group",
            trace_context="00-1-2-03",
            delivery_attempt=4,
            born_timestamp={"seconds": 1_700_000_000, "nanos": 123_999_999},
            queue_id=5,
            body_encoding=messages.IDENTITY,
        )
    )
    assert sent.properties == (
        b"TAGS\1TagA\2KEYS\1k1 k2\2UNIQ_KEY\1id\2RECONSUME_TIME\0014\2PGROUP\1t\2__SHARDINGKEY\1group\2"
        b"TRACE_CONTEXT\00100-1-2-03\2__BORNHOST\1h\2BORN_TIMESTAMP\0011700000000123\2"
        b"Z\0013\2a b\1Z\xc3\xbcrich\2zoo\0011\2"
    )
    assert (sent.message_group, sent.born_timestamp_ms) == ("group", 1_700_000_000_123)


@pytest.mark.parametrize(("encoding", "flag"), [(0, 0), (messages.IDENTITY, 0), (messages.GZIP, 1), (9, 0)])
def test_the_encoding_of_the_body_is_a_flag(encoding, flag):
    assert read(message(body_encoding=encoding))[0].sys_flag == flag


def test_the_host_of_the_connection_is_stored_if_the_message_names_none():
    for blank in ("", " ", "\u2003"):
        assert stored(born_host=blank)["__BORNHOST"] == "10.0.0.7"
    no_host = read(message(born_host=""), arrival=Arrival(NOW))[0]
    assert "__BORNHOST" not in decode_properties(no_host.properties)


@pytest.mark.parametrize(
    ("born", "born_ms", "written"),
    [
        ({}, 0, "0"),
        ({"seconds": 253402300799, "nanos": 999_999_999}, 253402300799999, "253402300799999"),
        ({"seconds": 253402300800}, NOW, None),
        ({"nanos": 1_000_000_000}, NOW, None),
        ({"nanos": -1}, NOW, None),
        ({"seconds": -1, "nanos": 999_000_000}, -1, "-1"),
        ({"seconds": -62135596800}, -62135596800000, "-62135596800000"),
        ({"seconds": -62135596801}, NOW, None),
        (None, NOW, None),
    ],
)
def test_the_born_time(born, born_ms, written):
    sent = read(message(born_timestamp=born))[0]
    assert (sent.born_timestamp_ms, decode_properties(sent.properties).get("BORN_TIMESTAMP")) == (born_ms, written)


def test_what_has_no_value_is_left_out():
    own = stored(user={"": "v", "k": "", "ok": " "}, tag="", keys=["", "a", ""], message_group="", trace_context="")
    assert own == decode_properties(PLAIN) | {"KEYS": "a", "ok": " "}


def test_what_the_system_sets_wins_over_a_user_property():
    own = stored(user={SHARDING_KEY: "user", TRACE_CONTEXT: "user"}, message_group="g", trace_context="c")
    assert (own[SHARDING_KEY], own[TRACE_CONTEXT]) == ("g", "c")


@pytest.mark.parametrize(("topic", "times"), [("t", 0), ("%RETRY%g", 3), ("%DLQ%g", 0)])
def test_deliveries_are_counted_on_in_retry_topics(topic, times):
    assert read(message(topic=topic, delivery_attempt=3))[0].reconsume_times == times


# -- kinds -------------------------------------------------------------------------------------------------------------

DELAYED = {"delivery_timestamp": {"seconds": NOW // 1000 + 5, "nanos": 7_000_000}}


@pytest.mark.parametrize(
    ("system", "kind"),
    [
        ({}, MessageKind.NORMAL),
        ({"message_type": 0}, MessageKind.NORMAL),
        ({"message_type": messages.FIFO}, MessageKind.NORMAL),
        ({"message_type": messages.NORMAL, "message_group": "g"}, MessageKind.FIFO),
        ({"priority": 0}, MessageKind.PRIORITY),
        ({"priority": -1}, MessageKind.NORMAL),
        ({"priority": 1, "message_group": "g"}, MessageKind.FIFO),
        ({"message_group": "g"} | DELAYED, MessageKind.DELAY),
        ({"priority": 1} | DELAYED, MessageKind.DELAY),
        ({"message_type": messages.TRANSACTION, "message_group": "g"} | DELAYED, MessageKind.TRANSACTION),
    ],
)
def test_the_properties_decide_the_kind(system, kind):
    assert read(message(**system))[0].kind is kind


def test_a_user_property_can_make_a_message_fifo():
    sent = read(message(user={SHARDING_KEY: "g"}))[0]
    assert (sent.kind, sent.message_group) == (MessageKind.FIFO, None)


def test_a_transaction():
    sent = read(message(message_type=messages.TRANSACTION, body_encoding=messages.GZIP))[0]
    assert sent.sys_flag == 5
    own = decode_properties(sent.properties)
    assert own["TRAN_MSG"] == "true"
    assert "CHECK_IMMUNITY_TIME_IN_SECONDS" not in own
    own = stored(message_type=messages.TRANSACTION, orphaned_transaction_recovery_duration={"seconds": 30})
    assert own["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"


def test_only_a_transaction_has_a_recovery_time():
    own = stored(orphaned_transaction_recovery_duration={"seconds": 99999})
    assert own == decode_properties(PLAIN)


def test_a_delay():
    sent = read(message(**DELAYED))[0]
    assert sent.deliver_ms == NOW + 5007
    assert decode_properties(sent.properties)["TIMER_DELIVER_MS"] == str(NOW + 5007)


def test_a_priority():
    sent = read(message(priority=7))[0]
    assert sent.priority == 7
    assert decode_properties(sent.properties)["_SYS_MSG_PRIORITY_"] == "7"
    assert read(message(priority=-1))[0].priority is None


KINDS = [kind.value for kind in MessageKind]


@pytest.mark.few
@pytest.mark.parametrize("kind", MessageKind)
@pytest.mark.parametrize("expected", [*KINDS, "MIXED", "UNSPECIFIED", "normal", None])
def test_the_kind_must_be_that_of_the_topic(kind, expected):
    attributes = {} if expected is None else {"message.type": expected}
    if expected in ("MIXED", kind.value) or (expected is None and kind is MessageKind.NORMAL):
        check_kind("t", kind, attributes)
    else:
        with pytest.raises(RefusedError, match="topic t takes") as refused:
            check_kind("t", kind, attributes)
        assert refused.value.code == messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE == 40014
    check_kind("%RETRY%t", kind, attributes)
    check_kind("%DLQ%t", kind, attributes)


# -- borders of the checks ---------------------------------------------------------------------------------------------


def user_of(size: int) -> dict[str, str]:
    """Three user properties with ``size`` bytes in all."""
    return {"k": "v" * (size - 9), "kk": "ü", "kkk": "v"}


def delivery(after_ms: int) -> dict[str, int]:
    return {"seconds": (NOW + after_ms) // 1000, "nanos": (NOW + after_ms) % 1000 * 1_000_000}


RECOVERY = "orphaned_transaction_recovery_duration"
FINE = {
    "one byte of body": message(b"x"),
    "a body one below the limit": message(b"x" * 999),
    "a body of the limit": message(b"x" * 1000),
    "127 properties": message(user={str(number): "v" for number in range(127)}),
    "128 properties": message(user={str(number): "v" for number in range(128)}),
    "no control": message(user={"k\x20\x7e\xa0": "v\x20\x7e\xa0"}, tag="\x21\xa0\x7e", keys=["\x21\xa0\x7e"]),
    "a key like a reserved one": message(user={"keys": "1", "KEY": "2", "KEYSX": "3", "TRAN_MSG ": "4"}),
    "an empty tag": message(tag=""),
    "an empty key": message(keys=[""]),
    "a tag that Java does not call blank": message(tag="\xa0"),
    "one below 16 KiB": message(user=user_of(16383)),
    "16 KiB": message(user=user_of(16384)),
    "16 KiB with tag and keys": message(user=user_of(16384 - 6), tag="ü", keys=["k", "", "abc"]),
    "recovery of 0": message(message_type=messages.TRANSACTION, **{RECOVERY: {}}),
    "recovery of 3599 s": message(message_type=messages.TRANSACTION, **{RECOVERY: {"seconds": 3599}}),
    "recovery of 3600 s": message(
        message_type=messages.TRANSACTION, **{RECOVERY: {"seconds": 3600, "nanos": 999999999}}
    ),
    "delivery in the past": message(delivery_timestamp={"seconds": -5}),
    "delivery one below a day": message(delivery_timestamp=delivery(DAY_MS - 1)),
    "delivery in a day": message(delivery_timestamp=delivery(DAY_MS)),
    "group of 62": message(message_group="g" * 62),
    "group of 63": message(message_group="g" * 61 + "ü"),
    "all properties 31,767 bytes": message(message_id="i" * (31767 - len(PLAIN) + 2)),
}
WRONG = {
    "no body": (message(b""), "MESSAGE_BODY_EMPTY"),
    "a body one above the limit": (message(b"x" * 1001), "MESSAGE_BODY_TOO_LARGE"),
    "129 properties": (message(user={str(number): "v" for number in range(129)}), "MESSAGE_PROPERTIES_TOO_LARGE"),
    "blank tag": (message(tag=" \u3000\t"), "ILLEGAL_MESSAGE_TAG"),
    "tag with bar": (message(tag="a|b"), "ILLEGAL_MESSAGE_TAG"),
    "blank key": (message(keys=["a", "\u2028"]), "ILLEGAL_MESSAGE_KEY"),
    "16 KiB and one": (message(user=user_of(16385)), "MESSAGE_PROPERTIES_TOO_LARGE"),
    "tag beyond 16 KiB": (message(user=user_of(16383), tag="ü"), "MESSAGE_PROPERTIES_TOO_LARGE"),
    "keys beyond 16 KiB": (message(user=user_of(16382), keys=["a", "", "bc"]), "MESSAGE_PROPERTIES_TOO_LARGE"),
    "no id": (message(message_id=""), "ILLEGAL_MESSAGE_ID"),
    "blank id": (message(message_id=" \t"), "ILLEGAL_MESSAGE_ID"),
    "id with a separator": (message(message_id="a\2DELAY\0013"), "ILLEGAL_MESSAGE_ID"),
    "recovery of 3601 s": (
        message(message_type=messages.TRANSACTION, **{RECOVERY: {"seconds": 3601}}),
        "BAD_REQUEST",
    ),
    "recovery before now": (message(message_type=messages.TRANSACTION, **{RECOVERY: {"seconds": -1}}), "BAD_REQUEST"),
    "no recovery at all": (message(message_type=messages.TRANSACTION, **{RECOVERY: {"nanos": -1}}), "BAD_REQUEST"),
    "delivery in a day and a ms": (message(delivery_timestamp=delivery(DAY_MS + 1)), "ILLEGAL_DELIVERY_TIME"),
    "delivery at no time": (message(delivery_timestamp={"nanos": 1_000_000_000}), "ILLEGAL_DELIVERY_TIME"),
    "blank group": (message(message_group=" "), "ILLEGAL_MESSAGE_GROUP"),
    "group of 64": (message(message_group="g" * 62 + "ü"), "ILLEGAL_MESSAGE_GROUP"),
    "blank lite topic": (message(lite_topic=" "), "ILLEGAL_LITE_TOPIC"),
    "lite topic of 65": (message(lite_topic="l" * 65), "ILLEGAL_LITE_TOPIC"),
    "lite topic that is a path": (message(lite_topic="a/../b"), "ILLEGAL_LITE_TOPIC"),
    "lite topic with a dollar": (message(lite_topic="a$b"), "ILLEGAL_LITE_TOPIC"),
    "lite topic of other letters": (message(lite_topic="ü"), "ILLEGAL_LITE_TOPIC"),
    "lite topic of other digits": (message(lite_topic="\u0663"), "ILLEGAL_LITE_TOPIC"),
    "lite topic with a line": (message(lite_topic="a\n"), "ILLEGAL_LITE_TOPIC"),
    "all properties 31,768 bytes": (
        message(message_id="i" * (31768 - len(PLAIN) + 2)),
        "MESSAGE_PROPERTIES_TOO_LARGE",
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_inside_the_borders(name):
    assert read(FINE[name])[0].topic == "t"


@pytest.mark.parametrize("name", WRONG)
def test_outside_the_borders(name):
    sent, code = WRONG[name]
    assert code_of(sent) == getattr(messages, code)


@pytest.mark.few
@pytest.mark.parametrize("control", ["\0", "\1", "\2", "\x1f", "\x7f", "\x80", "\x9f"])
@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("user key", "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ("user value", "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ("tag", "ILLEGAL_MESSAGE_TAG"),
        ("keys", "ILLEGAL_MESSAGE_KEY"),
        ("message_id", "ILLEGAL_MESSAGE_ID"),
        ("message_group", "ILLEGAL_MESSAGE_GROUP"),
        ("trace_context", "BAD_REQUEST"),
        ("born_host", "BAD_REQUEST"),
    ],
)
def test_control_characters(place, code, control):
    text = f"a{control}b"
    if place.startswith("user"):
        sent = message(user={text: "v"} if place == "user key" else {"k": text})
    else:
        sent = message(**{place: [text] if place == "keys" else text})
    assert code_of(sent) == getattr(messages, code)


@pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
def test_reserved_keys(key):
    assert code_of(message(user={key: "v"})) == messages.ILLEGAL_MESSAGE_PROPERTY_KEY


@pytest.mark.parametrize("after_ms", [-1, 0, 1])
def test_a_delivery_before_1970_is_past(after_ms):
    seconds, rest_ms = divmod(after_ms, 1000)
    sent = read(message(delivery_timestamp={"seconds": seconds, "nanos": rest_ms * 1_000_000}))[0]
    assert sent.deliver_ms == max(after_ms, 0)


# -- order of the checks -----------------------------------------------------------------------------------------------


def wrong_from(first: int) -> messages.Message:
    """A message that fails check ``first`` and all checks after it."""
    user: dict[str, str] = {}
    system: dict[str, object] = {"message_type": messages.TRANSACTION, "born_host": "\1", "message_id": ""}
    if first <= 2:
        user = {str(number): "v" for number in range(129)}
    if first <= 3:
        user["KEYS"] = "reserved"
    system["tag"] = " " if first <= 4 else ""
    system["keys"] = [" "] if first <= 5 else []
    if first <= 6:
        user["big"] = "v" * 16384
    if first > 7:
        system["message_id"] = "id"
    if first <= 8:
        system[RECOVERY] = {"seconds": 3601}
    if first <= 9:
        system["delivery_timestamp"] = delivery(DAY_MS + 1)
    if first <= 10:
        system["message_group"] = " "
    if first <= 11:
        system["lite_topic"] = "l/"
    body = b"" if first <= 1 else b"x"
    return message(body, "TBW102" if first == 0 else "t", user, **system)


ORDER = [
    "ILLEGAL_TOPIC",
    "MESSAGE_BODY_EMPTY",
    "MESSAGE_PROPERTIES_TOO_LARGE",
    "ILLEGAL_MESSAGE_PROPERTY_KEY",
    "ILLEGAL_MESSAGE_TAG",
    "ILLEGAL_MESSAGE_KEY",
    "MESSAGE_PROPERTIES_TOO_LARGE",
    "ILLEGAL_MESSAGE_ID",
    "BAD_REQUEST",
    "ILLEGAL_DELIVERY_TIME",
    "ILLEGAL_MESSAGE_GROUP",
    "ILLEGAL_LITE_TOPIC",
    "BAD_REQUEST",
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_check_that_fails_words_the_refusal(first):
    assert code_of(wrong_from(first)) == getattr(messages, ORDER[first])


def test_the_checks_of_a_group_are_in_order():
    with pytest.raises(RefusedError, match="blank"):
        read(message(message_group=" " * 64))
    with pytest.raises(RefusedError, match="has 64 bytes; allowed are 63"):
        read(message(message_group="\1" * 64))


# -- requests ----------------------------------------------------------------------------------------------------------


def test_an_empty_request():
    assert code_of() == messages.MESSAGE_CORRUPTED


def test_the_topic_is_checked_before_the_topics_are_compared():
    assert code_of(message(topic="TBW102"), message(topic="t")) == messages.ILLEGAL_TOPIC


def test_topics_that_differ():
    assert code_of(message(), message(topic="u")) == messages.MESSAGE_CORRUPTED
    other = message()
    other.topic.resource_namespace = "ns"
    assert code_of(message(), other) == messages.MESSAGE_CORRUPTED


def test_the_topics_are_compared_before_the_bodies_are_checked():
    assert code_of(message(b""), message(topic="u")) == messages.MESSAGE_CORRUPTED


def test_the_messages_are_checked_in_their_order():
    assert code_of(message(), message(tag="|"), message(b"")) == messages.ILLEGAL_MESSAGE_TAG


def test_several_messages():
    first, second = read(message(b"a"), message(b"b", message_id="2"))
    assert replace(second, body=b"a", unique_key="id", properties=first.properties) == first
    assert second.unique_key == "2"


def test_the_namespace_is_no_part_of_the_name():
    sent = message()
    sent.topic.resource_namespace = "ns"
    assert read(sent)[0].topic == "t"


def test_the_largest_body_is_4_mib_by_default():
    arrival = Arrival(NOW)
    assert len(read(message(bytes(4 << 20)), arrival=arrival)[0].body) == 4194304
    with pytest.raises(RefusedError, match="4194304"):
        read(message(bytes((4 << 20) + 1)), arrival=arrival)
