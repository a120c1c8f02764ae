"""The proxy of ``rucola up --brokers``: it has its own process, and the port for gRPC clients of all brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rucola.broker.config import BrokerConfig, credentials
from rucola.cli.http import in_use
from rucola.cli.serve import LogOptions
from rucola.cli.server_process import ServerProcess
from rucola.common.options import options_of, show_options
from rucola.proxy.config import MESSAGE_BYTES_MAX, ProxyConfig
from rucola.runtime.extras import GRPC, require


class ProxyProcess(ServerProcess):
    """The proxy. Call ``check_port`` and ``lead_to`` before ``start``.

    With access control, it has the accounts of the brokers, or the users of the first one. It signs its own requests
    with the account that the brokers have in common (``innerClientAuthenticationCredentials``).

    Args:
        config: options of the brokers: their address, TLS, access control.
        message_bytes_max: largest body of a message that the brokers take.
        port: port to listen on; 0 chooses a free one.
        log: log options of the process.

    Raises:
        MissingExtraError: the extra ``grpc`` is not installed.
    """

    _arguments: ClassVar = ("proxy", "--http-port", "0")

    def __init__(self, config: BrokerConfig, message_bytes_max: int, port: int, log: LogOptions) -> None:
        require(GRPC, "the gRPC port")
        keys = {option.key for option in options_of(ProxyConfig)}
        values = {key: text for key, text in show_options(config).items() if key in keys}
        values["grpcServerPort"] = str(port)
        values["maxMessageSize"] = str(min(message_bytes_max, MESSAGE_BYTES_MAX))
        if (account := credentials(config.inner_client_authentication_credentials)) is not None:
            values["accessKey"], values["secretKey"] = account
            values["signatureVersion"] = "2" if config.acl_require_v2 else "1"
        super().__init__("proxy", values, log)
        self._config, self._port = config, port

    def check_port(self) -> None:
        """Checks that the port is free, before the brokers open their stores.

        Raises:
            AddressInUseError: another process listens there.
        """
        error = in_use(self._config.bind_address, self._port, "--grpc-port")
        if error is not None:
            raise error

    def lead_to(self, namesrv: str, root: str, first_broker: str) -> None:
        """Says what the proxy serves.

        Args:
            namesrv: the name server of the brokers, ``host:port``.
            root: parent directory of their stores.
            first_broker: name of the first of them.
        """
        self._values["namesrvAddr"] = namesrv
        if self._config.authentication_enabled:
            self._values["rocketmqHome"] = f"{root}/{first_broker}"
        elif self._config.acl_enable:
            self._values["rocketmqHome"] = self._config.rocketmq_home or root

    def _take(self, facts: Mapping[str, Any]) -> None:
        self.address, self.http = facts["grpc"], facts["http"]
        self._values["grpcServerPort"] = self.address.rpartition(":")[2]
