"""Bodies of requests to controllers and of their responses (RocketMQ 5.3.3; recorded in
``tests/golden/ha/controller``).
"""

from __future__ import annotations

from dataclasses import field

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.bodies.body import Body
from rucola.protocol.bodies.route import BrokerMemberGroup


@late_dataclass
class SyncStateSet(Body):
    """The ids of the brokers that are in sync with their master, and how often this set has changed."""

    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0


@late_dataclass
class ElectMasterResponseBody(Body):
    """Response to 1002 (CONTROLLER_ELECT_MASTER). The members are there only if the master is a new one."""

    sync_state_set: frozenset[int] = frozenset()
    broker_member_group: BrokerMemberGroup | None = None


@late_dataclass
class ReplicaIdentity(Body):
    """A broker of a group."""

    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool = False


@late_dataclass
class ReplicasInfo(Body):
    """A group: its master, if there is one, and its brokers."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)


@late_dataclass
class BrokerReplicasInfo(Body):
    """Response to 1006 (CONTROLLER_GET_SYNC_STATE_DATA): groups by name, without those that the controller does not
    know.
    """

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


@late_dataclass
class EpochRange(Body):
    """A stretch of a log: physical offsets from ``start_offset`` on were written in this epoch. The last entry of a
    broker ends at 2**63 - 1.
    """

    epoch: int
    start_offset: int
    end_offset: int = (1 << 63) - 1


@late_dataclass
class EpochEntryCache(Body):
    """Response of a broker to 1007 (GET_BROKER_EPOCH_CACHE): the epochs of its log. Its ``broker_id`` is that of the
    name server, 0 for a master.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[EpochRange] = field(default_factory=list)
    max_offset: int = 0
