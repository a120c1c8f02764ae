"""What holds for frame kernel and reader with any bytes, any header, and any split into reads."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel
from tests.sizes import size
from tests.unit.protocol.golden import all_frames
from tests.unit.protocol.rows import expected, frame_of, scan, values

from rucola.common.columns import FrameKind
from rucola.errors import FormatError
from rucola.protocol.command import RemotingCommand, decode_header
from rucola.protocol.frame import FrameReader

KERNELS = [kernel("protocol._frame_cy", form) for form in FORMS]
HOT = st.deferred(lambda: st.sampled_from(hot_frames()))
CHANGES = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.sampled_from(b'\x00\x01 "\\{},:0129-eu\x7f\x80\xc3\xff')), max_size=4
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ascii_text = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters='"\\'), max_size=12)
number = st.one_of(st.integers(-3, 99), st.integers(-(1 << 65), 1 << 65))
value = st.one_of(number, number.map(str), st.booleans(), text, ascii_text, st.none())
V2_KEYS = "abcdefghijklmn"
PULL_KEYS = [
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
    "subVersion", "subscription", "expressionType",
]  # fmt: skip
usual = {
    **dict.fromkeys(["a", "b", "c", "consumerGroup", "topic", "expressionType"], ascii_text),
    **dict.fromkeys(["i", "subscription"], text),
    **dict.fromkeys(["k", "m"], st.one_of(st.booleans(), st.sampled_from(["true", "false", "0"]))),
}


def hot_frames() -> list[bytes]:
    """Returns recorded requests of the kinds that the kernel reads."""
    return [
        entry.frame
        for entry in all_frames()
        if entry.record["code"] in (10, 11, 310, 320, 361) and not entry.is_response and len(entry.frame) < 1500
    ]


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """JSON headers with keys in any order: mostly valid, sometimes with a missing, unknown or wrong field."""
    code = draw(st.sampled_from([310, 310, 320, 11, 361, 34, 0]))
    keys = V2_KEYS if code in (310, 320, 34) else PULL_KEYS
    small = st.one_of(st.integers(-3, 1 << 20), st.integers(-3, 1 << 20).map(str))
    ext_fields = {key: draw(usual.get(key, small)) for key in draw(st.permutations(keys))}
    surprise = draw(st.integers(0, 9))
    if surprise == 0:
        ext_fields.pop(draw(st.sampled_from(keys)))
    elif surprise < 3:
        ext_fields[draw(st.sampled_from([*keys, "x", "\u00e9"]))] = draw(value)
    top: dict[str, Any] = {"code": code, "opaque": draw(st.integers(-(1 << 31), (1 << 31) - 1)), "version": 479}
    top |= {"flag": draw(st.sampled_from([0, 0, 1, 2])), "language": "JAVA", "extFields": ext_fields}
    if surprise > 7:
        top |= draw(st.dictionaries(text, value, max_size=2))
    ordered = {key: top[key] for key in draw(st.permutations(list(top)))}
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r ")]))
    return json.dumps(ordered, ensure_ascii=draw(st.booleans()), separators=separators).encode()


def check(frame: bytes) -> None:
    """Checks that compiled and interpreted kernel agree, and read the same header values as the general path."""
    first = None
    for scanner in KERNELS:
        source, table, result = scan(scanner, frame)
        first = first or (source, table, result)
        assert (source, table, result) == first
    source, table, result = first  # type: ignore[misc]  # there is at least one form
    if result[0] != 1 or result[3]:
        assert source == frame or result[0] > 1
        return
    row = values(table, source)
    header = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
    try:
        wanted = expected(decode_header(header, frame[4]))
    except FormatError as error:
        if "once" not in error.expected:  # a field that the fast path does not read occurs twice
            assert row["kind"] == FrameKind.PLAIN and source == frame
        return
    if row["kind"] == FrameKind.PLAIN:  # the kernel may leave fields unread
        assert {**wanted, **row} == {**wanted, "kind": FrameKind.PLAIN}
    else:
        assert row == wanted


@given(headers(), st.binary(max_size=8))
@settings(max_examples=size(60, 300))
def test_random_headers(header: bytes, body: bytes) -> None:
    check(frame_of(header, body))


@given(HOT, CHANGES)
@settings(max_examples=size(60, 300))
def test_changed_frames(frame: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(frame)
    for position, byte in changes:
        changed[8 + position % (len(frame) - 8)] = byte
    check(bytes(changed))


@given(HOT, st.integers(0, 1 << 16))
def test_frames_with_a_shorter_header(frame: bytes, size: int) -> None:
    size = 1 + size % (len(frame) - 8)
    check(frame_of(frame[8 : 8 + size], frame[8 + size :], frame[4]))


@given(st.binary(max_size=200), st.integers(1, 300), st.booleans())
@settings(max_examples=size(60, 300))
def test_any_bytes(data: bytes, length: int, framed: bool) -> None:
    if framed:
        data = length.to_bytes(4, "big") + data
    results = [scan(scanner, data) for scanner in KERNELS]
    assert all(result == results[0] for result in results)
    reader = FrameReader(64)
    position = 0
    try:
        while position < len(data):
            buffer = reader.buffer()
            size = min(len(buffer), len(data) - position)
            assert size > 0
            buffer[:size] = data[position : position + size]
            position += size
            batch = reader.received(size)
            for row in range(batch.count if batch else 0):
                assert isinstance(batch.command(row), RemotingCommand)  # type: ignore[union-attr]
    except FormatError as error:
        assert str(error)


@given(
    st.lists(st.deferred(lambda: st.sampled_from(all_frames())), min_size=1, max_size=12),
    st.lists(st.integers(1, 5000), min_size=1, max_size=20),
)
@settings(max_examples=size(20, 100))
def test_any_split_into_reads(recorded: list[Any], sizes: list[int]) -> None:
    stream = b"".join(entry.frame for entry in recorded)
    reader = FrameReader(4096)
    commands, position, turn = [], 0, 0
    while position < len(stream):
        buffer = reader.buffer()
        size = min(len(buffer), sizes[turn % len(sizes)], len(stream) - position)
        buffer[:size] = stream[position : position + size]
        position, turn = position + size, turn + 1
        batch = reader.received(size)
        commands += [batch.command(row) for row in range(batch.count)] if batch else []
    bodies = [bytes(command.body) for command in commands]
    assert bodies == [entry.body for entry in recorded]
    assert [command.opaque for command in commands] == [entry.header["opaque"] for entry in recorded]
