"""Faults, one after another, for every kind of consumer: no message is lost, order is kept, progress never goes too
far.

``make faults`` runs the whole matrix.
"""

from __future__ import annotations

from tests.scenario.consumer_faults import FAULTS, run
from tests.scenario.fault_readers import KINDS

PAUSE_S = 0.1
"""Seconds between two sends to a queue: a tenth of the messages of ``make faults``, by the same faults."""


def test_every_kind_of_consumer_goes_through_every_fault():
    locking = [kind.name for kind in KINDS if kind.locks]  # the broker keeps their locks for a minute
    one, findings = run(FAULTS, spared=locking, pause_s=PAUSE_S)
    assert {name: of for name, of in findings.items() if of} == {}
    for group in one.groups:
        for history in group.histories.values():
            assert len(history.deliveries) > 20, group.kind
