"""Requests to the controller (RocketMQ 5.3.3, ``ControllerRequestProcessor``).

Heartbeats (904) and the question who leads (1005) are answered by every controller, all others only by the leader: the
others answer 2007. Every change is in etcd before it is answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from rucola.controller import replicas_info as decide
from rucola.controller.config import ControllerConfig
from rucola.controller.group import BrokerGroup
from rucola.controller.group_store import GroupStore
from rucola.controller.heartbeat import BrokerHeartbeatManager
from rucola.controller.leadership import Leadership
from rucola.controller.replicas_info import Decision
from rucola.errors import BrokerError, FormatError
from rucola.protocol import fastjson
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers import controller as headers
from rucola.protocol.headers.route import BrokerHeartbeatRequestHeader
from rucola.remoting.channel import Channel
from rucola.remoting.processors import ProcessorTable

READING = frozenset(
    {
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
    }
)
"""Requests that everybody may send. All others, including unknown codes, are for brokers and administrators."""
CHANGING = frozenset(
    {
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.CLEAN_BROKER_DATA,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.GET_CONTROLLER_CONFIG,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
    }
)
"""All other requests that a controller serves."""
WAIT_S = 5.0
"""Longest time for a change, as in the reference."""
_OUTCOMES = {
    ResponseCode.SUCCESS: "new_master_elected",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "keep_current_master",
    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE: "no_master_elected",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "no_master_elected",
}
"""What the reference's metric calls the outcome of an election."""


class ControllerProcessor:
    """The processors, and the controller's own elections.

    Args:
        config: the options.
        leadership: whether this controller leads.
        groups: the groups.
        brokers: which brokers live.

    Attributes:
        elections: number of elections since the start, by outcome.
    """

    def __init__(
        self,
        config: ControllerConfig,
        leadership: Leadership,
        groups: GroupStore,
        brokers: BrokerHeartbeatManager,
    ) -> None:
        self._config, self._leadership, self._groups, self._brokers = config, leadership, groups, brokers
        self.elections: Counter[str] = Counter(dict.fromkeys(_OUTCOMES.values(), 0))

    def register_to(self, table: ProcessorTable) -> None:
        """Registers all processors in ``table``."""
        table.register(RequestCode.BROKER_HEARTBEAT, self.broker_heartbeat)
        table.register(RequestCode.CONTROLLER_GET_METADATA_INFO, self.metadata)
        table.register(RequestCode.CONTROLLER_GET_REPLICA_INFO, self.replica_info)
        table.register(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, self.sync_state_data)
        table.register(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self.next_broker_id)
        table.register(RequestCode.CONTROLLER_APPLY_BROKER_ID, self.apply_broker_id)
        table.register(RequestCode.CONTROLLER_REGISTER_BROKER, self.register_broker)
        table.register(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, self.alter_sync_state_set)
        table.register(RequestCode.CONTROLLER_ELECT_MASTER, self.elect_master)
        table.register(RequestCode.CLEAN_BROKER_DATA, self.clean_broker_data)

    def broker_heartbeat(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 904: a sign of life, usually oneway."""
        self._brokers.heartbeat(BrokerHeartbeatRequestHeader.from_ext_fields(command.ext_fields), channel)
        return command.answer(ResponseCode.SUCCESS, "Heart beat success")

    def metadata(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 1005: who leads, and which controllers there are."""
        leadership = self._leadership
        leader = leadership.leader
        header = headers.GetMetaDataResponseHeader(
            self._config.etcd_prefix,
            None if leader is None else leader.name,
            None if leader is None else leader.address,
            leadership.term is not None,
            "".join(f"{peer.address};" for peer in leadership.peers),
        )
        return command.answer(ResponseCode.SUCCESS, ext_fields=header.to_ext_fields())

    def replica_info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 1004: the master of a group."""
        asked = headers.GetReplicaInfoRequestHeader.from_ext_fields(command.ext_fields)
        return _answer(command, decide.replica_info(self._groups.get(asked.broker_name)))

    def next_broker_id(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 1012: an id for a new broker."""
        asked = headers.BrokerSetHeader.from_ext_fields(command.ext_fields)
        return _answer(command, decide.next_broker_id(self._groups.get(asked.broker_name), asked))

    def sync_state_data(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 1006: groups in detail."""
        names = fastjson.loads(command.body) if command.body else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FormatError("body of request 1006", 0, "names of broker-sets, as a JSON list", repr(names)[:80])
        found = (self._groups.get(name) for name in dict.fromkeys(names))
        return _answer(command, decide.sync_state_data([group for group in found if group is not None], self._brokers))

    def apply_broker_id(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 1013: a new broker takes an id."""
        asked = headers.ApplyBrokerIdRequestHeader.from_ext_fields(command.ext_fields)
        return self._changed(command, asked.broker_name, lambda group: decide.apply_broker_id(group, asked))

    def register_broker(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 1003: a broker with an id tells its address."""
        asked = headers.RegisterBrokerToControllerRequestHeader.from_ext_fields(command.ext_fields)

        def decided(group: BrokerGroup | None) -> Decision:
            return decide.register_broker(group, asked, self._brokers)

        return self._changed(command, asked.broker_name, decided)

    def alter_sync_state_set(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 1001: a master says who is in sync."""
        asked = headers.AlterSyncStateSetRequestHeader.from_ext_fields(command.ext_fields)
        wanted = SyncStateSet.decode(command.body)

        def decided(group: BrokerGroup | None) -> Decision:
            return decide.alter_sync_state_set(group, asked, wanted, self._brokers)

        return self._changed(command, asked.broker_name, decided)

    def clean_broker_data(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 1011: an administrator removes brokers or a group."""
        asked = headers.CleanControllerBrokerDataRequestHeader.from_ext_fields(command.ext_fields)

        def decided(group: BrokerGroup | None) -> Decision:
            return decide.clean_broker_data(group, asked, self._brokers)

        return self._changed(command, asked.broker_name, decided)

    async def elect_master(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 1002: a broker without a master, or an administrator, asks for an election."""
        asked = headers.ElectMasterRequestHeader.from_ext_fields(command.ext_fields)
        return _answer(command, await self.elect(asked))

    async def elect(self, asked: headers.ElectMasterRequestHeader) -> Decision:
        """Elects a master. Raises the errors of ``GroupStore.change``."""

        def decided(group: BrokerGroup | None) -> Decision:
            return decide.elect_master(group, asked, self._brokers, self._config.enable_elect_unclean_master)

        decision = await self._change(asked.broker_name, decided)
        if decision.code in _OUTCOMES:
            self.elections[_OUTCOMES[ResponseCode(decision.code)]] += 1
        return decision

    async def _changed(
        self, command: RemotingCommand, name: str, decided: Callable[[BrokerGroup | None], Decision]
    ) -> RemotingCommand:
        return _answer(command, await self._change(name, decided))

    async def _change(self, name: str, decided: Callable[[BrokerGroup | None], Decision]) -> Decision:
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._groups.change(name, decided)
        except TimeoutError:
            remark = f"etcd has not confirmed the change within {WAIT_S:g} s"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark) from None


def _answer(command: RemotingCommand, decision: Decision) -> RemotingCommand:
    header, body = decision.header, decision.body
    return command.answer(
        decision.code,
        decision.remark or "",
        ext_fields=header.to_ext_fields() if header is not None else None,
        body=body.encode() if body is not None else b"",
    )
