"""The groups in etcd: read when a term begins, changed by transactions that hold only in this term.

A change is decided on the group that this controller knows. It is written on condition that the leader's key is still
the one of the term *and* the group's key has the revision that was known. So a leader without its lease changes
nothing, and neither does one that missed a change. What a write without answer did is unknown: the group is read again
before its next decision.

Groups are independent of each other: each has a lock of its own. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rucola.controller.etcd import ETCD_ERRORS, Compare, Delete, Etcd, KeyValue, Put
from rucola.controller.group import BrokerGroup
from rucola.controller.leadership import Leadership, Term
from rucola.controller.replicas_info import Decision
from rucola.errors import BrokerError, FormatError
from rucola.protocol.codes import ResponseCode
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
NOT_LEADER = "The controller is not in leader state"
_TRIES = 3
"""How often a decision is made anew because somebody else has changed the group."""
_GROUPS_A_TURN = 64
"""How many groups are read in one turn of the event loop."""
Decide = Callable[[BrokerGroup | None], Decision]


class _Known(NamedTuple):
    group: BrokerGroup
    revision: int


class GroupStore:
    """The groups.

    Args:
        etcd: carries reads and writes.
        prefix: where the keys are, without a slash at the end.
        leadership: whether this controller leads.
        groups_max: number of groups that there may be.
        elected: called with each group that this controller has given a new master, or has found with one.
    """

    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        leadership: Leadership,
        groups_max: int,
        elected: Callable[[BrokerGroup], None],
    ) -> None:
        self._etcd, self._prefix, self._leadership = etcd, f"{prefix}/groups/", leadership
        self._groups_max, self._elected = groups_max, elected
        self._known: dict[str, _Known] = {}
        self._damaged: dict[str, str] = {}
        """What is wrong with keys that hold no group, by the name of the group."""
        self._doubtful: set[str] = set()
        """Groups that must be read again."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}
        """How many changes use or await each lock."""

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[BrokerGroup]:
        """All groups that can be read."""
        return iter([known.group for known in self._known.values()])

    @property
    def damaged(self) -> int:
        """Number of keys that hold no group."""
        return len(self._damaged)

    async def load(self, _term: Term) -> None:
        """Reads all groups. Raises the errors of etcd."""
        found = await self._etcd.range(self._prefix)
        self._known.clear()
        self._damaged.clear()
        self._doubtful.clear()
        for number, each in enumerate(found):
            self._adopt(each.key.removeprefix(self._prefix), each)
            if number % _GROUPS_A_TURN == 0:
                await asyncio.sleep(0)

    def get(self, name: str) -> BrokerGroup | None:
        """A group as this controller knows it; None if there is none.

        Raises:
            BrokerError: this controller does not lead, or what etcd has is no group.
        """
        self._term()
        self._check(name)
        known = self._known.get(name)
        return None if known is None else known.group

    async def change(self, name: str, decide: Decide) -> Decision:
        """Decides about a group, and returns when the outcome is in etcd.

        Args:
            name: the group.
            decide: makes the decision; it is called again if the group turns out to be another one.

        Raises:
            BrokerError: this controller does not lead, etcd did not answer or the group cannot be changed.
        """
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                return await self._change(name, decide)
        except ETCD_ERRORS as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the group could not be written: {error}") from error
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]

    async def _change(self, name: str, decide: Decide) -> Decision:
        for _ in range(_TRIES):
            if name in self._doubtful:
                await self._read(name)
            term = self._term()
            self._check(name)
            known = self._known.get(name)
            decision = decide(None if known is None else known.group)
            if decision.group is None and not decision.is_removal:
                return decision
            if known is None and len(self._known) >= self._groups_max:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, f"there are {self._groups_max} groups already (groupsMax)")
            if await self._write(term, name, known, decision.group):
                return decision
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"somebody else changes the group {name} in etcd")

    async def _write(self, term: Term, name: str, known: _Known | None, group: BrokerGroup | None) -> bool:
        """Writes a group, or removes it; returns False if somebody else has changed it, which is known then.

        Raises:
            BrokerError: another controller leads.
        """
        key, leader_key = self._prefix + name, self._leadership.leader_key
        conditions = (
            Compare(leader_key, "CREATE", term.revision),
            Compare(key, "MOD", 0 if known is None else known.revision),
        )
        write = Delete(key) if group is None else Put(key, group.encode())
        # Until the answer is here, also if this task is cancelled.
        self._doubtful.add(name)
        result = await self._etcd.txn(conditions, (write,), (leader_key, key))
        if result.succeeded:
            self._know(name, None if group is None else _Known(group, result.revision))
            self._doubtful.discard(name)
            return True
        leader, found = result.found
        if leader is None or leader.create_revision != term.revision:
            self._leadership.lost(term)
            raise BrokerError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        event(logger, logging.WARNING, "group was changed by somebody else", group=name)
        self._adopt(name, found)
        self._doubtful.discard(name)
        return False

    async def _read(self, name: str) -> None:
        """Reads a group whose state is unknown. Raises the errors of etcd."""
        self._adopt(name, await self._etcd.get(self._prefix + name))
        self._doubtful.discard(name)

    def _adopt(self, name: str, found: KeyValue | None) -> None:
        """Takes what etcd has for what is known."""
        self._damaged.pop(name, None)
        try:
            self._know(name, None if found is None else _Known(_decoded(name, found), found.mod_revision))
        except FormatError as error:
            self._known.pop(name, None)
            self._damaged[name] = str(error)
            key = self._prefix + name
            event(logger, logging.ERROR, "etcd has something that is not a group", key=key, error=error)

    def _know(self, name: str, known: _Known | None) -> None:
        before = self._known.pop(name, None)
        if known is None:
            return
        self._known[name] = known
        if before is not None and before.group.master_epoch < known.group.master_epoch:
            self._elected(known.group)

    def _check(self, name: str) -> None:
        if name in self._damaged:
            remark = f"etcd's key {self._prefix}{name} is not a group: {self._damaged[name]}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    def _term(self) -> Term:
        term = self._leadership.term
        if term is None:
            raise BrokerError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        return term


def _decoded(name: str, found: KeyValue) -> BrokerGroup:
    group = BrokerGroup.decode(found.value)
    if group.broker_name != name:
        raise FormatError("controller's group", 0, f"the name {name}", group.broker_name)
    return group
