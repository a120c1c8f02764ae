"""Each kind of consumer through faults one after the other: nothing is lost, order holds, progress never lies.

All faults for all kinds: ``python -m tests.scenario.consumer_faults``.
"""

from __future__ import annotations

import pytest
from tests.scenario.consumer_faults import KINDS, run


@pytest.mark.parametrize("kind", KINDS)
def test_faults_one_after_the_other(kind):
    faults = ["broker_killed", "connection_blackholed"]
    if kind != "orderly":  # the broker keeps the locks of one that was killed for a minute
        faults.append("consumer_killed")
    history, findings = run(kind, faults)
    assert findings == []
    assert {"first"} < {delivery.value for delivery in history.deliveries}
