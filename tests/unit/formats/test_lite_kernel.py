"""The kernel of lite topics, in both forms: names, units, columns; arbitrary bytes do no harm."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel

from rucola.formats.checksum import crc32
from rucola.formats.lite import (
    BEGINS,
    DISTANCE_MAX,
    LITE_UNIT_BYTES,
    PHYSICAL_OFFSET_MAX,
    QUEUE_OFFSET_MAX,
    LiteUnit,
    decode_unit,
    encode_name,
    encode_unit,
)

UNSIGNED = st.integers(0, 2**32 - 1)
NAMES = st.lists(st.binary(min_size=1, max_size=40), unique=True, max_size=60)


@pytest.fixture
def lite(form: str) -> ModuleType:
    return kernel("formats._lite_cy", form)


def blob_of(names: list[bytes]) -> tuple[bytearray, array[int]]:
    blob, positions = bytearray(), array("I")
    for number, name in enumerate(names):
        positions.append(len(blob))
        blob += encode_name(number, name)
    return blob, positions


@pytest.mark.parametrize("form", FORMS)
@given(names=NAMES, others=NAMES, seed=UNSIGNED)
def test_names_are_found_in_tables_of_any_size(form: str, names: list[bytes], others: list[bytes], seed: int) -> None:
    lite = kernel("formats._lite_cy", form)
    blob, positions = blob_of(names)
    slots = array("I", bytes(4 * 128))
    for number, name in enumerate(names):
        assert lite.insert_name(slots, number, lite.hash_name(name, seed))
    larger = array("I", bytes(4 * 256))
    assert lite.refill_slots(larger, slots, blob, positions, seed) == len(names)
    hashes, counts = array("I", bytes(4 * len(names))), array("I", bytes(4 * 256))
    nexts = array("q", [1] * len(names))
    lite.hash_names(blob, positions, seed, nexts, hashes, counts)
    assert list(hashes) == [lite.hash_name(name, seed) for name in names]
    assert sum(counts) == len(names)
    for name in names + others:
        wanted = names.index(name) if name in names else -1
        value = lite.hash_name(name, seed)
        parts = array("I", bytes(4 * 128))
        lite.fill_slots(parts, hashes, nexts, value & 255)
        assert [lite.find_name(each, blob, positions, name, value) for each in (slots, larger, parts)] == [wanted] * 3


def test_a_later_entry_replaces_an_earlier_one_and_removed_names_are_gone(lite: ModuleType) -> None:
    blob, _ = blob_of([b"a", b"b"])
    blob += encode_name(0, b"c")
    positions = array("I", (9, 9, 9))
    assert lite.walk_names(blob, memoryview(blob), 0, positions, 0, crc32) == (len(blob), 2, 3)
    del positions[2:]
    assert blob[positions[0] + 5 : positions[0] + 6] == b"c"
    slots = array("I", bytes(16))
    for number, name in enumerate((b"c", b"b")):
        lite.insert_name(slots, number, lite.hash_name(name, 0))
    assert lite.remove_name(slots, 0, lite.hash_name(b"c", 0))
    assert not lite.remove_name(slots, 0, lite.hash_name(b"c", 0))
    assert [lite.find_name(slots, blob, positions, name, lite.hash_name(name, 0)) for name in (b"b", b"c")] == [1, -1]
    assert not lite.remove_name(array("I", (2,)), 0, 0)
    larger = array("I", bytes(16))
    assert lite.refill_slots(larger, slots, blob, positions, 0) == 1
    skipping = encode_name(1, b"d")
    assert lite.walk_names(skipping, memoryview(skipping), 0, array("I", (0, 0)), 0, crc32) == (0, 0, 0)


def test_both_forms_have_the_same_hash() -> None:
    for name in (b"", b"a$b", bytes(range(256))):
        assert len({kernel("formats._lite_cy", form).hash_name(name, 12345) for form in FORMS}) == 1


def test_a_full_table_refuses_a_name(lite: ModuleType) -> None:
    slots = array("I", (1, 2))
    assert not lite.insert_name(slots, 2, 0)
    blob, positions = blob_of([b"a", b"b"])
    assert lite.find_name(slots, blob, positions, b"c", 0) == -1


def test_hashes_need_room(lite: ModuleType) -> None:
    blob, positions = blob_of([b"a", b"b"])
    with pytest.raises(ValueError, match="room"):
        lite.hash_names(blob, positions, 0, array("q"), array("I", (0,)), array("I", bytes(1024)))


@pytest.mark.parametrize("form", FORMS)
@given(names=NAMES, cut=st.integers(1, 60), flip=st.integers(0, 10_000))
def test_names_are_read_up_to_the_first_damage(form: str, names: list[bytes], cut: int, flip: int) -> None:
    lite = kernel("formats._lite_cy", form)
    blob, positions = blob_of(names)
    room = array("I", bytes(4 * (len(names) + 3)))
    assert lite.walk_names(blob, memoryview(blob), 0, room, 0, crc32) == (len(blob), len(names), len(names))
    assert room[: len(names)] == positions
    checksums = array("I", bytes(4 * len(names)))
    lite.checksum_names(blob, memoryview(blob), positions, 0, checksums, crc32)
    assert list(checksums) == [crc32(name) for name in names]
    if not blob:
        return
    damaged = bytearray(blob)
    damaged[flip % len(blob)] ^= 1
    whole = sum(position <= flip % len(blob) for position in positions) - 1
    assert lite.walk_names(damaged, memoryview(damaged), 0, room, 0, crc32) == (positions[whole], whole, whole)
    short = bytes(blob[:-cut])
    end, count, _ = lite.walk_names(short, memoryview(short), 0, room, 0, crc32)
    assert (end, count) == (positions[count], count)


def test_parents_are_set_run_by_run(lite: ModuleType) -> None:
    blob, positions = blob_of([b"p$a", b"p$b", b"pp$c", b"p"])
    parents = array("I", (9, 9, 9, 9))
    assert lite.set_parents(blob, positions, 0, b"p", 5, parents) == 2
    assert lite.set_parents(blob, positions, 2, b"pp", 6, parents) == 3
    assert lite.set_parents(blob, positions, 3, b"p", 5, parents) == 3
    assert list(parents) == [5, 5, 6, 9]


UNITS = st.builds(
    LiteUnit,
    st.integers(0, 9),
    st.integers(0, 2**31 - 1),
    st.integers(0, PHYSICAL_OFFSET_MAX),
    st.integers(0, QUEUE_OFFSET_MAX),
    st.integers(-(2**31), 2**31 - 1),
    UNSIGNED,
    st.integers(1, DISTANCE_MAX),
    st.integers(0, DISTANCE_MAX),
    st.just(value=False),
)


@given(UNITS)
def test_units_come_back(unit: LiteUnit) -> None:
    data = encode_unit(unit)
    assert len(data) == LITE_UNIT_BYTES
    assert decode_unit(data) == unit
    begins = unit._replace(back=0, jump=0, begins=True)
    assert decode_unit(encode_unit(begins)) == begins
    for position in range(LITE_UNIT_BYTES):
        assert decode_unit(data[:position] + bytes((data[position] ^ 1,)) + data[position + 1 :]) is None


@pytest.mark.parametrize("form", FORMS)
@given(units=st.lists(UNITS, max_size=20), start=st.integers(0, 3))
def test_units_end_where_their_records_go_back(form: str, units: list[LiteUnit], start: int) -> None:
    lite = kernel("formats._lite_cy", form)
    data = bytes(start * LITE_UNIT_BYTES) + b"".join(map(encode_unit, units)) + bytes(LITE_UNIT_BYTES)
    good, place = 0, 7
    for unit in units:
        if unit.name_id >= 8 or unit.physical_offset < place:
            break
        good, place = good + 1, unit.physical_offset
    begin = start * LITE_UNIT_BYTES
    end = begin + good * LITE_UNIT_BYTES
    assert lite.check_units(data, memoryview(data), begin, len(data), 8, 7, crc32) == (end, place)
    assert lite.check_units(data, memoryview(data), -40, len(data), 8, 7, crc32) == (-40, 7)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(max_size=400), start=st.integers(-50, 450), end=st.integers(-50, 450))
@settings(max_examples=50)
def test_arbitrary_units_change_no_row_out_of_range(form: str, data: bytes, start: int, end: int) -> None:
    lite = kernel("formats._lite_cy", form)
    columns = [array("q", bytes(24)) for _ in range(3)]
    times, checksums = array("I", bytes(12)), array("I", bytes(8))
    lite.apply_units(data, start, end, 0, False, *columns, times, checksums)
    assert all(column[2] == 0 for column in (*columns, times))


def test_units_and_marks_in_rows(lite: ModuleType) -> None:
    checksums = array("I", (crc32(b"a"), crc32(b"b")))
    mark = (checksums[0] ^ 2**31) - 2**31
    units = [
        LiteUnit(0, 50, 0, 0, 0, 11),
        LiteUnit(1, 50, 0, 6, 0, 12, 0, 0, True),
        LiteUnit(0, 50, 9, 1, 0, 13, 2, 2),
        LiteUnit(0, 0, 9, 2, mark, 0),
        LiteUnit(0, 0, 9, 9, mark ^ 1, 0),
        LiteUnit(1, 50, 10, 3, 0, 14, 0, 0, True),
    ]
    data = b"".join(map(encode_unit, units))
    for marks_only, rows in ((False, ((2, 2, 3, 13), (4, 3, 6, 14))), (True, ((2, 2, 0, 0), (0, 0, 0, 0)))):
        nexts, starts, lasts, times = (array(kind, (0, 0)) for kind in "qqqI")
        for _ in range(2):
            lite.apply_units(data, 0, len(data), 0, marks_only, nexts, starts, lasts, times, checksums)
            assert tuple(zip(nexts, starts, lasts, times, strict=True)) == rows


def test_scans_of_columns(lite: ModuleType) -> None:
    nexts, starts = array("q", (1, 2, 3, 4)), array("q", (0, 2, 1, 0))
    times, parents = array("I", (5, 5, 50, 5)), array("I", (0, 0, 1, 7))
    counts, out = array("q", (0, 0)), array("I", bytes(4))
    lite.count_live(nexts, starts, parents, counts)
    assert list(counts) == [1, 1]
    assert lite.find_rows(nexts, starts, times, parents, array("q", (6, 60)), 0, 9, out) == (1, 1)
    assert out[0] == 0
    assert lite.find_rows(nexts, starts, times, parents, array("q", (6, 60)), 1, 9, out) == (3, 1)
    assert out[0] == 2
    assert lite.find_rows(nexts, starts, times, parents, array("q", (5, 0)), 0, 9, out) == (4, 0)
    assert lite.rows_above(nexts, 2, 0, out) == (3, 1)
    assert lite.rows_above(nexts, 2, 3, out) == (4, 1)
    assert lite.rows_above(nexts, 9, 0, out) == (4, 0)


@pytest.mark.parametrize("form", FORMS)
@given(
    name_id=UNSIGNED,
    size=st.integers(1, 2**31 - 1),
    place=st.tuples(st.integers(0, PHYSICAL_OFFSET_MAX), st.integers(0, QUEUE_OFFSET_MAX)),
    tags_code=st.integers(-(2**31), 2**31 - 1),
    store_time_s=UNSIGNED,
    links=st.one_of(st.tuples(UNSIGNED, st.integers(0, DISTANCE_MAX)), st.just((0, BEGINS))),
)
def test_a_unit_is_written_and_its_links_read_as_the_plain_codec_does(
    form: str,
    name_id: int,
    size: int,
    place: tuple[int, int],
    tags_code: int,
    store_time_s: int,
    links: tuple[int, int],
) -> None:
    lite, data = kernel("formats._lite_cy", form), bytearray(3 * LITE_UNIT_BYTES)
    view, begins = memoryview(data), links == (0, BEGINS)
    lite.write_unit(data, view, 40, name_id, size, *place, tags_code, store_time_s, *links, crc32)
    back, jump = (0, 0) if begins else links
    wanted = LiteUnit(name_id, size, *place, tags_code, store_time_s, back, jump, begins)
    assert bytes(data) == bytes(40) + encode_unit(wanted) + bytes(40)
    assert decode_unit(bytes(data[40:80])) == wanted
    assert lite.read_links(data, view, 40, crc32) == (*place, back, jump)
    data[55] ^= 1
    assert lite.read_links(data, view, 40, crc32) == (-1, 0, 0, 0)


def test_a_unit_outside_its_buffer_is_refused(lite: ModuleType) -> None:
    data = bytearray(79)
    view = memoryview(data)
    for at in (-1, 40):
        with pytest.raises(ValueError, match="unit"):
            lite.read_links(data, view, at, crc32)
        with pytest.raises(ValueError, match="unit"):
            lite.write_unit(data, view, at, 1, 1, 1, 1, 1, 1, 1, 1, crc32)
