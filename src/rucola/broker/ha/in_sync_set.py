"""The brokers that are in sync with a master in controller mode: the one owner of this set. No sockets, no clock.

The controller keeps the set, and makes only one of its brokers the next master. The master proposes changes (1001):
a slave that has all that was ever confirmed is added, one that lags or is gone is removed. A proposal whose answer is
unknown may have been accepted: a message is confirmed only if all brokers of both sets have it, until a later epoch of
the set is told, or the controller cannot be working on the proposal any more.

A slave has caught up when it has what the log had at an earlier transfer; the next transfer is the next mark. With
``inSyncReplicas``, a message that other members have confirmed may be missing on one that lags.

A slave is known by its connection. The end of an older connection of the same slave changes nothing.

Source: RocketMQ 5.3.3, ``AutoSwitchHAService``. Differences: a slave without a report holds the confirm offset back; a
member that lacks something confirmed is removed at once; with ``inSyncReplicas``, only members of the set count.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from rucola.protocol.bodies.controller import SyncStateSet
from rucola.protocol.codes import ResponseCode

ALL: Final = 0
"""``SyncRule.needed`` if all brokers in sync must have a message (``allAckInSyncStateSet``)."""
LATE_S: Final = 15.0
"""Time after which a proposal without answer is accepted no more. A controller works on a request for 5 s; the
connection of a request without answer is closed before that.
"""
_NOTHING: Final = -1
_OUTDATED: Final = frozenset(
    (ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)
)
"""Refusals that an accepted proposal gets when it is repeated."""


class SyncRule(NamedTuple):
    """What a master demands.

    Attributes:
        needed: number of brokers, this one included, that must have a message before it is confirmed; or ``ALL``.
        slow_s: time after which a member that has not caught up is removed (``haMaxTimeSlaveNotCatchup``).
    """

    needed: int
    slow_s: float = 15.0


class MasterTerm(NamedTuple):
    """The time in which a broker is the master.

    Attributes:
        broker_id: its id.
        epoch: number of the election.
        start_offset: physical offset at which the epoch begins in its log.
        confirm_offset: physical offset up to which the log was confirmed before.
    """

    broker_id: int
    epoch: int
    start_offset: int
    confirm_offset: int


@dataclass(slots=True)
class _Slave:
    """One slave, by its id.

    Attributes:
        connection: its current connection; None once that has ended.
        held: physical offset up to which it has the log; ``_NOTHING`` before a report on this connection.
        caught_up_s: when it had all of the log for the last time.
        mark, mark_s: where the log ended at a transfer to it, and when that was; it is caught up once it has that.
    """

    caught_up_s: float
    connection: object | None = None
    held: int = _NOTHING
    is_learner: bool = False
    mark: int = _NOTHING
    mark_s: float = -inf


class InSyncSet:
    """The set of one term.

    Attributes:
        members: the set that the controller has told last.
        set_epoch: how often it has changed.

    Args:
        rule: what the master demands.
        term: the term.
        told: the set at its beginning.
        now_s: the time.
    """

    def __init__(self, rule: SyncRule, term: MasterTerm, told: SyncStateSet, now_s: float) -> None:
        self.members, self.set_epoch = told.sync_state_set, told.sync_state_set_epoch
        self._rule, self._term = rule, term
        self._confirm_offset = term.confirm_offset
        self._proposed: SyncStateSet | None = None
        self._possible: frozenset[int] = frozenset()
        """Members of proposals that may have been accepted, because their answers were lost."""
        self._lost_s = -inf
        """When the last answer was lost."""
        self._slaves: dict[int, _Slave] = {one: _Slave(now_s) for one in self.members - {term.broker_id}}

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def required(self) -> frozenset[int]:
        """All brokers that the controller may hold for in sync, this one included."""
        asked = frozenset() if self._proposed is None else self._proposed.sync_state_set
        return self.members | asked | self._possible | {self._term.broker_id}

    @property
    def size(self) -> int:
        """Number of brokers in sync, for ``minInSyncReplicas``."""
        return len(self.required)

    def confirm(self, end_offset: int) -> int:
        """Returns the physical offset up to which senders may be told that their messages are stored. It never falls.

        Args:
            end_offset: physical offset of the end of the own log.
        """
        self._confirm_offset = max(self._confirm_offset, min(end_offset, self._held(end_offset)))
        return self._confirm_offset

    def visible(self, end_offset: int) -> int:
        """Returns the physical offset up to which consumers may read (``confirmOffset``): all, unless all brokers in
        sync must have a message.
        """
        return self.confirm(end_offset) if self._rule.needed == ALL else end_offset

    # -- slaves --------------------------------------------------------------------------------------------------------

    def connected(self, broker_id: int, connection: object, is_learner: bool) -> str:
        """A slave has said who it is; returns why its connection must be closed, or an empty text. An older connection
        of the same id counts no more.
        """
        if broker_id < 1 or broker_id == self._term.broker_id:
            return f"a slave has an id of 1 or more, and not the master's ({self._term.broker_id}); it says {broker_id}"
        before = self._slaves.get(broker_id)
        caught_up_s = -inf if before is None else before.caught_up_s
        self._slaves[broker_id] = _Slave(caught_up_s, connection, is_learner=is_learner)
        return ""

    def disconnected(self, broker_id: int, connection: object) -> None:
        """A connection has ended."""
        if self._current(broker_id, connection) is None:
            return
        if broker_id in self.required:
            self._slaves[broker_id] = _Slave(-inf)
        else:
            del self._slaves[broker_id]

    def sent(self, broker_id: int, connection: object, end_offset: int, now_s: float) -> None:
        """Bytes of the log were handed to a slave's connection.

        Args:
            end_offset: physical offset of the end of the own log.
        """
        slave = self._current(broker_id, connection)
        if slave is not None and slave.held >= slave.mark:
            slave.mark, slave.mark_s = end_offset, now_s

    def reported(self, broker_id: int, connection: object, held: int, end_offset: int, now_s: float) -> str:
        """A slave reports up to where it has the log; returns why its connection must be closed, or an empty text.

        Args:
            end_offset: physical offset of the end of the own log.
        """
        slave = self._current(broker_id, connection)
        if slave is None:
            return "the slave reports on a connection that does not say who it is, or on an old one"
        if held > end_offset:
            return f"the slave reports {held}, and this log ends at {end_offset}"
        if held < max(slave.held, 0):
            return f"the slave reports {held} after {max(slave.held, 0)}"
        slave.held = held
        if held >= end_offset:
            slave.caught_up_s = now_s
        elif held >= slave.mark:
            slave.caught_up_s = max(slave.caught_up_s, slave.mark_s)
        return ""

    # -- proposals -----------------------------------------------------------------------------------------------------

    def proposal(self, end_offset: int, now_s: float) -> SyncStateSet | None:
        """Returns what to propose to the controller; None if the set may stay, or an answer is awaited."""
        if self._proposed is not None:
            return None
        confirmed = self.confirm(end_offset)
        wanted = frozenset(one for one, slave in self._slaves.items() if self._belongs(one, slave, confirmed, now_s))
        wanted |= {self._term.broker_id}
        if wanted == self.members:
            return None
        self._proposed = SyncStateSet(wanted, self.set_epoch)
        return self._proposed

    def accepted(self, proposal: SyncStateSet, set_epoch: int) -> None:
        """The controller has accepted a proposal."""
        if proposal is self._proposed and set_epoch > self.set_epoch:
            self._follow(SyncStateSet(proposal.sync_state_set, set_epoch))

    def refused(self, proposal: SyncStateSet, code: int) -> bool:
        """The controller has refused a proposal; returns whether it must be asked for the set that it has.

        Args:
            code: of its answer.
        """
        if proposal is self._proposed:
            self._proposed = None
        return code in _OUTDATED

    def unanswered(self, proposal: SyncStateSet, now_s: float) -> None:
        """No answer has come to a proposal, which may have been accepted."""
        if proposal is self._proposed:
            self._proposed = None
            self._possible |= proposal.sync_state_set
            self._lost_s = now_s

    def told(self, known: SyncStateSet, now_s: float) -> None:
        """Takes the set that a controller tells now."""
        if known.sync_state_set_epoch > self.set_epoch:
            self._follow(known)
        elif known.sync_state_set_epoch == self.set_epoch and now_s - self._lost_s >= LATE_S:
            self._possible = frozenset()

    def _follow(self, known: SyncStateSet) -> None:
        self.members, self.set_epoch = known.sync_state_set, known.sync_state_set_epoch
        self._proposed, self._possible = None, frozenset()  # proposals for an earlier epoch are refused from now on

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _held(self, end_offset: int) -> int:
        """Physical offset up to which enough brokers have the log."""
        if self._rule.needed == ALL:
            others = self.required - {self._term.broker_id}
            return min((self._held_by(one) for one in others), default=end_offset)
        if self._rule.needed == 1:
            return end_offset
        held = sorted((self._held_by(one) for one in self.members - {self._term.broker_id}), reverse=True)
        return held[self._rule.needed - 2] if self._rule.needed - 2 < len(held) else _NOTHING

    def _held_by(self, broker_id: int) -> int:
        slave = self._slaves.get(broker_id)
        return _NOTHING if slave is None else slave.held

    def _belongs(self, broker_id: int, slave: _Slave, confirmed: int, now_s: float) -> bool:
        if slave.is_learner or now_s - slave.caught_up_s > self._rule.slow_s:
            return False
        if broker_id in self.members:
            return self._rule.needed != ALL or slave.held == _NOTHING or slave.held >= confirmed
        # Without a promise about slaves, all that is stored is confirmed; a slave can hardly have that under load.
        least = 0 if self._rule.needed == 1 else confirmed
        return slave.held >= max(least, self._term.start_offset)

    def _current(self, broker_id: int, connection: object) -> _Slave | None:
        slave = self._slaves.get(broker_id)
        return slave if slave is not None and slave.connection is connection else None
