"""Bodies of requests of lite topics: their bytes, and what is none."""

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
