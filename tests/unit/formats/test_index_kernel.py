"""Index files: the compiled and the interpreted kernel put keys, and a query without kernel finds them."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import sizes
from tests.kernels import FORMS, kernel

from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.errors import FormatError
from rucola.formats.index_file import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexHeader,
    Limits,
    index_file_bytes,
    key_hash,
    query,
)

SLOTS, ENTRIES = 10, 8
BEGIN_MS = 1_700_000_000_000
TOPIC = b"TopicTest"


@pytest.fixture
def index(form: str) -> ModuleType:
    return kernel("formats._index_cy", form)


def new_file() -> bytearray:
    return bytearray(index_file_bytes(SLOTS, ENTRIES))


def put(index: ModuleType, file: bytearray, key: bytes, physical_offset: int, time_ms: int = BEGIN_MS) -> bool:
    stored = index.put_key(file, SLOTS, ENTRIES, TOPIC, key, 0, len(key), physical_offset, time_ms)
    assert isinstance(stored, bool)
    return stored


def put_record(
    index: ModuleType, file: bytearray, uniq: bytes | None, keys: bytes | None, physical_offset: int = 0, skip: int = 0
) -> tuple[int, int]:
    """Puts the keys of one record into an index file; returns whether all keys fitted (1 or 0), and how many were
    stored.
    """
    source = TOPIC + (uniq or b"") + (keys or b"")
    uniq_len = -1 if uniq is None else len(uniq)
    keys_len = -1 if keys is None else len(keys)
    keys_pos = len(TOPIC) + max(uniq_len, 0)
    table = record_table((0, len(TOPIC)), (len(TOPIC), uniq_len), (keys_pos, keys_len))
    row, done = index.put_rows(file, SLOTS, ENTRIES, source, table, 0, 1, physical_offset, physical_offset, skip)
    return int(row), int(done)


def record_table(topic: tuple[int, int], uniq_key: tuple[int, int], keys: tuple[int, int]) -> array[int]:
    """Returns a table with one record, at the start of its segment; each argument is a position and a length."""
    table = new_table(1)
    table[RecordColumn.STORE_TIMESTAMP] = BEGIN_MS
    table[RecordColumn.TOPIC_POS], table[RecordColumn.TOPIC_LEN] = topic
    table[RecordColumn.UNIQ_KEY_POS], table[RecordColumn.UNIQ_KEY_LEN] = uniq_key
    table[RecordColumn.KEYS_POS], table[RecordColumn.KEYS_LEN] = keys
    return table


def entries(file: bytearray) -> list[tuple[int, ...]]:
    count = IndexHeader.decode(file).index_count
    start = INDEX_HEADER.size + INDEX_SLOT.size * SLOTS
    return [INDEX_ENTRY.unpack(file, start + INDEX_ENTRY.size * entry) for entry in range(1, count)]


def test_sizes() -> None:
    assert index_file_bytes(5_000_000, 20_000_000) == 420_000_040
    assert index_file_bytes(100, 400) == 8440


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        (b"TopicTest", b"7F0000010A0018B4AAC2112233440001", 2104015564),
        (b"TopicTest", b"KeyX", 1656937733),
        (b"TopicTest", b"ogaQmc", 0),  # the hash without an absolute value
    ],
)
def test_hash(index: ModuleType, topic: bytes, key: bytes, expected: int) -> None:
    assert key_hash(topic, key) == expected
    file = new_file()
    assert index.put_key(file, SLOTS, ENTRIES, topic, b"**" + key, 2, len(key), 5, BEGIN_MS)
    assert entries(file) == [(expected, 5, 0, 0)]


def test_header_and_chain(index: ModuleType) -> None:
    file = new_file()
    assert put(index, file, b"a", 1000)
    assert IndexHeader.decode(file) == IndexHeader(BEGIN_MS, BEGIN_MS, 1000, 1000, 1, 2)
    assert put(index, file, b"a", 2000, BEGIN_MS + 2999)
    assert IndexHeader.decode(file) == IndexHeader(BEGIN_MS, BEGIN_MS + 2999, 1000, 2000, 1, 3)
    assert entries(file) == [(key_hash(TOPIC, b"a"), 1000, 0, 0), (key_hash(TOPIC, b"a"), 2000, 2, 1)]


@pytest.mark.parametrize(
    ("later_ms", "seconds"),
    [(-1, 0), (-5000, 0), (999, 0), (1000, 1), (2**31 * 1000, 2**31 - 1), (2**63 - 1 - BEGIN_MS, 2**31 - 1)],
)
def test_seconds(index: ModuleType, later_ms: int, seconds: int) -> None:
    file = new_file()
    put(index, file, b"a", 1)
    put(index, file, b"b", 2, BEGIN_MS + later_ms)
    assert entries(file)[1][2] == seconds


def test_first_entry_counts_from_the_times_it_finds(index: ModuleType) -> None:
    file = new_file()
    file[:40] = IndexHeader(BEGIN_MS, BEGIN_MS, 70, 70, 0, 1).encode()
    put(index, file, b"a", 80, BEGIN_MS + 4000)
    assert entries(file)[0][2] == 4
    assert IndexHeader.decode(file) == IndexHeader(BEGIN_MS + 4000, BEGIN_MS + 4000, 80, 80, 1, 2)


def test_full(index: ModuleType) -> None:
    file = new_file()
    assert [put(index, file, b"k%d" % i, i) for i in range(9)] == [True] * 7 + [False] * 2
    assert IndexHeader.decode(file).index_count == ENTRIES
    assert [query(file, SLOTS, key_hash(TOPIC, b"k%d" % i), Limits(64, 0, 2**62)) for i in range(8)] == [
        [i] if i < 7 else [] for i in range(8)
    ]


@pytest.mark.parametrize(
    ("uniq", "keys", "expected"),
    [
        (b"u", b"a b", [b"u", b"a", b"b"]),
        (b"u", None, [b"u"]),
        (None, b"a", [b"a"]),
        (None, None, []),
        (b"", b"", []),
        (None, b"  a   b ", [b"a", b"b"]),
        (b"a", b"a a", [b"a", b"a", b"a"]),
        (None, "中 \U0001f600".encode(), ["中".encode(), "\U0001f600".encode()]),
    ],
)
def test_keys_of_a_record(index: ModuleType, uniq: bytes | None, keys: bytes | None, expected: list[bytes]) -> None:
    file = new_file()
    assert put_record(index, file, uniq, keys, 7) == (1, 0)
    assert [(entry[0], entry[1]) for entry in entries(file)] == [(key_hash(TOPIC, key), 7) for key in expected]


def test_a_record_goes_on_in_the_next_file(index: ModuleType) -> None:
    first, second, third = new_file(), new_file(), new_file()
    keys = b" ".join(b"k%d" % i for i in range(15))
    assert put_record(index, first, b"u", keys) == (0, 7)
    assert put_record(index, second, b"u", keys, skip=7) == (0, 14)
    assert put_record(index, third, b"u", keys, skip=14) == (1, 0)
    hashes = [entry[0] for file in (first, second, third) for entry in entries(file)]
    assert hashes == [key_hash(TOPIC, key) for key in [b"u", *keys.split()]]


class TestRows:
    KEYS = ((b"u0", b"a b"), (None, b"c"), (b"u2", None), (b"u3", b"d e f"), (None, None), (b"u5", b"g"))
    SOURCE = TOPIC + b"".join((uniq or b"") + (keys or b"") for uniq, keys in KEYS)

    def table(self) -> array[int]:
        table = new_table(len(self.KEYS))
        at = len(TOPIC)
        for row, (uniq, keys) in enumerate(self.KEYS):
            base = row * ROW_WIDTH
            table[base + RecordColumn.RECORD_POS] = 100 * row
            table[base + RecordColumn.SYS_FLAG] = 12 if row == 2 else 4
            table[base + RecordColumn.STORE_TIMESTAMP] = BEGIN_MS
            table[base + RecordColumn.TOPIC_LEN] = len(TOPIC)
            for text, column in ((uniq, RecordColumn.UNIQ_KEY_POS), (keys, RecordColumn.KEYS_POS)):
                table[base + column] = at
                table[base + column + 1] = -1 if text is None else len(text)
                at += len(text or b"")
        return table

    def put(self, index: ModuleType, file: bytearray, entry_max: int, first: int, skip: int, start: int = 0) -> Any:
        table = self.table()
        last = len(self.KEYS)
        return index.put_rows(file, SLOTS, entry_max, self.SOURCE, table, first, last, 1 << 40, start, skip)

    def test_rows_go_on_where_a_file_was_full(self, index: ModuleType) -> None:
        first, second = new_file(), new_file()
        assert self.put(index, first, ENTRIES, 0, 0) == (3, 3)
        assert self.put(index, second, ENTRIES, 3, 3) == (6, 0)
        found = [(entry[0], entry[1]) for file in (first, second) for entry in entries(file)]
        keys = [(b"u0", 0), (b"a", 0), (b"b", 0), (b"c", 1), (b"u3", 3), (b"d", 3), (b"e", 3), (b"f", 3)]
        keys += [(b"u5", 5), (b"g", 5)]
        assert found == [(key_hash(TOPIC, key), (1 << 40) + 100 * row) for key, row in keys]

    def test_a_file_that_grows_is_full_before_its_end(self, index: ModuleType) -> None:
        file, whole = new_file(), new_file()
        row, done = 0, 0
        for entry_max in range(1, ENTRIES + 1):
            row, done = self.put(index, file, entry_max, row, done)
        assert (row, done) == self.put(index, whole, ENTRIES, 0, 0) == (3, 3)
        assert file == whole

    def test_tags_come_last_and_count_as_a_key(self, index: ModuleType) -> None:
        table, files = self.table(), [new_file(), new_file()]
        for row, at in ((0, 0), (3, 4)):  # any part of the source serves as key
            table[row * ROW_WIDTH + RecordColumn.TAGS_POS] = len(TOPIC) + at
            table[row * ROW_WIDTH + RecordColumn.TAGS_LEN] = 2
        row, done = index.put_rows(files[0], SLOTS, 4, self.SOURCE, table, 0, 6, 0, 0, 0, True)
        assert (row, done) == (0, 3)
        index.put_rows(files[1], SLOTS, ENTRIES, self.SOURCE, table, row, 4, 0, 0, done, True)
        texts = [self.SOURCE[len(TOPIC) + at : len(TOPIC) + at + 2] for at in (0, 4)]
        keys = [b"u0", b"a", b"b", b"T#" + texts[0], b"c", b"u3", b"d", b"e", b"f", b"T#" + texts[1]]
        assert [entry[0] for file in files for entry in entries(file)] == [key_hash(TOPIC, key) for key in keys]

    def test_rows_that_are_known_are_passed_over(self, index: ModuleType) -> None:
        file = new_file()
        assert self.put(index, file, ENTRIES, 0, 0, (1 << 40) + 301) == (6, 0)
        assert [entry[0] for entry in entries(file)] == [key_hash(TOPIC, key) for key in (b"u5", b"g")]

    def test_rows_and_spans_outside(self, index: ModuleType) -> None:
        table = self.table()
        for first, last in ((-1, 1), (2, 1), (0, 7)):
            with pytest.raises(ValueError, match="outside"):
                index.put_rows(new_file(), SLOTS, ENTRIES, self.SOURCE, table, first, last, 0, 0)
        with pytest.raises(ValueError, match="outside"):
            index.put_rows(new_file(), SLOTS, ENTRIES, self.SOURCE[:-1], table, 5, 6, 0, 0)
        with pytest.raises(ValueError, match="do not hold"):
            index.put_rows(new_file()[:-1], SLOTS, ENTRIES, self.SOURCE, table, 0, 1, 0, 0)


def test_a_chain_that_is_not_as_it_was_put_is_found(index: ModuleType) -> None:
    file = new_file()
    for number in range(1, 6):
        put(index, file, b"key%d" % (number % 3), number)

    def broken(data: bytearray) -> int:
        return int(index.find_broken_chain(data, SLOTS, ENTRIES, array("i", bytes(4 * SLOTS))))

    assert broken(new_file()) == broken(file) == -1
    at = INDEX_HEADER.size + INDEX_SLOT.size * SLOTS
    for position in range(INDEX_HEADER.size, at):
        wrong = file[:]
        wrong[position] ^= 1
        assert broken(wrong) == 0
    for number in range(1, 6):
        for byte in (0, 16, 17, 18, 19):  # the hash's sign, the link to the previous entry
            wrong = file[:]
            wrong[at + 20 * number + byte] ^= 0x80
            assert broken(wrong) == number
    with pytest.raises(ValueError, match="do not hold"):
        broken(file[:-1])
    with pytest.raises(ValueError, match="do not suffice"):
        index.find_broken_chain(file, SLOTS, ENTRIES, array("i", bytes(4 * SLOTS - 4)))


def test_too_long_values_are_refused(index: ModuleType) -> None:
    file = new_file()
    with pytest.raises(ValueError, match="do not hold"):
        index.put_key(file[:-1], SLOTS, ENTRIES, TOPIC, b"k", 0, 1, 0, 0)
    with pytest.raises(ValueError, match="do not hold"):
        index.put_key(file, 0, ENTRIES, TOPIC, b"k", 0, 1, 0, 0)
    for start, size in ((0, 2), (-1, 1), (2**62, 1)):
        with pytest.raises(ValueError, match="outside"):
            index.put_key(file, SLOTS, ENTRIES, TOPIC, b"k", start, size, 0, 0)
        with pytest.raises(ValueError, match="outside"):
            table = record_table((0, 1), (start, size), (0, -1))
            index.put_rows(file, SLOTS, ENTRIES, b"k", table, 0, 1, 0, 0)
    assert file == new_file()


@pytest.mark.parametrize("slot", [-1, 2, 7, 2**31 - 1])
def test_a_slot_that_points_to_no_entry_is_empty(index: ModuleType, slot: int) -> None:
    file = new_file()
    at = INDEX_HEADER.size + INDEX_SLOT.size * (key_hash(TOPIC, b"a") % SLOTS)
    file[at : at + 4] = slot.to_bytes(4, "big", signed=True)
    put(index, file, b"a", 1)
    assert entries(file)[0][3] == 0
    assert IndexHeader.decode(file).hash_slot_count == 1


@given(st.binary(min_size=40, max_size=40), st.binary(min_size=40, max_size=40))
def test_damaged_counts_and_slots_stay_within_the_file(header: bytes, slots: bytes) -> None:
    files = []
    for form in FORMS:
        file = bytearray(header + slots).ljust(index_file_bytes(SLOTS, ENTRIES), b"\xaa")
        put(kernel("formats._index_cy", form), file, b"key", 3)
        files.append(file)
    assert all(file == files[0] for file in files)


class TestQuery:
    def chain(self, index: ModuleType) -> bytearray:
        file = new_file()
        for i in range(6):
            put(index, file, b"k" if i % 2 == 0 else b"other%d" % i, i, BEGIN_MS + 1000 * i)
        return file

    @pytest.mark.parametrize(
        ("begin", "end", "count_max", "expected"),
        [
            (0, 2**62, 64, [4, 2, 0]),
            (0, 2**62, 2, [4, 2]),
            (0, 2**62, 0, []),
            (BEGIN_MS + 1000, 2**62, 64, [4, 2]),
            (0, BEGIN_MS + 3999, 64, [2, 0]),
            (BEGIN_MS + 2000, BEGIN_MS + 2000, 64, [2]),
        ],
    )
    def test_times(self, index: ModuleType, begin: int, end: int, count_max: int, expected: list[int]) -> None:
        assert query(self.chain(index), SLOTS, key_hash(TOPIC, b"k"), Limits(count_max, begin, end)) == expected

    def test_a_circle_ends(self, index: ModuleType) -> None:
        file = self.chain(index)
        entry = INDEX_HEADER.size + INDEX_SLOT.size * SLOTS + INDEX_ENTRY.size
        file[entry + 16 : entry + 20] = (5).to_bytes(4, "big")  # the oldest entry of the chain points to the newest
        assert len(query(file, SLOTS, key_hash(TOPIC, b"k"), Limits(1000, 0, 2**62))) <= 7

    def test_short_files_are_refused(self, index: ModuleType) -> None:
        file = self.chain(index)
        for size in (0, 39, 40, 79, 80, 200):
            with pytest.raises(FormatError):
                query(file[:size], SLOTS, 5, Limits(64, 0, 2**62))
        assert query(new_file()[:40], SLOTS, 5, Limits(64, 0, 2**62)) == []


@settings(max_examples=sizes.size(15, 50))
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", "é中".encode()]), st.integers(0, 50)), max_size=7))
def test_model(puts: list[tuple[bytes, int]]) -> None:
    for form in FORMS:
        file = new_file()
        time_ms = BEGIN_MS
        for physical_offset, (key, later) in enumerate(puts):
            time_ms += 1000 * later
            assert put(kernel("formats._index_cy", form), file, key, physical_offset, time_ms)
        for key in (b"a", b"b", b"c", "é中".encode()):
            expected = [at for at, (one, _) in enumerate(puts) if one == key]
            assert query(file, SLOTS, key_hash(TOPIC, key), Limits(64, 0, 2**62)) == expected[::-1]
