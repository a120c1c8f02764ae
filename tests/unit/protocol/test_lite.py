"""Requests of lite topics: their codes, headers and bodies, and what is none."""

from __future__ import annotations

import pytest

from rucola.errors import FormatError
from rucola.protocol.bodies.lite import (
    ClientGroup,
    GetLiteGroupInfoResponseBody,
    GetLiteTopicInfoResponseBody,
    LiteLagInfo,
    LiteSubscriptionAction,
    LiteSubscriptionCtlRequestBody,
    LiteSubscriptionDTO,
    OffsetOption,
    OffsetOptionType,
)
from rucola.protocol.bodies.statistics import OffsetWrapper, TopicOffset
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.headers.lite import GetLiteClientInfoRequestHeader, PopLiteMessageRequestHeader
from rucola.protocol.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader

NAMES = {
    200070: "POP_LITE_MESSAGE", 200071: "LITE_SUBSCRIPTION_CTL", 200072: "ACK_LITE_MESSAGE",
    200073: "NOTIFY_UNSUBSCRIBE_LITE", 200074: "GET_BROKER_LITE_INFO", 200075: "GET_PARENT_TOPIC_INFO",
    200076: "GET_LITE_TOPIC_INFO", 200077: "GET_LITE_CLIENT_INFO", 200078: "GET_LITE_GROUP_INFO",
    200079: "TRIGGER_LITE_DISPATCH",
}  # fmt: skip
LEASE = {"consumerGroup": "g", "topic": "t", "queueId": "0", "extraInfo": "0 1 2 999 0 b 0", "offset": "3"}
"""Fields of each acknowledgement."""


def test_codes_are_those_of_the_reference() -> None:
    assert {code: RequestCode(code).name for code in range(200070, 200080)} == NAMES
    assert (ResponseCode.LMQ_QUOTA_EXCEEDED, ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED) == (2017, 2018)


def test_names_are_in_the_order_of_javas_ordinals() -> None:
    assert [*LiteSubscriptionAction] == ["PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"]
    assert [*OffsetOptionType] == ["POLICY", "OFFSET", "TAIL_N", "TIMESTAMP"]


def test_an_acknowledgement_names_a_lite_topic_only_if_there_is_one() -> None:
    plain = AckMessageRequestHeader.from_ext_fields(LEASE)
    assert plain.lite_topic is None and plain.to_ext_fields() == LEASE
    lite = AckMessageRequestHeader.from_ext_fields({**LEASE, "liteTopic": "l"})
    assert lite.lite_topic == "l" and lite.to_ext_fields() == {**LEASE, "liteTopic": "l"}


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), (None, None)])
def test_suspension(text: str | None, value: bool | None) -> None:
    fields = {**LEASE, "invisibleTime": "500", "liteTopic": "l"} | ({"suspend": text} if text else {})
    header = ChangeInvisibleTimeRequestHeader.from_ext_fields(fields)
    assert header.suspend is value and header.to_ext_fields() == fields


def test_what_a_pop_and_a_question_may_leave_out() -> None:
    fields = {
        "clientId": "c", "consumerGroup": "g", "topic": "t", "maxMsgNum": "16", "invisibleTime": "60000",
        "pollTime": "9",
    }  # fmt: skip
    pop = PopLiteMessageRequestHeader.from_ext_fields(fields)
    assert (pop.born_time, pop.attempt_id) == (0, None)
    for name in fields:
        with pytest.raises(FormatError, match=name):
            PopLiteMessageRequestHeader.from_ext_fields({key: fields[key] for key in fields.keys() - {name}})
    asked = GetLiteClientInfoRequestHeader.from_ext_fields({"parentTopic": "p", "group": "g", "clientId": "c"})
    assert asked.max_count == 1000


def entry(**changes: object) -> LiteSubscriptionDTO:
    fields = {"client_id": "c", "group": "g", "topic": "t", "lite_topic_set": frozenset({"b", "a"})} | changes
    return LiteSubscriptionDTO(LiteSubscriptionAction.PARTIAL_ADD, **fields)  # type: ignore[arg-type]


def test_a_subscription_has_its_names_in_order_and_an_option_only_if_there_is_one() -> None:
    option = OffsetOption(OffsetOptionType.TAIL_N, 3)
    body = LiteSubscriptionCtlRequestBody([entry(), entry(lite_topic_set=None, offset_option=option, version=7)])
    first = b'"clientId":"c","group":"g","liteTopicSet":["a","b"],"topic":"t","version":0}'
    second = b'"clientId":"c","group":"g","offsetOption":{"type":"TAIL_N","value":3},"topic":"t","version":7}'
    add = b'{"action":"PARTIAL_ADD",'
    assert body.encode() == b'{"subscriptionSet":[' + add + first + b"," + add + second + b"]}"
    assert LiteSubscriptionCtlRequestBody.decode(body.encode()) == body


def test_what_other_clients_leave_out_or_write_as_numbers() -> None:
    body = LiteSubscriptionCtlRequestBody.decode(
        b'{"subscriptionSet":[{"action":3},{"action":"COMPLETE_ADD","liteTopicSet":[],"offsetOption":{"type":1}}]}'
    )
    assert body == LiteSubscriptionCtlRequestBody(
        [
            LiteSubscriptionDTO(LiteSubscriptionAction.COMPLETE_REMOVE),
            LiteSubscriptionDTO(
                LiteSubscriptionAction.COMPLETE_ADD,
                lite_topic_set=frozenset(),
                offset_option=OffsetOption(OffsetOptionType.OFFSET),
            ),
        ]
    )
    assert LiteSubscriptionCtlRequestBody.decode(b'{"subscriptionSet":null}').subscription_set == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"not JSON", b'{"subscriptionSet":{}}', b'{"subscriptionSet":[1]}', b'{"subscriptionSet":[{}]}',
        b'{"subscriptionSet":[{"action":"OTHER"}]}', b'{"subscriptionSet":[{"action":4}]}',
        b'{"subscriptionSet":[{"action":"PARTIAL_ADD","liteTopicSet":"abc"}]}',
        b'{"subscriptionSet":[{"action":"PARTIAL_ADD","liteTopicSet":[{}]}]}',
        b'{"subscriptionSet":[{"action":"PARTIAL_ADD","offsetOption":{}}]}',
        b'{"subscriptionSet":[{"action":"PARTIAL_ADD","offsetOption":{"type":"NONE"}}]}',
        b'{"subscriptionSet":[{"action":"PARTIAL_ADD","version":9223372036854775808}]}',
    ],
)  # fmt: skip
def test_bodies_that_are_none(body: bytes) -> None:
    with pytest.raises(FormatError):
        LiteSubscriptionCtlRequestBody.decode(body)


def test_values_in_values() -> None:
    topic = GetLiteTopicInfoResponseBody("p", "l", [ClientGroup("*", "g")], TopicOffset(0, 2, 17), True)
    assert topic.encode() == (
        b'{"liteTopic":"l","parentTopic":"p","shardingToBroker":true,"subscriber":[{"clientId":"*","group":"g"}],'
        b'"topicOffset":{"lastUpdateTimestamp":17,"maxOffset":2,"minOffset":0}}'
    )
    assert GetLiteTopicInfoResponseBody.decode(topic.encode()) == topic
    group = GetLiteGroupInfoResponseBody(
        "g", "p", None, 17, 3, OffsetWrapper(5, 2), [LiteLagInfo("l", 3, 17)], [LiteLagInfo("l", 0, 17)]
    )
    assert b'"lagCountTopK":[{"earliestUnconsumedTimestamp":17,"lagCount":3,"liteTopic":"l"}]' in group.encode()
    assert GetLiteGroupInfoResponseBody.decode(group.encode()) == group
