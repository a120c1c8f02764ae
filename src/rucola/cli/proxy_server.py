"""The server of ``rucola proxy``: the gRPC door in front of brokers behind name servers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rucola.cli.config_file import put, read_properties
from rucola.cli.serve import port_from
from rucola.client.config import ClientConfig
from rucola.client.instance import client_options
from rucola.common.options import ConfigProblems, options_of, parse_options, unknown_keys
from rucola.errors import ConfigError
from rucola.grpc.server_options import GrpcServerOptions
from rucola.proxy.cluster import ClusterBrokers
from rucola.proxy.config import ProxyConfig
from rucola.proxy.door import DoorConfig, GrpcDoor
from rucola.proxy.door_tls import door_tls
from rucola.runtime.clock import SystemClock
from rucola.runtime.supervision import Supervisor
from rucola.runtime.tls import peer_context

if TYPE_CHECKING:
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.brokers import ServerRequest


class ProxyServer:
    """A door with its brokers. Make it on an event loop; call ``start`` once, then ``stop`` once.

    Args:
        config: its options.
        access: says who may do what at the door; None lets everybody do what the proxy's own account may do.
        own_brokers: whether the same command runs the brokers, which then have the TLS options of the door.

    Raises:
        ConfigError: an option cannot be used.
    """

    def __init__(self, config: ProxyConfig, access: DoorAccess | None = None, own_brokers: bool = False) -> None:
        clock, supervisor = SystemClock(), Supervisor()
        to_brokers = ClientConfig(
            access_key=config.access_key,
            secret_key=config.secret_key,
            use_tls=config.use_tls and not own_brokers,
            tls_trust_cert_path=config.tls_client_trust_cert_path,
        )
        options = client_options(to_brokers, clock)
        if own_brokers and config.use_tls:
            tls = peer_context(config.tls_client_trust_cert_path, config.tls_cert_path, config.tls_key_path)
            options = replace(options, tls=tls)

        def brokers(asked: ServerRequest) -> ClusterBrokers:
            self._brokers = ClusterBrokers(config.namesrv_addr, clock.monotonic, asked, options)
            return self._brokers

        door = DoorConfig(
            config.bind_address,
            config.grpc_server_port,
            config.grpc_advertised_address,
            body_bytes_max=config.max_message_size,
            options=GrpcServerOptions(tls=door_tls(config, config.bind_address, config.grpc_advertised_address)),
        )
        self._door = GrpcDoor(door, brokers, clock, supervisor, access)

    @property
    def address(self) -> str:
        """The address on which it listens, ``host:port``."""
        return self._door.address

    async def start(self) -> None:
        """Starts to serve. Name servers and brokers need not run yet.

        Raises:
            AddressInUseError: the port is taken.
            ConfigError: the address cannot be used for another reason.
        """
        try:
            with port_from("--port"):
                await self._door.start()
        except BaseException:
            await self._brokers.close()
            raise

    async def stop(self) -> None:
        """Tells the clients to connect again elsewhere, serves what they have begun, and ends all connections."""
        await self._door.stop()
        await self._brokers.close()


def proxy_config(
    config_path: str | None, namesrv: str | None, host: str | None, port: int | None, advertised: str | None
) -> ProxyConfig:
    """The options of ``rucola proxy``.

    Raises:
        ConfigError: an entry is not allowed; ``OptionsError`` with all errors if there are several.
    """
    values = read_properties(config_path) if config_path is not None else {}
    put(values, "namesrvAddr", namesrv)
    put(values, "bindAddress", host)
    put(values, "grpcServerPort", port)
    put(values, "grpcAdvertisedAddress", advertised)
    problems = ConfigProblems()
    for key in unknown_keys(values, ProxyConfig):
        allowed = ", ".join(entry.key for entry in options_of(ProxyConfig))
        problems.add(ConfigError(key, values[key], f"a key of the proxy: {allowed}"))
    with problems:
        config = parse_options(ProxyConfig, values)
    problems.report()
    return config
