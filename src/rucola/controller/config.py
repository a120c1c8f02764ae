"""Options of the controller, with RocketMQ's keys where it has them (``ControllerConfig``, ``NettyServerConfig``)."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.hosts import check_bind_address, is_loopback, join_address, split_address
from rucola.common.options import check_options, option
from rucola.common.tls_config import TlsConfig
from rucola.controller.http_gateway import endpoints_of
from rucola.errors import ConfigError

REMOTE_KEYS = frozenset(
    {
        "electMasterMaxRetryCount",
        "enableElectUncleanMaster",
        "notifyBrokerRoleChanged",
        "scanInactiveMasterInterval",
        "scanNotActiveBrokerInterval",
    }
)
"""Options that a request may change. The controller reads them at each use."""


@dataclass(frozen=True)
class ControllerConfig(TlsConfig):
    """Options of the controller."""

    etcd_endpoints: str = option(
        "etcdEndpoints", "", "URLs of the members of one etcd, separated by commas. Needed. Rucola's own."
    )
    etcd_prefix: str = option(
        "etcdPrefix",
        "/rucola/controller",
        "Where the controller's keys are in etcd. Controllers with the same prefix are one group. Rucola's own.",
    )
    etcd_timeout_ms: int = option(
        "etcdTimeout",
        2000,
        "How long to wait for an answer of one member of etcd. Rucola's own.",
        unit="ms",
        minimum=10,
        maximum=60_000,
    )
    etcd_user: str = option("etcdUser", "", "User of etcd; empty for an etcd without users. Rucola's own.")
    etcd_password: str = option("etcdPassword", "", "Password of this user. Rucola's own.", secret=True)
    etcd_trust_cert_path: str = option(
        "etcdTrustCertPath",
        "",
        "PEM file with the authorities that sign certificates of etcd; empty for those of the system. Rucola's own.",
    )
    etcd_cert_path: str = option(
        "etcdCertPath", "", "PEM file with the certificate that the controller shows to etcd. Rucola's own."
    )
    etcd_key_path: str = option("etcdKeyPath", "", "PEM file with the key of this certificate. Rucola's own.")
    bind_address: str = option("bindAddress", "127.0.0.1", "Address to listen on.")
    listen_port: int = option("listenPort", 9878, "Port to listen on; 0 for any free port.", minimum=0, maximum=65535)
    advertised_address: str = option(
        "advertisedAddress",
        "",
        "Address `host:port` under which brokers reach this controller; empty for the one that it listens on. Needed "
        "if that is the address of all interfaces. Rucola's own.",
    )
    insecure: bool = option(
        "insecure",
        False,
        "Whether the controller may listen without TLS on an address that others can reach. Rucola's own.",
    )
    acl_enable: bool = option(
        "aclEnable",
        False,
        "Whether only accounts that `conf/plain_acl.yml` lists as administrators may change the controller's data. "
        "Then even brokers on this machine must sign their requests (`innerClientAuthenticationCredentials`).",
    )
    acl_signed_addresses: str = option(
        "aclSignedAddresses",
        "",
        "Further addresses `host:port`, separated by commas, under which brokers reach the controller. See the option "
        "of the broker with this name.",
    )
    rocketmq_home: str = option("rocketmqHome", "", "Directory with `conf/plain_acl.yml`. Needed with `aclEnable`.")
    inner_client_authentication_credentials: str = option(
        "innerClientAuthenticationCredentials",
        "",
        "Account for notices to brokers with access control, as JSON: `accessKey`, `secretKey`.",
        secret=True,
    )
    use_tls: bool = option("useTLS", False, "Whether the controller connects to brokers over TLS.")
    tls_client_trust_cert_path: str = option(
        "tlsClientTrustCertPath",
        "",
        "PEM file with the authorities that sign certificates of brokers. Empty: brokers have the certificate in "
        "`tlsCertPath`.",
    )
    scan_not_active_broker_interval_ms: int = option(
        "scanNotActiveBrokerInterval",
        5000,
        "Pause between two searches for brokers that have sent no heartbeat in their time.",
        unit="ms",
        minimum=10,
        maximum=600_000,
    )
    scan_inactive_master_interval_ms: int = option(
        "scanInactiveMasterInterval",
        5000,
        "Pause between two searches for groups whose master is dead although other brokers live.",
        unit="ms",
        minimum=10,
        maximum=600_000,
    )
    elect_master_max_retry_count: int = option(
        "electMasterMaxRetryCount",
        3,
        "How often an election is tried in a row, while etcd does not answer.",
        minimum=1,
        maximum=100,
    )
    enable_elect_unclean_master: bool = option(
        "enableElectUncleanMaster",
        False,
        "Whether a broker that is not in sync may become the master if no broker in sync lives. Messages are lost "
        "then.",
    )
    notify_broker_role_changed: bool = option(
        "notifyBrokerRoleChanged",
        True,
        "Whether brokers are told of a new master at once. They also ask every 5 seconds.",
    )
    brokers_max: int = option(
        "brokersMax",
        1000,
        "Number of brokers that may send heartbeats; those of further ones are refused. Rucola's own.",
        minimum=1,
        maximum=1_000_000,
    )
    groups_max: int = option(
        "groupsMax",
        1000,
        "Number of groups that there may be; brokers of further ones get no id. Rucola's own.",
        minimum=1,
        maximum=100_000,
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.check_tls()
        check_bind_address(self.bind_address, self.insecure or self.tls_mode != "disabled")
        if self.acl_enable and not self.rocketmq_home:
            raise ConfigError("rocketmqHome", "", "a directory, because aclEnable=true")
        if self.use_tls and not (self.tls_client_trust_cert_path or self.tls_cert_path):
            raise ConfigError("tlsClientTrustCertPath", "", "a PEM file here or in tlsCertPath, because useTLS=true")
        if self.etcd_key_path and not self.etcd_cert_path:
            raise ConfigError("etcdCertPath", "", "a PEM file, because etcdKeyPath is set")
        self._check_etcd()
        self._check_address()

    def _check_etcd(self) -> None:
        endpoints = endpoints_of(self.etcd_endpoints)
        prefix = self.etcd_prefix
        if not prefix.startswith("/") or prefix.endswith("/") or not prefix.isascii() or not prefix.isprintable():
            raise ConfigError("etcdPrefix", prefix, "ASCII text that begins with a slash and ends without one")
        if bool(self.etcd_user) != bool(self.etcd_password):
            missing = "etcdPassword" if self.etcd_user else "etcdUser"
            raise ConfigError(missing, "", "both etcdUser and etcdPassword, or neither")
        is_safe = all(one.is_tls or is_loopback(join_address(one.host, one.port)) for one in endpoints)
        if self.etcd_user and not is_safe and not self.insecure:
            raise ConfigError("etcdEndpoints", self.etcd_endpoints, "https, because etcdUser is set")

    def _check_address(self) -> None:
        address = self.advertised_address
        if not address:
            if self.bind_address in ("0.0.0.0", "::"):
                raise ConfigError("advertisedAddress", "", f"host:port, because bindAddress={self.bind_address}")
            return
        try:
            split_address(address)
        except ValueError as error:
            raise ConfigError("advertisedAddress", address, f"host:port ({error})") from None
