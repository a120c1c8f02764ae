"""The proxy of ``rucola up --brokers``: it has its own process, and the port for gRPC clients of all brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rucola.broker.config import BrokerConfig
from rucola.cli.http import in_use
from rucola.cli.serve import LogOptions
from rucola.cli.server_process import ServerProcess
from rucola.common.options import options_of, show_options
from rucola.proxy.config import MESSAGE_BYTES_MAX, ProxyConfig
from rucola.runtime.extras import GRPC, require


class ProxyProcess(ServerProcess):
    """The proxy. Call ``check_port`` and ``lead_to`` before ``start``.

    Args:
        config: options of the brokers: their address, TLS.
        message_bytes_max: largest body of a message that the brokers take.
        port: port to listen on; 0 chooses a free one.
        log: log options of the process.

    Raises:
        MissingExtraError: the extra ``grpc`` is not installed.
    """

    _arguments: ClassVar = ("proxy",)

    def __init__(self, config: BrokerConfig, message_bytes_max: int, port: int, log: LogOptions) -> None:
        require(GRPC, "the gRPC port")
        keys = {option.key for option in options_of(ProxyConfig)}
        values = {key: text for key, text in show_options(config).items() if key in keys}
        values["grpcServerPort"] = str(port)
        values["maxMessageSize"] = str(min(message_bytes_max, MESSAGE_BYTES_MAX))
        super().__init__("proxy", values, log)
        self._host, self._port = config.bind_address, port

    def check_port(self) -> None:
        """Checks that the port is free, before the brokers open their stores.

        Raises:
            AddressInUseError: another process listens there.
        """
        error = in_use(self._host, self._port, "--grpc-port")
        if error is not None:
            raise error

    def lead_to(self, namesrv: str) -> None:
        """Names the name server whose brokers the proxy serves, ``host:port``."""
        self._values["namesrvAddr"] = namesrv

    def _take(self, facts: Mapping[str, Any]) -> None:
        self.address = facts["grpc"]
        self._values["grpcServerPort"] = self.address.rpartition(":")[2]
