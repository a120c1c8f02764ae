"""Encoding of records and walks over them, by the compiled and the interpreted kernel."""

from __future__ import annotations

import codecs
import zlib
from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel
from tests.unit.formats.samples import (
    BORN_HOST,
    STORE_TIMESTAMP_MS,
    WORKED_PROPERTIES,
    WORKED_RECORD,
    Encoding,
    hosts,
    int32,
    int64,
    message,
    property_maps,
)

from rucola.common.columns import ROW_WIDTH, FrameColumn, RecordColumn, WalkStop, new_table
from rucola.common.java import string_hash
from rucola.common.message import StoreMessage
from rucola.formats.checksum import crc32
from rucola.formats.message import message_from_row
from rucola.formats.properties import decode_properties, encode_properties

ALL_CHECKS = 7


@pytest.fixture
def records(form: str) -> ModuleType:
    return kernel("formats._message_cy", form)


@pytest.fixture
def sends(form: str) -> ModuleType:
    return kernel("formats._send_cy", form)


def walk(
    records: ModuleType, segment: bytes | bytearray, base_offset: int = 0, rows_max: int = 64, check: int = ALL_CHECKS
) -> tuple[int, int, int, Any]:
    table = new_table(rows_max)
    view = memoryview(segment)
    rows, position, stop = records.walk_records(
        segment, view, 0, len(segment), base_offset, table, rows_max, crc32, check
    )
    return rows, position, stop, table


def assert_each_row_is_as_if_alone(records: ModuleType, texts: Sequence[bytes]) -> None:
    """Walks records with these properties together, and each of them alone."""
    encodings = [Encoding(records, message(properties=text)) for text in texts]
    alone = [one.segment[: one.column(0, FrameColumn.RECORD_SIZE)] for one in encodings]
    rows, _, _, together = walk(records, b"".join(alone), check=0)
    assert rows == len(texts)
    for row, record in enumerate(alone):
        table = walk(records, record, check=0)[3]
        for column in (RecordColumn.TAGS_POS, RecordColumn.KEYS_POS, RecordColumn.UNIQ_KEY_POS):
            position, length = (together[row * ROW_WIDTH + column + part] for part in (0, 1))
            shift = together[row * ROW_WIDTH + RecordColumn.RECORD_POS] if length >= 0 else 0
            assert (position - shift, length) == (table[column], table[column + 1]), (texts[row], column)
        assert together[row * ROW_WIDTH + RecordColumn.TAGS_CODE] == table[RecordColumn.TAGS_CODE]


class Noting(bytearray):
    """Records the positions that are written, in order."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.written: list[int] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        self.written.append(key.start if isinstance(key, slice) else key)
        super().__setitem__(key, value)


class TestWorkedExample:
    def test_encode(self, records: ModuleType) -> None:
        encoding = Encoding(records, message())
        assert encoding.done == 1
        assert encoding.segment[:176] == WORKED_RECORD
        assert not any(encoding.segment[176:])
        assert encoding.column(0, FrameColumn.PHYSICAL_OFFSET) == 0
        assert encoding.column(0, FrameColumn.QUEUE_OFFSET) == 0
        assert encoding.column(0, FrameColumn.RECORD_SIZE) == 176
        assert encoding.queue_offsets.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]

    def test_record_crc(self, records: ModuleType) -> None:
        encoding = Encoding(records, message(), record_crc=True)
        assert encoding.column(0, FrameColumn.RECORD_SIZE) == 196
        assert encoding.segment[112:114] == (82).to_bytes(2, "big")
        assert encoding.segment[176:196] == b"__CRC32#\x015512504730\x02"
        assert walk(records, encoding.segment[:196])[:3] == (1, 196, WalkStop.LIMIT)

    @pytest.mark.parametrize("record_crc", [False, True])
    def test_the_size_is_written_when_all_before_the_checksum_is_there(self, record_crc: bool) -> None:
        """The size is written after everything that the checksum covers, so that a reader of the file never reads an
        incomplete record.
        """
        records, segment = kernel("formats._message_cy", "interpreted"), Noting(65536)
        Encoding(records, message(), segment=segment, record_crc=record_crc)
        size_at = max(order for order, position in enumerate(segment.written) if position < 4)
        later = segment.written[size_at + 1 :]
        assert later == (list(range(176, 196)) if record_crc else [])

    def test_walk(self, records: ModuleType) -> None:
        rows, position, stop, table = walk(records, WORKED_RECORD)
        assert (rows, position, stop) == (1, 176, WalkStop.LIMIT)
        expected = {
            RecordColumn.RECORD_POS: 0,
            RecordColumn.RECORD_SIZE: 176,
            RecordColumn.BODY_CRC: 1774740973,
            RecordColumn.QUEUE_ID: 3,
            RecordColumn.BORN_TIMESTAMP: 1700000000000,
            RecordColumn.BORN_HOST_POS: 48,
            RecordColumn.STORE_TIMESTAMP: 1700000000123,
            RecordColumn.STORE_HOST_POS: 64,
            RecordColumn.BODY_POS: 88,
            RecordColumn.BODY_LEN: 14,
            RecordColumn.TOPIC_POS: 103,
            RecordColumn.TOPIC_LEN: 9,
            RecordColumn.PROPERTIES_POS: 114,
            RecordColumn.PROPERTIES_LEN: 62,
            RecordColumn.TAGS_POS: 171,
            RecordColumn.TAGS_LEN: 4,
            RecordColumn.TAGS_CODE: 2598919,
            RecordColumn.KEYS_POS: 119,
            RecordColumn.KEYS_LEN: 4,
            RecordColumn.UNIQ_KEY_POS: 133,
            RecordColumn.UNIQ_KEY_LEN: 32,
        }
        assert {column: table[column] for column in RecordColumn} == dict.fromkeys(RecordColumn, 0) | expected


class TestEncode:
    def test_positions_and_queue_offsets_go_on(self, records: ModuleType) -> None:
        encoding = Encoding(records, message(), message(queue_id=1), message(), base_offset=1 << 40, position=8)
        assert encoding.done == 3
        assert [encoding.column(row, FrameColumn.PHYSICAL_OFFSET) for row in range(3)] == [
            (1 << 40) + 8 + 176 * row for row in range(3)
        ]
        assert [encoding.column(row, FrameColumn.QUEUE_OFFSET) for row in range(3)] == [0, 0, 1]
        assert encoding.queue_offsets[3] == 2 and encoding.queue_offsets[1] == 1

    @pytest.mark.parametrize(("segment_bytes", "done"), [(176 * 3 + 8, 3), (176 * 3 + 7, 2), (183, 0), (0, 0)])
    def test_eight_bytes_stay_for_the_blank_record(self, records: ModuleType, segment_bytes: int, done: int) -> None:
        encoding = Encoding(records, message(), message(), message(), segment_bytes=segment_bytes)
        assert encoding.done == done
        assert encoding.queue_offsets[3] == done
        assert not any(encoding.segment[176 * done :])

    @pytest.mark.parametrize(("suffix", "record_crc"), [(b"", False), (b"c\x01d", True)])
    def test_how_far_rows_fit_is_known_before(
        self, records: ModuleType, sends: ModuleType, suffix: bytes, record_crc: bool
    ) -> None:
        sent = [message(body=bytes(10 * n), properties=b"a\x01b") for n in range(4)] + [message(properties=b"")]
        for segment_bytes in range(0, 900, 7):
            changes = {"suffix": suffix, "record_crc": record_crc, "segment_bytes": segment_bytes}
            encoding = Encoding(records, *sent, **changes)
            place = (encoding.source, encoding.table, 0, 5, segment_bytes, 9, 8, 8, 8)
            assert sends.fit_rows(*place, suffix, record_crc) == encoding.done
        assert encoding.done == 5

    def test_rows_that_cannot_be_encoded_are_refused_wherever_they_stand(
        self, records: ModuleType, sends: ModuleType
    ) -> None:
        encoding = Encoding(records, message(), message(), message())
        place: list[Any] = [encoding.source, encoding.table, 0, 3, 65536, 9, 8, 8, 8, b"", False]
        assert sends.fit_rows(*place) == 3
        place[4] = 0
        assert sends.fit_rows(*place) == 0
        encoding.table[2 * 40 + FrameColumn.QUEUE_ID] = 8
        for space in (0, 65536):
            place[4] = space
            with pytest.raises(ValueError, match="queue 8"):
                sends.fit_rows(*place)
        for at, wrong in ((3, 4), (5, 0), (7, 4), (8, 9), (9, bytes(1001))):
            with pytest.raises(ValueError, match=r"."):
                sends.fit_rows(*place[:at], wrong, *place[at + 1 :])

    @pytest.mark.parametrize(
        ("own", "suffix", "record_crc", "stored"),
        [
            (b"", b"", False, b""),
            (b"a\x01b", b"", False, b"a\x01b"),
            (b"a\x01b", b"c\x01d\x02", False, b"a\x01b\x02c\x01d\x02"),
            (b"a\x01b\x02", b"c\x01d\x02", False, b"a\x01b\x02c\x01d\x02"),
            (b"a\x01b\x02", b"c\x01d", False, b"a\x01b\x02c\x01d"),
            (b"", b"c\x01d\x02", False, b"c\x01d\x02"),
            (b"", b"", True, b""),
            (b"a\x01b", b"", True, b"a\x01b\x02"),
            (b"a\x01b", b"c\x01d", True, b"a\x01b\x02c\x01d\x02"),
        ],
    )
    def test_separators(self, records: ModuleType, own: bytes, suffix: bytes, record_crc: bool, stored: bytes) -> None:
        encoding = Encoding(records, message(properties=own), suffix=suffix, record_crc=record_crc)
        size = encoding.column(0, FrameColumn.RECORD_SIZE)
        rows, _, _, table = walk(records, encoding.segment[:size])
        start, length = table[RecordColumn.PROPERTIES_POS], table[RecordColumn.PROPERTIES_LEN]
        assert rows == 1
        assert encoding.segment[start : start + length - 20 * record_crc] == stored

    @pytest.mark.parametrize(("topic", "magic"), [(127, "daa320a7"), (128, "daa320ab")])
    def test_version_follows_the_topic(self, records: ModuleType, topic: int, magic: str) -> None:
        encoding = Encoding(records, message(topic=b"t" * topic))
        size = encoding.column(0, FrameColumn.RECORD_SIZE)
        assert encoding.segment[4:8].hex() == magic
        rows, _, _, table = walk(records, encoding.segment[:size])
        assert (rows, table[RecordColumn.TOPIC_LEN]) == (1, topic)

    def test_smallest_record(self, records: ModuleType) -> None:
        encoding = Encoding(records, message(topic=b"t", body=b"", properties=b""))
        assert encoding.column(0, FrameColumn.RECORD_SIZE) == 92
        assert walk(records, encoding.segment[:92])[:3] == (1, 92, WalkStop.LIMIT)

    @pytest.mark.parametrize(("sys_flag", "advances"), [(0, True), (4, False), (8, True), (12, False)])
    def test_prepared_and_rollback_take_no_queue_offset(
        self, records: ModuleType, sys_flag: int, advances: bool
    ) -> None:
        encoding = Encoding(
            records, message(sys_flag=sys_flag, prepared_transaction_offset=77), queue_offsets=array("q", [9] * 4)
        )
        assert encoding.column(0, FrameColumn.QUEUE_OFFSET) == (9 if advances else 0)
        assert int.from_bytes(encoding.segment[76:84], "big") == 77

    def test_host_bits_come_from_the_hosts(self, records: ModuleType) -> None:
        for born, store, bits in ((8, 8, 0), (20, 8, 0x10), (8, 20, 0x20), (20, 20, 0x30)):
            claimed = message(sys_flag=0x31, born_host=BORN_HOST.rjust(born, b"\xfe"))
            encoding = Encoding(records, claimed, store_host=bytes(store))
            assert int.from_bytes(encoding.segment[36:40], "big") == 1 | bits

    @pytest.mark.parametrize(
        "changes",
        [
            {"first": 1, "last": 0},
            {"last": 2},
            {"first": -1},
            {"position": -1},
            {"position": 65537},
            {"limit": 65537},
            {"topic": b""},
            {"topic": bytes(32768)},
            {"born_host": bytes(4)},
            {"store_host": bytes(16)},
            {"suffix": bytes(1001)},
            {"queue_offsets": array("q", [0] * 3)},
            {"source": bytearray(70)},
        ],
    )
    def test_impossible_values_are_refused_before_a_byte_is_written(
        self, records: ModuleType, changes: dict[str, Any]
    ) -> None:
        segment = bytearray(65536)
        with pytest.raises(ValueError, match=r"."):
            Encoding(records, message(), segment=segment, **changes)
        assert not any(segment)

    def test_too_many_properties(self, records: ModuleType) -> None:
        assert Encoding(records, message(properties=bytes(32767))).done == 1
        assert Encoding(records, message(properties=bytes(32746)), record_crc=True).done == 1
        for size, record_crc in ((32768, False), (32747, True)):
            with pytest.raises(ValueError, match="properties"):
                Encoding(records, message(properties=bytes(size)), record_crc=record_crc)

    def test_blank(self, records: ModuleType) -> None:
        segment = bytearray(64)
        records.write_blank(segment, 24, 40)
        assert segment == bytes(24) + bytes.fromhex("00000028cbd43194") + bytes(32)
        assert walk(records, segment[24:])[:3] == (0, 0, WalkStop.BLANK)
        for position, left in ((57, 7), (56, 9), (-1, 8)):
            with pytest.raises(ValueError, match="blank"):
                records.write_blank(segment, position, left)


class TestWalk:
    def two(self, records: ModuleType) -> bytearray:
        encoding = Encoding(records, message(), message(body=b"", properties=b""), base_offset=4096, record_crc=True)
        return encoding.segment[: 196 + encoding.column(1, FrameColumn.RECORD_SIZE)]

    def test_same_topic(self, records: ModuleType) -> None:
        segment = bytearray()
        for topic in (b"a", b"a", b"b", b"aa", b"aa"):
            encoding = Encoding(records, message(topic=topic), base_offset=len(segment))
            segment += encoding.segment[: encoding.column(0, FrameColumn.RECORD_SIZE)]
        rows, _, _, table = walk(records, segment)
        assert [table[row * ROW_WIDTH + RecordColumn.SAME_TOPIC] for row in range(rows)] == [0, 1, 0, 0, 1]

    def test_full_table(self, records: ModuleType) -> None:
        assert walk(records, self.two(records), 4096, rows_max=1)[:3] == (1, 196, WalkStop.TABLE_FULL)
        assert walk(records, self.two(records), 4096, rows_max=2)[2] == WalkStop.LIMIT
        assert walk(records, b"", rows_max=0)[:3] == (0, 0, WalkStop.LIMIT)
        assert walk(records, WORKED_RECORD, rows_max=0)[:3] == (0, 0, WalkStop.TABLE_FULL)

    def test_every_cut_is_torn(self, records: ModuleType) -> None:
        segment = self.two(records)
        for end in range(len(segment)):
            expected = (0, 0) if end < 196 else (1, 196)
            stop = WalkStop.LIMIT if end in (0, 196) else WalkStop.TORN
            assert walk(records, segment[:end], 4096)[:3] == (*expected, stop)

    def test_every_flipped_bit_is_found(self, records: ModuleType) -> None:
        segment = self.two(records)
        assert walk(records, segment, 4096)[0] == 2
        for at in range(196):
            segment[at] ^= 1 << (at % 8)
            rows, position, _, table = walk(records, segment, 4096)
            segment[at] ^= 1 << (at % 8)
            # a flip in the name of the CRC property hides only the property
            assert (rows, position) == (0, 0) or 176 <= at < 185 or at == 195
            if rows:
                assert message_from_row(segment, table, 0).body == b"Hello RocketMQ"

    def test_checks_are_made_when_asked_for(self, records: ModuleType) -> None:
        body = bytearray(self.two(records))
        body[90] ^= 1
        offset = bytearray(WORKED_RECORD)
        offset[35] = 1
        digit = bytearray(self.two(records))
        digit[186] ^= 1
        for segment, base_offset, bits in ((body, 4096, 3), (offset, 0, 4), (digit, 4096, 2)):
            for check in range(8):
                rows = walk(records, segment, base_offset, check=check)[0]
                assert (rows == 0) == bool(check & bits), (bits, check)

    @pytest.mark.parametrize(
        ("at", "patch"),
        [
            (4, "daa320a8"),  # magic
            (0, "00000000"),
            (0, "80000000"),
            (0, "7fffffff"),
            (84, "ffffffff"),  # body length
            (84, "7fffffff"),
            (84, "0000000f"),
            (102, "80"),  # topic length
            (102, "ff"),
            (102, "08"),
            (112, "8000"),  # length of the properties
            (112, "7fff"),
            (112, "003d"),
            (36, "00000010"),  # sysFlag says that hosts are longer
            (36, "00000030"),
        ],
    )
    def test_damaged_lengths(self, records: ModuleType, at: int, patch: str) -> None:
        record = bytearray(WORKED_RECORD)
        record[at : at + len(patch) // 2] = bytes.fromhex(patch)
        assert walk(records, bytes(record) + bytes(64), check=0)[:3] == (0, 0, WalkStop.TORN)

    def test_the_topic_length_of_version_1_is_a_signed_byte(self, records: ModuleType) -> None:
        record = WORKED_RECORD[:102] + b"\x80" + b"t" * 128 + bytes(2)
        record = len(record).to_bytes(4, "big") + record[4:]
        assert walk(records, record)[:3] == (0, 0, WalkStop.TORN)
        record = record[:102] + b"\x7f" + b"t" * 127 + bytes(2)
        record = len(record).to_bytes(4, "big") + record[4:]
        assert walk(records, record)[:3] == (1, len(record), WalkStop.LIMIT)

    def test_zeros_are_torn(self, records: ModuleType) -> None:
        assert walk(records, bytes(4096))[:3] == (0, 0, WalkStop.TORN)

    @pytest.mark.parametrize(
        ("text", "tags", "keys"),
        [
            (b"TAGS\x01a\x02TAGS\x01b\x02", b"b", None),
            (b"TAGS\x01a", b"a", None),
            (b"TAGS\x01\x02KEYS\x01", None, None),
            (b"\x01TAGS\x01a\x02", None, None),
            (b"TAGS\x02KEYS\x01k\x01l\x02", None, b"k\x01l"),
            (b"TAGSS\x01a\x02XKEYS\x01k\x02", None, None),
            (b"\x02\x02TAGS\x01a\x02\x02", b"a", None),
        ],
    )
    def test_spans(self, records: ModuleType, text: bytes, tags: bytes | None, keys: bytes | None) -> None:
        encoding = Encoding(records, message(properties=text))
        segment = encoding.segment[: encoding.column(0, FrameColumn.RECORD_SIZE)]
        _, _, _, table = walk(records, segment)
        for expected, column in ((tags, RecordColumn.TAGS_POS), (keys, RecordColumn.KEYS_POS)):
            start, length = table[column], table[column + 1]
            assert (None if length < 0 else segment[start : start + length]) == expected
        assert table[RecordColumn.TAGS_CODE] == (string_hash(tags.decode()) if tags else 0)

    @pytest.mark.parametrize(
        "texts",
        [
            (b"TAGS\x01a\x02KEYS\x01k\x02", b"TAGS\x01b\x02KEYS\x01l\x02", b"KEYS\x01b\x02TAGS\x01l\x02"),
            (b"TAGS\x01ab\x02c", b"TAGS\x01a\x02bc", b"TAGS\x01abc\x02", b"TAGS\x01ab\x02c"),
            (b"KEYS\x01k\x02", b"TAGS\x01k\x02", b"XEYS\x01k\x02", b"KEYS\x02k\x02"),
            (b"UNIQ_KEY\x01u", b"UNIQ_KEX\x01u", b"UNIQ\x01KEY\x01u", b"UNIQ_KEY\x01v"),
            (b"", b"TAGS\x01a", b"", b"TAGS\x01b"),
            (b"a\x02" * 31 + b"TAGS\x01a\x02", b"b\x02" * 31 + b"TAGS\x01b\x02"),
            (b"a\x02" * 32 + b"TAGS\x01a\x02", b"b\x02" * 32 + b"TAGS\x01b\x02", b"KEYS\x01" + b"k" * 66),
        ],
    )
    def test_spans_do_not_depend_on_the_rows_before(self, records: ModuleType, texts: tuple[bytes, ...]) -> None:
        assert_each_row_is_as_if_alone(records, texts)

    @pytest.mark.parametrize("after", [b"", b"l\x02" * 32], ids=["at the end of the file", "before other bytes"])
    @pytest.mark.parametrize("before", [0, 50, 56, 57, 58, 63, 64, 120, 121, 122, 128])
    def test_spans_wherever_the_kernel_divides_the_properties(
        self, records: ModuleType, before: int, after: bytes
    ) -> None:
        text = b"n" * before + b"\x02TAGS\x01a\x02" + b"v" * 70 + b"\x02KEYS\x01k"
        encoding = Encoding(records, message(properties=text))
        size = encoding.column(0, FrameColumn.RECORD_SIZE)
        segment = encoding.segment[:size] + after
        table = new_table(1)
        records.walk_records(segment, memoryview(segment), 0, size, 0, table, 1, crc32, 0)
        at = table[RecordColumn.PROPERTIES_POS]
        spans = [table[RecordColumn.TAGS_POS], table[RecordColumn.TAGS_LEN]]
        spans += [table[RecordColumn.KEYS_POS], table[RecordColumn.KEYS_LEN]]
        assert spans == [at + text.index(b"\x01a") + 1, 1, at + text.index(b"\x01k") + 1, 1]

    @pytest.mark.parametrize("lost", range(1, 22))
    def test_a_checksum_lost_with_its_page_is_noticed_when_asked_for(self, records: ModuleType, lost: int) -> None:
        encoding = Encoding(records, message(properties=b"TAGS\x01a\x02"), record_crc=True)
        record = bytearray(encoding.segment[: encoding.column(0, FrameColumn.RECORD_SIZE)])
        assert walk(records, record, check=15)[0] == 1
        record[-lost:] = bytes(lost)
        assert walk(records, record, check=15)[:3] == (0, 0, WalkStop.TORN)

    def test_a_record_without_checksum_may_have_zero_bytes_before_its_end(self, records: ModuleType) -> None:
        encoding = Encoding(records, message(properties=b"A\x01\0\x02B\x01" + b"b" * 17 + b"\x02"))
        record = encoding.segment[: encoding.column(0, FrameColumn.RECORD_SIZE)]
        assert walk(records, record, check=8)[0] == 1

    @pytest.mark.parametrize("arguments", [(-1, 5, 1), (5, 4, 1), (0, 177, 1), (0, 176, 2), (0, 176, -1)])
    def test_arguments_out_of_range(self, records: ModuleType, arguments: tuple[int, int, int]) -> None:
        position, limit, rows_max = arguments
        with pytest.raises(ValueError, match=r"."):
            records.walk_records(
                WORKED_RECORD, memoryview(WORKED_RECORD), position, limit, 0, new_table(1), rows_max, crc32, 0
            )


class TestHash:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("TagA", 2598919),
            ("TagB", 2598920),
            ("OrderPaid", 1612261146),
            ("pay_success", -444633236),
            ("polygenelubricants", -2147483648),
            ("中", 20013),
            ("\U0001f600", 1772899),
            ("", 0),
            ("TopicTest#ogaQmc", -2147483648),
            ("Tag-negative", -2123558616),
        ],
    )
    def test_vectors(self, records: ModuleType, text: str, expected: int) -> None:
        data = text.encode()
        assert records.hash_utf8(data, 0, len(data), 0) == expected == string_hash(text)

    def test_in_pieces(self, records: ModuleType) -> None:
        data = "TopicTest#中\U0001f600x".encode()
        for cut in (0, 4, 10, 13, 17, len(data)):
            seed = records.hash_utf8(data, 0, cut, 0)
            assert records.hash_utf8(data, cut, len(data), seed) == string_hash(data.decode())

    @pytest.mark.parametrize(
        ("data", "replacements"),
        [
            (b"\xff", 1),
            (b"\xc0\x80", 2),
            (b"\xe0\x80\x80", 3),
            (b"\xed\xa0\x80", 1),
            (b"\xf0\x80\x80\x80", 4),
            (b"\xf4\x90\x80\x80", 4),
            (b"\xf0\x9f\x98", 1),
            (b"\xe4\xb8", 1),
            (b"\xed\xa0", 1),
            (b"\xed\xa0\xed\xa0", 2),
            (b"\xed\xa0\xf0", 2),
            (b"\xc3", 1),
        ],
    )
    def test_bytes_that_are_no_text(self, records: ModuleType, data: bytes, replacements: int) -> None:
        assert records.hash_utf8(data, 0, len(data), 0) == string_hash("\ufffd" * replacements)

    @pytest.mark.parametrize("span", [(-1, 2), (0, 5), (3, 2)])
    def test_span_outside(self, records: ModuleType, span: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="outside"):
            records.hash_utf8(b"TagA", *span, 0)


def _java_replacement(error: UnicodeError) -> tuple[str, int]:
    """Decodes as Java does: a surrogate coded in three bytes, or cut after two, becomes one U+FFFD. Python writes one
    for each byte.
    """
    assert isinstance(error, UnicodeDecodeError)
    data, start = error.object, error.start
    if data[start] == 0xED and data[start + 1 : start + 2] >= b"\xa0" and data[start + 1] < 0xC0:
        return "\ufffd", start + (3 if data[start + 2 : start + 3] and data[start + 2] & 0xC0 == 0x80 else 2)
    return "\ufffd", error.end


codecs.register_error("java", _java_replacement)

bytes_near_utf8 = st.lists(
    st.one_of(
        st.binary(max_size=4),
        st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.sampled_from([b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xff"]),
    )
).map(b"".join)


@given(data=bytes_near_utf8)
def test_hash_of_any_bytes_is_that_of_the_text_java_reads(data: bytes) -> None:
    for form in FORMS:
        hash_utf8 = kernel("formats._message_cy", form).hash_utf8
        assert hash_utf8(data, 0, len(data), 0) == string_hash(data.decode("utf-8", "java"))


messages = st.builds(
    StoreMessage,
    topic=st.just(b"TopicTest"),
    queue_id=st.integers(0, 7),
    body=st.binary(max_size=200),
    properties=st.one_of(property_maps.map(encode_properties), st.binary(max_size=60)),
    born_timestamp_ms=int64,
    born_host=st.just(BORN_HOST),
    flag=int32,
    sys_flag=int32,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)


@given(st.lists(messages, min_size=1, max_size=5), hosts, hosts, st.booleans(), st.integers(0, 2**62))
def test_encoded_records_are_decoded(
    sent: list[StoreMessage], born_host: bytes, store_host: bytes, record_crc: bool, base_offset: int
) -> None:
    segments = []
    for form in FORMS:
        records = kernel("formats._message_cy", form)
        encoding = Encoding(
            records, *sent, born_host=born_host, store_host=store_host, record_crc=record_crc, base_offset=base_offset
        )
        assert encoding.done == len(sent)
        last = len(sent) - 1
        end = (
            encoding.column(last, FrameColumn.PHYSICAL_OFFSET) + encoding.column(last, FrameColumn.RECORD_SIZE)
        ) - base_offset
        segment = encoding.segment[:end]
        segments.append(segment)
        rows, position, stop, table = walk(records, segment, base_offset)
        assert (rows, position, stop) == (len(sent), end, WalkStop.LIMIT)
        for row, one in enumerate(sent):
            got = message_from_row(segment, table, row, unpack=False)
            host_bits = 0x10 * (len(born_host) == 20) | 0x20 * (len(store_host) == 20)
            assert (got.body, got.flag, got.queue_id) == (one.body, one.flag, one.queue_id)
            assert got.sys_flag == one.sys_flag & ~0x30 | host_bits
            assert (got.born_host, got.store_host) == (born_host, store_host)
            assert (got.born_timestamp_ms, got.store_timestamp_ms) == (one.born_timestamp_ms, STORE_TIMESTAMP_MS)
            assert got.prepared_transaction_offset == one.prepared_transaction_offset
            assert got.reconsume_times == one.reconsume_times
            assert got.body_crc == zlib.crc32(one.body) & 0x7FFFFFFF
            properties = dict(got.properties)
            assert (properties.pop("__CRC32#", None) is not None) == record_crc or b"__CRC32#" in one.properties
            if b"__CRC32#" not in one.properties:
                assert properties == decode_properties(one.properties)
    assert len({bytes(segment) for segment in segments}) == 1


valid_start = st.sampled_from([b"", WORKED_RECORD, WORKED_RECORD[:60], WORKED_RECORD[:113]])


pieces = st.sampled_from(
    [b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01", b"TAGSX", b"a", b"bc", b"\x01", b"\x02", b"\x02", b"x\x02y"]
)


@pytest.mark.parametrize("form", FORMS)
@given(texts=st.lists(st.lists(pieces, max_size=8).map(b"".join), min_size=2, max_size=40))
def test_spans_of_any_properties_do_not_depend_on_the_rows_before(form: str, texts: list[bytes]) -> None:
    assert_each_row_is_as_if_alone(kernel("formats._message_cy", form), texts)


@given(valid_start, st.binary(max_size=300), st.integers(0, 7))
def test_no_bytes_break_the_walk_and_both_forms_agree(start: bytes, noise: bytes, check: int) -> None:
    segment = start + noise
    results = []
    for form in FORMS:
        rows, position, stop, table = walk(kernel("formats._message_cy", form), segment, check=check)
        assert 0 <= position <= len(segment)
        results.append((rows, position, stop, table[: rows * ROW_WIDTH].tolist()))
    assert all(result == results[0] for result in results)


@given(st.lists(st.tuples(st.integers(0, 175), st.integers(0, 255)), min_size=1, max_size=6))
def test_no_damage_breaks_the_walk(changes: list[tuple[int, int]]) -> None:
    record = bytearray(WORKED_RECORD + WORKED_RECORD)
    for at, value in changes:
        record[at] = value
    results = [walk(kernel("formats._message_cy", form), record, check=3)[:3] for form in FORMS]
    assert all(result == results[0] for result in results)


def test_worked_properties_are_those_of_the_record() -> None:
    assert WORKED_RECORD.endswith(WORKED_PROPERTIES)
