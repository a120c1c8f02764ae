"""Compares typed bodies with recorded ones: encoded, they equal what Java, Go and C++ clients sent."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deflated import deflated
from tests.unit.protocol.golden import Recorded, all_frames, frames

from rucola.common.message_queue import MessageQueue
from rucola.common.topic_config import TopicConfig
from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.protocol.bodies import Body
from rucola.protocol.bodies.consumer_list import GetConsumerListByGroupResponseBody
from rucola.protocol.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.bodies.offsets import ConsumerOffsetSerializeWrapper, CorrectionOffsetBody, ResetOffsetBody
from rucola.protocol.bodies.registration import RegisterBrokerBody, TopicConfigSerializeWrapper, body_crc32
from rucola.protocol.bodies.route import BrokerData, BrokerMemberGroupBody, ClusterInfo, QueueData, TopicRouteData
from rucola.protocol.bodies.topic_list import GroupList, TopicList

REQUESTS: dict[int, type[Body]] = {
    34: HeartbeatData,
    41: LockBatchRequestBody,
    42: LockBatchRequestBody,
    46: CheckClientRequestBody,
    103: RegisterBrokerBody,
}
RESPONSES: dict[int, type[Body]] = {
    28: KVTable,
    38: GetConsumerListByGroupResponseBody,
    41: LockBatchResponseBody,
    43: ConsumerOffsetSerializeWrapper,
    103: KVTable,
    105: TopicRouteData,
    106: ClusterInfo,
    206: TopicList,
    219: KVTable,
    224: TopicList,
    300: GroupList,
    304: TopicList,
    308: CorrectionOffsetBody,
    901: BrokerMemberGroupBody,
}


def body_class(recorded: Recorded) -> type[Body] | None:
    if recorded.scenario == "errors_other" or not recorded.body:
        return None
    if recorded.is_response:
        return RESPONSES.get(recorded.record["request_code"]) if recorded.record["code"] == 0 else None
    return REQUESTS.get(recorded.record["code"])


def content(value: Any, name: str = "") -> Any:
    """Returns JSON in a form for comparison: keys and numbers as texts, sets sorted, null and empty members removed."""
    if isinstance(value, dict):
        members = {str(key): content(member, str(key)) for key, member in value.items()}
        return {key: member for key, member in members.items() if member not in (None, [], {}, "False", "0", "")}
    if isinstance(value, list):
        members = [content(member) for member in value]
        return sorted({*members} - {"0"}) if name in ("tagsSet", "codeSet") else members
    return str(value)


def test_recorded_bodies_come_back() -> None:
    seen: Counter[str] = Counter()
    for recorded in all_frames():
        kind = body_class(recorded)
        if kind is None:
            continue
        body = kind.decode(recorded.body)
        assert kind.decode(body.encode()) == body
        seen[kind.__name__] += 1
        if recorded.body[:1] != b"{":
            assert kind is RegisterBrokerBody
            continue
        sent = content(fastjson.loads(recorded.body))
        if recorded.scenario in ("go_v2", "python_cpp", "node_alions") or recorded.scenario.endswith("_49"):
            again = content(json.loads(body.encode()))
            without_defaults(sent, again)
            assert again == sent
        else:
            assert content(json.loads(body.encode())) == sent
    assert seen.keys() >= {kind.__name__ for kind in [*REQUESTS.values(), *RESPONSES.values()]} - {
        "CheckClientRequestBody"
    }


def without_defaults(sent: Any, again: Any) -> None:
    """Removes from ``again`` the members with default values that ``sent`` leaves out. Removes enums from both, because
    the C++ client sends them as numbers.
    """
    if isinstance(sent, list):
        for one, other in zip(sent, again, strict=True):
            without_defaults(one, other)
    elif isinstance(sent, dict):
        for key in again.keys() - sent.keys():
            assert again.pop(key) in ("TAG", "CONSUME_FROM_LAST_OFFSET")
        for key in ("consumeType", "messageModel", "consumeFromWhere"):
            again.pop(key, None)
            sent.pop(key, None)
        for key in sent:
            without_defaults(sent[key], again[key])


def test_deflated_registration() -> None:
    for scenario in ("register_deflated", "register_deflated_49"):
        bodies = [entry.body for entry in frames(scenario) if entry.record["code"] == 103 and not entry.is_response]
        assert bodies and all(body[:1] == b"\x78" for body in bodies)
        for source in bodies:
            body = RegisterBrokerBody.decode(source)
            assert {"T_reg", "TBW102"} & body.topic_config_serialize_wrapper.topic_config_table.keys()
            assert body.topic_config_serialize_wrapper.data_version.timestamp_ms > 0
            assert RegisterBrokerBody.decode(deflated(body)) == body
            if scenario == "register_deflated":
                assert sorted(zlib.decompress(deflated(body))) == sorted(zlib.decompress(source))
            for size in range(len(source)):
                with pytest.raises(FormatError):
                    RegisterBrokerBody.decode(source[:size])


@pytest.mark.parametrize("values", [b"1,", b"{},", b"[],", b'"",'])
def test_a_long_registration_of_the_shortest_values_is_refused_before_it_is_parsed(values: bytes) -> None:
    """Before the fix, parsing 16 MiB of such values took up to 4.8 s, mostly with all other threads blocked."""
    dense = b'{"filterServerList":[' + values * 40_000 + values[:-1] + b"]}"
    version = b'{"stateVersion":0,"timestamp":1,"counter":1}'
    sized = [len(version).to_bytes(4, "big"), version, bytes(4), len(dense).to_bytes(4, "big"), dense]
    for body in (dense, zlib.compress(b"".join(sized))):
        with pytest.raises(FormatError, match="commas"):
            RegisterBrokerBody.decode(body)


def test_a_registration_of_very_many_topics_with_short_names_is_taken() -> None:
    topics = {str(number): TopicConfig(str(number)) for number in range(2000)}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics))
    assert len(body.encode()) > 200_000
    assert RegisterBrokerBody.decode(body.encode()) == body


def test_crc_of_a_registration() -> None:
    checked = 0
    for recorded in all_frames():
        if recorded.record["code"] == 103 and not recorded.is_response:
            crc = int(recorded.header["extFields"]["bodyCrc32"])
            assert crc in (0, body_crc32(recorded.body))
            checked += crc != 0
    assert checked > 3


@pytest.mark.parametrize(
    "inflated",
    [
        b"", b"\x00\x00\x00\x05{}", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02{}\x00\x00\x00\x01",
        b"\x00\x00\x00\x02{}\xff\xff\xff\xff", b"\x00\x00\x00\x02{}\x00\x00\x00\x01\x00\x00\x00\x03a b",
        b"\x00\x00\x00\x02{}\x00\x00\x00\x01\x00\x00\x00\x0ea 1 2 x SINGLE",
        b"\x00\x00\x00\x02[]\x00\x00\x00\x00\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x02{}\x00\x00\x00\x00\x00\x00\x00\x02{}",
    ],
)  # fmt: skip
def test_deflated_registration_that_is_none(inflated: bytes) -> None:
    with pytest.raises(FormatError):
        RegisterBrokerBody.decode(zlib.compress(inflated))


def test_heartbeat_of_java() -> None:
    body = next(
        e.body for e in frames("java533_push_concurrent") if e.record["code"] == 34 and b'consumerDataSet":[{' in e.body
    )
    heartbeat = HeartbeatData.decode(body)
    group = heartbeat.consumer_data_set[0]
    assert (group.consume_type, group.message_model) == (ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING)
    assert group.consume_type == "CONSUME_PASSIVELY"
    assert {subscription.expression_type for subscription in group.subscription_data_set} == {"TAG"}


def test_heartbeat_as_clients_vary_it() -> None:
    heartbeat = HeartbeatData.decode(
        b'{"clientID":"c","producerDataSet":null,"consumerDataSet":[{"groupName":"g","consumeType":1,"messageModel":0,'
        b'"consumeFromWhere":4,"subscriptionDataSet":[{"topic":"t","subString":"a","subVersion":"17","codeSet":["97"]}]}]}'
    )
    assert heartbeat == HeartbeatData(
        "c",
        consumer_data_set=[
            ConsumerData(
                "g",
                ConsumeType.CONSUME_PASSIVELY,
                MessageModel.BROADCASTING,
                ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                [SubscriptionData("t", "a", code_set=frozenset({97}), sub_version=17)],
            )
        ],
    )
    assert HeartbeatData.decode(b'{"clientID":"c","producerDataSet":[{"groupName":"p"}]}').producer_data_set == [
        ProducerData("p")
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"x", b'{"clientID":{}}', b'{"consumerDataSet":{}}', b'{"consumerDataSet":[1]}',
        b'{"consumerDataSet":[{"consumeType":9}]}', b'{"consumerDataSet":[{"messageModel":"X"}]}',
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"subVersion":"x"}]}]}', b'{"withoutSub":"maybe"}',
        b'{"heartbeatFingerprint":1.5}', b'{"heartbeatFingerprint":9223372036854775808}',
    ],
)  # fmt: skip
def test_bodies_that_are_none(body: bytes) -> None:
    with pytest.raises(FormatError):
        HeartbeatData.decode(body)


def test_numeric_keys_quoted_or_not() -> None:
    expected = {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
    for addresses in (b'{"0":"127.0.0.1:10911","1":"127.0.0.1:10921"}', b'{0:"127.0.0.1:10911",1:"127.0.0.1:10921"}'):
        data = BrokerData.decode(b'{"brokerAddrs":' + addresses + b',"brokerName":"b","cluster":"c"}')
        assert data.broker_addrs == expected
        assert b'"brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.1:10921"}' in data.encode()


def test_bean_keys() -> None:
    offsets = ResetOffsetBody.decode(b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:13}}')
    assert offsets.offset_table == {MessageQueue("t", "b", 1): 13}
    assert LockBatchResponseBody([MessageQueue("t", "b", 1)]).encode() == (
        b'{"lockOKMQSet":[{"brokerName":"b","queueId":1,"topic":"t"}]}'
    )
    with pytest.raises(FormatError, match="queueId"):
        ResetOffsetBody.decode(b'{"offsetTable":{{"brokerName":"b","topic":"t"}:13}}')


def test_route_is_written_as_the_name_server_writes_it() -> None:
    """For clients whose version gets quoted keys, our route equals the official name server's byte for byte."""
    compared = 0
    for recorded in frames("java533_producer_sync"):
        if recorded.is_response and recorded.record["request_code"] == 105 and recorded.body:
            assert TopicRouteData.decode(recorded.body).encode() == recorded.body
            compared += 1
    assert compared > 0
    assert TopicRouteData(
        queue_datas=[QueueData("b", 4, 4, 6)], broker_datas=[BrokerData("c", "b", {0: "h:1"})]
    ).encode() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"b","cluster":"c","enableActingMaster":false}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["clientID", "groupName", "0"]), inner),
    max_leaves=8,
)


@given(st.sampled_from([*REQUESTS.values(), *RESPONSES.values(), ResetOffsetBody]), st.data())
def test_any_json_gives_a_body_or_a_format_error(kind: type[Body], data: st.DataObject) -> None:
    names = [
        kind.json_names.get(name, name) for name in ("clientID", "consumerDataSet", "table", "topicList", "brokerDatas")
    ]
    names += ["brokerAddrTable", "offsetTable", "mqSet", "topicConfigSerializeWrapper", "subscriptionData"]
    value = data.draw(st.dictionaries(st.sampled_from(names), any_json, max_size=3))
    try:
        body = kind.from_dict(value)
    except FormatError as error:
        assert str(error)
    else:
        assert isinstance(body.to_dict(), dict)
