"""The kernels that find records of light queues, in both forms: they agree with the plain decoder."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel

from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.formats.light_queue import allows_light_queues, is_lite, light_queue_offsets
from rucola.formats.lite import QUEUE_OFFSET_MAX
from rucola.formats.properties import decode_properties

TOPIC = b"Parent"
NAMES = st.sampled_from(
    ["%LMQ%$Parent$s1", "%LMQ%$Parent$s2", "%LMQ%$Other$s1", "%LMQ%bare", "%LMQ%$Parent$", "%LMQ%$Parent$a$b", "", "x",
     "%LMQ%$Parent$a/b", "%LMQ%$Parent$" + "x" * 242, "%LMQ%$Parent$" + "x" * 243, "%LMQ%$Parent$a\\b", "%LMQ%$Paren"]
)  # fmt: skip
OFFSETS = st.sampled_from(
    ["0", "7", "12345", "", " 1", "x", str(QUEUE_OFFSET_MAX), str(QUEUE_OFFSET_MAX + 1), "9" * 19]
)
PAIRS = st.one_of(
    st.lists(NAMES, max_size=3).map(lambda names: b"INNER_MULTI_DISPATCH\x01%b" % ",".join(names).encode()),
    st.lists(OFFSETS, max_size=3).map(lambda offsets: b"INNER_MULTI_QUEUE_OFFSET\x01%b" % ",".join(offsets).encode()),
    st.sampled_from(
        [b"TAGS\x01a", b"", b"INNER_MULTI_DISPATCH", b"\x01x", b"INNER_MULTI_DISPATCH_\x01%LMQ%$Parent$s3"]
    ),
)


def table_of(properties: bytes, topic: bytes = TOPIC) -> tuple[bytes, array[int]]:
    segment, table = topic + properties, new_table(1)
    table[RecordColumn.TOPIC_LEN] = len(topic)
    table[RecordColumn.PROPERTIES_POS], table[RecordColumn.PROPERTIES_LEN] = len(topic), len(properties)
    return segment, table


def expected(properties: bytes) -> tuple[bytes, int] | None:
    """The first light queue of ``TOPIC`` with an offset that units can have."""
    for item in light_queue_offsets(properties):
        if item is not None and is_lite(item[0]) and item[1] <= QUEUE_OFFSET_MAX:
            parent, _, lite = item[0][len(b"%LMQ%$") :].partition(b"$")
            if parent == TOPIC:
                return lite, item[1]
    return None


@pytest.mark.parametrize("form", FORMS)
@given(pairs=st.lists(PAIRS, max_size=5), end=st.sampled_from([b"", b"\x02"]))
@example([b"INNER_MULTI_DISPATCH\x01%LMQ%$Parent$s1,%LMQ%$Parent$s2", b"INNER_MULTI_QUEUE_OFFSET\x01,7"], b"")
@example([b"INNER_MULTI_QUEUE_OFFSET\x013", b"INNER_MULTI_DISPATCH\x01%LMQ%$Parent$" + b"x" * 242], b"")
@example([b"INNER_MULTI_QUEUE_OFFSET\x013", b"INNER_MULTI_DISPATCH\x01%LMQ%$Parent$" + b"x" * 243], b"")
def test_the_lite_topic_is_that_of_the_plain_decoder(form: str, pairs: list[bytes], end: bytes) -> None:
    properties = b"\x02".join(pairs) + end
    segment, table = table_of(properties)
    found = kernel("formats._lite_rows_cy", form).find_lite(segment, table, 1, QUEUE_OFFSET_MAX)
    position, length, offset = table[RecordColumn.LITE_POS : RecordColumn.LITE_OFFSET + 1]
    assert ((segment[position : position + length], offset) if found else None) == expected(properties)
    assert found or (length, offset) == (-1, -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "rows"), [("find_lite", (1,)), ("find_alone", (0, 1))])
@given(data=st.binary(max_size=300), numbers=st.lists(st.integers(-5, 400), min_size=4, max_size=4))
def test_arbitrary_rows_do_no_harm(
    form: str, name: str, rows: tuple[int, ...], data: bytes, numbers: list[int]
) -> None:
    find = getattr(kernel("formats._lite_rows_cy", form), name)
    table = new_table(1)
    columns = (RecordColumn.TOPIC_POS, RecordColumn.TOPIC_LEN, RecordColumn.PROPERTIES_POS, RecordColumn.PROPERTIES_LEN)
    for column, number in zip(columns, numbers, strict=True):
        table[column] = number
    topic, topic_len, position, length = numbers
    inside = 0 <= topic <= len(data) - max(topic_len, 0) and 0 <= position <= len(data) - length
    if length > 44 and not inside:
        with pytest.raises(ValueError, match="row 0"):
            find(data, table, *rows, QUEUE_OFFSET_MAX)
    else:
        find(data, table, *rows, QUEUE_OFFSET_MAX)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [-1, 2])
def test_rows_outside_of_the_table_are_refused(form: str, rows: int) -> None:
    with pytest.raises(ValueError, match="rows do not fit"):
        kernel("formats._lite_rows_cy", form).find_lite(b"", new_table(1), rows, QUEUE_OFFSET_MAX)
    assert len(new_table(1)) == ROW_WIDTH


@pytest.mark.parametrize("form", FORMS)
@given(
    rows=st.lists(st.lists(PAIRS, max_size=5).map(b"\x02".join), max_size=4),
    end=st.sampled_from([b"", b"\x02"]),
    first=st.integers(0, 4),
)
@example([b"INNER_MULTI_DISPATCH\x01", b"INNER_MULTI_DISPATCH\x01x"], b"", 0)
@example([b"XINNER_MULTI_DISPATCH\x01x", b"TAGS\x01INNER_MULTI_DISPATCH\x02"], b"", 0)
def test_the_next_record_of_a_light_queue_is_found(form: str, rows: list[bytes], end: bytes, first: int) -> None:
    segment, table = b"", new_table(len(rows))
    for number, properties in enumerate(rows):
        row = number * ROW_WIDTH
        table[row + RecordColumn.PROPERTIES_POS] = len(segment)
        table[row + RecordColumn.PROPERTIES_LEN] = len(properties + end)
        segment += properties + end
    found = kernel("formats._lite_rows_cy", form).next_light(segment, table, first, len(rows))
    named = [number for number, one in enumerate(rows) if "INNER_MULTI_DISPATCH" in decode_properties(one + end)]
    assert found == next((number for number in named if number >= first), len(rows))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("first", "rows", "position"), [(-1, 1, 0), (0, 2, 0), (0, 1, 1), (0, 1, -1)])
def test_records_outside_are_refused(form: str, first: int, rows: int, position: int) -> None:
    properties, table = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02", new_table(1)
    table[RecordColumn.PROPERTIES_POS], table[RecordColumn.PROPERTIES_LEN] = position, len(properties)
    with pytest.raises(ValueError, match=r"outside the segment|not in a table"):
        kernel("formats._lite_rows_cy", form).next_light(properties, table, first, rows)


TOPICS = st.sampled_from(
    [TOPIC, b"Paren\xc3\xbc", b"%RETRY%Parent", b"%DLQ%Parent", b"rmq_sys_Parent", b"rmq_sys", b"rmq",
     b"SCHEDULE_TOPIC_XXXX", b"S"]
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@example([b"INNER_MULTI_DISPATCH\x01%LMQ%$Parent$s1,x", b"INNER_MULTI_QUEUE_OFFSET\x017"], False, b"", TOPIC)
@example([b"INNER_MULTI_QUEUE_OFFSET\x018"], True, b"", TOPIC)
@example([b"INNER_MULTI_DISPATCH\x01%LMQ%$Parent$s2"], True, b"", TOPIC)
@example([], True, b"", b"Paren\xc3\xbc")
@given(pairs=st.lists(PAIRS, max_size=4), own=st.booleans(), end=st.sampled_from([b"", b"\x02"]), topic=TOPICS)
def test_a_lite_topic_that_is_alone_is_the_only_entry(
    form: str, pairs: list[bytes], own: bool, end: bytes, topic: bytes
) -> None:
    if own:
        pairs = [b"INNER_MULTI_DISPATCH\x01%LMQ%$" + topic + b"$s1", b"INNER_MULTI_QUEUE_OFFSET\x017", *pairs]
    properties = b"\x02".join(pairs) + end
    segment, table = table_of(properties, topic)
    found = kernel("formats._lite_rows_cy", form).find_alone(segment, table, 0, 1, QUEUE_OFFSET_MAX)
    position, length, offset = table[RecordColumn.LITE_POS : RecordColumn.LITE_OFFSET + 1]
    assert found or (length, offset) == (-1, -1)
    if found:
        name = segment[position - len(topic) - len(b"%LMQ%$$") : position + length]
        assert allows_light_queues(topic)
        assert list(light_queue_offsets(properties)) == [(name, offset)]
        assert is_lite(name)
    elif own and len(pairs) == 2 and topic.isascii():
        assert not allows_light_queues(topic)


@pytest.mark.parametrize("form", FORMS)
def test_rows_outside_the_table_are_refused(form: str) -> None:
    for first, rows in ((-1, 1), (0, 2)):
        with pytest.raises(ValueError, match="not in a table"):
            kernel("formats._lite_rows_cy", form).find_alone(b"", new_table(1), first, rows, QUEUE_OFFSET_MAX)
