"""Unique message ids."""

from __future__ import annotations

from datetime import datetime

from rucola.client.unique_id import UniqueIds
from rucola.testing.clock import ManualClock

LOOPBACK = bytes([127, 0, 0, 1])


def local_ms(*date: int) -> int:
    return int(datetime(*date).timestamp() * 1000)


def test_fields():
    clock = ManualClock(local_ms(2026, 3, 1) + 0x1234)
    ids = UniqueIds(LOOPBACK, 0x12ABCD, bytes([1, 2, 3, 4]), clock)
    assert ids.next() == "7F000001" + "ABCD" + "01020304" + "00001234" + "0000"
    assert ids.next() == "7F000001" + "ABCD" + "01020304" + "00001234" + "0001"
    clock.advance(1)
    assert ids.next()[20:] == "00001235" + "0002"


def test_ipv6_has_56_digits():
    assert len(UniqueIds(bytes(16), 1, bytes(4), ManualClock()).next()) == 56


def test_the_count_of_milliseconds_starts_again_each_month():
    clock = ManualClock(local_ms(2026, 12, 31, 23, 59, 59))
    ids = UniqueIds(LOOPBACK, 1, bytes(4), clock)
    assert int(ids.next()[20:28], 16) == local_ms(2026, 12, 31, 23, 59, 59) - local_ms(2026, 12, 1)
    clock.set_wall_ms(local_ms(2027, 1, 1) + 7)
    assert ids.next()[20:28] == "00000007"
    clock.set_wall_ms(local_ms(2026, 12, 1) + 9)  # an administrator sets the clock back
    assert ids.next()[20:28] == "00000009"


def test_different_within_a_millisecond():
    ids = UniqueIds(LOOPBACK, 1, bytes(4), ManualClock())
    assert len({ids.next() for _ in range(65_536)}) == 65_536
