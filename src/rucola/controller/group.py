"""What controllers keep of a group of brokers, and the JSON that etcd holds of it.

A ``BrokerGroup`` is a value: each change makes another one (RocketMQ 5.3.3, ``BrokerReplicaInfo`` and
``SyncStateInfo``). Its epochs only grow: ``master_epoch`` with each election, also with one that finds no master;
``sync_state_set_epoch`` with each change of the set.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from rucola.errors import FormatError
from rucola.protocol.bodies import Body

FIRST_BROKER_ID = 1
NAME_CHARS_MAX = 255
MEMBERS_MAX = 64
_LAYOUT = 1


@dataclass(frozen=True, slots=True)
class BrokerMember(Body):
    """A broker of a group.

    Attributes:
        address: where it serves clients, ``host:port``.
        register_check_code: the code with which it applied for its id.
    """

    address: str
    register_check_code: str


@dataclass(frozen=True, slots=True)
class BrokerGroup(Body):
    """The brokers with one name.

    Attributes:
        members: the brokers by id.
        next_broker_id: the id of the next broker; larger than all ids that were ever given.
        master_broker_id: the master; None while there is none.
        master_epoch: the number of the last election; 0 before the first.
        sync_state_set: the members that have all of the master's log; kept while there is no master.
        sync_state_set_epoch: counts the changes of this set.
        layout: version of this structure.
    """

    cluster_name: str
    broker_name: str
    members: dict[int, BrokerMember] = field(default_factory=dict)
    next_broker_id: int = FIRST_BROKER_ID
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0
    layout: int = _LAYOUT

    @classmethod
    def decode(cls, source: bytes | bytearray | memoryview) -> Self:
        """Reads a group.

        Raises:
            FormatError: the bytes are no group, or its parts contradict each other.
        """
        group = super(BrokerGroup, cls).decode(source)  # the plain super() fails in classes with slots
        group._check()
        return group

    @property
    def master_address(self) -> str | None:
        """The address of the master; None while there is none."""
        return None if self.master_broker_id is None else self.members[self.master_broker_id].address

    def with_member(self, broker_id: int, member: BrokerMember) -> BrokerGroup:
        """The group with one more broker, or with another address of a broker."""
        members = {**self.members, broker_id: member}
        return replace(self, members=members, next_broker_id=max(self.next_broker_id, broker_id + 1))

    def with_master(self, broker_id: int, epoch: int) -> BrokerGroup:
        """The group after an election: the new master is the only one in sync."""
        return replace(
            self,
            master_broker_id=broker_id,
            master_epoch=epoch,
            sync_state_set=frozenset((broker_id,)),
            sync_state_set_epoch=self.sync_state_set_epoch + 1,
        )

    def without_master(self) -> BrokerGroup:
        """The group after an election that found no master: who was in sync may become the master later."""
        return replace(self, master_broker_id=None, master_epoch=self.master_epoch + 1)

    def with_sync_state_set(self, broker_ids: frozenset[int]) -> BrokerGroup:
        """The group with another set."""
        return replace(self, sync_state_set=broker_ids, sync_state_set_epoch=self.sync_state_set_epoch + 1)

    def without_members(self, broker_ids: frozenset[int]) -> BrokerGroup:
        """The group without these brokers. A master that is removed leaves the group without one."""
        group = replace(self, members={one: self.members[one] for one in self.members if one not in broker_ids})
        if group.sync_state_set & broker_ids:
            group = group.with_sync_state_set(group.sync_state_set - broker_ids)
        return group.without_master() if group.master_broker_id in broker_ids else group

    def _check(self) -> None:
        what = f"controller's group {self.broker_name}"
        if self.layout != _LAYOUT:
            raise FormatError(what, 0, f"layout {_LAYOUT}", str(self.layout))
        if not 0 <= self.master_epoch < 1 << 31 or not 0 <= self.sync_state_set_epoch < 1 << 31:
            raise FormatError(what, 0, "epochs of 0 or more", f"{self.master_epoch}, {self.sync_state_set_epoch}")
        unknown = self.sync_state_set - self.members.keys()
        if self.master_broker_id is not None:
            unknown |= {self.master_broker_id} - self.members.keys()
        if unknown:
            raise FormatError(what, 0, f"brokers of the group ({sorted(self.members)})", str(sorted(unknown)))
        if any(broker_id >= self.next_broker_id or broker_id < FIRST_BROKER_ID for broker_id in self.members):
            raise FormatError(what, 0, f"ids from 1 and below {self.next_broker_id}", str(sorted(self.members)))
