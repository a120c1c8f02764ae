"""Columns for Arrow, made by the compiled and the interpreted kernel."""

from __future__ import annotations

import json
from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel
from tests.unit.formats.samples import property_maps

from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.formats.properties import decode_properties, encode_properties

POS, LEN = RecordColumn.PROPERTIES_POS, RecordColumn.PROPERTIES_LEN


@pytest.fixture
def columns(form: str) -> ModuleType:
    return kernel("formats._columns_cy", form)


def rows_of(texts: list[bytes | None]) -> tuple[bytes, array[int]]:
    """Returns a buffer with the property texts, and a table with their positions and lengths."""
    table = new_table(len(texts))
    data = bytearray(b"?")
    for row, text in enumerate(texts):
        table[row * ROW_WIDTH + POS] = len(data)
        table[row * ROW_WIDTH + LEN] = -1 if text is None else len(text)
        data += (text or b"") + b"?"
    return bytes(data), table


def split(values: bytes | bytearray, offsets: array[int], rows: int) -> list[bytes]:
    return [bytes(values[offsets[row] : offsets[row + 1]]) for row in range(rows)]


def gather(columns: ModuleType, texts: list[bytes | None], room: int) -> list[bytes]:
    data, table = rows_of(texts)
    out, offsets = bytearray(room), array("i", [77] * (len(texts) + 1))
    size = columns.gather(data, table, len(texts), POS, LEN, out, offsets)
    assert size == offsets[-1]
    return split(out, offsets, len(texts))


def objects(columns: ModuleType, texts: list[bytes | None]) -> list[bytes]:
    data, table = rows_of(texts)
    offsets = array("i", bytes(4 * len(texts) + 4))
    size = columns.properties_json(data, table, len(texts), bytearray(), offsets)
    out = bytearray(size + 3)
    assert columns.properties_json(data, table, len(texts), out, offsets) == size == offsets[len(texts)]
    assert not any(out[size:])
    return split(out, offsets, len(texts))


def roomy_objects(columns: ModuleType, texts: list[bytes | None]) -> list[bytes]:
    """Returns JSON objects, made in buffers with space at the end, so that the kernel can copy eight bytes at once."""
    data, table = rows_of(texts)
    offsets = array("i", bytes(4 * len(texts) + 4))
    out = bytearray(6 * len(data) + 32 * len(texts))
    assert columns.properties_json(data + bytes(8), table, len(texts), out, offsets) == offsets[len(texts)]
    return split(out, offsets, len(texts))


def test_gather(columns: ModuleType) -> None:
    assert gather(columns, [b"one", None, b"", b"three"], 8) == [b"one", b"", b"", b"three"]
    assert gather(columns, [], 0) == []
    assert gather(columns, [None], 0) == [b""]


def test_gather_into_signed_bytes(columns: ModuleType) -> None:
    data, table = rows_of([b"one"])
    out, offsets = array("b", bytes(3)), array("i", [0, 0])
    assert columns.gather(data, table, 1, POS, LEN, memoryview(out), offsets) == 3
    assert out.tobytes() == b"one"


def test_gather_refuses_what_does_not_fit(columns: ModuleType) -> None:
    with pytest.raises(ValueError, match="too few"):
        gather(columns, [b"one", b"two"], 5)
    data, table = rows_of([b"one"])
    for rows, offsets in ((2, 3), (1, 1), (-1, 3)):
        with pytest.raises(ValueError, match="do not fit"):
            columns.gather(data, table, rows, POS, LEN, bytearray(9), array("i", bytes(4 * offsets)))
    with pytest.raises(ValueError, match="does not exist"):
        columns.gather(data, table, 1, 40, LEN, bytearray(9), array("i", bytes(8)))
    for start, length in ((-1, 1), (len(data), 1), (0, len(data) + 1), (2**62, 1), (0, 2**62)):
        table[POS], table[LEN] = start, length
        with pytest.raises(ValueError, match="outside"):
            columns.gather(data, table, 1, POS, LEN, bytearray(99), array("i", bytes(8)))
        with pytest.raises(ValueError, match="outside"):
            columns.properties_json(data, table, 1, bytearray(99), array("i", bytes(8)))


@given(st.data())
def test_objects_of_rows_that_differ_in_some_bytes(data: st.DataObject) -> None:
    """A JSON object that the kernel makes by changing an earlier row's object equals an object made from scratch."""
    some = [b"KEYS\x01key-1000\x02TAGS\x01TagA\x02", b"UNIQ_KEY\x010123456789\x02a\x01b", b"a\x01\x02b\x01cc"]
    bytes_of_all_kinds = st.sampled_from(b'0Az\x01\x02\x1f"\\\x7f\x80\xc3\xa9')
    texts: list[bytes | None] = [data.draw(st.sampled_from(some))]
    for _ in range(data.draw(st.integers(1, 12))):
        text = bytearray(data.draw(st.sampled_from(texts)) or b"")
        for _ in range(data.draw(st.integers(0, 3))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(bytes_of_all_kinds)
        texts.append(bytes(text))
    columns = kernel("formats._columns_cy", FORMS[0])
    assert roomy_objects(columns, texts) == [objects(columns, [text])[0] for text in texts]


def test_objects_of_rows_that_take_turns(columns: ModuleType) -> None:
    """The kernel keeps earlier rows as templates; a row's length modulo the number of templates selects its template.
    Here, rows have several lengths, some replace other templates, and some are too long to be kept.
    """
    texts: list[bytes | None] = [
        b"k\x01%03d%s\x02" % (number, b"v" * (number * 8 % 40 + (1500 if number % 9 == 0 else 0)))
        for number in range(90)
    ]
    assert roomy_objects(columns, texts) == [b'{"k":"%s"}' % (text or b"")[2:-1] for text in texts]


def test_survey(columns: ModuleType) -> None:
    table = new_table(3)
    for row, (flags, is_same) in enumerate([(1, 0), (4, 1), (1 << 40, 1)]):
        table[row * ROW_WIDTH + RecordColumn.SYS_FLAG] = flags
        table[row * ROW_WIDTH + RecordColumn.SAME_TOPIC] = is_same
    assert columns.survey(table, 3) == (5 + (1 << 40), True)
    assert columns.survey(table, 1) == (1, True)
    table[ROW_WIDTH + RecordColumn.SAME_TOPIC] = 0
    assert columns.survey(table, 3) == (5 + (1 << 40), False)
    with pytest.raises(ValueError, match="do not fit"):
        columns.survey(table, 4)


def test_checksums_are_left_out(columns: ModuleType) -> None:
    last = b"__CRC32#\x010123456789\x02"
    texts = [
        b"a\x01b\x02" + last,
        last,
        b"a\x01" + last[1:],
        b"",
        None,
        last + b"a\x01b\x02",
        last.replace(b"#\x01", b"##"),
    ]
    data, table = rows_of(texts)
    columns.leave_out_checksums(data, table, len(texts))
    assert [table[row * ROW_WIDTH + LEN] for row in range(len(texts))] == [4, 0, 21, 0, -1, 24, len(last)]
    table[POS], table[LEN] = len(data) - 19, 20
    with pytest.raises(ValueError, match="outside"):
        columns.leave_out_checksums(data, table, 1)


def test_is_ascii(columns: ModuleType) -> None:
    assert columns.is_ascii(b"")
    assert columns.is_ascii(bytes(range(128)) * 3)
    for at in range(40):
        assert not columns.is_ascii(bytes(at) + b"\x80" + bytes(40 - at))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "{}"),
        (b"", "{}"),
        (b"a\x01b", '{"a":"b"}'),
        (b"a\x01b\x02c\x01d\x02", '{"a":"b","c":"d"}'),
        (b"a\x01b\x02\x02x\x02\x01y\x02z\x01\x02c\x01d\x02", '{"a":"b","c":"d"}'),
        (b"a\x01first\x02b\x01x\x02a\x01second\x02", '{"b":"x","a":"second"}'),
        (b"a\x01first\x02a\x01\x02", '{"a":"first"}'),
        (b"a\x01b\x01c\x02", '{"a":"b\\u0001c"}'),
        (b'q"\\\x01\b\t\n\x0b\f\r\x1f/\x7f\x02', '{"q\\"\\\\":"\\b\\t\\n\\u000b\\f\\r\\u001f/\x7f"}'),
        ("é\x01中\U0001f600\x02".encode(), '{"é":"中\U0001f600"}'),
        (b"a\x01\xed\xa0\x80\xf0\x80\x80\x80\xf4\x90\x02", '{"a":"%s"}' % ("\ufffd" * 9)),
        (b"a\x01\xff\xc3\x28\xe4\xb8\x02", '{"a":"\ufffd\ufffd(\ufffd"}'),
    ],
)
def test_objects(columns: ModuleType, text: bytes | None, expected: str) -> None:
    assert objects(columns, [text, text]) == [expected.encode()] * 2
    assert roomy_objects(columns, [text, text]) == [expected.encode()] * 2


def test_a_repeated_name_counts_once_among_names_that_look_alike(columns: ModuleType) -> None:
    text = b"xa\x011\x02ya\x012\x02xa\x013\x02za\x014\x02"
    assert objects(columns, [text]) == [b'{"ya":"2","xa":"3","za":"4"}']
    assert roomy_objects(columns, [text]) == [b'{"ya":"2","xa":"3","za":"4"}']


@given(st.lists(st.one_of(st.none(), st.binary(max_size=60), property_maps.map(encode_properties)), max_size=5))
def test_objects_are_the_properties_in_both_forms(texts: list[bytes | None]) -> None:
    for form in FORMS:
        for text, written in zip(texts, objects(kernel("formats._columns_cy", form), texts), strict=True):
            assert json.loads(written) == decode_properties(text or b"")
            assert len(json.loads(written, object_pairs_hook=list)) == len(decode_properties(text or b""))


@given(st.lists(st.one_of(st.none(), st.text('\x01\x02ab"\\ \n\x1f!#[]é中\x7f').map(str.encode)), max_size=4))
def test_objects_do_not_depend_on_the_room(texts: list[bytes | None]) -> None:
    for form in FORMS:
        assert roomy_objects(kernel("formats._columns_cy", form), texts) == objects(
            kernel("formats._columns_cy", form), texts
        )


@given(st.lists(st.one_of(st.none(), st.binary(max_size=30)), max_size=6))
def test_gather_gives_back_what_is_there(texts: list[bytes | None]) -> None:
    room = sum(len(text or b"") for text in texts)
    for form in FORMS:
        assert gather(kernel("formats._columns_cy", form), texts, room) == [text or b"" for text in texts]


def test_counted_bytes(columns: ModuleType) -> None:
    _, table = rows_of([b"one", None, b"", b"three", None])
    assert columns.count_bytes(table, 5, LEN) == (8, 2)
    assert columns.count_bytes(table, 1, LEN) == (3, 0)
    assert columns.count_bytes(table, 0, LEN) == (0, 0)


@pytest.mark.parametrize(("rows", "column"), [(3, 5), (-1, 5), (2, 40), (2, -1)])
def test_columns_that_do_not_exist_are_refused(columns: ModuleType, rows: int, column: int) -> None:
    with pytest.raises(ValueError, match="fit"):
        columns.count_bytes(new_table(2), rows, column)


def test_intervals(columns: ModuleType) -> None:
    table = new_table(8)
    rows = ((0, 5, 0), (0, 4, 0), (1, 9, 8), (1, 10, 0), (2, 0, 0), (-1, 5, 0), (0, 6, 4), (1, 9, 12))
    for row, (queue_id, queue_offset, sys_flag) in enumerate(rows):
        table[row * ROW_WIDTH + RecordColumn.QUEUE_ID] = queue_id
        table[row * ROW_WIDTH + RecordColumn.QUEUE_OFFSET] = queue_offset
        table[row * ROW_WIDTH + RecordColumn.SYS_FLAG] = sys_flag
    starts, ends, keep = array("q", [5, 0]), array("q", [7, 10]), bytearray(9)
    assert columns.mark_intervals(table, 8, array("i", [3] * 8), 3, starts, ends, keep) == 2
    assert list(keep) == [1, 0, 1, 0, 0, 0, 0, 0, 0]  # neither a prepared nor a rolled-back message
    assert columns.mark_intervals(table, 8, array("i", [3, 3, 7] + [3] * 5), 7, starts, ends, bytearray(8)) == 1
    assert columns.mark_intervals(table, 8, array("i", [3] * 8), 4, starts, ends, bytearray(8)) == 0
    for count, topics, ends_len, marks in ((9, 9, 2, 9), (-1, 8, 2, 8), (8, 7, 2, 8), (8, 8, 1, 8), (8, 8, 2, 7)):
        with pytest.raises(ValueError, match="fit"):
            columns.mark_intervals(
                table, count, array("i", bytes(4 * topics)), 0, starts, ends[:ends_len], bytearray(marks)
            )


MARKED = [(0, 5), (0, 7), (1, 0), (2, 0), (-1, 5), (1, 9), (1, 10), (0, 4), (0, 6)]
"""Queue id and queue offset of rows; queue 0 is wanted from 5 to 7, queue 1 up to 10."""


def rows_of_a_topic(topic: bytes) -> tuple[bytes, array[int]]:
    table = new_table(len(MARKED))
    for row, (queue_id, queue_offset) in enumerate(MARKED):
        start = row * ROW_WIDTH
        table[start + RecordColumn.TOPIC_POS], table[start + RecordColumn.TOPIC_LEN] = 1, len(topic)
        table[start + RecordColumn.SAME_TOPIC] = row > 0
        table[start + RecordColumn.QUEUE_ID] = queue_id
        table[start + RecordColumn.QUEUE_OFFSET] = queue_offset
        table[start + RecordColumn.SYS_FLAG] = (row == 8) * 4 + (row == 0) * 1024 + 64
    return b"?" + topic, table


def test_rows_of_one_topic_are_marked_in_one_pass(columns: ModuleType) -> None:
    segment, table = rows_of_a_topic(b"flights")
    starts, ends, keep = array("q", [5, 0]), array("q", [7, 10]), bytearray(b"\x07" * 10)
    assert columns.mark_topic(segment, table, 9, b"flights", starts, ends, keep) == (3, 1092)
    assert list(keep) == [1, 0, 1, 0, 0, 1, 0, 0, 0, 7]
    assert columns.mark_topic(segment, table, 1, b"flights", starts, ends, keep) == (1, 1088)


def test_rows_of_other_topics_are_not_marked(columns: ModuleType) -> None:
    segment, table = rows_of_a_topic(b"flights")
    starts, ends = array("q", [5, 0]), array("q", [7, 10])
    for topic in (b"flight", b"flightz", b"flights2", b""):
        assert columns.mark_topic(segment, table, 9, topic, starts, ends, bytearray(9)) == (-1, 0)
    assert columns.mark_topic(segment, table, 0, b"flights", starts, ends, bytearray(9)) == (-1, 0)
    for row in (1, 8):
        table[row * ROW_WIDTH + RecordColumn.SAME_TOPIC] = 0
        assert columns.mark_topic(segment, table, 9, b"flights", starts, ends, bytearray(9)) == (-1, 0)
        assert columns.mark_topic(segment, table, row, b"flights", starts, ends, bytearray(9))[0] > 0
        table[row * ROW_WIDTH + RecordColumn.SAME_TOPIC] = 1


@pytest.mark.parametrize(
    ("rows", "starts", "marks", "place"), [(10, 2, 10, 1), (-1, 2, 9, 1), (9, 1, 9, 1), (9, 2, 8, 1), (9, 2, 9, 2)]
)
def test_rows_that_do_not_fit_are_not_marked(
    columns: ModuleType, rows: int, starts: int, marks: int, place: int
) -> None:
    segment, table = rows_of_a_topic(b"flights")
    table[RecordColumn.TOPIC_POS] = place
    with pytest.raises(ValueError, match=r"fit|outside"):
        columns.mark_topic(
            segment, table, rows, b"flights", array("q", bytes(8 * starts)), array("q", [7, 10]), bytearray(marks)
        )
