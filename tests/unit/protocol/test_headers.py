"""Compares typed headers with ext fields, including recorded ones."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections import Counter

import pytest
from tests.unit.protocol.golden import all_frames, texts

import rucola.protocol.headers as package
from rucola.errors import FormatError
from rucola.protocol.headers import CommandHeader
from rucola.protocol.headers.admin import CreateTopicRequestHeader, DeleteSubscriptionGroupRequestHeader
from rucola.protocol.headers.client import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerListByGroupRequestHeader,
    HeartbeatResponseHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from rucola.protocol.headers.namesrv_admin import (
    BrokerNameRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListRequestHeader,
    GetTopicsByClusterRequestHeader,
    KVConfigRequestHeader,
    WipeWritePermResponseHeader,
)
from rucola.protocol.headers.offset import (
    GetConsumerStatusRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rucola.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.protocol.headers.query import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rucola.protocol.headers.route import (
    BrokerHeartbeatRequestHeader,
    BrokerMemberGroupRequestHeader,
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
)
from rucola.protocol.headers.send import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

REQUESTS: dict[int, type[CommandHeader]] = {
    10: SendMessageRequestHeader,
    11: PullMessageRequestHeader,
    12: QueryMessageRequestHeader,
    14: QueryConsumerOffsetRequestHeader,
    15: UpdateConsumerOffsetRequestHeader,
    17: CreateTopicRequestHeader,
    29: SearchOffsetRequestHeader,
    30: GetMaxOffsetRequestHeader,
    31: GetMinOffsetRequestHeader,
    32: GetEarliestMsgStoretimeRequestHeader,
    33: ViewMessageRequestHeader,
    35: UnregisterClientRequestHeader,
    36: ConsumerSendMsgBackRequestHeader,
    38: GetConsumerListByGroupRequestHeader,
    40: NotifyConsumerIdsChangedRequestHeader,
    100: KVConfigRequestHeader,
    103: RegisterBrokerRequestHeader,
    105: GetRouteInfoRequestHeader,
    205: BrokerNameRequestHeader,
    207: DeleteSubscriptionGroupRequestHeader,
    216: DeleteTopicFromNamesrvRequestHeader,
    220: ResetOffsetRequestHeader,
    221: GetConsumerStatusRequestHeader,
    222: ResetOffsetRequestHeader,
    223: GetConsumerStatusRequestHeader,
    219: GetKVListRequestHeader,
    224: GetTopicsByClusterRequestHeader,
    310: SendMessageRequestHeaderV2,
    320: SendMessageRequestHeaderV2,
    322: QueryDataVersionRequestHeader,
    325: SendMessageRequestHeaderV2,
    326: ReplyMessageRequestHeader,
    361: PullMessageRequestHeader,
    901: BrokerMemberGroupRequestHeader,
    904: BrokerHeartbeatRequestHeader,
    200050: PopMessageRequestHeader,
    200051: AckMessageRequestHeader,
    200053: ChangeInvisibleTimeRequestHeader,
}
RESPONSES: dict[int, type[CommandHeader]] = {
    10: SendMessageResponseHeader,
    11: PullMessageResponseHeader,
    12: QueryMessageResponseHeader,
    14: OffsetResponseHeader,
    29: OffsetResponseHeader,
    30: OffsetResponseHeader,
    31: OffsetResponseHeader,
    32: GetEarliestMsgStoretimeResponseHeader,
    34: HeartbeatResponseHeader,
    101: GetKVConfigResponseHeader,
    205: WipeWritePermResponseHeader,
    310: SendMessageResponseHeader,
    320: SendMessageResponseHeader,
    322: QueryDataVersionResponseHeader,
    325: SendMessageResponseHeader,
    361: PullMessageResponseHeader,
    200050: PopMessageResponseHeader,
    200053: ChangeInvisibleTimeResponseHeader,
}
# Fields that hooks, access control and newer clients add (protocol.md 1.4), and fields of features that we lack.
OTHERS = {
    "AccessKey", "Signature", "OnsChannel", "ReqT", "bname", "ns", "nsd", "oway", "lo", "requestSource", "recallHandle",
    "proxyFrowardClientId",
}  # fmt: skip
ERRORS = ("errors_send", "errors_other")  # requests that are wrong on purpose


def test_recorded_fields_are_declared_and_come_back() -> None:
    seen: Counter[tuple[str, int]] = Counter()
    for recorded in all_frames():
        ext_fields = texts(recorded.header.get("extFields"))
        if recorded.is_response:
            code = recorded.record["request_code"]
            header = RESPONSES.get(code) if recorded.record["code"] == 0 else None
        else:
            code = recorded.record["code"]
            header = REQUESTS.get(code) if recorded.scenario not in ERRORS else None
        # A raw request may lack a field on purpose, and code 11 is also a response code.
        if header is None or not ext_fields or recorded.scenario.startswith("raw"):
            continue
        again = header.from_ext_fields(ext_fields).to_ext_fields()
        booleans = {key for key in again if ext_fields.get(key) in ("0", "1") and again[key] in ("true", "false")}
        assert {key: again[key] for key in again.keys() - booleans if key in ext_fields} == {
            key: ext_fields[key] for key in ext_fields.keys() - OTHERS - booleans if key in again
        } | {key: ext_fields[key] for key in ext_fields.keys() & again.keys() & OTHERS}
        assert ext_fields.keys() - again.keys() <= OTHERS
        seen["response" if recorded.is_response else "request", code] += 1
    assert len(seen) > 25


def test_every_header_goes_round() -> None:
    """Every declared header class can be filled and read back; each name on the wire belongs to one attribute only."""
    samples = {"str": "x", "int": 7, "bool": True}
    count = 0
    for module in pkgutil.iter_modules(package.__path__):
        for header in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
            if not (
                isinstance(header, type) and issubclass(header, CommandHeader) and dataclasses.is_dataclass(header)
            ):
                continue
            values = {}
            for entry in dataclasses.fields(header):
                kind = str(entry.type).split(" ")[0]
                values[entry.name] = samples[{"Int": "int", "Long": "int"}.get(kind, kind)]
            full = header(**values)
            ext_fields = full.to_ext_fields()
            assert len(ext_fields) == len(values)
            assert header.from_ext_fields({**ext_fields, "unknown": "x"}) == full
            count += 1
    assert count > 40


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("-1", -1), ("+5", 5), ("007", 7), ("2147483647", 2147483647), ("-2147483648", -(1 << 31))],
)
def test_numbers(text: str, value: int) -> None:
    assert GetMinOffsetRequestHeader.from_ext_fields({"topic": "t", "queueId": text}).queue_id == value


@pytest.mark.parametrize(
    "text", ["", "-", "x", " 1", "1 ", "1_0", "1.0", "2147483648", "-2147483649", "\u0661", "0x1", "9" * 5000]
)
def test_no_numbers(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        GetMinOffsetRequestHeader.from_ext_fields({"topic": "t", "queueId": text})
    assert caught.value.what == "GetMinOffsetRequestHeader, field queueId"
    assert repr(text[:80]) == caught.value.got


def test_long_and_missing() -> None:
    assert OffsetResponseHeader.from_ext_fields({"offset": str((1 << 63) - 1)}).offset == (1 << 63) - 1
    with pytest.raises(FormatError, match="64-bit"):
        OffsetResponseHeader.from_ext_fields({"offset": str(1 << 63)})
    with pytest.raises(FormatError, match=r"OffsetResponseHeader, field offset.*none"):
        OffsetResponseHeader.from_ext_fields({})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_booleans_as_java_reads_them(text: str, value: bool) -> None:
    assert QueryDataVersionResponseHeader.from_ext_fields({"changed": text}).changed is value


def test_letters_of_v2() -> None:
    header = SendMessageRequestHeaderV2("g", "t", "TBW102", 4, 1, 0, 1700000000000, 0, batch=True)
    assert header.to_ext_fields() == {
        "a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0", "m": "true",
    }  # fmt: skip
