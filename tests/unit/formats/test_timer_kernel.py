"""Timer log and timer wheel: the compiled and the interpreted kernel, the small files, and the layout in bytes."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from tests.kernels import kernel

from rucola.common.data_version import DataVersion
from rucola.errors import FormatError
from rucola.formats.timer import (
    STOP_AT_BLANK,
    STOP_AT_LIMIT,
    STOP_AT_NO_UNIT,
    TIMER_BLANK,
    TIMER_BLANK_MAGIC,
    TIMER_SLOT,
    TIMER_UNIT,
    TimerCheckpoint,
    TimerMetrics,
)

SLOTS = 64
BASE = 1 << 33
"""Position of the segment in the log, above 32 bits."""


@pytest.fixture
def timer(form: str) -> ModuleType:
    return kernel("formats._timer_cy", form)


def unit(
    previous: int, time_s: int, physical_offset: int, magic: int = 1, size: int = 90, wrote_ms: int = 5000
) -> bytes:
    return TIMER_UNIT.pack(52, previous, magic, wrote_ms, 1000 * time_s - wrote_ms, physical_offset, size, -7, 0)


def scan(
    timer: ModuleType, log: bytes, wheel: bytearray, end: int = 1 << 40, seen_from: int = 0
) -> tuple[int, int, int, list[int]]:
    seen = array("q", bytes(8 * 100))
    at, stop, count, last = timer.scan_units(log, 0, BASE, end, wheel, 1000, seen_from, seen)
    return at, stop, last, list(seen[:count])


def slot(wheel: bytearray, step: int) -> tuple[int, ...]:
    return TIMER_SLOT.unpack(wheel, step % SLOTS * 32)


def test_units_find_their_slots(timer):
    """A slot of an old time step is reused, a slot that already includes a unit does not change, and recalls reduce
    the count.
    """
    wheel = bytearray(32 * SLOTS)
    TIMER_SLOT.struct.pack_into(wheel, 32 * 9, 9 + 7 * SLOTS, 5, 6, 7, 0)
    TIMER_SLOT.struct.pack_into(wheel, 32 * 10, 10, BASE, BASE + 500, 3, 0)
    log = unit(-1, 9, 100) + unit(-1, 10, 1 << 35) + unit(BASE, 9, 300, 5) + unit(BASE + 104, 9, 400)
    assert scan(timer, log + bytes(60), wheel) == (208, STOP_AT_NO_UNIT, 400, [100, 1 << 35, 300, 400])
    assert slot(wheel, 9) == (9, BASE, BASE + 156, 1, 0)
    assert slot(wheel, 10) == (10, BASE, BASE + 500, 3, 0)
    assert scan(timer, log, wheel, seen_from=300) == (208, STOP_AT_LIMIT, 400, [1 << 35, 300, 400])
    assert slot(wheel, 9) == (9, BASE, BASE + 156, 1, 0)


@pytest.mark.parametrize(
    "bad",
    [
        bytes(52),
        TIMER_UNIT.pack(51, -1, 1, 5000, 1, 9, 9, 0, 0),
        TIMER_UNIT.pack(52, -1, 16, 5000, 1, 9, 9, 0, 0),
        TIMER_UNIT.pack(52, -1, -1, 5000, 1, 9, 9, 0, 0),
        TIMER_UNIT.pack(52, -1, 1, 5000, 1, -1, 9, 0, 0),
        TIMER_UNIT.pack(52, -1, 1, 5000, 1, 9, 0, 0, 0),
        TIMER_UNIT.pack(52, -1, 1, -5000, 1, 9, 9, 0, 0),
        TIMER_UNIT.pack(52, -1, 1, 5000, 1, 951, 50, 0, 0),
        unit(-1, 9, 100)[:51],
    ],
    ids=range(9),
)
def test_bytes_that_are_no_unit_end_the_walk(timer, bad):
    wheel = bytearray(32 * SLOTS)
    assert scan(timer, unit(-1, 9, 100) + bad, wheel, end=1000) == (52, STOP_AT_NO_UNIT, 100, [100])
    assert sum(any(wheel[at : at + 32]) for at in range(0, len(wheel), 32)) == 1


def test_blank(timer):
    log = unit(-1, 9, 100) + TIMER_BLANK.pack(60, 0, TIMER_BLANK_MAGIC) + unit(-1, 9, 200)
    assert scan(timer, log, bytearray(32 * SLOTS))[:2] == (52, STOP_AT_BLANK)


def test_chains(timer):
    """A chain is read newest first, until the segment or the output array ends; an invalid link also ends the chain."""
    log = unit(700, 9, 100) + unit(BASE, 9, 200, 3) + unit(BASE + 52, 9, 300) + unit(BASE + 156, 9, 400)
    out = array("q", bytes(8 * 4 * 10))
    assert timer.chain_units(log, BASE, BASE + 104, out) == (3, 700)
    assert list(out[:12]) == [300, 90, 1, 5000, 200, 90, 3, 5000, 100, 90, 1, 5000]
    assert timer.chain_units(log, BASE, BASE + 156, out) == (1, -1)  # to itself
    assert timer.chain_units(log, BASE, BASE + 104, array("q", bytes(8 * 4))) == (1, BASE + 52)
    assert timer.chain_units(log, BASE, BASE + 100, out) == (0, -1)
    assert timer.chain_units(log, BASE, BASE + 500, out) == (0, BASE + 500)


def test_beyond(timer):
    wheel = bytearray(32 * SLOTS)
    assert not timer.is_beyond(wheel, 0, len(wheel), 0)
    TIMER_SLOT.struct.pack_into(wheel, 32 * 3, 3, 0, BASE, 1, 0)
    assert timer.is_beyond(wheel, 0, len(wheel), BASE)
    assert not timer.is_beyond(wheel, 0, len(wheel), BASE + 1)
    assert not timer.is_beyond(wheel, 128, len(wheel), BASE)
    assert timer.is_beyond(wheel, 100, 128, BASE)  # from within a slot


def test_places_that_are_none_are_refused(timer):
    wheel = bytearray(64)
    for arguments in (
        (unit(-1, 9, 1), -1, 0, 9, wheel, 1000, 0, array("q", bytes(80))),
        (unit(-1, 9, 1), 0, 0, 9, wheel, 0, 0, array("q", bytes(80))),
        (unit(-1, 9, 1), 0, 0, 9, bytearray(31), 1000, 0, array("q", bytes(80))),
        (unit(-1, 9, 1), 0, 0, 9, wheel, 1000, 0, array("q", bytes(8))),
    ):
        with pytest.raises(ValueError):
            timer.scan_units(*arguments)
    with pytest.raises(ValueError):
        timer.is_beyond(wheel, 0, 65, 0)


def test_checkpoint():
    checkpoint = TimerCheckpoint(1, 2, 3, 4, DataVersion(5, 6, 7))
    assert checkpoint.encode_fields() == b"".join(value.to_bytes(8, "big") for value in range(1, 8))
    assert len(checkpoint.encode()) == 4096
    assert TimerCheckpoint.decode(checkpoint.encode()) == checkpoint
    assert TimerCheckpoint.decode(b"\0" * 7 + b"\1") == TimerCheckpoint(1)


def test_metrics():
    """The metrics file is as ``store.md`` 1.3 shows it: compact, with characters beyond ASCII escaped."""
    metrics = TimerMetrics(data_version=DataVersion(0, 0, 2))
    metrics.add("TopicTest", 3, 1_700_000_000_000)
    text = (
        b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},'
        b'"timingCount":{"TopicTest":{"count":3,"timeStamp":1700000000000}}}'
    )
    assert metrics.encode() == text
    assert TimerMetrics.decode(text) == metrics
    metrics.add("\u4e2d", 1, 5)
    assert b"\\u4e2d" in metrics.encode()
    for bad in (b"{", b"[]", b'{"timingCount":{"T":5}}', b'{"timingCount":{"T":{}}}'):
        with pytest.raises(FormatError):
            TimerMetrics.decode(bad)
