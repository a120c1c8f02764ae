"""Frames between a slave and a master behind a controller, and the files that both keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rucola.errors import FormatError
from rucola.formats.auto_switch import (
    EPOCHS_MAX,
    Answer,
    EpochEntry,
    EpochTransfer,
    Hello,
    decode_answer,
    decode_epochs,
    decode_hello,
    decode_transfer,
    encode_answer,
    encode_epoch_report,
    encode_hello,
    encode_transfer,
)
from rucola.formats.broker_identity import BrokerIdentity
from rucola.formats.epoch_file import decode_epoch_file, encode_epoch_file
from rucola.formats.ha import TRANSFER_BYTES_MAX

RECORDED = Path(__file__).parents[2] / "golden/ha/controller"
NAMES = sorted(path.name.split(".")[0] for path in RECORDED.glob("*.m2s.bin"))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_frames_are_those_that_were_noted(name: str) -> None:
    streams = {way: (RECORDED / f"{name}.{way}.bin").read_bytes() for way in ("m2s", "s2m")}
    for event in json.loads((RECORDED / f"{name}.json").read_text())["events"]:
        way = event.get("way")
        if way is None:
            continue
        frame, streams[way] = streams[way][: event["n_bytes"]], streams[way][event["n_bytes"] :]
        if way == "s2m" and len(frame) == 16:
            noted = event.get("handshake", event)
            hello = Hello(noted["brokerId"], noted["syncFromLastFile"] == 1, noted["asyncLearner"] == 1)
            assert (decode_hello(frame), encode_hello(hello)) == (hello, frame)
        elif "report" in event:
            assert encode_epoch_report(event["report"]) == frame
        elif event.get("state") == 1:
            answer = decode_answer(frame)
            epochs = decode_epochs(frame[20:])
            assert answer.body_bytes == 12 * len(epochs) == len(frame) - 20
            if "epochs" in event:
                assert [list(entry) for entry in epochs] == event["epochs"]
                assert encode_answer(answer.max_offset, epochs) == frame
        elif way == "m2s":
            transfer = decode_transfer(frame)
            noted = [event[field] for field in ("n", "offset", "epoch", "epoch_start", "confirm")]
            assert list(transfer) == noted
            assert encode_transfer(transfer) == frame[:36]
            assert len(frame) == 36 + transfer.body_bytes
    assert streams == {"m2s": b"", "s2m": b""}


def test_a_handshake_has_the_newest_epochs_only() -> None:
    frame = encode_answer(7, [EpochEntry(number, number) for number in range(EPOCHS_MAX + 5)])
    assert decode_answer(frame) == Answer(12 * EPOCHS_MAX, 7, EPOCHS_MAX + 4)
    assert decode_epochs(frame[20:])[0] == (5, 5)
    assert decode_answer(encode_answer(0, [])) == (0, 0, -1)


@pytest.mark.parametrize(
    ("values", "position"),
    [((2, 0, 0, 0), 0), ((1, 11, 0, 0), 4), ((1, -12, 0, 0), 4), ((1, 12_012, 0, 0), 4), ((1, 12, -1, 0), 8)],
)
def test_answers_that_no_master_sends(values: tuple[int, int, int, int], position: int) -> None:
    state, body, end, epoch = values
    frame = b"".join(v.to_bytes(n, "big", signed=True) for v, n in ((state, 4), (body, 4), (end, 8), (epoch, 4)))
    with pytest.raises(FormatError) as refused:
        decode_answer(frame)
    assert refused.value.position == position


@pytest.mark.parametrize("epochs", [[(2, 5), (1, 9)], [(1, 5), (2, 4)], [(1, 5), (1, 6)], [(-1, 0)], [(1, -3)]])
def test_epochs_out_of_order(epochs: list[tuple[int, int]]) -> None:
    body = encode_answer(9, [EpochEntry(*entry) for entry in epochs])[20:]
    with pytest.raises(FormatError):
        decode_epochs(body)


@pytest.mark.parametrize(
    ("fields", "position"),
    [
        ((-1, 0, 1, 0, 0), 4),
        ((TRANSFER_BYTES_MAX - 35, 0, 1, 0, 0), 4),
        ((1, -1, 1, 0, 0), 8),
        ((0, -2, 1, 0, 0), 8),
        ((1, 0, -1, 0, 0), 16),
        ((1, 0, 1, -1, 0), 20),
        ((1, 0, 1, 0, -2), 28),
    ],
)
def test_transfers_that_no_master_sends(fields: tuple[int, int, int, int, int], position: int) -> None:
    with pytest.raises(FormatError) as refused:
        decode_transfer(encode_transfer(EpochTransfer(*fields)))
    assert refused.value.position == position


@pytest.mark.parametrize("name", ["failover", "three_epochs", "register"])
def test_the_epoch_file_of_an_official_broker(name: str) -> None:
    text = json.loads((RECORDED / f"{name}.json").read_text())["files"]["epochFileCheckpoint"].encode()
    entries = decode_epoch_file(text)
    assert encode_epoch_file(entries) == text
    assert decode_epoch_file(text.replace(b"\n", b"\r\n")) == entries
    assert decode_epoch_file(text + b"rest\n") == entries
    lines = text.splitlines(keepends=True)
    assert decode_epoch_file(lines[0] + b"0\n" + b"".join(lines[2:])) == entries


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1\n",
        b"0\n0\n",
        b"2\n0\n1-0\n",
        b"x\n0\n1-0\n",
        b"1\n0\n1-\n",
        b"1\n0\n1--2\n",
        b"1\n5\n1-0\n",
        b"1\n0\n2147483648-0\n",
        b"1\n0\n1-9223372036854775808\n",
        b"2\n0\n2-0\n1-5\n",
        b"2\n0\n1-5\n2-4\n",
        b"\xff\n0\n1-0\n",
        b"1\n0\n1-0x\n",
    ],
)
def test_epoch_files_that_cannot_be_read(content: bytes) -> None:
    with pytest.raises(FormatError) as refused:
        decode_epoch_file(content, "/store/epochFileCheckpoint")
    assert "/store/epochFileCheckpoint" in str(refused.value)


def test_identities() -> None:
    identity = BrokerIdentity("c", "a", 1)
    assert identity.encode() == b"c#a#1"
    assert BrokerIdentity.decode(b"c#a#1\n") == identity
    asking = BrokerIdentity("c", "a", 2, "127.0.0.1:10911;1700000000000")
    assert asking.encode() == b"c#a#2#127.0.0.1:10911;1700000000000"
    assert BrokerIdentity.decode(asking.encode(), is_temporary=True) == asking


@pytest.mark.parametrize(
    ("content", "is_temporary"),
    [
        (b"", False),
        (b"c#a", False),
        (b"c#a#", False),
        (b"c#a#-1", False),
        (b"c#a#0", False),
        (b"c#a#1#2", False),
        (b"#a#1", False),
        (b"c#a#99999999999999999999", False),
        (b"c#a#1", True),
        (b"c#a#1#", True),
    ],
)
def test_identities_that_cannot_be_read(content: bytes, is_temporary: bool) -> None:
    with pytest.raises(FormatError):
        BrokerIdentity.decode(content, "brokerIdentity", is_temporary)


@pytest.mark.parametrize("name", ["", "a#b", "a\nb"])
def test_names_that_would_break_the_file(name: str) -> None:
    with pytest.raises(FormatError):
        BrokerIdentity("c", name, 1)
