"""Speaks with the controllers for a broker: sockets, tasks and times around ``replicas_manager`` and ``in_sync_set``.

Heartbeats have connections of their own: when one ends, the controller holds the broker for dead. A change of the set
without an answer ends the connection on which it was sent, so that no controller finds it there later. Event loop only.

Source: RocketMQ 5.3.3, ``ReplicasManager``, ``BrokerOuterAPI``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from rucola.broker.ha.in_sync_set import InSyncSet
from rucola.broker.ha.replicas_manager import ControllerRequest, ReplicasManager
from rucola.broker.ha.roles import LogPosition, Mastership
from rucola.errors import FormatError, RemotingError, RucolaError
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.controller import AlterSyncStateSetRequestHeader, AlterSyncStateSetResponseHeader
from rucola.remoting.client import RemotingClient
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor

logger = logging.getLogger(__name__)
TIMEOUT_MS: Final = 3_000
"""Time limit of a question."""
PROPOSE_S: Final = 1.0
"""Pause between two looks at the set. RocketMQ looks every 5 s (``checkSyncStateSetPeriod``), and at each report."""
_TICK_S = 0.1
_DEFINITE = frozenset(
    (
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    )
)
"""Answers that say that a change was not made. After all others, such as a time-out within the controller, it may be
made yet.
"""


class ControlledBroker(Protocol):
    """The broker for which a session speaks."""

    @property
    def in_sync(self) -> InSyncSet | None:
        """The set of brokers in sync; None unless the broker is the master."""
        ...

    def position(self) -> LogPosition:
        """Where the log stands."""
        ...

    async def take_role(self, role: Mastership) -> None:
        """Takes a role, and returns when it is taken. If it fails, it is tried again, perhaps with a newer role."""
        ...


class SessionOptions(NamedTuple):
    """Names and times of a session.

    Attributes:
        broker_name: name of the broker.
        heartbeat_s: pause between two heartbeats (``brokerHeartbeatInterval``).
    """

    broker_name: str
    heartbeat_s: float = 1.0


class ControllerSession:
    """The session of one broker. Call ``start`` once, then ``stop`` once.

    Args:
        manager: decides.
        broker: the broker.
        new_client: returns a client with the account and TLS of the broker.
        options: names and times.
        wall_ms: returns the time for requests.
        supervisor: supervises the periodic work.
    """

    def __init__(
        self,
        manager: ReplicasManager,
        broker: ControlledBroker,
        new_client: Callable[[], RemotingClient],
        options: SessionOptions,
        wall_ms: Callable[[], int],
        supervisor: Supervisor,
    ) -> None:
        self._manager, self._broker, self._options = manager, broker, options
        self._new_client, self._wall_ms, self._supervisor = new_client, wall_ms, supervisor
        self._beats, self._questions, self._proposals = new_client(), new_client(), new_client()
        self._works: list[PeriodicWork] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._role_due = asyncio.Event()
        self._said = ""

    def start(self) -> None:
        """Begins to speak with the controllers."""
        loop = asyncio.get_running_loop()
        every, heartbeat_s = self._supervisor.every, self._options.heartbeat_s
        self._works = [
            every("heartbeats to controllers", lambda: heartbeat_s, self._beat, loop, first_s=0.0),
            every("look at the brokers in sync", lambda: PROPOSE_S, self._propose, loop),
        ]
        self._tasks = [loop.create_task(work) for work in (self._ask(), self._take_roles())]

    async def stop(self) -> None:
        """Says nothing more. The end of the connections tells the controllers that the broker is gone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for work in self._works:
            await work.stop()
        for client in (self._beats, self._questions, self._proposals):
            await client.close()

    def told(self, notice: RemotingCommand) -> None:
        """A controller tells a role (1008).

        Raises:
            FormatError: the notice cannot be understood. Nothing has changed.
        """
        self._manager.told(notice)
        self._noted()

    # -- questions -----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        for heartbeat in self._manager.heartbeats(self._broker.position()):
            self._beats.invoke_oneway(heartbeat.address, heartbeat.command())

    async def _ask(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            request = self._manager.due(now())
            if request is None:
                await asyncio.sleep(_TICK_S)
                continue
            try:
                await self._ask_once(request, now)
            except Exception as error:  # noqa: BLE001 - a defect must not end the session
                self._manager.failed(request, str(error), now())
                self._supervisor.failed("questions to controllers", error)

    async def _ask_once(self, request: ControllerRequest, now: Callable[[], float]) -> None:
        try:
            answer = await self._questions.invoke(request.address, request.command(), TIMEOUT_MS)
        except RemotingError as error:
            self._manager.failed(request, str(error), now())
        else:
            self._manager.answered(request, answer, now())
        self._noted()

    def _noted(self) -> None:
        """Passes on what was learnt."""
        manager = self._manager
        if manager.trouble != self._said:
            self._said = manager.trouble
            if self._said:
                event(logger, logging.WARNING, "controller does not help, asked again", reason=self._said)
        if manager.change is not None:
            self._role_due.set()
        elif manager.role is not None and self._broker.in_sync is not None:
            self._broker.in_sync.told(manager.role.in_sync, manager.told_s)

    async def _take_roles(self) -> None:
        """Has the broker take its roles, one after the other."""
        manager = self._manager
        while True:
            await self._role_due.wait()
            self._role_due.clear()
            while (role := manager.change) is not None:
                try:
                    await self._broker.take_role(role)
                except Exception as error:  # noqa: BLE001 - the broker stays fenced, and tries again
                    self._supervisor.failed("change of role", error)
                    await asyncio.sleep(PROPOSE_S)
                    continue
                manager.applied(role)
                self._supervisor.succeeded("change of role")
                event(
                    logger,
                    logging.INFO,
                    "role taken",
                    role="master" if role.master_id == manager.broker_id else "slave",
                    master=role.master_address,
                    epoch=role.epoch,
                    id=manager.broker_id,
                )

    # -- the set -------------------------------------------------------------------------------------------------------

    async def _propose(self) -> None:
        """Proposes another set to the controller, if it should be another."""
        manager, in_sync, role = self._manager, self._broker.in_sync, self._manager.role
        if in_sync is None or role is None or not manager.is_master or not manager.leader:
            return
        now = asyncio.get_running_loop().time
        proposal = in_sync.proposal(self._broker.position().max_offset, now())
        if proposal is None:
            return
        answer: RemotingCommand | None = None
        try:
            with suppress(RucolaError):
                answer = await self._proposals.invoke(manager.leader, self._alter(role, proposal), TIMEOUT_MS)
        finally:
            is_unknown = not self._settled(in_sync, proposal, answer)
            if is_unknown:
                in_sync.unanswered(proposal, now())
        if is_unknown:
            await self._hang_up()

    def _settled(self, in_sync: InSyncSet, proposal: SyncStateSet, answer: RemotingCommand | None) -> bool:
        """Tells the set what came of a proposal; returns False if nobody knows."""
        if answer is None:
            return False
        if answer.code == ResponseCode.SUCCESS:
            try:
                header = AlterSyncStateSetResponseHeader.from_ext_fields(answer.ext_fields)
            except FormatError:
                return False
            if header.new_sync_state_set_epoch <= proposal.sync_state_set_epoch:
                return False
            in_sync.accepted(proposal, header.new_sync_state_set_epoch)
            event(
                logger,
                logging.INFO,
                "set of brokers in sync changed",
                ids=",".join(map(str, sorted(proposal.sync_state_set))),
                epoch=header.new_sync_state_set_epoch,
            )
            return True
        if answer.code not in _DEFINITE:
            return False
        if in_sync.refused(proposal, answer.code):
            self._manager.look_soon()
        return True

    def _alter(self, role: Mastership, proposal: SyncStateSet) -> RemotingCommand:
        header = AlterSyncStateSetRequestHeader(self._options.broker_name, role.master_id, role.epoch, self._wall_ms())
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        return RemotingCommand(code, ext_fields=header.to_ext_fields(), body=proposal.encode())

    async def _hang_up(self) -> None:
        """Ends the connections on which proposals were sent."""
        client, self._proposals = self._proposals, self._new_client()
        await client.close()
