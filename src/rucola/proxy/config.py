"""Options of ``rucola proxy``."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.hosts import check_bind_address, split_address
from rucola.common.lite_door_config import LiteDoorConfig
from rucola.common.options import check_options, documented, option
from rucola.common.tls_config import TlsConfig
from rucola.errors import ConfigError

MESSAGE_BYTES_MAX = 15 * 1024**2
"""Upper limit of ``maxMessageSize``."""


@documented
@dataclass(frozen=True)
class ProxyConfig(LiteDoorConfig, TlsConfig):
    """Options of the gRPC door in front of brokers behind name servers. The keys of ``ProxyConfig`` are RocketMQ's,
    those for connections to brokers are the keys of its clients.
    """

    namesrv_addr: str = option("namesrvAddr", "", "Name servers as `host:port`, separated by semicolons.")
    bind_address: str = option("bindAddress", "127.0.0.1", "Address to listen on.")
    insecure: bool = option(
        "insecure",
        False,
        "Whether the proxy may listen on an address that others can reach without access control and TLS, and may "
        "accept signatures that others can read, and secrets that are easy to guess. Rucola's own.",
    )
    acl_enable: bool = option(
        "aclEnable",
        False,
        "Whether every request must be signed by an account of `conf/plain_acl.yml` or `conf/acl/` that has "
        "permission for it. The proxy checks that itself.",
    )
    rocketmq_home: str = option(
        "rocketmqHome",
        "",
        "Directory that contains `conf/plain_acl.yml` and `conf/acl/`, or `config/rucola-auth.json` with the users of "
        "a broker: for example the store directory of a broker. Needed with `aclEnable` or `authenticationEnabled`.",
    )
    authentication_enabled: bool = option(
        "authenticationEnabled",
        False,
        "Whether every request must be signed by a user (ACL 2.0). Not together with `aclEnable`.",
    )
    authorization_enabled: bool = option(
        "authorizationEnabled", False, "Whether users may do only what rules allow. Needs `authenticationEnabled`."
    )
    acl_require_v2: bool = option(
        "aclRequireSignatureV2",
        False,
        "Whether the proxy refuses signatures that can be replayed, and thus all clients of RocketMQ 5. Rucola's own.",
    )
    grpc_server_port: int = option(
        "grpcServerPort",
        8081,
        "Port for clients of RocketMQ 5; 0 for any free port.",
        minimum=0,
        maximum=65535,
    )
    grpc_advertised_address: str = option(
        "grpcAdvertisedAddress",
        "",
        "Address `host:port` of the gRPC port that routes name. Empty: the address that the client itself has used. "
        "Rucola's own.",
    )
    grpc_tls_dir: str = option(
        "grpcTlsDir",
        "",
        "Directory in which the gRPC port keeps a certificate that signs itself, so that clients may pin it. Empty: "
        "each start makes another one, whose key is in memory. Rucola's own.",
    )
    max_message_size: int = option(
        "maxMessageSize",
        4 * 1024 * 1024,
        "Largest body of a message.",
        unit="bytes",
        minimum=1,
        maximum=MESSAGE_BYTES_MAX,
    )
    access_key: str = option(
        "accessKey",
        "",
        "Name of the account with which the proxy signs its requests to brokers. Empty: they are not signed.",
    )
    secret_key: str = option("secretKey", "", "Secret of the account.", secret=True)
    signature_version: int = option(
        "signatureVersion",
        1,
        "1: sign with the signature that every broker knows. 2: with the one that cannot be replayed, for Rucola's "
        "brokers only.",
        minimum=1,
        maximum=2,
    )
    use_tls: bool = option(
        "useTLS",
        False,
        "Whether connections to name servers and brokers use TLS. Their certificates are always verified.",
    )
    tls_client_trust_cert_path: str = option(
        "tlsClientTrustCertPath",
        "",
        "PEM file with the authorities that may sign certificates of brokers. If empty, the system's authorities. "
        "RocketMQ: `tls.client.trustCertPath`.",
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.check_tls()
        self._check_access()
        check_bind_address(self.bind_address, self.insecure or (self.guarded and self.tls_mode != "disabled"))
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("accessKey", self.access_key, "both accessKey and secretKey, or neither")
        if not self.namesrv_addr:
            raise ConfigError("namesrvAddr", "", "host:port of a name server, several separated by ;", "--namesrv")
        if self.grpc_advertised_address:
            try:
                split_address(self.grpc_advertised_address)
            except ValueError:
                raise ConfigError("grpcAdvertisedAddress", self.grpc_advertised_address, "host:port") from None

    def _check_access(self) -> None:
        if self.acl_enable and self.authentication_enabled:
            raise ConfigError("authenticationEnabled", "true", "either this or aclEnable")
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError("authorizationEnabled", "true", "only together with authenticationEnabled=true")
        if self.guarded and not self.rocketmq_home:
            raise ConfigError("rocketmqHome", "", "the directory with the accounts or users")

    @property
    def guarded(self) -> bool:
        """Whether requests must be signed."""
        return self.acl_enable or self.authentication_enabled
