"""TLS of a gRPC port."""

from __future__ import annotations

import logging

from rucola.common.hosts import is_loopback, join_address, split_address
from rucola.common.tls_config import TlsConfig
from rucola.errors import ConfigError
from rucola.grpc.self_signed import self_signed_tls
from rucola.remoting.tls_listener import ServerTls
from rucola.runtime.logs import event
from rucola.runtime.tls import server_context

logger = logging.getLogger(__name__)


def door_tls(config: TlsConfig, host: str, advertised: str) -> ServerTls | None:
    """The given certificate, also if ``tlsMode`` is ``disabled``; otherwise, on a loopback address, one that signs
    itself, for clients that use TLS unless told otherwise. None if only plain connections can be taken, which is
    logged.

    Args:
        config: the TLS options.
        host: address of the port.
        advertised: the address that routes name, ``host:port``; may be empty.

    Raises:
        ConfigError: a file cannot be used.
    """
    if config.tls_cert_path and config.tls_key_path:
        context = server_context(
            config.tls_cert_path, config.tls_key_path, config.tls_trust_cert_path, config.tls_need_client_auth
        )
        return ServerTls(context, permissive=config.tls_mode != "enforcing")
    reason = "no certificate"
    if is_loopback(join_address(host, 0)):
        try:
            return self_signed_tls([split_address(advertised)[0]] if advertised else [])
        except ConfigError as error:
            reason = str(error)
    event(logger, logging.WARNING, "gRPC port takes plain connections only", reason=reason)
    return None
