"""How a broker in controller mode gets its id and its role: decisions, without sockets, clocks and files.

The owner sends what ``due`` and ``heartbeats`` return, hands over the answers, and does what ``change`` says. One
question is under way at a time. A broker is fenced until it has taken a role, and while it changes its role: it stores
no message, and name servers do not know it.

Only an election with a larger epoch changes a role: answers and notices may come late, and in any order. A broker that
is cut off from the controllers keeps its role; the set of brokers in sync decides what it may confirm.

Source: RocketMQ 5.3.3, ``ReplicasManager``. Differences:

- Every heartbeat also goes to the leader, whether or not ``controllerAddr`` names it.
- A controller that has lost the group gets the broker's id again (1013); there, 1003 is refused for ever.
- A master with this broker's id and another address is not this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final, NamedTuple, Protocol

from rucola.broker.ha.roles import LogPosition, Mastership
from rucola.errors import FormatError
from rucola.protocol.bodies.controller import ElectMasterResponseBody, SyncStateSet
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers import CommandHeader
from rucola.protocol.headers.controller import (
    ApplyBrokerIdRequestHeader,
    BrokerSetHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    RegisterBrokerToControllerRequestHeader,
)
from rucola.protocol.headers.route import BrokerHeartbeatRequestHeader

AGAIN_S: Final = 1.0
"""Pause after a failure, on average."""
LOOK_S: Final = 5.0
"""``syncBrokerMetadataPeriod``: pause between two questions who is the master."""
LEADER_S: Final = 10.0
"""``syncControllerMetadataPeriod``: pause between two questions who leads the controllers."""


class ReplicasState(Enum):
    """How far a broker is; the value is the text for people."""

    INITIAL = "no controller leads"
    FIRST_TIME_SYNC_CONTROLLER_METADATA_DONE = "not registered at the controller"
    REGISTER_TO_CONTROLLER_DONE = "has no role yet"
    RUNNING = "runs"


class TemporaryIdentity(NamedTuple):
    """An id for which the broker applies, and the code that proves a repeated application to be its own."""

    broker_id: int
    check_code: str


class Identity(Protocol):
    """The broker's id, in files. Every method raises ``DiskError`` if the file cannot be written."""

    @property
    def broker_id(self) -> int | None:
        """The id that the controller gave; None if there is none yet."""
        ...

    @property
    def temporary(self) -> TemporaryIdentity | None:
        """The id for which the broker applies; None if it does not."""
        ...

    def apply(self, temporary: TemporaryIdentity) -> None:
        """Writes down that the broker applies for an id."""
        ...

    def keep(self, broker_id: int) -> None:
        """Writes down the id, and then forgets the temporary one."""
        ...

    def withdraw(self) -> None:
        """Forgets the temporary id."""
        ...


@dataclass(frozen=True, eq=False)
class ControllerRequest:
    """What is sent to a controller.

    Attributes:
        address: the controller.
        header: the fields; None if there are none.
    """

    address: str
    code: RequestCode
    header: CommandHeader | None = None

    def command(self) -> RemotingCommand:
        """The frame to send."""
        return RemotingCommand(self.code, ext_fields={} if self.header is None else self.header.to_ext_fields())


class ReplicaMember(NamedTuple):
    """The broker, as controllers know it.

    Attributes:
        address: its port for clients, ``host:port``.
        timeout_ms: time without a heartbeat after which it is dead (``controllerHeartBeatTimeoutMills``).
        priority: smaller ones are preferred among equals (``brokerElectionPriority``).
    """

    cluster_name: str
    broker_name: str
    address: str
    timeout_ms: int = 10_000
    priority: int = (1 << 31) - 1


class ReplicasManager:
    """One broker.

    Attributes:
        trouble: why the broker gets no further, for people; empty if nothing is wrong.
        leader: the address of the controller that leads; empty if it is not known.
        told_s: when the leader was asked the last time that it told the set of ``role``; ``-inf`` if it was not yet.

    Args:
        member: the broker.
        identity: its id.
        controllers: addresses of the controllers, at least one.
        wall_ms: returns the time, for the code of an application.
        random: returns a number from 0 up to 1, so that brokers do not apply for the same id again and again.
    """

    def __init__(
        self,
        member: ReplicaMember,
        identity: Identity,
        controllers: Sequence[str],
        wall_ms: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        self.trouble = self.leader = ""
        self.told_s = -inf
        self._member, self._identity, self._controllers = member, identity, tuple(controllers)
        self._wall_ms, self._random = wall_ms, random
        self._asked: ControllerRequest | None = None
        self._asked_s = self._again_s = 0.0
        self._look_s = self._leader_s = 0.0
        """When the next questions for the master and for the leader are due."""
        self._turn = 0
        """The controller that is asked next who leads."""
        self._check_code = ""
        """The code with which the broker applies for its own id again; it need not outlive the broker."""
        self._is_registered = self._has_beaten = self._lacks_master = self._is_unknown = False
        self._role: Mastership | None = None
        self._applied: Mastership | None = None
        self._takes = {
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._take_leader,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._take_next_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._take_id,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._take_registration,
            RequestCode.CONTROLLER_ELECT_MASTER: self._take_election,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._take_replica_info,
        }

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def broker_id(self) -> int | None:
        """The id that the controller gave; None if there is none yet."""
        return self._identity.broker_id

    @property
    def state(self) -> ReplicasState:
        """How far the broker is."""
        if self._applied is not None:
            return ReplicasState.RUNNING
        if self._is_registered:
            return ReplicasState.REGISTER_TO_CONTROLLER_DONE
        return ReplicasState.FIRST_TIME_SYNC_CONTROLLER_METADATA_DONE if self.leader else ReplicasState.INITIAL

    @property
    def role(self) -> Mastership | None:
        """The role that the broker has taken; None before the first. Its set is the newest that is known."""
        return self._applied

    @property
    def is_master(self) -> bool:
        """Whether the broker is the master, and stores messages."""
        return self._applied is not None and not self.is_fenced and self._applied.master_id == self.broker_id

    @property
    def is_fenced(self) -> bool:
        """Whether the broker must store no message: it has no role yet, or is about to change it."""
        return self._applied is None or self.change is not None

    @property
    def change(self) -> Mastership | None:
        """The role to take now; None if it is taken."""
        role, applied = self._role, self._applied
        return role if role is not None and (applied is None or role.epoch > applied.epoch) else None

    # -- what the owner tells ------------------------------------------------------------------------------------------

    def reconfigure(self, controllers: Sequence[str]) -> None:
        """Takes other addresses of controllers, at least one."""
        self._controllers, self._turn = tuple(controllers), 0
        self._leader_s = 0.0

    def look_soon(self) -> None:
        """Asks who the master is, and who is in sync with it, as soon as may be."""
        self._look_s = 0.0

    def applied(self, role: Mastership) -> None:
        """The broker has taken a role that ``change`` returned. A newer one may wait already."""
        newest = self._role
        self._applied = newest if newest is not None and newest.epoch == role.epoch else role

    def told(self, notice: RemotingCommand) -> None:
        """A controller tells a role (1008). Before the broker is registered, it does not know whose role that is.

        Raises:
            FormatError: the notice cannot be understood. Nothing has changed.
        """
        if self._is_registered:
            self._take_role(Mastership.read(notice.ext_fields, SyncStateSet.decode(notice.body)))

    def heartbeats(self, position: LogPosition) -> list[ControllerRequest]:
        """What is sent to all controllers, oneway; nothing before the broker is registered."""
        broker_id, member = self.broker_id, self._member
        if broker_id is None or not self._is_registered:
            return []
        header = BrokerHeartbeatRequestHeader(
            member.cluster_name,
            member.address,
            member.broker_name,
            broker_id,
            position.epoch,
            position.max_offset,
            position.confirm_offset,
            member.timeout_ms,
            member.priority,
        )
        self._has_beaten = self._has_beaten or bool(self.leader)
        addresses = dict.fromkeys((*self._controllers, *filter(None, (self.leader,))))
        return [ControllerRequest(address, RequestCode.BROKER_HEARTBEAT, header) for address in addresses]

    def due(self, now_s: float) -> ControllerRequest | None:
        """The question to ask now; None if one is under way, or none is due."""
        if self._asked is not None or now_s < self._again_s:
            return None
        self._asked, self._asked_s = self._question(now_s), now_s
        return self._asked

    def answered(self, request: ControllerRequest, answer: RemotingCommand, now_s: float) -> None:
        """A controller has answered.

        Raises:
            DiskError: the id cannot be written; it is asked for again.
        """
        if request is not self._asked:
            return
        self._asked = None
        self._again_s = now_s + AGAIN_S * (0.5 + self._random())
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._lose_leader(f"{request.address} does not lead")
            return
        try:
            if self._takes[request.code](answer, now_s):
                self._again_s, self.trouble = now_s, ""
        except FormatError as error:
            self._lose_leader(f"{request.address}: {error}")

    def failed(self, request: ControllerRequest, reason: str, now_s: float) -> None:
        """A controller has not answered."""
        if request is self._asked:
            self._asked = None
            self._again_s = now_s + AGAIN_S * (0.5 + self._random())
            self._lose_leader(f"{request.address}: {reason}")

    # -- questions -----------------------------------------------------------------------------------------------------

    def _question(self, now_s: float) -> ControllerRequest | None:
        if not self.leader or now_s >= self._leader_s:
            address = self.leader or self._controllers[self._turn % len(self._controllers)]
            return ControllerRequest(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        if not self._is_registered:
            return self._registration()
        if self._lacks_master or (self._role is None and self._has_beaten):
            return self._election()
        if self._applied is None or now_s < self._look_s:
            return None
        self._look_s = now_s + LOOK_S
        header = GetReplicaInfoRequestHeader(self._member.broker_name)
        return ControllerRequest(self.leader, RequestCode.CONTROLLER_GET_REPLICA_INFO, header)

    def _registration(self) -> ControllerRequest:
        """Asks for the next step on the way to a registration."""
        whose, broker_id = self._member[:2], self._identity.broker_id
        applied = self._identity.temporary
        if broker_id is not None and self._is_unknown:
            self._check_code = self._check_code or self._new_check_code()
            applied = TemporaryIdentity(broker_id, self._check_code)
        elif broker_id is not None:
            registered = RegisterBrokerToControllerRequestHeader(
                *whose, broker_id, self._member.address, self._wall_ms()
            )
            return ControllerRequest(self.leader, RequestCode.CONTROLLER_REGISTER_BROKER, registered)
        if applied is None:
            return ControllerRequest(self.leader, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, BrokerSetHeader(*whose))
        return ControllerRequest(
            self.leader, RequestCode.CONTROLLER_APPLY_BROKER_ID, ApplyBrokerIdRequestHeader(*whose, *applied)
        )

    def _election(self) -> ControllerRequest:
        broker_id = self._identity.broker_id
        assert broker_id is not None
        header = ElectMasterRequestHeader(*self._member[:2], broker_id, invoke_time=self._wall_ms())
        return ControllerRequest(self.leader, RequestCode.CONTROLLER_ELECT_MASTER, header)

    def _new_check_code(self) -> str:
        return f"{self._member.address};{self._wall_ms()}"

    # -- answers; each method returns whether the next question may follow at once -------------------------------------

    def _take_leader(self, answer: RemotingCommand, now_s: float) -> bool:
        header = GetMetaDataResponseHeader.from_ext_fields(answer.ext_fields)
        address = header.controller_leader_address or ""
        if answer.code != ResponseCode.SUCCESS or not address:
            self._lose_leader("no controller leads")
            return False
        self.leader, self._leader_s = address, now_s + LEADER_S
        return True

    def _take_next_id(self, answer: RemotingCommand, now_s: float) -> bool:
        if answer.code != ResponseCode.SUCCESS:
            return self._refused(answer)
        found = GetNextBrokerIdResponseHeader.from_ext_fields(answer.ext_fields).next_broker_id
        if found < 1:
            raise FormatError("controller's answer", 0, "an id of 1 or more", str(found))
        self._identity.apply(TemporaryIdentity(found, self._new_check_code()))
        return True

    def _take_id(self, answer: RemotingCommand, now_s: float) -> bool:
        temporary, is_given = self._identity.temporary, answer.code == ResponseCode.SUCCESS
        if self._identity.broker_id is not None:
            self._is_unknown, self._check_code = False, ""
        elif temporary is not None and is_given:
            self._identity.keep(temporary.broker_id)
        elif answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._identity.withdraw()
        return is_given or self._refused(answer)

    def _take_registration(self, answer: RemotingCommand, now_s: float) -> bool:
        if answer.code != ResponseCode.SUCCESS:
            self._is_unknown = answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            return self._refused(answer)
        role = Mastership.read(answer.ext_fields, SyncStateSet.decode(answer.body)) if answer.body else None
        self._is_registered, self._has_beaten = True, False
        return role is None or self._take_role(role)

    def _take_election(self, answer: RemotingCommand, now_s: float) -> bool:
        self._is_registered &= answer.code != ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST) or not answer.body:
            return self._refused(answer)
        members = ElectMasterResponseBody.decode(answer.body).sync_state_set
        return self._take_role(Mastership.read(answer.ext_fields, SyncStateSet(members)))

    def _take_replica_info(self, answer: RemotingCommand, now_s: float) -> bool:
        if answer.code != ResponseCode.SUCCESS:
            self._is_registered &= answer.code != ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            return self._refused(answer)
        role = Mastership.read(answer.ext_fields, SyncStateSet.decode(answer.body)) if answer.body else None
        self._lacks_master = role is None
        if role is None:
            return True
        is_ours = self._take_role(role)
        known = self._role
        if is_ours and known is not None and role.in_sync == known.in_sync:
            self.told_s = self._asked_s
        return is_ours

    def _take_role(self, role: Mastership | None) -> bool:
        """Takes note of a role; returns whether it is one for this broker."""
        known = self._role
        if role is None:
            return False
        if role.master_id == self.broker_id and role.master_address != self._member.address:
            self.trouble = f"the master {role.master_address} has the id of this broker, {role.master_id}"
            return False
        self._lacks_master = False
        if known is None or role.epoch > known.epoch:
            self._role, self.told_s = role, -inf
        elif role.epoch < known.epoch:
            self.trouble = f"the controller tells the epoch {role.epoch}, this broker has {known.epoch} already"
            return False
        elif role.in_sync.sync_state_set_epoch > known.in_sync.sync_state_set_epoch:
            self._role, self.told_s = known._replace(in_sync=role.in_sync), -inf
            if self._applied is not None and self._applied.epoch == role.epoch:
                self._applied = self._role
        return True

    def _refused(self, answer: RemotingCommand) -> bool:
        self.trouble = f"the controller answers {answer.code}: {answer.remark}"
        return False

    def _lose_leader(self, reason: str) -> None:
        self.leader, self.trouble = "", reason
        self._turn += 1
