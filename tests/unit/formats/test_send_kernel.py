"""Inspection of sends in rows and expansion of batches, by the compiled and the interpreted kernel."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel

from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, SendTrait, new_table
from rucola.formats.message import BATCH_MEMBER_HEAD
from rucola.formats.properties import decode_properties

BODY_MAX = 1000
QUEUES = 4


@pytest.fixture
def send(form: str) -> ModuleType:
    return kernel("formats._send_cy", form)


def inspect(send: ModuleType, properties: bytes, body: bytes = b"body") -> tuple[int, bytes | None]:
    source = body + properties
    table = new_table(1)
    table[FrameColumn.BODY_LEN] = len(body)
    table[FrameColumn.PROPERTIES_POS] = len(body)
    table[FrameColumn.PROPERTIES_LEN] = len(properties)
    traits = send.inspect_rows(source, table, 0, 1, BODY_MAX, QUEUES)
    assert traits == table[FrameColumn.TRAITS]
    start, length = table[FrameColumn.UNIQ_KEY_POS], table[FrameColumn.UNIQ_KEY_LEN]
    return traits, None if length < 0 else source[start : start + length]


@pytest.mark.parametrize(
    ("properties", "traits"),
    [
        (b"UNIQ_KEY\x01u\x02", 0),
        (b"TAGS\x01t\x02UNIQ_KEY\x01u\x02WAIT\x01true\x02", 0),
        (b"UNIQ_KEY\x01u\x02WAIT\x01TrUe", 0),
        (b"UNIQ_KEY\x01u\x02WAIT\x01false\x02", SendTrait.NO_WAIT),
        (b"UNIQ_KEY\x01u\x02WAIT\x01tru\x02", SendTrait.NO_WAIT),
        (b"UNIQ_KEY\x01u\x02WAIT\x01false\x02WAIT\x01true\x02", 0),
        (b"UNIQ_KEY\x01u\x02WAIT\x01true\x02WAIT\x01no\x02", SendTrait.NO_WAIT),
        (b"", SendTrait.NO_UNIQ_KEY),
        (b"UNIQ_KEY\x01\x02", SendTrait.NO_UNIQ_KEY),
        (b"XUNIQ_KEY\x01u\x02", SendTrait.NO_UNIQ_KEY),
        (b"UNIQ_KEY\x01u\x02KEYS\x01" + b"k" * 2047 + b"\x02", 0),
        (b"UNIQ_KEY\x01u\x02KEYS\x01" + b"k" * 2048 + b"\x02", SendTrait.SPECIAL),
        (b"UNIQ_KEY\x01u\x02KEYS\x01" + b"k" * 2048, SendTrait.SPECIAL),
        (b"UNIQ_KEY\x01u\x02__LITE_TOPIC\x01s\x02", SendTrait.LITE),
        (b"UNIQ_KEY\x01u\x02__LITE_TOPIC\x01s\x02DELAY\x011", SendTrait.LITE | SendTrait.SPECIAL),
        (b"UNIQ_KEY\x01u\x02__LITE_TOPID\x01s\x02", 0),
        (b"UNIQ_KEY\x01u\x02KEYX\x01" + b"k" * 2048 + b"\x02TAGS\x01" + b"k" * 2048, 0),
        *(
            (b"UNIQ_KEY\x01u\x02" + name + b"\x011\x02", SendTrait.SPECIAL)
            for name in (
                b"DELAY",
                b"DUP_INFO",
                b"TIMER_DELAY_SEC",
                b"TIMER_DELAY_MS",
                b"TIMER_DELIVER_MS",
                b"TRAN_MSG",
                b"TRACE_ON",
                b"POP_CK",
                b"INNER_NUM",
                b"INNER_MULTI_DISPATCH",
                b"MSG_REGION",
                b"CLUSTER",
                b"__CRC32#",
            )
        ),
        *(
            (b"UNIQ_KEY\x01u\x02" + name + b"\x011\x02", 0)
            for name in (
                b"DELAYS",
                b"DELA",
                b"TIMER_",
                b"TIMERS_X",
                b"CLUSTERS",
                b"POP_CKS",
                b"__CRC32",
                b"INNER",
                b"T",
            )
        ),
    ],
)
def test_traits(send: ModuleType, properties: bytes, traits: int) -> None:
    assert inspect(send, properties)[0] == traits


@pytest.mark.parametrize(
    ("properties", "uniq_key"),
    [
        (b"UNIQ_KEY\x01first\x02UNIQ_KEY\x01second\x02", b"second"),
        (b"a\x01b\x02UNIQ_KEY\x01x\x01y", b"x\x01y"),
        (b"UNIQ_KEY", None),
    ],
)
def test_uniq_key(send: ModuleType, properties: bytes, uniq_key: bytes | None) -> None:
    assert inspect(send, properties)[1] == uniq_key


@pytest.mark.parametrize(
    ("body", "properties", "illegal"),
    [
        (1, 20, False),
        (BODY_MAX, 20, False),
        (BODY_MAX + 1, 20, True),
        (0, 20, True),
        (1, 32767 - 1000, False),
        (1, 32767 - 999, True),
    ],
)
def test_illegal(send: ModuleType, body: int, properties: int, illegal: bool) -> None:
    text = b"UNIQ_KEY\x01u\x02a\x01".ljust(properties, b"v")
    assert inspect(send, text, bytes(body))[0] == (SendTrait.ILLEGAL if illegal else 0)


def test_result_is_the_or_of_all_rows(send: ModuleType) -> None:
    texts = (b"UNIQ_KEY\x01u\x02", b"", b"UNIQ_KEY\x01u\x02WAIT\x01no\x02")
    source = b"".join(texts)
    table = new_table(3)
    for row, text in enumerate(texts):
        table[row * ROW_WIDTH + FrameColumn.BODY_LEN] = 1
        table[row * ROW_WIDTH + FrameColumn.PROPERTIES_POS] = sum(map(len, texts[:row]))
        table[row * ROW_WIDTH + FrameColumn.PROPERTIES_LEN] = len(text)
    assert send.inspect_rows(source, table, 0, 3, BODY_MAX, QUEUES) == SendTrait.NO_UNIQ_KEY | SendTrait.NO_WAIT
    assert send.inspect_rows(source, table, 0, 1, BODY_MAX, QUEUES) == 0
    assert send.inspect_rows(source, table, 1, 1, BODY_MAX, QUEUES) == 0


@pytest.mark.parametrize(
    ("column", "value", "traits"),
    [
        (FrameColumn.QUEUE_ID, QUEUES - 1, 0),
        (FrameColumn.QUEUE_ID, QUEUES, SendTrait.OTHER_QUEUE),
        (FrameColumn.QUEUE_ID, -1, SendTrait.OTHER_QUEUE),
        (FrameColumn.QUEUE_ID, 2**62, SendTrait.OTHER_QUEUE),
        (FrameColumn.SYS_FLAG, 3, 0),
        (FrameColumn.SYS_FLAG, 4, SendTrait.TRANSACTION),
        (FrameColumn.SYS_FLAG, 9, SendTrait.TRANSACTION),
    ],
)
def test_traits_of_the_header(send: ModuleType, column: FrameColumn, value: int, traits: int) -> None:
    properties = b"UNIQ_KEY\x01u\x02"
    table = new_table(1)
    table[FrameColumn.BODY_LEN] = 1
    table[FrameColumn.PROPERTIES_LEN] = len(properties)
    table[column] = value
    assert send.inspect_rows(properties, table, 0, 1, BODY_MAX, QUEUES) == traits


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (FrameColumn.BODY_LEN, 11),
        (FrameColumn.BODY_POS, -1),
        (FrameColumn.BODY_POS, 2**62),
        (FrameColumn.BODY_LEN, 2**62),
        (FrameColumn.PROPERTIES_POS, 8),
        (FrameColumn.PROPERTIES_POS, -1),
        (FrameColumn.PROPERTIES_LEN, 2**62),
    ],
)
def test_spans_outside_are_refused(send: ModuleType, column: FrameColumn, value: int) -> None:
    table = new_table(1)
    table[FrameColumn.BODY_LEN] = 5
    table[FrameColumn.PROPERTIES_LEN] = 5
    table[column] = value
    with pytest.raises(ValueError, match="outside"):
        send.inspect_rows(bytes(10), table, 0, 1, BODY_MAX, QUEUES)
    with pytest.raises(ValueError, match="outside"):
        send.inspect_rows(bytes(10), new_table(1), 0, 2, BODY_MAX, QUEUES)


def member(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    head = BATCH_MEMBER_HEAD.pack(22 + len(body) + len(properties), 0, 0, flag, len(body))
    return head + body + len(properties).to_bytes(2, "big") + properties


def expand(send: ModuleType, body: bytes, rows_max: int = 8) -> tuple[int, array[int], bytes]:
    source = b"envelope" + body
    envelope = new_table(2)
    for column in FrameColumn:
        envelope[ROW_WIDTH + column] = 1000 + column
    envelope[ROW_WIDTH + FrameColumn.BODY_POS] = 8
    envelope[ROW_WIDTH + FrameColumn.BODY_LEN] = len(body)
    envelope[ROW_WIDTH + FrameColumn.PROPERTIES_POS] = 0
    envelope[ROW_WIDTH + FrameColumn.PROPERTIES_LEN] = 8
    members = new_table(rows_max)
    return send.expand_batch(source, envelope, 1, members, rows_max), members, source


def test_members(send: ModuleType) -> None:
    parts = [(b"one", b"TAGS\x01a\x02", 7), (b"", b"", -1), (b"three" * 9, b"x", 0)]
    count, rows, source = expand(send, b"".join(member(*part) for part in parts))
    assert count == 3
    for i, (body, properties, flag) in enumerate(parts):
        row = rows[i * ROW_WIDTH : (i + 1) * ROW_WIDTH]
        body_pos, properties_pos = row[FrameColumn.BODY_POS], row[FrameColumn.PROPERTIES_POS]
        assert source[body_pos : body_pos + row[FrameColumn.BODY_LEN]] == body
        assert source[properties_pos : properties_pos + row[FrameColumn.PROPERTIES_LEN]] == properties
        assert row[FrameColumn.MESSAGE_FLAG] == flag
        assert row[FrameColumn.KIND] == FrameKind.SEND
        assert row[FrameColumn.SAME_TOPIC] == (i > 0)
        for column in (FrameColumn.OPAQUE, FrameColumn.TOPIC_POS, FrameColumn.QUEUE_ID, FrameColumn.BORN_TIMESTAMP):
            assert row[column] == 1000 + column


def test_every_cut_is_refused(send: ModuleType) -> None:
    whole = member(b"one", b"TAGS\x01a\x02") + member(b"two", b"")
    for end in range(len(whole)):
        expected = {0: 0, len(member(b"one", b"TAGS\x01a\x02")): 1}.get(end, -1)
        assert expand(send, whole[:end])[0] == expected


@pytest.mark.parametrize(("at", "patch"), [(0, 24), (0, -1), (16, -1), (16, 2**31 - 1), (16, 2), (19, 0x7FFFFFFF)])
def test_lengths_that_do_not_add_up(send: ModuleType, at: int, patch: int) -> None:
    body = bytearray(member(b"one", b""))
    body[at : at + 4] = patch.to_bytes(4, "big", signed=True)
    assert expand(send, bytes(body))[0] == -1


def test_too_many_members(send: ModuleType) -> None:
    body = member(b"", b"") * 3
    assert expand(send, body, 3)[0] == 3
    assert expand(send, body, 2)[0] == -2
    assert expand(send, body, 0)[0] == -2


@given(st.binary(max_size=200), st.integers(0, 3))
def test_no_bytes_break_either_function_and_both_forms_agree(data: bytes, rows_max: int) -> None:
    results = []
    for form in FORMS:
        send = kernel("formats._send_cy", form)
        traits, uniq_key = inspect(send, data)
        expected = decode_properties(data).get("UNIQ_KEY")
        assert (uniq_key is None) == (expected is None)
        assert uniq_key is None or uniq_key.decode("utf-8", "replace") == expected
        results.append((traits, uniq_key, *expand(send, data, rows_max)[:2]))
    assert all(result == results[0] for result in results)
