"""All columns of a batch in one buffer, written by the compiled and the interpreted kernel."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel
from tests.unit.formats.samples import property_maps

from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.formats.column_plan import PLAN_WIDTH, TIMES_MS, PlanField, PlanKind, Planned, new_plan
from rucola.formats.properties import decode_properties, encode_properties

POS, LEN, NUMBER = int(RecordColumn.PROPERTIES_POS), int(RecordColumn.PROPERTIES_LEN), 5
CHECKSUM = b"__CRC32#\x010123456789\x02"
STRINGS = (PlanKind.BYTES, PlanKind.TEXT, PlanKind.JSON)
FILLED = (PlanKind.INT32, PlanKind.INT64, *STRINGS)
"""The kinds for which ``fill`` writes something."""


@pytest.fixture
def columns(form: str) -> ModuleType:
    return kernel("formats._columns_cy", form)


def planned(kind: PlanKind, detail: int = 1) -> Planned:
    """Returns a column of strings or of numbers of the table that ``table_of`` makes."""
    return (
        Planned(kind, POS, LEN) if kind in STRINGS else Planned(kind, POS if kind is PlanKind.SAME else NUMBER, detail)
    )


def table_of(texts: Sequence[bytes | None], numbers: Sequence[int] = ()) -> tuple[bytes, array[int]]:
    """Returns a segment with the texts, and a table with their places and with the numbers."""
    table, segment = new_table(len(texts)), bytearray(b"?")
    for row, text in enumerate(texts):
        table[row * ROW_WIDTH + POS] = len(segment)
        table[row * ROW_WIDTH + LEN] = -1 if text is None else len(text)
        segment += (text or b"") + b"?"
    for row, number in enumerate(numbers):
        table[row * ROW_WIDTH + NUMBER] = number
    return bytes(segment + bytes(8)), table


class Filled:
    """A buffer that a kernel laid out for all rows, filled in pieces that end at ``ends``."""

    def __init__(
        self,
        columns: ModuleType,
        wanted: Sequence[Planned],
        segment: bytes,
        table: array[int],
        ends: Sequence[int],
        measured: int = 0,
        json_scale: int = 1,
        bytes_max: int = 1 << 20,
    ) -> None:
        self.plan = new_plan(wanted)
        self.rows = ends[-1]
        self.size = columns.lay_out(table, measured or self.rows, self.rows, bytes_max, json_scale, self.plan, 0)
        self.out = bytearray(b"\xee") * self.size
        self.full = -1
        for first, last in zip((0, *ends), ends, strict=False):
            if self.full < 0:
                self.full = columns.fill(segment, table, first, last, self.plan, self.out)

    def field(self, number: int, field: PlanField) -> int:
        return self.plan[number * PLAN_WIDTH + field]

    def strings(self, number: int) -> list[bytes]:
        start = self.field(number, PlanField.OFFSETS)
        offsets = memoryview(self.out)[start : start + 4 * (self.rows + 1)].cast("i").tolist()
        values = self.field(number, PlanField.VALUES)
        assert offsets[0] == 0
        assert offsets[-1] == self.field(number, PlanField.DONE)
        return [bytes(self.out[values + offsets[row] : values + offsets[row + 1]]) for row in range(self.rows)]

    def numbers(self, number: int, kind: str) -> list[int]:
        start = self.field(number, PlanField.VALUES)
        width = 4 if kind == "i" else 8
        return memoryview(self.out)[start : start + width * self.rows].cast(kind).tolist()


texts_of_all_kinds = st.lists(
    st.one_of(st.none(), st.binary(max_size=30), property_maps.map(encode_properties)), min_size=1, max_size=9
)


numbers_of_all_kinds = st.one_of(
    st.integers(-(2**63), 2**63 - 1), *(st.integers(one - 2, one + 2) for one in TIMES_MS), st.just(0)
)


@given(texts_of_all_kinds, st.lists(numbers_of_all_kinds, min_size=9, max_size=9), st.data())
def test_all_columns_in_any_pieces(texts: list[bytes | None], numbers: list[int], data: st.DataObject) -> None:
    ends = sorted({*data.draw(st.lists(st.integers(1, len(texts)), max_size=3)), len(texts)})
    segment, table = table_of(texts, numbers[: len(texts)])
    wanted = [
        planned(PlanKind.JSON), planned(PlanKind.INT32), planned(PlanKind.BYTES), planned(PlanKind.INT64),
        planned(PlanKind.TEXT), planned(PlanKind.INT64, 1000),
    ]  # fmt: skip
    for form in FORMS:
        filled = Filled(kernel("formats._columns_cy", form), wanted, segment, table, ends, json_scale=8)
        plain = [text or b"" for text in texts]
        assert filled.full == -1
        for written, text in zip(filled.strings(0), plain, strict=True):
            assert json.loads(written) == decode_properties(text)
        assert filled.numbers(1, "i") == [(one + 2**31) % 2**32 - 2**31 for one in numbers[: len(texts)]]
        assert filled.strings(2) == filled.strings(4) == plain
        assert filled.numbers(3, "q") == numbers[: len(texts)]
        fits = [TIMES_MS[0] <= one <= TIMES_MS[1] for one in numbers[: len(texts)]]
        assert filled.numbers(5, "q") == [1000 * one * fit for one, fit in zip(numbers, fits, strict=False)]
        assert filled.field(5, PlanField.BITS) == (not all(fits))
        assert [filled.field(at, PlanField.MISSING) for at in (2, 4)] == [texts.count(None)] * 2
        assert (filled.field(4, PlanField.BITS) > 127) == any(max(text, default=0) > 127 for text in plain)


def test_groups_of_rows(columns: ModuleType) -> None:
    """More rows than a kernel writes at a time."""
    texts = [b"text %d" % number * (number % 5) for number in range(1000)]
    segment, table = table_of(texts, range(1000))
    wanted = [planned(PlanKind.BYTES), planned(PlanKind.INT32), planned(PlanKind.TEXT)]
    filled = Filled(columns, wanted, segment, table, (300, 301, 1000))
    assert filled.strings(0) == filled.strings(2) == texts
    assert filled.numbers(1, "i") == list(range(1000))


def test_places_do_not_overlap_and_are_aligned(columns: ModuleType) -> None:
    texts = [b"a\x01b\x02"] * 3
    _, table = table_of(texts)
    wanted = [planned(kind) for kind in PlanKind] * 2
    plan = new_plan(wanted)
    size = columns.lay_out(table, 3, 7, 1 << 20, 1, plan, 640)
    spans = [(0, 640)]
    for number, one in enumerate(wanted):
        row = plan[number * PLAN_WIDTH : (number + 1) * PLAN_WIDTH]
        spans.append((row[PlanField.VALUES], row[PlanField.ROOM]))
        if one.kind in STRINGS or one.kind is PlanKind.REPEATED:
            spans.append((row[PlanField.OFFSETS], 4 * 8))
        if one.kind in (PlanKind.BYTES, PlanKind.TEXT):
            spans.append((row[PlanField.VALIDITY], 1))
    spans.sort()
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(start + room <= after for (start, room), (after, _) in itertools.pairwise(spans))
    assert spans[-1][0] + spans[-1][1] <= size
    assert size % 64 == 0


def test_room_for_rows_that_are_not_measured(columns: ModuleType) -> None:
    texts = [b"x" * 100] * 40
    segment, table = table_of(texts)
    for kind in STRINGS:
        filled = Filled(columns, [planned(kind)], segment, table, (10, 40), measured=10)
        assert filled.full == -1
        assert filled.field(0, PlanField.ROOM) >= 4000


def test_one_long_row_takes_no_room_for_many(columns: ModuleType) -> None:
    _, table = table_of([b"x" * 50_000, b"x"])
    for kind in STRINGS:
        sizes = [columns.lay_out(table, 1, 4096, limit, 1, new_plan([planned(kind)]), 0) for limit in (100_000, 10)]
        assert 100_000 < sizes[0] < 200_000
        assert 50_000 < sizes[1] < 110_000


@pytest.mark.parametrize("kind", STRINGS)
def test_too_little_room_is_noticed_and_spares_the_next_column(columns: ModuleType, kind: PlanKind) -> None:
    texts = [b"a\x01b\x02"] * 4 + [b"k\x01" + b"v" * 20_000 + b"\x02"]
    segment, table = table_of(texts, [7] * 5)
    wanted = [planned(PlanKind.INT32), planned(kind), planned(PlanKind.INT64)]
    filled = Filled(columns, wanted, segment, table, (4, 5), measured=4)
    assert filled.full == PLAN_WIDTH
    assert filled.numbers(0, "i") == [7] * 5
    assert filled.numbers(2, "q")[:4] == [7] * 4
    end = filled.field(2, PlanField.VALUES) + 4 * 8
    assert set(filled.out[end:]) == {0xEE}


def test_objects_that_are_longer_than_expected(columns: ModuleType) -> None:
    """Every byte of a value becomes six, so that one and a half times the length is not enough."""
    texts = [b"k\x01" + b"\x01" * 3000 + b"\x02"] * 3
    segment, table = table_of(texts)
    assert Filled(columns, [planned(PlanKind.JSON)], segment, table, (3,)).full == 0
    filled = Filled(columns, [planned(PlanKind.JSON)], segment, table, (3,), json_scale=4)
    assert filled.full == -1
    assert [json.loads(one) for one in filled.strings(0)] == [{"k": "\x01" * 3000}] * 3


def test_objects_that_just_fit(columns: ModuleType) -> None:
    for size, full in ((909, -1), (910, 0)):
        segment, table = table_of([b"k\x01" + b"\x01" * size + b"\x02"])
        filled = Filled(columns, [planned(PlanKind.JSON)], segment, table, (1,))
        assert filled.full == full
    assert filled.field(0, PlanField.ROOM) == 6 * 910 + 8 - 1


def test_the_checksum_is_no_property(columns: ModuleType) -> None:
    texts = [b"a\x01b\x02" + CHECKSUM, CHECKSUM, b"a\x01" + CHECKSUM[1:], None, CHECKSUM + b"a\x01b\x02"]
    segment, table = table_of(texts)
    filled = Filled(columns, [planned(PlanKind.JSON), planned(PlanKind.BYTES)], segment, table, (5,), json_scale=2)
    expected = [{"a": "b"}, {}, {"a": CHECKSUM[1:-1].decode()}, {}, {"__CRC32#": "0123456789", "a": "b"}]
    assert [json.loads(one) for one in filled.strings(0)] == expected
    assert filled.strings(1) == [text or b"" for text in texts]


@pytest.mark.parametrize(
    ("texts", "size", "bits"),
    [
        ([b"host"] * 3, 4, 0),
        ([b"host", b"host", b"hosT"], 4, 1),
        ([b"host", b"hosT", b"host"], 4, 1),
        ([b"host", b"host", b"hosT"], 3, 0),
        ([b"ab", b"b"], 0, 0),
    ],
)
def test_same_bytes(columns: ModuleType, texts: list[bytes], size: int, bits: int) -> None:
    segment, table = table_of(texts)
    ends = range(1, len(texts) + 1)
    for pieces in (ends, ends[-1:]):
        filled = Filled(columns, [planned(PlanKind.SAME, size)], segment, table, pieces)
        assert filled.field(0, PlanField.BITS) == bits


def test_same_bytes_of_any_size(columns: ModuleType) -> None:
    for size in range(1, 40):
        text = bytes(range(100, 100 + size))
        for place in range(size):
            other = text[:place] + b"!" + text[place + 1 :]
            segment, table = table_of([text, other])
            filled = Filled(columns, [planned(PlanKind.SAME, size)], segment, table, (2,))
            assert filled.field(0, PlanField.BITS) == 1
        segment, table = table_of([text, text])
        assert Filled(columns, [planned(PlanKind.SAME, size)], segment, table, (2,)).field(0, PlanField.BITS) == 0


@pytest.mark.parametrize("kind", [*STRINGS, PlanKind.SAME])
def test_spans_outside_the_segment_are_refused(columns: ModuleType, kind: PlanKind) -> None:
    segment, table = table_of([b"one", b"two"])
    for start, length in ((-1, 4), (len(segment), 4), (len(segment) - 3, 4), (0, len(segment) + 1), (2**62, 4)):
        plan = new_plan([planned(kind, length)])
        out = bytearray(columns.lay_out(table, 2, 2, 0, 9, plan, 0))
        table[ROW_WIDTH + POS], table[ROW_WIDTH + LEN] = start, length
        with pytest.raises(ValueError, match=r"row \d: .* outside"):
            columns.fill(segment, table, 0, 2, plan, out)
        table[ROW_WIDTH + POS], table[ROW_WIDTH + LEN] = 1, 3


def test_row_0_is_checked_also_if_it_was_appended_before(columns: ModuleType) -> None:
    segment, table = table_of([b"one", b"two"])
    plan = new_plan([planned(PlanKind.SAME, 3)])
    out = bytearray(columns.lay_out(table, 2, 2, 0, 1, plan, 0))
    table[POS] = 1 << 40
    with pytest.raises(ValueError, match=r"row 0: .* outside"):
        columns.fill(segment, table, 1, 2, plan, out)


def test_a_plan_without_columns(columns: ModuleType) -> None:
    _, table = table_of([b"one"])
    assert columns.lay_out(table, 1, 1, 0, 1, new_plan([]), 0) == 0
    assert columns.fill(b"", table, 0, 1, new_plan([]), bytearray()) == -1


@pytest.mark.parametrize(("rows", "rows_max"), [(0, 1), (-1, 1), (2, 1), (3, 3)])
def test_rows_that_cannot_be_measured(columns: ModuleType, rows: int, rows_max: int) -> None:
    _, table = table_of([b"one", b"two"])
    with pytest.raises(ValueError, match="rows"):
        columns.lay_out(table, rows, rows_max, 0, 1, new_plan([planned(PlanKind.BYTES)]), 0)


@pytest.mark.parametrize(
    "fields",
    [(7, 5, 1), (-1, 5, 1), (6, 0, -1), (6, 0, 1 << 31), (0, 40, 1), (0, -1, 1), (2, 5, 40), (4, 5, -1), (0, 5)],
    ids=str,
)
def test_invalid_plans(columns: ModuleType, fields: tuple[int, ...]) -> None:
    _, table = table_of([b"one"])
    plan = array("q", fields)
    if len(fields) == 3:
        plan.extend((0,) * (PLAN_WIDTH - 3))
    for call in (
        lambda: columns.lay_out(table, 1, 1, 0, 1, plan, 0),
        lambda: columns.fill(b"", table, 0, 1, plan, bytearray(64)),
    ):
        with pytest.raises(ValueError, match=r"plan|kind|column"):
            call()


@pytest.mark.few
@pytest.mark.parametrize("kind", FILLED)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (PlanField.VALUES, -8),
        (PlanField.VALUES, 4),
        (PlanField.VALUES, 1 << 40),
        (PlanField.OFFSETS, -4),
        (PlanField.OFFSETS, 2),
        (PlanField.OFFSETS, 1 << 40),
        (PlanField.ROOM, -1),
        (PlanField.ROOM, 1 << 40),
    ],
)
def test_places_outside_the_buffer(columns: ModuleType, kind: PlanKind, field: PlanField, value: int) -> None:
    segment, table = table_of([b"one", b"two"], [1, 2])
    plan = new_plan([planned(kind)])
    out = bytearray(columns.lay_out(table, 2, 2, 0, 1, plan, 0))
    plan[field] = value
    if kind not in STRINGS and field is PlanField.OFFSETS:
        assert columns.fill(segment, table, 0, 2, plan, out) == -1
        return
    with pytest.raises(ValueError, match="does not fit into the buffer"):
        columns.fill(segment, table, 0, 2, plan, out)


@pytest.mark.parametrize("kind", STRINGS)
@pytest.mark.parametrize("done", [-1, 1 << 40])
def test_a_wrong_number_of_bytes_written(columns: ModuleType, kind: PlanKind, done: int) -> None:
    segment, table = table_of([b"one", b"two"])
    plan = new_plan([planned(kind)])
    out = bytearray(columns.lay_out(table, 2, 2, 0, 1, plan, 0))
    plan[PlanField.DONE] = done
    with pytest.raises(ValueError, match="does not fit into the buffer"):
        columns.fill(segment, table, 1, 2, plan, out)


def test_a_layout_serves_for_more_than_one_batch(columns: ModuleType) -> None:
    texts = [b"k\x01\xff\x02", b"", None, b"k\x01v\x02"]
    segment, table = table_of(texts, range(4))
    wanted = [planned(kind) for kind in (*STRINGS, PlanKind.SAME, PlanKind.INT32)]
    filled = Filled(columns, wanted, segment, table, (2, 4), bytes_max=0)
    assert columns.fill(segment, table[3 * ROW_WIDTH :], 0, 1, filled.plan, filled.out) == -1
    filled.rows = 1
    assert filled.strings(0) == filled.strings(1) == texts[3:]
    assert [filled.field(at, PlanField.MISSING) for at in (0, 1)] == [0, 0]
    assert filled.field(1, PlanField.BITS) < 128
    assert filled.field(3, PlanField.BITS) == 0
    assert filled.numbers(4, "i") == [3]


@pytest.mark.parametrize("kind", FILLED)
def test_more_rows_than_were_laid_out(columns: ModuleType, kind: PlanKind) -> None:
    segment, table = table_of([b"one"] * 40)
    plan = new_plan([planned(kind)])
    out = bytearray(columns.lay_out(table, 2, 2, 0, 1, plan, 0))
    with pytest.raises(ValueError, match="does not fit into the buffer"):
        columns.fill(segment, table, 0, 40, plan, out)
    for first, last in ((-1, 1), (2, 1)):
        with pytest.raises(ValueError, match="do not follow"):
            columns.fill(segment, table, first, last, plan, out)
