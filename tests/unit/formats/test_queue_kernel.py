"""Units of a consume queue, in the compiled and the interpreted kernel."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel

from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.formats.consume_queue import PRE_FILL_UNIT, ConsumeQueueUnit, read_units

LIMITS: dict[str, Any] = {
    "max_messages": 32,
    "max_bytes": 1 << 27,
    "scan_bytes_max": 16000,
    "tag_codes": array("q"),
    "physical_min": 0,
    "physical_max": 1 << 62,
    "memory_from": 0,
    "memory_count_max": 32,
    "memory_bytes_max": 262144,
    "disk_count_max": 8,
    "disk_bytes_max": 65536,
}


@pytest.fixture
def queue(form: str) -> ModuleType:
    return kernel("formats._queue_cy", form)


def units_of(queue: ModuleType, *units: tuple[int, int, int]) -> bytearray:
    data = bytearray(20 * len(units))
    for at, unit in enumerate(units):
        queue.put_unit(data, 20 * at, *unit)
    return data


def select(
    queue: ModuleType, units: bytes | bytearray, position: int = 0, room: int = 64, **changes: Any
) -> tuple[list[int], int, int]:
    """Returns the selected physical offsets, the number of examined units and the number of missing records."""
    out = array("q", bytes(16 * room))
    *asked, codes = (arguments := list((LIMITS | changes).values()))[:4]
    limits = queue.PullLimits(*arguments[4:])
    chosen, examined, missing = queue.select_units(units, position, len(units), out, *asked, codes, limits)
    return out[0 : 2 * chosen : 2].tolist(), examined, missing


def test_put(queue: ModuleType) -> None:
    assert units_of(queue, (0, 176, 2598919)).hex() == "0000000000000000000000b0000000000027a807"
    assert units_of(queue, (0, 0x7FFFFFFF, 0)) == PRE_FILL_UNIT
    unit = ConsumeQueueUnit(2**62 + 1, 5, -2123558616)
    assert list(read_units(units_of(queue, unit, unit) + b"rest")) == [unit, unit]
    for position in (-1, 1, 20):
        with pytest.raises(ValueError, match="does not fit"):
            queue.put_unit(bytearray(20), position, 0, 0, 0)


def same(count: int, size: int = 100) -> list[tuple[int, int, int]]:
    return [(size * at, size, at % 3) for at in range(count)]


@pytest.mark.parametrize(
    ("changes", "chosen", "examined"),
    [
        ({}, 32, 32),
        ({"max_messages": 5}, 5, 5),
        ({"max_messages": 0}, 1, 1),  # the first message is never beyond the limit
        ({"max_messages": 40}, 32, 32),  # memory_count_max
        ({"max_messages": 40, "memory_count_max": 100}, 40, 40),
        ({"max_bytes": 500}, 5, 5),
        ({"max_bytes": 99}, 1, 1),  # nor too large
        ({"max_bytes": 599}, 5, 5),
        ({"memory_bytes_max": 299}, 2, 2),
        ({"memory_from": 1 << 40}, 8, 8),
        ({"memory_from": 1 << 40, "disk_bytes_max": 350}, 3, 3),
        ({"memory_from": 1000, "disk_count_max": 20}, 32, 32),
        ({"scan_bytes_max": 100}, 5, 5),
        ({"scan_bytes_max": 101}, 6, 6),
        ({"tag_codes": array("q", [1])}, 32, 95),
        ({"tag_codes": array("q", [1]), "scan_bytes_max": 200}, 3, 10),
        ({"tag_codes": array("q", [0, 2]), "max_messages": 3}, 3, 4),
        ({"tag_codes": array("q", [7])}, 0, 100),
    ],
)
def test_limits(queue: ModuleType, changes: dict[str, Any], chosen: int, examined: int) -> None:
    units = units_of(queue, *same(100))
    found, seen, missing = select(queue, units, **changes)
    assert (len(found), seen, missing) == (chosen, examined, 0)
    wanted = changes.get("tag_codes") or [0, 1, 2]
    assert found == [100 * at for at in range(100) if at % 3 in wanted][:chosen]


def test_units_outside_the_log_are_passed_over(queue: ModuleType) -> None:
    units = units_of(queue, *same(10), (0, 0x7FFFFFFF, 0), (5000, 0, 0), (1 << 20, 100, 0))
    assert select(queue, units, physical_min=300, physical_max=900) == ([300, 400, 500, 600, 700, 800], 10, 4)
    # the filler unit at the beginning of a queue is larger than any limit
    assert select(queue, units[200:], memory_bytes_max=1 << 40, max_bytes=1 << 40, physical_max=1 << 20) == ([], 3, 3)


@pytest.mark.parametrize("size", [1 << 30, 801, -1])
def test_a_size_that_cannot_be_right_becomes_that_of_the_rest_of_the_log(queue: ModuleType, size: int) -> None:
    units, chosen = units_of(queue, (100, size, 0)), array("q", bytes(16))
    limits = queue.PullLimits(*[(LIMITS | {"physical_max": 900})[name] for name in list(LIMITS)[4:]])
    assert queue.select_units(units, 0, 20, chosen, 32, 1 << 27, 20, array("q"), limits) == (1, 1, 0)
    assert chosen.tolist() == [100, 800]


def test_reached_bytes_end_the_choice_before_the_next_unit_is_looked_at(queue: ModuleType) -> None:
    units = units_of(queue, (0, 100, 0), (100, 100, 0), (200, 0, 0))
    assert select(queue, units, max_bytes=200) == ([0, 100], 2, 0)
    assert select(queue, units, max_bytes=201) == ([0, 100], 3, 1)


def test_a_full_table_ends_the_choice(queue: ModuleType) -> None:
    units = units_of(queue, *same(4))
    assert select(queue, units, room=2)[:2] == ([0, 100], 2)
    assert select(queue, units, room=0)[:2] == ([], 0)


def test_the_first_message_may_have_any_size(queue: ModuleType) -> None:
    units = units_of(queue, (0, 1 << 30, 0), (1 << 30, 10, 0))
    assert select(queue, units) == ([0], 1, 0)


def test_low_32_bits_of_the_code_count(queue: ModuleType) -> None:
    units = units_of(queue, (0, 1, -2123558616), (1, 1, 0xFFFFFFFF816D1128 - 2**64), (2, 1, 0x1816D1128))
    assert select(queue, units, tag_codes=array("q", [-2123558616]))[0] == [0, 1, 2]


def test_position_and_part_of_a_unit(queue: ModuleType) -> None:
    units = units_of(queue, *same(4))
    assert select(queue, units[:79], 20) == ([100, 200], 2, 0)
    assert select(queue, units, 80) == ([], 0, 0)
    for position in (-1, 81):
        with pytest.raises(ValueError, match="outside"):
            select(queue, units, position)


@given(
    st.binary(max_size=400),
    st.integers(-1, 40),
    st.integers(0, 1 << 40),
    st.lists(st.integers(-(2**31), 2**31 - 1)).map(sorted),
)
def test_both_forms_agree_on_any_bytes(units: bytes, max_messages: int, max_bytes: int, codes: list[int]) -> None:
    results = [
        select(
            kernel("formats._queue_cy", form),
            units,
            max_messages=max_messages,
            max_bytes=max_bytes,
            tag_codes=array("q", codes),
            memory_bytes_max=1 << 40,
        )
        for form in FORMS
    ]
    assert all(result == results[0] for result in results)


def record_rows(*records: tuple[int, int, int, int, int, int]) -> array[int]:
    """Returns a table with a row for each record: position, size, queue id, queue offset, sysFlag and tags code."""
    table = new_table(len(records))
    columns = (
        RecordColumn.RECORD_POS,
        RecordColumn.RECORD_SIZE,
        RecordColumn.QUEUE_ID,
        RecordColumn.QUEUE_OFFSET,
        RecordColumn.SYS_FLAG,
        RecordColumn.TAGS_CODE,
    )
    for row, record in enumerate(records):
        for column, value in zip(columns, record, strict=True):
            table[row * ROW_WIDTH + column] = value
    return table


class TestGatherUnits:
    ROWS = (
        (0, 100, 1, 7, 0, 5),
        (100, 90, 2, 0, 0, -9),
        (190, 80, 1, 0, 4, 5),  # prepared
        (270, 70, 1, 0, 12, 5),  # rollback
        (340, 60, 1, 8, 8, 5),  # commit
        (400, 50, 1, 9, 0, -6),
    )

    def units(
        self, queue: ModuleType, first: int, last: int, queue_id: int, queue_offset: int
    ) -> tuple[list[ConsumeQueueUnit], int, int, bool]:
        out = bytearray(20 * (last - first))
        table = record_rows(*self.ROWS)
        count, code, same_code = queue.gather_units(table, first, last, queue_id, queue_offset, 4096, out)
        return list(read_units(out[: 20 * max(count, 0)])), count, code, same_code

    def test_units_of_one_queue(self, queue: ModuleType) -> None:
        assert self.units(queue, 0, 6, 1, 7) == ([(4096, 100, 5), (4436, 60, 5), (4496, 50, -6)], 3, -6, False)
        assert self.units(queue, 0, 5, 1, 7)[1:] == (2, 5, True)
        assert self.units(queue, 0, 6, 2, 0) == ([(4196, 90, -9)], 1, -9, True)
        assert self.units(queue, 2, 4, 1, 0)[:2] == ([], 0)
        assert self.units(queue, 0, 6, 3, 0)[:2] == ([], 0)

    @pytest.mark.parametrize(("first", "queue_offset"), [(0, 6), (0, 8), (4, 7), (5, 8)])
    def test_an_entry_that_is_not_the_next(self, queue: ModuleType, first: int, queue_offset: int) -> None:
        assert self.units(queue, first, 6, 1, queue_offset)[1] == -1

    def test_too_long_values_are_refused(self, queue: ModuleType) -> None:
        table = record_rows(*self.ROWS)
        with pytest.raises(ValueError, match="do not fit"):
            queue.gather_units(table, 0, 6, 1, 7, 0, bytearray(119))
        for first, last in ((-1, 1), (2, 1), (0, 7)):
            with pytest.raises(ValueError, match="outside"):
                queue.gather_units(table, first, last, 1, 7, 0, bytearray(200))


class TestSlices:
    RECORDS = (100, 10, 110, 5, 130, 20, 150, 0, 150, 1, 200, 30)

    def merged(
        self, queue: ModuleType, first: int, end: int, room: int = 6, records: tuple[int, ...] = RECORDS
    ) -> tuple[list[int], int, int]:
        """Returns the merged slices of the log, the number of the record after them, and their total bytes."""
        out = array("q", bytes(16 * room))
        following, count, total = queue.merge_neighbours(array("q", records), first, len(records) // 2, end, out)
        return out[: 2 * count].tolist(), following, total

    def test_neighbours_are_one_slice(self, queue: ModuleType) -> None:
        assert self.merged(queue, 0, 1000) == ([100, 15, 130, 21, 200, 30], 6, 66)
        assert self.merged(queue, 1, 1000) == ([110, 5, 130, 21, 200, 30], 6, 56)
        assert self.merged(queue, 6, 1000) == ([], 6, 0)

    def test_a_slice_ends_with_its_part(self, queue: ModuleType) -> None:
        assert self.merged(queue, 0, 200) == ([100, 15, 130, 21], 5, 36)
        assert self.merged(queue, 0, 110) == ([100, 10], 1, 10)
        assert self.merged(queue, 0, 145) == ([100, 15, 130, 15], 3, 30)  # the last record exceeds the part
        assert self.merged(queue, 0, 1000, records=(100, 10, 50, 10)) == ([100, 10], 1, 10)  # may be in an earlier part
        assert self.merged(queue, 0, 1000, records=(100, -1, 100, 5)) == ([100, 5], 2, 5)

    def test_impossible_values_are_refused(self, queue: ModuleType) -> None:
        for first, end, room in ((-1, 1000, 6), (7, 1000, 6), (0, 1000, 5), (0, 100, 6)):
            with pytest.raises(ValueError, match="record"):
                self.merged(queue, first, end, room)

    def test_joined(self, queue: ModuleType) -> None:
        part = bytes(range(100, 250))
        joined = queue.join_slices(part, 100, array("q", [100, 3, 120, 0, 248, 2, 9, 9]), 3, 5)
        assert joined == bytes([100, 101, 102, 248, 249])
        assert isinstance(joined, bytes)
        assert queue.join_slices(memoryview(part), 100, array("q"), 0, 0) == b""

    def test_slices_outside_the_part_are_refused(self, queue: ModuleType) -> None:
        for start, size, total in ((99, 2, 2), (249, 2, 2), (100, -1, -1), (100, 151, 151), (100, 2, 3), (100, 2, 1)):
            with pytest.raises(ValueError, match="slice"):
                queue.join_slices(bytes(150), 100, array("q", [start, size]), 1, total)
        with pytest.raises(ValueError, match="slice"):
            queue.join_slices(bytes(150), 100, array("q", [100, 1]), 2, 2)
