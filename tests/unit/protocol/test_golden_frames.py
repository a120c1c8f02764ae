"""Recorded frames of official clients and servers: every one decodes, encodes again, and scans to the same values."""

from __future__ import annotations

import base64
from collections import Counter
from types import ModuleType

import pytest
from tests.kernels import FORMS
from tests.kernels import kernel as load_kernel
from tests.unit.protocol.golden import SCENARIOS, Recorded, all_frames, frames, records, texts
from tests.unit.protocol.rows import expected, scan, values

from rucola.common.columns import FrameKind
from rucola.errors import FormatError
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.frame import FrameReader

JAVA_KEYS = {"code", "extFields", "flag", "language", "opaque", "remark", "serializeTypeCurrentRPC", "version"}
KERNELS = [pytest.param(load_kernel("protocol._frame_cy", form), id=form) for form in FORMS]


def read(frame: bytes, pieces: int) -> RemotingCommand:
    """Passes the frame through a reader, ``pieces`` bytes at a time."""
    reader = FrameReader()
    for position in range(0, len(frame), pieces):
        piece = frame[position : position + pieces]
        reader.buffer()[: len(piece)] = piece
        batch = reader.received(len(piece))
        assert (batch is None) == (position + pieces < len(frame))
    assert batch is not None and batch.count == 1
    return batch.command(0)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_decode(scenario: str) -> None:
    for recorded in frames(scenario):
        command, header = decode_frame(recorded.frame), recorded.header
        assert (command.code, command.opaque, command.flag) == (header["code"], header["opaque"], header["flag"])
        assert command.version == header["version"]
        assert command.language.name == header["language"]
        assert command.remark == (header.get("remark") or "")
        assert command.ext_fields == texts(header.get("extFields"))
        assert len(command.body) == recorded.record["body_len"]
        assert command.body == recorded.body
        assert command.is_response == recorded.is_response
        assert command.is_oneway == (recorded.record["kind"] == "oneway")


def is_javas(recorded: Recorded) -> bool:
    """Whether the header has only keys that Java writes, and no empty ``extFields`` or ``remark``, which our encoder
    leaves out.
    """
    header = recorded.header
    optional = [header.get("extFields", "absent"), header.get("remark", "absent")]
    return header.keys() <= JAVA_KEYS and "serializeTypeCurrentRPC" in header and all(optional)


def test_encode_again() -> None:
    equal: Counter[str] = Counter()
    for recorded in all_frames():
        command = decode_frame(recorded.frame)
        encoded = command.encode()
        assert decode_frame(encoded) == command
        if recorded.record["serialize"] == "ROCKETMQ" or is_javas(recorded):
            assert encoded == recorded.frame
            equal[recorded.record["serialize"]] += 1
    assert equal["JSON"] > 1000 and equal["ROCKETMQ"] > 60


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows(kernel: ModuleType) -> None:
    kinds: Counter[tuple[int, FrameKind]] = Counter()
    unread: Counter[str] = Counter()
    for recorded in all_frames():
        source, table, result = scan(kernel, recorded.frame)
        row, wanted = values(table, source), expected(decode_frame(recorded.frame))
        if result[3]:  # the kernel leaves the header unread; the reader fills such rows
            assert wanted["kind"] == FrameKind.PLAIN and row["flag"] == -1
            unread[recorded.scenario] += 1
        else:
            assert row == wanted, recorded.record
        assert result == (1, len(source), 0, result[3])
        if not recorded.is_response:
            kinds[recorded.record["code"], row["kind"]] += 1  # type: ignore[index]  # it is a FrameKind
    for code, kind in [(310, "SEND"), (10, "SEND"), (320, "BATCH"), (11, "PULL"), (361, "PULL"), (310, "PLAIN")]:
        assert kinds[code, FrameKind[kind]] > 0
    assert unread.keys() <= {"errors_send", "errors_other"} and unread.total() < 10


def test_all_frames_in_one_read() -> None:
    reader, recorded = FrameReader(), all_frames()
    stream = b"".join(entry.frame for entry in recorded)
    commands, position = [], 0
    while position < len(stream):
        buffer = reader.buffer()
        size = min(len(buffer), len(stream) - position)
        buffer[:size] = stream[position : position + size]
        position += size
        batch = reader.received(size)
        commands += [batch.command(row) for row in range(batch.count)] if batch else []
    assert commands == [decode_frame(entry.frame) for entry in recorded]


def test_one_byte_at_a_time() -> None:
    seen = set()
    for recorded in all_frames():
        key = (recorded.scenario[:6], recorded.record["code"], recorded.is_response, recorded.record["serialize"])
        if key in seen or len(recorded.frame) > 3000:
            continue
        seen.add(key)
        assert read(recorded.frame, 1) == decode_frame(recorded.frame)
    assert len(seen) > 100


@pytest.mark.parametrize("record", records("errors_bad_frames"), ids=lambda record: record["note"])
def test_bad_frames_are_refused(record: dict[str, str]) -> None:
    assert record["result"] == "connection closed"
    data = base64.b64decode(record["bytes"])
    reader = FrameReader()
    reader.buffer()[: len(data)] = data
    with pytest.raises(FormatError):
        reader.received(len(data))
