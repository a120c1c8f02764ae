"""Everything that official lite clients and servers said decodes with our codecs, and encodes again without loss."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from tests.golden.lite_records import NAMES, Line, frames, messages, scenario
from tests.unit.protocol.golden import texts

from rucola.formats.message import decode_messages
from rucola.protocol import fastjson
from rucola.protocol.bodies import Body
from rucola.protocol.bodies.lite import (
    GetBrokerLiteInfoResponseBody,
    GetLiteClientInfoResponseBody,
    GetLiteGroupInfoResponseBody,
    GetLiteTopicInfoResponseBody,
    GetParentTopicInfoResponseBody,
    LiteSubscriptionCtlRequestBody,
)
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import decode_frame
from rucola.protocol.headers import CommandHeader
from rucola.protocol.headers.lite import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    NotifyUnsubscribeLiteRequestHeader,
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
    TriggerLiteDispatchRequestHeader,
)
from rucola.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rucola.proxy.schema import V2

JAVA_KEYS = {"code", "extFields", "flag", "language", "opaque", "remark", "serializeTypeCurrentRPC", "version"}
KINDS = ("file", "rocksdb")
NOTES = {"many", "node"}
"""Scenarios of which only the notes of the programs are kept."""
REQUESTS: dict[int, type[CommandHeader]] = {
    200051: AckMessageRequestHeader,
    200053: ChangeInvisibleTimeRequestHeader,
    200070: PopLiteMessageRequestHeader,
    200073: NotifyUnsubscribeLiteRequestHeader,
    200075: GetParentTopicInfoRequestHeader,
    200076: GetLiteTopicInfoRequestHeader,
    200077: GetLiteClientInfoRequestHeader,
    200078: GetLiteGroupInfoRequestHeader,
    200079: TriggerLiteDispatchRequestHeader,
}
RESPONSES: dict[int, type[CommandHeader]] = {
    200053: ChangeInvisibleTimeResponseHeader,
    200070: PopLiteMessageResponseHeader,
}
BODIES: dict[int, type[Body]] = {
    200074: GetBrokerLiteInfoResponseBody,
    200075: GetParentTopicInfoResponseBody,
    200076: GetLiteTopicInfoResponseBody,
    200077: GetLiteClientInfoResponseBody,
    200078: GetLiteGroupInfoResponseBody,
}
BY_HAND = "hand->broker"
"""Requests made by hand lack fields on purpose."""
LITE = range(200070, 200080)
NO_SUCH_FIELD = {"lo", "bname", "ns", "nsd", "oway"}
"""Fields that the clients' remoting layer adds to any request (``protocol.md`` 1.4)."""


def of_java(header: dict[str, Any]) -> bool:
    """Whether a header has what Java writes and our encoder does: no empty ``extFields`` or ``remark``."""
    optional = [header.get("extFields", "absent"), header.get("remark", "absent")]
    return header.keys() <= JAVA_KEYS and "serializeTypeCurrentRPC" in header and all(optional)


@pytest.mark.parametrize("name", NAMES)
def test_frames(name: str) -> None:
    for line in frames(name):
        command, header = decode_frame(line.data), line.record["header"]
        assert (command.code, command.opaque, command.flag) == (header["code"], header["opaque"], header["flag"])
        assert (command.language.name, command.version) == (header["language"], header["version"])
        assert command.remark == (header.get("remark") or "")
        assert command.ext_fields == texts(header.get("extFields"))
        assert line.data.endswith(command.body)
        assert len(command.body) == len(line.data) - 8 - int.from_bytes(line.data[5:8], "big")
        assert command.is_response == (line.record["kind"] == "response")
        assert command.is_oneway == (line.record["kind"] == "oneway")
        again = command.encode()
        assert decode_frame(again) == command
        assert not of_java(header) or again == line.data


@pytest.mark.parametrize("name", NAMES)
def test_messages(name: str) -> None:
    for line in messages(name):
        kind = "Request" if line.record["kind"] == "request" else "Response"
        method = line.record["method"]
        whole = "TelemetryCommand" if method == "Telemetry" else f"{method}{kind}"
        message = V2.message_class(whole).FromString(line.data)
        assert MessageToDict(message, preserving_proto_field_name=True) == line.record["view"], line.record["n"]
        assert message.SerializeToString(deterministic=True) == line.data or same(message, line.data)


def same(message: Any, data: bytes) -> bool:
    """Whether bytes in another order are the same message, and nothing of them is unknown to us."""
    again = message.SerializeToString()
    return len(again) == len(data) and type(message).FromString(again) == message


def requests(*codes: int) -> Iterator[tuple[Line, Any]]:
    """Requests with one of the codes, decoded."""
    for line in frames():
        if line.record["kind"] != "response" and line.record["code"] in codes:
            yield line, decode_frame(line.data)


def answers(*codes: int) -> Iterator[tuple[Line, Any]]:
    """Successful responses to requests with one of the codes, decoded."""
    for line in frames():
        if line.record["kind"] == "response" and line.record["request_code"] in codes and line.record["code"] == 0:
            yield line, decode_frame(line.data)


def test_headers_come_back() -> None:
    seen: Counter[tuple[str, int]] = Counter()
    for line, command in requests(*REQUESTS):
        if line.record["dir"] != BY_HAND:
            fields = {key: value for key, value in command.ext_fields.items() if key not in NO_SUCH_FIELD}
            assert REQUESTS[command.code].from_ext_fields(fields).to_ext_fields() == fields, line.record
            seen["request", command.code] += 1
    for line, command in answers(*RESPONSES):
        if command.ext_fields:
            header = RESPONSES[line.record["request_code"]]
            assert header.from_ext_fields(command.ext_fields).to_ext_fields() == command.ext_fields
            seen["response", line.record["request_code"]] += 1
    assert seen.keys() == {("request", code) for code in REQUESTS} | {("response", code) for code in RESPONSES}


def test_bodies_come_back() -> None:
    seen: Counter[int] = Counter()
    for line, command in requests(200071):
        if line.record["dir"] != BY_HAND:
            body = LiteSubscriptionCtlRequestBody.decode(command.body)
            assert fastjson.loads(body.encode()) == in_order(fastjson.loads(command.body))
            if all(len(entry.lite_topic_set or ()) < 2 for entry in body.subscription_set):
                assert body.encode() == command.body
            seen[200071] += 1
    for line, command in answers(*BODIES):
        code = line.record["request_code"]
        again = BODIES[code].decode(command.body).encode()
        assert in_order(json.loads(again)) == in_order(fastjson.loads(command.body)), line.record
        seen[code] += 1
    assert seen.keys() == {200071, *BODIES}


def in_order(value: Any) -> Any:
    """JSON whose lists of names are in order, because Java writes sets as they are hashed; without nulls."""
    if isinstance(value, dict):
        return {key: in_order(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        members = [in_order(member) for member in value]
        return sorted(members, key=json.dumps)
    return value


def test_messages_of_a_pop_name_their_lite_topic_and_offset() -> None:
    seen: Counter[str] = Counter()
    for line, command in answers(200070):
        for message in decode_messages(command.body):
            known = message.properties
            parent = known.get("RETRY_TOPIC", message.topic)  # a dead letter, among queues in files only
            assert known["INNER_MULTI_DISPATCH"] == f"%LMQ%${parent}${known['__LITE_TOPIC']}", line.record["n"]
            assert known["INNER_MULTI_QUEUE_OFFSET"].isdigit()
            seen[f"{line.name.partition('/')[0]} {message.topic}"] += 1
    assert seen.keys() == {
        "file agents", "file brief", "file %DLQ%failing-in-order", "rocksdb agents", "rocksdb brief",
    }  # fmt: skip
    assert seen["file agents"] > 50 and seen["rocksdb agents"] > 50


def test_every_code_was_recorded_and_has_a_name() -> None:
    asked = {line.record["code"] for line in frames() if line.record["kind"] != "response"}
    told = {line.record["code"] for line in frames() if line.record["kind"] == "response"}
    assert {*LITE} <= asked
    assert asked <= {*map(int, RequestCode)}
    assert {2017, 2018} <= told <= {*map(int, ResponseCode)}


def test_both_kinds_of_queues_have_the_same_scenarios() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name in NAMES:
        kind, _, rest = name.partition("/")
        found[kind].add(rest)
        facts, records = scenario(name)
        assert facts["scenario"] == rest and f"{kind} queues" in facts["servers"]
        if rest in NOTES:
            assert not any("kind" in record for record in records), "frames of these are read nowhere"
        else:
            assert [record["n"] for record in records] == [*range(len(records))]
    assert found.keys() == {*KINDS} and found["file"] == found["rocksdb"] - NOTES
    assert len(found["file"]) == 15
