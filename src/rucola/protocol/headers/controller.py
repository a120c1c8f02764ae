"""Headers of requests to controllers, and of their notices to brokers (RocketMQ 5.3.3; recorded in
``tests/golden/ha/controller``).

A field is None if the reference's object holds null: then it is not on the wire. ``invoke_time`` is the sender's wall
clock in milliseconds, and decides nothing.
"""

from __future__ import annotations

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long

CONTROLLER_ITSELF = -1
"""The broker id of an election that no broker asked for."""


@late_dataclass
class AlterSyncStateSetRequestHeader(CommandHeader):
    """Request 1001 (CONTROLLER_ALTER_SYNC_STATE_SET), from a master; its body is a ``SyncStateSet``."""

    broker_name: str
    master_broker_id: Long
    master_epoch: Int
    invoke_time: Long = 0


@late_dataclass
class AlterSyncStateSetResponseHeader(CommandHeader):
    """Response to 1001 (CONTROLLER_ALTER_SYNC_STATE_SET); 0 after a refusal."""

    new_sync_state_set_epoch: Int = 0


@late_dataclass
class ElectMasterRequestHeader(CommandHeader):
    """Request 1002 (CONTROLLER_ELECT_MASTER).

    Attributes:
        broker_id: who asks; ``CONTROLLER_ITSELF`` if no broker does.
        designate_elect: whether this broker, and no other, is to become the master.
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Long = CONTROLLER_ITSELF
    designate_elect: bool = False
    invoke_time: Long = 0


@late_dataclass
class MasterHeader(CommandHeader):
    """Response to 1004 (CONTROLLER_GET_REPLICA_INFO): the master, if there is one, and the epoch of the last election;
    0 before the first.
    """

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None


@late_dataclass
class ElectMasterResponseHeader(MasterHeader):
    """Response to 1002 (CONTROLLER_ELECT_MASTER), and request 1008 (NOTIFY_BROKER_ROLE_CHANGED) to brokers."""

    sync_state_set_epoch: Int | None = None


@late_dataclass
class BrokerSetHeader(CommandHeader):
    """Request 1012 (CONTROLLER_GET_NEXT_BROKER_ID), and the response to 1013 (CONTROLLER_APPLY_BROKER_ID)."""

    cluster_name: str
    broker_name: str


@late_dataclass
class GetNextBrokerIdResponseHeader(BrokerSetHeader):
    """Response to 1012 (CONTROLLER_GET_NEXT_BROKER_ID). The first id is 1."""

    next_broker_id: Long = 1


@late_dataclass
class ApplyBrokerIdRequestHeader(BrokerSetHeader):
    """Request 1013 (CONTROLLER_APPLY_BROKER_ID).

    Attributes:
        applied_broker_id: the id that the broker wants.
        register_check_code: ``address;milliseconds``, which the broker has written down before it asked: with the same
            code, it may ask again for the same id.
    """

    applied_broker_id: Long
    register_check_code: str


@late_dataclass
class RegisterBrokerToControllerRequestHeader(BrokerSetHeader):
    """Request 1003 (CONTROLLER_REGISTER_BROKER): a broker with an id tells its address."""

    broker_id: Long
    broker_address: str
    invoke_time: Long = 0


@late_dataclass
class RegisterBrokerToControllerResponseHeader(BrokerSetHeader):
    """Response to 1003 (CONTROLLER_REGISTER_BROKER); it names the master only while the master lives."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@late_dataclass
class GetReplicaInfoRequestHeader(CommandHeader):
    """Request 1004 (CONTROLLER_GET_REPLICA_INFO)."""

    broker_name: str


@late_dataclass
class GetMetaDataResponseHeader(CommandHeader):
    """Response to 1005 (CONTROLLER_GET_METADATA_INFO).

    Attributes:
        group: name of the group of controllers.
        controller_leader_id: the leader; None while there is none, like its address.
        is_leader: whether the controller that answers leads.
        peers: the controllers, each followed by a semicolon.
    """

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


@late_dataclass
class CleanControllerBrokerDataRequestHeader(CommandHeader):
    """Request 1011 (CLEAN_BROKER_DATA).

    Attributes:
        broker_controller_ids_to_clean: ids, separated by semicolons; None for the whole group.
        is_clean_living_broker: whether brokers that live may be removed, too.
    """

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Long = 0
