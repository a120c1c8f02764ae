"""The in-sync set of a master: rules as single cases, and the promise under random schedules."""

from __future__ import annotations

import random

import pytest

from rucola.broker.ha.in_sync_set import ALL, InSyncSet, MasterTerm, SyncRule
from rucola.protocol.bodies.controller import SyncStateSet

OLD, NEW, OTHER = "old connection", "new connection", "another slave"


def set_of(*members: int, needed: int = ALL, confirmed: int = 0, start: int = 0) -> InSyncSet:
    return InSyncSet(SyncRule(needed), MasterTerm(1, 1, start, confirmed), SyncStateSet(frozenset(members), 1), 0.0)


def joined(*members: int, needed: int = ALL) -> InSyncSet:
    """A set whose slaves are connected and have 100 bytes."""
    found = set_of(*members, needed=needed)
    for one in members:
        if one != 1:
            assert found.connected(one, OLD, False) == ""
            assert found.reported(one, OLD, 100, 100, 0.0) == ""
    assert found.confirm(100) == 100
    return found


def wanted(found: InSyncSet, end: int, now_s: float) -> list[int] | None:
    proposal = found.proposal(end, now_s)
    return None if proposal is None else sorted(proposal.sync_state_set)


def test_slave_joins_with_all_that_is_confirmed() -> None:
    found = set_of(1)
    assert found.confirm(100) == 100
    found.connected(2, OLD, False)
    found.sent(2, OLD, 90, 1.0)
    assert found.reported(2, OLD, 99, 100, 1.5) == ""
    assert wanted(found, 100, 2.0) is None
    assert found.reported(2, OLD, 100, 100, 2.0) == ""
    proposal = found.proposal(100, 2.0)
    assert proposal == SyncStateSet(frozenset((1, 2)), 1)
    assert found.proposal(100, 2.0) is None  # one at a time
    found.accepted(proposal, 2)
    assert (found.members, found.set_epoch, found.size) == (frozenset((1, 2)), 2, 2)


def test_slave_without_the_epoch_of_the_master_does_not_join() -> None:
    found = set_of(1, needed=1, start=50)
    found.connected(2, OLD, False)
    found.sent(2, OLD, 40, 0.0)
    found.reported(2, OLD, 40, 60, 0.0)
    assert wanted(found, 60, 0.0) is None
    found.sent(2, OLD, 60, 0.0)
    found.reported(2, OLD, 60, 60, 0.0)
    assert wanted(found, 60, 0.0) == [1, 2]


def test_learner_is_never_in_sync() -> None:
    found = set_of(1)
    found.connected(2, OLD, True)
    found.reported(2, OLD, 100, 100, 0.0)
    assert wanted(found, 100, 0.0) is None
    found = joined(1, 2)
    found.connected(2, NEW, True)
    found.reported(2, NEW, 100, 100, 0.0)
    assert wanted(found, 100, 0.0) == [1]


def test_union_counts_until_the_answer() -> None:
    found = joined(1, 2)
    found.connected(3, OTHER, False)
    found.reported(3, OTHER, 100, 100, 1.0)
    proposal = found.proposal(100, 1.0)
    assert proposal is not None
    found.reported(2, OLD, 120, 120, 1.0)
    assert (found.confirm(120), found.size) == (100, 3)
    found.reported(3, OTHER, 110, 120, 1.0)
    assert found.confirm(120) == 110
    assert found.refused(proposal, 2006) is False
    assert (found.confirm(120), found.size) == (120, 2)


def test_proposal_without_answer_counts_until_a_later_set_is_told() -> None:
    found = joined(1, 2)
    found.connected(3, OTHER, False)
    found.reported(3, OTHER, 100, 100, 1.0)
    first = found.proposal(100, 1.0)
    assert first is not None
    found.unanswered(first, 1.0)
    found.disconnected(3, OTHER)
    found.reported(2, OLD, 120, 120, 1.0)
    found.told(SyncStateSet(frozenset((1, 2)), 1), 15.9)  # not a later one
    assert found.confirm(120) == 100
    again = found.proposal(120, 1.0)
    assert again is None  # the set that is known is the wanted one
    found.told(SyncStateSet(frozenset((1, 2)), 3), 2.0)
    assert found.confirm(120) == 120


def test_proposal_without_answer_counts_no_more_when_no_controller_can_work_on_it() -> None:
    found = joined(1, 2)
    found.connected(3, OTHER, False)
    found.reported(3, OTHER, 100, 100, 1.0)
    first = found.proposal(100, 1.0)
    assert first is not None
    found.unanswered(first, 4.0)
    found.reported(2, OLD, 120, 120, 4.0)
    found.told(SyncStateSet(frozenset((1, 2)), 1), 18.9)
    assert found.confirm(120) == 100
    found.told(SyncStateSet(frozenset((1, 2)), 1), 19.0)
    assert found.confirm(120) == 120


def test_repeated_proposal_that_was_accepted_asks_for_the_set() -> None:
    found = joined(1, 2)
    found.disconnected(2, OLD)
    first = found.proposal(100, 1.0)
    assert first is not None
    found.unanswered(first, 1.0)
    second = found.proposal(100, 2.0)
    assert second is not None
    assert found.refused(second, 2001) is True
    assert found.required == {1, 2}
    found.told(SyncStateSet(frozenset((1,)), 2), 3.0)
    assert found.required == {1}
    found.accepted(first, 2)  # late answers of both change nothing
    found.refused(second, 2001)
    assert (found.members, found.set_epoch) == (frozenset((1,)), 2)


def test_shrink_confirms_only_after_the_answer() -> None:
    found = joined(1, 2)
    found.disconnected(2, OLD)
    proposal = found.proposal(150, 1.0)
    assert proposal is not None
    assert proposal.sync_state_set == {1}
    assert (found.confirm(150), found.size) == (100, 2)
    found.accepted(proposal, 2)
    assert (found.confirm(150), found.size) == (150, 1)


def test_slow_member_leaves_and_one_that_follows_stays() -> None:
    found = joined(1, 2, 3)
    for second in range(1, 31):  # slave 2 is always behind, but gets what there was a second ago; 3 gets nothing more
        end = 100 + 10 * second
        found.reported(2, OLD, end - 10, end, second)
        found.sent(2, OLD, end, second)
        found.sent(3, OLD, end, second)
        assert wanted(found, end, second) == ([1, 2] if second == 16 else None)


def test_slave_that_has_what_was_sent_long_ago_has_not_caught_up() -> None:
    found = joined(1, 2)
    found.sent(2, OLD, 110, 1.0)
    found.reported(2, OLD, 110, 500, 17.0)
    assert wanted(found, 500, 17.0) == [1]


def test_next_transfer_does_not_move_the_mark_of_the_last() -> None:
    found = joined(1, 2)
    found.sent(2, OLD, 110, 10.0)
    found.sent(2, OLD, 500, 11.0)
    found.reported(2, OLD, 120, 500, 12.0)
    assert wanted(found, 500, 20.0) is None


def test_late_answer_does_not_bring_an_old_set_back() -> None:
    found = joined(1, 2)
    found.disconnected(2, OLD)
    first = found.proposal(100, 1.0)
    assert first is not None
    found.told(SyncStateSet(frozenset((1, 2)), 3), 1.0)
    found.accepted(first, 2)
    assert (found.members, found.set_epoch) == (frozenset((1, 2)), 3)


def test_member_that_never_comes_leaves() -> None:
    found = set_of(1, 2, confirmed=70)
    assert found.confirm(100) == 70
    assert wanted(found, 100, 15.0) is None
    assert wanted(found, 100, 15.1) == [1]


def test_late_end_of_an_old_connection_changes_nothing() -> None:
    found = joined(1, 2)
    found.connected(2, NEW, False)
    assert found.reported(2, OLD, 100, 100, 1.0) != ""
    found.reported(2, NEW, 100, 100, 1.0)
    found.disconnected(2, OLD)
    assert wanted(found, 100, 1.0) is None
    assert found.confirm(100) == 100
    found.disconnected(2, NEW)
    assert wanted(found, 100, 1.0) == [1]


def test_member_that_lost_something_confirmed_leaves() -> None:
    found = joined(1, 2)
    found.connected(2, NEW, False)
    found.reported(2, NEW, 80, 100, 1.0)
    assert found.confirm(100) == 100
    assert wanted(found, 100, 1.0) == [1]


def test_slave_without_report_holds_the_confirm_offset() -> None:
    found = joined(1, 2, 3)
    found.reported(2, OLD, 200, 200, 1.0)
    found.connected(3, NEW, False)
    assert found.confirm(200) == 100


@pytest.mark.parametrize(
    ("broker_id", "held", "reason"),
    [(2, 101, "this log ends at 100"), (2, 99, "after 100"), (2, -5, "after 100"), (3, 10, "who it is")],
)
def test_false_report_is_refused(broker_id: int, held: int, reason: str) -> None:
    found = joined(1, 2)
    assert reason in found.reported(broker_id, OLD, held, 100, 1.0)
    assert found.confirm(100) == 100


@pytest.mark.parametrize("broker_id", [-1, 0, 1])
def test_slave_with_an_impossible_id_is_refused(broker_id: int) -> None:
    found = set_of(1)
    assert str(broker_id) in found.connected(broker_id, OLD, False)
    assert found.reported(broker_id, OLD, 0, 0, 0.0) != ""


def test_some_brokers_suffice_and_only_members_count() -> None:
    found = joined(1, 2, 3, needed=2)
    found.reported(2, OLD, 130, 150, 1.0)
    found.connected(4, OTHER, False)
    found.reported(4, OTHER, 150, 150, 1.0)
    assert (found.confirm(150), found.visible(150)) == (130, 150)
    assert wanted(found, 150, 1.0) == [1, 2, 3, 4]
    assert found.confirm(150) == 130  # the controller has not said so
    assert set_of(1, needed=2, confirmed=100).confirm(200) == 100
    assert set_of(1, needed=1).confirm(200) == 200


class Controller:
    """The set at the controller: compared and set by its epoch; answers and requests are lost or late."""

    def __init__(self, members: frozenset[int]) -> None:
        self.now = SyncStateSet(members, 1)

    def alter(self, proposal: SyncStateSet) -> bool:
        same_epoch = proposal.sync_state_set_epoch == self.now.sync_state_set_epoch
        if not same_epoch or proposal.sync_state_set == self.now.sync_state_set:
            return False
        self.now = SyncStateSet(proposal.sync_state_set, self.now.sync_state_set_epoch + 1)
        return True


class Schedule:
    """A master, three slaves and a controller with random events."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.controller = Controller(frozenset((1, 2)))
        self.found = set_of(1, 2)
        self.end = self.now_s = 0
        self.disks = dict.fromkeys((2, 3, 4), 0)
        self.connections: dict[int, object] = {}
        self.under_way: SyncStateSet | None = None
        self.late: list[tuple[int, SyncStateSet]] = []
        self.changes = 0

    def step(self) -> None:
        one = self.random.choice((2, 3, 4))
        kind = self.random.choice((self.write, self.connect, self.leave, self.report, self.report, self.propose))
        kind(one)
        self.now_s += self.random.choice((0, 0, 1, 4))
        for late in list(self.late):
            if self.now_s - late[0] > 10 or self.random.random() < 0.2:
                self.late.remove(late)
                self.controller.alter(late[1])
        self.check()

    def write(self, one: int) -> None:
        self.end += self.random.randrange(1, 30)

    def connect(self, one: int) -> None:
        self.connections[one] = object()
        self.found.connected(one, self.connections[one], False)

    def leave(self, one: int) -> None:
        if one in self.connections and self.random.random() < 0.3:
            self.found.disconnected(one, self.connections.pop(one))

    def report(self, one: int) -> None:
        if one in self.connections:
            self.found.sent(one, self.connections[one], self.end, self.now_s)
            self.disks[one] = self.random.choice((self.end, self.random.randint(self.disks[one], self.end)))
            held = self.disks[one]
            assert self.found.reported(one, self.connections[one], held, self.end, self.now_s) == ""

    def propose(self, one: int) -> None:
        found = self.found
        if self.under_way is None:
            self.under_way = found.proposal(self.end, self.now_s)
            return
        proposal, self.under_way = self.under_way, None
        what = self.random.choice(("answered", "answer lost", "late", "told"))
        if what == "late":
            self.late.append((self.now_s, proposal))
            found.unanswered(proposal, self.now_s)
            return
        is_accepted = self.controller.alter(proposal)
        self.changes += is_accepted
        if what == "answer lost":
            found.unanswered(proposal, self.now_s)
        elif what == "told":
            found.told(self.controller.now, self.now_s)
            if is_accepted:
                found.accepted(proposal, self.controller.now.sync_state_set_epoch)
            else:
                found.refused(proposal, 2001)
        elif is_accepted:
            found.accepted(proposal, self.controller.now.sync_state_set_epoch)
        elif found.refused(proposal, 2001):
            found.told(self.controller.now, self.now_s)

    def calm(self) -> None:
        """All slaves come and stay, every question is answered, and nothing is written any more."""
        for one in (2, 3, 4):
            self.connect(one)
        for _ in range(60):
            for one in (2, 3, 4):
                self.disks[one] = self.end
                self.found.reported(one, self.connections[one], self.end, self.end, self.now_s)
            self.now_s += 1
            self.late.clear()
            self.found.told(self.controller.now, self.now_s)
            if self.under_way is not None:
                self.found.unanswered(self.under_way, self.now_s)
            self.under_way = proposal = self.found.proposal(self.end, self.now_s)
            if proposal is not None and self.controller.alter(proposal):
                self.found.accepted(proposal, self.controller.now.sync_state_set_epoch)
                self.under_way = None
            self.check()

    def check(self) -> None:
        confirmed = self.found.confirm(self.end)
        assert self.found.required >= self.controller.now.sync_state_set
        for one in self.controller.now.sync_state_set - {1}:
            assert self.disks[one] >= confirmed, f"{one} is in the set and lacks what was confirmed"


@pytest.mark.parametrize("seed", range(30))
def test_each_broker_in_the_set_has_all_that_was_confirmed(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(400):
        schedule.step()
    assert schedule.changes > 3
    assert schedule.found.confirm(schedule.end) > 0
    schedule.calm()
    assert schedule.found.confirm(schedule.end) == schedule.end
    assert schedule.found.required == schedule.controller.now.sync_state_set == {1, 2, 3, 4}
