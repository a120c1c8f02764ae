"""The gRPC door: a server with the services of ``apache.rocketmq.v2``, in front of one or many brokers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from rucola.common.hosts import join_address
from rucola.common.lite_door_config import LiteDoorConfig
from rucola.grpc.health import HEALTH_V1, HealthService
from rucola.grpc.methods import Method
from rucola.grpc.reflection import ReflectionService
from rucola.grpc.server import GrpcServer
from rucola.grpc.server_options import GrpcServerOptions
from rucola.protocol.command import RemotingCommand
from rucola.proxy.access import DoorAccess
from rucola.proxy.acknowledge import Acknowledgements
from rucola.proxy.brokers import Brokers
from rucola.proxy.commands import ServerCommands
from rucola.proxy.figures import DoorFigures
from rucola.proxy.lite_subscriptions import DoorSubscriptions
from rucola.proxy.outcomes import Outcomes
from rucola.proxy.presence import Presence
from rucola.proxy.recall import Recalls
from rucola.proxy.receive import Receives
from rucola.proxy.renewals import Renewals
from rucola.proxy.route import Routes
from rucola.proxy.rpc import unary
from rucola.proxy.schema import V2
from rucola.proxy.send import Sends
from rucola.proxy.sending import BODY_BYTES_MAX
from rucola.proxy.sessions import ClientSession, Sessions
from rucola.proxy.telemetry import Telemetry
from rucola.proxy.transactions import Transactions
from rucola.remoting.fairness.steps import in_turns
from rucola.runtime.clock import Clock
from rucola.runtime.supervision import Pause, PeriodicWork, Supervisor

if TYPE_CHECKING:
    from google.protobuf.message import Message

NOT_SERVED: Final = frozenset({"PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"})
"""Methods of the protocol that no client calls."""
SERVED: Final = frozenset(rpc.name for rpc in V2.rpcs) - NOT_SERVED
_LOOK_S: Final = 1.0
_DRAIN_S: Final = 5.0
Asked = Callable[[ClientSession, str, RemotingCommand], "Awaitable[RemotingCommand | None] | RemotingCommand | None"]


@dataclass(frozen=True, slots=True)
class DoorConfig:
    """What a door is told.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 chooses a free one.
        advertised: the address under which clients reach it; empty for the one that each client has used.
        reached_at: the host under which clients reach it if their requests do not say; empty for ``host``.
        body_bytes_max: largest body of a message.
        lite: limits for lite topics.
        options: limits and TLS of the server.
    """

    host: str
    port: int
    advertised: str = ""
    reached_at: str = ""
    body_bytes_max: int = BODY_BYTES_MAX
    lite: LiteDoorConfig = field(default_factory=LiteDoorConfig)
    options: GrpcServerOptions = field(default_factory=GrpcServerOptions)


class GrpcDoor:
    """The door. Each object is started and stopped once, on an event loop.

    Args:
        config: address and limits.
        make_brokers: makes the brokers behind it; gets what handles their requests to clients.
        clock: the clock of the brokers.
        supervisor: supervises the periodic work.
        access: says who may do what; None without accounts.
    """

    def __init__(
        self,
        config: DoorConfig,
        make_brokers: Callable[[Asked], Brokers],
        clock: Clock,
        supervisor: Supervisor,
        access: DoorAccess | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._access = access = access or DoorAccess()
        now_ms, monotonic = clock.wall_ms, clock.monotonic
        brokers = make_brokers(self._asked)
        self.sessions = Sessions(access, monotonic, self._ended)
        self._lite = lite = DoorSubscriptions(brokers, access, monotonic, config.lite)
        presence = Presence(brokers, access, self.sessions, lite, now_ms)
        self._telemetry = Telemetry(self.sessions, brokers, presence, lite, config.body_bytes_max)
        transactions = Transactions(brokers, access, monotonic)
        self._commands = ServerCommands(self._telemetry, transactions, lite, access)
        acknowledgements = Acknowledgements(self.sessions, brokers, access, now_ms)
        self.renewals = Renewals(brokers, acknowledgements.change, acknowledgements.show, monotonic)
        acknowledgements.set_renewals(self.renewals)
        routes = Routes(
            brokers, access, lambda: join_address(config.reached_at or config.host, self.port), config.advertised
        )
        sends = Sends(
            *(self.sessions, brokers, access, transactions, now_ms),
            body_bytes_max=config.body_bytes_max,
            lite_topic_bytes_max=config.lite.max_lite_topic_size,
        )
        self._receives = Receives(self.sessions, brokers, access, acknowledgements, self.renewals, lite, now_ms)
        served: dict[str, Callable[[ClientSession, Any], Awaitable[Message | bytes]]] = {
            "QueryRoute": routes.route,
            "QueryAssignment": routes.assignment,
            "Heartbeat": presence.heartbeat,
            "NotifyClientTermination": presence.terminate,
            "ChangeInvisibleDuration": acknowledgements.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": acknowledgements.forward,
            "EndTransaction": transactions.end,
            "SyncLiteSubscription": lite.sync,
            "RecallMessage": Recalls(brokers, access).recall,
        }
        methods: dict[str, Method] = {name: unary(self.sessions, name, serve) for name, serve in served.items()}
        methods |= {
            "SendMessage": sends.method(),
            "ReceiveMessage": self._receives.method(),
            "AckMessage": acknowledgements.method(),
            "Telemetry": self._telemetry.method(),
        }
        self._health = HealthService(V2.service)
        self._outcomes = {name: Outcomes() for name in sorted(SERVED)}
        offered: dict[bytes, Method] = {
            V2.path(name): replace(methods[name], outcomes=outcomes) for name, outcomes in self._outcomes.items()
        }
        offered |= {**self._health.methods(), **ReflectionService((V2, HEALTH_V1)).methods()}
        self._server = GrpcServer(
            offered, config.host, config.port, monotonic, access.wanted, config.options, supervisor
        )
        self._looking: PeriodicWork | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port, after ``start``."""
        return self._server.port

    @property
    def address(self) -> str:
        """The address on which the door listens, ``host:port``."""
        return self._server.address

    def figures(self) -> DoorFigures:
        """What the door does now, and has done since its start."""
        server = self._server
        return DoorFigures(
            connections=len(server.connections),
            clients=len(self.sessions),
            links=sum(len(session.links) for session in self.sessions),
            calls=server.calls,
            open_calls=server.stream_count,
            polls=self._receives.waiting,
            renewed=len(self.renewals),
            unsent_bytes=server.unsent_bytes,
            held_bytes=server.held_bytes,
            refused=self._access.refused,
            unknown_senders=self._access.unknown_senders,
            outcomes={name: outcomes.counts() for name, outcomes in self._outcomes.items()},
            ends=dict(server.ends),
        )

    async def start(self, listening: socket.socket | None = None) -> None:
        """Starts to serve.

        Args:
            listening: a socket that listens already, in place of the address; ``stop`` closes it.

        Raises:
            AddressInUseError: the port is taken.
            ConfigError: the address cannot be used for another reason.
        """
        await self._server.start(listening)
        loop = asyncio.get_running_loop()
        self._looking = self._supervisor.every("look at gRPC clients", lambda: _LOOK_S, self._look, loop)

    def drop(self) -> None:
        """Closes the port and cuts every connection at once, as if the process had ended; ``stop`` must follow."""
        self._server.drop()

    async def stop(self) -> None:
        """Tells all clients to connect again elsewhere, serves what they have begun, and closes."""
        if self._looking is not None:
            await self._looking.stop()
        self._health.set_serving(V2.service, False)
        await in_turns(self._telemetry.reconnect())
        await self._server.stop(_DRAIN_S)
        await self.sessions.close()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAIN_S)
            for task in late:  # its messages are visible when their invisible time is over
                task.cancel()

    async def _look(self) -> Pause:
        is_more = self.sessions.forget_silent()
        await self.renewals.look()
        return 0.0 if is_more else None

    def _asked(
        self, session: ClientSession, broker_name: str, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand] | None:
        return self._commands.asked(session, broker_name, command)

    def _ended(self, session: ClientSession, has_said: bool) -> None:
        task = asyncio.ensure_future(self._release(session, has_said))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, session: ClientSession, has_said: bool) -> None:
        """Gives back what a client has not acknowledged, then forgets it at the brokers."""
        try:
            await self._lite.forget(session, has_said)
            await self.renewals.release(session, has_said)
        finally:
            session.close()
