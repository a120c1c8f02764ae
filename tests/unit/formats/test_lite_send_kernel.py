"""The kernels that prepare messages of lite topics, in both forms: they do what decoding and encoding does."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel

from rucola.common.columns import ROW_WIDTH, FrameColumn, SendTrait, new_table
from rucola.common.lite_topics import LITE_TOPIC_CHARACTERS_MAX
from rucola.formats.message import inspect_rows
from rucola.formats.properties import decode_properties, encode_properties

HEAD, BETWEEN = b"INNER_MULTI_DISPATCH\x01%LMQ%$Parent$", b"\x02INNER_MULTI_QUEUE_OFFSET\x01"
ADDED = len(HEAD) + len(BETWEEN)
UNIQ, NAMED = b"UNIQ_KEY\x01key-1", b"__LITE_TOPIC\x01session-1"
PAIRS = st.sampled_from(
    [UNIQ, NAMED, b"TAGS\x01a", b"TAGS\x01b", b"a\x01b\x01c", b"", b"\x01x", b"x", b"WAIT\x01false", b"WAIT\x01true",
     b"name\x01\xc3\xbc", b"_own\x01value", b"__SHARDINGKEY\x01k", b"__SHARDINGKEX\x01k", b"__STARTDELIVERTIME\x011",
     *(b"__LITE_TOPIC\x01" + name for name in (b"x" * 64, b"x" * 65, b"a/b", b"a_-Z09", b"[", b"`", b""))]
)  # fmt: skip


def table_of(*texts: bytes) -> tuple[bytearray, array[int]]:
    """Rows with the body ``body`` and these properties, as ``inspect_rows`` leaves them."""
    source, table = bytearray(b"-"), new_table(len(texts))
    for row, text in enumerate(texts):
        base = row * ROW_WIDTH
        table[base + FrameColumn.BODY_POS], table[base + FrameColumn.BODY_LEN] = len(source), 4
        table[base + FrameColumn.PROPERTIES_POS], table[base + FrameColumn.PROPERTIES_LEN] = len(source) + 4, len(text)
        source += b"body" + text
    inspect_rows(source, table, 0, len(texts), 1 << 20, 4)
    return source, table


def find(
    form: str, source: bytearray, table: array[int], no_wait: bool = True, rows: int = 8
) -> tuple[int, array[int]]:
    places = array("q", bytes(16 * rows))
    count = len(table) // ROW_WIDTH
    pairs = array("q", bytes(16 * 4))
    return (
        kernel("formats._lite_send_cy", form).find_plain_lite(source, table, 0, count, no_wait, ADDED, places, pairs),
        places,
    )


def is_plain(text: bytes) -> bool:
    """Whether a row is stored as it came, with two more properties."""
    properties = decode_properties(text)
    name = properties.get("__LITE_TOPIC", "")
    return (
        text.isascii()
        and encode_properties(properties) in (text, text + b"\x02")
        and len(properties) <= 4
        and "UNIQ_KEY" in properties
        and 0 < len(name) <= LITE_TOPIC_CHARACTERS_MAX
        and all(char.isalnum() or char in "_-" for char in name)
        and not {"__SHARDINGKEY", "__STARTDELIVERTIME"} & properties.keys()
    )


@pytest.mark.parametrize("form", FORMS)
@example([UNIQ, NAMED, b"__SHARDINGKEY\x01k"], b"", 0)
@example([UNIQ, NAMED, b"__STARTDELIVERTIME\x011"], b"", 0)
@example([UNIQ, NAMED, b"name\x01\xc3\xbc"], b"", 0)
@example([UNIQ, NAMED, b"TAGS\x01a", b"TAGS\x01b"], b"", 0)
@example([UNIQ, NAMED, b"TAGS\x01a", b"a\x01b\x01c", b"_own\x01value"], b"", 0)
@example([UNIQ, NAMED, b"__SHARDINGKEX\x01k"], b"\x02", (1 << 63) - 1)
@given(pairs=st.lists(PAIRS, max_size=6), end=st.sampled_from([b"", b"\x02"]), offset=st.integers(0, (1 << 63) - 1))
def test_a_row_is_written_as_the_broker_would_encode_it(form: str, pairs: list[bytes], end: bytes, offset: int) -> None:
    text = b"\x02".join(pairs) + end
    source, table = table_of(text)
    count, places = find(form, source, table)
    assert count == is_plain(text)
    if not count:
        return
    target, rows = bytearray(len(text) + 4 + ADDED + 64 + 32), new_table(1)
    end_of = kernel("formats._lite_send_cy", form).write_lite_rows(
        source, table, 0, 1, HEAD, BETWEEN, places, array("q", (offset,)), target, rows
    )
    properties = decode_properties(text)
    added = {
        "INNER_MULTI_DISPATCH": f"%LMQ%$Parent${properties['__LITE_TOPIC']}",
        "INNER_MULTI_QUEUE_OFFSET": str(offset),
    }
    start, length = rows[FrameColumn.PROPERTIES_POS], rows[FrameColumn.PROPERTIES_LEN]
    assert bytes(target[start : start + length]) == encode_properties(properties | added)
    assert (start, start + length) == (4, end_of) and target[:4] == b"body"
    key = rows[FrameColumn.UNIQ_KEY_POS]
    assert target[key : key + rows[FrameColumn.UNIQ_KEY_LEN]] == b"key-1"
    places_of_texts = (
        FrameColumn.BODY_POS,
        FrameColumn.PROPERTIES_POS,
        FrameColumn.PROPERTIES_LEN,
        FrameColumn.UNIQ_KEY_POS,
    )
    for column in set(range(ROW_WIDTH)) - {int(column) for column in places_of_texts}:
        assert rows[column] == table[column]


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_found_up_to_the_first_that_needs_more(form: str) -> None:
    plain, no_wait = UNIQ + b"\x02" + NAMED, UNIQ + b"\x02" + NAMED + b"\x02WAIT\x01false"
    source, table = table_of(plain, no_wait, plain, UNIQ, plain)
    assert find(form, source, table)[0] == 3
    assert find(form, source, table, no_wait=False)[0] == 1
    assert find(form, source, table, rows=2)[0] == 2
    assert find(form, source, table, rows=0)[0] == 0
    for trait in SendTrait:
        table[FrameColumn.TRAITS] = SendTrait.LITE | trait
        assert find(form, source, table)[0] == (3 if trait in (SendTrait.NO_WAIT, SendTrait.LITE) else 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("more", "found"), [(0, 1), (1, 0)])
def test_there_must_be_room_for_what_the_broker_adds(form: str, more: int, found: int) -> None:
    text = UNIQ + b"\x02" + NAMED + b"\x02a\x01"
    limit = 32767 - 1000 - ADDED - LITE_TOPIC_CHARACTERS_MAX - 19 - 2
    source, table = table_of(text + b"x" * (limit - len(text) + more))
    assert find(form, source, table)[0] == found


@pytest.mark.parametrize("form", FORMS)
def test_too_little_room_and_false_places_are_refused(form: str) -> None:
    write = kernel("formats._lite_send_cy", form).write_lite_rows
    source, table = table_of(UNIQ + b"\x02" + NAMED)
    _, places = find(form, source, table)
    least, offsets, rows = (
        4 + len(UNIQ) + 1 + len(NAMED) + ADDED + len(b"session-1") + 19 + 2,
        array("q", (0,)),
        new_table(1),
    )
    write(source, table, 0, 1, HEAD, BETWEEN, places, offsets, bytearray(least), rows)
    for arguments in (
        (source, table, 0, 1, HEAD, BETWEEN, places, offsets, bytearray(least - 1), rows),
        (source, table, 1, 1, HEAD, BETWEEN, places, offsets, bytearray(least), rows),
        (source, table, 0, 2, HEAD, BETWEEN, places, offsets, bytearray(2 * least), new_table(2)),
        (source, table, 0, 1, HEAD, BETWEEN, places, array("q"), bytearray(least), rows),
        (source, table, 0, 1, HEAD, BETWEEN, places, array("q", (-1,)), bytearray(least), rows),
        (source, table, 0, 1, HEAD, BETWEEN, array("q", (0, 0)), offsets, bytearray(least), rows),
        (source, table, 0, 1, HEAD, BETWEEN, array("q", (len(source), 1)), offsets, bytearray(least), rows),
        (bytearray(b"short"), table, 0, 1, HEAD, BETWEEN, places, offsets, bytearray(least), rows),
        (source, table, 0, 1, HEAD, BETWEEN, places, offsets, bytearray(least), array("q")),
    ):
        with pytest.raises(ValueError, match="row"):
            write(*arguments)
    with pytest.raises(ValueError, match="outside the table"):
        kernel("formats._lite_send_cy", form).find_plain_lite(source, table, 0, 2, True, ADDED, places, array("q"))
