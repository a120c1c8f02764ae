"""The decisions of a controller: a group, a request and who lives make an answer and perhaps another group (RocketMQ
5.3.3, ``ReplicasInfoManager``). Pure functions; nothing is stored here.

Codes, remarks and the order of checks are the reference's. Where it errs, this differs:

- An id that was given once is not given again. The reference counts brokers, so an id may come twice.
- ``cleanBrokerMetadata -l -b IDS`` removes these brokers, not the whole group; a removed master is no master any more.
- The first master is a broker of the group, and one that was designated lives.
- Brokers of two clusters with one name are not one group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rucola.controller.elect import Liveness, elect, epoch_after
from rucola.controller.group import FIRST_BROKER_ID, MEMBERS_MAX, NAME_CHARS_MAX, BrokerGroup, BrokerMember
from rucola.protocol.bodies import Body
from rucola.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from rucola.protocol.bodies.route import BrokerMemberGroup
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers import CommandHeader
from rucola.protocol.headers.controller import (
    CONTROLLER_ITSELF,
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    BrokerSetHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetNextBrokerIdResponseHeader,
    MasterHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)

_BROKER_ID_MAX = (1 << 53) - 1
"""Larger ids are not exact in all JSON readers."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer.

    Attributes:
        group: what the group becomes; None if it stays as it is.
        is_removal: whether the group is removed; ``group`` is None then.
    """

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: CommandHeader | None = None
    body: Body | None = None
    group: BrokerGroup | None = None
    is_removal: bool = False


def next_broker_id(group: BrokerGroup | None, asked: BrokerSetHeader) -> Decision:
    """Request 1012: the id for which a new broker may apply. Nothing is reserved."""
    found = FIRST_BROKER_ID if group is None else group.next_broker_id
    return Decision(header=GetNextBrokerIdResponseHeader(asked.cluster_name, asked.broker_name, found))


def apply_broker_id(group: BrokerGroup | None, asked: ApplyBrokerIdRequestHeader) -> Decision:
    """Request 1013: gives an id to a new broker; again to the same one."""
    header = BrokerSetHeader(asked.cluster_name, asked.broker_name)
    broker_id, code = asked.applied_broker_id, asked.register_check_code
    remark = _not_applicable(group, asked)
    if remark:
        return Decision(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, header)
    if group is not None and broker_id in group.members:
        return Decision(header=header)
    group = group or BrokerGroup(asked.cluster_name, asked.broker_name)
    return Decision(header=header, group=group.with_member(broker_id, BrokerMember(code.split(";")[0], code)))


def _not_applicable(group: BrokerGroup | None, asked: ApplyBrokerIdRequestHeader) -> str:
    """Why an id is not given; an empty text if it is."""
    name, broker_id = asked.broker_name, asked.applied_broker_id
    if not 0 < len(name) <= NAME_CHARS_MAX or len(asked.cluster_name) > NAME_CHARS_MAX:
        return f"A name of a broker-set has 1 to {NAME_CHARS_MAX} characters"
    if group is None:
        if broker_id == FIRST_BROKER_ID:
            return ""
        return f"Broker-set: {name} hasn't been registered in controller, but broker try to apply brokerId: {broker_id}"
    if group.cluster_name != asked.cluster_name:
        return _other_cluster(group)
    member = group.members.get(broker_id)
    if member is None:
        if len(group.members) >= MEMBERS_MAX:
            return f"Broker-set: {name} has {MEMBERS_MAX} brokers already"
        is_new = group.next_broker_id <= broker_id <= _BROKER_ID_MAX
        return "" if is_new else f"Fail to apply brokerId: {broker_id} in broker-set: {name}"
    same = member.register_check_code == asked.register_check_code
    return "" if same else f"Fail to apply brokerId: {broker_id} in broker-set: {name}"


def register_broker(
    group: BrokerGroup | None, asked: RegisterBrokerToControllerRequestHeader, live: Liveness
) -> Decision:
    """Request 1003: a broker with an id tells its address, and learns who the master is if the master lives."""
    header = RegisterBrokerToControllerResponseHeader(asked.cluster_name, asked.broker_name)
    need = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if group is None:
        return Decision(need, f"Broker-set: {asked.broker_name} hasn't been registered in controller", header)
    if group.cluster_name != asked.cluster_name:
        return Decision(need, _other_cluster(group), header)
    member = group.members.get(asked.broker_id)
    if member is None:
        remark = f"BrokerId: {asked.broker_id} hasn't been registered in broker-set: {asked.broker_name}"
        return Decision(need, remark, header)
    moved = None
    if member.address != asked.broker_address:
        moved = group.with_member(asked.broker_id, replace(member, address=asked.broker_address))
    if group.master_broker_id is not None and live.is_alive(group, group.master_broker_id):
        header.master_broker_id = group.master_broker_id
        header.master_address = (moved or group).master_address
        header.master_epoch = group.master_epoch
        header.sync_state_set_epoch = group.sync_state_set_epoch
    return Decision(header=header, body=_set_of(group), group=moved)


def replica_info(group: BrokerGroup | None) -> Decision:
    """Request 1004: the master and the set."""
    if group is None:
        code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        return Decision(code, "Broker metadata is not existed", MasterHeader())
    header = MasterHeader(group.master_broker_id, group.master_address, group.master_epoch)
    return Decision(header=header, body=_set_of(group))


def alter_sync_state_set(
    group: BrokerGroup | None, asked: AlterSyncStateSetRequestHeader, wanted: SyncStateSet, live: Liveness
) -> Decision:
    """Request 1001: the master says who is in sync with it."""
    header = AlterSyncStateSetResponseHeader()
    if group is None:
        unknown = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        return Decision(unknown, "Broker metadata is not existed", header)
    code, remark = _not_alterable(group, asked, wanted, live)
    if code != ResponseCode.SUCCESS:
        return Decision(code, remark, header)
    group = group.with_sync_state_set(wanted.sync_state_set)
    header.new_sync_state_set_epoch = group.sync_state_set_epoch
    return Decision(header=header, body=_set_of(group), group=group)


def _not_alterable(
    group: BrokerGroup, asked: AlterSyncStateSetRequestHeader, wanted: SyncStateSet, live: Liveness
) -> tuple[int, str]:
    """Code and remark of a refusal; SUCCESS if the set may become ``wanted``."""
    rejecting = "Rejecting alter syncStateSet request because the"
    if wanted.sync_state_set == group.sync_state_set:
        remark = "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"
        return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, remark
    master = group.master_broker_id
    if master is None or master != asked.master_broker_id:
        shown = "null" if master is None else master
        remark = f"{rejecting} current leader is:{{{shown}}}, not {{{asked.master_broker_id}}}"
        return ResponseCode.CONTROLLER_INVALID_MASTER, remark
    if asked.master_epoch != group.master_epoch:
        remark = f"{rejecting} current master epoch is:{{{group.master_epoch}}}, not {{{asked.master_epoch}}}"
        return ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, remark
    epoch = wanted.sync_state_set_epoch
    if epoch != group.sync_state_set_epoch:
        remark = f"{rejecting} current syncStateSet epoch is:{{{group.sync_state_set_epoch}}}, not {{{epoch}}}"
        return ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, remark
    for broker_id in sorted(wanted.sync_state_set):
        if broker_id not in group.members:
            return ResponseCode.CONTROLLER_INVALID_REPLICAS, f"{rejecting} replicas {{{broker_id}}} don't exist"
        if not live.is_alive(group, broker_id):
            return ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"{rejecting} replicas {{{broker_id}}} don't alive"
    if master not in wanted.sync_state_set:
        remark = f"{rejecting} newSyncStateSet don't contains origin leader {{{master}}}"
        return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, remark
    return ResponseCode.SUCCESS, ""


def elect_master(group: BrokerGroup | None, asked: ElectMasterRequestHeader, live: Liveness, unclean: bool) -> Decision:
    """Request 1002, and the controller's own elections: keeps the master, or finds one."""
    if group is None:
        code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        return Decision(code, "Broker hasn't been registered", ElectMasterResponseHeader())
    master = _elected(group, asked, live, unclean)
    if master is None:
        if asked.broker_id != CONTROLLER_ITSELF:
            code = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            return Decision(code, "Failed to elect a new master", ElectMasterResponseHeader())
        remark = "Old master has down and failed to elect a new broker master"
        code = ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
        return Decision(code, remark, ElectMasterResponseHeader(), group=group.without_master())
    if master == group.master_broker_id:
        remark = f"The old master {master} is still alive, not need to elect new master for broker {group.broker_name}"
        body = ElectMasterResponseBody(group.sync_state_set)
        return Decision(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, remark, master_header(group), body)
    group = group.with_master(master, epoch_after(group, live))
    members = BrokerMemberGroup(group.cluster_name, group.broker_name, addresses(group))
    body = ElectMasterResponseBody(group.sync_state_set, members)
    return Decision(header=master_header(group), body=body, group=group)


def _elected(group: BrokerGroup, asked: ElectMasterRequestHeader, live: Liveness, unclean: bool) -> int | None:
    if group.master_epoch == 0 and asked.broker_id in group.members:
        # Nobody has a log yet, so who asks first wins.
        is_there = not asked.designate_elect or live.info(group, asked.broker_id) is not None
        return asked.broker_id if is_there else None
    return elect(group, live, asked.broker_id if asked.designate_elect else None, unclean)


def clean_broker_data(
    group: BrokerGroup | None, asked: CleanControllerBrokerDataRequestHeader, live: Liveness
) -> Decision:
    """Request 1011: removes brokers of a group, or all of it."""
    name, refused = asked.broker_name, ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    text = (asked.broker_controller_ids_to_clean or "").strip()
    try:
        broker_ids = frozenset(int(one) for one in text.split(";")) if text else None
    except ValueError:
        remark = f"Please set the option <brokerControllerIdsToClean> according to the format: {text[:80]!r}"
        return Decision(refused, remark)
    if group is None:
        return Decision(refused, f"Broker {name} is not existed,clean broker data failure.")
    if not asked.is_clean_living_broker:
        if broker_ids is None and group.master_broker_id is not None:
            return Decision(refused, f"Broker {name} is still alive, clean up failure")
        for broker_id in sorted(broker_ids or ()):
            if broker_id in group.members and live.is_alive(group, broker_id):
                return Decision(refused, f"Broker [{name},  {broker_id}] is still alive, clean up failure")
    if broker_ids is None or not group.members.keys() - broker_ids:
        return Decision(is_removal=True)
    if not group.members.keys() & broker_ids:
        return Decision()
    return Decision(group=group.without_members(broker_ids))


def sync_state_data(groups: Iterable[BrokerGroup], live: Liveness) -> Decision:
    """Request 1006: groups in detail."""
    return Decision(body=BrokerReplicasInfo({group.broker_name: _details(group, live) for group in groups}))


def _details(group: BrokerGroup, live: Liveness) -> ReplicasInfo:
    inside: list[ReplicaIdentity] = []
    outside: list[ReplicaIdentity] = []
    for broker_id, address in sorted(addresses(group).items()):
        alive = live.info(group, broker_id) is not None
        one = ReplicaIdentity(group.broker_name, broker_id, address, alive)
        (inside if broker_id in group.sync_state_set else outside).append(one)
    return ReplicasInfo(
        group.master_broker_id,
        group.master_address,
        group.master_epoch,
        group.sync_state_set_epoch,
        inside,
        outside,
    )


def master_header(group: BrokerGroup) -> ElectMasterResponseHeader:
    """The master of a group, as brokers are told of it."""
    return ElectMasterResponseHeader(
        group.master_broker_id, group.master_address, group.master_epoch, group.sync_state_set_epoch
    )


def addresses(group: BrokerGroup) -> dict[int, str]:
    """The addresses of the members, by id."""
    return {broker_id: member.address for broker_id, member in group.members.items()}


def _set_of(group: BrokerGroup) -> SyncStateSet:
    return SyncStateSet(group.sync_state_set, group.sync_state_set_epoch)


def _other_cluster(group: BrokerGroup) -> str:
    return f"Broker-set: {group.broker_name} belongs to the cluster {group.cluster_name}"
