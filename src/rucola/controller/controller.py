"""Runs a controller: listens, takes part in who leads, finds dead masters, stops (RocketMQ 5.3.3,
``ControllerManager``).
"""

from __future__ import annotations

import asyncio
import logging

from rucola.controller.config import REMOTE_KEYS, ControllerConfig
from rucola.controller.etcd import Etcd, Gateway
from rucola.controller.group import BrokerGroup
from rucola.controller.group_store import GroupStore
from rucola.controller.heartbeat import BrokerHeartbeatManager, BrokerKey
from rucola.controller.http_gateway import EtcdUser, HttpGateway, endpoints_of
from rucola.controller.leadership import TTL_S, TURN_S, ControllerPeer, Leadership, Term
from rucola.controller.processor import READING, ControllerProcessor
from rucola.controller.role_notices import RoleNotices
from rucola.errors import BrokerError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.headers.controller import CONTROLLER_ITSELF, ElectMasterRequestHeader
from rucola.remoting.client import ClientOptions
from rucola.remoting.config_processor import ConfigProcessor
from rucola.remoting.guarded import GuardedHandler, Judge, judge_by_place
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel, RemotingServer, ServerOptions, server_tls
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor
from rucola.runtime.tls import client_context

logger = logging.getLogger(__name__)
_LEASE_TIMEOUT_S = TTL_S / 4
"""Time limit of a call that renews the lease: another member of etcd can still be asked in time."""


class Controller(GuardedHandler):
    """One controller. It is started and stopped once, on an event loop.

    Args:
        config: its options.
        judge: decides whether to serve requests that are not open to everybody; None trusts this machine and peers with
            a certificate.
        to_brokers: account and TLS of the connections to brokers.
        gateways: the calls to etcd for the lease, and those for groups; None to make them of ``config``.

    Attributes:
        supervisor: supervises all periodic work.
        leadership: who leads.
        groups: the groups; current only while this controller leads.
        brokers: which brokers live.
        processor: serves the requests.

    Raises:
        ConfigError: a certificate cannot be used.
    """

    def __init__(
        self,
        config: ControllerConfig,
        clock: Clock | None = None,
        judge: Judge | None = None,
        to_brokers: ClientOptions | None = None,
        gateways: tuple[Gateway, Gateway] | None = None,
    ) -> None:
        self._config = config
        monotonic = (clock or SystemClock()).monotonic
        processors = ProcessorTable()
        super().__init__(processors, READING, judge or judge_by_place(config.insecure, "the controller"), monotonic)
        self.supervisor = Supervisor()
        options = ServerOptions(tls=server_tls(config))
        self._server = RemotingServer(self, config.bind_address, config.listen_port, options, self.supervisor)
        self._own_gateways: tuple[HttpGateway, ...] = ()
        if gateways is None:
            gateways = self._own_gateways = _http_gateways(config)
        for_lease, for_groups = (Etcd(gateway) for gateway in gateways)
        self.brokers = BrokerHeartbeatManager(monotonic, config.brokers_max)
        prefix = config.etcd_prefix
        self.leadership = Leadership(
            for_lease, prefix, lambda: ControllerPeer(self.address, self.address), monotonic, self._lead
        )
        self.groups = GroupStore(for_groups, prefix, self.leadership, config.groups_max, self._elected)
        self.processor = ControllerProcessor(config, self.leadership, self.groups, self.brokers)
        self.processor.register_to(processors)
        ConfigProcessor(config, REMOTE_KEYS).register_to(
            processors, RequestCode.UPDATE_CONTROLLER_CONFIG, RequestCode.GET_CONTROLLER_CONFIG
        )
        self._notices = RoleNotices(to_brokers or ClientOptions())
        self._works: list[PeriodicWork] = []
        self._elections: dict[str, asyncio.Task[None]] = {}
        """Elections of the controller itself that have not ended, by the name of the group."""

    @property
    def address(self) -> str:
        """The address under which brokers reach it, ``host:port``."""
        return self._config.advertised_address or self._server.address

    @property
    def etcd_failures(self) -> int:
        """Number of calls to etcd that failed since the start."""
        return sum(gateway.failures for gateway in self._own_gateways)

    async def start(self) -> None:
        """Starts to listen. etcd need not run yet.

        Raises:
            AddressInUseError: the port is in use.
        """
        await self._server.start()
        loop, config, every = asyncio.get_running_loop(), self._config, self.supervisor.every
        self._works = [
            every("turn of the controller", lambda: TURN_S, self.leadership.turn, loop, first_s=0.0),
            every(
                "scan of brokers", lambda: config.scan_not_active_broker_interval_ms / 1000, self._scan_brokers, loop
            ),
            every("scan of masters", lambda: config.scan_inactive_master_interval_ms / 1000, self._scan_masters, loop),
        ]

    async def shutdown(self) -> None:
        """Stops listening, closes every connection and lets another controller lead."""
        for work in self._works:
            await work.stop()
        await self._server.close()
        await self._processors.close()
        for election in list(self._elections.values()):
            election.cancel()
        await asyncio.gather(*self._elections.values(), return_exceptions=True)
        await self.leadership.leave()
        await self._notices.close()
        for gateway in self._own_gateways:
            await gateway.close()

    def channel_closed(self, channel: Channel) -> None:
        """Takes the brokers whose heartbeats came over ``channel`` for dead."""
        for identity in self.brokers.channel_closed(channel):
            self._died(identity, "connection closed")

    async def _lead(self, term: Term) -> None:
        await self.groups.load(term)
        self.brokers.begin_to_lead()

    def _elected(self, group: BrokerGroup) -> None:
        if self._config.notify_broker_role_changed:
            self._notices.send(group, self.brokers)

    def _scan_brokers(self) -> None:
        for identity in self.brokers.scan():
            self._died(identity, "no heartbeat")

    def _scan_masters(self) -> None:
        """Elects masters for the groups whose master is dead, if another broker lives."""
        if self.leadership.term is None:
            return
        for group in self.groups:
            master = group.master_broker_id
            is_dead = master is not None and not self.brokers.is_alive(group, master)
            if is_dead and any(self.brokers.info(group, one) is not None for one in group.members):
                self._elect_soon(group.broker_name)

    def _died(self, identity: BrokerKey, reason: str) -> None:
        event(
            logger,
            logging.WARNING,
            "broker is dead",
            group=identity.broker_name,
            id=identity.broker_id,
            reason=reason,
        )
        if self.leadership.term is None:
            return
        try:
            group = self.groups.get(identity.broker_name)
        except BrokerError:  # what etcd has is no group
            return
        if group is None or group.cluster_name != identity.cluster_name:
            return
        if group.master_broker_id == identity.broker_id and not self.brokers.is_alive(group, identity.broker_id):
            self._elect_soon(identity.broker_name)

    def _elect_soon(self, name: str) -> None:
        if name not in self._elections:
            self._elections[name] = asyncio.ensure_future(self._elect(name))

    async def _elect(self, name: str) -> None:
        """Elects a master for a group whose master is dead."""
        asked = ElectMasterRequestHeader("", name, CONTROLLER_ITSELF)
        try:
            for _ in range(self._config.elect_master_max_retry_count):
                try:
                    decision = await self.processor.elect(asked)
                except BrokerError as error:
                    event(logger, logging.ERROR, "election failed", group=name, error=error)
                    if error.code == ResponseCode.CONTROLLER_NOT_LEADER:
                        return
                else:
                    if decision.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE:
                        event(logger, logging.ERROR, "no broker can become the master", group=name)
                    return
        finally:
            del self._elections[name]


def _http_gateways(config: ControllerConfig) -> tuple[HttpGateway, HttpGateway]:
    """The calls to etcd for the lease, which must not wait behind others, and those for groups."""
    endpoints = endpoints_of(config.etcd_endpoints)
    account = EtcdUser(config.etcd_user, config.etcd_password) if config.etcd_user else None
    tls = None
    if any(endpoint.is_tls for endpoint in endpoints):
        tls = client_context(config.etcd_trust_cert_path, config.etcd_cert_path, config.etcd_key_path)
    return (
        HttpGateway(endpoints, _LEASE_TIMEOUT_S, account, tls),
        HttpGateway(endpoints, config.etcd_timeout_ms / 1000, account, tls),
    )
