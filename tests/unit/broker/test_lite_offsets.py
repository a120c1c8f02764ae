"""Offsets of groups in lite topics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.broker.stepped import SteppedBroker
from tests.unit.store.stores import message

from rucola.store.results import PutMessageStatus

SESSION = "%LMQ%$T$session"


class LiteBroker(SteppedBroker):
    """A broker with lite topics."""

    def open(self) -> None:
        self.config = replace(self.config, enable_lmq=True, enable_multi_dispatch=True)
        super().open()

    def offset(self) -> int | None:
        """How far the group has consumed the lite topic."""
        return self.broker.offsets.query("cg", SESSION, 0)


@pytest.mark.parametrize(("committed", "kept"), [(2, 2), (3, 3), (9, 3)])
def test_an_offset_outlives_a_kill(committed: int, kept: int) -> None:
    """A lite topic has no directory; its groups began at 0 again."""
    broker = LiteBroker()
    store = broker.broker.store
    for number in range(3):
        sent = message(number, b"T")
        sent.properties += f"INNER_MULTI_DISPATCH\x01{SESSION}\x02".encode()
        assert store.put_message(sent).status is PutMessageStatus.PUT_OK
    store.dispatch()
    broker.broker.offsets.commit("cg", SESSION, 0, committed)
    broker.passes(6000)
    broker.kill()
    assert broker.broker.store.recovered and broker.offset() == kept
    broker.restart()
    assert broker.offset() == kept
