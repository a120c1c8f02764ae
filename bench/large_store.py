"""Writes the commit log of a large store within seconds: NumPy fills in each field of many equally long records.

Queues and index are left to a rebuild. Each message has a unique key. Messages go to the topics in turn, and within a
topic to its queues in turn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from rucola.common.message import StoreMessage
from rucola.formats.message import BLANK, MAGIC_BLANK, RECORD_HEAD, encode_message
from rucola.runtime.files import Files
from rucola.store.recovery.watermark import Watermark, WatermarkFile

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
START_MS = 1_700_000_000_000
QUEUES = 4
SEGMENT_BYTES = 1 << 30
STORE_TIME_AT = 56
_KEY = b"00000000000000000000000000000000"
_DIGITS = 12
Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


def key_of(number: int) -> str:
    """Returns the unique key of message ``number``."""
    return f"{number:032d}"


def write_log(root: Path, messages: int, topics: int, body_bytes: int) -> int:
    """Writes the log of a store that was stopped cleanly; returns its length."""
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    templates = np.stack([_template(number, body_bytes) for number in range(topics)])
    size = templates.shape[1]
    per_segment = (SEGMENT_BYTES - BLANK.size) // size
    key_at = bytes(templates[0]).index(_KEY)
    end = 0
    for segment, first in enumerate(range(0, messages, per_segment)):
        start, count = segment * SEGMENT_BYTES, min(per_segment, messages - first)
        with (directory / f"{start:020d}").open("wb") as file:
            for part in range(0, count, 100_000):
                numbers = np.arange(first + part, first + min(part + 100_000, count), dtype=np.int64)
                offsets = start + (numbers - first) * size
                file.write(_records(templates, topics, key_at, numbers, offsets).tobytes())
            end = start + count * size
            if first + count < messages:
                file.write(BLANK.pack(SEGMENT_BYTES - count * size, MAGIC_BLANK))
            file.truncate(SEGMENT_BYTES)
    WatermarkFile(Files(), str(root)).write(Watermark(end, end, end, topics * QUEUES, 0))
    return end


def _template(topic: int, body_bytes: int) -> Bytes:
    properties = b"UNIQ_KEY\x01" + _KEY + b"\x02TAGS\x01Tag%d\x02" % (topic % 8)
    message = StoreMessage(b"topic-%03d" % topic, 0, b"x" * body_bytes, properties, START_MS, HOST)
    return np.frombuffer(encode_message(message, 0, 0, START_MS, HOST), np.uint8)


def _records(templates: Bytes, topics: int, key_at: int, numbers: Numbers, offsets: Numbers) -> Bytes:
    records: Bytes = templates[numbers % topics]
    rounds = numbers // topics

    def put(at: int, values: Numbers, kind: str) -> None:
        column = np.ascontiguousarray(values.astype(kind))
        records[:, at : at + column.itemsize] = column.view(np.uint8).reshape(len(values), -1)

    put(RECORD_HEAD.position("queue_id"), rounds % QUEUES, ">i4")
    put(RECORD_HEAD.position("queue_offset"), rounds // QUEUES, ">i8")
    put(RECORD_HEAD.position("physical_offset"), offsets, ">i8")
    put(STORE_TIME_AT, START_MS + numbers // 1000, ">i8")
    rest = numbers.copy()
    for digit in range(_DIGITS):
        records[:, key_at + len(_KEY) - 1 - digit] = 48 + rest % 10
        rest //= 10
    return records
