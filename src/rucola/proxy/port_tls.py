"""Encryption of the gRPC port, for a broker and for a proxy."""

from __future__ import annotations

import logging
from typing import Protocol

from rucola.common.hosts import is_loopback, join_address, split_address
from rucola.errors import ConfigError
from rucola.grpc.self_signed import self_signed_tls
from rucola.remoting.tls_listener import ServerTls
from rucola.runtime.logs import event
from rucola.runtime.tls import server_context

logger = logging.getLogger(__name__)


class PortConfig(Protocol):
    """The options that matter here."""

    @property
    def bind_address(self) -> str:
        """Address to listen on."""

    @property
    def grpc_advertised_address(self) -> str:
        """Address under which clients reach the port; empty for the one that each client has used."""

    @property
    def tls_mode(self) -> str:
        """``enforcing`` refuses plain connections."""

    @property
    def tls_cert_path(self) -> str:
        """File with the certificate."""

    @property
    def tls_key_path(self) -> str:
        """File with its key."""

    @property
    def tls_need_client_auth(self) -> str:
        """Whether clients must show a certificate."""

    @property
    def tls_trust_cert_path(self) -> str:
        """File with the authorities that may sign certificates of clients."""


def port_tls(config: PortConfig) -> ServerTls | None:
    """The certificate of the options, even if ``tlsMode`` is ``disabled``; otherwise, on the loopback address, one that
    signs itself, for clients that use TLS unless told otherwise. None if there is none: the port is plain.

    Raises:
        ConfigError: a file cannot be used.
    """
    if config.tls_cert_path and config.tls_key_path:
        context = server_context(
            config.tls_cert_path, config.tls_key_path, config.tls_trust_cert_path, config.tls_need_client_auth
        )
        return ServerTls(context, permissive=config.tls_mode != "enforcing")
    reason = "no certificate"
    if is_loopback(join_address(config.bind_address, 0)):
        advertised = config.grpc_advertised_address
        try:
            return self_signed_tls([split_address(advertised)[0]] if advertised else [])
        except ConfigError as error:
            reason = str(error)
    event(logger, logging.WARNING, "gRPC port takes plain connections only", reason=reason)
    return None
