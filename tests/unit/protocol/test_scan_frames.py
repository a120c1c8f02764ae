"""Hand-made frames in the compiled and the interpreted frame kernel."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from tests.kernels import FORMS
from tests.kernels import kernel as load_kernel
from tests.unit.protocol.rows import expected, frame_of, scan, values

from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, new_table
from rucola.protocol import header_binary
from rucola.protocol.command import decode_header

KERNELS = [pytest.param(load_kernel("protocol._frame_cy", form), id=form) for form in FORMS]
pytestmark = pytest.mark.parametrize("kernel", KERNELS)

V2 = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "7", "j": "2"}
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "1", "queueOffset": "9000000000", "maxMsgNums": "32", "sysFlag": "6",
    "commitOffset": "-1", "suspendTimeoutMillis": "15000", "subVersion": "1700000000000",
}  # fmt: skip
TOP = {"code": 310, "flag": 0, "language": "JAVA", "opaque": 7, "version": 479}


def header(code: int, ext_fields: dict[str, Any], **others: Any) -> bytes:
    return json.dumps({**TOP, "code": code, "extFields": ext_fields, **others}, separators=(",", ":")).encode()


def kind_of(kernel: ModuleType, text: bytes, serialize: int = 0) -> tuple[FrameKind, int]:
    """Scans one header; returns the kind of its row, and 1 if the kernel left the header unread, otherwise 0."""
    frame = frame_of(text, b"body", serialize)
    source, table, result = scan(kernel, frame)
    assert result[:3] == (1, len(frame), 0)
    kind = FrameKind(table[FrameColumn.KIND])
    if kind == FrameKind.PLAIN:
        assert source == frame
    else:
        assert values(table, source) == expected(decode_header(text, serialize))
    return kind, result[3]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("SEND", header(310, V2)),
        ("SEND", header(310, {**V2, "m": "false", "i": "", "k": "false", "l": "0", "n": "broker-a", "ReqT": "0"})),
        ("BATCH", header(310, {**V2, "m": "true"})),
        ("BATCH", header(320, {**V2, "m": "TRUE"})),
        ("BATCH", header(320, {**V2, "m": True})),
        ("SEND", header(320, {**V2, "m": "1"})),
        ("SEND", header(320, V2)),
        ("SEND", header(310, {**V2, "d": 4, "e": 1, "f": 0, "g": 1700000000000, "k": False})),
        ("SEND", header(310, V2) + b" \r\n\t"),
        ("SEND", json.dumps({"extFields": V2, **TOP}, indent=2).encode()),
        ("SEND", header(310, V2, remark=None, serializeTypeCurrentRPC="JSON", other="x\u00e9\n", more=-17)),
        ("SEND", header(310, V2, remark="")),
        ("PULL", header(11, PULL)),
        ("PULL", header(361, {**PULL, "subscription": "a || b", "expressionType": "TAG", "maxMsgBytes": "1"})),
        ("PULL", header(11, {**PULL, "subscription": "", "queueId": -1})),
    ],
)  # fmt: skip
def test_hot_headers(kernel: ModuleType, kind: str, text: bytes) -> None:
    assert kind_of(kernel, text) == (FrameKind[kind], 0)


@pytest.mark.parametrize(
    "text",
    [
        header(310, {**V2, "b": "%RETRY%g"}),  # needs maxReconsumeTimes
        header(310, {**V2, "b": ""}),
        header(310, {key: value for key, value in V2.items() if key != "g"}),
        header(310, V2, flag=1),
        header(34, V2),
        header(0, {}),
        header(-1, {"a": "\\u0041"}),
        header(310, {}),
        header(11, V2),
        header(310, PULL),
        header(34, {}, extFields=None),
        header(34, {"a": None, "b": True}),
        json.dumps(TOP).encode(),
    ],
)
def test_plain_headers_that_are_read(kernel: ModuleType, text: bytes) -> None:
    assert kind_of(kernel, text) == (FrameKind.PLAIN, 0)
    source, table, _ = scan(kernel, frame_of(text))
    assert values(table, source) == expected(decode_header(text, 0))


@pytest.mark.parametrize(
    "text",
    [
        header(310, {**V2, "b": "T\u00e9"}),
        header(310, {**V2, "b": "T\\"}),
        header(310, {**V2, "e": "x"}),
        header(310, {**V2, "e": ""}),
        header(310, {**V2, "e": "2147483648"}),
        header(310, {**V2, "e": "+1"}),
        header(310, {**V2, "e": None}),
        header(310, {**V2, "e": 1.5}),
        header(310, {**V2, "g": "1" * 19}),
        header(310, {**V2, "x": {"y": 1}}),
        header(310, {**V2, "x": [1]}),
        header(310, {**V2, **{f"x{i}": "" for i in range(128)}}),
        header(310, V2)[:-1] + b',"opaque":8}',
        header(310, V2).replace(b'"a":"g"', b'"a":"g","a":"g"'),
        header(310, V2)[:-1] + b',"extFields":{}}',
        header(310, V2) + b"x",
        header(310, V2)[:-1],
        header(310, V2).replace(b'"version":479', b'"version":0479'),
        header(310, V2).replace(b'"version":479', b'"version":-0'),
        header(310, V2).replace(b'"version":479', b'"version":"479"'),
        header(310, V2, opaque=1 << 31),
        header(310, V2).replace(b',"opaque":7', b""),
        header(310, V2).replace(b"code", b"co\\u0064e"),
        header(310, V2, nested={}),
        b'{"a":"\\ud800"}',
        b"{}",
        b"[]",
        b"{",
        b'{"',
        b'{"code"',
        b'{"code":',
        b'{"code":3',
        b'{"code":310,"extFields":{',
        b'{"code":310,"extFields":{"',
        b'{"code":310,"extFields":{"a',
        b'{"code":310,"extFields":{"a":"\\',
        b'{"code":310,"extFields":{"i":"\\u00',
        b'{"code":310,"extFields":{"i":"\xe2\x82',
        b" ",
        b"-",
        b"\x00",
    ],
)
def test_unusual_headers_stay_unread(kernel: ModuleType, text: bytes) -> None:
    assert kind_of(kernel, text) == (FrameKind.PLAIN, 1)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"a\u0001b\u0002", b"a\x01b\x02"),
        (rb"\n\r\t\b\f\"\\\/", b'\n\r\t\b\f"\\/'),
        (rb"\u00e9\u20ac\ud83d\ude00\uABCD\uabcd", "\u00e9\u20ac\U0001f600\uabcd\uabcd".encode()),
        ("\u00e9\u20ac\U0001f600".encode(), "\u00e9\u20ac\U0001f600".encode()),
        ("\u00e9\\n\u20ac".encode(), "\u00e9\n\u20ac".encode()),
        (rb"\u0000\u007f", b"\x00\x7f"),
        (b"", b""),
        (b"plain", b"plain"),
    ],
)
def test_properties_are_unescaped_in_place(kernel: ModuleType, escaped: bytes, text: bytes) -> None:
    original = header(310, {**V2, "i": "@"}).replace(b"@", escaped)
    source, table, result = scan(kernel, frame_of(original, b"body"))
    assert result[1:] == (len(source), 0, 0)
    row = values(table, source)
    assert row["text"] == text
    assert row == expected(decode_header(original, 0))
    # Outside of the text, the only change is that spaces follow its closing quote.
    start = table[FrameColumn.PROPERTIES_POS]
    gap = len(escaped) - len(text)
    assert (
        source[:start] + source[start + len(text) :]
        == frame_of(original, b"body")[:start]
        + b'"'
        + b" " * gap
        + (frame_of(original, b"body")[start + len(escaped) + 1 :])
    )


@pytest.mark.parametrize(
    "escaped",
    [
        rb"\ud83d", rb"\ud83dx", rb"\ude00", rb"\ud83d\u0041", rb"\u12g4", rb"\x41", rb"\u12", b"\x01", b"\xff",
        b"\xc3", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x80\x80\x80", b"\xe2\x82",
        b"\x80",
    ],
)  # fmt: skip
def test_properties_that_are_no_text(kernel: ModuleType, escaped: bytes) -> None:
    text = header(310, {**V2, "i": "@"}).replace(b"@", escaped)
    assert kind_of(kernel, text) == (FrameKind.PLAIN, 1)


def binary(code: int, ext_fields: dict[str, str]) -> bytes:
    return header_binary.encode(header_binary.BinaryHeader(code, 0, 479, 7, 0, None, ext_fields))


@pytest.mark.parametrize(
    ("kind", "code", "ext_fields"),
    [
        ("SEND", 310, {**V2, "i": "a\x01\u00e9\x02"}),
        ("BATCH", 320, {**V2, "m": "true"}),
        ("PULL", 361, {**PULL, "subscription": "a || b"}),
        ("PLAIN", 310, {**V2, "h": ""}),  # null
        ("PLAIN", 34, {"x": "y"}),
        ("PLAIN", 310, {}),
    ],
)
def test_binary_headers(kernel: ModuleType, kind: str, code: int, ext_fields: dict[str, str]) -> None:
    text = binary(code, ext_fields)
    assert kind_of(kernel, text, 1) == (FrameKind[kind], 0)
    source, table, _ = scan(kernel, frame_of(text, serialize=1))
    assert values(table, source) == expected(decode_header(text, 1))


def test_binary_headers_cut_or_changed(kernel: ModuleType) -> None:
    text = binary(310, {"a": "g", "b": "T"})
    for size in range(1, len(text)):
        assert kind_of(kernel, text[:size], 1) == (FrameKind.PLAIN, 1)
    assert kind_of(kernel, text + b"\x00", 1) == (FrameKind.PLAIN, 1)
    for position in range(13, 30):
        for value in (0x7F, 0x80, 0xFF):
            assert kind_of(kernel, text[:position] + bytes([value]) + text[position + 1 :], 1)[0] == FrameKind.PLAIN


@pytest.mark.parametrize(
    ("first", "error"),
    [
        ("00000000", 1), ("00000003", 1), ("ffffffff", 1), ("80000000", 1), ("00fffffd", 1), ("7fffffff", 1),
        ("0000000a02000001", 2), ("0000000aff000001", 2), ("0000000a00000000", 3), ("0000000a00000007", 3),
        ("0000000a00ffffff", 3), ("0000000401000001", 3),
        ("00fffffc", 0), ("0000000a00000006", 0), ("0000000a", 0), ("000000", 0),
    ],
)  # fmt: skip
def test_bounds_of_a_frame(kernel: ModuleType, first: str, error: int) -> None:
    good = frame_of(header(310, V2), b"body")
    _, _, result = scan(kernel, good + bytes.fromhex(first))
    assert result == (1, len(good), error, 0)


def test_range_and_full_table(kernel: ModuleType) -> None:
    good = frame_of(header(310, V2), b"body")
    source, table = bytearray(b"xx" + 3 * good + b"\x00" * 40), new_table(4)
    assert kernel.scan_frames(source, 2, 2 + 3 * len(good) - 1, table, 4) == (2, 2 + 2 * len(good), 0, 0)
    assert kernel.scan_frames(source, 2, 2 + 3 * len(good), table, 1) == (1, 2 + len(good), 0, 0)
    assert kernel.scan_frames(source, 2, 2 + 3 * len(good), table, 3) == (3, 2 + 3 * len(good), 0, 0)
    assert kernel.scan_frames(source, 2, 2, table, 4) == (0, 2, 0, 0)
    assert kernel.scan_frames(source, 2, 50, table, 0) == (0, 2, 0, 0)
    for bad in [(-1, 4, 4), (0, len(source) + 1, 4), (0, 4, 5)]:
        with pytest.raises(ValueError, match="outside"):
            kernel.scan_frames(source, bad[0], bad[1], table, bad[2])


def test_same_topic(kernel: ModuleType) -> None:
    headers = [
        header(310, V2), header(310, V2), header(310, {**V2, "b": "U"}), header(34, {}), header(310, {**V2, "b": "U"}),
        header(310, {**V2, "b": "UU"}), header(320, {**V2, "b": "UU", "m": "true"}), header(11, PULL), header(11, PULL),
    ]  # fmt: skip
    _, table, _ = scan(kernel, b"".join(frame_of(text) for text in headers))
    same = [table[row * ROW_WIDTH + FrameColumn.SAME_TOPIC] for row in range(len(headers))]
    assert same == [0, 1, 0, 0, 0, 0, 0, 0, 1]
