"""The gRPC door: a server with the services of ``apache.rocketmq.v2``, in front of one or many brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rucola.grpc.call import GrpcCall
from rucola.grpc.health import HealthService
from rucola.grpc.methods import Answer, Method, UnaryMethod
from rucola.grpc.reflection import ReflectionService
from rucola.grpc.server import GrpcServer, GrpcServerOptions
from rucola.protocol.command import RemotingCommand
from rucola.proxy.access import DoorAccess
from rucola.proxy.acknowledge import Acknowledgements
from rucola.proxy.brokers import Brokers
from rucola.proxy.commands import ServerCommands
from rucola.proxy.presence import Presence
from rucola.proxy.recall import Recalls
from rucola.proxy.receive import Receives
from rucola.proxy.renewals import Renewals
from rucola.proxy.route import Routes
from rucola.proxy.rpc import unary
from rucola.proxy.schema import V2
from rucola.proxy.send import Sends
from rucola.proxy.sending import BODY_BYTES_MAX
from rucola.proxy.sessions import WANTED, Session, Sessions
from rucola.proxy.telemetry import Telemetry
from rucola.proxy.transactions import Transactions
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_DRAIN_S: Final = 5.0
Asked = Callable[[Session, str, RemotingCommand], "Awaitable[RemotingCommand | None] | RemotingCommand | None"]


@dataclass(frozen=True, slots=True)
class DoorConfig:
    """What a door is told.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 chooses a free one.
        advertised: the address under which clients reach it; empty for the one that each client has used.
        body_bytes_max: largest body of a message.
        options: limits and TLS of the server.
    """

    host: str
    port: int
    advertised: str = ""
    body_bytes_max: int = BODY_BYTES_MAX
    options: GrpcServerOptions = GrpcServerOptions()


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
        access = access or DoorAccess()
        now_ms, monotonic = clock.wall_ms, clock.monotonic
        brokers = make_brokers(self._asked)
        self.sessions = Sessions(access, monotonic, self._ended)
        presence = Presence(brokers, self.sessions, now_ms)
        self._telemetry = Telemetry(self.sessions, brokers, presence, access, config.body_bytes_max)
        transactions = Transactions(brokers, monotonic)
        self._commands = ServerCommands(self._telemetry, transactions)
        acknowledgements = Acknowledgements(self.sessions, brokers, now_ms)
        self.renewals = Renewals(brokers, acknowledgements.change, monotonic)
        acknowledgements.set_renewals(self.renewals)
        routes, recalls = Routes(brokers, access, config.advertised), Recalls(brokers)
        self._health = HealthService(V2.service)
        methods: dict[bytes, Method] = {
            "QueryRoute": unary(self.sessions, "QueryRoute", routes.route),
            "QueryAssignment": unary(self.sessions, "QueryAssignment", routes.assignment),
            "Heartbeat": unary(self.sessions, "Heartbeat", presence.heartbeat),
            "NotifyClientTermination": unary(self.sessions, "NotifyClientTermination", presence.terminate),
        }
