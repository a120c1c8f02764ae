"""Every byte of a record or unit belongs to one field, whose value follows the layout."""

from __future__ import annotations

import pytest

from rucola.common.message import StoreMessage
from rucola.errors import FormatError
from rucola.formats.annotate import (
    AnnotatedField,
    annotate_checkpoint,
    annotate_index_entry,
    annotate_index_header,
    annotate_index_slot,
    annotate_record,
    annotate_timer_checkpoint,
    annotate_timer_slot,
    annotate_timer_unit,
    annotate_unit,
)
from rucola.formats.checkpoint import StoreCheckpoint
from rucola.formats.consume_queue import PRE_FILL_UNIT, UNIT
from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rucola.formats.message import encode_message, write_blank
from rucola.formats.timer import TIMER_BLANK, TIMER_BLANK_MAGIC, TIMER_SLOT, TIMER_UNIT, TimerCheckpoint

IPV4 = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
IPV6 = bytes(15) + b"\x01\x00\x00\x30\x3a"


def record(topic: bytes = b"Topic", host: bytes = IPV4, record_crc: bool = True) -> bytes:
    message = StoreMessage(topic, 2, b"body", b"TAGS\x01A\x02odd\x02KEYS\x01k", 7, host, flag=5)
    return encode_message(message, 1000, 3, 9, host, record_crc)


def by_name(fields: list[AnnotatedField]) -> dict[str, AnnotatedField]:
    return {field.name: field for field in fields}


@pytest.mark.parametrize("data", [record(), record(b"T" * 200), record(host=IPV6), record(record_crc=False)])
def test_the_fields_of_a_record_are_all_of_its_bytes(data: bytes) -> None:
    fields = annotate_record(data + b"behind", 50)
    assert b"".join(field.data for field in fields) == data
    at = 50
    for field in fields:
        assert field.position == at
        at += len(field.data)
    named = by_name(fields)
    assert (named["queue_id"].value, named["queue_offset"].value, named["physical_offset"].value) == (2, 3, 1000)
    assert (named["flag"].value, named["born_timestamp_ms"].value, named["store_timestamp_ms"].value) == (5, 7, 9)
    assert named["body"].data == b"body"
    assert named["body_crc"].meaning == "right"
    assert named["property TAGS"].value == "A"
    assert named["property KEYS"].value == "k"
    assert named["properties without a pair"].data == b"odd\x02"


def test_hosts_flags_and_versions() -> None:
    named = by_name(annotate_record(record(host=IPV6)))
    assert named["born_host"].value == "[::1]:12346"
    assert named["sys_flag"].meaning == "BORNHOST_V6|STOREHOST_V6"
    assert by_name(annotate_record(record()))["born_host"].value == "127.0.0.1:12345"
    assert by_name(annotate_record(record(b"T" * 200)))["magic"].meaning == "record, version 2"


def test_checksums_are_judged() -> None:
    data = record()
    assert by_name(annotate_record(data))["property __CRC32#"].meaning == "right"
    damaged = data.replace(b"body", b"Body")
    named = by_name(annotate_record(damaged))
    assert named["body_crc"].meaning.startswith("WRONG")
    assert named["property __CRC32#"].meaning.startswith("WRONG")


def test_of_a_record_cut_anywhere_what_is_there_is_given() -> None:
    for size in range(48, len(record())):
        fields = annotate_record(record()[:size])
        assert b"".join(field.data for field in fields) == record()[:size]


def test_a_length_that_cannot_be_ends_in_a_rest() -> None:
    data = bytearray(record())
    data[84:88] = b"\x7f\xff\xff\xff"
    last = annotate_record(data)[-1]
    assert last.name == "rest"
    assert "2147483647" in last.meaning
    with pytest.raises(FormatError):
        annotate_record(record()[:47])


def test_an_end_of_file_record() -> None:
    data = bytearray(100)
    write_blank(data, 0, 100)
    space, magic = annotate_record(data, 8)
    assert (space.value, magic.position) == (100, 12)
    assert "end of file" in magic.meaning


def test_units_checkpoint_and_index() -> None:
    assert [field.value for field in annotate_unit(UNIT.pack(5, 6, -7), 20)] == [5, 6, -7]
    assert "no entry" in annotate_unit(PRE_FILL_UNIT)[1].meaning
    assert "never written" in annotate_unit(bytes(20))[1].meaning
    assert [field.value for field in annotate_checkpoint(StoreCheckpoint(1, 2, 3, 4, 5).encode())] == [1, 2, 3, 4, 5]
    header = annotate_index_header(INDEX_HEADER.pack(1, 2, 3, 4, 5, 6))
    assert (header[-1].value, header[-1].meaning) == (6, "5 entries")
    entry = annotate_index_entry(INDEX_ENTRY.pack(1, 2, 3, 0), 500, 60)
    assert [(field.name, field.position) for field in entry] == [
        ("key_hash", 60),
        ("physical_offset", 64),
        ("seconds", 72),
        ("previous", 76),
    ]
    assert (entry[2].meaning, entry[3].meaning) == ("store time about 3500 ms", "end of the chain")
    assert annotate_index_slot(INDEX_SLOT.pack(9))[0].value == 9
    with pytest.raises(FormatError):
        annotate_unit(bytes(19))


def test_timers() -> None:
    unit = annotate_timer_unit(TIMER_UNIT.pack(52, -1, 7, 5000, 2000, 100, 300, -9, 0), 104)
    assert [field.value for field in unit] == [52, -1, 7, 5000, 2000, 100, 300, -9, 0]
    assert (unit[0].position, unit[1].meaning, unit[4].meaning) == (
        104,
        "the oldest unit of its time step",
        "due at 7000 ms",
    )
    assert (
        unit[2].meaning == "rolled: the message enters the timer again when this unit is due, cancels another message"
    )
    assert annotate_timer_unit(bytes(52))[0].meaning == "not a unit"
    blank = annotate_timer_unit(TIMER_BLANK.pack(60, 0, TIMER_BLANK_MAGIC))
    assert [field.value for field in blank] == [60, 0, TIMER_BLANK_MAGIC]
    assert [field.value for field in annotate_timer_slot(TIMER_SLOT.pack(5, 0, 52, 2, 0))] == [5, 0, 52, 2, 0]
    assert annotate_timer_slot(bytes(32))[0].meaning == "never used"
    assert [field.value for field in annotate_timer_checkpoint(TimerCheckpoint(1, 2, 3, 4).encode())][:4] == [
        1,
        2,
        3,
        4,
    ]
