"""Messages, rows and records for the tests of the formats."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from rucola.common.columns import FrameColumn, new_table
from rucola.common.message import StoreMessage
from rucola.formats.checksum import crc32
from rucola.formats.message import fill_row

BORN_HOST = bytes.fromhex("C0A8010A0000D431")
STORE_HOST = bytes.fromhex("0A00000500002A9F")
BORN_TIMESTAMP_MS = 1_700_000_000_000
STORE_TIMESTAMP_MS = 1_700_000_000_123

WORKED_PROPERTIES = b"KEYS\x01KeyX\x02UNIQ_KEY\x017F0000010A0018B4AAC2112233440001\x02TAGS\x01TagA\x02"
WORKED_RECORD = bytes.fromhex(
    """
    00 00 00 b0 da a3 20 a7 69 c8 65 ed 00 00 00 03
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 01 8b cf e5 68 00
    c0 a8 01 0a 00 00 d4 31 00 00 01 8b cf e5 68 7b
    0a 00 00 05 00 00 2a 9f 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 0e 48 65 6c 6c 6f 20 52 6f
    63 6b 65 74 4d 51 09 54 6f 70 69 63 54 65 73 74
    00 3e 4b 45 59 53 01 4b 65 79 58 02 55 4e 49 51
    5f 4b 45 59 01 37 46 30 30 30 30 30 31 30 41 30
    30 31 38 42 34 41 41 43 32 31 31 32 32 33 33 34
    34 30 30 30 31 02 54 41 47 53 01 54 61 67 41 02
    """
)
"""A record that RocketMQ 5.3.3 wrote: TopicTest, queue 3, "Hello RocketMQ", tag TagA, key KeyX; the store time was
chosen.
"""


def message(**changes: Any) -> StoreMessage:
    """Returns the message that is stored as ``WORKED_RECORD``, with the given fields changed."""
    fields: dict[str, Any] = {
        "topic": b"TopicTest",
        "queue_id": 3,
        "body": b"Hello RocketMQ",
        "properties": WORKED_PROPERTIES,
        "born_timestamp_ms": BORN_TIMESTAMP_MS,
        "born_host": BORN_HOST,
    }
    return StoreMessage(**fields | changes)


PLACE = ("position", "limit", "base_offset", "store_timestamp_ms", "record_crc")


class Encoding:
    """The arguments and the result of one call of ``encode_rows``.

    Attributes:
        done: what the call returned. ``segment``, ``table``, ``queue_offsets``: their content after the call.
    """

    def __init__(self, kernel: ModuleType, *messages: StoreMessage, **changes: Any) -> None:
        source = bytearray()
        self.table = new_table(len(messages))
        for row, one in enumerate(messages):
            fill_row(self.table, row, one, len(source))
            source += one.body + one.properties
        self.source = source
        self.segment = bytearray(changes.pop("segment_bytes", 65536))
        self.queue_offsets = array("q", [0] * 8)
        arguments: dict[str, Any] = {
            "source": source,
            "source_view": memoryview(source),
            "table": self.table,
            "first": 0,
            "last": len(messages),
            "segment": self.segment,
            "segment_view": memoryview(self.segment),
            "position": 0,
            "limit": len(self.segment),
            "base_offset": 0,
            "topic": messages[0].topic if messages else b"TopicTest",
            "queue_offsets": self.queue_offsets,
            "born_host": messages[0].born_host if messages else BORN_HOST,
            "store_host": STORE_HOST,
            "store_timestamp_ms": STORE_TIMESTAMP_MS,
            "suffix": b"",
            "crc32": crc32,
            "record_crc": False,
        }
        arguments |= changes
        place = kernel.RecordPlacement(*(arguments.pop(name) for name in PLACE))
        arguments["place"] = place
        self.done = kernel.encode_rows(**arguments)

    def column(self, row: int, column: FrameColumn) -> int:
        return self.table[row * 40 + column]


names = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=12)
property_maps = st.dictionaries(st.one_of(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT"]), names), names)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
