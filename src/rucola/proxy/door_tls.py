"""TLS of a gRPC port."""

from __future__ import annotations

import logging

from rucola.common.hosts import is_loopback, join_address, split_address
from rucola.common.tls_config import TlsConfig
from rucola.errors import ConfigError
from rucola.grpc.kept_certificate import ARGUMENT, OPTION, kept_tls
from rucola.grpc.self_signed import self_signed_tls
from rucola.remoting.tls_listener import ServerTls
from rucola.runtime.logs import event
from rucola.runtime.tls import server_context

logger = logging.getLogger(__name__)


def door_tls(config: TlsConfig, host: str, advertised: str, directory: str = "") -> ServerTls | None:
    """The given certificate, also if ``tlsMode`` is ``disabled``; otherwise one that signs itself, for clients that use
    TLS unless told otherwise: that in the directory or, on a loopback address, one in memory. None if only plain
    connections can be taken, which is logged.

    Args:
        config: the TLS options.
        host: address of the port.
        advertised: the address that routes name, ``host:port``; may be empty.
        directory: where a certificate that signs itself is kept; empty for nowhere.

    Raises:
        ConfigError: a file cannot be used, or there are two certificates.
    """
    if directory and config.tls_cert_path:
        raise ConfigError(OPTION, directory, "no directory, because tlsCertPath has a certificate", ARGUMENT)
    if config.tls_cert_path and config.tls_key_path:
        context = server_context(
            config.tls_cert_path, config.tls_key_path, config.tls_trust_cert_path, config.tls_need_client_auth
        )
        return ServerTls(context, permissive=config.tls_mode != "enforcing")
    hosts = [split_address(advertised)[0]] if advertised else []
    is_local = is_loopback(join_address(host, 0))
    if directory:
        return kept_tls(directory, hosts if is_local else [host, *hosts])
    reason = "no certificate"
    if is_local:
        try:
            return self_signed_tls(hosts)
        except ConfigError as error:
            reason = str(error)
    event(logger, logging.WARNING, "gRPC port takes plain connections only", reason=reason)
    return None
