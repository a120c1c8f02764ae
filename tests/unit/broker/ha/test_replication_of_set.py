"""Which responses wait for the in-sync set of a controller, and what they become when the master is another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.broker.test_flush_waiters import Channel, Timers

from rucola.broker.ha.acting_config import IN_SYNC_BYTES
from rucola.broker.ha.in_sync_set import ALL, InSyncSet, MasterTerm, SyncRule
from rucola.broker.ha.master import HaServer
from rucola.broker.ha.replication import ReplicaRule, Replication
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand, decode_frame
from rucola.testing.clock import ManualClock

LINK = "connection"


class Master:
    """A master with a log of ``end`` bytes."""

    def __init__(self, *members: int, needed: int = ALL, least: int = 1) -> None:
        self.clock, self.timers, self.channel = ManualClock(), Timers(), Channel()
        rule = ReplicaRule(needed, least, IN_SYNC_BYTES, is_controlled=True)
        self.copies = Replication(rule, self.clock.monotonic, 3000, self.timers.call_later)
        self.log = SimpleNamespace(sendable_offset=0)
        self.copies.server = cast(HaServer, SimpleNamespace(slaves=(), log=self.log))
        term = MasterTerm(1, 1, 0, 0)
        self.members = InSyncSet(SyncRule(needed), term, SyncStateSet(frozenset(members), 1), 0.0)
        for one in members:
            if one > 1:
                self.members.connected(one, LINK, False)
        self.copies.lead(self.members)

    def send(self, end: int, lenient: bool = False) -> None:
        """Stores a message that ends at ``end``."""
        self.log.sendable_offset = end
        if self.copies.passed(end):
            self.channel.send(self.answer(end))
        else:
            self.copies.add(end, cast(Any, self.channel), self.answer(end), lenient)

    def report(self, one: int, held: int) -> None:
        assert self.members.reported(one, LINK, held, self.log.sendable_offset, 0.0) == ""
        self.copies.acknowledged()

    @staticmethod
    def answer(number: int) -> bytes:
        return RemotingCommand(0, number, FLAG_RESPONSE).encode()

    def told(self) -> list[tuple[int, int]]:
        """Number and code of each answer so far."""
        frames = list(self.channel.sent)
        self.channel.sent.clear()
        return [(frame.opaque, frame.code) for frame in map(decode_frame, frames)]


def test_all_in_sync_must_have_a_message() -> None:
    master = Master(1, 2, 3)
    master.send(10)
    master.report(2, 10)
    assert master.told() == []
    master.report(3, 9)
    assert master.told() == []
    master.report(3, 10)
    assert master.told() == [(10, 0)]


def test_alone_in_the_set_nobody_waits() -> None:
    master = Master(1)
    master.send(10)
    assert master.told() == [(10, 0)]


def test_some_brokers_suffice_or_the_sender_is_told_at_once() -> None:
    master = Master(1, 2, 3, needed=2)
    master.send(10)
    master.report(3, 10)
    assert master.told() == [(10, 0)]
    master = Master(1, needed=2)
    master.send(10)
    assert master.told() == [(10, ResponseCode.SLAVE_NOT_AVAILABLE)]


def test_too_late_a_report_is_a_time_out() -> None:
    master = Master(1, 2)
    master.send(10)
    master.clock.advance(3001)
    master.timers.fire()
    assert master.told() == [(10, ResponseCode.FLUSH_SLAVE_TIMEOUT)]


def test_new_member_must_have_a_message_before_the_controller_has_answered() -> None:
    master = Master(1, 2)
    master.members.connected(3, LINK, False)
    master.report(3, 0)
    proposal = master.members.proposal(0, 0.0)
    assert proposal is not None
    master.send(10)
    master.report(2, 10)
    assert master.told() == []
    master.members.refused(proposal, 2006)
    master.copies.acknowledged()
    assert master.told() == [(10, 0)]


@pytest.mark.parametrize("lenient", [False, True])
def test_demotion_is_never_a_confirmation(lenient: bool) -> None:
    master = Master(1, 2)
    master.send(10, lenient)
    master.copies.retire()
    code = 0 if lenient else ResponseCode.SERVICE_NOT_AVAILABLE
    assert master.told() == [(10, code)]
    master.members.reported(2, LINK, 10, 10, 0.0)
    master.copies.acknowledged()
    master.send(20, lenient)  # it was synced after the demotion
    assert master.told() == [(20, code)]


@pytest.mark.parametrize("needed", [1, 2, ALL])
def test_what_is_synced_after_the_demotion_is_refused_whatever_is_needed(needed: int) -> None:
    master = Master(1, needed=needed)
    master.copies.retire()
    master.send(10)
    assert master.told() == [(10, ResponseCode.SERVICE_NOT_AVAILABLE)]


def test_next_term_begins_without_what_was_confirmed_before() -> None:
    master = Master(1)
    master.send(10)
    master.copies.retire()
    told = SyncStateSet(frozenset((1, 2)), 4)
    master.members = InSyncSet(SyncRule(ALL), MasterTerm(1, 3, 5, 5), told, 0.0)
    master.members.connected(2, LINK, False)
    master.told()
    master.copies.lead(master.members)
    master.send(8)
    assert master.told() == []
    master.report(2, 8)
    assert master.told() == [(8, 0)]


def test_master_that_is_elected_again_answers_who_waits() -> None:
    master = Master(1, 2)
    master.send(10)
    master.copies.lead(InSyncSet(SyncRule(ALL), MasterTerm(1, 2, 10, 0), SyncStateSet(frozenset((1,)), 2), 0.0))
    assert master.told() == [(10, 0)]


def test_offset_below_the_confirmed_one_is_refused_after_the_demotion() -> None:
    master = Master(1)
    master.send(10)
    master.copies.retire()
    master.told()
    master.send(5)  # the log was cut, and grew again
    assert master.told() == [(5, ResponseCode.SERVICE_NOT_AVAILABLE)]


def test_too_few_in_sync_refuse_sends() -> None:
    master = Master(1, least=2)
    assert master.copies.refuses is not None
    assert master.copies.refuses()
    assert "1 of 2 brokers" in master.copies.trouble
    assert master.copies.in_sync_count == 1
    master.copies.retire()
    assert (master.copies.trouble, master.copies.remark) == ("", "")
    assert not cast(Any, Master(1, 2, least=2).copies.refuses)()
