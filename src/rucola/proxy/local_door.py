"""The door of a broker in this process: all that is imported when its first client connects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.common.hosts import split_address
from rucola.grpc.server_options import GrpcServerOptions
from rucola.proxy.access import DoorAccess
from rucola.proxy.account_access import AccountAccess
from rucola.proxy.door import DoorConfig, GrpcDoor
from rucola.proxy.local import LocalBrokers
from rucola.remoting.tls_listener import ServerTls

if TYPE_CHECKING:
    from rucola.broker.broker import Broker


def local_door(broker: Broker, address: str, tls: ServerTls | None) -> GrpcDoor:
    """Returns a door, which is not started.

    Args:
        broker: the broker behind it, which is running.
        address: address of the door, ``host:port``.
        tls: encryption of its port; None for none.
    """
    host, port = split_address(address)
    services = broker.services
    config = DoorConfig(
        host,
        port,
        broker.config.grpc_advertised_address,
        broker.config.client_host,
        broker.store.config.max_message_size,
        broker.config,
        GrpcServerOptions(tls=tls),
    )
    return GrpcDoor(
        config, lambda asked: LocalBrokers(broker, asked), services.clock, services.supervisor, _access(broker)
    )


def _access(broker: Broker) -> DoorAccess:
    """The broker's accounts, if it has some."""
    config, services = broker.config, broker.services
    if services.access is None:
        return DoorAccess()
    return AccountAccess(
        services.access.snapshot,
        services.clock.monotonic,
        insecure=config.insecure,
        require_v2=config.acl_require_v2,
    )
