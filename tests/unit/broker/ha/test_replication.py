"""Which slaves count for which of the responses that wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.unit.broker.test_flush_waiters import Channel, Timers

from rucola.broker.ha.acting_config import IN_SYNC_BYTES
from rucola.broker.ha.master import HaServer
from rucola.broker.ha.replication import ReplicaRule, Replication
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand, decode_frame
from rucola.testing.clock import ManualClock


def answer(number: int) -> bytes:
    return RemotingCommand(0, number, FLAG_RESPONSE).encode()


def test_a_slave_confirms_no_message_of_a_segment_before_its_first() -> None:
    """A new slave of RocketMQ begins at the newest segment. Messages that wait at that time may be in the one before:
    the slave never gets them, although it reports offsets behind them.
    """
    clock, timers, channel = ManualClock(), Timers(), Channel()
    copies = Replication(ReplicaRule(2, 1, IN_SYNC_BYTES), clock.monotonic, 3000, timers.call_later)
    link = SimpleNamespace(acknowledged=0, confirmed=-1, start=0)
    server = SimpleNamespace(
        slaves=[SimpleNamespace(link=link)],
        log=SimpleNamespace(sendable_offset=400),
        held_offset=lambda *question: HaServer.held_offset(cast(Any, server), *question),
        reported_offset=lambda count: HaServer.reported_offset(cast(Any, server), count),
    )
    copies.server = cast(HaServer, server)
    copies.changed()
    copies.add(290, cast(Any, channel), answer(1))
    clock.advance(2000)
    copies.add(400, cast(Any, channel), answer(2))
    link.acknowledged, link.confirmed, link.start = 400, 400, 300
    copies.acknowledged()
    assert channel.sent == []
    clock.advance(1500)
    timers.fire()
    assert decode_frame(channel.sent.pop()).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    copies.acknowledged()
    assert channel.sent == [answer(2)]
