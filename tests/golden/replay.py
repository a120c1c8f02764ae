"""Puts the messages of a golden case through the kernels, as RocketMQ's store did: one put, then dispatch.

This is the smallest possible store: segments, queues and index files are byte arrays. When to begin a new segment, and
which records get units and keys, is decided by one line of code for each of RocketMQ's rules; kernels make all bytes.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.golden.loader import Case, body_bytes, host
from tests.kernels import kernel

from rucola.common.columns import ROW_WIDTH, FrameColumn, RecordColumn, WalkStop, new_table
from rucola.common.message import StoreMessage
from rucola.formats.checksum import crc32
from rucola.formats.index_file import IndexHeader, index_file_bytes
from rucola.formats.message import fill_row
from rucola.formats.properties import decode_properties

TRANSACTION = 12
ROLLBACK = 12
DELAYS_MS = {1: 1_000, 3: 10_000, 18: 7_200_000}
"""Delays in ms of the levels that the cases use."""


class Replay:
    """The files that the kernels make from the puts of ``case``; ``form`` is ``compiled`` or ``interpreted``.

    Attributes:
        segments: the bytes of each segment, by its start.
        ends: the end of the written part of each segment, by its start.
        queues: the bytes of all units of each queue, by topic and queue id.
        index_files: the bytes of each index file, by its name.
    """

    def __init__(self, case: Case, form: str) -> None:
        self.message, self.queue, self.index = (
            kernel(f"formats._{name}_cy", form) for name in ("message", "queue", "index")
        )
        self.segment_bytes = case.config("mappedFileSizeCommitLog", 0)
        self.slots = case.config("maxHashSlotNum", 0)
        self.entries = case.config("maxIndexNum", 0)
        self.record_crc = bool(case.case["config"].get("enabledAppendPropCRC"))
        self.segments: dict[int, bytearray] = {}
        self.ends: dict[int, int] = {}
        self.position = 0
        self.queue_offsets: dict[str, array[int]] = defaultdict(lambda: array("q", bytes(8 * 64)))
        self.queues: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
        self.index_files: dict[str, bytearray] = {}
        self.newest_index = ""
        for put in case.puts:
            if put["result"].get("appendStatus") == "PUT_OK":
                start = self.put(put["message"], put["clock"])
                self.dispatch(start, put["clock"])

    def put(self, message: dict[str, Any], clock: int) -> int:
        """Appends one message or one batch; returns the physical offset of its first record."""
        members = message["members"] if message["kind"] == "batch" else [message]
        suffix = message["propertiesString"].encode() if message["kind"] == "batch" else b""
        source = bytearray()
        table = new_table(len(members))
        for row, member in enumerate(members):
            store_message = StoreMessage(
                topic=message["topic"].encode(),
                queue_id=message["queueId"],
                body=body_bytes(member.get("body")),
                properties=_without_checksum((member["propertiesString"] or "").encode()),
                born_timestamp_ms=message["bornTimestamp"],
                born_host=host(message["bornHost"]),
                flag=member["flag"],
                sys_flag=message["sysFlag"],
                reconsume_times=message["reconsumeTimes"],
                prepared_transaction_offset=message["preparedTransactionOffset"],
            )
            fill_row(table, row, store_message, len(source))
            source += store_message.body + store_message.properties
        offsets = self.queue_offsets[message["topic"]]
        while True:
            start = self.position - self.position % self.segment_bytes
            segment = self.segments.setdefault(start, bytearray(self.segment_bytes))
            before = offsets[:]
            done = self.message.encode_rows(
                source,
                memoryview(source),
                table,
                0,
                len(members),
                segment,
                memoryview(segment),
                self.message.RecordPlacement(self.position - start, self.segment_bytes, start, clock, self.record_crc),
                message["topic"].encode(),
                offsets,
                host(message["bornHost"]),
                host(message["storeHost"]),
                suffix,
                crc32,
            )
            if done == len(members):
                break
            offsets[:] = before
            left = start + self.segment_bytes - self.position
            self.message.write_blank(segment, self.position - start, left)
            self.ends[start] = self.position - start + 8
            self.position += left
        first = self.position
        last = (len(members) - 1) * ROW_WIDTH
        self.position = table[last + FrameColumn.PHYSICAL_OFFSET] + table[last + FrameColumn.RECORD_SIZE]
        self.ends[start] = self.position - start
        return first

    def dispatch(self, physical_offset: int, clock: int) -> None:
        """Writes units and index keys of the records from ``physical_offset`` to the end, all in the same segment."""
        start = physical_offset - physical_offset % self.segment_bytes
        segment = self.segments[start]
        table = new_table(64)
        rows, _, stop = self.message.walk_records(
            segment, memoryview(segment), physical_offset - start, self.position - start, start, table, 64, crc32, 7
        )
        assert stop == WalkStop.LIMIT
        for row in range(rows):
            fields = table[row * ROW_WIDTH : (row + 1) * ROW_WIDTH]
            transaction = fields[RecordColumn.SYS_FLAG] & TRANSACTION
            if transaction in (0, 8):
                topic_pos, topic_len = fields[RecordColumn.TOPIC_POS], fields[RecordColumn.TOPIC_LEN]
                topic = bytes(segment[topic_pos : topic_pos + topic_len]).decode()
                units = self.queues[topic, fields[RecordColumn.QUEUE_ID]]
                assert len(units) == 20 * fields[RecordColumn.QUEUE_OFFSET]
                units += bytes(20)
                size, tags_code = fields[RecordColumn.RECORD_SIZE], self.tags_code(segment, fields, topic)
                self.queue.put_unit(units, len(units) - 20, fields[RecordColumn.PHYSICAL_OFFSET], size, tags_code)
            if not self.newest_index:
                self.next_index(clock)
            if transaction != ROLLBACK:
                self.put_keys(segment, fields, clock)

    def tags_code(self, segment: bytearray, fields: array[int], topic: str) -> int:
        """Returns the tags code: the hash of the tags or, on the schedule topic, the due time."""
        start = fields[RecordColumn.PROPERTIES_POS]
        properties = decode_properties(segment[start : start + fields[RecordColumn.PROPERTIES_LEN]])
        level = min(int(properties.get("DELAY", "0")), 18)
        if topic == "SCHEDULE_TOPIC_XXXX" and level > 0:
            return fields[RecordColumn.STORE_TIMESTAMP] + DELAYS_MS[level]
        return fields[RecordColumn.TAGS_CODE]

    def put_keys(self, segment: bytearray, fields: array[int], clock: int) -> None:
        done = 0
        while True:
            row, done = self.index.put_rows(
                self.index_files[self.newest_index],
                self.slots,
                self.entries,
                segment,
                fields,
                0,
                1,
                fields[RecordColumn.PHYSICAL_OFFSET] - fields[RecordColumn.RECORD_POS],
                0,
                done,
            )
            if row == 1:
                return
            self.next_index(clock)

    def next_index(self, clock: int) -> None:
        """Adds an index file, named after the time ``clock``. If an earlier file is full, the times and offsets of the
        new file begin where those of the full file end.
        """
        file = bytearray(index_file_bytes(self.slots, self.entries))
        header = IndexHeader.decode(file)
        if self.newest_index:
            full = IndexHeader.decode(self.index_files[self.newest_index])
            end_ms, end_offset = full.end_timestamp_ms, full.end_physical_offset
            header = IndexHeader(end_ms, end_ms, end_offset, end_offset, 0, 1)
        file[:40] = header.encode()
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=clock)
        self.newest_index = f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"
        self.index_files[self.newest_index] = file


def _without_checksum(text: bytes) -> bytes:
    return b"\x02".join(pair for pair in text.split(b"\x02") if not pair.startswith(b"__CRC32#\x01"))
