"""The duty of a slave, as a table of what name servers say."""

from __future__ import annotations

import pytest

from rucola.broker.ha.acting import ActingMaster, Duty, DutyChange

NOBODY: dict[int, str] = {}
LED = {0: "m", 1: "a", 2: "b"}
FIRST, SECOND, BOTH = {1: "a"}, {2: "b"}, {1: "a", 2: "b"}
DUTIES = [
    # before, what name servers say, after
    (Duty.UNKNOWN, NOBODY, Duty.UNKNOWN),
    (Duty.UNKNOWN, LED, Duty.FOLLOWS),
    (Duty.UNKNOWN, SECOND, Duty.ACTS),
    (Duty.UNKNOWN, BOTH, Duty.STANDS_BY),
    (Duty.FOLLOWS, NOBODY, Duty.FOLLOWS),
    (Duty.FOLLOWS, LED, Duty.FOLLOWS),
    (Duty.FOLLOWS, SECOND, Duty.ACTS),
    (Duty.FOLLOWS, FIRST, Duty.STANDS_BY),
    (Duty.STANDS_BY, NOBODY, Duty.STANDS_BY),
    (Duty.STANDS_BY, BOTH, Duty.STANDS_BY),
    (Duty.STANDS_BY, SECOND, Duty.ACTS),
    (Duty.STANDS_BY, LED, Duty.FOLLOWS),
    (Duty.ACTS, NOBODY, Duty.ACTS),
    (Duty.ACTS, SECOND, Duty.ACTS),
    (Duty.ACTS, BOTH, Duty.STANDS_BY),
    (Duty.ACTS, LED, Duty.FOLLOWS),
]


@pytest.mark.parametrize(("before", "members", "after"), DUTIES)
def test_duty_of_slave_2(before: Duty, members: dict[int, str], after: Duty) -> None:
    acting = ActingMaster(2)
    acting.duty = before
    change = acting.members(members)
    assert acting.duty is after
    expected = DutyChange(after, before, "m" if after is Duty.FOLLOWS else "")
    assert change == (None if after is before else expected)
