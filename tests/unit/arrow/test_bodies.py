"""Bodies that a client compressed are decompressed for readers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.arrow.records import STORE_HOST, SYS_FLAGS, expected_rows, log_of_bodies, message, packed
from tests.unit.arrow.test_scanner import decoded_rows, rows_of, scan_all, scanner

from rucola.arrow import bodies, columns
from rucola.arrow import scanner as scanner_module
from rucola.arrow.scanner import RowChooser
from rucola.errors import FormatError
from rucola.filter.tag import parse_tag_expression
from rucola.formats.message import encode_message

SENT = [(f'{{"number": {number}}}'.encode() * (1 + number % 700), codec) for number in range(60) for codec in SYS_FLAGS]


def log_of_sent(sent: list[tuple[bytes, str]]) -> bytes:
    return log_of_bodies([(packed(body, codec), SYS_FLAGS[codec]) for body, codec in sent])


@pytest.mark.parametrize(("style", "name"), [("rocketmq", "body"), ("kafka", "value")])
def test_compressed_bodies_come_out_as_they_were_sent(style: str, name: str) -> None:
    rows = scan_all(log_of_sent(SENT), schemaStyle=style)
    assert [row[name] for row in rows] == [body for body, _ in SENT]


def test_stored_bodies_on_demand() -> None:
    rows = scan_all(log_of_sent(SENT), body="stored", columns="body,sysFlag")
    assert [row["body"] for row in rows] == [packed(body, codec) for body, codec in SENT]
    assert [int(str(row["sysFlag"])) & 0x701 for row in rows] == [SYS_FLAGS[codec] for _, codec in SENT]


def test_only_bodies_that_are_wanted_and_compressed_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[int] = []
    real = bodies.decompress_body

    def counted(body: bytes, sys_flag: int) -> bytes:
        flags.append(sys_flag & 0x701)
        return real(body, sys_flag)

    monkeypatch.setattr(bodies, "decompress_body", counted)
    log = log_of_sent(SENT)
    made, schema = scanner(RowChooser(parse_tag_expression("none")), columns="body")
    assert rows_of(made.batches(log, 0, len(log), 0, "log", 0), schema) == []
    assert len(scan_all(log, columns="queueOffset,sysFlag")) == len(SENT)
    assert flags == []
    scan_all(log, columns="body")
    assert flags == [SYS_FLAGS[codec] for _, codec in SENT if codec]


def test_batches_of_bodies_that_grow_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "PLAIN_BYTES", 10_000)
    sent = [(bytes([number]) * 3000, codec) for number in range(12) for codec in ("zstd", "", "old")]
    log = log_of_sent(sent)
    made, schema = scanner(columns="queueOffset,topic,body,msgId")
    batches = list(made.batches(log, 0, len(log), 0, "log", 0))
    assert [len(batch) for batch in batches] == [5, 4, 5, 4, 5, 4, 5, 4]
    assert [(row["queueOffset"], row["body"], row["topic"]) for row in rows_of(iter(batches), schema)] == [
        (number, body, "flights") for number, (body, _) in enumerate(sent)
    ]


def test_all_columns_of_batches_that_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nulls, hosts and bodies that are not compressed stay in their rows."""
    monkeypatch.setattr(columns, "PLAIN_BYTES", 3000)
    monkeypatch.setattr(scanner_module, "PIECE_BYTES_AIM", 700)
    log, bodies_sent = bytearray(), []
    for number in range(60):
        codec = ("", "zstd", "", "", "lz4", "", "", "", "", "")[number % 10]
        body = f"body {number} ".encode() * 100
        bodies_sent.append(body)
        one = replace(message(number, b"flights"), body=packed(body, codec), sys_flag=SYS_FLAGS[codec])
        log += encode_message(one, len(log), number, 1_700_000_001_000, STORE_HOST)
    made, schema = scanner()
    batches = list(made.batches(log, 0, len(log), 0, "log", 0))
    assert len(batches) > 3
    rows, expected = decoded_rows(batches, schema), expected_rows(bytes(log), "broker-x")
    assert [row.pop("body") for row in rows] == bodies_sent
    for row in expected:
        del row["body"]
    assert rows == expected


def test_only_the_last_body_of_a_batch_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner_module, "PIECE_BYTES_AIM", 700)
    monkeypatch.setattr(scanner_module, "FIRST_BATCH_ROWS", 5)
    sent = [(f"body {number}".encode(), "zstd" if number == 39 else "") for number in range(40)]
    assert [row["body"] for row in scan_all(log_of_sent(sent))] == [body for body, _ in sent]


GOOD = b'{"delay": 5}' * 50


@pytest.mark.parametrize("codec", ["old", "zlib", "lz4", "zstd"])
@pytest.mark.parametrize("harm", ["torn", "other", "empty", "type", "large"])
def test_a_damaged_body_is_an_error_or_null(codec: str, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, flag = packed(GOOD, codec), SYS_FLAGS[codec]
    harmed = {"torn": stored[:-7], "other": GOOD, "empty": b""}.get(harm, stored)
    if harm == "large":
        monkeypatch.setattr(bodies, "BODY_BYTES_MAX", len(GOOD))
        monkeypatch.setattr("rucola.formats.compression.BODY_BYTES_MAX", len(GOOD))
        harmed = packed(GOOD + b"x", codec)
    rows = [(stored, flag), (harmed, flag | 0x400 if harm == "type" else flag), (stored, flag), (b"{}", 0)]
    log = log_of_bodies(rows)
    with pytest.raises(FormatError, match=r"topic flights, queue 0, queue offset 1: .*body=stored"):
        scan_all(log, columns="body")
    lenient = scan_all(log, columns="body", failOnDataLoss="false")
    assert [row["body"] for row in lenient] == [GOOD, None, GOOD, b"{}"]
    assert [row["body"] for row in scan_all(log, columns="body", body="stored")] == [body for body, _ in rows]
