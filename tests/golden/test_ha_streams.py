"""What an official master sent (``ha/README.md``), taken by a slave of ours."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.masters import Slave

from rucola.formats.ha import FIRST_BYTE, NEWEST_SEGMENT, TRANSFER_HEADER, decode_header
from rucola.store.ha.slave_state import SlaveState

HERE = Path(__file__).parent / "ha"
NAMES = sorted(path.stem for path in HERE.glob("*.json"))


def events(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((HERE / f"{name}.json").read_text())["events"]
    return found


def stream(name: str) -> bytes:
    return (HERE / f"{name}.m2s.bin").read_bytes()


def connections(name: str) -> list[bytes]:
    """The bytes of each connection."""
    rest, found = stream(name), []
    for event in events(name):
        if "connected" in event:
            found.append(b"")
        elif event.get("way") == "m2s":
            found[-1] += rest[: event["n_bytes"]]
            rest = rest[event["n_bytes"] :]
    return found


def test_all_recordings_are_there() -> None:
    assert len(NAMES) == 7
    assert all(f"`{name}`" in (HERE / "README.md").read_text() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_headers_are_those_that_were_noted(name: str) -> None:
    content, at = stream(name), 0
    for event in events(name):
        if event.get("way") != "m2s":
            continue
        header = decode_header(content[at : at + TRANSFER_HEADER.size])
        at += TRANSFER_HEADER.size
        body = content[at : at + header.body_bytes]
        at += len(body)
        assert header == (event["offset"], event["n"])
        assert event["sha256"] in (sha256(body).hexdigest(), None)
    assert at == len(content)


@pytest.mark.parametrize("pieces", [1 << 20, 4096, 13])
def test_a_whole_log_from_request_1(tmp_path: Path, pieces: int) -> None:
    slave = Slave(tmp_path / "copy")
    assert slave.connect(FIRST_BYTE).request == 1
    slave.take(stream("no_ack"), pieces)
    assert slave.link.state is SlaveState.COPYING
    assert (slave.log.min_offset, slave.log.end_offset) == (0, 172_902)
    sent = b"".join(body_of(transfer) for transfer in transfers(stream("no_ack")))
    assert slave.bytes == b"\0" + sent
    assert slave.store.queue_range(b"T", 0) == (0, 41)
    slave.store.shutdown()


@pytest.mark.parametrize("pieces", [1 << 20, 11])
def test_the_newest_segment_from_request_0(tmp_path: Path, pieces: int) -> None:
    slave = Slave(tmp_path / "copy")
    slave.connect(NEWEST_SEGMENT)
    slave.take(stream("fresh_full"), pieces)
    assert (slave.log.min_offset, slave.log.end_offset) == (131_072, 172_902)
    assert slave.store.queue_range(b"T", 0)[1] == 41
    slave.store.shutdown()


def test_an_empty_master_and_its_first_message(tmp_path: Path) -> None:
    slave = Slave(tmp_path / "copy")
    slave.connect(NEWEST_SEGMENT)
    content = stream("fresh_empty")
    slave.take(content[:24])
    assert (slave.link.state, slave.link.heartbeats, slave.log.is_empty) == (SlaveState.ASKING, 2, True)
    slave.take(content[24:])
    assert (slave.link.state, slave.log.end_offset) == (SlaveState.COPYING, 283)
    slave.store.shutdown()


def test_what_has_expired_is_answered_by_heartbeats(tmp_path: Path) -> None:
    expired, newest = connections("below_min")
    slave = Slave(tmp_path / "copy")
    slave.connect(1000)
    slave.take(expired)
    assert (slave.link.state, slave.link.heartbeats) == (SlaveState.ASKING, 1)
    slave.connect(NEWEST_SEGMENT)
    slave.take(newest)
    assert (slave.log.min_offset, slave.log.end_offset) == (131_072, 181_461)
    slave.store.shutdown()


def transfers(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(content):
        size = TRANSFER_HEADER.size + decode_header(content[at : at + TRANSFER_HEADER.size]).body_bytes
        found.append(content[at : at + size])
        at += size
    return found


def body_of(transfer: bytes) -> bytes:
    return transfer[TRANSFER_HEADER.size :]
