"""The scanner makes record batches from log records in memory; every column is compared with the plain decoder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tests.unit.arrow.records import STORE_HOST, expected_rows, log_of, message, starts_of

from rucola.arrow import column_block
from rucola.arrow import scanner as scanner_module
from rucola.arrow.columns import BatchBuilder, arrow_schema
from rucola.arrow.ranges import QueueRange
from rucola.arrow.rows import Rows, host_texts, text
from rucola.arrow.scanner import CHECK_PHYSICAL_OFFSET, RowChooser, Scanner
from rucola.arrow.schema import chosen_columns
from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.common.hosts import host_bytes, host_text
from rucola.common.message_queue import MessageQueue
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.filter.tag import parse_tag_expression
from rucola.formats.message import encode_message
from rucola.spark.options import SourceOptions, parse_options

ROOT = Path(__file__).parents[3]
ALL = parse_tag_expression("*")


def scanner(chooser: RowChooser | None = None, **given: str) -> tuple[Scanner, pa.Schema]:
    options: SourceOptions = parse_options({"storePath": "d", "topic": "t", **given})
    columns = chosen_columns(options)
    schema = arrow_schema(columns)
    builder = BatchBuilder(options, [column.name for column in columns], schema, "broker-x")
    return Scanner(builder, chooser or RowChooser(ALL)), schema


def rows_of(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> list[dict[str, object]]:
    table = pa.Table.from_batches(list(batches), schema)
    table.validate(full=True)
    for name in ("bornTimestamp", "storeTimestamp", "timestamp"):
        if name in schema.names:
            at = schema.names.index(name)
            table = table.set_column(at, name, table.column(name).cast(pa.int64()))
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


def decoded_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[dict[str, object]]:
    """Returns the rows with their properties as a dict, like ``expected_rows``."""
    rows = rows_of(iter(batches), schema)
    for row in rows:
        row["properties"] = json.loads(str(row["properties"]))
    return rows


def scan_all(log: bytes, base_offset: int = 0, **given: str) -> list[dict[str, object]]:
    made, schema = scanner(**given)
    return rows_of(made.batches(log, 0, len(log), base_offset, "log", CHECK_PHYSICAL_OFFSET), schema)


def test_all_columns_equal_the_plain_decoder() -> None:
    log = log_of(700, base_offset=10_000)
    made, schema = scanner()
    batches = made.batches(log, 0, len(log), 10_000, "log", CHECK_PHYSICAL_OFFSET)
    assert decoded_rows(batches, schema) == expected_rows(log, "broker-x")


def test_text_is_checked() -> None:
    for values in ([b"a", None, b""], [b"a", None, "\u00e4\U0001f600".encode()], [None], []):
        made = text(pa.array(values, pa.binary()))
        made.validate(full=True)
        assert made.type == pa.string()
        assert made.to_pylist() == [None if value is None else value.decode() for value in values]
    broken = pa.array([b"a", None, b"\xff\xfe", "\u00e4".encode()], pa.binary())
    assert text(broken).to_pylist() == ["a", None, "\ufffd\ufffd", "\u00e4"]
    assert text(broken[3:]).to_pylist() == ["\u00e4"]


def test_bytes_of_a_text_column_that_are_no_text() -> None:
    log = bytearray()
    for number, keys in enumerate((b"k", b"\xff\xfe", "\u00e4".encode())):
        properties = b"KEYS\x01%s\x02UNIQ_KEY\x01%s\x02" % (keys, keys)
        one = replace(message(number, b"flights"), properties=properties)
        log += encode_message(one, len(log), number, 1_700_000_001_000, STORE_HOST)
    texts = ("k", "\ufffd\ufffd", "\u00e4")
    assert scan_all(bytes(log), columns="keys,tags") == [{"keys": keys, "tags": None} for keys in texts]
    assert scan_all(bytes(log), columns="msgId") == [{"msgId": keys} for keys in texts]


def test_a_topic_that_is_no_text() -> None:
    log = bytearray()
    for number in range(3):
        log += encode_message(message(1, b"\xfftopic"), len(log), number, 1_700_000_001_000, STORE_HOST)
    assert scan_all(bytes(log), columns="topic,queueOffset") == [
        {"topic": "\ufffdtopic", "queueOffset": number} for number in range(3)
    ]


def test_properties_as_map() -> None:
    log = log_of(60)
    rows = scan_all(log, propertiesAsMap="true", columns="queueOffset,properties")
    # A map's text must be UTF-8. Bytes that are not UTF-8 come from a broken client, and are replaced.
    for row, expected in zip(rows, expected_rows(log, ""), strict=True):
        pairs = row["properties"]
        assert isinstance(pairs, list)
        assert dict(pairs) == expected["properties"]
        assert len(pairs) == len(dict(pairs))


def test_the_checksum_of_a_record_is_no_property() -> None:
    log, plain = bytearray(), bytearray()
    for number in range(60):
        one = message(number, b"flights")
        if number % 10 == 0:
            one = replace(
                one, properties=b"__CRC32#\x01short\x02"
            )  # a user wrote this property; it is not the record's checksum
        log += encode_message(one, len(log), number, 1_700_000_001_000, STORE_HOST, record_crc=number % 3 > 0)
        plain += encode_message(one, len(plain), number, 1_700_000_001_000, STORE_HOST)
    assert b"__CRC32#" in log
    for given in (
        {"columns": "properties"},
        {"columns": "properties", "propertiesAsMap": "true"},
        {"columns": "headers", "schemaStyle": "kafka", "includeHeaders": "true"},
    ):
        assert scan_all(bytes(log), **given) == scan_all(bytes(plain), **given)


def test_kafka_columns() -> None:
    log = log_of(60)
    expected = expected_rows(log, "")
    rows = scan_all(log, schemaStyle="kafka", includeHeaders="true")
    for row, wanted in zip(rows, expected, strict=True):
        assert row["key"] == (None if wanted["keys"] is None else str(wanted["keys"]).encode())
        names = ("value", "topic", "partition", "offset", "timestamp")
        theirs = ("body", "topic", "queueId", "queueOffset", "storeTimestamp")
        assert [row[name] for name in names] == [wanted[name] for name in theirs]
        assert row["timestampType"] == 1
        headers = {header["key"]: header["value"].decode("utf-8", "replace") for header in row["headers"]}  # type: ignore[attr-defined]
        assert headers == wanted["properties"]


def test_narrow_columns_in_their_order() -> None:
    log = log_of(9)
    rows = scan_all(log, columns="physicalOffset,body")
    assert [list(row) for row in rows] == [["physicalOffset", "body"]] * 9
    assert [row["physicalOffset"] for row in rows] == starts_of(log)


def test_columns_of_any_case() -> None:
    log = log_of(9)
    options = parse_options({"storePath": "d", "topic": "t"})
    schema = pa.schema([pa.field("QUEUEOFFSET", pa.int64()), pa.field("Body", pa.binary())])
    made = Scanner(BatchBuilder(options, schema.names, schema, "b"), RowChooser(ALL))
    rows = rows_of(made.batches(log, 0, len(log), 0, "log", 0), schema)
    assert [row["Body"] for row in rows] == [row["body"] for row in expected_rows(log, "")]


def test_batches_do_not_hold_on_to_the_source() -> None:
    log = bytearray(log_of(300))
    made, schema = scanner()
    batches = list(made.batches(log, 0, len(log), 0, "log", 0))
    expected = expected_rows(bytes(log), "broker-x")
    log[:] = bytes(len(log))
    assert [row["body"] for row in rows_of(iter(batches), schema)] == [row["body"] for row in expected]


def test_the_first_batch_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner_module, "FIRST_BATCH_ROWS", 5)
    monkeypatch.setattr(scanner_module, "BATCH_ROWS", 50)
    log = log_of(120)
    made, _ = scanner()
    assert [len(batch) for batch in made.batches(log, 0, len(log), 0, "log", 0)] == [5, 50, 50, 15]


@pytest.mark.parametrize("batch_bytes", [1, 400, 1000])
def test_batches_are_cut_by_bytes(monkeypatch: pytest.MonkeyPatch, batch_bytes: int) -> None:
    monkeypatch.setattr(scanner_module, "BATCH_BYTES", batch_bytes)
    log = log_of(40)
    made, schema = scanner(columns="physicalOffset,storeSize")
    batches = list(made.batches(log, 0, len(log), 0, "log", 0))
    rows = rows_of(iter(batches), schema)
    assert [row["physicalOffset"] for row in rows] == starts_of(log)
    for batch in batches:
        assert len(batch) == 1 or sum(batch.column("storeSize").to_pylist()) <= batch_bytes


def test_batches_of_many_columns_are_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner_module, "BATCH_BYTES_AIM", 1 << 15)
    monkeypatch.setattr(scanner_module, "COLUMN_BYTES_AIM", 1 << 13)
    log = log_of(3000, b"t")
    sizes = []
    for given in ({"columns": "queueOffset"}, {}):
        made, _ = scanner(**given)
        sizes.append([len(batch) for batch in made.batches(log, 0, len(log), 0, "log", 0)])
        assert sum(sizes[-1]) == 3000
    assert sizes[1][1] > 3 * sizes[0][1]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of up to 60 rows, collected in pieces of about seven."""
    monkeypatch.setattr(scanner_module, "FIRST_BATCH_ROWS", 20)
    monkeypatch.setattr(scanner_module, "BATCH_ROWS", 60)
    monkeypatch.setattr(scanner_module, "PIECE_BYTES_AIM", 1000)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("topic", [None, b"flights"])
def test_batches_of_several_pieces(topic: bytes | None) -> None:
    log = log_of(400, topic)
    made, schema = scanner()
    batches = list(made.batches(log, 0, len(log), 0, "log", CHECK_PHYSICAL_OFFSET))
    assert [len(batch) for batch in batches] == [20, *[60] * 6, 20]
    assert decoded_rows(batches, schema) == expected_rows(log, "broker-x")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("topic", [None, b"flights"])
def test_chosen_rows_of_several_pieces_are_one_batch(topic: bytes | None) -> None:
    log = log_of(600, topic)
    made, schema = scanner(RowChooser(parse_tag_expression("UA")))
    batches = list(made.batches(log, 0, len(log), 0, "log", CHECK_PHYSICAL_OFFSET))
    expected = [row for row in expected_rows(log, "broker-x") if row["tags"] == "UA"]
    sizes = [len(batch) for batch in batches]
    assert 10 <= sizes[0] <= 20  # a batch lacks at most half a piece
    assert all(55 <= size <= 60 for size in sizes[1:-1])
    assert len(sizes) == 3
    assert decoded_rows(batches, schema) == expected


@pytest.mark.usefixtures("small_pieces")
def test_a_batch_ends_after_a_part_of_the_log_also_if_few_rows_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(600)
    monkeypatch.setattr(scanner_module, "BATCH_BYTES", len(log) // 10)
    made, _ = scanner(RowChooser(parse_tag_expression("UA")))
    assert 9 <= len(list(made.batches(log, 0, len(log), 0, "log", 0))) <= 12


@pytest.mark.parametrize("expression", ["UA", "none"])
def test_no_record_is_walked_often(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that chooses few rows makes neither many small pieces nor pieces that are cut and walked again."""
    counts: list[int] = []
    real = scanner_module.walk_records

    def noted(*given: object) -> tuple[int, int, int]:
        count, end, stop = real(*given)  # type: ignore[arg-type]
        counts.append(count)
        return count, end, stop

    monkeypatch.setattr(scanner_module, "walk_records", noted)
    monkeypatch.setattr(scanner_module, "BATCH_ROWS", 100)
    monkeypatch.setattr(scanner_module, "FIRST_BATCH_ROWS", 100)
    log = bytearray()
    for number in range(4000):
        text = b"TAGS\x01%s\x02" % (b"UA" if number % 10 == 0 else b"AA")
        one = replace(message(1, b"flights"), properties=text)
        log += encode_message(one, len(log), number, 1_700_000_001_000, STORE_HOST)
    monkeypatch.setattr(scanner_module, "BATCH_BYTES", len(log) // 3)
    made, _ = scanner(RowChooser(parse_tag_expression(expression)))
    assert sum(map(len, made.batches(log, 0, len(log), 0, "log", 0))) == (400 if expression == "UA" else 0)
    assert sum(counts) <= 4000
    assert len(counts) <= 80


@pytest.mark.usefixtures("small_pieces")
def test_pieces_that_differ_in_topic_and_host() -> None:
    """The first pieces of a batch have one topic and hosts of IPv4; a later piece has another topic, or IPv6."""
    log = bytearray()
    for number in range(80):
        v6 = number >= 70
        one = replace(message(1, b"other" if 40 <= number < 50 else b"flights"))
        one = replace(one, born_host=host_bytes("2001:db8::7", 5000)) if v6 else one
        host = host_bytes("2001:db8::5", 10911) if v6 else STORE_HOST
        log += encode_message(one, len(log), number, 1_700_000_001_000, host)
    made, schema = scanner()
    batches = list(made.batches(log, 0, len(log), 0, "log", CHECK_PHYSICAL_OFFSET))
    assert [len(batch) for batch in batches] == [20, 60]
    assert decoded_rows(batches, schema) == expected_rows(bytes(log), "broker-x")


def test_rows_that_all_have_the_same_host_of_ipv6() -> None:
    log = bytearray()
    for number in range(9):
        one = replace(message(1, b"flights"), born_host=host_bytes("2001:db8::7", 5000))
        log += encode_message(one, len(log), number, 1_700_000_001_000, host_bytes("2001:db8::5", 10911))
    made, schema = scanner()
    batches = list(made.batches(log, 0, len(log), 0, "log", CHECK_PHYSICAL_OFFSET))
    assert decoded_rows(batches, schema) == expected_rows(bytes(log), "broker-x")


@pytest.mark.usefixtures("small_pieces")
def test_a_batch_is_collected_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    real = BatchBuilder.collect

    def noted(builder: BatchBuilder, rows: Rows, rows_max: int, bytes_max: int) -> None:
        counts.append(rows.count)
        real(builder, rows, rows_max, bytes_max)

    monkeypatch.setattr(BatchBuilder, "collect", noted)
    log = log_of(80, b"flights")
    assert len(scan_all(log)) == 80
    assert counts[0] == 20
    assert counts[1:] == sorted(set(counts[1:]))
    assert len(counts) > 5
    assert counts[-1] == 60


def log_of_bodies(sizes: Iterable[int]) -> bytes:
    """A log of messages with bodies of these sizes and with short properties."""
    log = bytearray()
    for number, size in enumerate(sizes):
        one = replace(message(number, b"flights"), body=b"x" * size, properties=b"a\x01b\x02")
        log += encode_message(one, len(log), number, 1_700_000_001_000, STORE_HOST)
    return bytes(log)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the buffers that batches get, in order."""
    sizes: list[int] = []

    def noted(size: int) -> pa.Buffer:
        sizes.append(size)
        return pa.allocate_buffer(size)

    monkeypatch.setattr(column_block, "pa", SimpleNamespace(**{**vars(pa), "allocate_buffer": noted}))
    return sizes


@pytest.mark.usefixtures("small_pieces")
def test_rows_of_changing_length_do_not_take_more_and_more_memory(allocated: list[int]) -> None:
    log = log_of_bodies(300 if (number - 20) % 60 > 30 else 0 for number in range(1000))
    assert len(scan_all(log)) == 1000
    assert len(allocated) > 20
    assert max(allocated) < 80_000


@pytest.mark.usefixtures("small_pieces")
def test_rows_that_get_longer_all_the_time_take_no_more_room_for_json(allocated: list[int]) -> None:
    places = (divmod(number - 20, 60) for number in range(1000))
    log = log_of_bodies(100 * batch if row > 30 else 0 for batch, row in places)
    assert len(scan_all(log)) == 1000
    assert len(allocated) > 30
    assert max(allocated) < 100_000


@pytest.mark.usefixtures("small_pieces")
def test_batches_of_short_rows_keep_no_room_for_long_rows(allocated: list[int]) -> None:
    log = log_of_bodies(10_000 if number < 100 else 0 for number in range(400))
    assert len(scan_all(log)) == 400
    assert max(allocated) > 600_000
    assert max(allocated[4:]) < 60_000


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("last", [1, 30, 61])
def test_rows_that_get_longer_within_a_batch(last: int) -> None:
    """The room that the first piece of a batch suggests is too small for the rest, in every column of strings."""
    log = bytearray()
    for number in range(140):
        size = 3000 if number >= 20 + last else number % 3
        value = b"\x1f" * size + b"%d" % number
        text = b"".join(b"%s\x01%s\x02" % (name, value) for name in (b"TAGS", b"KEYS", b"UNIQ_KEY"))
        one = replace(message(number, b"flights"), body=value, properties=text)
        log += encode_message(one, len(log), number, 1_700_000_001_000, STORE_HOST)
    made, schema = scanner()
    batches = made.batches(log, 0, len(log), 0, "log", CHECK_PHYSICAL_OFFSET)
    assert decoded_rows(batches, schema) == expected_rows(bytes(log), "broker-x")


def test_topics_after_rows_in_between_were_left_out() -> None:
    """The walk through the log marks each record that has the same topic as the previous record, even if the previous
    record is not selected.
    """
    log = log_of(1, b"a") + log_of(3, b"b")
    queues = [QueueRange(MessageQueue("a", "broker-x", 0), 0, 9), QueueRange(MessageQueue("b", "broker-x", 1), 0, 9)]
    made, schema = scanner(RowChooser(ALL, queues), columns="topic,queueId")
    rows = rows_of(made.batches(log, 0, len(log), 0, "log", 0), schema)
    assert rows == [{"topic": name, "queueId": number} for name, number in (("a", 0), ("b", 1))]


@pytest.mark.parametrize("numbers", [[1, 1, 1], [1, 2, 1], [1, 6, 1], [6, 6], [6, 11]])
def test_hosts(numbers: list[int]) -> None:
    """The hosts of rows: all the same, several, only IPv6, or IPv6 mixed with IPv4."""
    hosts = [host_bytes(f"10.0.0.{number}" if number < 5 else f"2001:db8::{number}", 10911) for number in numbers]
    for given in (hosts, hosts[:1], hosts * 2):
        table = new_table(len(given))
        for row, host in enumerate(given):
            flags = int(MessageSysFlag.BORN_HOST_V6) if len(host) > 8 else 0
            table[row * ROW_WIDTH + RecordColumn.SYS_FLAG] = flags
            table[row * ROW_WIDTH + RecordColumn.BORN_HOST_POS] = sum(map(len, given[:row]))
        rows = Rows(b"".join(given), table, len(given))
        made = host_texts(rows, RecordColumn.BORN_HOST_POS, MessageSysFlag.BORN_HOST_V6)
        made.validate(full=True)
        assert made.to_pylist() == [host_text(host) for host in given]


def test_pandas_is_not_imported() -> None:
    """A scan does not import pandas, which many PyArrow functions do; this would delay each task by 0.25 s."""
    program = """
        import sys
        from tests.unit.arrow.records import log_of
        from tests.unit.arrow.test_scanner import QueueRange, MessageQueue, RowChooser, parse_tag_expression, scanner

        log = log_of(100)
        wanted = [QueueRange(MessageQueue("flights", "b", 0), 0, 9)]
        chooser = RowChooser(parse_tag_expression("UA"), wanted)
        for given in ({}, {"propertiesAsMap": "true"}, {"schemaStyle": "kafka", "includeHeaders": "true"}):
            for made, _ in (scanner(**given), scanner(chooser, **given)):
                assert sum(map(len, made.batches(log, 0, len(log), 0, "log", 0)))
        assert "pandas" not in sys.modules
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=60)


def test_a_range_within_the_source() -> None:
    log = log_of(50)
    starts = starts_of(log)
    made, schema = scanner(columns="physicalOffset")
    rows = rows_of(made.batches(log, starts[10], starts[20], 0, "log", CHECK_PHYSICAL_OFFSET), schema)
    assert [row["physicalOffset"] for row in rows] == starts[10:20]


def test_an_end_of_file_record_ends_the_scan() -> None:
    log = log_of(5)
    segment = log + (64).to_bytes(4, "big") + bytes.fromhex("CBD43194") + b"\xaa" * 56
    made, _ = scanner()
    assert sum(len(batch) for batch in made.batches(segment, 0, len(segment), 0, "log", 0)) == 5


def test_damage_is_an_error_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    log = bytearray(log_of(20))
    at = starts_of(bytes(log))[7]
    log[at + 4] ^= 0xFF
    monkeypatch.setattr(scanner_module, "FIRST_BATCH_ROWS", 4)
    monkeypatch.setattr(scanner_module, "PIECE_BYTES_AIM", 100)
    made, schema = scanner()
    with pytest.raises(FormatError) as caught:
        list(made.batches(log, 0, len(log), 0, "00000000000000000000", 0))
    assert (caught.value.position, caught.value.source) == (at, "00000000000000000000")
    rows = rows_of(made.batches(log, 0, at, 0, "log", 0), schema)  # nothing is left of the batch that failed
    assert [row["physicalOffset"] for row in rows] == starts_of(bytes(log))[:7]


def test_a_record_of_another_place_is_damage() -> None:
    log = log_of(3)
    made, _ = scanner()
    with pytest.raises(FormatError):
        list(made.batches(log, 0, len(log), 1, "log", CHECK_PHYSICAL_OFFSET))


@pytest.mark.parametrize(("expression", "tags"), [("AA", {"AA"}), ("AA||UA", {"AA", "UA"}), ("none", set())])
def test_tags_are_compared_exactly(expression: str, tags: set[str]) -> None:
    log = log_of(200)
    made, schema = scanner(RowChooser(parse_tag_expression(expression)))
    rows = rows_of(made.batches(log, 0, len(log), 0, "log", 0), schema)
    expected = [row["physicalOffset"] for row in expected_rows(log, "") if row["tags"] in tags]
    assert [row["physicalOffset"] for row in rows] == expected


def test_rows_are_chosen_by_queue_interval() -> None:
    log = log_of(400)
    wanted = [
        QueueRange(MessageQueue("flights", "b", 0), 2, 9),
        QueueRange(MessageQueue("flights", "b", 2), 0, 1),
        QueueRange(MessageQueue("größe", "b", 1), 5, 1000),
        QueueRange(MessageQueue("absent", "b", 1), 0, 1000),
    ]
    intervals = {(one.queue.topic, one.queue.queue_id): range(one.start, one.end) for one in wanted}
    made, schema = scanner(RowChooser(ALL, wanted))
    rows = rows_of(made.batches(log, 0, len(log), 0, "log", 0), schema)
    expected = [
        row["physicalOffset"]
        for row in expected_rows(log, "")
        if row["queueOffset"] in intervals.get((str(row["topic"]), int(str(row["queueId"]))), ())
    ]
    assert expected
    assert [row["physicalOffset"] for row in rows] == expected


def test_prepared_and_rolled_back_messages_are_not_rows() -> None:
    log = bytearray(log_of(4, b"flights"))
    for start, transaction in zip(starts_of(bytes(log)), (0x0, 0x4, 0x8, 0xC), strict=True):
        flags = int.from_bytes(log[start + 36 : start + 40], "big") | transaction
        log[start + 36 : start + 40] = flags.to_bytes(4, "big")
    wanted = [QueueRange(MessageQueue("flights", "b", queue_id), 0, 10) for queue_id in range(3)]
    made, schema = scanner(RowChooser(ALL, wanted))
    rows = rows_of(made.batches(log, 0, len(log), 0, "log", 0), schema)
    starts = starts_of(bytes(log))
    assert [row["physicalOffset"] for row in rows] == [starts[0], starts[2]]


def test_nothing_chosen_gives_no_batch() -> None:
    log = log_of(30)
    made, _ = scanner(RowChooser(ALL, [QueueRange(MessageQueue("absent", "b", 0), 0, 9)]))
    assert list(made.batches(log, 0, len(log), 0, "log", 0)) == []
