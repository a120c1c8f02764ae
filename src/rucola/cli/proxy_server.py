"""The server of ``rucola proxy``: the gRPC door in front of brokers behind name servers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from rucola.cli.config_file import read_config
from rucola.cli.http import Health, HttpServer
from rucola.cli.serve import port_from
from rucola.client.config import ClientConfig
from rucola.client.instance import client_options
from rucola.grpc.server_options import GrpcServerOptions
from rucola.proxy.cluster import ClusterBrokers
from rucola.proxy.cluster_access import ClusterAccess
from rucola.proxy.config import ProxyConfig
from rucola.proxy.door import DoorConfig, GrpcDoor
from rucola.proxy.door_tls import door_tls
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.supervision import PeriodicWork, Supervisor
from rucola.runtime.tls import peer_context

if TYPE_CHECKING:
    from rucola.cli.account_files import AccountFiles
    from rucola.proxy.brokers import ServerRequest
    from rucola.remoting.client import ClientOptions


class ProxyServer:
    """A door with its brokers. Make it on an event loop; call ``start`` once, then ``stop`` once.

    Without accounts, everybody may do what the proxy's own account may do.

    Args:
        config: its options.
        own_brokers: whether the same command runs the brokers, which then have the TLS options of the door.
        http_port: port of ``/livez``, ``/readyz`` and ``/metrics`` on the proxy's address; None for no HTTP.

    Attributes:
        door: the port for gRPC clients.
        brokers: the brokers.
        accounts: the accounts of the clients; None without access control.
        http: the HTTP port; None if there is none.
        supervisor: supervises the periodic work.

    Raises:
        ConfigError: an option cannot be used.
    """

    brokers: ClusterBrokers

    def __init__(self, config: ProxyConfig, own_brokers: bool = False, http_port: int | None = None) -> None:
        clock, self.supervisor = SystemClock(), Supervisor()
        options = _to_brokers(config, clock, own_brokers)
        self.accounts = _accounts(config, clock)
        self.http = None if http_port is None else HttpServer(config.bind_address, http_port)
        self._reload: PeriodicWork | None = None
        self._is_stopping = False
        access = None
        if self.accounts is not None:
            access = ClusterAccess(
                self.accounts.snapshot,
                clock.monotonic,
                insecure=config.insecure,
                require_v2=config.acl_require_v2,
            )

        def brokers(asked: ServerRequest) -> ClusterBrokers:
            self.brokers = ClusterBrokers(config.namesrv_addr, clock.monotonic, asked, options, access)
            return self.brokers

        door = DoorConfig(
            config.bind_address,
            config.grpc_server_port,
            config.grpc_advertised_address,
            body_bytes_max=config.max_message_size,
            lite=config,
            options=GrpcServerOptions(
                tls=door_tls(config, config.bind_address, config.grpc_advertised_address, config.grpc_tls_dir)
            ),
        )
        self.door = GrpcDoor(door, brokers, clock, self.supervisor, access)

    @property
    def address(self) -> str:
        """The address on which it listens, ``host:port``."""
        return self.door.address

    async def start(self) -> None:
        """Starts to serve. Name servers and brokers need not run yet.

        Raises:
            AddressInUseError: a port is taken.
            ConfigError: the address cannot be used for another reason.
        """
        try:
            if self.http is not None:
                self.http.bind()
            with port_from("--port"):
                await self.door.start()
        except BaseException:
            if self.http is not None:
                self.http.close()
            await self.brokers.close()
            raise
        if self.accounts is not None:
            self._reload = self.accounts.watch(self.supervisor)
        if self.http is not None:
            self.http.start(Health(self._trouble, self._metrics))

    async def stop(self) -> None:
        """Tells the clients to connect again elsewhere, serves what they have begun, and ends all connections.
        Meanwhile ``/readyz`` says that no new clients are wanted.
        """
        self._is_stopping = True
        if self._reload is not None:
            await self._reload.stop()
        await self.door.stop()
        await self.brokers.close()
        if self.http is not None:
            await self.http.stop()

    def _trouble(self) -> str:
        return "stopping" if self._is_stopping else ""

    async def _metrics(self) -> tuple[bytes, str]:
        # Importing the metrics library and formatting the metrics would block the event loop too long.
        library = await asyncio.to_thread(_metrics_library)
        found = library.ProxyCollector(self).collect()
        return await asyncio.to_thread(library.text_of, found)


def _metrics_library() -> ModuleType:
    from rucola.cli import door_metrics

    return door_metrics


def _to_brokers(config: ProxyConfig, clock: Clock, own_brokers: bool) -> ClientOptions:
    """Credentials and TLS of the connections to name servers and brokers."""
    to_brokers = ClientConfig(
        access_key=config.access_key,
        secret_key=config.secret_key,
        signature_version=config.signature_version,
        use_tls=config.use_tls and not own_brokers,
        tls_trust_cert_path=config.tls_client_trust_cert_path,
    )
    options = client_options(to_brokers, clock)
    if own_brokers and config.use_tls:
        tls = peer_context(config.tls_client_trust_cert_path, config.tls_cert_path, config.tls_key_path)
        options = replace(options, tls=tls)
    return options


def _accounts(config: ProxyConfig, clock: Clock) -> AccountFiles | None:
    """The accounts of the clients; None if nobody is asked who he is."""
    if not config.guarded:
        return None
    # Imported late: with its YAML reader, this module takes a tenth of the start-up time.
    from rucola.cli.account_files import broker_users, plain_accounts

    if config.acl_enable:
        return plain_accounts(config.rocketmq_home, config.insecure, clock)
    return broker_users(config.rocketmq_home, config.authorization_enabled)


def proxy_config(
    config_path: str | None,
    namesrv: str | None,
    host: str | None,
    port: int | None,
    advertised: str | None,
    tls_dir: str | None = None,
) -> ProxyConfig:
    """The options of ``rucola proxy``.

    Raises:
        ConfigError: an entry is not allowed; ``OptionsError`` with all errors if there are several.
    """
    return read_config(
        config_path,
        ProxyConfig,
        "proxy",
        namesrvAddr=namesrv,
        bindAddress=host,
        grpcServerPort=port,
        grpcAdvertisedAddress=advertised,
        grpcTlsDir=tls_dir,
    )
